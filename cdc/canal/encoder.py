"""Turns byte ranges of segments into Canal's entries, some at a time, from any position that it has reached before.

A chunk of events is listed by the first compiled pass, texts that need a conversion are made for the whole chunk, and
the second pass writes entries from it until a batch is full. A position is a chunk and an item in it, so that a rolled
back batch is made again from where it began.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.base.errors import CdcError, UnsupportedError
from cdc.binlog.events import parse_header, parse_query
from cdc.binlog.file import BinlogFile
from cdc.binlog.row_header import BODY_AT
from cdc.binlog.sql.schemas import Schemas
from cdc.binlog.table_map import parse_table_map
from cdc.canal.fields import data
from cdc.canal.kernels import entries as e
from cdc.canal.kernels import survey as s
from cdc.canal.statements import EventPlace, statement_entry
from cdc.canal.tables import TableSet, canal_table
from cdc.canal.texts import SideTexts
from cdc.canal.zones import UTC, Zone
from cdc.decode.conversions.base import binary_parts
from cdc.decode.faults import row_fault, scan_fault
from cdc.decode.kernels import constants as k
from cdc.decode.packed import unpacked_events
from cdc.decode.reader import warm_up_file
from cdc.decode.row_events import PARTIAL_UPDATE_ROWS, RowEvents, whole_updates
from cdc.decode.transactions import Transactions, gtid_strings, open_range

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

CHUNK_BYTES = 1 << 20
"""Bytes of events in a chunk; at least one event."""
_CHUNK_ITEMS = 1 << 15
_FIRST_OUT_BYTES = 1 << 20
MOST_OUT_BYTES = (1 << 31) - (1 << 16)
"""The largest packet that clients can read."""
_SEQ_OFFSET = (1 << 34) - 1
_ROW_TYPES_PLAIN = (23, 24, 25, 30, 31, 32)

ByteRange = tuple[Path | str, int, int]
"""A file, an offset in it, a length: whole transactions."""


class EncoderMark(NamedTuple):
    """A position in the ranges of an encoder, before an entry. Compares with others of the same encoder."""

    range: int
    tx: int
    pos: int
    """Of the chunk's first event; -1: the transaction's begin."""
    item: int
    state: tuple[bytes, bytes]
    """The numbers of the scan at the chunk's begin, and the table ids in force."""


@dataclass
class Taken:
    """Entries: the bytes of the fields ``messages`` of a ``Messages``."""

    out: Bytes
    size: int
    entries: int
    source_bytes: int
    """Size of the events."""
    entry_bytes: int
    """Size of the entries, without their tags and lengths in ``Messages``."""
    done_seq: int
    """The last transaction of which no entry comes any more; 0 if there is none."""

    @property
    def data(self) -> memoryview:
        return memoryview(self.out)[: self.size]  # type: ignore[arg-type]


@dataclass
class _Chunk:
    """Events that are listed, with their texts."""

    items: s.Items
    count: int
    start: EncoderMark
    sources: e.Sources | None = None
    side_row: Longs = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    next: int = 0


class EntryEncoder:
    """The entries of byte ranges, in order. Not safe in several threads at once."""

    def __init__(
        self,
        ranges: Sequence[ByteRange],
        *,
        schemas: Schemas | None,
        is_wanted: Callable[[str], bool],
        file_of: Callable[[int], str],
        ignores_case: bool = False,
        zone: Zone = UTC,
        opener: Callable[[Path | str, int, int], Transactions] = open_range,
    ) -> None:
        """``schemas``: the tables' definitions in force; ``is_wanted``: whether rows of ``db.table`` become entries;
        ``file_of``: the source's file of a seq; ``ignores_case``: as for :func:`~cdc.binlog.sql.statements.classify`;
        ``zone``: of TIMESTAMP."""
        self._opener = opener
        self._ranges = list(ranges)
        self._schemas = schemas
        self._is_wanted = is_wanted
        self._file_of = file_of
        self._ignores_case = ignores_case
        self._tables = TableSet(zone.at, zone.offset)
        self._range = -1
        self._transactions: Transactions | None = None
        self._last_seqs: dict[int, int] = {}
        self._state = _new_state()
        self._chunk: _Chunk | None = None
        self._progress = e.EntryProgress.new()
        self._old = np.zeros((1, 2), dtype=np.int64)
        self.spare: Bytes | None = None
        """An output buffer to use again."""

    # --- positions

    def mark(self) -> EncoderMark:
        """The position of the next entry."""
        chunk = self._chunk
        if chunk is None:
            return EncoderMark(0, 0, -1, 0, (b"", b""))
        return chunk.start._replace(item=chunk.next)

    def seek(self, mark: EncoderMark) -> None:
        """Continues at a position that :meth:`mark` returned."""
        chunk = self._chunk
        if chunk is not None and chunk.start._replace(item=0) == mark._replace(item=0):
            if chunk.next > mark.item:
                chunk.side_row = np.zeros_like(chunk.side_row)
                self._skip_rows(chunk, mark.item)
            chunk.next = mark.item
            return
        self._chunk = None
        self._range = -1
        self._transactions = None
        if mark.state[0]:
            self._open(mark.range)
            self._state = _restored(mark.state)
            listed = self._next_chunk()
            if listed is not None and mark.item:
                self._skip_rows(listed, mark.item)
                listed.next = mark.item

    def rest(self) -> None:
        """Lets go of what it holds in memory, once it is finished. Only :meth:`seek` may follow."""
        self._chunk = self._transactions = self.spare = None

    def _skip_rows(self, chunk: _Chunk, item: int) -> None:
        """Sets the texts' rows to those of the item: the entries before it are written once more, and dropped."""
        if item == 0 or chunk.sources is None or not bool((self._tables.arrays.tables["has_side"] == 1).any()):
            return
        chunk.next = 0
        while chunk.next < item:
            self._progress.numbers[:] = 0
            self._write(chunk, item, np.empty(_FIRST_OUT_BYTES, dtype=np.uint8), _FIRST_OUT_BYTES // 2)

    # --- entries

    def take(self, max_bytes: int) -> Taken | None:
        """Returns the next entries: as many as have more than ``max_bytes`` together, or all; None if there are none
        left. Raises DamagedError, UnsupportedError, UnsupportedTypeError, SourceRefusedError, StorageError."""
        out, self.spare = self.spare, None
        if out is None:
            out = np.empty(min(_FIRST_OUT_BYTES, max(max_bytes, 1 << 16)), dtype=np.uint8)
        progress = self._progress
        progress.end = progress.source_bytes = progress.frames = 0
        entries = 0
        while progress.end - progress.frames <= max_bytes:
            chunk = self._chunk
            if chunk is None or chunk.next >= chunk.count:
                if self._next_chunk() is None:
                    break
                continue
            before = chunk.next
            out = self._write(chunk, chunk.count, out, max_bytes)
            entries += chunk.next - before
        end = int(progress.end)
        if not entries and end == 0:
            self.spare = out
            return None
        return Taken(out, end, entries, int(progress.source_bytes), end - int(progress.frames), self._done())

    @property
    def is_finished(self) -> bool:
        """Whether no entry is left."""
        while self._chunk is None or self._chunk.next >= self._chunk.count:
            if self._next_chunk() is None:
                return True
        return False

    def _done(self) -> int:
        """The seq up to which all entries are before the next one; 0 if none is."""
        tx = 0
        if self.is_finished:
            tx = len(self._opened.entries) if self._transactions is not None else 0
        elif self._chunk is not None:
            tx = int(self._chunk.items.tx[self._chunk.next])
        return int(self._opened.entries["seq"][tx - 1]) if tx else self._last_seqs.get(self._range - 1, 0)

    def _write(self, chunk: _Chunk, stop: int, out: Bytes, max_bytes: int) -> Bytes:
        """Writes entries of a chunk behind those that were written. Returns the output, which may be a larger
        one."""
        assert chunk.sources is not None
        progress = self._progress
        if len(self._old) < self._tables.most_columns:
            self._old = np.zeros((self._tables.most_columns, 2), dtype=np.int64)
        while True:
            output = e.EntryOutput(out, progress, chunk.side_row, self._old)
            status, item = e.put_items(chunk.sources, self._tables.arrays, output, chunk.next, stop, max_bytes)
            chunk.next = item
            if status == k.OK:
                return out
            if status == e.STATEMENT:
                out = self._write_statement(chunk, out)
            elif status == k.FULL:
                out = _larger(out, int(progress.end), self._event_place(chunk))
            elif status == e.BAD_UTF8:
                self._convert(chunk, int(progress.err_column))
            else:
                raise self._fault(int(status), chunk)

    def _write_statement(self, chunk: _Chunk, out: Bytes) -> Bytes:
        progress, item = self._progress, chunk.next
        transactions = self._opened
        pos, length = int(chunk.items.pos[item]), int(chunk.items.length[item])
        event = transactions.buf[pos : pos + length].tobytes()
        assert chunk.sources is not None
        sources, tx = chunk.sources, int(chunk.items.tx[item])
        header = parse_header(event)
        end = int(e.source_position.py_func(header.end_log_pos, int(sources.ends[tx])))
        gtid = sources.gtids[sources.gtid_at[tx] : sources.gtid_at[tx + 1]].tobytes().decode()
        place = EventPlace(sources.head.tobytes(), max(0, end - length), header, gtid)
        query = parse_query(event, transactions.has_checksum)
        entry = statement_entry(query, place, self._is_wanted, ignores_case=self._ignores_case)
        at = int(progress.end)
        if entry is not None:
            raw = data(2, entry)
            while at + len(raw) > len(out):
                out = _larger(out, at, self._event_place(chunk))
            out[at : at + len(raw)] = np.frombuffer(raw, dtype=np.uint8)
            at += len(raw)
            progress.frames += len(raw) - len(entry)
        progress.end = at
        progress.source_bytes += length
        chunk.next += 1
        return out

    def _event_place(self, chunk: _Chunk) -> str:
        return f"{self._opened.path}, position {int(chunk.items.pos[chunk.next])}"

    def _convert(self, chunk: _Chunk, column: int) -> None:
        """Has a column's text made by a conversion from now on, and the chunk's texts made anew."""
        self._tables.tables[int(chunk.items.table[chunk.next])].convert(column)
        self._tables.refresh()
        item, chunk.next = chunk.next, 0
        self._describe(chunk)
        self._skip_to(chunk, item)

    def _skip_to(self, chunk: _Chunk, item: int) -> None:
        numbers = self._progress.numbers.copy()
        self._skip_rows(chunk, item)
        self._progress.numbers[:] = numbers
        chunk.next = item

    def _fault(self, code: int, chunk: _Chunk) -> Exception:
        item = chunk.next
        column = int(self._progress.err_column)
        layout = self._tables.tables[int(chunk.items.table[item])].layout
        return row_fault(code, self._opened.path, None, int(chunk.items.pos[item]), layout, column)

    # --- chunks

    @property
    def _opened(self) -> Transactions:
        assert self._transactions is not None
        return self._transactions

    def _open(self, number: int) -> None:
        path, offset, length = self._ranges[number]
        self._transactions = self._opener(path, offset, length).between(0, None)
        if len(self._transactions.entries):
            self._last_seqs[number] = int(self._transactions.entries["seq"][-1])
        else:
            self._last_seqs[number] = self._last_seqs.get(number - 1, 0)
        self._range = number
        self._state = _new_state()

    def _next_chunk(self) -> _Chunk | None:
        """Lists the next events; None if there are none."""
        while True:
            if self._transactions is None or int(self._state.at.tx) >= len(self._opened.entries):
                if self._range + 1 >= len(self._ranges):
                    return None
                self._open(self._range + 1)
            start = self._snapshot()
            items = s.Items(*(np.empty(_CHUNK_ITEMS, dtype=np.int64) for _ in s.Items._fields))
            count = self._survey(items)
            if count == 0:
                continue
            kept = s.Items(*(array[:count].copy() for array in items))
            self._chunk = _Chunk(kept, count, start)
            self._describe(self._chunk)
            return self._chunk

    def _snapshot(self) -> EncoderMark:
        at, ids = self._state.at, self._state.ids
        used = np.flatnonzero(ids[:, 0] >= 0)
        state = (at.numbers.tobytes(), ids[used].tobytes())
        return EncoderMark(self._range, int(at.tx), int(at.pos), 0, state)

    def _survey(self, items: s.Items) -> int:
        transactions = self._opened
        source = transactions.for_kernels()
        total = 0
        while True:
            room = s.Items(*(array[total:] for array in items))
            status, count = s.survey(source, self._state, self._tables.index, room, CHUNK_BYTES)
            total += count
            pos = int(self._state.at.bad_pos)
            if status in (k.OK, k.FULL):
                return total
            if status == s.TOO_MANY_TABLES:
                raise UnsupportedError(
                    f"a transaction changes more than {s.MOST_IDS} tables", place=f"{transactions.path}, position {pos}"
                )
            if status != s.NEED_TABLE:
                kind = int(self._state.at.bad_type)
                raise scan_fault(int(status), transactions.path, pos, kind, None)
            self._add_table(pos)

    def _add_table(self, pos: int) -> None:
        transactions = self._opened
        length = int.from_bytes(transactions.buf[pos + 9 : pos + 13].tobytes(), "little")
        event = transactions.buf[pos : pos + length].tobytes()
        try:
            table_map = parse_table_map(event, transactions.has_checksum, writer=transactions.writer)
            name = table_map.full_name
            schema = None if self._schemas is None else self._schemas.tables.get(name)
            body = event[BODY_AT : length - transactions.tail]
            self._tables.add(canal_table(table_map, body, schema, self._is_wanted(name)))
        except CdcError as error:
            place = f"{transactions.path}, position {pos}"
            error.place = place if error.place is None else f"{place}, {error.place}"
            raise

    def _describe(self, chunk: _Chunk) -> None:
        """Makes the chunk's rewritten events and texts, and the arrays that the second pass reads."""
        transactions, items = self._opened, chunk.items
        alt_at = np.full(chunk.count, -1, dtype=np.int64)
        alt_length, alt_type = np.zeros(chunk.count, dtype=np.int64), np.zeros(chunk.count, dtype=np.int64)
        tables = self._tables.arrays
        texts = SideTexts(len(tables.columns))
        rows = items.kind == s.ITEM_ROWS
        special = rows & ~np.isin(items.type, _ROW_TYPES_PLAIN)
        alts: list[Bytes] = []
        alt_bytes = 0
        for number in np.unique(items.table[rows]).tolist():
            table = self._tables.tables[number]
            if not table.side_columns and not bool(special[items.table == number].any()):
                continue
            at = np.flatnonzero(rows & (items.table == number))
            for part in np.split(at, np.flatnonzero(np.diff(items.type[at] == PARTIAL_UPDATE_ROWS)) + 1):
                run = self._run(items, part, table.layout)
                if int(items.type[part[0]]) == PARTIAL_UPDATE_ROWS:
                    whole = whole_updates(run, transactions)
                else:
                    whole = unpacked_events(run, transactions)
                if whole is not run:
                    alts.append(whole.buf)
                    alt_at[part], alt_length[part] = whole.offset + alt_bytes, whole.length
                    alt_type[part] = whole.type
                    alt_bytes += len(whole.buf)
            if table.side_columns:
                whole = self._run(items, at, table.layout)
                if bool((alt_at[at] >= 0).any()):
                    whole = self._rewritten(whole, items, at, alts, alt_at, alt_length, alt_type)
                texts.add(table, int(tables.tables[number].first), whole, transactions)
        gtids, gtid_at = _gtids(transactions)
        side, side_at = texts.arrays()
        ends = transactions.entries["seq"].astype(np.int64) & _SEQ_OFFSET
        seq = int(transactions.entries["seq"][int(items.tx[0])])
        head = np.frombuffer(b"\x08\x01" + data(2, self._file_of(seq)), dtype=np.uint8)
        alt = np.concatenate([*alts, np.zeros(1, dtype=np.uint8)])
        alt.flags.writeable = transactions.buf.flags.writeable
        chunk.sources = e.Sources(
            buf=transactions.buf,
            tail=transactions.tail,
            kind=items.kind,
            pos=items.pos,
            length=items.length,
            type=items.type,
            table=items.table,
            tx=items.tx,
            alt=alt,
            alt_at=alt_at,
            alt_length=alt_length,
            alt_type=alt_type,
            side=side,
            side_at=side_at,
            side_base=texts.base,
            gtids=gtids,
            gtid_at=gtid_at,
            ends=ends,
            head=head,
        )
        chunk.side_row = np.zeros(max(1, len(self._tables.tables)), dtype=np.int64)

    def _run(self, items: s.Items, at: Longs, layout: object) -> RowEvents:
        pos = items.pos[at]
        return RowEvents(
            layout=layout,  # type: ignore[arg-type]
            buf=self._opened.buf,
            origin=pos,
            offset=pos,
            length=items.length[at],
            type=items.type[at],
            tx=items.tx[at],
            ordinal=np.arange(len(at), dtype=np.int64),
        )

    def _rewritten(
        self,
        run: RowEvents,
        items: s.Items,
        at: Longs,
        alts: list[Bytes],
        alt_at: Longs,
        alt_length: Longs,
        alt_type: Longs,
    ) -> RowEvents:
        """A run whose events are partly rewritten, all in one buffer."""
        from dataclasses import replace

        buf = np.concatenate(alts)
        offset, length = alt_at[at].copy(), alt_length[at].copy()
        kind = alt_type[at].copy()
        missing = np.flatnonzero(offset < 0)
        extra = []
        end = len(buf)
        for i in missing.tolist():
            event = run.buf[int(items.pos[at[i]]) : int(items.pos[at[i]] + items.length[at[i]])]
            extra.append(event)
            offset[i], length[i], kind[i] = end, len(event), items.type[at[i]]
            end += len(event)
        return replace(run, buf=np.concatenate([buf, *extra]), offset=offset, length=length, type=kind)


def warm_up() -> None:
    """Loads the kernels from their cache, or compiles them, by encoding a file of one row."""
    with tempfile.TemporaryDirectory(prefix="towpath-") as folder:
        path = Path(folder) / "binlog.000001"
        path.write_bytes(warm_up_file())
        opened = BinlogFile.open(path)
        transactions = Transactions(opened.path, opened.buf, opened.has_checksum, opened.entries)
        encoder = EntryEncoder(
            [(path, 0, 0)],
            schemas=None,
            is_wanted=lambda table: True,
            file_of=lambda seq: path.name,
            opener=lambda *_: transactions,
        )
        while encoder.take(1 << 20) is not None:
            pass


def _new_state() -> s.SurveyState:
    at = s.SurveyPosition.new(pos=-1, begin_pos=-1)
    return s.SurveyState(at, np.full((s.ID_SLOTS, 2), -1, dtype=np.int64), np.zeros(16, dtype=np.uint8))


def _restored(state: tuple[bytes, bytes]) -> s.SurveyState:
    restored = _new_state()
    restored.at.numbers[:] = np.frombuffer(state[0], dtype=np.int64)
    restored.at.ids = 0
    for table_id, table in np.frombuffer(state[1], dtype=np.int64).reshape(-1, 2).tolist():
        restored.at.ids = s.remember(restored.ids, int(restored.at.ids), table_id, table)
    return restored


def _larger(out: Bytes, used: int, place: str) -> Bytes:
    if len(out) >= MOST_OUT_BYTES:
        raise UnsupportedError(
            f"a row event becomes an entry of more than {MOST_OUT_BYTES} bytes, which no client can read",
            place=place,
            remedy="Exclude the table from the client's filter.",
        )
    larger = np.empty(min(2 * len(out), MOST_OUT_BYTES), dtype=np.uint8)
    larger[:used] = out[:used]
    return larger


def _gtids(transactions: Transactions) -> tuple[Bytes, Longs]:
    """The GTIDs of all transactions one behind the other, read-only whatever they are: the kernel is compiled for that,
    and another kind of array would have it compiled again while a client waits. And their offsets."""
    import pyarrow as pa

    array = gtid_strings(transactions.entries).cast(pa.binary())
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    parts = binary_parts(array.fill_null(b""))
    start = int(parts.offsets[0])
    data_ = parts.data[start:] if len(parts.data) > start else np.zeros(1, dtype=np.uint8)
    content = np.ascontiguousarray(data_)
    content.flags.writeable = False
    return content, parts.offsets.astype(np.int64) - start
