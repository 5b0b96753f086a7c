"""The columns of a Delta table, and the next ALTER on the way to the columns that it must have.

The goal is declared once, by *physical names*, which never change: a column's first name, or what Delta chose when
column mapping was on. Each step follows from the goal and from what the table is at that moment, so it does not matter
who ran the steps before. A column is dropped, and swaps its name, by way of a name that nothing else ever has: a
statement that an outdated driver runs late finds no such column and fails.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

from cdc.base.targets import MODE_COLUMNS, SOURCE_COLUMN
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import BEFORE, MODE_PROPERTY, ddl_type

if TYPE_CHECKING:
    from cdc.lake.delta.log import DeltaState

PHYSICAL_NAME = "delta.columnMapping.physicalName"
_PASSING = "_towpath_passing_"
"""Beginning of the name of a column that is on its way to another name, or out of the table."""
MAPPING = {
    "delta.columnMapping.mode": "name",
    "delta.minReaderVersion": "2",
    "delta.minWriterVersion": "5",
}
WIDENING = {"delta.enableTypeWidening": "true"}


@dataclass(frozen=True)
class DeltaColumn:
    """A column of the source as the Delta table has it."""

    name: str
    physical: str
    type: t.DataType


def columns_of(state: DeltaState, *, before: bool = False) -> list[DeltaColumn]:
    """Returns the source's columns in the Delta table; with ``before`` those inside ``_before``."""
    fields: list[dict[str, Any]] = json.loads(state.schema_json)["fields"]
    if before:
        nested = [f["type"] for f in fields if f["name"] == BEFORE]
        fields = nested[0]["fields"] if nested else []
    else:
        own = MODE_COLUMNS[state.properties.get(MODE_PROPERTY, "upsert")]
        own = (*own, SOURCE_COLUMN) if state.is_shared else own
        fields = [f for f in fields if f["name"].lower() not in own]
    return [
        DeltaColumn(f["name"], f.get("metadata", {}).get(PHYSICAL_NAME, f["name"]), t.StructField.fromJson(f).dataType)
        for f in fields
    ]


def is_mapped(state: DeltaState) -> bool:
    """Whether column mapping is on."""
    return state.properties.get("delta.columnMapping.mode", "none") != "none"


@dataclass(frozen=True)
class Goal:
    """A column that the Delta table must have."""

    name: str
    type: t.DataType
    origin: str | None
    """The physical name of the column that it was; None for a new one."""
    before: str | None = None
    """The same for its field in ``_before``."""


@dataclass(frozen=True)
class Goals:
    """All columns of the source that the table must have, in their order, and which it had when that was decided."""

    columns: tuple[Goal, ...]
    former_names: Mapping[str, str]
    """The names that the columns had, by their physical names."""
    former_names_before: Mapping[str, str]
    """The same inside ``_before``."""

    def to_json(self) -> Any:
        return {
            "columns": [
                {"name": c.name, "type": c.type.jsonValue(), "origin": c.origin, "before": c.before}
                for c in self.columns
            ],
            "known": dict(self.former_names),
            "known_before": dict(self.former_names_before),
        }

    @classmethod
    def of_json(cls, content: Any) -> Goals:
        columns = [
            Goal(c["name"], t.StructField.fromJson(_field(c)).dataType, c["origin"], c["before"])
            for c in content["columns"]
        ]
        return cls(tuple(columns), content["known"], content["known_before"])


def _field(column: Any) -> dict[str, Any]:
    return {"name": column["name"], "type": column["type"], "nullable": True, "metadata": {}}


def next_step(state: DeltaState, goals: Goals) -> str | None:
    """Returns the next ALTER, as SQL behind ``ALTER TABLE name``; None when the table has the columns."""
    has_before = any(f["name"] == BEFORE for f in json.loads(state.schema_json)["fields"])
    outer = _Level(columns_of(state), [(g, g.origin) for g in goals.columns], goals.former_names, "")
    levels = [outer]
    if has_before:
        inner = [(g, g.before) for g in goals.columns]
        levels.append(_Level(columns_of(state, before=True), inner, goals.former_names_before, f"{quote(BEFORE)}."))
    for find in (_Level.mended, _Level.passing, _Level.name, _Level.type):
        for level in levels:
            step = find(level)
            if step is not None:
                return step
    doomed = [name for level in levels for name in level.doomed()]
    if doomed:
        return f"DROP COLUMNS ({', '.join(doomed)})"
    added = [column for level in levels for column in level.added()]
    if added:
        return f"ADD COLUMNS ({', '.join(added)})"
    return next((step for level in levels if (step := level.order()) is not None), None)


def is_disturbed(state: DeltaState) -> bool:
    """Whether a column has a passing name, as an outdated driver may have left it."""
    return any(c.name.startswith(_PASSING) for c in [*columns_of(state), *columns_of(state, before=True)])


@dataclass(frozen=True)
class _Level:
    """The columns of the table, or the fields of ``_before``."""

    fields: Sequence[DeltaColumn]
    goals: Sequence[tuple[Goal, str | None]]
    """Each with the physical name that it has on this level."""
    former_names: Mapping[str, str]
    prefix: str

    def _named(self) -> Iterable[tuple[DeltaColumn, Goal]]:
        """Yields each column that stays, with its goal."""
        by_origin = {origin: goal for goal, origin in self.goals if origin is not None}
        new = {goal.name.lower(): goal for goal, origin in self.goals if origin is None}
        for field in self.fields:
            if field.physical in by_origin:
                yield field, by_origin[field.physical]
            elif field.physical not in self.former_names and field.name.lower() in new:
                yield field, new[field.name.lower()]

    def _leaving(self) -> list[DeltaColumn]:
        stay = {field.physical for field, _ in self._named()}
        return [f for f in self.fields if f.physical in self.former_names and f.physical not in stay]

    def _rename(self, field: DeltaColumn, name: str) -> str:
        return f"RENAME COLUMN {self.prefix}{quote(field.name)} TO {quote(name)}"

    def mended(self) -> str | None:
        """Returns the step that takes back the rename of an outdated driver, which met another column of that name."""
        former = {passing_name(physical): (physical, name) for physical, name in self.former_names.items()}
        for field in self.fields:
            physical, name = former.get(field.name, (field.physical, ""))
            if physical != field.physical:
                return self._rename(field, name)
        return None

    def passing(self) -> str | None:
        """Returns the step that gives a leaving column its passing name."""
        for field in self._leaving():
            if not field.name.startswith(_PASSING):
                return self._rename(field, passing_name(field.physical))
        return None

    def name(self) -> str | None:
        """Returns the step that gives a column its name, or makes way for that."""
        taken = {field.name.lower(): field for field in self.fields}
        wrong = [(field, goal) for field, goal in self._named() if field.name != goal.name]
        for field, _ in wrong:
            if not field.name.startswith(_PASSING):
                return self._rename(field, passing_name(field.physical))
        for field, goal in wrong:
            if goal.name.lower() not in taken:
                return self._rename(field, goal.name)
        return None

    def type(self) -> str | None:
        """Returns the step that widens a column."""
        for field, goal in self._named():
            if field.type != goal.type:
                return f"ALTER COLUMN {self.prefix}{quote(field.name)} TYPE {ddl_type(goal.type)}"
        return None

    def doomed(self) -> list[str]:
        return [f"{self.prefix}{quote(field.name)}" for field in self._leaving()]

    def added(self) -> list[str]:
        """Returns the missing columns with their positions, as ADD COLUMNS lists them."""
        names = {goal.name.lower() for _, goal in self._named()}
        added_columns, previous = [], ""
        for goal, _ in self.goals:
            if goal.name.lower() not in names:
                where = f" AFTER {quote(previous)}" if previous else " FIRST"
                added_columns.append(f"{self.prefix}{quote(goal.name)} {ddl_type(goal.type)}{where}")
            previous = goal.name
        return added_columns

    def order(self) -> str | None:
        """Returns the step that moves the first column that is not in its place."""
        goal_names = [goal.name for goal, _ in self.goals]
        present = [field.name for field in self.fields if field.name in set(goal_names)]
        for i, name in enumerate(goal_names):
            if i < len(present) and present[i] != name:
                where = f"AFTER {quote(goal_names[i - 1])}" if i else "FIRST"
                return f"ALTER COLUMN {self.prefix}{quote(name)} {where}"
        return None


def passing_name(physical: str) -> str:
    """Returns the name that a column has while it loses its old one."""
    return _PASSING + hashlib.sha256(physical.encode()).hexdigest()[:12]


# --- types -----------------------------------------------------------------------------------------------------------

INTEGERS: dict[type[t.DataType], tuple[int, int]] = {
    t.ByteType: (1, 3), t.ShortType: (2, 5), t.IntegerType: (4, 10), t.LongType: (8, 19),
}  # fmt: skip
"""Bytes and decimal digits."""


def holds(wide: t.DataType, narrow: t.DataType) -> bool:
    """Whether a column of the one type holds every value of the other unchanged."""
    if wide == narrow:
        return True
    of_wide, of_narrow = INTEGERS.get(type(wide)), INTEGERS.get(type(narrow))
    if of_wide is not None and of_narrow is not None:
        return of_wide[0] >= of_narrow[0]
    if isinstance(wide, t.DecimalType):
        if isinstance(narrow, t.DecimalType):
            return wide.scale >= narrow.scale and wide.precision - wide.scale >= narrow.precision - narrow.scale
        return of_narrow is not None and wide.precision - wide.scale >= of_narrow[1]
    if isinstance(wide, t.DoubleType):
        return isinstance(narrow, t.FloatType | t.ByteType | t.ShortType | t.IntegerType)
    return False


def widens(old: t.DataType, new: t.DataType) -> bool:
    """Whether Delta's type widening leads from one type to the other."""
    if old == new or not holds(new, old):
        return False
    if isinstance(new, t.DecimalType) and not isinstance(old, t.DecimalType):
        return new.precision - new.scale >= (20 if isinstance(old, t.LongType) else 10)
    return True
