"""The canonical text and the word that each server computes, for every type and character set, against the decoder's
values.

``tests/integration/test_verify_types.py`` compares Spark's side in the same way.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.config import ApplyConfig, TablesConfig
from cdc.decode import DecodeOptions, read
from cdc.lake.verify.columns import LOW_BITS, NULL_WORD, WORD_BITS, ComparedColumn, Weights, quoted, table_columns
from cdc.source.schemas import read_schemas
from cdc.testing.servers import Server
from tests.support.type_matrix import catalog, plan, workload
from tests.support.type_matrix.special import LARGE
from tests.support.type_matrix.texts import FEATURES


def piece(column: ComparedColumn, value: Any) -> str:
    """Returns the piece of a decoded value."""
    if value is None:
        return ""
    if column.kind == "number":
        return format(value, "f") if isinstance(value, Decimal) else str(int(value))
    if column.kind == "real":
        return "x" + struct.pack(">d", value).hex().upper().lstrip("0")
    if column.kind == "reals":
        return "v" + b"".join(struct.pack("<f", number) for number in value).hex().upper()
    if column.kind == "day":
        assert isinstance(value, date)
        return str(value.toordinal() + 365)
    if column.kind == "instant":
        assert isinstance(value, datetime)
        since = value.replace(tzinfo=UTC) - datetime(1, 1, 1, tzinfo=UTC)
        return str((since.days + 366) * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds)
    if column.kind == "word":
        return str(value)
    raw = value if isinstance(value, bytes) else value.encode()
    if column.kind == "text":
        return f"{len(raw)}:{value}"
    return str(zlib.crc32(raw)) if column.kind == "json" else f"{len(raw)}:{zlib.crc32(raw)}"


def word(column: ComparedColumn, at: int, value: Any) -> int:
    """Returns the word of a decoded value of the column at this position, in 64 bits."""
    weights = Weights.of(at)
    if column.form == "piece":
        return zlib.crc32(piece(column, value).encode()) * weights.large
    if value is None:
        return NULL_WORD
    if column.form == "bytes":
        return zlib.crc32(value if isinstance(value, bytes) else value.encode()) * weights.large
    number = int(piece(column, value))
    if column.form == "big":
        return (number & LOW_BITS) * weights.large + ((number % 2**64) >> 31) * weights.middle
    if column.form == "instant":
        return number // 1_000_000 * weights.small + number % 1_000_000 * weights.large
    return number * weights.large % 2**64


@pytest.mark.long_on("mysql56", "mariadb10")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11", "mysql56", pytest.param("mariadb10", marks=pytest.mark.long)])
def test_servers_compute_the_texts_of_the_decoders_values(kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    name = f"pieces_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE `{name}`")
    try:
        with server.connect() as connection, connection.cursor() as cursor:
            tables = [t for t in plan.tables(connection, catalog.read_catalog(connection, name)) if t.group != LARGE]
            workload.create(connection, name, tables)
            schemas = read_schemas(connection, TablesConfig(include=(f"{name}\\..*",)))
            cursor.execute(f"USE `{name}`")
            compared, forms = 0, set[str]()
            for table in tables:
                _fill(cursor, table)
                file = _newest_file(cursor)
                rows = pa.Table.from_batches(
                    read(server.data / file, table=f"{name}.{table.name}", schemas=schemas, options=DecodeOptions())
                ).to_pylist()
                columns = table_columns(
                    schemas.tables[f"{name}.{table.name}"], ApplyConfig(target="lake"), is_old_mysql=kind == "mysql56"
                )
                cursor.execute("SET sql_mode = ''")
                cursor.execute(
                    f"SELECT {', '.join(c.piece for c in columns.compared)} FROM {quoted(table.name)} ORDER BY id"
                )
                answers = cursor.fetchall()
                # Shifted by no bit, a number has no sign.
                words = ", ".join(f"({c.word(at)}) >> 0" for at, c in enumerate(columns.compared))
                cursor.execute(f"SELECT {words}, {columns.checksum} FROM {quoted(table.name)} ORDER BY id")
                numbers = cursor.fetchall()
                assert len(answers) == len(numbers) == len(rows) == table.rows
                for row, answer, counted in zip(sorted(rows, key=lambda r: r["id"]), answers, numbers, strict=True):
                    expected = [word(column, at, row[column.source]) for at, column in enumerate(columns.compared)]
                    joined = reduce(int.__xor__, expected) & WORD_BITS
                    assert list(counted) == [*expected, zlib.crc32(b"%d" % joined)], (table.name, row["id"])
                    forms.update(column.form for column in columns.compared)
                    for column, text in zip(columns.compared, answer, strict=True):
                        shown = text.decode() if isinstance(text, bytes) else str(text)
                        wrong = f"{table.name}.{column.source} ({column.kind}), row {row['id']}: {row[column.source]!r}"
                        assert shown == piece(column, row[column.source]), wrong
                        compared += 1
                assert not columns.left_out
                assert not columns.read or kind == "mysql56", columns.read
            assert compared > 5_000
            assert forms == {"small", "big", "day", "instant", "bytes", "piece"}
    finally:
        server.execute(f"DROP DATABASE `{name}`")


def _fill(cursor: Any, table: Any) -> None:
    """Inserts row n with the n-th value of each column, into a binlog file of its own."""
    modes = "ALLOW_INVALID_DATES" if table.group == FEATURES else "ALLOW_INVALID_DATES,STRICT_ALL_TABLES"
    cursor.execute("SET NAMES utf8mb4")
    cursor.execute("SET time_zone = '+00:00'")
    cursor.execute("FLUSH BINARY LOGS")
    cursor.execute(f"SET sql_mode = '{modes}'")
    written = [column for column in table.columns if column.written]
    names = ", ".join(["id", "turn", *(workload.quoted(column.name) for column in written)])
    cursor.execute("BEGIN")
    for row in range(table.rows):
        values = ", ".join([str(row), "1", *(c.values[row % len(c.values)] for c in written)])
        cursor.execute(f"INSERT INTO {table.name} ({names}) VALUES ({values})")
    cursor.execute("COMMIT")


def _newest_file(cursor: Any) -> Path:
    cursor.execute("SHOW BINARY LOGS")
    return Path(cursor.fetchall()[-1][0])
