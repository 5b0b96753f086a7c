"""``cdc verify`` of tables with a primary key of each type, of one row, of some and of many, and of very wide tables:
equal tables are proved, and a planted difference is found under its key."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from cdc.lake import pipeline
from cdc.lake.delta.sql import quote
from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.support.apply import Loop

pytestmark = pytest.mark.timeout(1800)

KEYS = {
    "tinyint": ("TINYINT", "n % 100 - 50"),
    "smallint_unsigned": ("SMALLINT UNSIGNED", "n"),
    "mediumint": ("MEDIUMINT", "n - 20"),
    "int_zerofill": ("INT(8) ZEROFILL", "n"),
    "bigint": ("BIGINT", "n * 90000000000000 - 4500000000000000000"),
    "bigint_unsigned": ("BIGINT UNSIGNED", "18446744073709551615 - n"),
    "decimal_scale": ("DECIMAL(10,5)", "n * 0.37 - 50"),
    "decimal_whole": ("DECIMAL(20,0)", "n * 1000000000000 - 7"),
    "decimal_zerofill": ("DECIMAL(12,2) ZEROFILL", "n / 4"),
    "decimal_wide": ("DECIMAL(50,25)", "n * 0.25 - 3"),
    "float": ("FLOAT", "n / 8 - 2"),
    "double": ("DOUBLE", "n / 3 - 2"),
    "bit": ("BIT(20)", "n"),
    "bit64": ("BIT(64)", "n"),
    "date": ("DATE", "'2020-01-01' + INTERVAL n DAY"),
    "datetime": ("DATETIME(6)", "'1969-12-31 23:59:50.000001' + INTERVAL n SECOND"),
    "timestamp": ("TIMESTAMP(3)", "'2001-02-03 04:05:06.007' + INTERVAL n SECOND"),
    "time": ("TIME(2)", "SEC_TO_TIME(n - 20)"),
    "char": ("CHAR(20) CHARACTER SET utf8mb4", "CONCAT('é', n)"),
    "varchar": ("VARCHAR(20) CHARACTER SET latin1", "CONCAT('a,', n)"),
    "binary": ("BINARY(8)", "CAST(CONCAT(n, 'x') AS BINARY)"),
    "varbinary": ("VARBINARY(20)", "CONCAT('x', n)"),
    "composite": ("INT", "n"),
}
SOME_KEYS = ("bigint_unsigned", "decimal_scale", "decimal_wide", "bit", "float", "time", "year", "composite")
FEW_VALUES = {"smallint_unsigned": 60_000, "time": 80_000, "tinyint": 100, "year": 150, "enum": 3, "set": 8}
MORE_KEYS = {
    "year": ("YEAR", "1901 + n"),
    "enum": ("ENUM('a','b','c')", "n % 3 + 1"),
    "set": ("SET('a','b','c')", "n % 8"),
}
MARIADB_KEYS = {
    "uuid": ("UUID", "CONCAT('00000000-0000-4000-8000-', LPAD(n, 12, '0'))"),
    "inet4": ("INET4", "CONCAT('10.', n DIV 40000, '.', n DIV 200 % 200, '.', n % 200)"),
    "inet6": ("INET6", "CONCAT('fe80::', n DIV 9000, ':', n % 9000)"),
}


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        pytest.param("mysql9", (40,), marks=pytest.mark.long),
        *[pytest.param(kind, (1, 100_000), marks=pytest.mark.long) for kind in ("mysql9", "mariadb11", "mysql56")],
    ],
)
def test_each_type_of_key(kind: str, sizes: tuple[int, ...], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    db = f"keys_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE `{db}`")
    keys = {**KEYS, **MORE_KEYS, **(MARIADB_KEYS if kind == "mariadb11" else {})}
    if sizes == (40,):
        keys = {name: keys[name] for name in SOME_KEYS}
    try:
        loop = Loop(tmp_path, server, db)
        create = ["SET sql_mode = ''", "CREATE TABLE nr (n INT PRIMARY KEY)"]
        fill = ["INSERT INTO nr VALUES " + ", ".join(f"({n})" for n in range(max(sizes)))]
        counts: dict[str, int] = {}
        for name, (definition, value) in keys.items():
            for size in sizes:
                rows = min(size, FEW_VALUES.get(name, size))
                table = f"{name}_{size}"
                second = ", b CHAR(3) NOT NULL DEFAULT 'x'" if name == "composite" else ""
                key = f"PRIMARY KEY (k{second and ', b'})"
                create.append(f"CREATE TABLE {table} (k {definition} NOT NULL{second}, v INT, {key})")
                fill.append(f"INSERT INTO {table} (k, v) SELECT {value}, n FROM nr WHERE n < {rows}")
                counts[table] = rows
        loop.sql(*create, *fill)
        loop.capture()
        loop.apply_all()
        report = pipeline.verify(loop.config, wait_s=20)
        proved = {t.table.partition(".")[2]: (t.state, t.rows, t.unknown) for t in report.tables}
        assert proved.pop("nr")[0] == "proved", [(t.table, t.unknown) for t in report.tables if t.unknown][:3]
        assert proved == {table: ("proved", rows, proved[table][2]) for table, rows in counts.items()}

        spark = session.acquire(loop.config.spark).spark
        for table in counts:
            spark.sql(f"UPDATE delta.{quote(str(loop.path(table)))} SET v = -1 WHERE v = 0")
        report = pipeline.verify(loop.config, wait_s=20)
        planted = {
            t.table.partition(".")[2]: [(d.columns, d.source and d.source["v"], d.delta and d.delta["v"])
                                        for d in t.checksums.differences]
            for t in report.tables
        }  # fmt: skip
        assert planted.pop("nr") == []
        assert planted == {table: [(["v"], "0", "-1")] for table in counts}
    finally:
        server.execute(f"DROP DATABASE `{db}`")


@pytest.mark.parametrize(
    ("kind", "width"),
    [pytest.param(kind, width, marks=pytest.mark.long) for kind, width in (("mysql9", 1000), ("mariadb11", 1000))],
)
def test_a_very_wide_table(kind: str, width: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    db = f"wide_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE `{db}`")
    try:
        loop = Loop(tmp_path, server, db)
        numbers = ", ".join(f"c{at} SMALLINT" for at in range(width))
        values = ", ".join(str(at % 300) for at in range(width))
        loop.sql(
            f"CREATE TABLE small (id INT PRIMARY KEY, {numbers})",
            f"INSERT INTO small VALUES (1, {values}), (2, {values})",
        )
        loop.capture()
        loop.apply_all()
        report = pipeline.verify(loop.config, wait_s=20)
        assert {t.table.partition(".")[2]: (t.state, t.rows) for t in report.tables} == {"small": ("proved", 2)}
        spark = session.acquire(loop.config.spark).spark
        spark.sql(f"UPDATE delta.{quote(str(loop.path('small')))} SET c{width - 1} = -1 WHERE id = 2")
        report = pipeline.verify(loop.config, wait_s=20)
        differences = {
            t.table.partition(".")[2]: [(d.key, d.columns) for d in t.checksums.differences] for t in report.tables
        }
        assert differences == {"small": [({"id": "2"}, [f"c{width - 1}"])]}
    finally:
        server.execute(f"DROP DATABASE `{db}`")
