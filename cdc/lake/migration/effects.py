"""What a statement changes for those who read a Delta table: its columns, and the readers that it needs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from cdc.lake.apply.schema.columns import DeltaColumn, columns_of

if TYPE_CHECKING:
    from cdc.lake.delta.log import DeltaState

MAPPING, WIDENING, VARIANT = "column mapping", "type widening", "VARIANT"
READERS: Mapping[str, Mapping[str, str]] = {
    MAPPING: {"deltalake to_pyarrow": "wrong", "Polars": "refuses"},
    WIDENING: {"deltalake to_pyarrow": "refuses", "deltalake QueryBuilder": "refuses", "Polars": "refuses"},
    VARIANT: {"deltalake to_pyarrow": "wrong", "deltalake QueryBuilder": "wrong", "Polars": "refuses"},
}
"""The readers that do not read a feature: ``refuses`` ends with an error, ``wrong`` shows other values. A test compares
it with docs/reference/readers.md, where each reader was tried."""


@dataclass(frozen=True)
class ColumnChanges:
    """How the columns of a Delta table differ after a statement, by their names in Delta."""

    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    retyped: tuple[tuple[str, str, str], ...] = ()
    """(column, type before, type after)."""

    @property
    def breaks_views(self) -> bool:
        """Whether a query or a view that names the table's columns may fail, or mean something else."""
        return bool(self.dropped or self.renamed or self.retyped)

    @property
    def broken(self) -> str:
        """The changes that break such a query, as text."""
        return "; ".join(self._broken())

    def __str__(self) -> str:
        added = [f"new: {', '.join(self.added)}"] if self.added else []
        return "; ".join([*added, *self._broken()])

    def _broken(self) -> Iterator[str]:
        if self.dropped:
            yield f"gone: {', '.join(self.dropped)}"
        for old, new in self.renamed:
            yield f"{old} becomes {new}"
        for name, old, new in self.retyped:
            yield f"{name}: {old} becomes {new}"


def column_changes(before: DeltaState | None, after: DeltaState | None) -> ColumnChanges:
    """Compares the source's columns of two states of a table."""
    if before is None or after is None:
        return ColumnChanges()
    old = {column.physical: column for column in columns_of(before)}
    new = {column.physical: column for column in columns_of(after)}
    if before.generation != after.generation:  # its physical names are new ones
        old, new = _by_name(columns_of(before)), _by_name(columns_of(after))
    both = [(old[key], new[key]) for key in old if key in new]
    return ColumnChanges(
        tuple(column.name for key, column in new.items() if key not in old),
        tuple(column.name for key, column in old.items() if key not in new),
        tuple((was.name, now.name) for was, now in both if was.name != now.name),
        tuple(
            (now.name, was.type.simpleString(), now.type.simpleString()) for was, now in both if was.type != now.type
        ),
    )


def _by_name(columns: list[DeltaColumn]) -> dict[str, DeltaColumn]:
    return {column.name.lower(): column for column in columns}


def new_features(before: DeltaState | None, after: DeltaState | None) -> tuple[str, ...]:
    """Returns the features of :data:`READERS` that a table has after a statement, and had not before it."""
    features = set() if after is None else features_of(after)
    return tuple(sorted(features - (set() if before is None else features_of(before))))


def features_of(state: DeltaState) -> set[str]:
    """Returns the features of :data:`READERS` that a table has."""
    features = set()
    if state.properties.get("delta.columnMapping.mode", "none") != "none":
        features.add(MAPPING)
    if state.properties.get("delta.enableTypeWidening") == "true":
        features.add(WIDENING)
    fields = t.StructType.fromJson(json.loads(state.schema_json)).fields
    if any(isinstance(field.dataType, t.VariantType) for field in fields):
        features.add(VARIANT)
    return features
