"""``cdc verify`` finds what was lost, doubled or changed, on either side, and raises no false alarm."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc.batches.table_batches import batches_between
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE
from cdc.binlog.table_map import ColumnType
from cdc.capture import Capture
from cdc.cli import main as cli
from cdc.client import open_table_batches
from cdc.decode import column_types
from cdc.decode.kernels import constants as k
from cdc.lake import pipeline
from cdc.lake.delta.sql import quote
from cdc.lake.runtime import session
from cdc.lake.verify import buckets
from cdc.lake.verify.report import TableReport, VerificationReport
from cdc.meta import open_meta
from cdc.store.formats.layout import index_path, list_segments
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]

pytestmark = pytest.mark.timeout(900)

TABLES = (
    "CREATE TABLE mirror (id INT PRIMARY KEY, v VARCHAR(20), d DOUBLE, at DATETIME(3))",
    "CREATE TABLE pairs (a VARCHAR(20) COLLATE utf8mb4_general_ci, b INT, v TEXT, PRIMARY KEY (a, b)) CHARSET utf8mb4",
    "CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(20))",
    "CREATE TABLE bag (a INT, b VARCHAR(10))",
    "CREATE TABLE soft (id INT PRIMARY KEY, v VARCHAR(20))",
    "CREATE TABLE versions (id INT PRIMARY KEY, v VARCHAR(20))",
    "CREATE TABLE nothing (id BIGINT UNSIGNED PRIMARY KEY)",
)
ROWS = (
    *[f"INSERT INTO mirror VALUES ({i}, 'v{i}', {i}.1e0, '2026-01-02 03:04:05.{i:03d}')" for i in range(6)],
    "UPDATE mirror SET id = id + 100 WHERE id = 3",
    "INSERT INTO pairs VALUES ('a', 1, 'x'), ('B', 1, 'y'), ('é', 2, NULL)",
    "UPDATE pairs SET a = 'A' WHERE a = 'a'",
    "INSERT INTO log VALUES (1, 'a'), (2, 'b'), (3, NULL)",
    "UPDATE log SET v = 'c' WHERE id = 1",
    "UPDATE log SET id = 30 WHERE id = 3",
    "DELETE FROM log WHERE id = 2",
    "INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, NULL)",
    "DELETE FROM bag WHERE a = 1 LIMIT 1",
    *[f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')" for table in ("soft", "versions")],
    *[f"UPDATE {table} SET v = 'c' WHERE id = 1" for table in ("soft", "versions")],
    *[f"DELETE FROM {table} WHERE id = 2" for table in ("soft", "versions")],
)
OVERRIDES = "DB.log: {mode: append}, DB.bag: {mode: append}, DB.soft: {mode: soft_delete}, DB.versions: {mode: scd2}"


@pytest.fixture(params=["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def loop(tmp_path: Path, server: Server, database: Database) -> Loop:
    """Tables in every mode, captured and applied."""
    loop = Loop(tmp_path, server, database(server), overrides=OVERRIDES)
    loop.sql(*TABLES, *ROWS)
    loop.capture()
    loop.apply_all()
    return loop


@pytest.fixture
def mirror(tmp_path: Path, server: Server, database: Database) -> Loop:
    """Only the table ``mirror``, captured and applied."""
    loop = Loop(tmp_path, server, database(server))
    loop.sql(TABLES[0], *ROWS[:7])
    loop.capture()
    loop.apply_all()
    return loop


def verify(loop: Loop, *tables: str, limit: int = 20) -> VerificationReport:
    return pipeline.verify(loop.config, [f"{loop.db}.{table}" for table in tables] or None, limit=limit, wait_s=10)


def report_of(report: VerificationReport, table: str) -> TableReport:
    return next(table_report for table_report in report.tables if table_report.table.endswith(f".{table}"))


def unlogged(loop: Loop, *statements: str) -> None:
    """Runs statements that the binlog does not get."""
    with loop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute(f"USE `{loop.db}`")
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


def test_a_second_opinion_about_the_store(
    mirror: Loop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A fault in our decoder is found, although the lake equals the source."""
    command = ["--conf-dir", str(mirror.config.file.parent), "verify", mirror.config.name, "--json", "--second-opinion"]
    assert cli.main(command) == 0
    opinion = json.loads(capfd.readouterr().out)["second_opinion"]
    assert (opinion["verdict"], opinion["rows"], opinion["values"]) == ("equal", 7, 32)
    assert (opinion["left_out"], opinion["differences"], opinion["more"]) == ([], [], 0)

    signed = (k.I32, pa.int32())
    monkeypatch.setitem(column_types._INTEGERS, ColumnType.LONG, (4, (k.U32, pa.int64()), signed))
    mirror.sql("INSERT INTO mirror VALUES (-1, 'negative', 0, NULL)", "DELETE FROM mirror WHERE id = -1")
    mirror.capture()
    assert cli.main([*command, "--sample", f"10000:{opinion['seed']}"]) == 2
    report = json.loads(capfd.readouterr().out)
    assert (report["ok"], report["state"], report["second_opinion"]["seed"]) == (False, "differs", opinion["seed"])
    first, second = report["second_opinion"]["differences"]
    assert (first["table"], first["column"], first["ours"], first["library"]) == (
        f"{mirror.db}.mirror", "id", "4294967295", "-1"
    )  # fmt: skip
    assert (first["image"], second["image"]) == ("new", "old")


def in_lake(loop: Loop, statement: str, table: str) -> None:
    """Runs a statement of Spark on a Delta table behind Towpath's back."""
    spark = session.acquire(loop.config.spark).spark
    spark.sql(statement.format(f"delta.{quote(str(loop.path(table)))}"))


def faults(report: VerificationReport, table: str) -> list[tuple[dict[str, str | None], bool, bool]]:
    """Returns key, and whether source and Delta table have the row, of each difference."""
    return [(d.key, d.source is not None, d.delta is not None) for d in report_of(report, table).checksums.differences]


def test_everything_is_proved_and_each_fault_in_the_lake_is_found(loop: Loop) -> None:
    report = verify(loop)
    assert (report.state, report.exit_code) == ("proved", 0), report.document()
    assert {t.table.partition(".")[2]: t.rows for t in report.tables} == {
        "mirror": 6, "pairs": 3, "log": 2, "bag": 2, "soft": 1, "versions": 1, "nothing": 0
    }  # fmt: skip
    assert report.history.kind == "gtid"

    in_lake(loop, "DELETE FROM {} WHERE id = 2", "mirror")  # a row is missing
    in_lake(loop, "UPDATE {} SET v = 'wrong' WHERE id = 4", "mirror")  # a value is wrong
    in_lake(loop, "UPDATE {} SET d = 5.1000000000000005D WHERE id = 5", "mirror")  # in its last bit
    in_lake(loop, "INSERT INTO {} VALUES ('B', 1, 'y')", "pairs")  # a row is there twice
    in_lake(loop, "DELETE FROM {} WHERE id = 1 AND _op = 'update'", "log")  # a change is missing
    in_lake(loop, "DELETE FROM {} WHERE a = 2", "bag")
    in_lake(loop, "UPDATE {} SET _deleted = false", "soft")
    in_lake(loop, "UPDATE {} SET _valid_to = NULL WHERE id = 1", "versions")
    in_lake(loop, "INSERT INTO {} VALUES (7)", "nothing")
    report = verify(loop)
    assert (report.state, report.exit_code) == ("differs", 2)
    assert faults(report, "mirror") == [
        ({"id": "2"}, True, False), ({"id": "4"}, True, True), ({"id": "5"}, True, True)
    ]  # fmt: skip
    wrong = report_of(report, "mirror").checksums.differences
    assert [d.columns for d in wrong[1:]] == [["v"], ["d"]]
    assert (wrong[1].source or {})["v"] == "v4" and (wrong[1].delta or {})["v"] == "wrong"
    assert faults(report, "pairs") == [({"a": "B", "b": "1"}, True, True)]
    assert report_of(report, "pairs").checksums.differences[0].note == "2 rows in the Delta table"
    assert ({"id": "1"}, True, True) in faults(report, "log")
    assert len(faults(report, "bag")) == 1
    assert faults(report, "soft") == [({"id": "2"}, False, True)]
    assert report_of(report, "versions").checksums.faults
    assert faults(report, "nothing") == [({"id": "7"}, False, True)]
    assert all(t.ledger.ok for t in report.tables)

    limited = report_of(verify(loop, "mirror", limit=1), "mirror").checksums
    assert len(limited.differences) == 1 and limited.more


@pytest.mark.long
def test_rows_that_the_binlog_never_had_are_found_even_under_changes_that_are_not_applied(loop: Loop) -> None:
    unlogged(
        loop,
        "INSERT INTO mirror VALUES (77, 'silent', NULL, NULL)",
        "UPDATE pairs SET v = 'silent' WHERE a = 'B'",
        "DELETE FROM log WHERE id = 30",
        "INSERT INTO bag VALUES (1, 'x')",
    )
    # A row that changes silently, and then once more with a trace in the binlog.
    unlogged(loop, "UPDATE mirror SET v = 'silent' WHERE id = 1")
    loop.sql("UPDATE mirror SET d = 0 WHERE id = 1", "UPDATE mirror SET v = 'later' WHERE id = 4", "DELETE FROM soft")
    loop.capture()
    report = verify(loop)
    assert report.exit_code == 2
    assert faults(report, "mirror") == [({"id": "1"}, True, True), ({"id": "77"}, True, False)]
    assert "position" in (report_of(report, "mirror").checksums.differences[0].note or "")
    assert faults(report, "pairs") == [({"a": "B", "b": "1"}, True, True)]
    assert faults(report, "log") == [({"id": "30"}, False, True)]
    assert faults(report, "bag") == [({}, True, True)]
    assert report_of(report, "bag").checksums.differences[0].note == "2 times at the source, 1 times in the Delta table"
    assert report_of(report, "soft").ok


def test_a_lost_batch_a_lost_entry_and_a_lost_commit_are_found(mirror: Loop) -> None:
    # The cursor moves on, and nobody got the transactions between.
    mirror.sql("INSERT INTO mirror VALUES (50, 'lost', 1, NULL)")
    mirror.capture()
    meta = open_meta(mirror.config)
    with meta.change() as state:
        subscription = state.subscription("apply")
        last = list_segments(mirror.config.store.path)[-1]
        entries = np.fromfile(index_path(last), dtype=ENTRY, offset=HEADER_SIZE)
        subscription.acked_seq = int(entries["seq"][-1])
    report = verify(mirror, "mirror")
    assert report.exit_code == 2
    assert any("the cursor has passed them" in fault for fault in report.history.faults)

    # The next batch begins behind them.
    mirror.sql("INSERT INTO mirror VALUES (51, 'next', 1, NULL)")
    mirror.capture()
    mirror.apply_all()
    report = verify(mirror, "mirror")
    mirror_report = report_of(report, "mirror")
    assert mirror_report.ledger.gaps and not mirror_report.ledger.ok
    assert faults(report, "mirror") == [({"id": "50"}, True, False)]

    # An entry of the index is gone, and with it a transaction for every reader.
    index = index_path(list_segments(mirror.config.store.path)[-1])
    entries = np.fromfile(index, dtype=ENTRY, offset=HEADER_SIZE)
    numbers = np.flatnonzero(entries["length"])
    kept = np.delete(entries, numbers[len(numbers) // 2])
    index.write_bytes(index.read_bytes()[:HEADER_SIZE] + kept.tobytes())
    assert len(kept) * ENTRY_SIZE + HEADER_SIZE == index.stat().st_size
    report = verify(mirror, "mirror")
    assert any("lacks the transactions before" in fault for fault in report.history.faults), report.history
    assert any("GTID" in fault or "the source executed" in fault for fault in report.history.faults), report.history


def test_a_commit_without_its_entry_is_a_gap(mirror: Loop) -> None:
    mirror.sql("INSERT INTO mirror VALUES (60, 'a', 1, NULL)")
    mirror.capture()
    mirror.apply_all()
    log = mirror.path("mirror") / "_delta_log"
    newest = max(log.glob("*.json"))
    lines = []
    for line in newest.read_text().splitlines():
        action = json.loads(line)
        action.get("commitInfo", {}).pop("userMetadata", None)
        lines.append(json.dumps(action))
    newest.write_text("\n".join(lines) + "\n")
    (log / f".{newest.name}.crc").unlink(missing_ok=True)
    report = verify(mirror, "mirror")
    assert report_of(report, "mirror").ledger.gaps
    assert report.exit_code == 2
    assert DeltaTable(str(mirror.path("mirror"))).version() == int(newest.stem)


@contextmanager
def busy(loop: Loop) -> Iterator[list[int]]:
    """Captures, and writes to the same few keys all the time. The list counts the transactions."""
    stop, written = threading.Event(), [0]

    def write() -> None:
        with loop.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{loop.db}`")
            n = 0
            while not stop.is_set():
                n += 1
                key = n % 5
                cursor.execute(f"REPLACE INTO mirror VALUES ({key}, 'n{n}', {n}, NOW(3))")
                cursor.execute(f"REPLACE INTO pairs VALUES ('{'kK'[n % 2]}', {key}, '{n}')")
                cursor.execute(f"REPLACE INTO log VALUES ({key}, '{n}')")
                connection.commit()
                if n % 7 == 0:
                    cursor.execute(f"DELETE FROM mirror WHERE id = {key}")
                    cursor.execute(f"UPDATE soft SET v = '{n}'")
                    cursor.execute(f"UPDATE versions SET v = '{n}'")
                    connection.commit()
                written[0] = n

    capture = threading.Thread(target=lambda: Capture(loop.config).run(stop))
    writer = threading.Thread(target=write)
    capture.start()
    writer.start()
    try:
        yield written
    finally:
        stop.set()
        writer.join()
        capture.join()


@pytest.mark.long
def test_no_false_alarm_under_writes_to_the_same_keys(loop: Loop) -> None:
    with busy(loop) as written:
        for _ in range(2):
            before = written[0]
            report = pipeline.verify(
                loop.config, [f"{loop.db}.{t}" for t in ("mirror", "pairs", "log", "soft", "versions")], wait_s=60
            )
            assert report.state == "proved", report.document()
            assert written[0] > before
            loop.apply()
            time.sleep(0.2)


@pytest.mark.long
def test_large_tables_are_compared_by_ranges_of_their_keys(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "ROWS_A_RANGE", 100)
    rows = ", ".join(f"({7 * i}, 'v{i}', {i}, '2026-01-02 03:04:05.{i % 1000:03d}')" for i in range(200, 2200))
    edges = ", ".join(f"({n})" for n in [0, 2**63 - 1, 2**63, 2**64 - 1, *range(100, 700)])
    loop.sql(
        f"INSERT INTO mirror VALUES {rows}", f"INSERT INTO nothing VALUES {edges}", "ANALYZE TABLE mirror, nothing"
    )
    loop.capture()
    loop.apply_all()
    report = verify(loop, "mirror", "nothing")
    assert report.state == "proved", report.document()
    assert {t.table.partition(".")[2]: t.rows for t in report.tables} == {"mirror": 2006, "nothing": 604}
    assert all(t.checksums.chunks > 3 for t in report.tables)

    unlogged(loop, "UPDATE mirror SET d = d + 1 WHERE id IN (0, 1407, 15393)", "DELETE FROM mirror WHERE id = 8400")
    unlogged(loop, "INSERT INTO mirror VALUES (1000000, 'silent', NULL, NULL)", "DELETE FROM nothing WHERE id >= 9e18")
    loop.sql("UPDATE mirror SET v = 'later' WHERE id = 2100", "INSERT INTO mirror VALUES (-5, 'later', NULL, NULL)")
    loop.capture()
    report = verify(loop, "mirror", "nothing")
    assert sorted((int(d[0]["id"] or 0), *d[1:]) for d in faults(report, "mirror")) == [
        (0, True, True), (1407, True, True), (8400, False, True), (15393, True, True), (1000000, True, False)
    ]  # fmt: skip
    assert {int(d[0]["id"] or 0) for d in faults(report, "nothing")} == {2**63 - 1, 2**63, 2**64 - 1}


@pytest.mark.long
def test_without_capture_nothing_can_be_told(loop: Loop) -> None:
    loop.sql("INSERT INTO mirror VALUES (61, 'a', 1, NULL)")
    report = pipeline.verify(loop.config, [f"{loop.db}.mirror"], wait_s=0)
    assert (report.state, report.exit_code) == ("unknown", 1)
    assert "Capture is not running" in report.tables[0].unknown[0]


@pytest.mark.long
def test_a_statement_of_a_table_that_shares_the_bit_leaves_the_others_proved(
    tmp_path: Path, server: Server, database: Database
) -> None:
    """A table shares its bit in the store's index with the 64th table after it."""
    loop = Loop(tmp_path, server, database(server))
    loop.sql("CREATE TABLE first (id INT PRIMARY KEY, v INT)", "INSERT INTO first VALUES (1, 1), (2, 2)")
    loop.capture()
    loop.apply_all()
    loop.sql("UPDATE first SET v = 3 WHERE id = 1")
    loop.sql(*[f"CREATE TABLE other{number} (id INT PRIMARY KEY)" for number in range(64)])
    loop.sql("INSERT INTO first VALUES (3, 3)")
    loop.capture()
    report = report_of(verify(loop, "first"), "first")
    assert (report.unknown, report.checksums.ok) == ([], True)
    batches = open_table_batches(loop.config)
    last = batches.reader.last_seq() or 0
    between = batches_between(batches, f"{loop.db}.first", report.applied_seq or 0, last, whole=True)
    changes = [(manifest.ddl, manifest.row_events) for manifest in between]
    assert changes == [(False, 2)]

    loop.sql("ALTER TABLE first ADD COLUMN w INT")
    loop.capture()
    assert "a DDL statement of the table is not applied yet" in report_of(verify(loop, "first"), "first").unknown[0]
