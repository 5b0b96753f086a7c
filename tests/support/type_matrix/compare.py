"""Holds what arrived against what SELECT showed, value by value, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.support.type_matrix.column import Column, delta_name, same
from tests.support.type_matrix.play import Observed

BEFORE = "_before"
OPS = ("insert", "update", "delete")
_DECODED = {0: "delete", 1: "insert", 2: "update"}
_SHOWN = 200
_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
"""How the engine of ``deltalake`` hands over string and binary."""


@dataclass(frozen=True)
class Line:
    """A line of the page: a type, or a type in a character set."""

    row: str
    charset: str | None
    delta: str
    note: str


@dataclass
class Result:
    """Of one server. ``faults`` are sentences. ``counts``: the values compared, by line and operation; one that a
    table repeats to fill its rows is compared each time, and counted once."""

    faults: list[str] = field(default_factory=list)
    counts: Counter[tuple[Line, str]] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def compare(seen: Observed, arrived: pa.Table, result: Result) -> None:
    """Compare a table's changes: the rows of ``arrived`` in their order, as ``read(images="both")`` gives them, or a
    Delta table in mode ``append``."""
    ops = [_DECODED.get(op, op) for op in arrived.column("_op").to_pylist()]
    count = seen.table.rows
    expected = [op for op in OPS for _ in range(count)]
    if ops != expected:
        result.faults.append(
            f"{seen.table.name}: {Counter(ops)}, and SELECT saw {count} rows inserted, updated, deleted"
        )
        return
    before = arrived.column(BEFORE).combine_chunks()
    if before.slice(0, count).null_count != count:
        result.faults.append(f"{seen.table.name}: inserts have a {BEFORE}")
    for column in seen.table.columns:
        _column(seen, column, arrived, before, result)
    keys = arrived.column("id").to_pylist()
    if keys != seen.inserted["id"] + seen.updated["id"] + seen.updated["id"]:
        result.faults.append(f"{seen.table.name}: the rows are not in their order")


def _column(seen: Observed, column: Column, arrived: pa.Table, before: Any, result: Result) -> None:
    name = f"{seen.table.name}, {column.sql[:80]} ({column.name})"
    if column.name not in arrived.column_names:
        result.faults.append(f"{name}: did not arrive")
        return
    kind = arrived.schema.field(column.name).type
    if not _alike(kind, column.delta):
        result.faults.append(f"{name}: is {kind}, promised is {delta_name(column.delta)}")
        return
    count, own = seen.table.rows, len(column.values)
    after = arrived.column(column.name).to_pylist()
    old = before.field(column.name).to_pylist()
    first, second = seen.inserted[column.name], seen.updated[column.name]
    line = Line(column.row, column.charset, delta_name(column.delta), column.note)
    for op, got, wanted in (
        ("insert", after[:count], first),
        ("update", old[count : 2 * count], first),
        ("update", after[count : 2 * count], second),
        ("delete", after[2 * count :], second),
        ("delete", old[2 * count :], second),
    ):
        result.faults += _differences(f"{name}, {op}", got, wanted)
        result.counts[(line, op)] += min(own, count)


def _differences(name: str, got: Iterable[Any], wanted: Iterable[Any]) -> list[str]:
    return [
        f"{name}, row {row}: SELECT shows {_short(want)}, arrived is {_short(value)}"
        for row, (value, want) in enumerate(zip(got, wanted, strict=True))
        if not same(value, want)
    ]


def _alike(kind: pa.DataType, promised: pa.DataType) -> bool:
    """The same to Delta, which has neither the name of a list's items nor a unit of time nor large strings."""
    if pa.types.is_list(promised) or pa.types.is_large_list(kind):
        return pa.types.is_list(kind) and bool(kind.value_type == promised.value_type)
    return bool(_VIEWS.get(kind, kind) == promised)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]} … {text[-_SHOWN // 2 :]} ({len(value)} long)"
