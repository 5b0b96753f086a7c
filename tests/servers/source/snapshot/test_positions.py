"""A snapshot between two positions, joined with the changes between them, is the table as of the second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.base.errors import IdentityError, RetryableError, StoreIncompleteError
from cdc.capture import Capture
from cdc.source import snapshot
from cdc.source.connection import query
from cdc.source.driver import close_now
from cdc.source.snapshot import positions
from cdc.source.snapshot.session import open_session
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.support.capturing import capturing_from_now
from tests.support.snapshot_load import as_of, loaded, wait_for, writing
from tests.support.snapshots import identity, write_config
from tests.support.versions import needs

KEYS = 3000
_OPTIONS = {
    # A slow group commit makes the time between the binlog and the engine long.
    "mysql9": ["--binlog-group-commit-sync-delay=2000", "--sync-binlog=1"],
    "mariadb11": ["--binlog-commit-wait-count=4", "--binlog-commit-wait-usec=2000", "--sync-binlog=1"],
}


@pytest.fixture(scope="module", params=["mysql9", "mariadb11"])
def busy(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param, options=_OPTIONS[request.param]) as server:
        server.execute("CREATE DATABASE shop")
        yield server


def _created(server: Server, folder: Path, name: str, **sections: Any) -> Any:
    server.execute(f"DROP TABLE IF EXISTS shop.{name}")
    server.execute(f"CREATE TABLE shop.{name} (id INT PRIMARY KEY, v BIGINT, w VARCHAR(20)) ENGINE=InnoDB")
    return write_config(server, folder, f"shop\\.{name}", **{"apply": {"mode": "upsert"}, **sections})


def _fill(server: Server, name: str) -> None:
    for first in range(0, KEYS, 500):
        rows = ", ".join(f"({key}, {key}, 'old')" for key in range(first, first + 500) if key % 3)
        server.execute(f"INSERT INTO shop.{name} VALUES {rows}")


@pytest.mark.long
def test_chunks_and_changes_are_the_table_as_of_the_second_position(busy: Server, tmp_path: Path, seed: int) -> None:
    config = _created(busy, tmp_path, "hot", snapshot={"chunk_rows": 150, "parallel": 3})
    reader = StoreReader(config.store.path)
    changed = 0
    with capturing_from_now(config):
        _fill(busy, "hot")
        with writing(busy, "shop.hot", KEYS, 8, seed) as done:
            for _ in range(6):
                time.sleep(0.3)
                files = snapshot.take(config, "shop.hot", identity(busy))
                high = files.high_seq()
                wait_for(reader, high)
                low = files.low_seq(reader)
                assert low <= high
                expected = as_of(config, "shop.hot", high)
                assert loaded(config, files, low, high) == expected
                assert len(files.records()) > 5 and len(expected) > KEYS / 4
                changed += positions.may_have_changed(reader, "shop.hot", low, high)
                files.remove()
        assert done[0] > 200
    assert changed >= 5, "the writers must change the table while it is read"


@pytest.fixture(scope="module")
def busy_mariadb() -> Iterator[Server]:
    with Server("mariadb10", options=_OPTIONS["mariadb11"]) as server:
        server.execute("CREATE DATABASE shop")
        yield server


def test_a_chunk_of_mariadb_is_exact(busy_mariadb: Server, tmp_path: Path, seed: int) -> None:
    busy = busy_mariadb
    config = _created(busy, tmp_path, "exact", apply={"mode": "append"})
    reader = StoreReader(config.store.path)
    with capturing_from_now(config):
        _fill(busy, "exact")
        with writing(busy, "shop.exact", KEYS, 8, seed):
            for _ in range(10):
                files = snapshot.take(config, "shop.exact", identity(busy))
                assert [record.is_exact for record in files.records()] == [True]
                wait_for(reader, files.high_seq())
                assert files.is_exact(reader)
                (record,) = files.records()
                rows = {row["id"]: row for batch in files.batches(record) for row in batch.to_pylist()}
                assert rows == as_of(config, "shop.exact", files.high_seq())
                files.remove()


# ---------------------------------------------------------------- a commit that stalls between binlog and engine


@pytest.fixture
def stalling(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A MySQL whose commits wait for a replica that never answers, after they are in the binlog."""
    needs("mysql9", "semisync_source.so")
    with Server("mysql9") as server:
        server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY, v INT)",
            "INSERT INTO shop.t VALUES (1, 1), (2, 2)",
            "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'",
        )
        config = write_config(server, tmp_path, "shop\\..*", apply={"mode": "upsert"})
        Capture(config).run(until_current=True)
        server.execute("INSERT INTO shop.t VALUES (3, 3)")
        server.execute("SET GLOBAL rpl_semi_sync_source_timeout = 3600000, GLOBAL rpl_semi_sync_source_enabled = ON")
        yield SimpleNamespace(server=server, config=config)
        server.execute("SET GLOBAL rpl_semi_sync_source_enabled = OFF")


def test_a_stalled_commit_is_not_counted_as_visible(stalling: SimpleNamespace) -> None:
    server, config = stalling.server, stalling.config
    writer = server.connect()
    _send(writer, "UPDATE shop.t SET v = 100 WHERE id = 1")
    conn = open_session(config.source)
    try:
        _wait(lambda: positions.owned_gtids(conn))
        marks = positions.begin(conn, "gtids")
        seen = query(conn, "SELECT v FROM shop.t WHERE id = 1")
        query(conn, "COMMIT")
    finally:
        close_now(conn)
    assert seen == [{"v": 1}], "the commit must stall before the engine"
    assert len(marks.low.pending) == 1

    server.execute("SET GLOBAL rpl_semi_sync_source_enabled = OFF")  # ends the stall
    writer._read_query_result()
    Capture(config).run(until_current=True)
    reader = StoreReader(config.store.path)
    entries = [entry for part in reader.all_entries() for entry in part if entry["length"]]
    stalled = int(entries[-1]["seq"])
    at = positions.high_seq(0, [marks.low.position])
    assert stalled <= at, "the stalled transaction must lie before the position"
    assert positions.low_seq(reader, 0, [marks.low]) == stalled - 1
    settled = positions.LowMark("gtids", marks.low.file, marks.low.pos)
    assert positions.low_seq(reader, 0, [settled]) == at, "without the owned GTIDs the change would be lost"


def test_a_pending_transaction_that_the_store_lacks_is_not_passed_over(stalling: SimpleNamespace) -> None:
    """It may lie before the store's beginning, so nothing certain can be said."""
    stalling.server.execute("SET GLOBAL rpl_semi_sync_source_enabled = OFF")
    Capture(stalling.config).run(until_current=True)
    reader = StoreReader(stalling.config.store.path)
    entry = reader.last_entry()
    assert entry is not None
    last = reader.commit_position(entry).position
    unknown = "00000000-0000-0000-0000-000000000001:7"
    with pytest.raises(RetryableError, match="was being committed and is not in the store"):
        positions.low_seq(reader, 0, [positions.LowMark("gtids", last.file, last.pos, (unknown,))])


def _send(connection: Any, sql: str) -> None:
    connection._execute_command(3, sql)


def _wait(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---------------------------------------------------------------- the store's side


def test_positions_need_a_store_that_reaches_them(mariadb11: Server, tmp_path: Path, database: Any) -> None:
    name = database(mariadb11)
    mariadb11.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
    config = write_config(mariadb11, tmp_path, f"{name}\\..*", apply={"mode": "upsert"})
    with pytest.raises(StoreIncompleteError, match="capture has not begun"):
        snapshot.take(config, f"{name}.t", identity(mariadb11))
    Capture(config).run(until_current=True)
    mariadb11.execute(f"INSERT INTO {name}.t VALUES (1)")
    files = snapshot.take(config, f"{name}.t", identity(mariadb11))
    reader = StoreReader(config.store.path)
    with pytest.raises(StoreIncompleteError, match="does not reach"):
        files.low_seq(reader)
    Capture(config).run(until_current=True)
    assert files.low_seq(reader) == files.high_seq()
    early = positions.LowMark("exact", files.records()[0].low.file, 4)
    with pytest.raises(IdentityError, match="begins behind"):
        positions.low_seq(reader, 0, [early])


@pytest.mark.parametrize(
    ("text", "gtids"),
    [
        ("", set()),
        ("3e11fa47-71ca-11e1-9e33-c80aa9429562:1#17:2#18", {":1", ":2"}),
        (
            "3E11FA47-71CA-11E1-9E33-C80AA9429562:5#9:tag:7#3,\n3e11fa47-71ca-11e1-9e33-c80aa9429562:9#4",
            {":5", ":tag:7", ":9"},
        ),
    ],
)
def test_owned_gtids_are_parsed(text: str, gtids: set[str]) -> None:
    assert positions.parse_owned(text) == {f"3e11fa47-71ca-11e1-9e33-c80aa9429562{suffix}" for suffix in gtids}
