"""Decides how the values of a Delta table get the policies that the configuration says now.

The cheapest way is from the lake itself: what a policy hides can be computed from plain values. What an older policy
has hidden is not in the lake any more, so it comes from the store, or from the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from cdc.lake.apply.schema.columns import DeltaColumn, columns_of
from cdc.lake.apply.schema.plan import PlannedColumn
from cdc.lake.delta.tables import PolicyChange, ddl_type, recorded_policies
from cdc.lake.rows.column_types import from_arrow
from cdc.lake.rows.columns import columns_of_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target

_FORMS = (" as variant", " as boolean", " as microseconds")
_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)


@dataclass(frozen=True)
class Label:
    """A policy as a table records it; see :func:`cdc.decode.policies.policy_label`."""

    kind: str
    """The word of the policy; ``keep`` for none."""
    argument: str = ""
    """The characters that ``mask`` keeps, the name that ``rename`` gives, or which key ``hash`` has used."""
    form: str = ""
    """The form that ``types`` gives the values."""

    @classmethod
    def of(cls, text: str) -> Label:
        form = next((form for form in _FORMS if f" {text}".endswith(form)), "")
        policy = f" {text}".removesuffix(form).strip()
        word, _, argument = policy.replace("hash with key", "hash:", 1).partition(":")
        return cls(word or "keep", argument.strip(), form.strip())

    @property
    def is_plain(self) -> bool:
        """Whether the values are those that SELECT shows."""
        return self.kind in ("keep", "rename")


def why_not_here(change: PolicyChange) -> str | None:
    """Returns why the values of a column cannot be computed from those in the lake, as a clause; None if they can."""
    was, now = Label.of(change.was), Label.of(change.now)
    if now.kind in ("drop", "null"):
        return None
    if was.kind in ("drop", "null"):
        return f"the lake has no values of {change.column}"
    if was.form == now.form:
        if was.is_plain and now.kind in ("keep", "rename", "hash", "mask"):
            return None
        if was.kind == now.kind == "mask" and int(now.argument) <= int(was.argument):
            return None
    if was.kind in ("hash", "mask"):
        return f"the lake has only {'hashes' if was.kind == 'hash' else 'masked values'} of {change.column}"
    return f"the lake has the values of {change.column} in another form"


def hides(change: PolicyChange) -> bool:
    """Whether the new policy hides what the lake has shown so far."""
    return Label.of(change.was).kind not in ("drop", "null") and Label.of(change.now).kind in (
        "drop", "null", "hash", "mask",
    )  # fmt: skip


@dataclass(frozen=True)
class Rewrite:
    """How the lake's own rows get the new policies."""

    columns: tuple[PlannedColumn, ...]
    reasons: tuple[str, ...] = ()
    """Why that is not possible, as clauses; empty if it is."""


def rewrite_of(
    target: Target,
    state: DeltaState,
    schema: TableSchema,
    changes: Sequence[PolicyChange],
    hash_of: Callable[[str, t.DataType], Callable[[str], str]] = lambda *_: str,
) -> Rewrite:
    """Returns the columns that the table must have. ``schema``: the source's, as of the table's position. ``hash_of``:
    makes SQL of the value of a column (the source's name, its type without policies) the SQL of its hash."""
    work = _Work(target, state, schema, {change.column.lower(): change for change in changes})
    return work.rewrite(hash_of)


class _Work:
    def __init__(
        self, target: Target, state: DeltaState, schema: TableSchema, changes: Mapping[str, PolicyChange]
    ) -> None:
        self._target, self._changes = target, changes
        self._lake = {column.name.lower(): column for column in columns_of(state)}
        self._recorded = recorded_policies(state)
        self._after = columns_of_schema(schema, target.policies)
        # As they are decoded before a policy.
        self._plain = {c.source.name.lower(): from_arrow(c.source.type) for c in self._after.policies.columns}
        self._names = schema.column_names

    def rewrite(self, hash_of: Callable[[str, t.DataType], Callable[[str], str]]) -> Rewrite:
        reasons = [why for change in self._changes.values() if (why := why_not_here(change)) is not None]
        planned = {name: PlannedColumn(c.name, c.type, c) for name, c in self._lake.items()}
        order = list(planned)
        behind = -1
        for source in self._names:
            change, old = self._changes.get(source.lower()), self._lake_column(source)
            if change is None or why_not_here(change) is not None:
                behind = order.index(old.name.lower()) if old is not None else behind
                continue
            new = self._after.field_of(source)
            if old is None:
                if new is not None:  # it was dropped, and is null from now on
                    behind += 1
                    order.insert(behind, new.name.lower())
                    planned[new.name.lower()] = PlannedColumn(new.name, new.dataType, None)
                continue
            behind = order.index(old.name.lower())
            if new is None:
                del planned[old.name.lower()]
                order.remove(old.name.lower())
                behind -= 1
                continue
            column, why = self._column(source, old, new, change, hash_of)
            reasons += [] if why is None else [why]
            planned[old.name.lower()] = column
        columns = tuple(planned[name] for name in order)
        if self._target.apply.shared:
            reasons += self._why_not_shared(columns)
        return Rewrite(columns, tuple(dict.fromkeys(reasons)))

    def _column(
        self,
        source: str,
        old: DeltaColumn,
        new: t.StructField,
        change: PolicyChange,
        hash_of: Callable[[str, t.DataType], Callable[[str], str]],
    ) -> tuple[PlannedColumn, str | None]:
        now = Label.of(change.now)
        if now.kind == "null":
            kind = old.type if Label.of(change.was).is_plain else new.dataType
            return PlannedColumn(new.name, kind, old, lambda _: f"CAST(NULL AS {ddl_type(kind)})"), None
        if now.kind == "mask":
            last = int(now.argument)
            return PlannedColumn(new.name, new.dataType, old, lambda value: masked_sql(value, last)), None
        if now.kind == "hash":
            kind = self._plain[source.lower()]
            why = None if _prints_alike(old.type, kind) else (
                f"the lake has {source} as {old.type.simpleString()}, and the source as {kind.simpleString()}"
            )  # fmt: skip
            return PlannedColumn(new.name, new.dataType, old, hash_of(source, kind)), why
        return PlannedColumn(new.name, old.type, old), None

    def _lake_column(self, source: str) -> DeltaColumn | None:
        """Returns the column in the lake that has the values of a source column by the recorded policy."""
        was = self._recorded.get(source.lower())
        label = Label.of(was or "")
        if was is None:
            return self._lake.get(source.lower()) or self._lake.get(
                (self._target.policies.lake_name(source) or source).lower()
            )
        if label.kind == "drop":
            return None
        return self._lake.get((label.argument if label.kind == "rename" else source).lower())

    def _why_not_shared(self, columns: Sequence[PlannedColumn]) -> list[str]:
        """A shared table keeps the types that its columns have: other members' rows are in them."""
        return [
            f"the shared Delta table has {column.was.name} as {column.was.type.simpleString()}"
            for column in columns
            if column.was is not None and column.was.type != column.type
        ]


def _prints_alike(old: t.DataType, new: t.DataType) -> bool:
    """Whether a value is printed alike in both types."""
    return old == new or (isinstance(old, _INTEGERS) and isinstance(new, _INTEGERS))


def masked_sql(value: str, last: int) -> str:
    """Returns the SQL of what :func:`cdc.decode.policies.masked` makes of a text."""
    stars = f"repeat('*', greatest(char_length({value}) - {last}, 0))"
    return f"concat({stars}, right({value}, {last}))" if last else stars


__all__ = ["Label", "Rewrite", "hides", "masked_sql", "rewrite_of", "why_not_here"]
