"""The driver's JVM of this process: its settings, its start, its standard error, and its end.

**Settings.** ``ps`` shows every command line to every user of the machine, and the settings contain keys of object
stores. So spark-submit gets the settings in a properties file that only this user can read, and Java gets its options
in an argument file. Both files are removed after the driver has read them.

**Standard error.** The JVM and its Python workers write for developers, for example stack traces of workers that were
ended on purpose. Their lines go to the log at level debug (``cdc -v``), and the last ones into the error if the JVM
does not start. With ``CDC_SPARK_LOG`` the JVM writes to standard error itself.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cdc.base.log import get_logger
from cdc.lake.runtime import private_pyspark

if TYPE_CHECKING:
    from pyspark import SparkConf

_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_LAST_LINES = 5
log = get_logger(__name__)


class DriverStartError(Exception):
    """The JVM did not start; the message holds its last lines."""


# --- settings --------------------------------------------------------------------------------------------------------


@contextmanager
def submit_options(values: Mapping[str, str]) -> Iterator[list[str]]:
    """Yields the arguments of spark-submit for these settings; valid inside the block.

    ``conf/spark-defaults.conf`` is still read; these settings win.
    """
    with tempfile.TemporaryDirectory(prefix="towpath-conf-") as name:  # 0700
        folder = Path(name)
        shown = dict(values)
        for key in _JAVA_OPTIONS:
            if values.get(key):
                file = folder / f"{key.rpartition('.')[2]}.txt"
                _write(file, "".join(f"{_java_argument(option)}\n" for option in shlex.split(values[key])))
                shown[key] = f"@{file}"
        file = folder / "spark.properties"
        _write(file, "".join(f"{_java_property(key)}={_java_property(value)}\n" for key, value in shown.items()))
        yield ["--properties-file", str(file), "--load-spark-defaults"]


def _write(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8")


def _java_property(text: str) -> str:
    """Escapes a text for java.util.Properties."""
    text = re.sub(r"[\\=:#! ]", r"\\\g<0>", text)
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r").replace("\f", "\\f")


def _java_argument(text: str) -> str:
    """Quotes a text for an argument file of the launcher ``java``."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# --- start and end ---------------------------------------------------------------------------------------------------


def start(conf: SparkConf) -> None:
    """Starts the JVM and its SparkContext with these settings; ``SparkSession.builder`` finds them.

    Raises DriverStartError if the JVM ends at once, and any error of Spark if the context does not start.
    """
    with submit_options(dict(conf.getAll())) as options, _submit_arguments(options):
        gateway = _launch()
    private_pyspark.start_context(conf, gateway, _log_broken_connection)


@contextmanager
def _submit_arguments(options: list[str]) -> Iterator[None]:
    """Passes arguments for spark-submit to PySpark in the environment: PySpark would put a configuration on the command
    line."""
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(options)} {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYSPARK_SUBMIT_ARGS"]
        else:
            os.environ["PYSPARK_SUBMIT_ARGS"] = before


def _launch() -> Any:
    if os.environ.get("CDC_SPARK_LOG"):
        return private_pyspark.launch_driver()
    reading, writing = os.pipe()
    last: deque[str] = deque(maxlen=_LAST_LINES)
    reader = threading.Thread(target=_relay, args=(os.fdopen(reading, errors="replace"), last), name="spark-stderr")
    reader.daemon = True
    reader.start()
    try:
        return private_pyspark.launch_driver(writing)
    except Exception as error:
        os.close(writing)
        writing = -1
        reader.join(timeout=5)
        raise DriverStartError(" ".join(last) or str(error)) from error
    finally:
        if writing >= 0:
            os.close(writing)


def _relay(lines: IO[str], last: deque[str]) -> None:
    """Logs each line until the JVM, and every worker that inherited its standard error, has ended."""
    with lines:
        for line in lines:
            if text := line.strip():
                last.append(text)
                log.debug("spark", line=text)


def _log_broken_connection(_request: Any, address: Any) -> None:
    """Replaces :meth:`socketserver.BaseServer.handle_error`, which prints the current exception."""
    logging.getLogger(__name__).debug(
        "the driver broke the connection of its counters %s: %r", address, sys.exception()
    )


def pid() -> int | None:
    """Returns the process id of the driver JVM that this process started; None if it does not run."""
    process = private_pyspark.process_of(private_pyspark.gateway())
    return process.pid if process is not None and process.poll() is None else None


def kill() -> None:
    """Kills the JVM that this process started, whatever state it is in, and resets PySpark."""
    gateway = private_pyspark.gateway()
    if gateway is None:
        return
    process, server = private_pyspark.process_of(gateway), private_pyspark.counter_server()
    if process is not None:
        process.kill()
        process.wait()
    if server is not None:
        ignore_errors(server.shutdown)
    ignore_errors(gateway.shutdown)
    private_pyspark.forget_driver()


def ignore_errors(call: Any) -> None:
    """Calls ``call`` and logs any error: closing a broken session may fail in any way, and nothing can be done."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        logging.getLogger(__name__).debug("closing a broken session: %s", error)
