"""From a byte range to slices: runs of one table's row events that share a layout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import EventType
from cdc.decode.binary_json.partial import PartialFault, expand_partial
from cdc.decode.cursor import Part, ScanCursor
from cdc.decode.faults import row_fault, scan_fault
from cdc.decode.history import NO_HISTORY, TableHistory
from cdc.decode.kernels import constants as k
from cdc.decode.layout import TableLayout
from cdc.decode.plans import DEFAULT_POLICIES, ValuePolicies
from cdc.decode.table_maps import layout_at, name_pattern
from cdc.decode.transactions import Transactions

Longs = npt.NDArray[np.int64]
_EVENTS_AT_ONCE = 1 << 18
UPDATE_ROWS, PARTIAL_UPDATE_ROWS = int(EventType.UPDATE_ROWS), int(EventType.PARTIAL_UPDATE_ROWS)


@dataclass(frozen=True)
class Events:
    """Row events of one table and one layout, in order: position, length, type, number of the transaction, ordinal
    of the event among the table's in its transaction."""

    layout: TableLayout
    buf: npt.NDArray[np.uint8]
    """What the positions are in."""
    origin: Longs
    """Where each event lies in its file."""
    offset: Longs
    length: Longs
    type: Longs
    tx: Longs
    ordinal: Longs

    def __len__(self) -> int:
        return len(self.offset)

    def part(self, start: int, stop: int) -> Events:
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

    @property
    def end(self) -> int:
        """Where the last one ends."""
        return int(self.offset[-1] + self.length[-1])

    def event_of(self, pos: int) -> int:
        """Number of the event that holds a position."""
        return max(0, int(np.searchsorted(self.offset, pos, side="right")) - 1)


def table_events(
    transactions: Transactions,
    table: str,
    max_bytes: int,
    history: TableHistory = NO_HISTORY,
    policies: ValuePolicies = DEFAULT_POLICIES,
    part: Part | None = None,
) -> Iterator[Events]:
    """The table's row events, in runs of at most about ``max_bytes`` and of one layout each. Partial updates have
    become whole ones. ``part``: only those in this part of the one transaction.

    Raises DamagedError, UnsupportedEventError, and what :meth:`TableLayout.of` raises once rows are found.
    """
    begin, end = transactions.bounds()
    name = name_pattern(table)
    cursor = ScanCursor(transactions.tail)
    if part is not None:
        cursor.go_to(part)
        end = np.minimum(end, part.stop)
    known: dict[tuple[int, int], TableLayout] = {}
    schema_of = history.at(transactions.entries["seq"])
    room = int(min(_EVENTS_AT_ONCE, max(16, transactions.entries["row_events"].sum())))
    status = k.FULL
    while status == k.FULL:
        offset, length, kind, tx, ordinal, layout = out = [np.empty(room, dtype=np.int64) for _ in range(6)]
        status, count = cursor.scan(transactions, begin, end, name, out, max_bytes)
        if status > k.FULL:
            state = cursor.state
            raise scan_fault(status, transactions.path, int(state[k.SCAN_BAD_POS]), int(state[k.SCAN_BAD_TYPE]), table)
        schema = schema_of[tx[:count]]
        partial = kind[:count] == PARTIAL_UPDATE_ROWS
        changes = (np.diff(layout[:count]) != 0) | (np.diff(schema) != 0) | (np.diff(partial) != 0)
        for start, stop in itertools.pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), count]):
            if start == stop:
                continue
            key = (int(layout[start]), int(schema[start]))
            if key not in known:
                known[key] = layout_at(transactions, cursor.maps[key[0]], history.schema(key[1]), policies)
            cut = slice(start, stop)
            run = Events(
                known[key], transactions.buf, offset[cut], offset[cut], length[cut], kind[cut], tx[cut], ordinal[cut]
            )
            yield whole(run, transactions) if partial[start] else run


def whole(run: Events, transactions: Transactions) -> Events:
    """Partial updates as whole ones, in memory of their own."""
    spec = run.layout.kernel_spec([])
    try:
        buf, offset, length = expand_partial(
            run.buf, run.offset, run.length, transactions.tail, spec.spec, run.layout.json_columns
        )
    except PartialFault as found:
        event = run.event_of(found.pos)
        raise row_fault(
            found.code, transactions.path, found.pos, int(run.origin[event]), run.layout, found.column
        ) from None
    return replace(run, buf=buf, offset=offset, length=length, type=np.full(len(run), UPDATE_ROWS, dtype=np.int64))
