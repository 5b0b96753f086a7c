"""``tables.include`` and ``tables.exclude`` change while capture runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from cdc.base.errors import SourceRefusedError, SourceUnavailableError
from cdc.capture import Capture
from cdc.capture.config_watch import ConfigWatch
from cdc.capture.servers import SourceServers
from cdc.config import DestinationConfig
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import PASSWORD, Server
from tests.fault.support import wait_for
from tests.servers.capture.test_capture import configure

Database = Callable[[Server], str]


@contextmanager
def capturing(config: DestinationConfig) -> Iterator[Capture]:
    """Captures in a thread inside the block; an error of capture is raised at its end."""
    stop, capture = threading.Event(), Capture(config)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(capture.run, stop)
        try:
            wait_for(lambda: (config.store.path / "capture.json").exists() or running.done(), "capture to begin")
            yield capture
        finally:
            stop.set()
        running.result()


def stored(config: DestinationConfig) -> list[str]:
    """Returns the tables of each stored transaction, ``+`` between them, in order."""
    reader = StoreReader(config.store.path)
    if not reader.exists():
        return []
    names = [name.rpartition(".")[2] for name in reader.table_names()]
    masks = [int(entry["table_mask"]) for entries in reader.all_entries() for entry in entries if entry["length"]]
    return ["+".join(sorted(name for at, name in enumerate(names) if mask >> at & 1)) for mask in masks]


@pytest.mark.parametrize(
    "server",
    ["mysql9", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mariadb10", "mariadb11"))],
    indirect=True,
)
def test_tables_come_and_go_while_capture_runs(server: Server, database: Database, tmp_path: Path) -> None:
    db = database(server)
    server.execute(*(f"CREATE TABLE {db}.{name} (id INT AUTO_INCREMENT PRIMARY KEY)" for name in ("a", "b", "c")))
    config = configure(tmp_path, server, db, tables="a")
    text = config.file.read_text()
    statements = f"BEGIN; INSERT INTO {db}.a VALUES (); INSERT INTO {db}.b VALUES (); COMMIT".split("; ")
    with capture_logs() as logs, capturing(config) as capture:

        def choose(tables: str, more: str = "", *, asks: bool = False) -> None:
            seen = len(logs)
            config.file.write_text(text.replace(f"{db}\\.a", f"{db}\\.{tables}") + more)
            if asks:
                capture.reload()
            wait_for(lambda: any("tables" in record["event"] for record in logs[seen:]), "the tables to change", 20)

        def insert(*statements: str) -> None:
            before = len(stored(config))
            server.execute(*statements)
            wait_for(lambda: len(stored(config)) > before, "a transaction")

        insert(*statements)
        choose("[ab]")
        insert(*statements)
        choose("b", asks=True)
        insert(*statements)
        server.execute(f"INSERT INTO {db}.a VALUES ()")
        choose("[bc]")
        insert(f"INSERT INTO {db}.c VALUES ()")
    assert stored(config) == ["a", "a+b", "b", "c"]
    changes = [(record["added"], record["removed"]) for record in logs if "removed" in record]
    assert changes == [([f"{db}.b"], []), ([], [f"{db}.a"]), ([f"{db}.c"], [])]
    assert [record["tables"] for record in logs if "snapshot" in record["event"]] == [[f"{db}.b"], [f"{db}.c"]]


def test_what_cannot_be_used_changes_nothing(
    mysql9: Server, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = database(mysql9)
    mysql9.execute(f"CREATE TABLE {db}.a (id INT AUTO_INCREMENT PRIMARY KEY)")
    config = configure(tmp_path, mysql9, db, tables="a")
    text = config.file.read_text()

    def refuse(*_: object) -> NoReturn:
        raise SourceRefusedError("not with these")

    def miss(*_: object) -> NoReturn:
        raise SourceUnavailableError("is away")

    with capture_logs() as logs, capturing(config) as capture:

        def write(changed: str, event: str) -> None:
            seen = len(logs)
            config.file.write_text(changed)
            capture.reload()
            wait_for(lambda: any(event in record["event"] for record in logs[seen:]), event, 20)

        write(text.replace("include", "includes"), "the configuration cannot be used")
        write(
            text.replace("data/store", "data/other"), "settings have changed that count when capture is started again"
        )
        with monkeypatch.context() as patch:
            patch.setattr(SourceServers, "connect", refuse)
            write(text.replace(".a", ".b"), "these tables cannot be captured")
        config.file.unlink()
        time.sleep(2.5)  # as an editor that moves the old file away
        config.file.write_text(text)
        mysql9.execute(f"INSERT INTO {db}.a VALUES ()")
        wait_for(lambda: stored(config) == ["a"], "a transaction")
        # A source that is away for a moment.
        with monkeypatch.context() as patch:
            patch.setattr(SourceServers, "connect", miss)
            write(text.replace(".a", ".b"), "these tables cannot be captured")
        wait_for(
            lambda: any("tables of the configuration have changed" in record["event"] for record in logs), "a retry", 20
        )
    assert not [
        record for record in logs if record["log_level"] == "error" and "cannot be read" in record.get("error", "")
    ]


def test_a_file_is_read_when_it_has_stayed_the_same_for_a_look(tmp_path: Path, mysql9: Server) -> None:
    config = configure(tmp_path, mysql9, "shop", tables="(a|b)")
    text = config.file.read_text()
    watch = ConfigWatch(config)
    assert watch.look() is None
    config.file.write_text(text.replace("(a|b)", "a"))  # half of it
    assert watch.look() is None
    config.file.write_text(text.replace("(a|b)", "(a|b|c)"))
    assert watch.look() is None
    reloaded = watch.look()
    assert reloaded is not None
    assert reloaded.tables.include == ("shop\\.(a|b|c)",)
    assert (reloaded.name, reloaded.file) == ("shop", config.file)
    watch.take(reloaded)
    assert watch.look() is None
    watch.ask()
    assert watch.look() is None  # the same tables


def test_sighup_reads_the_file_again(mysql9: Server, database: Database, tmp_path: Path) -> None:
    db = database(mysql9)
    mysql9.execute(*(f"CREATE TABLE {db}.{name} (id INT AUTO_INCREMENT PRIMARY KEY)" for name in ("a", "b")))
    config = configure(tmp_path, mysql9, db, tables="a")
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(config.file.parent), "capture", "shop"]
    process = subprocess.Popen(
        command, env=os.environ | {"TOWPATH_TEST_PASSWORD": PASSWORD}, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: (config.store.path / "capture.json").exists(), "capture to begin")
        config.file.write_text(config.file.read_text().replace(f"{db}\\.a", f"{db}\\.b"))
        process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while not stored(config):
            assert process.poll() is None
            assert time.monotonic() < deadline
            mysql9.execute(f"INSERT INTO {db}.b VALUES ()")
            time.sleep(0.3)
        assert set(stored(config)) == {"b"}
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
