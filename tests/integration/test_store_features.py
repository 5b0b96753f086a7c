"""Features of batches and store, each with a real server, real processes and a real merge: runs up to a time, staging, subscribers with filters, retention, a standby that takes over, renewed leases, a full disk."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, Self

import pytest
import yaml

from cdc.base.errors import LeaseHeldError
from cdc.batches.service import BatchService
from cdc.cli.main import main
from cdc.config import DestinationConfig, load
from cdc.copies.standby.role import read_epoch
from cdc.lake import pipeline
from cdc.lake.apply import commit
from cdc.store.formats.index import IndexFile
from cdc.store.formats.layout import list_segments, segments_folder
from cdc.store.formats.time_index import read_time_index
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.disk import disk_usage
from cdc.testing.servers import Server, free_port
from tests.support.apply import OWNER, Loop
from tests.support.capturing import capturing
from tests.support.compare import store_faults
from tests.support.standby import digests

Database = Callable[[Server], str]
Cdc = Callable[..., str]

MIRROR = "CREATE TABLE mirror (id INT PRIMARY KEY, v VARCHAR(20))"
LOG = "CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(20))"


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Database) -> Loop:
    return Loop(tmp_path, mysql9, database(mysql9), overrides="DB.log: {mode: append}")


@pytest.fixture
def cdc(capsys: pytest.CaptureFixture[str]) -> Cdc:
    """Runs a command in this process, where Spark is warm. Returns its output, or its error if ``code`` is not 0."""

    def run(loop: Loop, command: str, *words: str, code: int = 0) -> str:
        capsys.readouterr()
        exit_code = main(["--conf-dir", str(loop.config.file.parent), *command.split(), "shop", *words])
        said = capsys.readouterr()
        assert exit_code == code, said.err
        return said.err if code else said.out

    return run


def change(loop: Loop, **sections: dict[str, Any]) -> None:
    """Sets keys in sections of the configuration."""
    document = yaml.safe_load(loop.config.file.read_text())
    for section, keys in sections.items():
        document[section].update(keys)
    loop.config.file.write_text(yaml.safe_dump(document))
    loop.config = load(loop.config.file)


def start(loop: Loop, command: str, *words: str, errors: int | IO[str] = subprocess.PIPE) -> subprocess.Popen[str]:
    """Runs a command in a process of its own. ``errors``: where its messages go."""
    line = [sys.executable, "-m", "cdc", "--conf-dir", str(loop.config.file.parent), command, "shop", *words]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=errors, text=True)


def ended(process: subprocess.Popen[str], *, code: int = 0) -> str:
    """Returns its output after its end."""
    errors = process.communicate(timeout=60)[1] or ""
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    return errors


def wait_for(condition: Callable[[], bool], what: str, *processes: subprocess.Popen[str], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.02)


def transactions(config: DestinationConfig) -> dict[int, bytes]:
    """Returns the bytes of each transaction of a store, by seq."""
    data_by_seq = {}
    for segment in list_segments(config.store.path):
        data = segment.read_bytes()
        for entry in IndexFile(segment).entries:
            offset, length = int(entry["offset"]), int(entry["length"])
            if length:
                data_by_seq[int(entry["seq"])] = data[offset : offset + length]
    return data_by_seq


class Writer:
    """Inserts a row into ``log`` every few milliseconds, each in a transaction of its own."""

    def __init__(self, loop: Loop, first: int = 0) -> None:
        self._loop, self._first = loop, first
        self.rows: list[tuple[int, datetime, datetime]] = []
        """The row's id, and the times before and after its commit."""
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(1)
        self._running = self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        self._running.result()

    def _run(self) -> None:
        with self._loop.server.connect() as connection, connection.cursor() as cursor:
            number = self._first
            while not self._stop.wait(0.02):
                began = datetime.now(UTC)
                cursor.execute(f"INSERT INTO `{self._loop.db}`.log VALUES ({number}, 'x')")
                self.rows.append((number, began, datetime.now(UTC)))
                number += 1


# --- up to a time ----------------------------------------------------------------------------------------------------


def test_until_takes_exactly_what_was_committed_before(loop: Loop, cdc: Cdc) -> None:
    loop.sql(LOG)
    with capturing(loop.config), Writer(loop) as writer:
        until = datetime.now(UTC) + timedelta(seconds=1.5)
        cdc(loop, "apply", "--until", until.isoformat(), "--wait", "60")
        assert datetime.now(UTC) > until + timedelta(seconds=1), "the store was waited for"
    first = [row["id"] for row in loop.delta("log", "id", order="_seq, _row")]
    assert {n for n, _, end in writer.rows if end < until} <= set(first)
    assert not {n for n, began, _ in writer.rows if began >= until} & set(first)
    assert len(writer.rows) > len(first) > 20
    assert len(read_time_index(loop.config.store.path)) > 2

    # Capture stands still: what comes now is not in the store, and nobody may take the interval for whole.
    loop.sql("INSERT INTO log VALUES (1000000, 'missed')")
    later = datetime.now(UTC)
    complaint = cdc(loop, "apply", "--until", later.isoformat(), "--wait", "0.2", code=1)
    assert "the store is complete up to 20" in complaint
    assert "Capture is not running: start `cdc capture shop`, then try again." in complaint
    rows = loop.delta("log", "id, _commit_time", order="_seq, _row")
    assert [row["id"] for row in rows] == [n for n, _, _ in writer.rows], "what came before was applied"
    assert [row["id"] for row in rows if row["_commit_time"] < until.replace(tzinfo=None)] == first

    # A bounded capture beside a busy source: what was committed a second before it began is whole.
    time.sleep(max(0.0, 1.1 - (datetime.now(UTC) - later).total_seconds()))
    with Writer(loop, first=2_000_000):
        time.sleep(0.2)
        loop.capture()
    cdc(loop, "apply", "--until", later.isoformat(), "--wait", "0")
    assert loop.delta("log", "id", order="_seq DESC")[0] == {"id": 1_000_000}


@pytest.mark.long
def test_a_statement_that_began_before_and_was_committed_after(
    tmp_path: Path, mariadb10: Server, database: Database
) -> None:
    """MariaDB records the time at which a statement began; the source's clock decides."""
    loop = Loop(tmp_path, mariadb10, database(mariadb10))
    loop.sql(LOG, "INSERT INTO log VALUES (1, 'x')")
    service = BatchService(loop.config)

    def drain(until: datetime) -> int:
        count = 0
        while (lease := service.get(OWNER, until=until, wait_s=20)) is not None:
            count += lease.manifest.transactions
            service.ack(lease.batch, lease.token)
        return count

    with capturing(loop.config):
        wait_for(lambda: StoreReader(loop.config.store.path).complete_until_us() > 0, "a probe of the clock")
        until = datetime.now(UTC) + timedelta(seconds=1)
        loop.sql("INSERT INTO log SELECT 2, SLEEP(4)")
        committed = datetime.now(UTC)
        wait_for(lambda: len(transactions(loop.config)) == 3, "the statement in the store")
        newest = IndexFile(list_segments(loop.config.store.path)[-1]).entries[-1]
        assert int(newest["commit_time_us"]) < until.timestamp() * 1e6, "its own time would put it into the interval"
        assert drain(until) == 2
        assert drain(committed + timedelta(seconds=1)) == 1


# --- staging ---------------------------------------------------------------------------------------------------------


def test_a_staged_batch_is_merged_from_its_copies(loop: Loop, cdc: Cdc, tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    change(loop, store={"stage": f"file://{stage}"})

    def staged() -> list[Path]:
        return sorted(path for path in stage.rglob("*") if path.is_file())

    loop.sql(LOG)
    loop.capture()
    cdc(loop, "apply", "--until-empty")
    assert staged() == []
    loop.sql(*[f"INSERT INTO log VALUES ({n}, 'new')" for n in range(50)])
    loop.capture()

    lease = json.loads(cdc(loop, "batch get", "--json"))
    copies = [path for path in staged() if path.suffix == ".binlog"]
    assert [part["path"] for part in lease["ranges"]] == [f"file://{path}" for path in copies] != []
    content = bytearray(copies[0].read_bytes())
    content[content.index(b"new")] ^= 1
    copies[0].write_bytes(content)
    complaint = cdc(loop, "apply", code=2)
    assert f"{copies[0].name}: this staged file fails its checksum (SHA-256)." in complaint
    assert len(complaint.splitlines()) == 1
    assert BatchService(loop.config).outstanding() == []
    assert staged() == []
    assert loop.delta("log") == []

    # The next one is whole, and needs nothing of the store.
    repeated = json.loads(cdc(loop, "batch get", "--json"))
    assert repeated["batch"] > lease["batch"] and repeated["last_seq"] == lease["last_seq"]
    segments = segments_folder(loop.config.store.path)
    segments.rename(tmp_path / "elsewhere")
    cdc(loop, "apply")
    (tmp_path / "elsewhere").rename(segments)
    assert staged() == []
    assert loop.changelog("log") == [("insert", n) for n in range(50)]


# --- subscribers and retention ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_subscribers_with_filters_and_retention(loop: Loop, cdc: Cdc) -> None:
    change(loop, store={"segment_bytes": 65536, "retain": {"acked_for": 0.001, "lost_after": 0.5}})
    many = "WITH RECURSIVE n AS (SELECT 0 i UNION ALL SELECT i + 1 FROM n WHERE i < 99)"
    tables = ("orders", "items")
    for table, subscriber in zip(tables, ("apply", "audit"), strict=True):
        loop.sql(f"CREATE TABLE {table} (id INT PRIMARY KEY, v TEXT)")
        cdc(loop, "batch subscribe", "--subscriber", subscriber, "--filter", rf"{loop.db}\.{table}")
    loop.sql(
        *[
            f"INSERT INTO {table} {many} SELECT {100 * k} + i, REPEAT('x', 1000) FROM n"
            for k in range(4)
            for table in tables
        ],
        "INSERT INTO items VALUES (1000, 'in the newest segment')",
    )
    loop.capture()
    store = loop.config.store.path
    before = [segment.name for segment in list_segments(store)]
    assert len(before) > 6

    cdc(loop, "apply", "--until-empty")
    loop.require_equal("orders")
    assert not loop.path("items").exists()

    time.sleep(0.5)
    document = json.loads(cdc(loop, "maintain", "--json"))
    assert document["removed"] == []
    held = {subscription["name"]: subscription["held_back"] for subscription in document["subscriptions"]}
    assert (held["apply"]["bytes"], held["apply"]["lost"], held["audit"]["lost"]) == (0, False, True)
    assert held["audit"]["bytes"] > 400_000
    assert "subscriber audit seems lost. It holds back" in cdc(loop, "maintain")
    assert [segment.name for segment in list_segments(store)] == before

    seen: set[str] = set()
    removed: list[str] = []
    while (lease := json.loads(cdc(loop, "batch get", "--subscriber", "audit", "--wait", "0", "--json"))) is not None:
        seen |= set(lease["tables"])
        words = ("--subscriber", "audit", "--batch", str(lease["batch"]), "--token", lease["token"])
        if len(seen) == 1 and not lease["ddl"]:
            document = json.loads(cdc(loop, "maintain", "--json"))
            assert document["bytes_left"] > 400_000, "a batch that is not acked stays"
            removed += [segment["segment"] for segment in document["removed"]]
        cdc(loop, "batch ack", *words)
    assert seen == {f"{loop.db}.items"}

    document = json.loads(cdc(loop, "maintain", "--json"))
    assert removed + [segment["segment"] for segment in document["removed"]] == before[:-1]
    assert {segment["why"] for segment in document["removed"]} == {"acked"}
    assert [segment.name for segment in list_segments(store)] == before[-1:]
    assert not any(subscription["held_back"]["lost"] for subscription in document["subscriptions"])
    loop.sql("UPDATE orders SET v = id", "DELETE FROM items WHERE id = 1000")
    loop.capture()
    lease = json.loads(cdc(loop, "batch get", "--subscriber", "audit", "--json"))
    assert (lease["transactions"], lease["row_events"]) == (1, 1)


# --- master and standby ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_standby_takes_over_from_a_killed_master(
    tmp_path: Path, mysql9: Server, database: Database, cdc: Cdc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWPATH_TEST_SECRET", "0123456789abcdef0123456789abcdef")
    first, second = (f"127.0.0.1:{free_port()}" for _ in range(2))
    (tmp_path / "a").mkdir()
    a = Loop(tmp_path / "a", mysql9, database(mysql9), overrides="DB.log: {mode: append}")
    shared = {"listen": first, "master": first, "secret_env": "TOWPATH_TEST_SECRET"}
    change(
        a,
        store={"segment_bytes": 65536, "standby": {"role": "sync_master", **shared}},
        apply={"target": str(tmp_path / "lake")},
    )
    shutil.copytree(tmp_path / "a" / "conf", tmp_path / "b" / "conf")
    b = copy.copy(a)
    b.config = load(tmp_path / "b" / "conf" / "shop.yaml")
    change(b, store={"standby": {"role": "standby", **shared}})

    a.sql(LOG)
    master = start(a, "capture")
    standby = start(b, "standby")
    with Writer(a) as writer:
        wait_for(lambda: len(writer.rows) > 100, "some rows")
        wait_for(lambda: b.config.store.path.is_dir() and len(transactions(b.config)) > 100, "a copy", master, standby)
        cdc(a, "apply")
        cdc(a, "apply")
        assert len(a.delta("log")) > 50
        master.send_signal(signal.SIGKILL)
        master.wait()
        time.sleep(0.5)
        standby.terminate()
        ended(standby)
        kept = {"a": transactions(a.config), "b": transactions(b.config)}

        change(b, store={"standby": {"role": "sync_master", **shared, "listen": second}})
        goes_on = start(b, "capture")
        wait_for(lambda: len(transactions(b.config)) > len(kept["a"]) + 20, "what came since", goes_on)
    term = read_epoch(b.config.store.path)
    assert term is not None and (term.number, term.state) == (2, "master")

    common = sorted(set(kept["a"]) & set(kept["b"]))
    assert len(common) > 100
    assert common == sorted(s for s in kept["a"] if s <= common[-1]) == sorted(s for s in kept["b"] if s <= common[-1])
    count = 1 + len(writer.rows)
    wait_for(lambda: len(transactions(b.config)) == count, "every transaction", goes_on)
    everything = transactions(b.config)
    for store in kept.values():
        assert store == {seq: everything[seq] for seq in store}, "read twice, the bytes are the same"

    # The former master follows: what it had and the new one read again is the same, so that nothing has to be cut.
    change(a, store={"standby": {"role": "standby", **shared, "master": second}})
    follows = start(a, "standby")
    wait_for(lambda: transactions(a.config) == everything, "the former master's copy", goes_on, follows)
    for process in (goes_on, follows):
        process.terminate()
        ended(process)
    assert digests(a.config.store.path) == digests(b.config.store.path)

    cdc(b, "apply", "--until-empty")
    assert b.changelog("log") == [("insert", n) for n in range(len(writer.rows))]
    assert store_faults(b.config.store.path, tmp_path / "lake", b.db, "log") == []


# --- leases ----------------------------------------------------------------------------------------------------------


def test_the_lease_is_renewed_while_a_long_merge_runs(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    loop.sql(MIRROR, "INSERT INTO mirror VALUES (1, 'a')")
    loop.capture()
    loop.apply()
    change(loop, batch={"lease_s": 2.0})
    service, lease = BatchService(loop.config), loop.fetch()
    seen = []

    def hold(table: str) -> None:
        until = time.monotonic() + 4
        while time.monotonic() < until:
            (entry,) = service.outstanding()
            seen.append(entry.expires)
            with pytest.raises(LeaseHeldError, match=f"batch {lease.batch} is held by {OWNER} until"):
                service.get("somebody else", wait_s=0)
            time.sleep(0.1)

    monkeypatch.setattr(commit, "before_statement", hold)
    results = pipeline.merge(loop.config, lease)
    assert len(set(seen)) > 3 and seen == sorted(seen)
    assert datetime.now(UTC) > lease.expires + timedelta(seconds=1), "without renewal it would have expired long ago"
    pipeline.finalize(loop.config, lease, True, results)
    assert service.outstanding() == []
    loop.require_equal("mirror")


# --- a full disk -----------------------------------------------------------------------------------------------------


def test_capture_stops_before_the_disk_is_full_and_goes_on(loop: Loop, cdc: Cdc, tmp_path: Path) -> None:
    """The disk is real: its limit is set above its use, and a file exceeds it, by more than others free meanwhile."""
    ballast, log = tmp_path / "ballast", tmp_path / "capture.log"
    usage = disk_usage(tmp_path)
    size = min(8 << 30, usage.free // 4)
    limit = usage._replace(free=usage.free - size // 2).ratio
    change(loop, store={"disk": dict.fromkeys(("warn_ratio", "clean_ratio", "stop_ratio"), limit)})

    def fill() -> None:
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def stored() -> int:
        return len(transactions(loop.config))

    loop.sql(MIRROR, "INSERT INTO mirror VALUES (1, 'before')")
    with log.open("w") as file:
        capture = start(loop, "capture", errors=file)
    wait_for(lambda: (loop.config.store.path / "capture.json").exists() and stored() == 2, "the first row", capture)
    fill()
    wait_for(lambda: "the disk is nearly full: nothing is read from the source" in log.read_text(), "it stops", capture)
    loop.sql("INSERT INTO mirror VALUES (2, 'while it is full')")
    time.sleep(1.5)
    assert stored() == 2 and capture.poll() is None
    assert json.loads(cdc(loop, "status", "--json"))["retention"]["disk"]["level"] == "stop"
    ballast.unlink()
    wait_for(lambda: stored() == 3, "it goes on by itself", capture)
    capture.terminate()
    ended(capture)
    assert "Traceback" not in log.read_text()
    fill()
    loop.sql(*[f"INSERT INTO mirror VALUES ({n}, 'again')" for n in range(3, 10)])

    complaint = ended(start(loop, "capture", "--until-current"), code=1).splitlines()[-1]
    assert complaint.startswith(f"cdc: {loop.config.store.path}: the disk is ")
    assert "store.disk.stop_ratio" in complaint and "Make room on this disk" in complaint
    assert stored() == 3
    ballast.unlink()
    loop.capture()
    assert stored() == 10
