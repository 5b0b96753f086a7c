"""A table's row events, and those rewritten that do not hold whole rows: partial updates of JSON columns, and rows that
lack columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.binlog.constants import EventType
from cdc.decode.faults import row_fault
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.part_images import Filling, fill_events
from cdc.decode.kernels.rows import EventArrays, Expansion, expand_events
from cdc.decode.layout import KernelSpec, TableLayout
from cdc.decode.transactions import Transactions

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
UPDATE_ROWS, PARTIAL_UPDATE_ROWS = int(EventType.UPDATE_ROWS), int(EventType.PARTIAL_UPDATE_ROWS)


@dataclass(frozen=True)
class RowEvents:
    """Consecutive row events of one table and one layout."""

    layout: TableLayout
    buf: Bytes
    origin: Longs
    """The offset of each event in its file."""
    offset: Longs
    """The offset of each event in ``buf``, which is not the file's for events that were rewritten."""
    length: Longs
    type: Longs
    tx: Longs
    """The number of each event's transaction among those that were given."""
    ordinal: Longs
    """The ordinal of each event among the table's in its transaction."""

    def __len__(self) -> int:
        return len(self.offset)

    def slice(self, start: int, stop: int) -> RowEvents:
        """The events from ``start`` to ``stop``, without copying them."""
        cut = slice(start, stop)
        return replace(
            self,
            origin=self.origin[cut],
            offset=self.offset[cut],
            length=self.length[cut],
            type=self.type[cut],
            tx=self.tx[cut],
            ordinal=self.ordinal[cut],
        )

    def for_kernels(self, tail: int) -> EventArrays:
        """The events for the kernels; ``tail`` is the size of their checksums."""
        return EventArrays(self.buf, self.offset, self.length, self.type, self.ordinal, tail)

    @property
    def end(self) -> int:
        """The offset behind the last event."""
        return int(self.offset[-1] + self.length[-1])

    def event_of(self, pos: int) -> int:
        """The number of the event that holds an offset of ``buf``."""
        return max(0, int(np.searchsorted(self.offset, pos, side="right")) - 1)


def event_offsets(events: RowEvents, transactions: Transactions, batch: pa.RecordBatch) -> Longs:
    """The offset in the file of the event of each row in a batch, which was decoded from these events."""
    seqs = transactions.entries["seq"].astype(np.int64)
    tx = np.searchsorted(seqs, batch.column(1).to_numpy())
    row_numbers = (tx.astype(np.int64) << 32) + (batch.column(2).to_numpy() >> 32)
    numbers = (events.tx << 32) + events.ordinal
    offsets: Longs = events.origin[np.searchsorted(numbers, row_numbers)]
    return offsets


# ---------------------------------------------------------------- partial updates of JSON columns, rows without columns

Rewritten: TypeAlias = tuple[Bytes, Longs, Longs]
"""A buffer, and the offsets and lengths of the events in it."""


class PartialFault(Exception):
    """An event cannot be rewritten: a code of ``kernels.constants``, the column or -1, the offset in the buffer."""

    def __init__(self, code: int, column: int, pos: int) -> None:
        super().__init__(code)
        self.code, self.column, self.pos = code, column, pos


def whole_updates(run: RowEvents, transactions: Transactions) -> RowEvents:
    """Partial updates as whole ones, in a buffer of their own. Raises DamagedError, SourceRefusedError."""
    spec, json_columns = run.layout.kernel_spec([]).arrays.spec, run.layout.json_columns
    whole = _replaced(run, transactions, lambda events: expand_partial(events, spec, json_columns))
    return replace(whole, type=np.full(len(run), UPDATE_ROWS, dtype=np.int64))


def with_all_columns(run: RowEvents, spec: KernelSpec, transactions: Transactions) -> RowEvents:
    """Row events whose rows may lack columns as events with all columns, in a buffer of their own: the missing ones are
    NULL. Raises SourceRefusedError if rows lack a column that ``spec`` wants or one of the key; DamagedError."""
    return _replaced(run, transactions, lambda events: fill_images(events, spec.arrays.spec))


def _replaced(run: RowEvents, transactions: Transactions, rewrite: Callable[[EventArrays], Rewritten]) -> RowEvents:
    try:
        buf, offset, length = rewrite(run.for_kernels(transactions.tail))
    except PartialFault as fault:
        origin = int(run.origin[run.event_of(fault.pos)])
        raise row_fault(fault.code, transactions.path, fault.pos, origin, run.layout, fault.column) from None
    return replace(run, buf=buf, offset=offset, length=length)


def fill_images(events: EventArrays, spec: Longs) -> Rewritten:
    """Rewrites row events so that their rows have all columns, with NULL where one was missing. Returns the new buffer
    and their offsets and lengths. The checksums of the new events are zeros. ``spec`` (columns, SPEC_SIZE). Raises
    PartialFault, with the code PART_IMAGE for a missing column that is wanted or of the key."""
    err = np.zeros(k.ERR_SIZE, dtype=np.int64)
    return _rewritten(events, err, lambda out, at, write: fill_events(events, Filling(spec, out, err), at, write))


def expand_partial(events: EventArrays, spec: Longs, json_columns: Longs) -> Rewritten:
    """Rewrites PARTIAL_UPDATE_ROWS events into UPDATE_ROWS events in a new buffer. Returns it and their offsets and
    lengths. The checksums of the new events are zeros.

    ``spec`` (columns, SPEC_SIZE); ``json_columns`` (columns,): 1 for JSON. A new value that is given as diffs becomes
    0xFF, the size of the old row's document (4 bytes), that document, the diffs; ``json_text`` converts it. Raises
    PartialFault, with the code PART_IMAGE if rows do not hold all columns.
    Source: MySQL's ``Update_rows_log_event`` with ``binlog_row_value_options=PARTIAL_JSON``.
    """
    err = np.zeros(k.ERR_SIZE, dtype=np.int64)
    before = np.zeros((len(spec), 2), dtype=np.int64)

    def expand(out: Bytes, begin: Longs, write: bool) -> int:
        return expand_events(events, Expansion(spec, json_columns, before, out, err), begin, write)

    return _rewritten(events, err, expand)


def _rewritten(events: EventArrays, err: Longs, rewrite: Callable[[Bytes, Longs, bool], int]) -> Rewritten:
    """Measures the rewritten events, and rewrites them into a buffer of that size."""
    begin = np.zeros(len(events.offset) + 1, dtype=np.int64)
    size = rewrite(np.empty(0, dtype=np.uint8), begin, False)
    out = np.empty(max(0, size), dtype=np.uint8)
    if size >= 0:
        size = rewrite(out, begin, True)
    if size < 0:
        raise PartialFault(int(err[k.ERR_CODE]), int(err[k.ERR_COLUMN]), int(err[k.ERR_POS]))
    return out, begin[:-1].copy(), np.diff(begin)
