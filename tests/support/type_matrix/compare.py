"""Compares decoded rows with SELECT, value by value, and counts the comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.support.type_matrix.column import Column, delta_name, same
from tests.support.type_matrix.workload import Observed

BEFORE = "_before"
OPS = ("insert", "update", "delete")
SNAPSHOT = "snapshot"
_DECODED = {0: "delete", 1: "insert", 2: "update"}
_SHOWN = 200
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
"""The types in which ``deltalake``'s query engine returns strings and binaries."""


@dataclass(frozen=True)
class Line:
    """A line of the page: a type, or a type in one character set."""

    row: str
    charset: str | None
    delta: str
    note: str


@dataclass
class Result:
    """The result for one server. ``faults`` are messages. ``counts`` are the compared values by line and operation; a
    value that a table repeats to fill its rows is counted once."""

    faults: list[str] = field(default_factory=list)
    counts: Counter[tuple[Line, str]] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def compare(seen: Observed, arrived: pa.Table, result: Result) -> None:
    """Compares the changes of a table and adds the differences to ``result``. ``arrived`` are the changes in order, from
    ``read(images="both")`` or from a Delta table in mode ``append``."""
    ops = [_DECODED.get(op, op) for op in arrived.column("_op").to_pylist()]
    count = seen.table.rows
    expected = [op for op in OPS for _ in range(count)]
    if ops != expected:
        result.faults.append(f"{seen.table.name}: got {Counter(ops)}, expected {count} inserts, updates and deletes")
        return
    before = arrived.column(BEFORE).combine_chunks()
    if before.slice(0, count).null_count != count:
        result.faults.append(f"{seen.table.name}: inserts have a value in {BEFORE}")
    for column in seen.table.columns:
        _column(seen, column, arrived, before, result)
        for rows, values in zip(seen.snapshots, (seen.inserted, seen.updated), strict=False):
            _snapshot(seen, column, rows, values[column.name], result)
    keys = arrived.column("id").to_pylist()
    if keys != seen.inserted["id"] + seen.updated["id"] + seen.updated["id"]:
        result.faults.append(f"{seen.table.name}: the rows are in the wrong order")


def _column(seen: Observed, column: Column, arrived: pa.Table, before: Any, result: Result) -> None:
    name = f"{seen.table.name}, {column.sql[:80]} ({column.name})"
    if column.name not in arrived.column_names:
        result.faults.append(f"{name}: the column is missing")
        return
    kind = arrived.schema.field(column.name).type
    if not _alike(kind, column.delta):
        result.faults.append(f"{name}: got type {kind}, expected {delta_name(column.delta)}")
        return
    count, own = seen.table.rows, len(column.values)
    after = arrived.column(column.name).to_pylist()
    old = before.field(column.name).to_pylist()
    first, second = seen.inserted[column.name], seen.updated[column.name]
    line = Line(column.row, column.charset, delta_name(column.delta), column.note)
    for op, got, selected in (
        ("insert", after[:count], first),
        ("update", old[count : 2 * count], first),
        ("update", after[count : 2 * count], second),
        ("delete", after[2 * count :], second),
        ("delete", old[2 * count :], second),
    ):
        result.faults += _differences(f"{name}, {op}", got, selected)
        result.counts[(line, op)] += min(own, count)


def _snapshot(seen: Observed, column: Column, rows: pa.Table, selected: list[Any], result: Result) -> None:
    """Compares a column of a snapshot with SELECT."""
    name = f"{seen.table.name}, {column.sql[:80]} ({column.name}), snapshot"
    kind = rows.schema.field(column.name).type if column.name in rows.column_names else None
    if kind is None or not _alike(kind, column.delta):
        result.faults.append(f"{name}: got type {kind}, expected {delta_name(column.delta)}")
        return
    result.faults += _differences(name, rows.column(column.name).to_pylist(), selected)
    line = Line(column.row, column.charset, delta_name(column.delta), column.note)
    result.counts[(line, SNAPSHOT)] += min(len(column.values), seen.table.rows)


def _differences(name: str, got: Iterable[Any], selected: Iterable[Any]) -> list[str]:
    return [
        f"{name}, row {row}: got {_short(value)}, SELECT shows {_short(want)}"
        for row, (value, want) in enumerate(zip(got, selected, strict=True))
        if not same(value, want)
    ]


def _alike(kind: pa.DataType, promised: pa.DataType) -> bool:
    """Whether two Arrow types are the same in Delta, which knows no item names of lists and no views."""
    if pa.types.is_list(promised) or pa.types.is_large_list(kind):
        return pa.types.is_list(kind) and bool(kind.value_type == promised.value_type)
    return bool(_VIEWS.get(kind, kind) == promised)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} … {text[-_SHOWN // 2 :]} (length {len(value)})"
