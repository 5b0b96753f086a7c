"""The properties of a Delta table that a statement leaves: those of a new generation, and what the table has kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdc.base.targets import KEPT_PROPERTY, NEEDS_MAPPING
from cdc.lake.apply.schema.content import planned_layout
from cdc.lake.delta.comments import COMMENTS_PROPERTY
from cdc.lake.delta.tables import LARGE_PROPERTY, TableOrigin, Target, feature_properties, properties_of
from cdc.lake.rows.columns import columns_of_schema

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.apply.schema.plan import PlannedColumn
    from cdc.lake.delta.log import DeltaState

_OWN_PROPERTIES = ("towpath.", "delta.columnMapping.", "delta.minReader", "delta.minWriter", "delta.enableTypeWidening")
"""Beginnings of the properties that a new generation does not take over."""


def properties_after(
    target: Target,
    columns: Sequence[PlannedColumn],
    schema: TableSchema,
    origin: TableOrigin,
    former: tuple[DeltaState | None, DeltaState | None],
) -> dict[str, str]:
    """Returns the properties of a table's new generation. ``former``: the table as it was, and the one whose rows it
    gets."""
    state, source = former
    properties = properties_of(target, columns_of_schema(schema, target.policies), schema.primary_key, origin)
    properties |= feature_properties(column.type for column in columns)
    properties |= planned_layout(target, columns, source).properties
    if any(NEEDS_MAPPING & set(column.name) for column in columns):
        properties["delta.columnMapping.mode"] = "name"
    for name, value in ({} if state is None else state.properties).items():
        if not name.startswith(_OWN_PROPERTIES) and name != "delta.dataSkippingStatsColumns":
            properties.setdefault(name, value)
    if source is not None and KEPT_PROPERTY in source.properties:
        properties[KEPT_PROPERTY] = source.properties[KEPT_PROPERTY]
    for former_state in (state, source):
        for name in (LARGE_PROPERTY, COMMENTS_PROPERTY):
            if former_state is not None and name in former_state.properties:
                properties[name] = former_state.properties[name]
    return properties


def kept_statements(state: DeltaState) -> list[dict[str, Any]]:
    """Returns the last statements whose partitions' rows the table has kept, each with ``seq`` and ``statement``."""
    statements: list[dict[str, Any]] = json.loads(state.properties.get(KEPT_PROPERTY, "[]"))
    return statements
