"""From a byte range to slices: runs of one table's row events that share a layout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import CHECKSUM_SIZE, EventType
from cdc.binlog.entry import Entries, EntryFlag
from cdc.binlog.table_map import parse_table_map
from cdc.decode.binary_json.partial import PartialFault, expand_partial
from cdc.decode.cursor import Part, ScanCursor
from cdc.decode.faults import row_fault, scan_fault
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.scan import list_table_maps
from cdc.decode.layout import TableLayout
from cdc.decode.plans import DEFAULT_POLICIES, ValuePolicies
from cdc.errors import CdcError, UsageError
from cdc.schemas import TableSchema

Longs = npt.NDArray[np.int64]
_EVENTS_AT_ONCE = 1 << 18
ALL_TABLES = (1 << 64) - 1
UPDATE_ROWS, PARTIAL_UPDATE_ROWS = int(EventType.UPDATE_ROWS), int(EventType.PARTIAL_UPDATE_ROWS)


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

    def of_tables(self, mask: int) -> Transactions:
        """Those with one of the bits in their table mask."""
        if mask == ALL_TABLES:
            return self
        entries = self.entries[(self.entries["table_mask"] & np.uint64(mask)) != 0]
        return Transactions(self.path, self.buf, self.has_checksum, entries)

    def bounds(self) -> tuple[Longs, Longs]:
        """Where each begins and ends."""
        begin = self.entries["offset"].astype(np.int64)
        return begin, begin + self.entries["length"].astype(np.int64)


@dataclass(frozen=True)
class TableHistory:
    """How ``information_schema`` described one table, as capture stored it: in force after each ``since`` (ascending
    seqs), the first one before it, too."""

    since: tuple[int, ...] = ()
    schemas: tuple[TableSchema | None, ...] = ()

    @classmethod
    def always(cls, schema: TableSchema | None) -> TableHistory:
        return cls((0,), (schema,))

    def at(self, seqs: npt.NDArray[np.uint64]) -> Longs:
        """Which of the schemas holds at each seq."""
        if len(self.since) < 2:
            return np.zeros(len(seqs), dtype=np.int64)
        found = np.searchsorted(np.array(self.since, dtype=np.uint64), seqs, side="right") - 1
        return np.maximum(found, 0).astype(np.int64)

    def schema(self, number: int) -> TableSchema | None:
        return self.schemas[number] if self.schemas else None


NO_HISTORY = TableHistory()


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
                known[key] = _layout_at(transactions, cursor.maps[key[0]], history.schema(key[1]), policies)
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


def _layout_at(
    transactions: Transactions, names: Longs, schema: TableSchema | None, policies: ValuePolicies
) -> TableLayout:
    """The layout in the table map whose names begin and whose body ends there."""
    return _parse(transactions, int(names[0]) - 27, int(names[1]) + transactions.tail, schema, policies)


def _parse(
    transactions: Transactions, start: int, stop: int, schema: TableSchema | None, policies: ValuePolicies
) -> TableLayout:
    try:
        table_map = parse_table_map(transactions.buf[start:stop].tobytes(), transactions.has_checksum)
        layout = TableLayout.of(table_map, schema, policies)
        layout.kernel_spec([])  # what is wrong with a column shows here, where its place is known
    except CdcError as error:
        place = f"{transactions.path}, position {start}"
        error.place = place if error.place is None else f"{place}, {error.place}"
        raise
    return layout


def range_layouts(
    transactions: Transactions, wanted: Mapping[str, TableSchema | None], policies: ValuePolicies = DEFAULT_POLICIES
) -> Iterator[tuple[int, TableLayout]]:
    """Position and layout of every distinct table map of the wanted tables, given with their stored schemas. Raises as
    :func:`table_events`."""
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
    patterns = {name_pattern(table).tobytes(): schema for table, schema in wanted.items()}
    for start, length in out[:count].tolist():
        db_length = int(transactions.buf[start + 27])
        table_at = start + 27 + db_length + 2
        if table_at >= start + length:
            raise scan_fault(k.BAD_FRAME, transactions.path, start, 19, None)
        names = transactions.buf[start + 27 : table_at + int(transactions.buf[table_at]) + 2].tobytes()
        if names in patterns:
            yield start, _parse(transactions, start, start + length, patterns[names], policies)
