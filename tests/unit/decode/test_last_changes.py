"""The last change of each key, compared with a plain dictionary."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc.decode.kernels.keys import KeyTable, WrittenKeys, find_last
from cdc.decode.last_changes import UnplannableError, joined, keys_of, last_changes

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, 0, 127],
    pa.int16(): [-5, 5],
    pa.int64(): [-(2**63), 2**63 - 1, 0, 1],
    pa.bool_(): [True, False],
    pa.float32(): [0.0, -0.0, float("nan"), 1.5, float("inf")],
    pa.float64(): [0.0, -0.0, float("nan"), -float("nan"), 0.1],
    pa.date32(): [date(1, 1, 1), date(9999, 12, 31)],
    pa.timestamp("us"): [_BEGIN.replace(year=1, tzinfo=None), _BEGIN.replace(tzinfo=None)],
    pa.timestamp("us", tz="UTC"): [_BEGIN, _BEGIN + timedelta(microseconds=1)],
    pa.decimal128(20, 2): [Decimal("1.00"), Decimal("-1.00"), Decimal("999999999999999999.99")],
    pa.string(): ["", "a", "A", "a ", "\0", "ä", "a\u0308", "x" * 300],
    pa.binary(): [b"", b"\0", b"\0\0", b"ab", b"\xff" * 40],
}


def random_batch(rng: random.Random, kinds: list[pa.DataType], rows: int, first: int) -> pa.RecordBatch:
    """Returns changes whose keys have these types; some updates are a delete and an upsert at the same position."""
    op: list[int] = []
    seq: list[int] = []
    row: list[int] = []
    position = first
    while len(op) < rows:
        position += rng.randrange(1, 4)
        at = (position // 5, position % 5)
        kind = rng.choice(("delete", "insert", "update", "moved"))
        for operation in (0, 2) if kind == "moved" else ({"delete": 0, "insert": 1, "update": 2}[kind],):
            op.append(operation)
            seq.append(at[0])
            row.append(at[1])
    size = len(op)
    columns = [
        pa.array([None if rng.random() < 0.1 else rng.choice(VALUES[kind]) for _ in range(size)], kind)
        for kind in kinds
    ]
    arrays = [pa.array(op, pa.int8()), pa.array(seq, pa.int64()), pa.array(row, pa.int64()), *columns]
    return pa.RecordBatch.from_arrays(arrays, names=["_op", "_seq", "_row", *(f"k{i}" for i in range(len(kinds)))])


def plain(value: Any) -> Any:
    """Returns a value that is equal where Spark takes the keys for equal."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


@pytest.mark.parametrize("case", range(60))
def test_the_last_change_of_each_key(case: int, seed: int) -> None:
    rng = random.Random(f"{seed} {case}")
    kinds = rng.sample(list(VALUES), rng.randrange(1, 4))
    names = [f"k{i}" for i in range(len(kinds))]
    batches = [random_batch(rng, kinds, rng.randrange(1, 60), 1000 * part) for part in range(4)]
    parts = [keys_of(batch, names) for batch in batches]
    parts = [joined(parts[:2], len(names)), joined([], len(names)), *parts[2:]]
    changes = last_changes(parts)

    rows = [row for batch in batches for row in batch.to_pylist()]
    wanted: dict[tuple[Any, ...], int] = {}
    seen: dict[tuple[Any, ...], bool] = {}
    for number, row in enumerate(rows):
        key = tuple(plain(row[name]) for name in names)
        wanted[key] = number
        seen[key] = seen.get(key, False) or row["_op"] != 0
    last = np.concatenate(changes.last)
    assert np.flatnonzero(last).tolist() == sorted(wanted.values())
    assert np.flatnonzero(np.concatenate(changes.seen) & last).tolist() == sorted(
        wanted[k] for k, s in seen.items() if s
    )
    assert changes.keys == len(wanted)
    assert not changes.is_all_new
    for name, kind, bound in zip(names, kinds, changes.bounds, strict=True):
        values = [row[name] for row in rows]
        no_order = pa.types.is_binary(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if no_order or None in values:
            assert bound is None
        else:
            by_bytes = (lambda v: v.encode()) if pa.types.is_string(kind) else None
            assert [scalar.as_py() for scalar in bound or ()] == [min(values, key=by_bytes), max(values, key=by_bytes)]


def changes(rows: list[tuple[int, int, int, int]]) -> pa.RecordBatch:
    op, seq, row, key = zip(*rows, strict=True)
    arrays = [pa.array(op, pa.int8()), *(pa.array(values, pa.int64()) for values in (seq, row, key))]
    return pa.RecordBatch.from_arrays(arrays, names=["_op", "_seq", "_row", "k"])


def test_only_inserts_of_new_keys_are_all_new() -> None:
    def is_all_new(*rows: tuple[int, int, int, int]) -> bool:
        return last_changes([keys_of(changes(list(rows)), ["k"])]).is_all_new

    assert is_all_new((1, 1, 0, 1), (1, 1, 1, 2))
    assert not is_all_new((1, 1, 0, 1), (2, 1, 1, 2))
    assert not is_all_new((1, 1, 0, 1), (0, 1, 1, 2))
    assert not is_all_new((1, 1, 0, 1), (0, 2, 0, 1), (1, 3, 0, 1))
    assert not is_all_new((1, 1, 0, 1), (1, 1, 1, 1))


@pytest.mark.parametrize(
    "rows",
    [
        [(1, 2, 0, 1), (1, 1, 0, 2)],
        [(1, 1, 1, 1), (1, 1, 0, 2)],
        [(2, 1, 0, 1), (0, 1, 0, 2)],
        [(2, 1, 0, 1), (2, 1, 0, 2)],
    ],
)
def test_changes_out_of_order_are_not_planned(rows: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(UnplannableError, match="not in the order"):
        last_changes([keys_of(changes([row]), ["k"]) for row in rows])


def test_a_type_without_equality_is_not_planned() -> None:
    batch = changes([(1, 1, 0, 1)])
    batch = batch.append_column("v", pa.array([[1.0]], pa.list_(pa.float32())))
    with pytest.raises(UnplannableError, match="list"):
        keys_of(batch, ["v"])


def test_keys_whose_hashes_collide_stay_different() -> None:
    """A table of few places and one tag makes every key collide with the others."""
    keys = keys_of(changes([(1, i + 1, 0, i % 3) for i in range(6)]), ["k"])
    begin = np.concatenate([[0], np.cumsum(keys.sizes)]).astype(np.int64)
    for seed in range(50):
        table = KeyTable(np.full(8, -1, dtype=np.int32), np.empty(8, dtype=np.uint32))
        last, seen = np.empty(6, dtype=np.uint8), np.empty(6, dtype=np.uint8)
        assert find_last(WrittenKeys(keys.bytes, begin), np.array(keys.op), np.uint64(seed), table, last, seen) == 3
        assert last.tolist() == [0, 0, 0, 1, 1, 1]
