"""Every supported type with its edge values: what is decoded from the binlog is what SELECT shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc.decode import DecodeStats, read
from cdc.errors import SourceRefusedError, UnsupportedTypeError
from cdc.testing.servers import Server

SERVERS = ("mysql9", "mariadb10", "mariadb11")
INVALID_DATES = "SET sql_mode = 'ALLOW_INVALID_DATES'"


@dataclass(frozen=True)
class Case:
    """A column type, literals to store in it, and the Arrow type it becomes."""

    sql: str
    literals: tuple[str, ...]
    arrow: pa.DataType
    select: str = "v"


def _integers() -> list[Case]:
    cases = []
    for name, bits, plain, unsigned in (
        ("TINYINT", 8, pa.int8(), pa.int16()),
        ("SMALLINT", 16, pa.int16(), pa.int32()),
        ("MEDIUMINT", 24, pa.int32(), pa.int32()),
        ("INT", 32, pa.int32(), pa.int64()),
        ("BIGINT", 64, pa.int64(), pa.decimal128(20, 0)),
    ):
        half = 1 << (bits - 1)
        cases.append(Case(name, tuple(map(str, (-half, -half + 1, -1, 0, 1, 127, half - 1))), plain))
        cases.append(
            Case(f"{name} UNSIGNED", tuple(map(str, (0, 1, 127, 128, half - 1, half, 2 * half - 1))), unsigned)
        )
    return cases


def _decimals() -> list[Case]:
    cases = []
    for precision, scale in (
        (1, 0),
        (1, 1),
        (5, 5),
        (9, 0),
        (10, 2),
        (12, 2),
        (18, 9),
        (19, 1),
        (20, 10),
        (28, 28),
        (38, 0),
        (38, 10),
        (38, 30),
    ):
        digits = "9" * precision
        most = f"{digits[: precision - scale] or '0'}.{digits[precision - scale :] or '0'}"
        mixed = "1234567890123456789012345678901234567890"
        some = f"{mixed[: precision - scale] or '0'}.{mixed[:scale] or '0'}"
        smallest = f"{'1' if scale == 0 else '0'}.{('0' * (scale - 1) + '1') if scale else '0'}"
        values = ("0", most, f"-{most}", some, f"-{some}", smallest, f"-{smallest}")
        cases.append(Case(f"DECIMAL({precision},{scale})", values, pa.decimal128(precision, scale)))
    return cases


def _times() -> list[Case]:
    cases = [
        Case(
            "DATE",
            ("'0001-01-01'", "'1000-01-01'", "'1969-12-31'", "'1970-01-01'", "'2000-02-29'", "'1900-02-28'", "'9999-12-31'",
             "'0000-00-00'", "'2024-00-10'", "'2024-05-00'", "'2023-02-31'", "'1900-02-29'", "'0000-01-01'"),
            pa.date32(),
        )
    ]  # fmt: skip
    for digits in range(7):
        fraction = f".{'987654'[:digits]}" if digits else ""
        nines = f".{'999999'[:digits]}" if digits else ""
        cases.append(
            Case(
                f"DATETIME({digits})",
                (f"'1000-01-01 00:00:00{fraction}'", f"'9999-12-31 23:59:59{nines}'", f"'1969-12-31 23:59:59{fraction}'",
                 "'2024-02-29 12:00:00'", "'0000-00-00 00:00:00'", f"'2024-02-31 10:11:12{fraction}'", "'2024-00-01 00:00:00'"),
                pa.timestamp("us"),
            )
        )  # fmt: skip
        cases.append(
            Case(
                f"TIMESTAMP({digits}) NULL",
                (f"'1970-01-01 00:00:01{fraction}'", f"'2038-01-19 03:14:07{nines}'", f"'2024-02-29 12:34:56{fraction}'",
                 "'0000-00-00 00:00:00'"),
                pa.timestamp("us", tz="UTC"),
            )
        )  # fmt: skip
    return cases


def _texts() -> list[Case]:
    wide = ("''", "'a'", "'Straße €'", "'日本語'", "' leading'", "'quote '' \\\\ \"'", "REPEAT('é', 100)")
    cases = []
    for charset, more in (("utf8mb4", ("'😀'",)), ("utf8mb3", ())):
        for sql in (
            "CHAR(110)",
            "CHAR(10)",
            "VARCHAR(110)",
            "VARCHAR(1000)",
            "TEXT",
            "MEDIUMTEXT",
            "LONGTEXT",
            "TINYTEXT",
        ):
            short = sql == "CHAR(10)"
            values = tuple(v for v in wide if not (short and "REPEAT" in v)) + more
            if sql in ("TEXT", "LONGTEXT", "VARCHAR(1000)"):
                values += ("REPEAT('x', 999)",)
            cases.append(Case(f"{sql} CHARACTER SET {charset}", values, pa.string()))
    ascii_values = ("''", "'plain'", "'~ tilde'", "REPEAT('x', 255)")
    cases.append(Case("VARCHAR(255) CHARACTER SET ascii", ascii_values, pa.string()))
    every_byte = "".join(f"{byte:02x}" for byte in range(256))
    for sql in ("VARCHAR(300)", "TEXT", "CHAR(255)"):
        values = ("''", "'Grüße €'", f"_latin1 0x{every_byte[2:]}", "_latin1 0x818d8f909d", "'abc'")
        cases.append(Case(f"{sql} CHARACTER SET latin1", values, pa.string()))
    return cases


def _bytes() -> list[Case]:
    values = ("''", "0x00", "0x0000000000", "0x61620000", "0x00ff00", "0xfffefd")
    cases = [Case("BINARY(5)", values, pa.binary()), Case("BINARY(255)", values, pa.binary())]
    names = ("VARBINARY(20)", "VARBINARY(400)", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")
    return cases + [Case(sql, (*values, "REPEAT(0xff, 20)"), pa.binary()) for sql in names]


def _enums() -> list[Case]:
    many = ",".join(f"'m{n}'" for n in range(300))
    return [
        Case(
            "ENUM('a','b','Ünï 😀') CHARACTER SET utf8mb4", ("'a'", "'b'", "'Ünï 😀'", "'nothing like it'"), pa.string()
        ),
        Case("ENUM('é','€','z') CHARACTER SET latin1", ("'é'", "'€'", "'z'", "0"), pa.string()),
        Case(f"ENUM({many})", ("'m0'", "'m255'", "'m254'", "'m299'"), pa.string()),
    ]


CASES = [
    *_integers(),
    *_decimals(),
    Case("FLOAT", ("0", "-1.5", "3.4028234e38", "1.17549435e-38", "0.1", "1e-45"), pa.float32(), "v * 1e0"),
    Case("DOUBLE", ("0", "-1.5", "1.7976931348623157e308", "2.2250738585072014e-308", "0.1", "5e-324"), pa.float64()),
    Case("FLOAT UNSIGNED", ("0", "1.5"), pa.float32(), "v * 1e0"),
    *_times(),
    *_texts(),
    *_bytes(),
    *_enums(),
]


def binlog_file(server: Server) -> Path:
    """Start a new binlog file, and return it."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        return server.data / str(cursor.fetchall()[-1][0])


def finished(server: Server, path: Path) -> Path:
    """Have the server close a binlog file."""
    server.execute("FLUSH BINARY LOGS")
    return path


def expected(value: Any, arrow: pa.DataType) -> Any:
    """What SELECT gave, in the form that Arrow gives."""
    if value is None:
        return None
    if pa.types.is_temporal(arrow):
        if not isinstance(value, date):
            return None  # the driver leaves dates that are none as text
        return (
            value.replace(tzinfo=UTC)
            if arrow == pa.timestamp("us", tz="UTC") and isinstance(value, datetime)
            else value
        )
    if pa.types.is_decimal(arrow):
        return Decimal(value)
    if arrow == pa.float32():
        return float(np.float32(value))
    return value


def decoded(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("kind", SERVERS)
def test_every_type_equals_select(kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    wrong: list[str] = []
    compared = 0
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET NAMES utf8mb4, time_zone = '+00:00'")
        cursor.execute(INVALID_DATES)
        cursor.execute(f"USE `{db}`")
        path = binlog_file(server)
        steps: list[tuple[Case, str, list[tuple[Any, ...]], list[tuple[Any, ...]]]] = []
        for number, case in enumerate(CASES):
            cursor.execute(f"CREATE TABLE t{number} (id INT PRIMARY KEY, v {case.sql}, w TINYINT)")
            for n, literal in enumerate([*case.literals, "NULL"]):
                cursor.execute(f"INSERT IGNORE INTO t{number} VALUES ({n}, {literal}, {n})")
            cursor.execute(f"SELECT id, {case.select} FROM t{number} ORDER BY id")
            before = list(cursor.fetchall())
            count = len(before)
            cursor.execute(f"UPDATE IGNORE t{number} SET v = {case.literals[0]}, w = -1 WHERE id > 0")
            cursor.execute(f"SELECT id, {case.select} FROM t{number} ORDER BY id")
            after = list(cursor.fetchall())
            cursor.execute(f"DELETE FROM t{number}")
            assert count == len(case.literals) + 1
            steps.append((case, f"{db}.t{number}", before, after))
    path = finished(server, path)
    for case, table, before, after in steps:
        batches = list(read(path, table=table, images="both"))
        assert batches[0].schema.field("v").type == case.arrow, case.sql
        rows = decoded(batches)
        want = [(1, n, expected(v, case.arrow), None) for n, v in before]
        want += [
            (2, n, expected(v, case.arrow), expected(old, case.arrow))
            for (n, v), (_, old) in zip(after[1:], before[1:], strict=True)
        ]
        want += [(0, n, expected(v, case.arrow), expected(v, case.arrow)) for n, v in after]
        got = [(r["_op"], r["id"], r["v"], r["_before"] and r["_before"]["v"]) for r in rows]
        compared += len(want)
        if got != want:
            wrong += [f"{case.sql}: SELECT {w!r}, decoded {g!r}" for w, g in zip(want, got, strict=False) if w != g]
            wrong += [f"{case.sql}: {len(want)} rows, decoded {len(got)}"] if len(want) != len(got) else []
    assert not wrong, "\n".join(wrong[:40])
    assert compared > 1000


@pytest.mark.parametrize("kind", SERVERS)
def test_zero_dates_are_counted(kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    path = binlog_file(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(INVALID_DATES)
        cursor.execute(f"CREATE TABLE `{db}`.t (id INT PRIMARY KEY, d DATE NOT NULL, e DATETIME NOT NULL)")
        cursor.execute(f"INSERT INTO `{db}`.t VALUES (1, '0000-00-00', '2024-01-01'), (2, '2023-02-31', '0000-00-00')")
    path = finished(server, path)
    stats = DecodeStats()
    rows = decoded(list(read(path, table=f"{db}.t", stats=stats)))
    assert [r["d"] for r in rows] == [None, None]
    assert stats.null_dates == {"d": 2, "e": 1}
    assert (stats.rows, stats.events) == (2, 1)


@pytest.mark.parametrize("kind", SERVERS)
def test_changed_keys_and_meta_columns(
    kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE `{db}`.t (a INT, b VARCHAR(20), c INT, PRIMARY KEY (b, a))")
        cursor.execute(f"CREATE TABLE `{db}`.other (id INT PRIMARY KEY)")
        path = binlog_file(server)
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO `{db}`.other VALUES (1)")
        cursor.execute(f"INSERT INTO `{db}`.t VALUES (1, 'x', 10), (2, 'y', 20)")
        cursor.execute(f"UPDATE `{db}`.t SET c = c + 1 ORDER BY a")
        cursor.execute("COMMIT")
        cursor.execute(f"UPDATE `{db}`.t SET b = 'z' WHERE a = 2")
    path = finished(server, path)
    rows = decoded(list(read(path, table=f"{db}.t")))
    changes = [(r["_op"], r["_row"] >> 32, r["_row"] & 0xFFFFFFFF, r["a"], r["b"], r["c"]) for r in rows]
    assert changes == [
        (1, 0, 0, 1, "x", 10),
        (1, 0, 1, 2, "y", 20),
        (2, 1, 0, 1, "x", 11),
        (2, 1, 1, 2, "y", 21),
        (0, 0, 0, 2, "y", 21),
        (2, 0, 0, 2, "z", 21),
    ]
    assert len({r["_seq"] for r in rows}) == 2
    assert [r["_seq"] for r in rows] == sorted(r["_seq"] for r in rows)
    assert rows[4]["_gtid"] != rows[0]["_gtid"]
    assert abs((rows[0]["_commit_time"] - datetime.now(UTC)).total_seconds()) < 60
    both = decoded(list(read(path, table=f"{db}.t", images="both")))
    assert [(r["_op"], r["a"], r["_before"] and r["_before"]["b"]) for r in both[-1:]] == [(2, 2, "y")]
    assert len(both) == 5


@pytest.mark.parametrize("kind", SERVERS)
def test_types_that_are_not_there_yet_are_named(
    kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    types = {
        "BIT(9)": "BIT(9)",
        "YEAR": "YEAR",
        "TIME(2)": "TIME",
        "SET('a','b')": "SET",
        "DECIMAL(65,30)": "DECIMAL(65,30)",
        "VARCHAR(20) CHARACTER SET sjis": "VARCHAR in sjis",
        "TEXT CHARACTER SET ucs2": "TEXT in ucs2",
        "ENUM('a') CHARACTER SET utf16": "ENUM in utf16",
        "POINT": "GEOMETRY",
    }
    with server.connect() as connection, connection.cursor() as cursor:
        path = binlog_file(server)
        for number, sql in enumerate(types):
            cursor.execute(
                f"CREATE TABLE `{db}`.t{number} (id INT PRIMARY KEY, odd {sql}, name VARCHAR(9), w INT UNSIGNED)"
            )
            cursor.execute(f"INSERT INTO `{db}`.t{number} (id, name, w) VALUES (7, 'still', 4294967295)")
    path = finished(server, path)
    for number, named in enumerate(types.values()):
        with pytest.raises(UnsupportedTypeError) as raised:
            list(read(path, table=f"{db}.t{number}"))
        message = str(raised.value)
        assert f"{db}.t{number}" in message
        assert "column odd" in message
        assert named in message
        rows = decoded(list(read(path, table=f"{db}.t{number}", columns=["id", "name", "w"])))
        assert [(r["id"], r["name"], r["w"]) for r in rows] == [(7, "still", 4294967295)]


@pytest.mark.parametrize("kind", SERVERS)
def test_part_images_are_refused(kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE `{db}`.t (id INT PRIMARY KEY, v INT)")
        cursor.execute(f"INSERT INTO `{db}`.t VALUES (1, 1)")
        path = binlog_file(server)
        cursor.execute("SET binlog_row_image = 'MINIMAL'")
        cursor.execute(f"UPDATE `{db}`.t SET v = 2")
    path = finished(server, path)
    with pytest.raises(SourceRefusedError, match="binlog_row_image=FULL") as raised:
        list(read(path, table=f"{db}.t"))
    assert f"{db}.t" in str(raised.value)
