"""The row events of a table, with the columns that foreign keys compare."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.binlog.constants import HEADER_SIZE, EventType
from cdc.decode.column_types import DEFAULT_POLICIES, ValuePolicies
from cdc.decode.layout import BEFORE, DELETE, UPDATE
from cdc.decode.reader import DecodeOptions, decode_transactions
from cdc.decode.scan import table_events
from cdc.decode.transactions import TableHistory, Transactions
from cdc.lake.foreign_keys.actions import CascadingKey, EventChange, Row, Value

if TYPE_CHECKING:
    from cdc.decode.policies import ColumnPolicies

Places: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
_FLAGS_AT = HEADER_SIZE + 6
"""The flags of a row event lie behind its header and the table's id."""
_NO_FOREIGN_KEY_CHECKS = 0x2
"""The flag of row events that were executed with ``foreign_key_checks=0``, and so without actions."""
_INSERTS = (
    EventType.WRITE_ROWS_V1,
    EventType.WRITE_ROWS,
    EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1,
    EventType.MARIADB_WRITE_ROWS_COMPRESSED,
)
_SCAN_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class ParentChange:
    """A change of parent rows: a delete, or of one of their columns (in lower case)."""

    parent: str
    column: str | None
    """None: the rows were deleted."""
    seqs: tuple[int, ...]
    """The transactions that have such changes, ascending."""


@dataclass(frozen=True)
class RowChanges:
    """Some columns of the changes of one table in one range, with both images."""

    rows: pa.Table
    """As :func:`~cdc.decode.reader.decode_range` gives them, inserts included."""
    places: npt.NDArray[np.int64]
    """For each row the place of its event in the file, which orders the events of all tables in a transaction."""
    acts: npt.NDArray[np.bool_]
    """For each row whether the server executed the actions of foreign keys for it."""


def row_changes(
    ranges: Iterable[Transactions],
    table: str,
    columns: ColumnPolicies | frozenset[str],
    history: TableHistory,
    values: ValuePolicies = DEFAULT_POLICIES,
    *,
    only_acting: bool = False,
) -> Iterator[RowChanges]:
    """Yields a table's changes, range by range. ``columns``: names in the source in lower case, or columns with their
    policies. ``only_acting``: without ranges that have nothing but inserts, or no event with actions. Raises
    DamagedError, StorageError, UnsupportedError."""
    for transactions in ranges:
        events = _event_numbers(transactions, table, history)
        if not len(events.numbers) or (only_acting and not events.may_act.any()):
            continue
        if isinstance(columns, frozenset):
            sources: Sequence[str] = [name for name in events.names if name.lower() in columns]
        else:
            sources = columns.sources
        options = DecodeOptions(images="both", columns=sources, policies=values)
        batches = list(decode_transactions(transactions, table=table, options=options, history=history))
        if not batches:
            continue
        if not isinstance(columns, frozenset):
            batches = [columns.apply(batch) for batch in batches]
        rows = pa.Table.from_batches(batches)
        tx = np.searchsorted(transactions.entries["seq"], rows["_seq"].to_numpy().astype(np.uint64))
        at = np.searchsorted(events.numbers, (tx << 32) | (rows["_row"].to_numpy() >> 32))
        yield RowChanges(rows, events.places[at], events.acts[at])


@dataclass(frozen=True)
class _EventNumbers:
    """The row events of a table in one range, in their order."""

    numbers: npt.NDArray[np.int64]
    """The number of the transaction times 2**32, plus the ordinal in it."""
    places: npt.NDArray[np.int64]
    acts: npt.NDArray[np.bool_]
    is_insert: npt.NDArray[np.bool_]
    names: tuple[str, ...]
    """The names of the table's columns."""

    @property
    def may_act(self) -> npt.NDArray[np.bool_]:
        return self.acts & ~self.is_insert


def _event_numbers(transactions: Transactions, table: str, history: TableHistory) -> _EventNumbers:
    numbers, places, acts, inserts = [], [], [], []
    names: dict[str, None] = {}
    for run in table_events(transactions, table, _SCAN_BYTES, history):
        numbers.append((run.tx << 32) | run.ordinal)
        places.append(run.origin)
        acts.append((transactions.buf[run.origin + _FLAGS_AT] & _NO_FOREIGN_KEY_CHECKS) == 0)
        inserts.append(np.isin(run.type, _INSERTS))
        names |= dict.fromkeys(column.name for column in run.layout.columns)
    if not numbers:
        none = np.zeros(0, np.int64)
        return _EventNumbers(none, none, none.astype(bool), none.astype(bool), ())
    return _EventNumbers(
        np.concatenate(numbers), np.concatenate(places), np.concatenate(acts), np.concatenate(inserts), tuple(names)
    )


def changed_rows(rows: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    """Returns for each row with both images whether it is an update that changed this column."""
    new, old = rows[name].combine_chunks(), _old(rows, name)
    is_same = pc.fill_null(pc.equal(new, old), False)
    is_same = pc.or_(is_same, pc.and_(pc.is_null(new), pc.is_null(old)))
    is_update = pc.equal(rows["_op"], 2).combine_chunks()
    return np.asarray(pc.and_(is_update, pc.invert(is_same)).to_numpy(zero_copy_only=False))


def _old(rows: pa.Table, name: str) -> pa.Array:
    return pc.struct_field(rows[BEFORE].combine_chunks(), [name])


def parent_changes(
    ranges: Iterable[Transactions], parent: str, columns: Collection[str], history: TableHistory
) -> Iterator[ParentChange]:
    """Yields the deletes of a table's rows, and the changes of these columns (in lower case), for which the server
    executed the actions of foreign keys."""
    for changes in row_changes(ranges, parent, frozenset(columns), history, only_acting=True):
        seqs = changes.rows["_seq"].to_numpy()
        deleted = changes.acts & (changes.rows["_op"].to_numpy() == 0)
        if deleted.any():
            yield ParentChange(parent, None, tuple(np.unique(seqs[deleted]).tolist()))
        spelled = {name.lower(): name for name in changes.rows.column_names}
        for name in sorted(columns):
            if name in spelled:
                updated = changes.acts & changed_rows(changes.rows, spelled[name])
            else:  # the rows are from before it got this name
                updated = changes.acts & (changes.rows["_op"].to_numpy() == UPDATE)
            if updated.any():
                yield ParentChange(parent, name, tuple(np.unique(seqs[updated]).tolist()))


@dataclass(frozen=True)
class TableEvents:
    """Row events of a table, with the compared columns."""

    table: str
    rows: pa.Table | None
    """With both images; None if there are none."""
    places: Places
    acts: Mask
    names: tuple[str, ...]
    """The compared columns, in order."""
    lacks_columns: bool = False
    """Whether some rows do not have all of them."""

    @classmethod
    def of(cls, table: str, changes: Iterable[RowChanges], names: tuple[str, ...]) -> TableEvents:
        """Returns the events with these changes, whose columns have these names in any case."""
        parts = list(changes)
        if not parts:
            none = np.zeros(0, np.int64)
            return cls(table, None, none, none.astype(bool), names)
        return cls(
            table,
            pa.concat_tables([part.rows for part in parts], promote_options="default"),
            np.concatenate([part.places for part in parts]),
            np.concatenate([part.acts for part in parts]),
            names,
            any({name.lower() for name in names} - {name.lower() for name in part.rows.column_names} for part in parts),
        )

    @cached_property
    def ordinals(self) -> dict[int, list[tuple[int, int]]]:
        """The table's events by seq, as (place, ordinal)."""
        if self.rows is None:
            return {}
        ordinals: dict[int, dict[int, int]] = {}
        seqs, rows = self.rows["_seq"].to_numpy(), self.rows["_row"].to_numpy() >> 32
        starts = np.flatnonzero(np.diff(rows, prepend=-1) | np.diff(seqs, prepend=-1))
        for at in starts.tolist():
            ordinals.setdefault(int(seqs[at]), {})[int(self.places[at])] = int(rows[at])
        return {seq: sorted(events.items()) for seq, events in ordinals.items()}

    def acting(self, keys: Sequence[CascadingKey], *, is_own: bool) -> list[EventChange]:
        """Returns the deletes, and the updates of referenced columns, for which the server executed actions."""
        if self.rows is None:
            return []
        mask = self.acts & (self.rows["_op"].to_numpy() == DELETE)
        for key in keys:
            if key.parent == self.table and key.on_update in ("CASCADE", "SET NULL"):
                for place in key.parent_columns:
                    mask |= self.acts & changed_rows(self.rows, self._spelled[place])
        return self._changes(np.flatnonzero(mask), is_own=is_own)

    def own(
        self,
        values: Iterable[tuple[Sequence[int], CascadingKey, set[Value]]],
        identity: Sequence[int],
        rows: Iterable[Row] = (),
    ) -> list[EventChange]:
        """Returns all changes of the rows that had, before or after some change here, one of the values of a key in
        columns at these places, or one of these primary keys. ``identity``: the places of the primary key; without it
        only the changes with the values are returned."""
        if self.rows is None:
            return []
        mask = np.zeros(len(self.rows), dtype=bool)
        for places, key, key_values in values:
            for image in self._images(places) if key_values else ():
                mask |= _has_value(image, key, key_values)
        chosen, identities = np.flatnonzero(mask), set(rows)
        images = self._images(identity) if identity else []
        if images and identities:
            chosen = np.union1d(chosen, np.concatenate([_positions(image, identities) for image in images]))
        while images and len(chosen):  # a row may have had several primary keys
            more = {row for image in images for row in _rows(image, chosen)} - identities
            if not more:
                break
            identities |= more
            chosen = np.unique(np.concatenate([_positions(image, identities) for image in images]))
        return self._changes(chosen, is_own=bool(identity))

    def _images(self, places: Sequence[int]) -> list[list[pa.Array]]:
        """Returns columns after the changes, and before them."""
        assert self.rows is not None
        before = self.rows[BEFORE].combine_chunks()
        names = [self._spelled[place] for place in places]
        return [[self.rows[name].combine_chunks() for name in names], [before.field(name) for name in names]]

    @cached_property
    def _spelled(self) -> list[str]:
        assert self.rows is not None
        spelled = {name.lower(): name for name in self.rows.column_names}
        return [spelled[name.lower()] for name in self.names]

    @property
    def types(self) -> list[pa.DataType]:
        """The types of the compared columns; empty without events."""
        return [] if self.rows is None else [self.rows.schema.field(name).type for name in self._spelled]

    def _changes(self, at: Places, *, is_own: bool) -> list[EventChange]:
        assert self.rows is not None
        rows = self.rows.take(pa.array(at))
        before = rows[BEFORE].combine_chunks()
        new = list(zip(*[rows[name].to_pylist() for name in self._spelled], strict=True))
        old = list(zip(*[before.field(name).to_pylist() for name in self._spelled], strict=True))
        metadata = [rows[name].to_pylist() for name in ("_op", "_seq", "_row", "_commit_time", "_gtid")]
        changes = []
        for number, (op, seq, row, time, gtid) in enumerate(zip(*metadata, strict=True)):
            place, acts = int(self.places[at[number]]), bool(self.acts[at[number]])
            changes.append(
                EventChange(
                    seq,
                    place,
                    row,
                    self.table,
                    old[number] if op in (DELETE, UPDATE) else None,
                    None if op == DELETE else new[number],
                    acts,
                    is_own,
                    time,
                    gtid,
                )
            )
        return changes


def _rows(columns: Sequence[pa.Array], at: Places) -> list[Row]:
    """Returns the values of some rows."""
    return list(zip(*[column.take(pa.array(at)).to_pylist() for column in columns], strict=True))


def _positions(columns: Sequence[pa.Array], values: set[Row]) -> Places:
    """Returns where the rows have one of these values."""
    firsts = pa.array({row[0] for row in values if row[0] is not None}, columns[0].type)
    at: Places = np.flatnonzero(pc.is_in(columns[0], firsts).to_numpy(zero_copy_only=False))
    is_wanted = np.array([row in values for row in _rows(columns, at)], dtype=bool)
    chosen: Places = at[is_wanted]
    return chosen


def _has_value(arrays: Sequence[pa.Array], key: CascadingKey, values: set[Value]) -> Mask:
    """Returns for each row whether its columns of a key have one of the values."""
    # Each distinct value is compared once.
    codes = [array.dictionary_encode() for array in arrays]
    numbers = np.stack([pc.fill_null(code.indices, -1).to_numpy() for code in codes])
    distinct, inverse = np.unique(numbers, axis=1, return_inverse=True)
    lists = [[*code.dictionary.to_pylist(), None] for code in codes]
    matches = [
        key.fold(tuple(listed[i] for listed, i in zip(lists, column, strict=True))) in values
        for column in distinct.T.tolist()
    ]
    return np.array(matches, dtype=bool)[inverse.reshape(-1)]
