"""A Spark Connect server on this machine, for merges that find Spark warm: its start, its state and its end.

The server runs with the settings of a destination, Delta's jars and this Python, and listens on ``localhost`` only. It
asks for a token, which is new at each start and stands in its record; only this user can read that. A session whose
``spark.remote`` names the server's address takes the token from there.

Files below ``connect/PORT`` in :func:`~cdc.disk.cache.cache_dir`:

- ``server.json``: the record, see :class:`ServerFile`;
- ``server.log``: what the server writes.

At its end the server writes an archive of its classes (:mod:`cdc.lake.runtime.class_archive`).
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.base.errors import ConfigError, RetryableError, UsageError
from cdc.base.version import package_version
from cdc.disk.cache import cache_dir
from cdc.disk.durable import replace_file
from cdc.lake.runtime import class_archive, driver
from cdc.lake.runtime.driver_jvm import PORT_SETTING, Gateway
from cdc.lake.runtime.jars import CLASSES, spark_home
from cdc.lake.runtime.spark_settings import settings, worker_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.config import SparkConfig

DEFAULT_PORT = 15002
VERSION_SETTING = "spark.towpath.version"
"""Setting of the server: version and digest of the Towpath that its workers run."""
START_S = 180.0
"""The time that a server may take to answer."""
STOP_S = 120.0
"""The time that a server may take to end by itself: it writes the archive of its classes then."""
_FREE_S = 10.0
"""The time for which the port of a server that was killed may stay open."""
MAIN_CLASS = "io.towpath.ConnectServer"
_SHARED = {
    # Spark finds generated code again only under the same class loader. The sessions of each merge are new, and with
    # loaders of their own they would compile all their code once more.
    "spark.sql.artifact.isolation.enabled": "false",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
}
"""Settings that let the sessions of a server share their classes; ``spark.conf`` overrides them."""
_FORMAT = 1
_LAST_LINES = 5


@dataclass(frozen=True)
class ServerFile:
    """The record of a server."""

    port: int
    pid: int
    started: str
    """The start time of the process, in clock ticks since the machine's start: its id may be another process later."""
    since: str
    towpath: str
    """See :data:`VERSION_SETTING`."""
    spark: str
    token: str
    version: int = _FORMAT

    @property
    def url(self) -> str:
        return f"sc://localhost:{self.port}"

    def is_alive(self) -> bool:
        return _start_of(self.pid) == self.started

    def is_of_this_code(self) -> bool:
        """Whether the server's workers run the code of this process."""
        return self.towpath == code_version()


def code_version() -> str:
    """Returns the version of Towpath with a digest of its files' sizes and times, which tells a changed checkout."""
    root = Path(__file__).resolve().parents[3]
    digest = hashlib.sha256()
    for file in sorted((root / "cdc").rglob("*.py")):
        stat = file.stat()
        digest.update(f"{file.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return f"{package_version()} {digest.hexdigest()[:16]}"


def folder_of(port: int) -> Path:
    return cache_dir() / "connect" / str(port)


def find(port: int) -> ServerFile | None:
    """Returns the record of the server that was started for this port, alive or not; None if there is none, or if it
    was stopped. Raises ConfigError for a record that cannot be read."""
    file = folder_of(port) / "server.json"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document.get("version") != _FORMAT:
            raise ConfigError(
                f"is of format version {document.get('version')}, and this Towpath knows {_FORMAT}",
                place=str(file),
                remedy="End that server with the Towpath that has started it, or remove the file.",
            )
        return ServerFile(**document)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"cannot be read: {error}", place=str(file), remedy="Remove it.") from None


def with_token(remote: str) -> str:
    """Returns the URL of a Connect server with the token of the server that was started here for its port. Other URLs
    are returned as they are. Raises RetryableError if that server has died, ConfigError if it runs other code."""
    address, _, parameters = remote.removeprefix("sc://").partition("/")
    server = None if "token=" in parameters else _started_for(address)
    if server is None:
        return remote
    if not server.is_alive():
        raise RetryableError(
            f"the Spark Connect server that `cdc spark start` has started (process {server.pid}) has ended",
            place=f"spark.remote {server.url}",
            remedy=f"See {folder_of(server.port) / 'server.log'}, and start it again: `cdc spark start`.",
        )
    if not server.is_of_this_code():
        raise ConfigError(
            f"the Spark Connect server runs Towpath {server.towpath}, and this process {code_version()}",
            place=f"spark.remote {server.url}",
            remedy="Start it again: `cdc spark stop`, then `cdc spark start`.",
        )
    separator = "" if not parameters or parameters.endswith(";") else ";"
    leading = f"{parameters}{separator}" if parameters else ";"
    return f"sc://{address}/{leading}token={server.token}"


def gateway_of(remote: str, spark: SparkSession) -> Gateway | None:
    """Returns where the server of a session lets this process reach its JVM; None if it was not started here, by this
    user. ``remote``: the URL of the session."""
    server = _started_for(remote.removeprefix("sc://").partition("/")[0])
    if server is None or not server.is_alive():
        return None
    port = spark.conf.get(PORT_SETTING, None)
    return None if port is None else Gateway(int(port), server.token)


def _started_for(address: str) -> ServerFile | None:
    """Returns the record of the server that was started here for an address."""
    host, _, port = address.partition(":")
    port = port or str(DEFAULT_PORT)
    return find(int(port)) if host == "localhost" and port.isdigit() else None


# --- start -----------------------------------------------------------------------------------------------------------


def start(
    config: SparkConfig, port: int = DEFAULT_PORT, progress: Callable[[str], object] = lambda _: None
) -> ServerFile:
    """Starts a server with the settings of ``config``, and returns it when it has merged a first row.

    Raises UsageError if one runs already, or another program listens there; RetryableError if it does not start.
    """
    earlier = find(port)
    if earlier is not None and earlier.is_alive():
        raise UsageError(
            f"a server runs already (process {earlier.pid}, since {earlier.since})",
            place=earlier.url,
            remedy="Stop it with `cdc spark stop`, or choose another --port.",
        )
    if earlier is not None:
        _wait_until_free(port, time.monotonic() + _FREE_S)  # it may have been killed a moment ago
    if _listens(port):
        raise UsageError("another program listens there", place=f"localhost:{port}", remedy="Choose another --port.")
    folder = folder_of(port)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    token = secrets.token_urlsafe(32)
    progress("starting")
    with driver.submit_options(_settings(config, port, token)) as options:
        process = _launch(options, folder / "server.log")
        try:
            _wait(process, port, folder / "server.log")
        except BaseException:  # a signal, too: a server without a record could not be found again
            process.kill()
            process.wait()
            raise
    import pyspark

    server = ServerFile(
        port=port,
        pid=process.pid,
        started=_start_of(process.pid) or "",
        since=datetime.now(UTC).isoformat(timespec="seconds"),
        towpath=code_version(),
        spark=pyspark.__version__,
        token=token,
    )
    replace_file(folder / "server.json", json.dumps(asdict(server), indent=2).encode())  # the folder is private
    progress("merging a first row")
    try:
        _warm(server)
    except BaseException:
        stop(port)
        raise
    return server


def _settings(config: SparkConfig, port: int, token: str) -> dict[str, str]:
    master = config.master if config.remote is None else "local[*]"
    values = settings(config.model_copy(update={"remote": None, "master": master}))
    archive = class_archive.add_archive(values, MAIN_CLASS)
    if archive is not None:
        values["spark.driver.extraJavaOptions"] += (
            f" {shlex.quote(f'-Dtowpath.classes={archive.folder / archive.digest}')}"
        )
    return (
        _SHARED
        | values
        | {
            "spark.master": master,
            "spark.app.name": "towpath",
            "spark.connect.grpc.binding.address": "localhost",
            "spark.connect.grpc.binding.port": str(port),
            "spark.connect.authenticate.token": token,
            VERSION_SETTING: code_version(),
        }
    )


def _launch(options: list[str], log: Path) -> subprocess.Popen[bytes]:
    command = [str(spark_home() / "bin" / "spark-submit"), "--class", MAIN_CLASS, *options, str(CLASSES)]
    environment = os.environ | {
        "SPARK_HOME": str(spark_home()),
        "PYTHONPATH": worker_path(),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }
    with log.open("wb") as writing:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
            cwd=log.parent,
        )


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > deadline:
            lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
            raise RetryableError(
                f"the Spark Connect server did not start: {' '.join(lines[-_LAST_LINES:]) or 'it wrote nothing'}",
                place=str(log),
                remedy="Check that Java 17 or 21 is installed, and spark.conf.",
            )
        time.sleep(0.1)


def _warm(server: ServerFile) -> None:
    """Merges rows into a table of its own, so that classes are loaded and the first batch finds warm code."""
    from pyspark.sql import SparkSession

    spark: Any = SparkSession.builder.remote(f"{server.url}/;token={server.token}").create()
    try:
        with tempfile.TemporaryDirectory(prefix="towpath-warm-") as name:
            table = f"delta.`{Path(name) / 'table'}`"
            rows = spark.createDataFrame([(1, "a"), (2, "b")], "id LONG, v STRING")
            spark.sql(f"CREATE TABLE {table} (id LONG, v STRING) USING delta")
            for _ in range(2):
                rows.createOrReplaceTempView("warm")
                spark.sql(
                    f"MERGE INTO {table} t USING warm s ON t.id = s.id AND t.id >= 1 AND t.id <= 2 "
                    "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                ).collect()
    finally:
        spark.stop()
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


# --- end -------------------------------------------------------------------------------------------------------------


def stop(port: int = DEFAULT_PORT) -> ServerFile | None:
    """Ends the server, and returns it; None if none runs. It has :data:`STOP_S` to end by itself."""
    server = find(port)
    if server is None:
        return None
    alive = server.is_alive()
    if alive:
        os.kill(server.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while server.is_alive():
            if time.monotonic() > deadline:
                os.kill(server.pid, signal.SIGKILL)
            time.sleep(0.1)
        _wait_until_free(port, deadline)
    (folder_of(port) / "server.json").unlink(missing_ok=True)
    return server if alive else None


def _wait_until_free(port: int, deadline: float) -> None:
    """Waits until nobody listens. The threads of a process end one by one, and the last one closes its ports."""
    while _listens(port) and time.monotonic() < deadline:
        time.sleep(0.1)


def _start_of(pid: int) -> str | None:
    """Returns the start time of a process; None if there is none, or if it has ended and waits for its parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("localhost", port)) == 0
