"""Ranges of keys, and the choice of a split's rows."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from cdc.base.errors import PermanentError
from cdc.decode.last_changes import ChangeKeys, keys_of
from cdc.lake.apply.statements import range_conditions
from cdc.lake.rows.key_plan import clusters
from cdc.lake.rows.row_choice import ChosenRows, RowChoice


@pytest.mark.parametrize("case", range(30))
def test_ranges_hold_every_value_and_no_wide_gap(case: int, seed: int) -> None:
    rng = random.Random(f"{seed} {case}")
    size = rng.choice((10, 1000, 1 << 40))
    values = np.unique([rng.randrange(-size, size) for _ in range(rng.randrange(1, 60))]).astype(np.int64)
    most = rng.randrange(1, 6)
    ranges = clusters(values, most)
    assert 1 <= len(ranges) <= most
    assert all(low <= high for low, high in ranges)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(ranges))
    assert all(any(low <= value <= high for low, high in ranges) for value in values.tolist())
    inner_gap = max((int(b - a) for low, high in ranges for a, b in _neighbours(values, low, high)), default=0)
    cut = min((after[0] - before[1] for before, after in itertools.pairwise(ranges)), default=1 << 63)
    assert inner_gap <= cut or inner_gap == 1


def _neighbours(values: np.ndarray, low: int, high: int) -> list[tuple[int, int]]:
    inside = values[(values >= low) & (values <= high)].tolist()
    return list(itertools.pairwise(inside))


def test_conditions_name_each_range() -> None:
    kinds = [t.LongType(), t.StringType(), t.DoubleType(), t.LongType()]
    spans = [[("1", "2"), ("9", "9")], [("a", "b")], [("1.0", "2.0")], []]
    assert range_conditions(["a`", "s", "d", "none"], kinds, spans) == [
        "((t.`a``` >= 1L AND t.`a``` <= 2L) OR (t.`a``` >= 9L AND t.`a``` <= 9L))",
        "t.`s` >= CAST(X'61' AS STRING) AND t.`s` <= CAST(X'62' AS STRING)",
    ]
    too_long = [[("1", "2")], [("a", "b" * 300)]]
    assert range_conditions(["a", "s"], [t.LongType(), t.StringType()], too_long) == ["t.`a` >= 1L AND t.`a` <= 2L"]


def split(rows: int) -> tuple[pa.RecordBatch, ChangeKeys]:
    arrays = [pa.array([1] * rows, pa.int8()), *(pa.array(range(rows), pa.int64()) for _ in range(3))]
    batch = pa.RecordBatch.from_arrays(arrays, names=["_op", "_seq", "_row", "k"])
    return batch, keys_of(batch, ["k"])


def test_a_task_gives_the_rows_that_win() -> None:
    batch, keys = split(10)
    last, seen = np.array([True, False] * 5), np.array([True] * 4 + [False] * 6)
    chosen = ChosenRows(RowChoice.of(last, seen, keys), "here")
    first = chosen.of(batch.slice(0, 3), pa.field("seen", pa.bool_()))
    later = chosen.of(batch.slice(3), pa.field("seen", pa.bool_()))
    chosen.require_all()
    assert [*first.column("k").to_pylist(), *later.column("k").to_pylist()] == [0, 2, 4, 6, 8]
    assert [*first.column("seen").to_pylist(), *later.column("seen").to_pylist()] == [True, True, False, False, False]


def test_a_task_notices_other_rows_than_the_plan_had() -> None:
    batch, keys = split(10)
    last = np.array([True, False] * 5)
    choice = RowChoice.of(last, last, keys)
    other = RowChoice.of(~last, last, keys)
    for wrong, given in (
        (choice, batch.slice(0, 9)),
        (choice, pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names).slice(1)),
        (replace(choice, rows=11), batch),
        (replace(other, checksum=choice.checksum), batch),
        (replace(choice, rows=9), batch),
    ):
        chosen = ChosenRows(wrong, "here")
        with pytest.raises(PermanentError, match="other rows than the plan"):
            _take(chosen, given)


def _take(chosen: ChosenRows, batch: pa.RecordBatch) -> None:
    chosen.of(batch, None)
    chosen.require_all()
