"""MySQL's binary JSON as text: equal to SELECT, for edge documents, random ones, and after partial updates."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc.binlog.constants import CHECKSUM_SIZE
from cdc.binlog.file import BinlogFile
from cdc.binlog.table_map import ColumnType, parse_table_map
from cdc.decode.binary_json.convert import json_text
from cdc.decode.conversions.values import decimal_text
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.rows import EventArrays
from cdc.decode.row_events import expand_partial
from cdc.testing.servers import Server
from tests.conftest import Database
from tests.support.servers_binary_json import inserted, new_binlog, query, row_events
from tests.support.versions import needs

PARTIAL_UPDATE_ROWS, UPDATE_ROWS = 39, 31

NUMBERS = [
    *("0", "1", "-1", "32767", "32768", "-32768", "-32769", "65535", "65536", "2147483647", "2147483648", "-2147483648"),
    *("-2147483649", "4294967295", "4294967296", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("9999999999999999999", "10000000000000000000", "18446744073709551615", "18446744073709551616", "0.0", "-0.0", "1.0"),
    *("100.0", "1e14", "1e15", "999999999999999.0", "1234567890123456.0", "1234567890123456.5", "1e16", "1e20", "1e22"),
    *("1e23", "1e-7", "1e-14", "1e-15", "1e-16", "1.2345678901234567e-15", "1.2345678901234567e-16", "5e-324", "0.1"),
    *("1.7976931348623157e308", "2.2250738585072014e-308", "123456.789", "-1e100", "9007199254740993.0", "0.30000000000000004"),
]  # fmt: skip
TEXTS = [
    "",
    "a",
    "é",
    "€",
    "😀",
    '"',
    "\\",
    "/",
    "\b\f\n\r\t",
    "\x00\x01\x1f\x7f",
    "\u2028",
    "x" * 127,
    "x" * 128,
    "é" * 8191,
    "ab" * 9000,
]
SQL_VALUES = [
    *("CAST('2024-01-02' AS DATE)", "CAST('0001-01-01' AS DATE)", "CAST('9999-12-31' AS DATE)"),
    *("TIMESTAMP'2024-02-29 23:59:59.999999'", "TIMESTAMP'1000-01-01 00:00:00'", "CAST('2024-01-02 03:04:05.6' AS DATETIME(1))"),
    *("CAST('00:00:00' AS TIME)", "CAST('-00:00:00.000001' AS TIME(6))", "CAST('-838:59:59' AS TIME)", "CAST('838:59:59' AS TIME)"),
    *("CAST('100:00:00.5' AS TIME(1))", "CAST('-12:34:56.789' AS TIME(3))"),
    *("1.10", "-1.10", "0.00", "CAST(0 AS DECIMAL(65,30))", "CAST(-0.000000000000000000000000000001 AS DECIMAL(65,30))"),
    *(f"CAST('{'9' * 35}.{'9' * 30}' AS DECIMAL(65,30))", f"CAST('-{'9' * 65}' AS DECIMAL(65,0))", "CAST(0.5 AS DECIMAL(1,1))"),
    *("CAST('123456789.123456789' AS DECIMAL(18,9))", "CAST('1000000000' AS DECIMAL(10,0))"),
    *("x''", "x'00'", "x'0001'", "x'000102'", "b'101'", *(f"REPEAT(x'a1', {n})" for n in (56, 57, 58, 113, 114, 115, 1000))),
    *("CAST('ab' AS BINARY(5))", "POINT(1.5, -2)", "TRUE", "NULL", "CAST(2024 AS YEAR)", "CAST(0.1 AS FLOAT)", "PI()"),
    *("CAST('null' AS JSON)", "CAST('\"x\"' AS JSON)", "JSON_OBJECT()", "JSON_ARRAY()"),
]  # fmt: skip


def edge_documents() -> list[str]:
    """Edge values as SQL expressions."""
    quoted = [json.dumps(text, ensure_ascii=False) for text in TEXTS]
    documents = [*NUMBERS, "null", "true", "false", "[]", "{}", *quoted]
    documents += [f"[{','.join(NUMBERS)}]", f"[{','.join(quoted)}]"]
    documents += [f"[{value}]" for value in NUMBERS]
    documents.append("{" + ",".join(f"{text}: {i}" for i, text in enumerate(quoted)) + "}")
    documents.append('{"b": 1, "a": 2, "": 3, "aa": 4, "B": 5, "é": 6, "zz": 7, "a": 8}')
    documents += ["[" * n + inner + "]" * n for n in (2, 50, 100) for inner in ("", "1")]
    documents += ['{"k": ' * 99 + "[true]" + "}" * 99]
    for count in (9000, 13106, 13107, 13108, 22000):  # where an array becomes a large one
        documents.append("[" + ",".join(["70000"] * count) + "]")
        documents.append("[" + ",".join(["1"] * count) + "]")
    documents.append("{" + ",".join(f'"key{i:05d}": [{i}, {i * 1000003}, "{i}"]' for i in range(5000)) + "}")
    documents.append('{"small": {"x": [1, 2]}, "large": ["' + "y" * 70000 + '", 70000, -70000, {"z": 1.5}]}')
    expressions = ["CAST(" + sql_text(document) + " AS JSON)" for document in documents]
    expressions += [f"JSON_ARRAY({value})" for value in SQL_VALUES]
    expressions += [f"JSON_OBJECT('k', {value}, 'l', JSON_ARRAY({value}, {value}))" for value in SQL_VALUES]
    expressions.append("JSON_ARRAY(" + ", ".join(SQL_VALUES) + ")")
    return expressions


def sql_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def random_value(dice: random.Random, depth: int) -> str:
    """A random value as an SQL expression that JSON_ARRAY takes."""
    kind = dice.randrange(11 if depth > 0 else 8)
    if kind == 0:
        return dice.choice(SQL_VALUES)
    if kind == 1:
        return str(dice.choice((-1, 1)) * dice.getrandbits(dice.randrange(1, 63)))
    if kind == 2:
        bits = dice.getrandbits(64) & ~(1 << 62)
        return f"CAST('{struct.unpack('<d', struct.pack('<Q', bits))[0]!r}' AS DOUBLE)"
    if kind == 3:
        return f"CAST({round(dice.uniform(-1e6, 1e6), dice.randrange(4))!r} AS DOUBLE)"
    if kind in (4, 5, 6):
        return sql_text("".join(dice.choice('abc"\\\n\x01é€😀 /') for _ in range(dice.choice((0, 3, 12, 40, 200)))))
    if kind == 7:
        return (
            dice.choice(("TRUE", "FALSE", "NULL"))
            if dice.random() < 0.5
            else f"CAST('{dice.choice(('true', 'false'))}' AS JSON)"
        )
    parts = [random_value(dice, depth - 1) for _ in range(dice.randrange(8))]
    if kind == 8:
        return f"JSON_ARRAY({', '.join(parts)})"
    keys = [sql_text("".join(dice.choice('kKé"\\ .\x1f') for _ in range(dice.randrange(9)))) for _ in parts]
    return f"JSON_OBJECT({', '.join(f'{key}, {part}' for key, part in zip(keys, parts, strict=True))})"


def compare(server: Server, name: str, expressions: list[str]) -> None:
    """Stores each expression as a document, and checks that its binlog value becomes the text that SELECT shows."""
    with new_binlog(server) as files, server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_row_value_options = ''")
        cursor.execute(f"CREATE TABLE {name}.docs (id INT PRIMARY KEY, doc JSON)")
        for number, expression in enumerate(expressions):
            cursor.execute(f"INSERT INTO {name}.docs VALUES ({number}, {expression})")
    selected = dict(query(server, f"SELECT id, doc FROM {name}.docs"))
    raw = inserted(files, f"{name}.docs")
    assert sorted(raw) == sorted(selected) == list(range(len(expressions)))
    texts = json_text(pa.array([raw[i] for i in range(len(raw))], pa.binary())).to_pylist()
    assert texts == [selected[i] for i in range(len(raw))]


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
def test_edge_documents(mysql9: Server, database: Database, step: int, seed: int) -> None:
    needs(mysql9, "CAST AS DOUBLE")
    expressions = edge_documents()
    assert len(expressions) > 200
    compare(mysql9, database(mysql9), [*expressions[seed % step :: step], "NULL"])


def test_random_documents(mysql9: Server, database: Database, seed: int) -> None:
    needs(mysql9, "CAST AS DOUBLE")
    dice = random.Random(seed)
    compare(
        mysql9, database(mysql9), [f"JSON_ARRAY({random_value(dice, 4)}, {random_value(dice, 4)})" for _ in range(400)]
    )


def test_doubles(mysql9: Server, database: Database, seed: int) -> None:
    """Random bit patterns, whole numbers around the first that have exponents, and short decimals."""
    dice = np.random.default_rng(seed)
    count = 5000
    groups = [
        dice.integers(0, 2**64, count, dtype=np.uint64).view(np.float64),
        dice.random(count) * 10.0 ** dice.integers(-20, 20, count),
        np.round(dice.random(count) * 10.0 ** dice.integers(-3, 17, count), 2),
        np.floor(dice.random(count) * 10.0 ** dice.integers(10, 19, count)),
        2.0 ** dice.integers(-1074, 1023, count),
    ]
    documents = [",".join(repr(float(value)) for value in group[np.isfinite(group)]) for group in groups]
    compare(mysql9, database(mysql9), [f"CAST('[{document}]' AS JSON)" for document in documents])


def test_values_of_columns(mysql9: Server, database: Database) -> None:
    """Types that only columns have become opaque values of their own types."""
    needs(mysql9, "line ends of base64 in JSON")
    name = database(mysql9)
    mysql9.execute(
        f"CREATE TABLE {name}.typed (ts TIMESTAMP(6) NULL, bi BIT(13), bl BLOB, vb VARBINARY(9), bn BINARY(4), en ENUM('x','y'), st SET('a','b'), ge GEOMETRY, ye YEAR, fl FLOAT, bg BIGINT UNSIGNED)",
        f"INSERT INTO {name}.typed VALUES ('2024-01-02 03:04:05.678901', 5, REPEAT('blob', 50), 'vb', 'bn', 'y', 'a,b', ST_GeomFromText('LINESTRING(1 2, 3 4)', 4326), 1999, 1.5, 18446744073709551615)",
        f"INSERT INTO {name}.typed VALUES ('1970-01-01 00:00:01', 0, '', '', '', 'x', '', NULL, 0, -0.0, 0)",
    )
    columns = [
        row[0]
        for row in query(mysql9, f"SELECT column_name FROM information_schema.columns WHERE table_schema = '{name}'")
    ]
    assert len(columns) == 11
    compare(
        mysql9,
        name,
        [f"(SELECT JSON_ARRAYAGG(JSON_OBJECT('v', {column})) FROM {name}.typed)" for column in columns],
    )


def test_filled_in_document(mysql9: Server, database: Database) -> None:
    """A JSON column that is NOT NULL and was filled in by the server has no bytes at all: SELECT shows JSON null."""
    name = database(mysql9)
    with new_binlog(mysql9) as files:
        mysql9.execute(
            f"CREATE TABLE {name}.docs (id INT PRIMARY KEY, doc JSON NOT NULL)",
            f"INSERT IGNORE INTO {name}.docs (id) VALUES (1)",
        )
    assert query(mysql9, f"SELECT id, doc FROM {name}.docs") == [(1, "null")]
    raw = inserted(files, f"{name}.docs")
    assert json_text(pa.array([raw[1]], pa.binary())).to_pylist() == ["null"]


# ---------------------------------------------------------------- partial updates


class Updated:
    """A table of three JSON columns between others, and its updates, decoded from partial ones."""

    def __init__(self, paths: list[Path], table: str) -> None:
        self.rows: list[tuple[str | None, ...]] = []
        self.partial_events = 0
        for path in paths:
            opened = BinlogFile.open(path)
            assert opened.damage is None and opened.has_checksum
            events = row_events(opened, {PARTIAL_UPDATE_ROWS}, table)
            if events:
                self.partial_events += len(events)
                self._read(opened, events, table)

    def _read(self, opened: BinlogFile, events: list[tuple[int, int]], table: str) -> None:
        at, size = row_events(opened, {19}, table)[0]
        columns = parse_table_map(opened.buf[at : at + size].tobytes(), True).columns
        spec = np.zeros((len(columns), k.SPEC_SIZE), dtype=np.int64)
        for i, column in enumerate(columns):
            spec[i, k.SPEC_WIDTH] = 4 if column.type == ColumnType.LONG else 0
            spec[i, k.SPEC_PREFIX] = 4 if column.type == ColumnType.JSON else 1
        is_json = np.array([column.type == ColumnType.JSON for column in columns], dtype=np.int64)
        places = np.array(events, dtype=np.int64)
        kinds, ordinals = np.full(len(places), PARTIAL_UPDATE_ROWS), np.zeros(len(places), dtype=np.int64)
        arrays = EventArrays(opened.buf, places[:, 0].copy(), places[:, 1].copy(), kinds, ordinals, CHECKSUM_SIZE)
        buf, offsets, lengths = expand_partial(arrays, spec, is_json)
        values: list[list[bytes | None]] = [[] for _ in range(int(is_json.sum()))]
        for offset, length in zip(offsets, lengths, strict=True):
            event = buf[offset : offset + length].tobytes()
            assert event[4] == UPDATE_ROWS
            assert int.from_bytes(event[9:13], "little") == length
            assert event[-CHECKSUM_SIZE:] == bytes(CHECKSUM_SIZE)
            pos = 27 + int.from_bytes(event[27:29], "little") + 1 + 2 * ((len(columns) + 7) // 8)
            after = False
            while pos < length - CHECKSUM_SIZE:
                nulls, pos, which = event[pos], pos + 1, 0
                for i in range(len(columns)):
                    width = int(spec[i, k.SPEC_WIDTH])
                    value = None
                    if not nulls >> i & 1:
                        if not width:
                            prefix = int(spec[i, k.SPEC_PREFIX])
                            width = int.from_bytes(event[pos : pos + prefix], "little")
                            pos += prefix
                        value = event[pos : pos + width]
                        pos += width
                    if is_json[i]:
                        if after:
                            values[which].append(value)
                        which += 1
                after = not after
            assert pos == length - CHECKSUM_SIZE and not after
        self.rows += zip(*(json_text(pa.array(value, pa.binary())).to_pylist() for value in values), strict=True)


def run_updates(
    server: Server, name: str, assignments: list[str], rows: int = 1
) -> tuple[Updated, list[tuple[Any, ...]]]:
    """Runs updates with partial logging. Returns the decoded values and SELECT's answer after each."""
    pad = "'" + "p" * 300 + "'"
    selected: list[tuple[Any, ...]] = []
    with new_binlog(server) as files, server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name}.part (id INT PRIMARY KEY, a JSON, x VARCHAR(20), b JSON, c JSON)")
        cursor.execute("SET SESSION binlog_row_value_options = 'PARTIAL_JSON'")
        for number in range(rows):
            cursor.execute(
                f"INSERT INTO {name}.part VALUES ({number}, JSON_OBJECT('a', 1, 'b', JSON_ARRAY(1, 2, JSON_OBJECT('z', 1.5)), 'pad', {pad}, 'd', CAST('1.10' AS DECIMAL(5,2))), 'x', "
                f"JSON_ARRAY({number}, JSON_ARRAY(1, 2), {pad}, CAST('2024-01-02' AS DATE), x'0102'), JSON_OBJECT('k', 1))"
            )
        for assignment in assignments:
            cursor.execute(f"UPDATE {name}.part SET {assignment} ORDER BY id")
            if cursor.rowcount:
                cursor.execute(f"SELECT a, b, c FROM {name}.part ORDER BY id")
                selected += cursor.fetchall()
    return Updated(files, f"{name}.part"), selected


UPDATES = [
    "a = JSON_SET(a, '$.a', 2)",
    "a = JSON_SET(a, '$.a', 3, '$.\"odd key\"', 7, '$.b[1]', 9, '$.b[10]', 11), b = JSON_REMOVE(b, '$[1][0]')",
    "a = JSON_REPLACE(a, '$.b[last]', CAST('[1, {\"q\": null}]' AS JSON)), b = JSON_SET(b, '$[0]', CAST('12:34:56.5' AS TIME(1)), '$[4]', x'ff'), c = JSON_SET(c, '$.k', 2)",
    "a = JSON_SET(a, '$.b[last-1]', 45), x = 'y'",
    "x = 'z'",
    "a = JSON_SET(a, '$.a', CAST('{\"z\": 1}' AS JSON))",
    "a = JSON_SET(a, '$.a[0].z', 4, '$.a.y', TRUE)",
    "a = JSON_SET(a, '$.b[1][1]', 46)",
    "a = JSON_ARRAY_INSERT(a, '$.b[0]', 0)",
    "b = JSON_ARRAY_INSERT(b, '$[1][0]', 'in')",
    "a = JSON_SET(a, '$.\"q\\\\\"t\\\\\\\\n\"', 1, '$.é', 2, '$.\"1a\"', 3, '$.$x', 4, '$.\"\"', 5, '$.\"a.b[0]\"', 6)",
    "a = JSON_REPLACE(a, '$.é', 1e100, '$.\"a.b[0]\"', 'dot', '$.\"\"', -0.5)",
    "a = JSON_REMOVE(a, '$.\"q\\\\\"t\\\\\\\\n\"', '$.b[0]', '$.\"\"')",
    "a = JSON_SET(a, '$.pad', 'short')",
    "a = NULL, b = JSON_SET(b, '$[2]', 'now short')",
    "a = JSON_OBJECT('new', 1), c = NULL",
    "b = JSON_SET(b, '$[3]', REPEAT('long', 200))",
    "b = JSON_REMOVE(b, '$[3]', '$[2]')",
]  # fmt: skip


@pytest.mark.parametrize("rows", [1, 3])
def test_partial_updates(mysql9: Server, database: Database, rows: int) -> None:
    decoded, selected = run_updates(mysql9, database(mysql9), UPDATES, rows)
    assert decoded.partial_events >= len(UPDATES)
    assert decoded.rows == selected


def test_random_partial_updates(mysql9: Server, database: Database, seed: int) -> None:
    needs(mysql9, "CAST AS DOUBLE")
    dice = random.Random(seed)
    paths = [
        "$.a",
        "$.b",
        "$.b[0]",
        "$.b[1]",
        "$.b[2].z",
        "$.b[5]",
        "$.n",
        "$.n.m",
        '$."odd key"',
        "$.b[last]",
        "$.pad",
    ]
    cells = ["$[0]", "$[1]", "$[1][0]", "$[1][last]", "$[3]", "$[7]", "$[last]", "$[1][1].x"]

    def change(column: str, places: list[str]) -> str:
        function = dice.choice(("JSON_SET", "JSON_SET", "JSON_REPLACE", "JSON_REMOVE"))
        chosen = dice.sample(places, dice.randrange(1, 4))
        if function == "JSON_REMOVE":
            return f"{column} = JSON_REMOVE({column}, {', '.join(map(sql_text, chosen))})"
        pairs = ", ".join(f"{sql_text(path)}, {random_value(dice, 2)}" for path in chosen)
        return f"{column} = {function}({column}, {pairs})"

    updates = [
        ", ".join(
            (change("a", paths), change("b", cells), *(["c = JSON_SET(c, '$.k', id)"] if dice.random() < 0.3 else []))
        )
        for _ in range(150)
    ]
    refresh = "a = JSON_OBJECT('a', 1, 'b', JSON_ARRAY(1, 2, JSON_OBJECT('z', 1)), 'pad', REPEAT('p', 200)), b = JSON_ARRAY(1, JSON_ARRAY(1, 2), REPEAT('q', 200), 3)"
    for i in range(0, len(updates), 10):
        updates.insert(i, refresh)
    decoded, selected = run_updates(mysql9, database(mysql9), updates)
    assert decoded.partial_events > 100
    assert decoded.rows == selected


# ---------------------------------------------------------------- wide decimals


@pytest.mark.parametrize(
    ("precision", "scale"), [(39, 0), (39, 30), (40, 10), (50, 9), (65, 0), (65, 1), (65, 30), (30, 30)]
)
def test_wide_decimals(mysql9: Server, database: Database, seed: int, precision: int, scale: int) -> None:
    dice = random.Random(f"{seed}{precision}{scale}")
    most = 10**precision - 1
    numbers = [
        0,
        1,
        -1,
        most,
        -most,
        *(dice.choice((-1, 1)) * (dice.getrandbits(217) % 10 ** dice.randint(1, precision)) for _ in range(50)),
    ]

    def text(number: int) -> str:
        digits = f"{abs(number):0{precision + 1}d}"
        return (
            ("-" if number < 0 else "")
            + digits[: len(digits) - scale]
            + ("." + digits[len(digits) - scale :] if scale else "")
        )

    name = database(mysql9)
    with new_binlog(mysql9) as files:
        mysql9.execute(
            f"CREATE TABLE {name}.wide (id INT PRIMARY KEY, v DECIMAL({precision},{scale}))",
            f"INSERT INTO {name}.wide VALUES " + ", ".join(f"({i}, {text(n)})" for i, n in enumerate(numbers)),
        )
    opened = BinlogFile.open(files[0])
    width = sum(4 * (n // 9) + (0, 1, 1, 2, 2, 3, 3, 4, 4)[n % 9] for n in (precision - scale, scale))
    raw = []
    for pos, length in row_events(opened, {30}, f"{name}.wide"):
        event = opened.buf[pos : pos + length - CHECKSUM_SIZE].tobytes()
        rows = event[27 + int.from_bytes(event[27:29], "little") + 2 :]
        raw += [rows[i + 5 : i + 5 + width] for i in range(0, len(rows), 5 + width)]
    selected = [row[0] for row in query(mysql9, f"SELECT CAST(v AS CHAR) FROM {name}.wide ORDER BY id")]
    assert decimal_text(precision, scale)(pa.array(raw, pa.binary())).to_pylist() == selected
