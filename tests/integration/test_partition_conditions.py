"""The conditions of partitions choose in Spark exactly the rows that the server has in them."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as t

from cdc.binlog.sql.partitions import read_partitions as parsed
from cdc.config import TablesConfig, load
from cdc.lake.apply.schema.columns import DeltaColumn
from cdc.lake.apply.schema.partitions import Unclear, condition_of
from cdc.lake.delta.tables import target_of
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime import session
from cdc.source.schemas import read_partitions, read_schema
from cdc.testing.servers import Server
from tests.support.apply import LOCAL

Database = Callable[[Server], str]
_EDGES = [-(2**31), 2**31 - 1, -1, 0, 1, 9, 10, 11, 20]
_COLUMNS = (
    "id INT NOT NULL, i INT, s SMALLINT, u INT UNSIGNED, big BIGINT, ub BIGINT UNSIGNED, y YEAR, d DATE, dt DATETIME, "
    "dt3 DATETIME(3), ts TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00', n DECIMAL(9,2), c VARCHAR(10), "
    "b VARCHAR(10) COLLATE utf8mb4_bin"
)
_SCHEMES = [
    "RANGE (i) (PARTITION a VALUES LESS THAN (-5), PARTITION b VALUES LESS THAN (10), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (u) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (3000000000), PARTITION c VALUES LESS THAN (5000000000))",
    "RANGE (ub) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (18446744073709551000), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (y) (PARTITION a VALUES LESS THAN (1999), PARTITION b VALUES LESS THAN (2010), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (TO_DAYS(d)) (PARTITION a VALUES LESS THAN (TO_DAYS('2020-02-29')), PARTITION b VALUES LESS THAN (TO_DAYS('2020-03-01')), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (TO_DAYS(dt)) (PARTITION a VALUES LESS THAN (TO_DAYS('2020-02-29')), PARTITION b VALUES LESS THAN (TO_DAYS('2020-03-01')), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (YEAR(d)) (PARTITION a VALUES LESS THAN (2020), PARTITION b VALUES LESS THAN (YEAR('2021-01-01')), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (YEAR(dt3)) (PARTITION a VALUES LESS THAN (2020), PARTITION b VALUES LESS THAN (2021), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (UNIX_TIMESTAMP(ts)) (PARTITION a VALUES LESS THAN (1582934400), PARTITION b VALUES LESS THAN (1583020800), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (TO_SECONDS(dt)) (PARTITION a VALUES LESS THAN (63750067200), PARTITION b VALUES LESS THAN MAXVALUE)",
    "RANGE (MONTH(d) * 100 + DAYOFMONTH(d)) (PARTITION a VALUES LESS THAN (229), PARTITION b VALUES LESS THAN MAXVALUE)",
    "RANGE (DATEDIFF(d, dt)) (PARTITION a VALUES LESS THAN (0), PARTITION b VALUES LESS THAN (1), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (FLOOR(n)) (PARTITION a VALUES LESS THAN (-1), PARTITION b VALUES LESS THAN (3), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (CEILING(n)) (PARTITION a VALUES LESS THAN (-1), PARTITION b VALUES LESS THAN (3), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (i DIV 7 - MOD(i, 3) * 2 + ABS(s)) (PARTITION a VALUES LESS THAN (-100), PARTITION b VALUES LESS THAN (5), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (-i) (PARTITION a VALUES LESS THAN (-5), PARTITION b VALUES LESS THAN (10), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (i % s) (PARTITION a VALUES LESS THAN (-1), PARTITION b VALUES LESS THAN (2), PARTITION c VALUES LESS THAN MAXVALUE)",
    "RANGE (EXTRACT(YEAR_MONTH FROM dt)) (PARTITION a VALUES LESS THAN (202002), PARTITION b VALUES LESS THAN (202003), PARTITION c VALUES LESS THAN MAXVALUE)",
    "LIST (WEEKDAY(d)) (PARTITION a VALUES IN (0, 1, NULL), PARTITION b VALUES IN (2, 3, 4), PARTITION c VALUES IN (5, 6))",
    "LIST (DAYOFWEEK(d)) (PARTITION a VALUES IN (0, 1, NULL), PARTITION b VALUES IN (2, 3, 4), PARTITION c VALUES IN (5, 6, 7))",
    "LIST (QUARTER(dt)) (PARTITION a VALUES IN (NULL, 1), PARTITION b VALUES IN (2), PARTITION c VALUES IN (3, 4))",
    "LIST (HOUR(dt)) (PARTITION a VALUES IN (NULL, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), PARTITION b VALUES IN (12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23))",
    "LIST (MINUTE(dt) % 3 + SECOND(dt) % 2) (PARTITION a VALUES IN (NULL, 0), PARTITION b VALUES IN (1, 2, 3))",
    "LIST (DAYOFYEAR(d) MOD 4) (PARTITION a VALUES IN (NULL, 0), PARTITION b VALUES IN (1, 2), PARTITION c VALUES IN (3))",
    "HASH (i) PARTITIONS 3",
    "HASH (TO_DAYS(d) - i DIV 2) PARTITIONS 4",
    "LINEAR HASH (i) PARTITIONS 5",
    "LINEAR HASH (big) PARTITIONS 3",
    "RANGE COLUMNS (d) (PARTITION a VALUES LESS THAN ('2020-02-29'), PARTITION b VALUES LESS THAN ('2020-3-1'), PARTITION c VALUES LESS THAN (MAXVALUE))",
    "RANGE COLUMNS (dt3) (PARTITION a VALUES LESS THAN ('2020-02-29'), PARTITION b VALUES LESS THAN ('2020-02-29 12:00:00.500'), PARTITION c VALUES LESS THAN (MAXVALUE))",
    "RANGE COLUMNS (i, d) (PARTITION a VALUES LESS THAN (9, '2020-02-29'), PARTITION b VALUES LESS THAN (9, MAXVALUE), PARTITION c VALUES LESS THAN (10, '2020-02-29'), PARTITION d VALUES LESS THAN (MAXVALUE, MAXVALUE))",
    "RANGE COLUMNS (c) (PARTITION a VALUES LESS THAN ('9'), PARTITION b VALUES LESS THAN ('Banana'), PARTITION c VALUES LESS THAN ('mango'), PARTITION d VALUES LESS THAN (MAXVALUE))",
    "RANGE COLUMNS (b, s) (PARTITION a VALUES LESS THAN ('Banana', 5), PARTITION b VALUES LESS THAN ('mango', 5), PARTITION c VALUES LESS THAN (MAXVALUE, MAXVALUE))",
    "RANGE (i) SUBPARTITION BY HASH (s) SUBPARTITIONS 3 (PARTITION a VALUES LESS THAN (5), PARTITION b VALUES LESS THAN MAXVALUE)",
]  # fmt: skip
_DEFAULTS = [
    "LIST (i % 5) (PARTITION a VALUES IN (0, 1), PARTITION b VALUES IN (-2), PARTITION c DEFAULT)",
    "LIST COLUMNS (c) (PARTITION a VALUES IN ('mango', 'kiwi'), PARTITION b VALUES IN ('9'), PARTITION c DEFAULT)",
]
_WORDS = ["Banana", "banana", "mango", "MANGO", "kiwi", "9", "99", "apple", "Zoo", "", "mangos", "0a"]


def _row(rng: random.Random, number: int) -> tuple[Any, ...]:
    day = datetime.date(2020, 2, 29) + datetime.timedelta(rng.choice([-500, -60, -1, 0, 0, 1, 1, 2, 300, 400]))
    moment = datetime.datetime.combine(day, datetime.time(rng.choice([0, 0, 11, 12, 23]), rng.choice([0, 59]), 58))

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    return (
        number, maybe(rng.choice([*_EDGES, rng.randint(-30, 30)])), maybe(rng.randint(-9, 9)),
        maybe(rng.choice([0, 9, 10, 2999999999, 3000000000, 2**32 - 1])), maybe(rng.randint(-(2**62), 2**62)),
        maybe(rng.choice([0, 9, 10, 2**63, 18446744073709550999, 2**64 - 1])), maybe(rng.choice([1999, 2009, 2010, 2155])),
        maybe(day), maybe(moment), maybe(moment.replace(microsecond=rng.choice([0, 499000, 500000]))),
        moment, maybe(Decimal(rng.randint(-500, 500)) / 100), maybe(rng.choice(_WORDS)), maybe(rng.choice(_WORDS)),
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    ["mysql9", "mariadb11", pytest.param("mariadb10", marks=pytest.mark.long), pytest.param("mysql56", marks=pytest.mark.long)],
)  # fmt: skip
def test_spark_chooses_the_rows_of_each_partition(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, database: Database, seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    db, rng = database(server), random.Random(seed)
    file = tmp_path / "p.yaml"
    file.write_text(
        "source: {url: 'mysql://u@h', server_id: 5, start: now}\ntables: {include: ['.*']}\nstore: {path: s}\nmeta: {path: m}\n"
        f"apply: {{target: lake, zero_dates: fail}}\nspark: {LOCAL}\n",
        encoding="utf-8",
    )
    config = load(file)
    spark = session.acquire(config.spark).spark
    rows = [_row(rng, number) for number in range(300)]
    tables_config = TablesConfig(include=(".*",))
    wrong, checked = [], 0
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
        cursor.execute(f"USE `{db}`")
        frame = None
        for number, scheme in enumerate([*_SCHEMES, *(_DEFAULTS if kind.startswith("mariadb") else [])]):
            table = f"t{number}"
            cursor.execute(f"CREATE TABLE {table} ({_COLUMNS}) DEFAULT CHARSET = utf8mb4 PARTITION BY {scheme}")
            cursor.executemany(f"INSERT IGNORE INTO {table} VALUES ({', '.join(['%s'] * 14)})", rows)
            connection.commit()
            schema = read_schema(connection, tables_config, db, table)
            clause = read_partitions(connection, tables_config, [f"{db}.{table}"]).get(f"{db}.{table}")
            assert schema is not None and clause is not None, scheme
            partitions = parsed(clause)
            assert partitions is not None
            target = target_of(config, f"{db}.{table}")
            fields = columns_of_schema(schema, target.policies).fields
            if frame is None:
                frame = spark.createDataFrame([_plain(row, fields) for row in rows], t.StructType(fields)).cache()
            columns = [DeltaColumn(field.name, field.name, field.dataType) for field in fields]
            names = [partition.name for partition in partitions.partitions]
            if partitions.sub_method and kind == "mysql9":
                names += [sub for partition in partitions.partitions for sub in partition.names_of_subpartitions(3)]
            cursor.execute(f"SELECT id FROM {table}")
            inside = {row[0] for row in cursor.fetchall()}  # a value that has no partition was left out
            for name in names:
                cursor.execute(f"SELECT id FROM {table} PARTITION ({name})")
                held = {row[0] for row in cursor.fetchall()}
                condition = condition_of(partitions.reduced([name]), [name], target, schema, columns)
                assert not frame.where(" OR ".join(condition.doubts) or "false").head(1), condition.doubts
                ids = {row["id"] for row in frame.where(condition.where).select("id").collect()} & inside
                checked += len(held)
                if ids != held:
                    wrong.append((scheme, name, condition.where, sorted(ids - held)[:3], sorted(held - ids)[:3]))
    assert not wrong, wrong
    assert checked > 5000


def _plain(row: tuple[Any, ...], fields: list[t.StructField]) -> tuple[Any, ...]:
    """Returns a row as Spark takes it: TIMESTAMP is in UTC, and a DECIMAL(20) is no int."""
    values = []
    for value, field in zip(row, fields, strict=True):
        if isinstance(field.dataType, t.TimestampType):
            value = value.replace(tzinfo=datetime.UTC)
        elif isinstance(field.dataType, t.DecimalType) and value is not None:
            value = Decimal(value)
        values.append(value)
    return tuple(values)


def test_what_is_not_certain_says_why(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "source: {url: 'mysql://u@h', server_id: 5, start: now}\ntables: {include: ['.*'], overrides: {s.t: {columns: {m: {mask: 1}}}}}\n"
        "store: {path: s}\nmeta: {path: m}\napply: {target: lake}\n",
        encoding="utf-8",
    )
    target = target_of(load(file), "s.t")
    from cdc.binlog.sql.changes import CreateTable
    from cdc.binlog.sql.statements import classify

    def reason(columns: str, scheme: str, name: str = "a") -> str:
        create = next(
            change
            for change in classify(f"CREATE TABLE t ({columns}) CHARSET utf8mb4 PARTITION BY {scheme}", "s").changes
            if isinstance(change, CreateTable)
        )
        assert create.schema is not None and create.partitions is not None
        fields = columns_of_schema(create.schema, target.policies).fields
        delta_columns = [DeltaColumn(field.name, field.name, field.dataType) for field in fields]
        with pytest.raises(Unclear) as error:
            condition_of(create.partitions, [name], target, create.schema, delta_columns)
        return str(error.value)

    of_text = "RANGE COLUMNS (c) (PARTITION a VALUES LESS THAN ('{}'))"
    assert "YEARWEEK is not computed" in reason(
        "m CHAR, d DATE", "RANGE (YEARWEEK(d)) (PARTITION a VALUES LESS THAN (5))"
    )
    assert "is not in Delta as it is" in reason("m VARCHAR(9)", "LIST COLUMNS (m) (PARTITION a VALUES IN ('x'))")
    assert "collation utf8mb4_danish_ci" in reason(
        "m CHAR, c VARCHAR(9) COLLATE utf8mb4_danish_ci", of_text.format("x")
    )
    assert "compares 'ä'" in reason("m CHAR, c VARCHAR(9) COLLATE utf8mb4_bin", of_text.format("ä"))
    assert "no partition zz" in reason("m CHAR, i INT", "HASH (i) PARTITIONS 2", "zz")
    assert "function of KEY" in reason(
        "m CHAR, i INT", "RANGE (i) SUBPARTITION BY KEY (i) SUBPARTITIONS 2 (PARTITION a VALUES LESS THAN (5))", "asp1"
    )
    assert "computes with" in reason("m CHAR, i BIGINT UNSIGNED", "HASH (i) PARTITIONS 2", "p0")
