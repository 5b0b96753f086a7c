"""Stands in for the Delta tables while statements are planned: follows what would be changed, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import types as t

from cdc.lake.apply.schema.columns import PHYSICAL_NAME, WIDENING, columns_of, holds, is_mapped
from cdc.lake.apply.schema.content import delete_statement
from cdc.lake.apply.schema.shared_tables import require_widens
from cdc.lake.delta.layout import layout_of
from cdc.lake.delta.log import DeltaState
from cdc.lake.delta.tables import BEFORE, TableOrigin, delta_schema, feature_properties, properties_of
from cdc.lake.delta.tracked import SchemaRecord
from cdc.lake.rows.columns import columns_of_schema

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.apply.schema.columns import Goal, Goals
    from cdc.lake.apply.schema.lake import NewGeneration, Work
    from cdc.lake.apply.schema.partition_removal import RemovedRows
    from cdc.lake.delta.tables import Target
    from cdc.lake.rows.columns import SourceColumns
    from cdc.lake.runtime.session import TableSession

Step = Literal["create", "alter", "fill", "rewrite", "remove", "empty", "move"]
"""What a statement does to a Delta table: makes an empty one; changes its columns or properties by its log alone; gives
rows values; writes the table anew; removes or marks rows; leaves no row; exchanges rows with another table."""
Answer = Callable[["Target", DeltaState, str], bool | None]
"""Whether a row of a table fulfils an SQL condition; None if its statistics do not tell."""


def planned_state(target: Target, schema: TableSchema, seq: int) -> DeltaState:
    """Returns the state of a Delta table that has this source schema since ``seq``. Raises what the columns raise."""
    columns = columns_of_schema(schema, target.policies)
    origin = TableOrigin("", 0, seq, record=SchemaRecord(seq, schema))
    properties = properties_of(target, columns, schema.primary_key, origin)
    whole = target.schema(columns.fields)
    partition_by = layout_of(target, whole.fields).partition_by or ()
    return DeltaState(target.path, 0, properties, whole.json(), seq, partition_by=partition_by)


class PlannedLake:
    """Implements :class:`~cdc.lake.apply.schema.lake.Lake` for one statement and one table.

    ``states``: the tables before the statement, by ``db.table``. ``empty``: those that certainly have no rows.
    ``assumes``: the answer about rows that nothing tells.
    """

    def __init__(
        self, states: Mapping[str, DeltaState], empty: Collection[str], answer: Answer, *, assumes: bool
    ) -> None:
        self._before = dict(states)
        self._states = dict(states)
        self._empty = set(empty)
        self._answer = answer
        self._assumes = assumes
        self.steps: list[Step] = []
        """The steps that the statement has taken."""
        self.open: list[str] = []
        """The conditions that only the rows tell."""

    @property
    def session(self) -> TableSession:
        raise AssertionError("a plan reads no rows")

    def state(self, target: Target) -> DeltaState | None:
        return self._states.get(target.table)

    def state_before(self, target: Target, seq: int) -> DeltaState | None:
        return self._before.get(target.table)

    def is_empty(self, table: str) -> bool:
        """Whether a table certainly has no rows after the statement."""
        return table in self._empty

    def has_rows(self, target: Target, state: DeltaState) -> bool:
        return target.table not in self._empty

    def has_such_row(
        self, target: Target, state: DeltaState, conditions: Collection[str], *, present: bool = True
    ) -> bool:
        answers = {condition: self._answer(target, state, condition) for condition in conditions}
        if True in answers.values():
            return True
        unknown = [condition for condition, answer in answers.items() if answer is None]
        self.open += [condition for condition in unknown if condition not in self.open]
        return bool(unknown) and self._assumes

    def create(self, target: Target, columns: SourceColumns, schema: TableSchema) -> DeltaState:
        self.steps.append("create")
        self._empty.add(target.table)
        self._states[target.table] = planned_state(target, schema, 0)
        return self._states[target.table]

    def grow(self, target: Target, fields: Sequence[t.StructField]) -> None:
        state = self._states[target.table]
        lake_columns = {column.name.lower(): column for column in columns_of(state)}
        content = json.loads(state.schema_json)
        grown, properties = list(content["fields"]), dict(state.properties)
        for field in fields:
            column = lake_columns.get(field.name.lower())
            if column is None:
                grown.append(_field(field.name, field.dataType, field.name))
            elif not holds(column.type, field.dataType):
                require_widens(target, column, field.dataType)
                place = next(i for i, f in enumerate(grown) if f["name"] == column.name)
                grown[place] = _field(column.name, field.dataType, column.physical)
                properties |= WIDENING
        if grown != content["fields"]:
            self.steps.append("alter")
            schema_json = json.dumps({"type": "struct", "fields": grown})
            self._put(target, replace(state, schema_json=schema_json, properties=properties))

    def set_properties(self, target: Target, properties: Mapping[str, str]) -> None:
        state = self._states[target.table]
        self.steps.append("alter")
        self._put(target, replace(state, properties={**state.properties, **properties}))

    def unset_properties(self, target: Target, names: Iterable[str]) -> None:
        state, gone = self._states[target.table], set(names)
        kept = {name: value for name, value in state.properties.items() if name not in gone}
        self.steps.append("alter")
        self._put(target, replace(state, properties=kept))

    def alter(self, target: Target, goals: Goals) -> None:
        state = self._states[target.table]
        self.steps.append("alter")
        new = f"col-{state.version}-" if is_mapped(state) else ""
        columns = [_goal_field(goal, goal.origin, new) for goal in goals.columns]
        before = [_goal_field(goal, goal.before, new) for goal in goals.columns]
        properties = {**state.properties, **feature_properties(goal.type for goal in goals.columns)}
        self._put(target, replace(state, schema_json=_schema(target, columns, before), properties=properties))

    def replace(self, target: Target, state: DeltaState, seq: int, generation: NewGeneration) -> None:
        columns = [_field(column.name, column.type, column.name) for column in generation.columns]
        has_rows = generation.rows_of is not None and not self._is_of_empty_table(generation.rows_of)
        self.steps.append("rewrite" if has_rows else "create")
        self._empty.discard(target.table)
        if not has_rows:
            self._empty.add(target.table)
        schema_json = _schema(target, columns, columns)
        self._put(target, replace(state, schema_json=schema_json, applied_seq=seq))

    def commit(self, target: Target, state: DeltaState, seq: int, statement: str | None, work: Work) -> None:
        if statement is not None and statement == delete_statement(target):
            self.steps.append("empty")
            self._empty.add(target.table)
        elif work != "position":
            self.steps.append(work)
        self._put(target, replace(state, applied_seq=seq))

    @contextmanager
    def removal(self, target: Target, state: DeltaState, removed: RemovedRows) -> Iterator[str]:
        yield ""

    def _is_of_empty_table(self, state: DeltaState) -> bool:
        return any(before.path == state.path and table in self._empty for table, before in self._before.items())

    def _put(self, target: Target, state: DeltaState) -> None:
        self._states[target.table] = replace(state, version=state.version + 1)


def _schema(target: Target, columns: list[dict[str, Any]], before: list[dict[str, Any]]) -> str:
    own = json.loads(delta_schema([], target.apply.mode, shared=target.apply.shared).json())["fields"]
    for field in own:
        if field["name"] == BEFORE:
            field["type"]["fields"] = before
    return json.dumps({"type": "struct", "fields": [*columns, *own]})


def _goal_field(goal: Goal, origin: str | None, new: str) -> dict[str, Any]:
    return _field(goal.name, goal.type, f"{new}{goal.name}" if origin is None else origin)


def _field(name: str, kind: t.DataType, physical: str) -> dict[str, Any]:
    metadata = {} if physical == name else {PHYSICAL_NAME: physical}
    return {"name": name, "type": kind.jsonValue(), "nullable": True, "metadata": metadata}
