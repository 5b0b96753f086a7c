"""Reducing and pruning, on hand-made DataFrames."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc.config import SparkConfig
from cdc.decode.layout import DELETE, INSERT, UPDATE
from cdc.lake.apply.rows import latest, with_moved_rows
from cdc.lake.apply.statements import key_ranges
from cdc.lake.runtime import session
from tests.support.apply import COMPILED_CONF

OWN = "_op TINYINT, _seq BIGINT, _row BIGINT, _commit_time TIMESTAMP, _gtid STRING"


@pytest.fixture
def spark() -> SparkSession:
    return session.acquire(SparkConfig(master="local[2]", conf=COMPILED_CONF)).spark


def frame(spark: SparkSession, rows: list[tuple[Any, ...]], columns: str) -> DataFrame:
    """Returns rows of (op, seq, row, source columns…)."""
    return spark.createDataFrame([(o, s, r, None, None, *own) for o, s, r, *own in rows], f"{OWN}, {columns}")


def test_the_last_change_of_each_key_wins(spark: SparkSession) -> None:
    changes = frame(
        spark,
        [
            (INSERT, 1, 0, 1, "a"),
            (UPDATE, 1, 1, 1, "b"),
            (UPDATE, 2, 0, 1, "c"),
            (DELETE, 3, 0, 2, "x"),
            (INSERT, 2, 9, 2, "x"),
            # Two rows trade their keys in one statement.
            (DELETE, 4, 0, 3, "three"),
            (UPDATE, 4, 0, 4, "three"),
            (DELETE, 4, 1, 4, "four"),
            (UPDATE, 4, 1, 3, "four"),
            # A key whose bytes changed, but which is the same here.
            (UPDATE, 5, 0, 5, "new"),
            (DELETE, 5, 0, 5, "old"),
        ],
        "id INT, v STRING",
    )
    reduced = {row["id"]: (row["_op"], row["v"]) for row in latest(changes, ["id"]).collect()}
    assert reduced == {1: (UPDATE, "c"), 2: (DELETE, "x"), 3: (UPDATE, "four"), 4: (DELETE, "four"), 5: (UPDATE, "new")}


def test_a_changed_key_that_is_not_primary_removes_the_old_row(spark: SparkSession) -> None:
    changes = frame(
        spark,
        [
            (INSERT, 1, 0, "k", 1, None),
            (UPDATE, 2, 0, "l", 1, ("k", 1)),
            (UPDATE, 3, 0, "l", 2, ("l", 1)),
            (UPDATE, 4, 0, None, 3, ("m", 3)),
            (DELETE, 5, 0, "z", 9, ("z", 9)),
        ],
        "`a key` STRING, v INT, _before STRUCT<`a key`: STRING, v: INT>",
    )
    rows = latest(with_moved_rows(changes, ["a key"]), ["a key"])
    assert "_before" not in rows.columns
    reduced = {row["a key"]: (row["_op"], row["v"]) for row in rows.collect()}
    assert reduced == {"k": (DELETE, 1), "l": (UPDATE, 2), None: (UPDATE, 3), "m": (DELETE, 3), "z": (DELETE, 9)}


def test_key_ranges_are_literals_of_the_keys_types(spark: SparkSession) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 600000, tzinfo=UTC)
    rows = spark.createDataFrame(
        [
            (5, "b'", date(2026, 1, 2), at, Decimal("1.50"), b"x", 1),
            (-7, "a", date(1999, 1, 1), at, Decimal("-2.25"), b"y", None),
        ],
        "i BIGINT, s STRING, d DATE, t TIMESTAMP, n DECIMAL(5,2), raw BINARY, gap INT",
    )
    ranges = key_ranges(rows, ["i", "s", "d", "t", "n", "raw", "gap"])
    assert ranges == [
        "t.`i` >= -7L AND t.`i` <= 5L",
        "t.`s` >= CAST(X'61' AS STRING) AND t.`s` <= CAST(X'6227' AS STRING)",
        "t.`d` >= DATE'1999-01-01' AND t.`d` <= DATE'2026-01-02'",
        "t.`t` >= timestamp_micros(1767323045600000L) AND t.`t` <= timestamp_micros(1767323045600000L)",
        "t.`n` >= CAST('-2.25' AS decimal(5,2)) AND t.`n` <= CAST('1.50' AS decimal(5,2))",
    ]
    rows.createOrReplaceTempView("t_rows")
    assert spark.sql(f"SELECT count(*) AS n FROM t_rows t WHERE {' AND '.join(ranges)}").collect()[0]["n"] == 2
    assert key_ranges(rows.where("false"), ["i"]) is None
