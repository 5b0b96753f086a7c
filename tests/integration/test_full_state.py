"""A table that is brought to a full state, and truncated, in each mode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cdc.binlog.sql.statements import Statement
from cdc.config import ApplyConfig, SparkConfig
from cdc.lake.apply.commit import Commit, MergeStats
from cdc.lake.apply.full_state import insert_snapshot, merge_full_state
from cdc.lake.apply.merge import RowKeys
from cdc.lake.apply.schema.content import truncate_statement
from cdc.lake.apply.schema.statements import DdlStatement
from cdc.lake.delta.tables import Target, delta_schema
from cdc.lake.rows.columns import TablePolicies
from cdc.lake.runtime import session
from cdc.lake.runtime.commit_metadata import setting_value
from tests.support.apply import LOCAL_CONF

COLUMNS = "`a key` INT, v DOUBLE, w STRING"
KEYS = RowKeys(("a key",), is_primary=True)
T = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(10)]
Row = tuple[int, float | None, str | None]


class Table:
    """An empty Delta table of one mode, outside any destination."""

    def __init__(self, made: session.TableSession, folder: Path, mode: str) -> None:
        apply = ApplyConfig.model_validate({"target": str(folder), "mode": mode})
        self.session, self.spark, self.seq = made, made.spark, 0
        self.target = Target("shop.t", str(folder / "t"), apply, "shop", TablePolicies("shop.t", mode))
        schema = delta_schema(list(self.spark.createDataFrame([], COLUMNS).schema.fields), mode)
        empty = self.spark.createDataFrame([], schema)
        empty.write.format("delta").option("delta.columnMapping.mode", "name").save(self.target.path)

    def commit(self, seq: int) -> Commit:
        state = self.target.state()
        assert state is not None
        metadata = {"destination": "shop", "table": "shop.t", "last_seq": seq, "generation": 0}
        return Commit(self.session, self.target, state, seq, setting_value(json.dumps(metadata)), lambda: None)

    def load(self, seq: int, rows: list[Row], time: datetime) -> MergeStats:
        return merge_full_state(self.commit(seq), self.spark.createDataFrame(rows, COLUMNS), KEYS, time)

    def truncate(self, seq: int, time: datetime) -> MergeStats:
        commit, no_change = self.commit(seq), Statement("ddl", "TRUNCATE")
        statement = DdlStatement(seq, "TRUNCATE t", 0, no_change, time, "it's:1")
        return commit.execute(truncate_statement(self.target, statement, commit.state.applied_seq))

    def rows(self, columns: str) -> list[tuple[Any, ...]]:
        rows = self.spark.sql(f"SELECT {columns} FROM {self.target.sql}").collect()
        return sorted((tuple(row) for row in rows), key=repr)

    def position(self) -> int:
        state = self.target.state()
        assert state is not None
        return state.applied_seq


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Callable[[str], Table]]:
    warm = session.acquire(SparkConfig(master="local[2]", conf=LOCAL_CONF))
    with warm.tables.one() as made:
        yield lambda mode: Table(made, tmp_path, mode)


def t(moment: int | None) -> datetime | None:
    return None if moment is None else T[moment].replace(tzinfo=None)


@pytest.mark.long
def test_soft_delete(table: Callable[[str], Table]) -> None:
    soft = table("soft_delete")
    columns = "`a key`, v, w, _deleted, _seq"
    soft.load(10, [(1, 0.0, "a"), (2, 1.0, None), (3, float("nan"), "c")], T[0])
    assert soft.rows(columns) == [(1, 0.0, "a", False, 10), (2, 1.0, None, False, 10), (3, pytest.approx(float("nan"), nan_ok=True), "c", False, 10)]  # fmt: skip
    # 0.0 and -0.0 are different values; NaN and null are equal to themselves.
    soft.load(20, [(1, -0.0, "a"), (3, float("nan"), "c"), (4, None, None)], T[1])
    row_by_id = {row[0]: row for row in soft.rows(columns)}
    assert str(row_by_id[1][1]) == "-0.0" and row_by_id[1][3:] == (False, 20)
    assert row_by_id[2] == (2, 1.0, None, True, 20)
    assert row_by_id[3][3:] == (False, 10)
    assert row_by_id[4] == (4, None, None, False, 20)
    assert not soft.load(20, [], T[1]).ran, "the position was there already"
    soft.load(30, [(1, -0.0, "a"), (2, 1.0, None), (3, float("nan"), "c"), (4, None, None)], T[2])
    assert [row[3:] for row in soft.rows(columns)] == [(False, 20), (False, 30), (False, 10), (False, 20)]
    soft.load(40, [(1, -0.0, "a"), (2, 1.0, None), (3, float("nan"), "c"), (4, None, None)], T[3])
    assert soft.position() == 40, "equal states move the position"
    soft.truncate(50, T[4])
    assert {row[3:] for row in soft.rows(columns)} == {(True, 50)}
    soft.truncate(60, T[5])
    assert {row[3:] for row in soft.rows(columns)} == {(True, 50)}
    assert soft.position() == 60


@pytest.mark.long
def test_scd2(table: Callable[[str], Table]) -> None:
    versioned = table("scd2")
    columns = "`a key`, w, _valid_from, _valid_to, _current, _seq"
    versioned.load(10, [(1, None, "a"), (2, None, "b"), (3, None, "c")], T[1])
    versioned.load(20, [(1, None, "a"), (2, None, "B")], T[2])
    expected = [
        (1, "a", t(1), None, True, 10),
        (2, "B", t(2), None, True, 20),
        (2, "b", t(1), t(2), False, 10),
        (3, "c", t(1), t(2), False, 10),
    ]
    assert versioned.rows(columns) == sorted(expected, key=repr)
    # The clock goes backwards: the intervals join all the same.
    versioned.load(30, [(1, None, "A"), (2, None, "B"), (3, None, "c")], T[0])
    expected[0] = (1, "a", t(1), t(1), False, 10)
    expected += [(1, "A", t(1), None, True, 30), (3, "c", t(2), None, True, 30)]
    assert versioned.rows(columns) == sorted(expected, key=repr)
    versioned.truncate(40, T[3])
    closed = [(*row[:3], row[3] or t(3), False, row[5]) for row in expected]
    assert versioned.rows(columns) == sorted(closed, key=repr)
    versioned.truncate(50, T[4])
    assert versioned.rows(columns) == sorted(closed, key=repr)
    assert versioned.position() == 50


@pytest.mark.long
def test_append(table: Callable[[str], Table]) -> None:
    log = table("append")
    rows = log.spark.createDataFrame([(i, 0.5, "x") for i in range(100)], COLUMNS).repartition(3)
    assert insert_snapshot(log.commit(10), rows, T[1], "g:1").inserted == 100
    assert not insert_snapshot(log.commit(10), rows, T[1], "g:1").ran
    stored = log.rows("`a key`, v, w, _op, _seq, _row, _commit_time, _gtid, _before")
    assert [row[0] for row in stored] != []
    assert {(*row[1:5], *row[6:]) for row in stored} == {(0.5, "x", "snapshot", 10, t(1), "g:1", None)}
    assert len({row[5] for row in stored}) == 100
    log.truncate(20, T[2])
    log.truncate(20, T[2])
    stored = log.rows("`a key`, v, w, _op, _seq, _row, _commit_time, _gtid, _before")
    assert [row for row in stored if row[3] != "snapshot"] == [
        (None, None, None, "truncate", 20, 0, t(2), "it's:1", None)
    ]


def test_upsert(table: Callable[[str], Table]) -> None:
    mirror = table("upsert")
    mirror.spark.createDataFrame([(1, 0.5, "x"), (2, None, None)], COLUMNS).write.format("delta").mode("append").save(
        mirror.target.path
    )
    assert mirror.truncate(20, T[2]).ran
    assert mirror.truncate(30, T[2]).ran
    assert (mirror.rows("*"), mirror.position()) == ([], 30)
