"""Finds a table's row events in a byte range, in runs that share a layout; and splits large transactions.

A scan can stop at any event and continue from there, in another process too. What the continuation must know of the
events before it is little: the number of the table's row events and the table maps in force. So several readers can
share one large transaction, each with a :class:`TransactionSlice`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cdc.binlog.row_header import BODY_AT
from cdc.decode.column_types import DEFAULT_POLICIES, ValuePolicies
from cdc.decode.faults import scan_fault
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.scan import FoundEvents, ScanPosition, ScanState, TransactionBytes, scan_events
from cdc.decode.layout import TableLayout, layout_at, name_pattern
from cdc.decode.packed import unpacked_events
from cdc.decode.row_events import PARTIAL_UPDATE_ROWS, RowEvents, whole_updates
from cdc.decode.transactions import NO_HISTORY, TableHistory, Transactions

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
_EVENTS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class TransactionSlice:
    """The events of one transaction from ``start`` to ``stop`` (offsets in the file), for one table."""

    start: int
    stop: int
    ordinal: int
    """The number of the table's row events before ``start`` in the transaction."""
    maps: tuple[tuple[int, int, int], ...]
    """The table's table maps in force at ``start``: table id, offset and length of the event."""

    @property
    def byte_ranges(self) -> list[tuple[int, int]]:
        """The ranges of the file, start and stop, that reading the slice needs."""
        return [(self.start, self.stop), *((offset, offset + length) for _, offset, length in self.maps)]


class ScanCursor:
    """A scan for one table's events that stops when its output is full and continues when it is called again."""

    def __init__(self, transactions: Transactions, table: str) -> None:
        self._path = transactions.path
        self._table = table
        self._tail = transactions.tail
        self._name = name_pattern(table)
        self._state = ScanState(
            at=ScanPosition.new(pos=-1, verified=int(transactions.verified)),
            ids=np.zeros((k.MAX_IDS, 2), dtype=np.int64),
            layouts=np.zeros((k.MAX_LAYOUTS, 2), dtype=np.int64),
            scratch=np.zeros(16, dtype=np.uint8),
        )

    def scan(self, transactions: TransactionBytes, out: FoundEvents, max_bytes: int) -> tuple[bool, int]:
        """Fills ``out`` and returns (whether there may be more events, number of events in ``out``).

        Raises DamagedError, UnsupportedEventError, UnsupportedError.
        """
        status, count = scan_events(transactions, self._name, self._state, out, max_bytes)
        if status > k.FULL:
            at = self._state.at
            raise scan_fault(status, self._path, int(at.bad_pos), int(at.bad_type), self._table)
        return status == k.FULL, count

    def table_map(self, number: int) -> tuple[int, int]:
        """The offset and the length of the event that is the table's table map of this number."""
        start = int(self._state.layouts[number, 0]) - BODY_AT
        return start, int(self._state.layouts[number, 1]) + self._tail - start

    @property
    def position(self) -> int:
        """The offset of the next event."""
        return int(self._state.at.pos)

    def seek(self, position: int) -> None:
        """Continues at the first event of a transaction."""
        self._state.at.pos = position

    def slice_from_here(self) -> TransactionSlice:
        """A slice that begins at the next event; its end is not known yet and is 0."""
        at = self._state.at
        maps = [(table_id, *self.table_map(number)) for table_id, number in self._state.ids[: at.ids].tolist()]
        return TransactionSlice(self.position, 0, int(at.ordinal), tuple(maps))

    def continue_at(self, part: TransactionSlice) -> None:
        """Continues at the beginning of a slice, in the state in which the scan that made it was there."""
        at = self._state.at
        at.pos, at.ordinal = part.start, part.ordinal
        at.ids = at.layouts = len(part.maps)
        for number, (table_id, start, length) in enumerate(part.maps):
            self._state.ids[number] = table_id, number
            self._state.layouts[number] = start + BODY_AT, start + length - self._tail


def _room(events: int) -> FoundEvents:
    return FoundEvents(*(np.empty(events, dtype=np.int64) for _ in FoundEvents._fields))


def table_events(
    transactions: Transactions,
    table: str,
    max_bytes: int,
    history: TableHistory = NO_HISTORY,
    policies: ValuePolicies = DEFAULT_POLICIES,
    part: TransactionSlice | None = None,
) -> Iterator[RowEvents]:
    """Yields the table's row events in runs of one layout and of at most about ``max_bytes``. Partial updates are
    rewritten into whole ones, and compressed events are unpacked. With ``part``, only its events of the one transaction
    are read.

    Raises DamagedError, UnsupportedEventError, and what :meth:`TableLayout.of` raises once rows are found.
    """
    cursor = ScanCursor(transactions, table)
    if part is not None:
        cursor.continue_at(part)
    source = transactions.for_kernels(None if part is None else part.stop)
    layouts: dict[tuple[int, int], TableLayout] = {}
    schema_of = history.at(transactions.entries["seq"])
    room = int(min(_EVENTS_AT_ONCE, max(16, transactions.entries["row_events"].sum())))
    more = True
    while more:
        out = _room(room)
        more, count = cursor.scan(source, out, max_bytes)
        schema = schema_of[out.tx[:count]]
        partial = out.type[:count] == PARTIAL_UPDATE_ROWS
        changes = (np.diff(out.layout[:count]) != 0) | (np.diff(schema) != 0) | (np.diff(partial) != 0)
        for start, stop in itertools.pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), count]):
            if start == stop:
                continue
            key = (int(out.layout[start]), int(schema[start]))
            if key not in layouts:
                layouts[key] = layout_at(transactions, *cursor.table_map(key[0]), history.schema(key[1]), policies)
            offset, length, kind, tx, ordinal = (array[start:stop] for array in out[:5])
            run = RowEvents(layouts[key], transactions.buf, offset, offset, length, kind, tx, ordinal)
            yield whole_updates(run, transactions) if partial[start] else unpacked_events(run, transactions)


def split_transaction(transactions: Transactions, table: str, size_bytes: int) -> Iterator[TransactionSlice]:
    """Splits the one transaction into slices with about ``size_bytes`` of the table's row events each; yields none if
    it has no row events of the table.

    Raises DamagedError, UnsupportedEventError, UnsupportedError.
    """
    source = transactions.for_kernels()
    if len(source.begin) != 1:
        raise ValueError("slices are made of one transaction")
    cursor = ScanCursor(transactions, table)
    cursor.seek(int(source.begin[0]))
    out = _room(max(16, int(transactions.entries["row_events"][0]) + 1))
    more = True
    while more:
        before = cursor.slice_from_here()
        more, count = cursor.scan(source, out, size_bytes)
        if count:
            yield replace(before, stop=cursor.position if more else int(source.end[0]))
