"""``cdc verify`` on tables whose columns a client has to read, and after what people do to a lake, a store or a source by
hand: never green over a difference, and no alarm over a statement that is not applied yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.cli import main as cli
from cdc.lake import pipeline
from cdc.lake.delta.sql import quote
from cdc.lake.runtime import session
from cdc.lake.verify.columns import ComparedColumn, Term, Weights
from cdc.lake.verify.lake import word
from cdc.lake.verify.report import TableReport, VerificationReport
from cdc.store.formats.layout import list_segments
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(params=["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


def verify(loop: Loop, *tables: str) -> VerificationReport:
    return pipeline.verify(loop.config, [f"{loop.db}.{table}" for table in tables] or None, wait_s=10)


def report_of(report: VerificationReport, table: str) -> TableReport:
    return next(table_report for table_report in report.tables if table_report.table.endswith(f".{table}"))


def unlogged(loop: Loop, statement: str) -> None:
    with loop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute(f"USE `{loop.db}`")
        cursor.execute(statement)
        connection.commit()


def in_lake(loop: Loop, table: str, *statements: str) -> None:
    spark = session.acquire(loop.config.spark).spark
    for statement in statements:
        spark.sql(statement.format(f"delta.{quote(str(loop.path(table)))}"))


def differing(report: VerificationReport, table: str) -> list[tuple[str | None, list[str]]]:
    return [
        (difference.key.get("id"), difference.columns) for difference in report_of(report, table).checksums.differences
    ]


@pytest.mark.long
def test_hashed_columns_are_compared_by_what_a_client_reads(
    tmp_path: Path, server: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWPATH_TEST_HASH_KEY", "a key of the tests that nobody else has")
    loop = Loop(
        tmp_path, server, database(server), apply="hash_key_env: TOWPATH_TEST_HASH_KEY",
        overrides="DB.people: {columns: {email: hash, born: hash}}, DB.visits: {mode: append, columns: {who: hash}}",
    )  # fmt: skip
    loop.sql(
        "CREATE TABLE people (id INT PRIMARY KEY, email VARCHAR(40) CHARSET latin1, born DATETIME(3), v INT NOT NULL)",
        "CREATE TABLE visits (id INT, who VARCHAR(20))",
        "INSERT INTO people SELECT 1, 'é@a', '2001-02-03 04:05:06.789', 1 UNION ALL SELECT 2, 'b', NULL, 2 "
        "UNION ALL SELECT 3, NULL, NULL, 3 UNION ALL SELECT 4, 'd', NULL, 4 UNION ALL SELECT 5, 'e', NULL, 5 "
        "UNION ALL SELECT 6, 'f', NULL, 6",
        "INSERT INTO visits VALUES (1, 'x'), (1, 'x'), (2, NULL)",
        "DELETE FROM visits WHERE id = 1 LIMIT 1",
    )
    loop.capture()
    loop.apply_all()
    report = verify(loop)
    assert (report.state, report.exit_code) == ("proved", 0), report.document()
    assert [table.verdict for table in report.tables] == ["equal", "equal"]
    assert {table.rows for table in report.tables} == {6, 2}

    in_lake(
        loop,
        "people",
        "UPDATE {} SET email = 'wrong' WHERE id = 2",
        # Two rows exchange their values.
        "MERGE INTO {0} t USING (SELECT 9 - id AS id, email FROM {0} WHERE id IN (4, 5)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.email = s.email",
    )
    unlogged(loop, "UPDATE people SET email = 'silent' WHERE id = 6")
    unlogged(loop, "UPDATE visits SET who = 'y' WHERE id = 2")
    loop.sql("UPDATE people SET email = 'later' WHERE id = 1", "UPDATE people SET born = NOW() WHERE id = 3")
    loop.capture()
    report = verify(loop)
    assert report.exit_code == 2, report.document()
    assert differing(report, "people") == [(key, ["email"]) for key in ("2", "4", "5", "6")]
    assert report_of(report, "visits").checksums.differences
    assert "silent" not in json.dumps(report.document())


@pytest.mark.long
def test_values_that_are_close_exchanged_or_impossible_at_the_source(
    tmp_path: Path, server: Server, database: Database
) -> None:
    loop = Loop(tmp_path, server, database(server))
    loop.sql(
        "CREATE TABLE numbers (id BIGINT PRIMARY KEY, u INT UNSIGNED, b BIGINT, n DECIMAL(20,2), at DATETIME(3), d DATE)",
        *(
            f"INSERT INTO numbers VALUES ({i}, {i}, {-i}, {i}.5, {moment}, '2026-01-0{i}')"
            for i, moment in enumerate(["NULL"] * 2 + ["'2026-01-02 03:04:05.678'"] * 6, 1)
        ),
    )
    loop.capture()
    loop.apply_all()
    assert verify(loop).state == "proved"
    exchanged = (
        "MERGE INTO {0} t USING (SELECT 9 - id AS id, u, b, n, at, d FROM {0} WHERE id IN (4, 5)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.u = s.u, t.b = s.b, t.n = s.n, t.at = s.at, t.d = s.d"
    )
    in_lake(
        loop,
        "numbers",
        "UPDATE {} SET u = 1099511627776 WHERE id = 1",
        "UPDATE {} SET at = TIMESTAMP_NTZ '+20000-01-01 00:00:00' WHERE id = 2",
        "UPDATE {} SET u = NULL WHERE id = 3",
        exchanged,
        "UPDATE {} SET at = at + INTERVAL '0.000001' SECOND WHERE id = 6",
        "UPDATE {} SET b = b + 4294967296 WHERE id = 7",
    )
    assert differing(verify(loop), "numbers") == [
        ("1", ["u"]), ("2", ["at"]), ("3", ["u"]), ("4", ["u", "b", "n", "d"]), ("5", ["u", "b", "n", "d"]),
        ("6", ["at"]), ("7", ["b"]),
    ]  # fmt: skip

    # A column of another type than the source's type becomes.
    spark = session.acquire(loop.config.spark).spark
    column = ComparedColumn("v", "v", "number", "`v`", "`v`", "`v`", "small", (Term("`v`"),))
    weight = Weights.of(3).large
    values = {
        "CAST(7 AS DECIMAL(20,0))": 7 * weight, "7.00": 7 * weight, "-70.00": -70 * weight, "0.00": 0, "1.50": 2, "CAST(1e19 AS DECIMAL(20,0))": 2, "'7'": 7 * weight,
        "'07'": 2, "CAST(NULL AS STRING)": 1, "CAST(-7 AS BIGINT)": -7 * weight, "4611686018427387904": 2,
    }  # fmt: skip
    for value, expected in values.items():
        rows = spark.sql(f"SELECT {value} AS v")
        assert rows.select(word(column, 3, "", rows.schema["v"].dataType)).collect()[0][0] == expected, value


@pytest.mark.long
def test_numbers_whose_delta_column_has_more_digits_are_equal(
    tmp_path: Path, server: Server, database: Database
) -> None:
    """Delta keeps the type of a column that holds all values of its new type."""
    loop = Loop(tmp_path, server, database(server), overrides="DB.log: {mode: append}")
    columns = "a DECIMAL(38,10), b DECIMAL(38,10), c DECIMAL(38,10), d DECIMAL(38,10)"
    rows = "VALUES (1, 0, 1.5, 7, 20), (2, 42, -0.25, 10, 0), (3, -700, 100, 0, 1.1), (4, NULL, NULL, NULL, NULL)"
    alter = "MODIFY a BIGINT, MODIFY b DECIMAL(20,2), MODIFY c INT(5) ZEROFILL, MODIFY d DECIMAL(20,1)"
    for table in ("mirror", "log"):
        loop.sql(f"CREATE TABLE {table} (id DECIMAL(30,6) PRIMARY KEY, {columns})", f"INSERT INTO {table} {rows}")
    loop.capture()
    loop.apply_all()
    for table in ("mirror", "log"):
        loop.sql(f"ALTER TABLE {table} {alter}", f"ALTER TABLE {table} MODIFY id BIGINT")
        loop.sql(f"UPDATE {table} SET a = 9 WHERE id = 1", f"INSERT INTO {table} VALUES (50, 50, 50, 50, 50)")
    loop.capture()
    loop.apply_all()
    fields = {field.name: str(field.type) for field in DeltaTable(str(loop.path("mirror"))).schema().fields}
    assert "decimal(38,10)" in fields["a"] and "decimal(30,6)" in fields["id"], fields
    report = verify(loop)
    assert report.state == "proved", report.document()
    in_lake(loop, "mirror", "UPDATE {} SET a = 9.5 WHERE id = 1", "UPDATE {} SET b = 1.501 WHERE id = 1")
    assert differing(verify(loop), "mirror") == [("1", ["a", "b"])]


def test_what_people_do_to_a_lake_a_store_or_a_source(tmp_path: Path, server: Server, database: Database) -> None:
    loop = Loop(tmp_path, server, database(server))
    tables = ("restored", "wider", "renamed", "gone", "altered", "pending")
    loop.sql(*(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20))" for table in tables))
    loop.sql(*(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')" for table in tables))
    loop.capture()
    loop.apply_all()
    loop.sql("UPDATE restored SET v = 'c' WHERE id = 1")
    loop.capture()
    loop.apply_all()
    assert verify(loop).state == "proved"

    in_lake(loop, "restored", f"RESTORE TABLE {{}} TO VERSION AS OF {loop.version('restored') - 1}")
    in_lake(loop, "wider", "ALTER TABLE {} ADD COLUMNS (extra INT)")
    in_lake(
        loop,
        "renamed",
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER TABLE {} RENAME COLUMN v TO w",
    )
    loop.sql(
        "DROP TABLE gone",
        "ALTER TABLE altered ADD COLUMN n INT NOT NULL DEFAULT 7",
        "UPDATE pending SET v = 'a text to be damaged' WHERE id = 1",
    )
    loop.capture()
    report = verify(loop)
    assert report.exit_code == 2
    assert differing(report, "restored") == [("1", ["v"])]
    assert report_of(report, "wider").checksums.faults == ["only the Delta table has the column extra"]
    assert report_of(report, "renamed").checksums.faults == [
        "the Delta table lacks the column v", "only the Delta table has the column w"
    ]  # fmt: skip
    assert (report_of(report, "gone").state, report_of(report, "gone").verdict) == ("proved", "not compared")
    assert report_of(report, "altered").state == "unknown", report.document()
    assert "DDL" in report_of(report, "altered").unknown[0]
    assert report_of(report, "pending").state == "proved"

    segment = list_segments(loop.config.store.path)[-1]
    content = segment.read_bytes()
    assert b"a text to be damaged" in content
    segment.write_bytes(content.replace(b"a text to be damaged", b"a text that is wrong"))
    pending = report_of(verify(loop, "pending"), "pending")
    assert pending.state == "unknown" and not pending.checksums.differences, pending


def test_a_delete_that_the_server_has_written_twice(
    mysql9: Server, database: Database, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """MySQL 9.7 comes back to the first row where rows refer to each other in a circle. A second copy of an event's
    row is a fault all the same."""
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.log: {mode: append}")
    for name in ("log", "mirror"):
        loop.sql(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, other INT, FOREIGN KEY (other) REFERENCES {name} (id)"
            " ON DELETE CASCADE)",
            "SET foreign_key_checks = 0",
            f"INSERT INTO {name} VALUES (1, 2), (2, 1), (3, NULL)",
        )
    loop.capture()
    loop.apply_all()
    for name in ("log", "mirror"):
        loop.sql(f"DELETE FROM {name} WHERE id = 1")
    loop.capture()
    assert report_of(verify(loop), "mirror").verdict == "equal"  # the changes are in the store alone
    loop.apply_all()
    assert [row["id"] for row in loop.delta("log") if row["_op"] == "delete"].count(1) == 2
    report = verify(loop)
    assert (report.state, report_of(report, "log").checksums.ok) == ("proved", True)
    (remark,) = report_of(report, "log").checksums.remarks
    assert "written the delete of a row twice in one transaction" in remark
    assert report_of(report, "mirror").checksums.remarks == []
    command = ["--conf-dir", str(loop.config.file.parent), "verify", loop.config.name]
    assert cli.main(command) == 0
    assert "it counts once" in capfd.readouterr().out

    in_lake(loop, "log", "INSERT INTO {0} SELECT * FROM {0} WHERE _op = 'delete' LIMIT 1")
    assert not report_of(verify(loop, "log"), "log").checksums.ok
