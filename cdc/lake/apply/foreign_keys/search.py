"""Finds the rows that foreign keys change in a batch.

The rows of the lake are those of the version before the batch, so a repetition after a kill finds the same changes,
whichever tables have the batch already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from cdc.base.errors import CdcError
from cdc.decode.transactions import TableHistory
from cdc.lake.apply.foreign_keys.changes import CascadedRows, ChildTable
from cdc.lake.apply.foreign_keys.reach import not_followed, transactions_of
from cdc.lake.delta.present_rows import LakeVersion
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import target_of
from cdc.lake.delta.tracked import tracked_schema
from cdc.lake.foreign_keys.actions import Cascades, CascadingKey, Row, Table, Value
from cdc.lake.foreign_keys.events import TableEvents, row_changes
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime.failures import explain, is_driver_gone
from cdc.source.foreign_keys import (
    EXACT,
    STRANGE,
    IncomparableError,
    TextComparison,
    column_of,
    comparison_of,
    comparisons_of,
    fold,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdc.batches.manifest import Manifest
    from cdc.binlog.sql.schemas import ForeignKey, Schemas
    from cdc.config import DestinationConfig
    from cdc.decode.transactions import Transactions
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.present_rows import PresentRows
    from cdc.lake.runtime.session import TableSession

_FEW = 500
"""Values that are looked up by a list, with which Delta leaves out files."""


@dataclass
class CascadeSearch:
    """Finds the changes of a batch by foreign keys."""

    config: DestinationConfig
    batches: Callable[[str], Iterable[Manifest]]
    """Returns the changes of a table."""
    last_seq: int
    """The end of the changes."""
    schemas: Schemas
    session: Callable[[], TableSession]
    base: Callable[[str], PresentRows | None]
    """Returns the rows of a table before the changes."""
    is_exact: bool = True
    """Whether the rows before the changes are all as of their position; else each is as of some later one up to
    :attr:`last_seq`, unless an event changes it."""
    errors: dict[str, CdcError] = field(default_factory=dict)
    """Tables whose changes could not be found."""

    def run(self, tables: Iterable[str]) -> dict[str, CascadedRows]:
        """Returns the changes of those of the tables that have some. Adds to :attr:`errors`."""
        followed = set(tables)
        self._bases: dict[str, PresentRows | None] = {}
        for table in sorted(followed):
            try:
                self._bases[table] = self.base(table)
            except CdcError as error:
                why = "its rows are not as they were left"
                self._drop(_NotFollowedError(table, None, self.last_seq, why, error), followed)
        while followed:
            try:
                return self._run(followed)
            except _NotFollowedError as error:
                self._drop(error, followed)
        return {}

    def _drop(self, refusal: _NotFollowedError, followed: set[str]) -> None:
        """Takes a table out, and all tables that its rows may change."""
        waiting = [refusal.child]
        while waiting:
            table = waiting.pop()
            if table not in followed:
                continue
            followed.discard(table)
            is_first = table == refusal.child
            named = next(key for key in self._keys_of(table) if not is_first or refusal.key in (None, key.name))
            clause = refusal.why if is_first else f"{refusal.why} for {refusal.child}"
            self.errors.setdefault(table, not_followed(self.config, table, named, refusal.seq, clause))
            waiting += [name for name in followed if any(key.parent == table for key in self._keys_of(name))]
        if refusal.error is not None:
            self.errors[refusal.child] = refusal.error

    def _keys_of(self, table: str) -> tuple[ForeignKey, ...]:
        return (self.schemas.foreign_keys or {}).get(table, ())

    def _run(self, followed: set[str]) -> dict[str, CascadedRows]:
        children = {name: self._child(name, followed) for name in sorted(followed)}
        keys = [self._key(children, child, key) for child in sorted(children) for key in self._keys_of(child)]
        tables = {
            name: Table(name, tuple(child.place(column) for column in child.schema.primary_key), _position(child))
            for name, child in children.items()
        }
        parents = sorted({key.parent for key in keys} - children.keys())
        tables |= {name: Table(name, (), 0) for name in parents}
        events = {name: self._events(child) for name, child in children.items()}
        for name in parents:
            events[name] = self._parent_events(name, followed)
        for key in keys:
            for name in (key.child, key.parent):
                if events[name].lacks_columns:
                    why = f"rows of {name} have other columns than its stored definition"
                    raise _NotFollowedError(key.child, key.name, self.last_seq, why)
        rows: dict[str, dict[Row, Row]] = {name: {} for name in children}
        looked_up: dict[CascadingKey, set[Value]] = {key: set() for key in keys}
        cascades = Cascades(tables, keys)
        acting = [change for name, own in events.items() for change in own.acting(keys, is_own=name in children)]
        if not acting:
            return {}
        while True:
            changes = {(change.table, change.seq, change.row): change for change in acting}
            for name in children:
                conditions = [(key.columns, key, looked_up[key]) for key in keys if key.child == name]
                own = events[name].own(conditions, tables[name].identity)
                changes |= {(name, change.seq, change.row): change for change in own}
            cascades.run(
                changes.values(), rows, {name: row_events.ordinals for name, row_events in events.items()}, looked_up
            )
            if not self.is_exact and cascades.repeated is not None:
                why = "the key got a value again that its action had replaced before, while the rows were read"
                raise _NotFollowedError(cascades.repeated.child, cascades.repeated.name, self.last_seq, why)
            for key, seq in cascades.unknown.values():
                why = f"the rows of {key.parent} as of then are not in the lake, which has later ones"
                raise _NotFollowedError(key.child, key.name, seq, why)
            if not cascades.missing:
                break
            for key, values in cascades.missing.items():
                rows[key.child] |= self._look_up(children[key.child], key, values)
                looked_up[key] |= values
        return {name: CascadedRows(children[name], changes) for name, changes in cascades.changes.items()}

    def _child(self, table: str, followed: set[str]) -> ChildTable:
        target = target_of(self.config, table)
        state = target.state()
        schema = None if state is None else tracked_schema(state)
        schema = schema or self.schemas.tables[table]
        try:
            columns = columns_of_schema(schema, target.policies)
        except CdcError as error:
            raise _NotFollowedError(
                table, None, self.last_seq, f"its columns cannot be had: {error.message}"
            ) from error
        sources = [*schema.primary_key, *(name for key in self._keys_of(table) for name in key.columns)]
        sources += self._referenced(table, followed)
        names = [column.name for source in sources if (column := columns.field_of(source)) is not None]
        return ChildTable(table, self._bases[table], columns, schema, tuple(dict.fromkeys(names)))

    def _referenced(self, table: str, followed: set[str]) -> list[str]:
        """Returns the columns of a table that keys of followed tables reference."""
        keys = (key for child in sorted(followed) for key in self._keys_of(child) if key.parent == table)
        return list(dict.fromkeys(name for key in keys for name in key.parent_columns))

    def _key(self, children: Mapping[str, ChildTable], child: str, key: ForeignKey) -> CascadingKey:
        folds = comparisons_of(children[child].schema, key.columns)
        if key.parent in children:
            parent_columns = tuple(children[key.parent].place(name) for name in key.parent_columns)
        else:
            names = [name.lower() for name in self._referenced(key.parent, set(children))]
            parent_columns = tuple(names.index(name.lower()) for name in key.parent_columns)

        def folded(value: Value) -> Value | None:
            try:
                return fold(folds, value)
            except IncomparableError:
                why = "texts with other characters than those of ASCII may be equal in its collation"
                raise _NotFollowedError(child, key.name, self.last_seq, why) from None

        return CascadingKey(
            key.name,
            child,
            tuple(children[child].place(name) for name in key.columns),
            key.parent,
            parent_columns,
            key.on_delete,
            key.on_update,
            folded,
        )

    def _events(self, child: ChildTable) -> TableEvents:
        try:
            columns = child.columns.only(child.compared)
            ordered = sorted(columns.policies.columns, key=lambda column: child.compared.index(column.field.name))
            policies = replace(columns.policies, columns=tuple(ordered))
            ranges, history = self._ranges(child.name)
            return TableEvents.of(
                child.name, row_changes(ranges, child.name, policies, history, columns.values), child.compared
            )
        except CdcError as error:
            if error.retryable:
                raise
            why = f"its rows cannot be read: {error.message}"
            raise _NotFollowedError(child.name, None, self.last_seq, why) from error

    def _parent_events(self, parent: str, followed: set[str]) -> TableEvents:
        names = tuple(name.lower() for name in self._referenced(parent, followed))
        ranges, history = self._ranges(parent)
        changes = row_changes(ranges, parent, frozenset(names), history, only_acting=True)
        return TableEvents.of(parent, changes, names)

    def _ranges(self, table: str) -> tuple[Iterator[Transactions], TableHistory]:
        history = TableHistory.always(self.schemas.tables.get(table))
        return transactions_of(self.batches(table), table), history

    def _look_up(self, child: ChildTable, key: CascadingKey, values: set[Value]) -> dict[Row, Row]:
        """Returns the rows of the lake, by primary key, whose key has one of these values."""
        if child.base is None:
            return {}
        session = self.session()
        names = [child.compared[place] for place in key.columns]
        folds = [
            comparison_of(column) or EXACT
            for name in names
            if (column := column_of(child.schema, _source(child, name)))
        ]
        sought = child.frame_of(session, [f"_v{i}" for i in range(len(names))], key.columns, values)

        def matches(frame: DataFrame) -> DataFrame:
            same: Column = f.lit(True)
            for i, (name, how) in enumerate(zip(names, folds, strict=True)):
                same = same & (_folded(f.col(f"r.{quote(name)}"), how) == f.col(f"v._v{i}"))
                if how.ignores_case:
                    same = same | f.col(f"r.{quote(name)}").rlike(STRANGE)
            if len(values) <= _FEW and all(how == EXACT for how in folds):
                for i, name in enumerate(names):
                    frame = frame.where(f.col(quote(name)).isin(list({value[i] for value in values})))
            return frame.alias("r").join(f.broadcast(sought).alias("v"), same, "left_semi")

        try:
            rows = child.base.choose(session, child.compared, matches).toArrow()
        except Exception as error:
            # Spark, py4j and gRPC raise hundreds of exception types.
            if is_driver_gone(error):
                raise
            why = "its rows as of then cannot be read"
            raise _NotFollowedError(child.name, key.name, self.last_seq, why, explain(error, child.name)) from error
        arrays = [rows.column(i).cast(kind).to_pylist() for i, kind in enumerate(child.types)]
        identity = [child.place(name) for name in child.schema.primary_key]
        return {tuple(row[place] for place in identity): row for row in zip(*arrays, strict=True)}


def _source(child: ChildTable, name: str) -> str:
    return next(column.source.name for column in child.columns.policies.columns if column.field.name == name)


def _position(child: ChildTable) -> int:
    return 0 if child.base is None else child.base.position


class _NotFollowedError(Exception):
    """The changes of a table by foreign keys cannot be found."""

    def __init__(self, child: str, key: str | None, seq: int, why: str, error: CdcError | None = None) -> None:
        """``key``: the key in the sentence; None: any. ``error``: the table's own error, which takes the sentence's
        place."""
        super().__init__(why)
        self.child, self.key, self.seq, self.why, self.error = child, key, seq, why, error


def base_version(config: DestinationConfig, table: str, after_seq: int, state: DeltaState | None) -> LakeVersion | None:
    """Returns the version of a table before its commits that lie behind ``after_seq``; None if there is no table."""
    if state is None:
        return None
    target = target_of(config, table)
    later = [(version, entry) for version, entry in state.entries if int(entry.get("last_seq", 0)) > after_seq]
    if not later:
        return LakeVersion.of(target, state)
    version, entry = min(later, key=lambda commit: commit[0])
    return LakeVersion.of(target, state, version - 1, int(entry["first_seq"]))


def _folded(column: Column, how: TextComparison) -> Column:
    """Returns the SQL of :meth:`~cdc.source.foreign_keys.TextComparison.apply`, for texts that can be compared."""
    column = f.lower(column) if how.ignores_case else column
    return f.rtrim(column) if how.pads else column
