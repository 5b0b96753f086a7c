"""A destination under load, the commands that work on it, and the final checks."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from cdc.config import DestinationConfig, load
from cdc.testing.servers import HOST, USER, Server
from tests.support.compare import changelog_faults, ledger_faults, mirror_faults, store_faults
from tests.support.load import APPEND, KEYS, UPSERT

SPARK = "{master: 'local[2]', conf: {spark.driver.memory: 1g, spark.driver.extraJavaOptions: '-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m'}}"

DELTA_RS = "small_batches: {engine: deltalake, max_rows: 100000}"


def configure(
    folder: Path, server: Server, database: str, *, spark: str = SPARK, transactions: int = 60, apply: str = ""
) -> DestinationConfig:
    """Configures a destination with the tables of :mod:`tests.support.load`, starting at the newest binlog file.
    ``apply``: more settings of that section."""
    flavor = "mysql" if server.kind.name.startswith("mysql") else "mariadb"
    server.execute("FLUSH BINARY LOGS")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        newest = cursor.fetchall()[-1][0]
    file = folder / "conf" / "shop.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        f"source: {{url: '{flavor}://{USER}@{HOST}:{server.port}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: {random.SystemRandom().randrange(1000, 2**31)}, start: {{file: {newest}, pos: 4}}}}\n"
        f"tables: {{include: ['{database}\\..*'], overrides: {{{database}.{APPEND}: {{mode: append}}}}}}\n"
        # Small segments, so that batches and kills meet their boundaries.
        "store: {path: shop/store, segment_bytes: 65536}\nmeta: {path: shop/meta}\n"
        f"apply: {{target: lake{apply and ', '}{apply}}}\n"
        f"batch: {{max_transactions: {transactions}, max_wait_s: 1}}\nspark: {spark}\n",
        encoding="utf-8",
    )
    return load(file)


def with_delta_rs(config: DestinationConfig) -> DestinationConfig:
    """Returns the configuration of the same destination in which delta-rs merges small batches."""
    text = config.file.read_text(encoding="utf-8")
    assert "apply: {target: lake" in text
    file = config.file.parent.with_name("conf-small") / config.file.name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text.replace("target: lake", f"target: lake, {DELTA_RS}"), encoding="utf-8")
    return load(file)


def set_batch_size(config: DestinationConfig, transactions: int) -> None:
    """Sets the transactions of a batch, for commands that start from now on."""
    lines = config.file.read_text(encoding="utf-8").splitlines()
    lines = [
        f"batch: {{max_transactions: {transactions}, max_wait_s: 1}}" if x.startswith("batch:") else x for x in lines
    ]
    new = config.file.with_suffix(".new")
    new.write_text("\n".join(lines) + "\n", encoding="utf-8")
    new.replace(config.file)


def command(config: DestinationConfig, *words: str) -> list[str]:
    """Returns a command line of ``cdc`` for the destination."""
    return [sys.executable, "-m", "cdc", "--conf-dir", str(config.file.parent), words[0], config.name, *words[1:]]


def run_to_success(config: DestinationConfig, *words: str) -> str:
    """Runs a command, which must succeed, and returns its output."""
    done = subprocess.run(command(config, *words), capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, f"{words}: exit code {done.returncode}: {done.stderr[-3000:]}"
    return done.stdout


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = 300) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.02)


def require_exactly_once(server: Server, database: str, config: DestinationConfig, changes: Mapping[str, int]) -> None:
    """Checks that mirrors equal SELECT, the changelog has each committed change once, and the ledgers have no gap."""
    target, faults = config.apply.target, []
    for table in UPSERT:
        faults += mirror_faults(server, target, database, table)
    faults += changelog_faults(server, target, database, APPEND, KEYS[APPEND], changes)
    faults += store_faults(config.store.path, target, database, APPEND)
    for table in (*UPSERT, APPEND):
        faults += ledger_faults(target, database, table, config.meta.path)
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:20])


class RestartedCommand:
    """A command that is restarted whenever it ends, until :meth:`stop`."""

    def __init__(self, config: DestinationConfig, *words: str, before: Callable[[], None] = lambda: None) -> None:
        self._config, self._words, self._before = config, words, before
        self._log = config.file.parent.parent / f"{words[0]}.log"
        self._stop, self._starting = threading.Event(), threading.Lock()
        self.codes: list[int] = []
        """Its exit codes so far."""
        self.process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=words[0], daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._log.open("ab") as log:
            while not self._stop.is_set():
                self._before()
                with self._starting:
                    if self._stop.is_set():
                        return
                    self.process = subprocess.Popen(command(self._config, *self._words), stdout=log, stderr=log)
                code = self.process.wait()
                if not (self._stop.is_set() and code == -signal.SIGTERM):  # it was terminated before it could listen
                    self.codes.append(code)
                self._stop.wait(0.2)

    def running(self) -> subprocess.Popen[bytes]:
        """Returns the running process; waits for its start if necessary."""
        wait_for(lambda: self.process is not None and self.process.poll() is None, f"a running {self._words[0]}")
        assert self.process is not None
        return self.process

    def kill(self) -> None:
        """Kills the process alone, not its children."""
        code = None
        while code != -signal.SIGKILL:  # a process that ended by itself at this moment does not count
            process = self.running()
            process.kill()
            code = process.wait()

    def stop(self, *, terminate: bool) -> None:
        """Ends the restarts, terminates the process or waits for its end, and checks its log."""
        with self._starting:  # a process that is being started is terminated, too
            self._stop.set()
        if terminate and self.process is not None and self.process.poll() is None:
            self.process.terminate()
        self._thread.join(250)
        assert not self._thread.is_alive(), f"{self._words[0]} does not end: {self.log_tail()}"
        assert "Traceback" not in self._log.read_text(), self.log_tail()

    def log_tail(self) -> str:
        """Returns the end of its log."""
        return self._log.read_text()[-3000:]
