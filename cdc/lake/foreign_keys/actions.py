"""The actions of foreign keys on the rows of children, computed as InnoDB executes them.

A change of a parent's row acts on the rows of its children at that moment: the last change before it in the batch, else
the row in the lake. The rows that it changes act on their own children, and so on. :class:`Cascades` goes through the
changes of a batch in the order of the binlog and keeps the rows that an action may concern. It does not know beforehand
which rows of the lake these are, so it says which it misses (:attr:`Cascades.missing`), and is run again with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from cdc.base.errors import UnsupportedError
from cdc.decode.layout import CASCADED

Row: TypeAlias = tuple[Any, ...]
"""The values of a table's compared columns."""
Value: TypeAlias = tuple[Any, ...]
"""The values of a key's columns in the form in which they are compared."""
MOST_LEVELS = 255
"""InnoDB refuses a statement whose actions reach further: 15 levels, and 255 up to MySQL 5.6."""


@dataclass(frozen=True)
class CascadingKey:
    """A foreign key with actions."""

    name: str
    child: str
    columns: tuple[int, ...]
    """Places of the key's columns in the child's rows."""
    parent: str
    parent_columns: tuple[int, ...]
    """Places of the referenced columns in the parent's rows."""
    on_delete: str
    on_update: str
    fold: Callable[[Value], Value | None]
    """Returns values in the form in which the server compares them; None if one of them is null."""


@dataclass(frozen=True)
class Table:
    """A table with one of the keys, or a parent."""

    name: str
    identity: tuple[int, ...]
    """Places of the primary key in its rows; empty for a table that no key changes."""
    position: int
    """The applied position of the rows in the lake: what happened up to there is in them."""


class RowOrigin(NamedTuple):
    """The row that a cascaded change begins with, as the lake or an event of the batch has it."""

    seq: int
    """0: the row of the lake."""
    row: int
    """``_row`` of the event."""
    identity: Row
    """The row's primary key there."""


class EventChange(NamedTuple):
    """A change of one row by an event of the binlog."""

    seq: int
    place: int
    """The place of the event in its file."""
    row: int
    """``_row``: the ordinal of the event among the table's in the transaction, times 2**32, plus the number of the row.
    """
    table: str
    before: Row | None
    after: Row | None
    acts: bool
    """Whether the server executed the actions of foreign keys for it."""
    is_own: bool
    """Whether the table's rows are kept, and this is one of them."""
    commit_time: datetime
    gtid: str | None


@dataclass(frozen=True)
class CascadedChange:
    """A change of a row by a foreign key. ``row``, as ``_row``, has :data:`CASCADED`, and lies behind the table's
    events that came before it in the transaction; it is negative before the first one."""

    seq: int
    row: int
    before: Row
    after: Row | None
    origin: RowOrigin
    commit_time: datetime
    gtid: str | None
    foreign_key: str
    """The name of the key."""


@dataclass
class Cascades:
    """The actions of keys on tables over the changes of a batch."""

    tables: Mapping[str, Table]
    keys: Sequence[CascadingKey]
    changes: dict[str, list[CascadedChange]] = field(default_factory=dict)
    """The changes by table, in the order in which they happened."""
    missing: dict[CascadingKey, set[Value]] = field(default_factory=dict)
    """The values of parents that were acted on, and whose children in the lake were not given to :meth:`run`."""
    repeated: CascadingKey | None = None
    """A key by which rows got a value that was acted on before. If the rows of the lake are not all as of one position,
    such a row may have got the value after the first of the two."""
    unknown: dict[str, tuple[CascadingKey, int]] = field(default_factory=dict)
    """Tables whose parents' rows at a seq are not known, since the lake has them as of later; with the key."""

    def run(
        self,
        changes: Iterable[EventChange],
        rows: Mapping[str, Mapping[Row, Row]],
        ordinals: Mapping[str, Mapping[int, Sequence[tuple[int, int]]]],
        looked_up: Mapping[CascadingKey, set[Value]],
    ) -> None:
        """Goes through the changes. ``rows``: rows of the lake, by table and primary key. ``ordinals``: by table and
        seq the events of the table as (place, ordinal), ascending. ``looked_up``: the values of parents whose children
        in the lake are among ``rows``."""
        self.changes, self.missing, self.unknown, self.repeated = {}, {}, {}, None
        self._acted: set[tuple[CascadingKey, Value]] = set()
        self._looked_up, self._ordinals = looked_up, ordinals
        self._counts: dict[tuple[str, int, int], int] = {}
        self._rows: dict[str, dict[Row, tuple[Row, RowOrigin]]] = {}
        self._by_value: dict[CascadingKey, dict[Value, set[Row]]] = {key: {} for key in self.keys}
        self._keys_of: dict[str, list[CascadingKey]] = {}
        self._keys_to: dict[str, list[CascadingKey]] = {}
        for key in sorted(self.keys, key=lambda key: (key.child, key.name)):
            self._keys_of.setdefault(key.child, []).append(key)
            self._keys_to.setdefault(key.parent, []).append(key)
        for table, lake_rows in rows.items():
            for identity, row in lake_rows.items():
                self._put(table, row, RowOrigin(0, 0, identity))
        for change in sorted(changes, key=lambda change: (change.seq, change.place, change.row)):
            self._execute(change)

    def _execute(self, change: EventChange) -> None:
        table = self.tables[change.table]
        if change.is_own and change.seq > table.position:
            if change.before is not None:
                self._take(change.table, self._identity(change.table, change.before))
            if change.after is not None:
                identity = self._identity(change.table, change.after)
                self._put(change.table, change.after, RowOrigin(change.seq, change.row, identity))
        if change.acts and change.before is not None:
            self._act(change, change.table, change.before, change.after, 1)

    def _act(self, cause: EventChange, parent: str, before: Row, after: Row | None, level: int) -> None:
        if level > MOST_LEVELS:
            raise UnsupportedError(
                f"the actions of foreign keys on a change of {cause.table} reach further than {MOST_LEVELS} levels",
                place=f"table {parent}",
                remedy="Set foreign_keys: park for the tables, and report this.",
            )
        for key in self._keys_to.get(parent, ()):
            rule = key.on_delete if after is None else key.on_update
            if rule not in ("CASCADE", "SET NULL"):
                continue
            old = tuple(before[place] for place in key.parent_columns)
            new = None if after is None else tuple(after[place] for place in key.parent_columns)
            value = key.fold(old)
            if old == new or value is None:
                continue
            if cause.seq <= self.tables[key.child].position:
                self._note_unknown(key.child, cause.seq, set())
                continue
            self._acted.add((key, value))
            new_value = None if new is None or rule != "CASCADE" else key.fold(new)
            if new_value is not None and (key, new_value) in self._acted:
                self.repeated = key
            if value not in self._looked_up.get(key, ()):
                self.missing.setdefault(key, set()).add(value)
            for identity in sorted(self._by_value[key].get(value, ())):
                present = self._rows.get(key.child, {}).get(identity)
                if present is None or key.fold(tuple(present[0][place] for place in key.columns)) != value:
                    continue  # an action on a row before it has changed this one, too
                self._change(cause, key, identity, new if rule == "CASCADE" else (None,) * len(old), level)

    def _change(self, cause: EventChange, key: CascadingKey, identity: Row, values: Value | None, level: int) -> None:
        """Deletes a row (None), or gives the columns of its key other values."""
        row, origin = self._take(key.child, identity)
        changed: Row | None = None
        if values is not None:
            new = list(row)
            for place, value in zip(key.columns, values, strict=True):
                new[place] = value
            changed = tuple(new)
            self._put(key.child, changed, origin)
        self.changes.setdefault(key.child, []).append(
            CascadedChange(
                cause.seq, self._number(key.child, cause), row, changed, origin, cause.commit_time, cause.gtid, key.name
            )
        )
        self._act(cause, key.child, row, changed, level + 1)

    def _number(self, table: str, cause: EventChange) -> int:
        """Returns ``_row`` of the table's next cascaded change. A row that an event of the table itself changes later
        was there before, so the table's own event that causes it lies behind it."""
        ordinal = -1
        for place, number in self._ordinals.get(table, {}).get(cause.seq, ()):
            if place >= cause.place:
                break
            ordinal = number
        count = self._counts.get((table, cause.seq, ordinal), 0)
        self._counts[table, cause.seq, ordinal] = count + 1
        return (ordinal << 32) + CASCADED + count

    def _note_unknown(self, table: str, seq: int, done: set[str]) -> None:
        """Notes the tables that may be changed by the unknown rows of a table at a seq."""
        for key in self._keys_to.get(table, ()):
            if key.child not in done and seq > self.tables[key.child].position:
                self.unknown.setdefault(key.child, (key, seq))
            if key.child not in done:
                self._note_unknown(key.child, seq, {*done, key.child})

    # --- the rows that are kept

    def _identity(self, table: str, row: Row) -> Row:
        return tuple(row[place] for place in self.tables[table].identity)

    def _put(self, table: str, row: Row, origin: RowOrigin) -> None:
        identity = self._identity(table, row)
        self._take(table, identity)
        self._rows[table][identity] = row, origin
        for key in self._keys_of.get(table, ()):
            value = key.fold(tuple(row[place] for place in key.columns))
            if value is not None:
                self._by_value[key].setdefault(value, set()).add(identity)

    def _take(self, table: str, identity: Row) -> tuple[Row, RowOrigin]:
        row, origin = self._rows.setdefault(table, {}).pop(identity, ((), RowOrigin(0, 0, identity)))
        for key in self._keys_of.get(table, ()) if row else ():
            value = key.fold(tuple(row[place] for place in key.columns))
            if value is not None:
                self._by_value[key].get(value, set()).discard(identity)
        return row, origin
