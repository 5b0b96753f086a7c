"""Capture of real servers: which transactions it stores, that the bytes are reproducible, and that the servers' own
tools can read the segments."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymysql
import pytest
from pymysql.constants import ER

from cdc.base.errors import CdcError, CutOffError, IdentityError, SourceRefusedError, UnsupportedEventError
from cdc.batches.service import BatchService
from cdc.binlog.constants import ROW_EVENTS, ROWS_STMT_END, EventType
from cdc.binlog.file import BinlogFile
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import list_segments
from cdc.store.formats.state import read_capture_state
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import HOST, USER, Server, client_tool
from tests.support.processes import peak_rss
from tests.support.versions import status_statement

Database = Callable[[Server], str]
TOOLS = {"mysql9": "mysqlbinlog", "mariadb10": "mariadb-binlog", "mariadb11": "mariadb-binlog"}


@pytest.fixture
def db(server: Server, database: Database) -> str:
    return database(server)


def configure(
    folder: Path, server: Server, db: str, *, start: str = "now", tables: str = r".*", store: str = ""
) -> DestinationConfig:
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    file = folder / "conf" / "shop.yaml"
    flavor = "mysql" if server.kind.name.startswith("mysql") else "mariadb"
    file.write_text(
        f"source: {{url: '{flavor}://{USER}@{HOST}:{server.port}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: {abs(hash(str(folder))) % 4_000_000_000 + 1}, start: {start}}}\n"
        f"tables: {{include: ['{db}\\.{tables}']}}\n"
        f"store: {{path: data/store{store}}}\nmeta: {{path: data/meta}}\napply: {{target: ./lake}}\n"
    )
    return load(file)


def events_of(folder: Path) -> list[bytes]:
    """Returns every row event in a store, as stored."""
    events = []
    for segment in list_segments(folder):
        file = BinlogFile.open(segment)
        assert file.damage is None
        for entry in file.entries:
            at, end = int(entry["offset"]), int(entry["offset"] + entry["length"])
            while at < end:
                length = int.from_bytes(file.buf[at + 9 : at + 13].tobytes(), "little")
                if int(file.buf[at + 4]) in ROW_EVENTS:
                    events.append(file.buf[at : at + length].tobytes())
                at += length
    return events


def workload(server: Server, db: str) -> None:
    """Runs transactions of many shapes: several tables, excluded tables, triggers, DDL, rollbacks, a large one."""
    server.execute(
        f"CREATE TABLE {db}.orders (id INT PRIMARY KEY, v VARCHAR(40), n INT)",
        f"CREATE TABLE {db}.audit (id INT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(40))",
        f"INSERT INTO {db}.audit (what) VALUES ('a'), ('b')",
        f"INSERT INTO {db}.orders VALUES (1, 'a', 1), (2, 'b', 2)",
        f"UPDATE {db}.orders, {db}.audit SET orders.v = 'both', audit.what = 'both' WHERE orders.id = audit.id",
        f"CREATE TRIGGER {db}.t AFTER UPDATE ON {db}.orders FOR EACH ROW INSERT INTO {db}.audit (what) VALUES (NEW.v)",
        f"UPDATE {db}.orders SET n = n + 1",
        f"INSERT INTO {db}.audit (what) VALUES ('only audit')",
        "START TRANSACTION",
        f"INSERT INTO {db}.orders VALUES (3, 'c', 3)",
        "SAVEPOINT s",
        f"INSERT INTO {db}.orders VALUES (4, 'd', 4)",
        "ROLLBACK TO s",
        f"INSERT INTO {db}.audit (what) VALUES ('in between')",
        f"INSERT INTO {db}.orders VALUES (5, 'e', 5)",
        "COMMIT",
        f"ALTER TABLE {db}.orders ADD COLUMN extra INT NULL",
        f"CREATE INDEX i ON {db}.orders (n)",
        f"ALTER TABLE {db}.audit ADD INDEX w (what)",
        *[
            f"INSERT INTO {db}.orders (id, v, n) VALUES " + ",".join(f"({i}, 'x', {i})" for i in range(k, k + 500))
            for k in range(1000, 20000, 500)
        ],
        f"DELETE FROM {db}.orders WHERE id < 10000",
    )


def test_the_same_bytes_and_seqs_twice(server: Server, db: str, tmp_path: Path) -> None:
    start = position(server)
    workload(server, db)
    for name in ("one", "two"):
        Capture(configure(tmp_path / name, server, db, start=start)).run(until_current=True)
    first_store, second_store = (tmp_path / name / "data/store" for name in ("one", "two"))
    seqs = [
        [int(s) for p in list_segments(path) for s in read_entries(p)["seq"]] for path in (first_store, second_store)
    ]
    assert seqs[0] == seqs[1] and len(seqs[0]) > 40
    assert seqs[0] == sorted(set(seqs[0]))
    assert events_of(first_store) == events_of(second_store) != []


@pytest.mark.parametrize("tables", [".*", "orders", "audit"])
def test_the_servers_own_tool_reads_every_segment(server: Server, db: str, tmp_path: Path, tables: str) -> None:
    start = position(server)
    workload(server, db)
    config = configure(tmp_path, server, db, start=start, tables=tables, store=", segment_bytes: 65536")
    Capture(config).run(until_current=True)
    tool = [*client_tool(server.kind.name, TOOLS[server.kind.name]), "--no-defaults", "--verify-binlog-checksum", "-vv"]
    segments = list_segments(config.store.path)
    assert len(segments) > 2 or tables == "audit"
    rows = 0
    for segment in segments:
        done = subprocess.run([*tool, str(segment)], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and not done.stderr.strip(), done.stderr
        assert "arning" not in done.stdout and "ERROR" not in done.stdout
        rows += done.stdout.count("### INSERT INTO")
    assert rows == {".*": 19005 + 9 - 5, "orders": 19005 - 1, "audit": 0}[tables] or rows > 0
    names = {n for s in segments for n in [BinlogFile.open(s).source_file]}
    assert names == {start.split("file: ")[1].split(",")[0]}


@pytest.mark.rule("canal-server-10")
def test_only_captured_tables_are_kept(server: Server, db: str, tmp_path: Path) -> None:
    start = position(server)
    workload(server, db)
    config = configure(tmp_path, server, db, start=start, tables="orders")
    Capture(config).run(until_current=True)
    selection = StoreReader(config.store.path).select(0, Limits())
    reader, after, tables = StoreReader(config.store.path), 0, set()
    while (selection := reader.select(after, Limits())) is not None:
        tables |= set(selection.tables)
        after = selection.last_seq
    assert tables == {f"{db}.orders"}
    assert after == reader.last_seq()


@pytest.mark.rule("canal-server-1")
def test_capture_continues_where_it_stopped(server: Server, db: str, tmp_path: Path) -> None:
    config = configure(tmp_path, server, db)
    Capture(config).run(until_current=True)
    for n in range(3):
        server.execute(f"CREATE TABLE {db}.t{n} (id INT PRIMARY KEY)", f"INSERT INTO {db}.t{n} VALUES (1)")
        done = Capture(config).run(until_current=True)
        assert done.transactions == 2
        assert Capture(config).run(until_current=True).transactions == 0
    assert len(list_segments(config.store.path)) == 1


def test_a_new_store_records_its_beginning_and_refuses_an_old_cursor(
    mysql9: Server, database: Database, tmp_path: Path
) -> None:
    db = database(mysql9)
    config = configure(tmp_path, mysql9, db)
    Capture(config).run(until_current=True)
    first = StoreReader(config.store.path).beginning()
    assert first is not None and (first.reason, first.gtid is not None) == ("first start", True)
    mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)", f"INSERT INTO {db}.t VALUES (1)")
    Capture(config).run(until_current=True)
    assert StoreReader(config.store.path).beginning() == first
    service = BatchService(config)
    lease = service.get("me", wait_s=0)
    assert lease is not None and lease.manifest.store_begins is not None
    assert lease.manifest.store_begins.seq == first.seq < lease.manifest.first_seq
    service.ack(lease.batch, lease.token)
    mysql9.execute(f"INSERT INTO {db}.t VALUES (2)")
    shutil.rmtree(config.store.path)
    Capture(config).run(until_current=True)
    beginning = StoreReader(config.store.path).beginning()
    assert beginning is not None and beginning.reason == "started again" and beginning.seq > lease.manifest.last_seq
    with pytest.raises(CutOffError, match="started again"):
        service.get("me", wait_s=0)


def test_the_state_file_has_the_watermark(server: Server, db: str, tmp_path: Path) -> None:
    config = configure(tmp_path, server, db, start=position(server))
    stop = threading.Event()
    thread = threading.Thread(target=lambda: Capture(config).run(stop))
    thread.start()
    try:
        server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)", f"INSERT INTO {db}.t VALUES (1)")
        inserted_us = time.time_ns() // 1000
        reader = StoreReader(config.store.path) if (config.store.path / "store.json").exists() else None
        deadline = time.monotonic() + 20
        state = None
        while time.monotonic() < deadline:
            if (config.store.path / "capture.json").exists():
                reader = StoreReader(config.store.path)
                state = reader.capture_state()
                if state is not None and state.complete_until_us > inserted_us:
                    break
            time.sleep(0.1)
        assert state is not None and state.running and state.connected and state.complete_until_us > inserted_us
        assert reader is not None and reader.totals().transactions == 2
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
    after = StoreReader(config.store.path).capture_state()
    assert after is not None and not after.running and not after.connected


@pytest.mark.rule("canal-server-9")
def test_capture_reconnects_after_a_killed_connection(server: Server, db: str, tmp_path: Path) -> None:
    config = configure(tmp_path, server, db, start=position(server))
    stop = threading.Event()
    thread = threading.Thread(target=lambda: Capture(config).run(stop))
    thread.start()
    try:
        server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
        for n in range(3):
            killed = False
            deadline = time.monotonic() + 20
            while not killed and time.monotonic() < deadline:
                killed = kill_dump_threads(server)
                time.sleep(0.1)
            assert killed
            server.execute(f"INSERT INTO {db}.t VALUES ({n})")
            deadline = time.monotonic() + 20
            while StoreReader(config.store.path).totals().transactions < 2 + n and time.monotonic() < deadline:
                time.sleep(0.1)
            assert StoreReader(config.store.path).totals().transactions == 2 + n
    finally:
        stop.set()
        thread.join(20)


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["SET SESSION binlog_format = STATEMENT", "INSERT INTO {db}.t (id) VALUES (8)"], "INSERT INTO"),
        (["SET SESSION binlog_row_image = MINIMAL", "DELETE FROM {db}.t"], r"rows of \S+\.t \(DELETE_ROWS.* FULL"),
        (["SET SESSION binlog_row_image = NOBLOB", "UPDATE {db}.t SET id = 9"], r"rows of \S+\.t \(UPDATE_ROWS.* FULL"),
    ],
)
def test_unsupported_changes_stop_capture_with_an_error(
    server: Server, db: str, tmp_path: Path, statements: list[str], words: str
) -> None:
    start = position(server)
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v TEXT)", f"INSERT INTO {db}.t (id) VALUES (1)")
    server.execute(*[s.format(db=db) for s in statements])
    config = configure(tmp_path, server, db, start=start)
    for _ in range(2):  # the second run stops at the same event
        with pytest.raises(UnsupportedEventError, match=words):
            Capture(config).run(until_current=True)
        assert StoreReader(config.store.path).totals().transactions == 2


def test_partial_updates_are_kept(mysql9: Server, database: Database, tmp_path: Path) -> None:
    """A statement changes a captured table and then another one: STMT_END_F moves to the event that is kept."""
    db = database(mysql9)
    value = "JSON_OBJECT('a', 1, 'b', REPEAT('x', 100))"
    tables = [f"{db}.t", f"{db}.z"]
    mysql9.execute(*[f"CREATE TABLE {name} (id INT PRIMARY KEY, d JSON)" for name in tables])
    mysql9.execute(*[f"INSERT INTO {name} VALUES (1, {value})" for name in tables])
    start = position(mysql9)
    mysql9.execute(
        "SET SESSION binlog_row_value_options = PARTIAL_JSON",
        f"UPDATE {db}.t JOIN {db}.z USING (id) SET t.d = JSON_SET(t.d, '$.a', 2), z.d = JSON_SET(z.d, '$.a', 2)",
    )
    config = configure(tmp_path, mysql9, db, start=start, tables="t")
    assert Capture(config).run(until_current=True).transactions == 1
    [event] = events_of(config.store.path)
    assert event[4] == EventType.PARTIAL_UPDATE_ROWS and event[25] & ROWS_STMT_END
    selection = StoreReader(config.store.path).select(0, Limits())
    assert selection is not None and (selection.row_events, selection.tables) == (1, (f"{db}.t",))


def test_statements_on_other_tables_pass(server: Server, db: str, tmp_path: Path) -> None:
    start = position(server)
    server.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY)",
        f"CREATE TABLE {db}.other (id INT PRIMARY KEY)",
        "SET SESSION binlog_format = STATEMENT",
        f"INSERT INTO {db}.other VALUES (1)",
        "SET SESSION binlog_format = ROW",
        f"INSERT INTO {db}.t VALUES (1)",
    )
    config = configure(tmp_path, server, db, start=start, tables="t")
    Capture(config).run(until_current=True)
    assert StoreReader(config.store.path).totals().transactions == 2


@pytest.mark.rule("canal-server-5")
def test_another_server_is_refused(mariadb10: Server, mysql9: Server, tmp_path: Path) -> None:
    db = "identity"
    Capture(configure(tmp_path, mysql9, db)).run(until_current=True)
    with pytest.raises(CdcError) as caught:
        Capture(configure(tmp_path, mariadb10, db)).run(until_current=True)
    assert isinstance(caught.value, IdentityError)


@pytest.mark.rule("canal-server-1")
@pytest.mark.parametrize(
    "server",
    ["mariadb11", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mysql9", "mariadb10"))],
    indirect=True,
)
def test_sigkill_of_capture_loses_nothing(server: Server, db: str, tmp_path: Path) -> None:
    config = configure(tmp_path, server, db, start=position(server))
    server.execute(f"CREATE TABLE {db}.t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(200))")
    writer = threading.Thread(
        target=lambda: server.execute(*[f"INSERT INTO {db}.t (v) VALUES (REPEAT('x', 200))"] * 3000)
    )
    writer.start()
    dice = np.random.default_rng(20261121)
    for _ in range(4):
        process = run_capture(config)
        time.sleep(float(dice.uniform(0.8, 2.5)))
        process.send_signal(signal.SIGKILL)
        process.wait()
    writer.join()
    Capture(config).run(until_current=True)
    seqs = [int(s) for p in list_segments(config.store.path) for s in read_entries(p)["seq"]]
    assert len(seqs) == 3001 and seqs == sorted(set(seqs))


def test_a_capture_that_says_it_runs_has_its_beginning(mysql9: Server, database: Database, tmp_path: Path) -> None:
    """With ``start: now``, the next capture continues there, not at the position of its own start."""
    db = database(mysql9)
    mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
    config = configure(tmp_path, mysql9, db, start="now")
    process = run_capture(config)
    while (state := read_capture_state(config.store.path)) is None or not state.connected:
        assert process.poll() is None
    process.kill()
    process.wait()
    mysql9.execute(f"INSERT INTO {db}.t VALUES (1)")
    Capture(config).run(until_current=True)
    assert StoreReader(config.store.path).totals().transactions == 1


@pytest.mark.rule("canal-server-6")
def test_memory_stays_bounded_with_a_large_transaction(mariadb10: Server, database: Database, tmp_path: Path) -> None:
    """The transaction has 200 MB here, and a gigabyte in `make test-soak`."""
    db = database(mariadb10)
    size_mb = int(os.environ.get("TOWPATH_LARGE_MB", "200"))
    config = configure(tmp_path, mariadb10, db, start=position(mariadb10))
    mariadb10.execute(
        f"CREATE TABLE {db}.t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGTEXT)",
        f"INSERT INTO {db}.t (v) SELECT REPEAT('x', 10000) FROM {db}.seq_1_to_{size_mb * 100}",
    )
    process = run_capture(config, "--until-current")
    peak = peak_rss(process)
    assert process.returncode == 0
    totals = StoreReader(config.store.path).totals()
    assert totals.transactions == 2 and totals.bytes > size_mb * 1_000_000
    print(f"{totals.bytes / 1e6:.0f} MB in one transaction, peak {peak / 1e6:.0f} MB")
    assert peak < 250_000_000
    mariadb10.execute(f"DROP TABLE {db}.t")


def run_capture(config: DestinationConfig, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(config.file.parent), "capture", config.name, *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def position(server: Server) -> str:
    """Returns the value of ``start`` for the current end of the binlog."""
    statement = status_statement(server)
    server.execute("FLUSH BINARY LOGS")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
        assert row is not None
        return f"{{file: {row[0]}, pos: {row[1]}}}"


def kill_dump_threads(server: Server) -> bool:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW PROCESSLIST")
        dumps = [row[0] for row in cursor.fetchall() if "Binlog Dump" in str(row[4])]
        for thread in dumps:
            try:
                cursor.execute(f"KILL {thread}")
            except pymysql.OperationalError as error:
                if error.args[0] != ER.NO_SUCH_THREAD:  # of an earlier test; the server has just ended it
                    raise
        return bool(dumps)


@pytest.mark.parametrize("included", [True, False])
def test_a_table_map_above_a_mebibyte(mysql9: Server, database: Database, tmp_path: Path, included: bool) -> None:
    """With FULL metadata a table map contains the members of every ENUM: more bytes than capture reads at once."""
    db = database(mysql9)
    members = ", ".join(f"'{n:06}{'x' * 240}'" for n in range(6000))
    config = configure(tmp_path, mysql9, db, tables=".*" if included else "small")
    Capture(config).run(until_current=True)
    mysql9.execute(
        f"CREATE TABLE {db}.wide (id INT PRIMARY KEY, e ENUM({members}))",
        f"CREATE TABLE {db}.small (id INT PRIMARY KEY)",
        f"INSERT INTO {db}.wide VALUES (1, 5)",
        f"INSERT INTO {db}.small VALUES (2)",
    )
    Capture(config).run(until_current=True)
    assert len(events_of(config.store.path)) == (2 if included else 1)
    sizes = [segment.stat().st_size for segment in list_segments(config.store.path)]
    assert (sum(sizes) > 1 << 20) == included


def test_two_tables_that_share_a_name(mysql9: Server, tmp_path: Path) -> None:
    """A dot may be part of the database's or the table's name. One such table is captured, two are refused."""
    dbs = ("dot_a", "dot_a.b")
    mysql9.execute(*[f"DROP DATABASE IF EXISTS `{db}`" for db in dbs], *[f"CREATE DATABASE `{db}`" for db in dbs])
    config = configure(tmp_path, mysql9, r"dot_a.*")
    Capture(config).run(until_current=True)
    mysql9.execute("CREATE TABLE `dot_a.b`.c (id INT PRIMARY KEY)", "INSERT INTO `dot_a.b`.c VALUES (1)")
    assert Capture(config).run(until_current=True).transactions == 2
    mysql9.execute("DROP TABLE `dot_a.b`.c", "CREATE TABLE dot_a.`b.c` (id INT PRIMARY KEY)")
    with pytest.raises(UnsupportedEventError, match=r"`dot_a`\.`b\.c` and `dot_a\.b`\.`c` share the name"):
        Capture(config).run(until_current=True)
    mysql9.execute("CREATE TABLE `dot_a.b`.c (id INT PRIMARY KEY)")
    with pytest.raises(SourceRefusedError, match="share the name"):
        Capture(config).run(until_current=True)
    mysql9.execute(*[f"DROP DATABASE `{db}`" for db in dbs])
