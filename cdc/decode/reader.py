"""Rows of a table as Arrow record batches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.binlog.constants import HEADER_SIZE, MAGIC
from cdc.binlog.events import parse_format_description
from cdc.binlog.file import BinlogFile, map_file
from cdc.decode.buffers import LATIN1_TABLE, MAX_TEXT_BYTES, FillFault, fill
from cdc.decode.charsets.utf8 import sound_utf8
from cdc.decode.conversion import BadValueError, Conversion
from cdc.decode.cursor import Part
from cdc.decode.events import ALL_TABLES, NO_HISTORY, Events, TableHistory, Transactions, range_layouts, table_events
from cdc.decode.faults import row_fault
from cdc.decode.gtids import gtid_strings
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.rows import locate_rows
from cdc.decode.layout import BEFORE, META_FIELDS, Images, TableLayout
from cdc.decode.plans import DEFAULT_POLICIES, ValuePolicies
from cdc.errors import DamagedError, UnsupportedError, UsageError
from cdc.schemas import Schemas, TableSchema
from cdc.store.layout import index_path, list_segments, schemas_folder, segments_folder
from cdc.store.relaylog.index import read_entries
from cdc.store.staged import is_uri, local_copy

TARGET_BYTES = 32 * 1024 * 1024
_ROWS_AT_ONCE = 1 << 22


@dataclass
class DecodeStats:
    """What a decoding saw; handed in by the caller, and added to."""

    events: int = 0
    rows: int = 0
    bytes: int = 0
    """Of row events."""
    null_dates: dict[str, int] = field(default_factory=dict)
    """For each column the zero and impossible dates that became null."""

    def add_dates(self, column: str, count: int) -> None:
        if count:
            self.null_dates[column] = self.null_dates.get(column, 0) + count


def decode_range(
    path: Path | str,
    offset: int,
    length: int,
    *,
    table: str,
    images: Images = "after",
    after_seq: int = 0,
    upto_seq: int | None = None,
    columns: Sequence[str] | None = None,
    schema: TableSchema | None = None,
    policies: ValuePolicies = DEFAULT_POLICIES,
    part: Part | None = None,
    table_mask: int = ALL_TABLES,
    target_bytes: int = TARGET_BYTES,
    stats: DecodeStats | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode one table's rows of a byte range of a segment (a path, or the URI of a staged one) that holds whole
    transactions, its index beside it.

    Yields record batches of about ``target_bytes`` of row events each (at least one event). Their columns: ``_op``
    int8 (0 delete, 1 insert, 2 update), ``_seq`` int64, ``_row`` int64 (ordinal of the row event among the table's
    in its transaction, times 2**32, plus the row), ``_commit_time`` timestamp (µs, UTC), ``_gtid`` string, then the
    table's own (``columns`` of them).

    ``images="after"``: the new row, the old one of a delete; an update that changes the key's bytes gives first a
    delete of the old row, with the same ``_seq`` and ``_row``. ``images="both"``: one row for each change, and behind
    the own columns ``_before``, a struct of the old row, null for inserts.
    Only transactions with ``after_seq`` < seq ≤ ``upto_seq`` are read. ``schema`` is the table in
    ``information_schema`` at that place: it tells what table maps do not (names where the server is MySQL 5.6 or 5.7;
    MariaDB's UUID, INET and VECTOR).

    ``part``: only this part of the range's one transaction, see :func:`~cdc.decode.parts.split_transaction`.
    ``table_mask``: only transactions with one of these bits in their index entry, which says what tables have rows.

    Where the table is altered inside the range, later batches have the later schema; :func:`layouts` tells
    beforehand.
    Raises DamagedError, UnsupportedEventError, UnsupportedTypeError, SourceRefusedError (metadata or row image
    not FULL), UsageError, StorageError.
    """
    return decode_transactions(
        open_range(path, offset, length).between(after_seq, upto_seq).of_tables(table_mask),
        table=table,
        images=images,
        columns=columns,
        history=TableHistory.always(schema),
        policies=policies,
        part=part,
        target_bytes=target_bytes,
        stats=stats,
    )


def read(
    *paths: Path | str,
    table: str,
    images: Images = "after",
    columns: Sequence[str] | None = None,
    after_seq: int = 0,
    upto_seq: int | None = None,
    schemas: Schemas | None = None,
    policies: ValuePolicies = DEFAULT_POLICIES,
    target_bytes: int = TARGET_BYTES,
    stats: DecodeStats | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode one table's rows of binlog files, segments or stores (folders), one after another, as
    :func:`decode_range` does.

    ``schemas``: the tables in ``information_schema`` when the files were written; without it, those that the store of a
    segment keeps. A file needs no index: without one it is verified and framed first. The epoch in the ``_seq`` of
    files that are no segments is 0. Batches come as they are decoded: memory is bounded by ``target_bytes`` and the
    largest row event, not by the files. Damage in a file is raised after the rows before it. Raises also UsageError for
    a path that is not there.
    """
    for transactions, one, damage in open_paths(paths):
        yield from decode_transactions(
            transactions.between(after_seq, upto_seq),
            table=table,
            images=images,
            columns=columns,
            history=_history(one, table) if schemas is None else TableHistory.always(schemas.tables.get(table)),
            policies=policies,
            target_bytes=target_bytes,
            stats=stats,
        )
        if damage is not None:
            raise damage


def open_paths(paths: Iterable[Path | str]) -> Iterator[tuple[Transactions, Path, DamagedError | None]]:
    """Each file of the paths (folders are stores), opened; its path; and the damage behind its last transaction, if
    there is any. Raises UsageError for a path that is not there, DamagedError, StorageError."""
    for path in paths:
        for one in _files(Path(path)):
            if index_path(one).exists():
                yield open_range(one), one, None
            else:
                opened = BinlogFile.open(one)
                transactions = Transactions(opened.path, opened.buf, opened.has_checksum, opened.entries)
                yield transactions, one, opened.damage


def _history(path: Path, table: str) -> TableHistory:
    """What the store of a segment says of a table; nothing for another file."""
    folder = schemas_folder(path.parent.parent)
    if path.parent != segments_folder(path.parent.parent) or not folder.is_dir():
        return NO_HISTORY
    files = sorted((int(one.stem), one) for one in folder.glob("*.json") if one.stem.isdigit())
    return TableHistory(tuple(seq for seq, _ in files), tuple(Schemas.load(one).tables.get(table) for _, one in files))


def layouts(
    ranges: Iterable[Any],
    tables: Iterable[str],
    schemas: Schemas | None = None,
    policies: Callable[[str], ValuePolicies] = lambda _: DEFAULT_POLICIES,
) -> dict[str, TableLayout]:
    """The layout of each of the tables that has a table map in the ranges, by ``db.table``.

    ``ranges``: (path, offset, length), or objects with these attributes. ``schemas``: ``information_schema`` there.
    ``policies`` tells each table's. Raises DamagedError; SourceRefusedError where names are neither in the table maps
    nor in the schemas; UnsupportedError where a table's columns or key change inside the ranges.
    """
    wanted = {table: None if schemas is None else schemas.tables.get(table) for table in tables}
    found: dict[str, TableLayout] = {}
    for one in ranges:
        path, offset, length = one if isinstance(one, tuple) else (one.path, one.offset, one.length)
        for position, layout in range_layouts(open_range(path, offset, length).between(0, None), wanted):
            first = found.setdefault(layout.table, replace(layout, policies=policies(layout.table)))
            if not _alike(first, layout):
                raise UnsupportedError(
                    f"the columns or the key of table {layout.table} change inside the batch",
                    place=f"{path}, position {position}",
                    remedy="Take smaller batches: a DDL statement ends one.",
                )
    return found


def _alike(a: TableLayout, b: TableLayout) -> bool:
    """Whether record batches of both look the same."""
    if a.columns == b.columns and a.primary_key == b.primary_key:
        return True
    return a.primary_key == b.primary_key and a.shape == replace(b, policies=a.policies).shape


def open_range(path: Path | str, offset: int | None = None, length: int | None = None) -> Transactions:
    """Map a segment, and read its index. A staged one (a URI) is fetched and verified first; the mapping then outlives
    the copy. Raises DamagedError, StorageError, ConfigError."""
    with local_copy(path, with_index=True) as copy:
        entries = read_entries(copy, offset, length)
        buf = map_file(copy)
    at = len(MAGIC)
    size = int.from_bytes(buf[at + 9 : at + 13].tobytes(), "little")
    if size < HEADER_SIZE or at + size > len(buf):
        raise DamagedError("does not begin with a format description", place=str(path))
    event = buf[at : at + size].tobytes()
    # Our segments always have checksums; a flipped algorithm byte must not switch their verification off.
    if zlib.crc32(event[:-4]) != int.from_bytes(event[-4:], "little"):
        raise DamagedError("the checksum of its format description is wrong", place=f"{path}: byte {at}")
    place = path if is_uri(path) else Path(path)
    return Transactions(place, buf, parse_format_description(event).has_checksum, entries)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        segments = list_segments(path)
        if not segments:
            raise UsageError(f"{path} is a folder, but not a store with segments", remedy="Give a store or files.")
        return segments
    if not path.exists():
        raise UsageError(f"{path} is not there", remedy="Give a binlog file, a segment or a store.")
    return [path]


def decode_transactions(
    transactions: Transactions,
    *,
    table: str,
    images: Images = "after",
    columns: Sequence[str] | None = None,
    history: TableHistory = NO_HISTORY,
    policies: ValuePolicies = DEFAULT_POLICIES,
    part: Part | None = None,
    target_bytes: int = TARGET_BYTES,
    stats: DecodeStats | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode one table's rows of opened transactions; see :func:`decode_range`."""
    if images not in ("after", "both"):
        raise UsageError(f"images must be 'after' or 'both', not {images!r}")
    if target_bytes < 1:
        raise UsageError("target_bytes must be at least 1")
    stats = DecodeStats() if stats is None else stats
    decoder: _Decoder | None = None
    for run in table_events(transactions, table, target_bytes, history, policies, part):
        if decoder is None or decoder.layout is not run.layout:
            decoder = _Decoder(transactions, run.layout, images, columns, stats)
        done = 0
        while done < len(run):
            batch, count = decoder.decode(run.part(done, len(run)))
            done += count
            yield batch


@dataclass(frozen=True)
class _Located:
    """What the first pass found."""

    events: int
    row_at: npt.NDArray[np.int64]
    before_at: npt.NDArray[np.int64]
    row_event: npt.NDArray[np.int32]
    row_op: npt.NDArray[np.int8]
    row_number: npt.NDArray[np.int64]
    totals: npt.NDArray[np.int64]


class _Decoder:
    """Decodes events of one layout."""

    def __init__(
        self,
        transactions: Transactions,
        layout: TableLayout,
        images: Images,
        columns: Sequence[str] | None,
        stats: DecodeStats,
    ) -> None:
        self.transactions = transactions
        self.layout = layout
        self.both = images == "both"
        self.stats = stats
        self.schema = layout.arrow_schema(images, columns)
        self.spec = layout.kernel_spec(columns)

    def decode(self, events: Events) -> tuple[pa.RecordBatch, int]:
        """A record batch of the first events, and of how many."""
        located = self._locate(events)
        done = events.part(0, located.events)
        arrays = self._meta(done, located)
        arrays += self._fill(done, located.row_at, located.totals[0])
        if self.both:
            old = self._fill(done, located.before_at, located.totals[1])
            missing = pa.array(located.before_at < 0)
            arrays.append(pa.StructArray.from_arrays(old, fields=list(self.schema.field(BEFORE).type), mask=missing))
        self.stats.events += len(done)
        self.stats.rows += len(located.row_at)
        self.stats.bytes += int(done.length.sum())
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), located.events

    def _locate(self, events: Events) -> _Located:
        """First pass, over as many events as have room."""
        columns = len(self.layout.columns)
        count = len(events)
        most = int(events.length.sum()) // self.spec.min_row_bytes + 2
        room = min(most if self.both else 2 * most, _ROWS_AT_ONCE)
        while True:
            err = np.zeros(k.ERR_SIZE, dtype=np.int64)
            totals = np.zeros((2, columns), dtype=np.int64)
            row_at, row_number = np.empty(room, np.int64), np.empty(room, np.int64)
            before_at = np.empty(room if self.both else 0, np.int64)
            row_event, row_op = np.empty(room, np.int32), np.empty(room, np.int8)
            done, rows = locate_rows(
                events.buf,
                events.offset[:count],
                events.length[:count],
                events.type[:count],
                events.ordinal[:count],
                self.transactions.tail,
                self.spec.spec,
                self.both,
                self.spec.has_key,
                self.spec.member_at,
                LATIN1_TABLE,
                row_at,
                before_at,
                row_event,
                row_op,
                row_number,
                totals,
                np.zeros((2, columns), dtype=np.int64),
                np.zeros((2, columns, 2), dtype=np.int64),
                err,
            )
            if err[k.ERR_CODE] != k.OK:
                raise self._fault(err, events, int(err[k.ERR_EVENT]))
            if done == 0:  # not even one event has room
                room *= 2
            elif int(totals.max(initial=0)) > MAX_TEXT_BYTES:
                if done == 1:
                    raise UnsupportedError(
                        f"one row event of table {self.layout.table} holds more than 2 GiB of text in one column",
                        place=f"{self.transactions.path}, position {int(events.origin[0])}",
                    )
                count = done // 2
            else:
                break
        used = slice(0, rows)
        return _Located(done, row_at[used], before_at[used], row_event[used], row_op[used], row_number[used], totals)

    def _meta(self, events: Events, located: _Located) -> list[pa.Array]:
        """``_op``, ``_seq``, ``_row``, ``_commit_time``, ``_gtid``."""
        changes = np.empty(len(events), dtype=bool)
        changes[:1] = True
        changes[1:] = np.diff(events.tx) != 0
        entries = self.transactions.entries[events.tx[changes]]
        which = (np.cumsum(changes) - 1)[located.row_event]
        gtids = gtid_strings(entries)
        gtid = pa.repeat(gtids[0], len(which)) if len(entries) == 1 else gtids.take(pa.array(which))
        return [
            pa.array(located.row_op),
            pa.array(entries["seq"].astype(np.int64)[which]),
            pa.array(located.row_number),
            pa.array(entries["commit_time_us"][which]).view(META_FIELDS[3].type),
            gtid,
        ]

    def _fill(self, events: Events, row_at: npt.NDArray[np.int64], totals: npt.NDArray[np.int64]) -> list[pa.Array]:
        """Second pass, and the conversions."""
        try:
            filled = fill(events.buf, events.end, row_at, self.spec, totals)
        except FillFault as found:
            raise self._row_fault(found.code, events, found.pos, found.column) from None
        arrays = []
        for i, (ordinal, array) in enumerate(zip(self.spec.columns, filled.arrays, strict=True)):
            conversion, name = self.spec.conversions[i], self.spec.fields[i].name
            self.stats.add_dates(name, int(filled.null_dates[ordinal]))
            if conversion is not None:
                array = self._converted(conversion, array, events, row_at, ordinal)
            elif array.type == pa.string() and self.spec.spec[ordinal, k.SPEC_KIND] == k.BYTES:
                array = sound_utf8(array)
            arrays.append(array)
        return arrays

    def _converted(
        self, conversion: Conversion, raw: pa.Array, events: Events, row_at: npt.NDArray[np.int64], ordinal: int
    ) -> pa.Array:
        try:
            array = conversion(raw)
        except BadValueError as found:
            code = k.ZERO_DATE if found.zero_date else k.BAD_VALUE
            raise self._row_fault(code, events, int(row_at[found.row]), ordinal, found.why) from None
        self.stats.add_dates(self.layout.columns[ordinal].name, array.null_count - raw.null_count)
        return array

    def _fault(self, err: npt.NDArray[np.int64], events: Events, event: int) -> Exception:
        return row_fault(
            int(err[k.ERR_CODE]),
            self.transactions.path,
            self._place(events, event, int(err[k.ERR_POS])),
            int(events.origin[event]),
            self.layout,
            int(err[k.ERR_COLUMN]),
        )

    def _row_fault(self, code: int, events: Events, pos: int, column: int, why: str | None = None) -> Exception:
        event = events.event_of(pos)
        place = self._place(events, event, pos)
        return row_fault(code, self.transactions.path, place, int(events.origin[event]), self.layout, column, why)

    def _place(self, events: Events, event: int, pos: int) -> int | None:
        """The byte in the file; not known where the event was made whole in memory."""
        return pos if events.origin[event] == events.offset[event] else None
