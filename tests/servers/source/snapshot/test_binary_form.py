"""Rows in binary form have the values that the server prints, whatever their types; rows that cannot come so are printed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.source.connection import query
from cdc.source.driver import close_now
from cdc.source.server import Connection, describe
from cdc.source.snapshot.columns import ColumnStats
from cdc.source.snapshot.result_set import CanRead, ResultSet, RowBlock
from cdc.source.snapshot.session import definition, open_session
from cdc.source.snapshot.table import TableReading
from cdc.source.snapshot.wire import WireColumn
from cdc.testing.servers import Server
from tests.support.snapshots import WHOLE, write_config
from tests.support.versions import with_types

SERVERS = ("mysql9", "mariadb11", "mariadb10", "mysql56")
COLUMNS: dict[str, tuple[str, ...]] = {
    "TINYINT": ("-128", "127", "0"),
    "TINYINT UNSIGNED": ("255", "0"),
    "TINYINT(1)": ("1", "0", "-7"),
    "SMALLINT": ("-32768", "32767"),
    "SMALLINT UNSIGNED": ("65535", "1"),
    "MEDIUMINT": ("-8388608", "8388607"),
    "MEDIUMINT UNSIGNED": ("16777215", "3"),
    "INT": ("-2147483648", "2147483647", "-1"),
    "INT UNSIGNED": ("4294967295", "0"),
    "INT(9) ZEROFILL": ("42", "4294967295"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807", "-1"),
    "BIGINT UNSIGNED": ("18446744073709551615", "9223372036854775808", "0"),
    "YEAR": ("1901", "2155", "0"),
    "FLOAT": ("0.1", "-3.4e38", "16777216", "1e-38"),
    "FLOAT(7,3)": ("1.125", "-9999.999"),
    "DOUBLE": ("0.1", "-1.7976931348623157e308", "2.2250738585072014e-308", "1234567.8901234567", "-0.0"),
    "DECIMAL(12,2)": ("-9999999999.99", "0.05"),
    "DECIMAL(38,10)": ("1234567890123456789012345678.0123456789", "-0.0000000001"),
    "DECIMAL(60,3)": ("123456789012345678901234567890123456789012345678901234567.125",),
    "DECIMAL(8,2) ZEROFILL": ("1.5",),
    "BIT(1)": ("1", "0"),
    "BIT(40)": ("1099511627775", "5"),
    "BIT(64)": ("18446744073709551615", "0"),
    "DATE": ("'1000-01-01'", "'9999-12-31'", "'0000-00-00'", "'2024-02-29'", "'2024-00-00'"),
    "DATETIME": ("'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'0000-00-00 00:00:00'", "'2024-03-00 01:02:03'"),
    "DATETIME(3)": ("'2024-02-29 23:59:59.999'", "'2024-02-29 00:00:00.000'"),
    "DATETIME(6)": ("'1969-12-31 23:59:59.000001'",),
    "TIMESTAMP NULL": ("'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'0000-00-00 00:00:00'"),
    "TIMESTAMP(6) NULL": ("'2024-02-29 23:59:59.123456'",),
    "TIME": ("'838:59:59'", "'-838:59:59'", "'00:00:00'", "'-00:00:01'"),
    "TIME(6)": ("'-12:34:56.000007'", "'101:00:00.5'"),
    "CHAR(5)": ("'ab'", "''"),
    "VARCHAR(300)": ("REPEAT('x', 300)", "'ä€'"),
    "VARCHAR(20) CHARACTER SET latin1": ("'äöü'",),
    "VARCHAR(20) CHARACTER SET utf16": ("'水€'",),
    "BINARY(4)": ("'a'",),
    "VARBINARY(300)": ("x'00ff'", "''"),
    "TINYTEXT": ("'tiny'",),
    "MEDIUMTEXT": ("REPEAT('y', 70000)", "REPEAT('é', 126)"),
    "LONGBLOB": ("REPEAT('z', 251)", "REPEAT('z', 65536)", "x'fbfcfdfe'"),
    "ENUM('a','ä','')": ("'ä'", "''", "1"),
    "SET('x','y','z')": ("'x,z'", "''"),
    "POINT": ("ST_GeomFromText('POINT(1 2)')",),
}
ONLY: dict[str, dict[str, tuple[str, ...]]] = {
    "mysql9": {"JSON": ('\'{"a": [1, null, "ä"]}\'', "'7'"), "VECTOR(2)": ("STRING_TO_VECTOR('[1.5,-2]')",)},
    "mariadb11": {
        "JSON": ("'{\"a\": 1}'",),
        "UUID": ("'123e4567-e89b-12d3-a456-426655440000'",),
        "INET6": ("'2001:db8::1'",),
        "INET4": ("'10.0.0.1'",),
        "VECTOR(2)": ("VEC_FromText('[1.5,-2]')",),
    },
    "mariadb10": {"UUID": ("'123e4567-e89b-12d3-a456-426655440000'",), "INET6": ("'::1'",)},
    "mysql56": {"YEAR(2)": ("70", "69", "0")},
}
POLICIES: dict[str, Any] = {
    "defaults": {"mode": "append"},
    "other types": {
        "mode": "append",
        "types": {"time": "microseconds", "bit(1)": "boolean", "tinyint(1)": "boolean"},
        "columns": {"c23": "text", "c24": "text", "c26": "text", "c28": "text"},
    },
}


def _read(
    conn: Connection, reading: TableReading, can_read: CanRead | None
) -> tuple[pa.Table, list[list[bytes | None]], ColumnStats]:
    """Returns the rows as the files would have them, the values as they are printed, and the counts."""
    stats, batches, values = ColumnStats(), [], []
    for block in ResultSet(conn, reading.select(WHOLE, None), can_read):
        assert bool(block.wire) == (can_read is not None)
        batches.append(reading.batch(block, 0, stats))
        values += _printed(block)
    return pa.Table.from_batches(batches, reading.arrow_schema), values, stats


def _printed(block: RowBlock) -> list[list[bytes | None]]:
    columns = range(block.at.shape[0])
    chosen = [at for at in columns if not block.wire or block.wire[at].kind != "double"]
    return [[block.value(at, row) if at in chosen else None for at in columns] for row in range(block.rows)]


@pytest.mark.parametrize("policies", POLICIES)
@pytest.mark.parametrize("kind", SERVERS)
def test_binary_and_printed_rows_are_the_same(
    kind: str, policies: str, request: pytest.FixtureRequest, database: Any, tmp_path: Path
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    types = with_types(kind, COLUMNS | ONLY[kind])
    names = [f"c{number}" for number in range(len(types))]
    columns = ", ".join(f"{name} {kind_of}" for name, kind_of in zip(names, types, strict=True))
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE {db}.t ({columns}) DEFAULT CHARSET utf8mb4")
        for number in range(max(map(len, types.values())) + 1):
            row = ", ".join(values[number] if number < len(values) else "NULL" for values in types.values())
            cursor.execute(f"INSERT INTO {db}.t VALUES ({row})")
    config = write_config(server, tmp_path, f"{re.escape(db)}\\..*", apply=POLICIES[policies])
    conn = open_session(config.source)
    try:
        metadata = describe(conn).has_row_metadata
        schema = definition(conn, config.tables, db, "t")
        reading = TableReading.of(config, db, "t", schema, has_row_metadata=metadata)
        seen: list[Sequence[WireColumn]] = []

        def can_read(wire: Sequence[WireColumn]) -> bool:
            seen.append(wire)
            return reading.can_read(wire)

        printed, texts, counts = _read(conn, reading, None)
        binary, values, second_counts = _read(conn, reading, can_read)
        assert len(seen) == 2
        unread = [
            types_of
            for types_of, column, wire in zip(types, reading.columns, seen[0], strict=True)
            if not column.can_read(wire)
        ]
        assert unread == []
        assert binary.schema == printed.schema
        for name in printed.column_names:
            assert binary.column(name).equals(printed.column(name)), name
        assert counts == second_counts and counts.null_dates
        doubles = {at for at, wire in enumerate(seen[0]) if wire.kind == "double"}
        padded = {at for at, type_of in enumerate(types) if "ZEROFILL" in type_of or type_of == "YEAR(2)"}
        for text, value in zip(texts, values, strict=True):
            for at in range(len(names)):
                if at not in doubles | padded:
                    assert text[at] == value[at], names[at]
        assert query(conn, "SELECT 1 AS one") == [{"one": 1}], "the connection goes on"
    finally:
        close_now(conn)


def _sql(reading: TableReading) -> str:
    return reading.select(WHOLE, None)


@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_a_server_that_prepares_nothing_prints_the_rows(
    kind: str, request: pytest.FixtureRequest, database: Any, tmp_path: Path
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)", f"INSERT INTO {db}.t VALUES (1), (2)")
    config = write_config(server, tmp_path, f"{re.escape(db)}\\..*")
    conn = open_session(config.source)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_prepared_stmt_count")
        (before,) = cursor.fetchall()[0]
        cursor.execute("SET GLOBAL max_prepared_stmt_count = 0")
        try:
            reading = TableReading.of(config, db, "t", definition(conn, config.tables, db, "t"))
            blocks = list(ResultSet(conn, _sql(reading), reading.can_read))
            assert [block.wire for block in blocks] == [()]
            assert [blocks[0].value(0, row) for row in range(2)] == [b"1", b"2"]
        finally:
            cursor.execute(f"SET GLOBAL max_prepared_stmt_count = {before}")
            close_now(conn)


def test_statements_are_closed(mariadb11: Server, database: Any, tmp_path: Path) -> None:
    db = database(mariadb11)
    mariadb11.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)", f"INSERT INTO {db}.t VALUES (1)")
    config = write_config(mariadb11, tmp_path, f"{re.escape(db)}\\..*")
    conn = open_session(config.source)
    try:
        reading = TableReading.of(config, db, "t", definition(conn, config.tables, db, "t"))
        for can_read in (reading.can_read, lambda _: False):
            assert sum(block.rows for block in ResultSet(conn, _sql(reading), can_read)) == 1
        open_now = query(conn, "SHOW STATUS LIKE 'Com_stmt_%'")
        counts = {row["Variable_name"]: int(row["Value"]) for row in open_now}
        assert counts["Com_stmt_prepare"] == counts["Com_stmt_close"] == 2
        assert counts["Com_stmt_execute"] == 1
    finally:
        close_now(conn)


def test_a_row_of_several_packets_comes_in_binary_form(mysql9: Server, database: Any, tmp_path: Path) -> None:
    db = database(mysql9)
    size = (16 << 20) + 5
    mysql9.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, body LONGBLOB, more DOUBLE)",
        f"INSERT INTO {db}.t VALUES (1, 'a', 0.5), (2, REPEAT('b', {size}), 1.5), (3, NULL, 2.5)",
    )
    config = write_config(mysql9, tmp_path, f"{re.escape(db)}\\..*")
    conn = open_session(config.source)
    try:
        reading = TableReading.of(config, db, "t", definition(conn, config.tables, db, "t"))
        rows: list[dict[str, Any]] = []
        for block in ResultSet(conn, _sql(reading), reading.can_read):
            assert block.wire
            rows += reading.batch(block, 0, ColumnStats()).to_pylist()
        assert [(row["id"], row["more"]) for row in rows] == [(1, 0.5), (2, 1.5), (3, 2.5)]
        assert [row["body"] for row in rows] == [b"a", b"b" * size, None]
    finally:
        close_now(conn)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_cast_prints_dates_and_times_as_a_query_does(
    kind: str, request: pytest.FixtureRequest, database: Any
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    types = {name: values for name, values in COLUMNS.items() if name.startswith(("DATE", "TIME"))}
    columns = ", ".join(f"c{number} {name}" for number, name in enumerate(types))
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE {db}.t ({columns})")
        for number in range(max(map(len, types.values()))):
            row = ", ".join(values[number] if number < len(values) else "NULL" for values in types.values())
            cursor.execute(f"INSERT INTO {db}.t VALUES ({row})")
        cursor.execute("SET character_set_results = NULL")
        connection.decoders = {}
        names = [f"c{number}" for number in range(len(types))]
        cursor.execute(f"SELECT {', '.join(names)} FROM {db}.t")
        plain = cursor.fetchall()
        cursor.execute(f"SELECT {', '.join(f'CAST({name} AS CHAR)' for name in names)} FROM {db}.t")
        cast = cursor.fetchall()
    texts = [[value.decode() if isinstance(value, bytes) else value for value in row] for row in cast]
    assert texts == [[value.decode() if isinstance(value, bytes) else value for value in row] for row in plain]
    assert texts[0][0] == "1000-01-01"
