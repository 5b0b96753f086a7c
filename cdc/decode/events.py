"""From a byte range to slices: runs of one table's row events that share a layout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import CHECKSUM_SIZE
from cdc.binlog.entry import Entries, EntryFlag
from cdc.binlog.table_map import parse_table_map
from cdc.decode.faults import scan_fault
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.scan import list_table_maps, scan_events
from cdc.decode.layout import TableLayout
from cdc.errors import DamagedError, UsageError

Longs = npt.NDArray[np.int64]
_EVENTS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Transactions:
    """Whole transactions in an opened file: ``entries`` say where, offsets in ``buf`` (uint8). ``path`` is for
    messages: a staged file's URI is a text."""

    path: Path | str
    buf: npt.NDArray[np.uint8]
    has_checksum: bool
    entries: Entries

    @property
    def tail(self) -> int:
        """Bytes of checksum at the end of each event."""
        return CHECKSUM_SIZE if self.has_checksum else 0

    def between(self, after_seq: int, upto_seq: int | None) -> Transactions:
        """Those with a larger seq than the one and no larger one than the other, without position entries and
        prepared ones."""
        entries = self.entries
        keep = (entries["length"] > 0) & (entries["seq"] > np.uint64(after_seq))
        keep &= (entries["flags"] & int(EntryFlag.XA_PREPARED | EntryFlag.POSITION)) == 0
        if upto_seq is not None:
            keep &= entries["seq"] <= np.uint64(upto_seq)
        return Transactions(self.path, self.buf, self.has_checksum, entries if keep.all() else entries[keep])

    def bounds(self) -> tuple[Longs, Longs]:
        """Where each begins and ends."""
        begin = self.entries["offset"].astype(np.int64)
        return begin, begin + self.entries["length"].astype(np.int64)


@dataclass(frozen=True)
class Events:
    """Row events of one table and one layout, in order: position, length, type, number of the transaction, ordinal
    of the event among the table's in its transaction."""

    layout: TableLayout
    offset: Longs
    length: Longs
    type: Longs
    tx: Longs
    ordinal: Longs

    def __len__(self) -> int:
        return len(self.offset)

    def part(self, start: int, stop: int) -> Events:
        cut = slice(start, stop)
        return Events(self.layout, self.offset[cut], self.length[cut], self.type[cut], self.tx[cut], self.ordinal[cut])

    @property
    def end(self) -> int:
        """Where the last one ends."""
        return int(self.offset[-1] + self.length[-1])


def split_table(table: str) -> tuple[str, str]:
    """``db.table`` → both names. Raises UsageError."""
    db, dot, name = table.partition(".")
    if not dot or not db or not name:
        raise UsageError(f"{table!r} is not the name of a table", remedy="Give it as DB.TABLE.")
    return db, name


def name_pattern(table: str) -> npt.NDArray[np.uint8]:
    """The names as they stand in a table map: length, database, NUL, length, table, NUL. Raises UsageError."""
    parts = [part.encode() for part in split_table(table)]
    if any(len(part) > 255 for part in parts):
        raise UsageError(f"{table!r} is too long for the name of a table")
    return np.frombuffer(b"".join(bytes([len(part)]) + part + b"\0" for part in parts), dtype=np.uint8)


def table_events(transactions: Transactions, table: str, max_bytes: int) -> Iterator[Events]:
    """The table's row events, in runs of at most about ``max_bytes`` and of one layout each.

    Raises DamagedError, UnsupportedEventError, and what :meth:`TableLayout.of` raises once rows are found.
    """
    begin, end = transactions.bounds()
    name = name_pattern(table)
    state = np.zeros(k.SCAN_STATE_SIZE, dtype=np.int64)
    state[k.SCAN_POS] = -1
    ids = np.zeros((k.MAX_IDS, 2), dtype=np.int64)
    maps = np.zeros((k.MAX_LAYOUTS, 2), dtype=np.int64)
    known: list[TableLayout] = []
    room = int(min(_EVENTS_AT_ONCE, max(16, transactions.entries["row_events"].sum())))
    status = k.FULL
    while status == k.FULL:
        offset, length, kind, tx, ordinal, layout = (np.empty(room, dtype=np.int64) for _ in range(6))
        status, count = scan_events(
            transactions.buf,
            begin,
            end,
            transactions.tail,
            name,
            state,
            ids,
            maps,
            offset,
            length,
            kind,
            tx,
            ordinal,
            layout,
            max_bytes,
            np.zeros(16, dtype=np.uint8),
        )
        if status > k.FULL:
            raise scan_fault(status, transactions.path, int(state[k.SCAN_BAD_POS]), int(state[k.SCAN_BAD_TYPE]), table)
        cuts = [0, *(np.flatnonzero(np.diff(layout[:count])) + 1).tolist(), count]
        for start, stop in itertools.pairwise(cuts):
            if start == stop:
                continue
            number = int(layout[start])
            while len(known) <= number:
                known.append(_layout_at(transactions, maps[len(known)]))
            cut = slice(start, stop)
            yield Events(known[number], offset[cut], length[cut], kind[cut], tx[cut], ordinal[cut])


def _layout_at(transactions: Transactions, names: Longs) -> TableLayout:
    """The layout in the table map whose names begin and whose body ends there."""
    return _parse(transactions, int(names[0]) - 27, int(names[1]) + transactions.tail)


def _parse(transactions: Transactions, start: int, stop: int) -> TableLayout:
    try:
        table_map = parse_table_map(transactions.buf[start:stop].tobytes(), transactions.has_checksum)
    except DamagedError as error:
        raise DamagedError(error.message, place=f"{transactions.path}, position {start}") from None
    return TableLayout.of(table_map)


def range_layouts(transactions: Transactions, wanted: frozenset[str]) -> Iterator[tuple[int, TableLayout]]:
    """Position and layout of every distinct table map of the wanted tables. Raises as :func:`table_events`."""
    begin, end = transactions.bounds()
    room = 256
    while True:
        out = np.empty((room, 2), dtype=np.int64)
        slots = np.full(4 * room, -1, dtype=np.int64)
        status, count, pos = list_table_maps(
            transactions.buf, begin, end, transactions.tail, out, slots, np.zeros(16, dtype=np.uint8)
        )
        if status != k.FULL:
            break
        room *= 8
    if status != k.OK:
        raise scan_fault(status, transactions.path, pos, 0, None)
    patterns = {name_pattern(table).tobytes() for table in wanted}
    for start, length in out[:count].tolist():
        db_length = int(transactions.buf[start + 27])
        table_at = start + 27 + db_length + 2
        if table_at >= start + length:
            raise scan_fault(k.BAD_FRAME, transactions.path, start, 19, None)
        names = transactions.buf[start + 27 : table_at + int(transactions.buf[table_at]) + 2].tobytes()
        if names in patterns:
            yield start, _parse(transactions, start, start + length)
