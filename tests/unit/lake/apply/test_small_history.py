"""Versions of rows that are found without Spark, against a model that follows one change after the other."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc.decode.layout import DELETE, INSERT, UPDATE
from cdc.lake.apply import small_history
from cdc.lake.apply.small_history import _NONE, _Key, _keys_of, _Part, _versions_of
from cdc.lake.delta.local_tables import LeftToSparkError


def changes(rows: list[tuple[int, int, int]]) -> pa.Table:
    """Returns changes from (op, seq, time)."""
    ops, seqs, times = zip(*rows, strict=True)
    return pa.table(
        {
            "_op": pa.array(ops, pa.int8()),
            "_seq": pa.array(seqs, pa.int64()),
            "_commit_time": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def model(rows: list[tuple[int, int, int]], key: _Key) -> tuple[list[tuple[int, int, int | None]], int | None]:
    """Returns the new versions of one key as (seq, begin, end), and when the open one ends."""
    versions: list[list[Any]] = []
    closed, is_there, now = None, key.open_seq is not None, key.floor
    by_seq = {seq: (op, time) for op, seq, time in rows}
    for seq in sorted(by_seq):
        op, time = by_seq[seq]
        if op == DELETE and not is_there:
            continue
        now = max(now, time)
        if is_there and versions:
            versions[-1][2] = now
        elif is_there:
            closed = now
        is_there = op != DELETE
        if is_there:
            versions.append([seq, now, None])
    return [tuple(version) for version in versions], closed


@pytest.mark.parametrize("seed", range(200))
def test_versions_are_those_of_a_model(seed: int) -> None:
    chance = random.Random(seed)
    rows, codes, seq = [], [], 10
    for _ in range(chance.randrange(1, 25)):
        seq += chance.randrange(2)
        codes.append(chance.randrange(3))
        rows.append((chance.choice((INSERT, UPDATE, DELETE)), seq, chance.randrange(100)))
    keys = [chance.choice([_Key(), _Key(None, chance.randrange(60)), _Key(5, chance.randrange(60))]) for _ in range(3)]
    versions = _versions_of(changes(rows), np.array(codes), keys)
    for code, key in enumerate(keys):
        changes_of_key = [row for row, other in zip(rows, codes, strict=True) if other == code]
        expected, closed = model(changes_of_key, key)
        numbers = [number for number, row in enumerate(versions.rows) if codes[row] == code]
        assert [(rows[versions.rows[i]][1], versions.begins[i], versions.ends[i]) for i in numbers] == expected
        assert versions.closed.get(code) == closed
        for number in numbers:  # the last change of a transaction counts
            row = versions.rows[number]
            assert not any(codes[i] == code and rows[i][1] == rows[row][1] for i in range(row + 1, len(rows)))


def part(rows: list[tuple[int, int, int, int]]) -> _Part:
    codes, seqs, begins, ends = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return _Part(codes, seqs, begins, ends)


def test_the_table_tells_the_open_version_and_the_end_of_the_latest() -> None:
    parts = [part([(0, 3, 10, 20), (-1, 9, 99, _NONE)]), part([(0, 4, 20, _NONE), (1, 2, 5, 7)])]
    assert _keys_of(parts, 3) == [_Key(4, 20), _Key(None, 7), _Key()]
    assert parts[1].open_rows({0: 30}).tolist() == [True, False]


@pytest.mark.parametrize("second", [(0, 5, 30, _NONE), (0, 4, 10, 20)])
def test_damaged_histories_are_left_to_spark(second: tuple[int, int, int, int]) -> None:
    with pytest.raises(LeftToSparkError):
        _keys_of([part([(0, 4, 20, _NONE)]), part([second])], 1)


def test_open_versions_end_and_other_rows_stay() -> None:
    moment = pa.timestamp("us", "UTC")
    rows = pa.table({"id": [1, 2], "_valid_to": pa.array([None, 8], moment), "_current": [True, False]})
    closed = small_history._closed(rows, np.array([True, False]), np.array([0, -1]), {0: 5})
    assert closed.column("_valid_to").cast(pa.int64()).to_pylist() == [5, 8]
    assert closed.column("_current").to_pylist() == [False, False]
    assert closed.schema == rows.schema
