"""``cdc.stream`` against real servers: what comes out, ack and rollback, several readers, restarts, and errors."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import cdc
from cdc.base.errors import (
    BatchError,
    CdcError,
    ConfigError,
    IdentityError,
    LeaseHeldError,
    SourceRefusedError,
    SourceUnavailableError,
    StoreClosedError,
    StoreLimitError,
    UsageError,
)
from cdc.streaming import Change, FileStore, MemoryRing, Statement, Stream, Transaction
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.versions import status_statement

Database = Callable[[Server], str]
STORES = ("memory", "file")


@pytest.fixture(params=["mysql9", "mariadb11", pytest.param("mariadb10", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def db(server: Server, database: Database) -> str:
    return database(server)


def url(server: Server) -> str:
    return f"{'mysql' if server.kind.name.startswith('mysql') else 'mariadb'}://{USER}@{HOST}:{server.port}"


def stream_of(server: Server, db: str, **arguments: Any) -> Stream:
    return cdc.stream(url(server), **{"password": PASSWORD, "tables": rf"{db}\..*", **arguments})


def read(stream: Any, count: int, timeout_s: float = 60) -> list[Transaction]:
    """Returns the next transactions, this many."""
    transactions: list[Transaction] = []
    for _ in range(count):
        transaction = stream.get(timeout_s)
        assert transaction is not None, f"only {len(transactions)} of {count} transactions came"
        transactions.append(transaction)
    return transactions


def ids(transactions: list[Transaction]) -> list[int]:
    return [change.after["id"] for each in transactions for change in each.changes if change.after is not None]


def insert(server: Server, db: str, numbers: Any) -> None:
    """Inserts each number in a transaction of its own."""
    server.execute(*(f"INSERT INTO {db}.t VALUES ({n}, 'v{n}')" for n in numbers))


def small_table(server: Server, db: str) -> None:
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v VARCHAR(2000))")


# --- what comes out


@pytest.mark.parametrize("store", STORES)
def test_changes_with_python_values_in_order(server: Server, db: str, store: str, tmp_path: Path) -> None:
    server.execute(
        f"CREATE TABLE {db}.a (id BIGINT UNSIGNED PRIMARY KEY, v VARCHAR(20), d DECIMAL(8,2), t TIMESTAMP(3) NULL, dt DATETIME(6),"
        " tt TIME(1), dd DATE, y YEAR, j JSON, b VARBINARY(10), s SET('x','y'), e ENUM('p','q'), f DOUBLE, bi BIT(9), n INT)",
        f"CREATE TABLE {db}.b (id INT PRIMARY KEY, n INT)",
    )
    with stream_of(server, db, store=store, state=tmp_path) as stream:
        server.execute(
            f"INSERT INTO {db}.a VALUES (18446744073709551615, 'é', 1.50, '2026-01-02 03:04:05.678', '2026-01-02 03:04:05.678901',"
            f" '-10:11:12.5', '2026-02-03', 2026, '{{\"k\": [1, 2.5, null]}}', x'00ff', 'x,y', 'q', 1.5, b'101', NULL),"
            " (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 7)",
            "BEGIN",
            f"INSERT INTO {db}.b VALUES (1, 1), (2, NULL)",
            f"UPDATE {db}.a SET v = 'w' WHERE id = 2",
            f"DELETE FROM {db}.b WHERE id = 1",
            f"INSERT INTO {db}.b VALUES (3, 3)",
            "COMMIT",
            f"ALTER TABLE {db}.b ADD COLUMN x INT DEFAULT 7",
            f"INSERT INTO {db}.b VALUES (9, 9, 9)",
            f"UPDATE {db}.b SET x = NULL WHERE id = 2",
        )
        first, second, ddl, added, updated = read(stream, 5)

        row, empty = (change.after for change in first.changes)
        assert row is not None and empty is not None
        document = row.pop("j")
        assert document == {"k": [1, 2.5, None]} or json.loads(document) == {"k": [1, 2.5, None]}  # MariaDB's is text
        assert row == {
            "id": 18446744073709551615, "v": "é", "d": Decimal("1.50"), "dd": date(2026, 2, 3), "y": 2026, "b": b"\0\xff",
            "t": datetime(2026, 1, 2, 3, 4, 5, 678000, UTC), "dt": datetime(2026, 1, 2, 3, 4, 5, 678901),  # noqa: DTZ001
            "tt": -timedelta(hours=10, minutes=11, seconds=12.5), "s": "x,y", "e": "q", "f": 1.5, "bi": 5, "n": None,
        }  # fmt: skip
        assert {type(row[name]) for name in ("id", "bi", "y")} == {int}
        assert empty == {**dict.fromkeys([*row, "j"]), "id": 2, "n": 7}

        changes = [(c.op, c.schema, c.table, c.before, c.after) for c in second.changes]
        assert [change[:3] for change in changes] == [
            ("insert", db, "b"), ("insert", db, "b"), ("update", db, "a"), ("delete", db, "b"), ("insert", db, "b"),
        ]  # fmt: skip
        assert changes[1][3:] == (None, {"id": 2, "n": None})
        assert changes[3][3:] == ({"id": 1, "n": 1}, None)
        before, after = changes[2][3:]
        assert before is not None and after is not None and (before["v"], after["v"]) == (None, "w")
        assert len(second.changes) == 5 and second.changes[3].op == "delete" and not second.is_ddl
        tables = second.tables()
        assert {name: table.num_rows for name, table in tables.items()} == {f"{db}.a": 1, f"{db}.b": 4}
        assert tables[f"{db}.b"]["_op"].to_pylist() == [1, 1, 0, 1]

        (statement,) = ddl.changes
        assert ddl.is_ddl and isinstance(statement, Statement) and statement.op == "ddl"
        assert (statement.schema, statement.table, statement.after) == (db, "b", None)
        assert "ADD COLUMN x" in statement.sql
        assert added.changes[0].after == {"id": 9, "n": 9, "x": 9}
        (change,) = updated.changes
        assert change.before == {"id": 2, "n": None, "x": 7} and change.after == {"id": 2, "n": None, "x": None}

        assert abs(updated.commit_time - datetime.now(UTC)) < timedelta(minutes=10)
        assert first.gtid is not None and first.seq < second.seq and first.position < second.position
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(status_statement(server))
            file, pos = cursor.fetchone()[:2]  # type: ignore[index]
        assert (updated.file, updated.position) == (file, pos)


def test_a_large_transaction_is_decoded_piece_by_piece(server: Server, db: str) -> None:
    small_table(server, db)
    server.execute(f"CREATE TABLE {db}.u (id INT PRIMARY KEY, v VARCHAR(2000))")
    with stream_of(
        server, db, store=MemoryRing(buffer_size=1024)
    ) as stream:  # 1 MiB of ring, and the transaction is larger
        server.execute(
            "BEGIN",
            *(
                f"INSERT INTO {db}.{'tu'[k % 2]} VALUES "
                + ",".join(f"({n}, '{'x' * 1900}')" for n in range(k * 500, k * 500 + 500))
                for k in range(20)
            ),
            "COMMIT",
            f"INSERT INTO {db}.t VALUES (-1, '')",
        )
        (large,) = read(stream, 1)
        assert stream.get(0.5) is None  # the ring is full
        assert large.size_bytes > 16 << 20
        assert ids([large]) == list(range(10_000))
        assert [change.table for change in itertools.islice(large.changes, 499, 501)] == ["t", "u"]
        assert len(large.changes) == 10_000
        assert sum(table.num_rows for table in large.tables().values()) == 10_000
        large.ack()
        assert ids(read(stream, 1)) == [-1]


def test_a_transaction_above_the_limit_ends_the_stream_and_leaves_nothing_out(server: Server, db: str) -> None:
    small_table(server, db)
    with stream_of(server, db, store=MemoryRing(max_transaction_bytes=100_000)) as stream:
        insert(server, db, [1])
        server.execute(f"INSERT INTO {db}.t VALUES " + ",".join(f"({n}, '{'x' * 1900}')" for n in range(100, 200)))
        insert(server, db, [2])
        assert ids(read(stream, 1)) == [1]
        with pytest.raises(StoreLimitError, match=r"100,000 bytes.*max_transaction_bytes") as caught:
            stream.get(30)
        assert not caught.value.retryable


def test_tables_are_chosen(server: Server, db: str) -> None:
    server.execute(*(f"CREATE TABLE {db}.{name} (id INT PRIMARY KEY)" for name in ("a", "b", "a_tmp")))
    with stream_of(server, db, tables={"include": [rf"{db}\.a.*"], "exclude": [rf"{db}\..*_tmp"]}) as stream:
        server.execute(*(f"INSERT INTO {db}.{name} VALUES (1)" for name in ("b", "a_tmp", "a")))
        (transaction,) = read(stream, 1)
        assert [change.table for change in transaction.changes] == ["a"]


def test_starts(server: Server, db: str, tmp_path: Path) -> None:
    small_table(server, db)
    with stream_of(server, db) as stream:
        insert(server, db, range(4))
        transactions = read(stream, 4)
    second = transactions[1]
    before = {"file": second.file, "pos": second.position}
    for start in (before, {"gtid": _gtids_up_to(server, second)}):
        with stream_of(server, db, start=start, follow=False) as stream:
            assert ids(list(stream)) == [2, 3], start
    with stream_of(server, db, start=transactions[0].commit_time, follow=False) as stream:
        assert ids(list(stream)) == [0, 1, 2, 3]


def test_the_earliest_position() -> None:
    """On a server of its own: the binlogs of other tests have statements that a stream of any table refuses."""
    with Server("mariadb11") as server:
        server.execute("CREATE DATABASE d")
        small_table(server, "d")
        insert(server, "d", range(4))
        with stream_of(server, "d", start="earliest", follow=False) as stream:
            assert ids(list(stream)) == [0, 1, 2, 3]


def _gtids_up_to(server: Server, transaction: Transaction) -> str:
    assert transaction.gtid is not None
    if not server.kind.name.startswith("mysql"):
        return transaction.gtid
    source, number = transaction.gtid.rsplit(":", 1)
    return f"{source}:1-{number}"


def test_a_configuration_names_source_and_tables(server: Server, db: str, tmp_path: Path) -> None:
    small_table(server, db)
    file = tmp_path / "conf" / "shop.yaml"
    file.parent.mkdir()
    file.write_text(
        f"source: {{url: '{url(server)}', password_env: TOWPATH_TEST_PASSWORD, server_id: 77, start: snapshot}}\n"
        f"tables: {{include: ['{db}\\..*']}}\nstore: {{path: store}}\nmeta: {{path: meta}}\napply: {{target: lake}}\n"
    )
    with cdc.stream(file) as stream:
        insert(server, db, [5])
        assert ids(read(stream, 1)) == [5]
    assert not (tmp_path / "store").exists() and not (tmp_path / "meta").exists()


# --- ack, rollback, restarts


@pytest.mark.parametrize("store", STORES)
def test_what_is_not_acked_comes_again(server: Server, db: str, store: str, tmp_path: Path) -> None:
    small_table(server, db)
    with stream_of(server, db, store=store, state=tmp_path) as stream:
        insert(server, db, range(10))
        transactions = read(stream, 6)
        transactions[2].ack()
        transactions[1].ack()  # acked already
        with pytest.raises(BatchError, match="was acked"):
            transactions[0].rollback()
        transactions[4].rollback()
        repeated = read(stream, 2)
        assert ids(repeated) == [4, 5]
        transactions[3].ack()
        with pytest.raises(BatchError, match="was acked"):
            transactions[3].rollback()
        repeated[0].ack()
        repeated[1].rollback()
        with pytest.raises(BatchError, match="was rolled back"):
            transactions[5].ack()
        assert ids(read(stream, 2)) == [5, 6]
        stream.rollback()
        assert ids(read(stream, 3)) == [5, 6, 7]
    with pytest.raises(StoreClosedError, match="is closed"):
        repeated[1].ack()
    insert(server, db, [10])
    with stream_of(server, db, store=store, state=tmp_path, start="earliest") as stream:
        transactions = read(stream, 6)
        assert ids(transactions) == [5, 6, 7, 8, 9, 10]
        transactions[-1].ack()
    with stream_of(server, db, store=store, state=tmp_path, follow=False) as stream:
        assert list(stream) == []


@pytest.mark.parametrize("store", STORES)
def test_a_stream_that_acked_nothing_begins_where_it_began(server: Server, db: str, store: str, tmp_path: Path) -> None:
    small_table(server, db)
    with stream_of(server, db, store=store, state=tmp_path) as stream:
        insert(server, db, [1])
        read(stream, 1)
    insert(server, db, [2])
    with stream_of(server, db, store=store, state=tmp_path, follow=False) as stream:
        assert ids(list(stream)) == [1, 2]


@pytest.mark.parametrize("store", STORES)
def test_readers_have_cursors_of_their_own(server: Server, db: str, store: str, tmp_path: Path) -> None:
    small_table(server, db)
    names = ("index", "audit")
    with stream_of(server, db, store=store, state=tmp_path, readers=names) as stream:
        assert stream.readers == names
        insert(server, db, range(6))
        index, audit = map(stream.reader, names)
        read(index, 6)[3].ack()
        read(audit, 2)[0].ack()
        with pytest.raises(UsageError, match=r"no reader 'other'.*index, audit"):
            stream.reader("other")
    # A reader that is not opened keeps its cursor; a new one begins with the oldest that is read.
    with stream_of(server, db, store=store, state=tmp_path, readers=["index", "late"]) as stream:
        assert ids(read(stream.reader("index"), 2)) == [4, 5]
        late = ids(read(stream.reader("late"), 2))
        assert late == ([4, 5] if store == "memory" else [0, 1])
    with stream_of(server, db, store=store, state=tmp_path, readers=["audit", "index"]) as stream:
        assert ids(read(stream.reader("audit"), 5)) == [1, 2, 3, 4, 5]
        assert ids(read(stream.reader("index"), 2)) == [4, 5]
        stream.forget("late")
        with pytest.raises(UsageError, match="is open"):
            stream.forget("audit")


def test_a_slow_reader_holds_a_full_ring_back(server: Server, db: str) -> None:
    small_table(server, db)
    with stream_of(
        server, db, readers=["fast", "slow"], store=MemoryRing(buffer_size=16, batch_mode="itemsize")
    ) as stream:
        insert(server, db, range(200))
        fast, slow = stream.reader("fast"), stream.reader("slow")
        seen: list[int] = []

        def consume() -> None:
            for transaction in fast:
                seen.extend(ids([transaction]))
                transaction.ack()

        thread = threading.Thread(target=consume)
        thread.start()
        time.sleep(1.5)
        assert len(seen) <= 40  # 16 events held by the slow reader, and what capture puts at once
        assert slow.metrics.held_events <= 16
        for number in range(200):
            (transaction,) = read(slow, 1)
            assert ids([transaction]) == [number]
            transaction.ack()
        deadline = time.monotonic() + 30
        while len(seen) < 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert seen == list(range(200))
    thread.join(10)
    assert not thread.is_alive()  # its loop has ended with the stream


def test_a_stream_whose_ring_is_full_closes_at_once(server: Server, db: str, tmp_path: Path) -> None:
    small_table(server, db)
    arguments: dict[str, Any] = {"store": MemoryRing(buffer_size=16, batch_mode="itemsize"), "state": tmp_path}
    with stream_of(server, db, **arguments) as stream:
        insert(server, db, range(50))
        seen: list[int] = []
        while (transaction := stream.get(1)) is not None:
            seen += ids([transaction])
        assert seen == list(range(len(seen))) and 2 <= len(seen) < 10  # nothing more fits until something is acked
        began = time.monotonic()
    assert time.monotonic() - began < 10
    with stream_of(server, db, **arguments) as stream:
        for number in range(50):
            (following,) = read(stream, 1)
            assert ids([following]) == [number]
            following.ack()


def test_a_disk_takes_what_a_reader_leaves(server: Server, db: str, tmp_path: Path) -> None:
    small_table(server, db)
    arguments: dict[str, Any] = {"store": FileStore(flush="async", segment_bytes=65536), "state": tmp_path}
    with stream_of(server, db, **arguments) as stream:
        server.execute(
            *(
                f"INSERT INTO {db}.t VALUES " + ",".join(f"({n + k}, '{'x' * 900}')" for k in range(50))
                for n in range(0, 1000, 50)
            )
        )
        transactions = read(stream, 20)
        segments = tmp_path / "store" / "segments"
        assert len(list(segments.glob("*.binlog"))) > 5
        transactions[-1].ack()
        stream.reader("default").store_cursor()
        assert len(list(segments.glob("*.binlog"))) == 1


def test_a_folder_is_open_once(server: Server, db: str, tmp_path: Path) -> None:
    with stream_of(server, db, state=tmp_path):
        with pytest.raises(LeaseHeldError, match="another stream has this folder open") as caught:
            stream_of(server, db, state=tmp_path)
        assert caught.value.retryable
    with stream_of(server, db, state=tmp_path):
        pass


def test_positions_move_a_cursor_without_changes(server: Server, db: str, tmp_path: Path) -> None:
    small_table(server, db)
    server.execute(f"CREATE TABLE {db}.other (id INT PRIMARY KEY)")
    with stream_of(server, db, tables=rf"{db}\.t", state=tmp_path) as stream:
        insert(server, db, [1])
        (transaction,) = read(stream, 1)
        transaction.ack()
        server.execute(f"INSERT INTO {db}.other VALUES (1)")
        deadline = time.monotonic() + 20
        while stream.reader("default").cursor <= transaction.seq:
            assert stream.get(0.2) is None and time.monotonic() < deadline


# --- errors


def test_a_failed_login_and_an_unreachable_server(server: Server, db: str) -> None:
    with pytest.raises(SourceRefusedError) as refused:
        stream_of(server, db, password="wrong")
    assert not refused.value.retryable and "wrong" not in str(refused.value)
    with pytest.raises(SourceUnavailableError) as unavailable:
        cdc.stream(f"mysql://{USER}@{HOST}:1", password=PASSWORD)
    assert unavailable.value.retryable


def test_a_wrong_position_is_refused(server: Server, db: str) -> None:
    with pytest.raises(ConfigError, match=r"source.start names binlog.009999:4"):
        stream_of(server, db, start={"file": "binlog.009999", "pos": 4})


def own_server(kind: str) -> Iterator[Server]:
    with Server(kind) as server:
        yield server


@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_a_source_that_was_reset_is_refused(kind: str, tmp_path: Path) -> None:
    for server in own_server(kind):
        server.execute("CREATE DATABASE d")
        small_table(server, "d")
        with stream_of(server, "d", state=tmp_path) as stream:
            insert(server, "d", range(3))
            read(stream, 3)[-1].ack()
        server.execute("RESET MASTER" if kind != "mysql9" else "RESET BINARY LOGS AND GTIDS")
        with pytest.raises(IdentityError) as caught:
            stream_of(server, "d", state=tmp_path)
        assert not caught.value.retryable
        insert(server, "d", range(10, 40))  # now the file has bytes at the position
        with pytest.raises(IdentityError):
            stream_of(server, "d", state=tmp_path)


def purge(server: Server) -> None:
    """Purges all files but the newest, once the thread of the last dump has noticed that nobody reads it."""
    deadline = time.monotonic() + 60
    with server.connect() as connection, connection.cursor() as cursor:
        while True:
            cursor.execute("SHOW BINARY LOGS")
            files = [row[0] for row in cursor.fetchall()]
            if len(files) == 1:
                return
            assert time.monotonic() < deadline, f"{files} are not purged"
            cursor.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
            for (thread,) in cursor.fetchall():
                cursor.execute(f"KILL {thread}")
            cursor.execute(f"PURGE BINARY LOGS TO '{files[-1]}'")
            time.sleep(0.1)


@pytest.mark.parametrize("store", STORES)
def test_a_source_that_was_purged_is_refused_and_a_reset_under_a_running_stream_too(store: str, tmp_path: Path) -> None:
    for server in own_server("mariadb11"):
        server.execute("CREATE DATABASE d")
        small_table(server, "d")
        with stream_of(server, "d", state=tmp_path, store=store) as stream:
            insert(server, "d", range(3))
            read(stream, 1)[-1].ack()
        server.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        purge(server)
        with pytest.raises(CdcError, match="purged") as caught:
            stream_of(server, "d", state=tmp_path, store=store)
        assert not caught.value.retryable
        with stream_of(server, "d", state=tmp_path / "new", store=store) as stream:
            insert(server, "d", [10])
            assert ids(read(stream, 1)) == [10]
            server.execute("RESET MASTER")
            insert(server, "d", range(20, 60))
            with pytest.raises(CdcError) as reset:  # noqa: PT012  # how many come before it depends on when it is noticed
                for _ in range(60):
                    stream.get(30)
            assert not reset.value.retryable


def test_a_server_that_restarts_is_read_on(tmp_path: Path) -> None:
    for server in own_server("mariadb11"):
        server.execute("CREATE DATABASE d")
        small_table(server, "d")
        with stream_of(server, "d", state=tmp_path) as stream:
            insert(server, "d", [1])
            assert ids(read(stream, 1)) == [1]
            server.kill()
            server.restart()
            insert(server, "d", [2, 3])
            assert ids(read(stream, 2)) == [2, 3]
            assert stream.progress is not None


def test_an_old_server_without_names_in_its_table_maps(mysql56: Server, database: Database) -> None:
    db = database(mysql56)
    small_table(mysql56, db)
    with stream_of(mysql56, db) as stream:
        insert(mysql56, db, [1])
        mysql56.execute(f"ALTER TABLE {db}.t ADD COLUMN n INT DEFAULT 4")
        mysql56.execute(f"INSERT INTO {db}.t VALUES (2, 'two', 2)")
        first, ddl, second = read(stream, 3)
        assert [change.after for change in first.changes] == [{"id": 1, "v": "v1"}]
        assert ddl.is_ddl
        (change,) = second.changes
        assert isinstance(change, Change) and change.after == {"id": 2, "v": "two", "n": 2}


# --- transactions of every kind


@pytest.mark.parametrize("store", STORES)
def test_savepoints_and_xa_transactions(server: Server, db: str, store: str, tmp_path: Path) -> None:
    small_table(server, db)
    with stream_of(server, db, store=store, state=tmp_path) as stream:
        server.execute(
            "BEGIN",
            f"INSERT INTO {db}.t VALUES (1, 'a')",
            "SAVEPOINT s",
            f"INSERT INTO {db}.t VALUES (2, 'gone')",
            "ROLLBACK TO s",
            f"INSERT INTO {db}.t VALUES (3, 'c')",
            "COMMIT",
            f"XA START 'x{db}'",
            f"INSERT INTO {db}.t VALUES (4, 'd')",
            f"XA END 'x{db}'",
            f"XA PREPARE 'x{db}'",
        )
        server.execute(f"INSERT INTO {db}.t VALUES (5, 'e')", f"XA COMMIT 'x{db}'")
        assert ids(read(stream, 3)) == [1, 3, 5, 4]


def test_a_prepared_transaction_is_found_by_the_next_program(server: Server, db: str, tmp_path: Path) -> None:
    small_table(server, db)
    with stream_of(server, db, state=tmp_path) as stream:
        server.execute(
            f"XA START 'y{db}'", f"INSERT INTO {db}.t VALUES (4, 'd')", f"XA END 'y{db}'", f"XA PREPARE 'y{db}'"
        )
        insert(server, db, [5])
        read(stream, 1)[0].ack()
    server.execute(f"XA COMMIT 'y{db}'")
    with stream_of(server, db, state=tmp_path, follow=False) as stream:
        assert ids(list(stream)) == [4]


def test_a_table_that_a_select_fills(server: Server, db: str) -> None:
    small_table(server, db)
    insert(server, db, [1, 2])
    with stream_of(server, db) as stream:
        server.execute(f"CREATE TABLE {db}.u SELECT id, v FROM {db}.t", f"INSERT INTO {db}.u VALUES (3, 'c')")
        seen: list[Any] = []
        while 3 not in seen:
            (transaction,) = read(stream, 1)
            seen += [change.op if change.after is None else change.after["id"] for change in transaction.changes]
        assert seen == ["ddl", 1, 2, 3]


def test_many_tables_in_one_transaction(server: Server, db: str) -> None:
    """More tables than a table mask has bits."""
    names = [f"t{n:03}" for n in range(80)]
    server.execute(*(f"CREATE TABLE {db}.{name} (id INT PRIMARY KEY)" for name in names))
    with stream_of(server, db) as stream:
        server.execute("BEGIN", *(f"INSERT INTO {db}.{name} VALUES ({n})" for n, name in enumerate(names)), "COMMIT")
        (transaction,) = read(stream, 1)
        assert [(change.table, change.after) for change in transaction.changes] == [
            (name, {"id": n}) for n, name in enumerate(names)
        ]
