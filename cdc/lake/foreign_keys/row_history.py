"""The changes of rows by foreign keys, found from the row events in a store.

The row's own events tell the values that its keys had, the events of the parents' rows with these values tell what
happened to them, and so on up to the first ancestor. The actions of the keys are executed on all these rows. What
foreign keys changed before a row's first event in the store is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cdc.binlog.entry import EntryFlag
from cdc.decode.layout import BEFORE, DELETE, METADATA_FIELDS, UPDATE
from cdc.decode.transactions import Transactions, history_of, open_range
from cdc.lake.foreign_keys.actions import CascadedChange, Cascades, CascadingKey, EventChange, Row, Table, Value
from cdc.lake.foreign_keys.events import TableEvents, row_changes
from cdc.source.foreign_keys import IncomparableError, column_of, comparisons_of, fold, refusal
from cdc.store.formats.layout import list_segments
from cdc.store.formats.state import TableNumbers
from cdc.store.reader.batch_builder import may_remove_rows

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import ForeignKey, Schemas, TableSchema
    from cdc.config import DestinationConfig
    from cdc.store.reader.reader import StoreReader


@dataclass
class UnloggedChanges:
    """The changes of rows that have no events."""

    rows: pa.RecordBatch | None = None
    """The changes in the shape of :func:`~cdc.decode.decode_range` with old rows, with the columns that foreign keys
    compare; None: there are none."""
    keys: list[str] = field(default_factory=list)
    """For each change the name of the foreign key."""
    doubts: list[str] = field(default_factory=list)
    """Sentences that say which changes may be missing, and why."""


def unlogged_changes(
    config: DestinationConfig,
    reader: StoreReader,
    table: str,
    keys: Sequence[Mapping[str, Any]],
    progress: Callable[[], object] = lambda: None,
) -> UnloggedChanges:
    """Finds what foreign keys changed in the rows with these primary keys (values by column). ``progress`` is called
    before each segment that is read. Raises DamagedError, StorageError, UnsupportedError."""
    newest = reader.newest_schemas()
    if newest is None or not (newest[1].foreign_keys or {}).get(table):
        return UnloggedChanges()
    search = _Search(config, reader, newest, table, progress)
    doubts = search.doubts
    if not search.keys:
        return UnloggedChanges(doubts=doubts)
    identities = {tuple(key[name] for name in newest[1].tables[table].primary_key) for key in keys}
    try:
        changes = search.run(identities)
    except IncomparableError:
        doubts.append(
            "the changes of the row by foreign keys are not shown, because texts with other characters than those of "
            "ASCII may be equal in the collation of a key"
        )
        return UnloggedChanges(doubts=doubts)
    own = [change for change in changes if not identities.isdisjoint(search.identities_of(table, change))]
    of_row = search.certain(own)
    if not of_row:
        return UnloggedChanges(doubts=doubts)
    try:
        rows = search.batch(table, of_row)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        doubts.append(f"the changes of the row by foreign keys are not shown, because columns of {table} changed types")
        return UnloggedChanges(doubts=doubts)
    return UnloggedChanges(rows, [change.foreign_key for change in of_row], doubts)


class _Search:
    def __init__(
        self,
        config: DestinationConfig,
        reader: StoreReader,
        stored: tuple[int, Schemas],
        table: str,
        progress: Callable[[], object],
    ) -> None:
        self.doubts: list[str] = []
        self._reader, self._table, self._progress = reader, table, progress
        self._begins, self._schemas = stored
        followed = list(self._followed(config))
        self._names: dict[str, tuple[str, ...]] = {}
        for name in {end for child, key in followed for end in (child, key.parent)}:
            self._names[name] = self._compared(name, followed)
        self.keys = [self._key(child, key) for child, key in followed]
        children = {key.child for key in self.keys}
        self._tables = {name: Table(name, self._identity(name) if name in children else (), 0) for name in self._names}
        self._types: dict[str, list[pa.DataType]] = {}
        self._changes: dict[tuple[str, int, int], EventChange] = {}
        self._values: dict[CascadingKey, set[Value]] = {key: set() for key in self.keys}
        self._rows: dict[str, set[Row]] = {name: set() for name in children}

    # --- the keys

    def _followed(self, config: DestinationConfig) -> Iterator[tuple[str, ForeignKey]]:
        """Yields the keys that may change the row, from its own to those of its last ancestor; adds a doubt for each
        that cannot be followed."""
        waiting, done = [self._table], {self._table}
        while waiting:
            child = waiting.pop()
            for key in (self._schemas.foreign_keys or {}).get(child, ()):
                rules = {key.on_delete, key.on_update} & {"CASCADE", "SET NULL", "SET DEFAULT"}
                why = refusal(config, self._schemas, child, key, rules != {"CASCADE"} or key.on_update == "CASCADE")
                if why is not None:
                    self.doubts.append(
                        f"the foreign key {key.name} of {child} to {key.parent} ({key.actions}) may have changed the "
                        f"row as well, which is not shown, because {why}"
                    )
                    continue
                yield child, key
                if key.parent not in done:
                    done.add(key.parent)
                    waiting.append(key.parent)

    def _schema(self, table: str) -> TableSchema:
        return self._schemas.tables[table]

    def _compared(self, table: str, followed: Sequence[tuple[str, ForeignKey]]) -> tuple[str, ...]:
        names = [*self._schema(table).primary_key]
        for child, key in followed:
            names += key.columns if child == table else ()
            names += key.parent_columns if key.parent == table else ()
        return tuple(dict.fromkeys(name.lower() for name in names))

    def _places(self, table: str, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(self._names[table].index(name.lower()) for name in names)

    def _identity(self, table: str) -> tuple[int, ...]:
        return self._places(table, self._schema(table).primary_key)

    def _key(self, child: str, key: ForeignKey) -> CascadingKey:
        return CascadingKey(
            key.name,
            child,
            self._places(child, key.columns),
            key.parent,
            self._places(key.parent, key.parent_columns),
            key.on_delete,
            key.on_update,
            partial(fold, comparisons_of(self._schema(child), key.columns)),
        )

    # --- the events

    def run(self, identities: Iterable[Row]) -> list[CascadedChange]:
        """Returns the changes of rows of the table by foreign keys, those of the wanted rows among them."""
        self._rows[self._table].update(identities)
        cascades = Cascades(self._tables, self.keys)
        waiting = {self._table}
        while waiting:
            for table in sorted(waiting):
                self._read(table)
            cascades.run(self._changes.values(), {name: {} for name in self._rows}, self._ordinals(), {})
            waiting = self._grow(cascades)
        self._add_doubts(cascades)
        return cascades.changes.get(self._table, [])

    def _read(self, table: str) -> None:
        """Reads the events of the table's rows that are wanted."""
        names, is_child = self._names[table], table in self._rows
        values = [(key.parent_columns, key, self._values[key]) for key in self.keys if key.parent == table]
        for segment, transactions in self._transactions(table):
            history = history_of(segment, table)
            for changes in row_changes([transactions], table, frozenset(names), history, only_acting=not is_child):
                events = TableEvents.of(table, [changes], names)
                if events.lacks_columns:
                    self._doubt(f"some rows of {table} have other columns than its newest definition")
                    continue
                self._types[table] = events.types
                own = events.own(values, self._tables[table].identity, self._rows.get(table, ()))
                self._changes |= {(table, change.seq, change.row): change for change in own}

    def _transactions(self, table: str) -> Iterator[tuple[Path, Transactions]]:
        """Yields each segment that has transactions of the table, with these."""
        numbers = TableNumbers(self._reader.path)
        for segment in list_segments(self._reader.path) if table in numbers.names else ():
            self._progress()
            transactions = open_range(segment, table_mask=1 << numbers.bit(table)).between(0, None)
            if len(transactions.entries):
                yield segment, transactions

    def _grow(self, cascades: Cascades) -> set[str]:
        """Adds the rows and values of the changes to those that are wanted. Returns the tables with more of them."""
        changes = [(change.table, change.before, change.after) for change in self._changes.values()]
        for table, own in cascades.changes.items():
            changes += [(table, change.before, change.after) for change in own]
        rows, values = self._rows_before(changes), set(self._values_of_identities())
        for table, *images in changes:
            for row in images:
                if row is not None and table in self._rows:
                    rows.add((table, self._identity_of(table, row)))
                    values |= {(key, key.fold(tuple(row[at] for at in key.columns))) for key in self._keys_of(table)}
        grown = {table for table, row in rows if row not in self._rows[table]}
        for table, row in rows:
            self._rows[table].add(row)
        for key, value in values:
            if value is not None and value not in self._values[key]:
                self._values[key].add(value)
                grown.add(key.parent)
        return grown

    def _rows_before(self, changes: Iterable[tuple[str, Row | None, Row | None]]) -> set[tuple[str, Row]]:
        """Returns the primary keys that wanted rows had before actions changed them."""
        rows = set()
        for key in self._keys_in_identities():
            for table, before, after in changes:
                if table != key.parent or before is None or after is None or key.on_update != "CASCADE":
                    continue
                new = key.fold(tuple(after[at] for at in key.parent_columns))
                for identity in self._rows[key.child]:
                    row = self._row_of(key.child, identity)
                    if new is not None and key.fold(tuple(row[at] for at in key.columns)) == new:
                        old = dict(zip(key.columns, (before[at] for at in key.parent_columns), strict=True))
                        rows.add((key.child, tuple(old.get(at, row[at]) for at in self._tables[key.child].identity)))
        return rows

    def _values_of_identities(self) -> Iterator[tuple[CascadingKey, Value | None]]:
        for key in self._keys_in_identities():
            for identity in self._rows[key.child]:
                row = self._row_of(key.child, identity)
                yield key, key.fold(tuple(row[at] for at in key.columns))

    def _keys_in_identities(self) -> list[CascadingKey]:
        """Returns the keys whose columns all belong to the primary key."""
        return [key for key in self.keys if {*key.columns} <= {*self._tables[key.child].identity}]

    def _keys_of(self, table: str) -> list[CascadingKey]:
        return [key for key in self.keys if key.child == table]

    def _identity_of(self, table: str, row: Row) -> Row:
        return tuple(row[place] for place in self._tables[table].identity)

    def _row_of(self, table: str, identity: Row) -> dict[int, Any]:
        return dict(zip(self._tables[table].identity, identity, strict=True))

    def _ordinals(self) -> dict[str, dict[int, list[tuple[int, int]]]]:
        ordinals: dict[str, dict[int, set[tuple[int, int]]]] = {}
        for change in self._changes.values():
            ordinals.setdefault(change.table, {}).setdefault(change.seq, set()).add((change.place, change.row >> 32))
        return {table: {seq: sorted(own) for seq, own in seqs.items()} for table, seqs in ordinals.items()}

    # --- what is not certain

    def _add_doubts(self, cascades: Cascades) -> None:
        for key in self.keys:
            if key.parent not in self._rows:
                continue
            own = [change for change in self._changes.values() if change.table == key.parent]
            rows = [row for change in own for row in (change.before, change.after) if row is not None]
            present = {key.fold(tuple(row[place] for place in key.parent_columns)) for row in rows}
            for value in sorted(self._values[key] - present, key=repr):
                named = ", ".join(map(str, value))
                self._doubt(
                    f"the store has no event of the row {named} of {key.parent}, which has foreign keys as well"
                )
        first = min((change.seq for change in self._changes.values() if change.table == self._table), default=0)
        at = self._begins
        while (stored := self._reader.schemas(at)) is not None:
            begins, schemas = stored
            if any(seq > first and self._names.keys() & {*tables} for seq, tables in schemas.key_statements.items()):
                self._doubt("statements may have changed the foreign keys since then, and those of now were taken")
            if begins <= first or begins > at:
                return
            at = begins - 1

    def _doubt(self, why: str) -> None:
        sentence = f"changes of the row by foreign keys may be missing: {why}"
        if sentence not in self.doubts:
            self.doubts.append(sentence)

    def certain(self, changes: list[CascadedChange]) -> list[CascadedChange]:
        """Returns the changes of rows that no statement can have removed since their last event."""
        seqs = list(self._removals()) if changes else []
        shown = [change for change in changes if not any(change.origin.seq < seq < change.seq for seq in seqs)]
        if len(shown) < len(changes):
            self._doubt(f"a statement such as TRUNCATE or RENAME may have removed the row from {self._table} before")
        return shown

    def _removals(self) -> Iterator[int]:
        for segment, transactions in self._transactions(self._table):
            entries = transactions.entries
            for entry in entries[(entries["flags"] & int(EntryFlag.DDL)) != 0]:
                if may_remove_rows(segment, entry):
                    yield int(entry["seq"])

    # --- the result

    def identities_of(self, table: str, change: CascadedChange) -> list[Row]:
        """Returns the primary keys of a row before and after a change."""
        rows = [row for row in (change.before, change.after) if row is not None]
        return [self._identity_of(table, row) for row in rows]

    def batch(self, table: str, changes: Sequence[CascadedChange]) -> pa.RecordBatch:
        """Returns changes as decoded rows."""
        names = [column_of(self._schema(table), name) for name in self._names[table]]
        fields = [pa.field(column.name, kind) for column, kind in zip(names, self._types[table], strict=True) if column]
        before = [dict(zip([field.name for field in fields], change.before, strict=True)) for change in changes]
        metadata: Mapping[str, list[Any]] = {
            "_op": [DELETE if change.after is None else UPDATE for change in changes],
            "_seq": [change.seq for change in changes],
            "_row": [change.row for change in changes],
            "_commit_time": [change.commit_time for change in changes],
            "_gtid": [change.gtid for change in changes],
        }
        arrays = [pa.array(metadata[column.name], column.type) for column in METADATA_FIELDS]
        for place, column in enumerate(fields):
            arrays.append(pa.array([None if c.after is None else c.after[place] for c in changes], column.type))
        arrays.append(pa.array(before, pa.struct(fields)))
        return pa.RecordBatch.from_arrays(
            arrays, schema=pa.schema([*METADATA_FIELDS, *fields, (BEFORE, pa.struct(fields))])
        )
