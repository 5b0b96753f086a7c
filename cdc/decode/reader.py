"""Decodes the rows of a table into Arrow record batches: the entry points, and the decoder of one layout's row events.

Decoding a run of row events takes two compiled passes. The first finds the rows and measures how many bytes each column
of texts needs; then one buffer for all columns is allocated. The second writes the values into it. Conversions finish
the columns whose bytes the passes only copy.
"""

from __future__ import annotations

import base64
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.base.errors import UnsupportedError, UsageError
from cdc.binlog.entry import EntryFlag
from cdc.binlog.sql.schemas import Schemas, TableSchema
from cdc.decode.charsets.convert import sound_utf8
from cdc.decode.column_types import DEFAULT_POLICIES, ValuePolicies
from cdc.decode.conversions.base import MAX_TEXT_BYTES, BadValueError, Conversion
from cdc.decode.faults import LOST_BYTES, row_fault
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.fill import BLOCK_ROWS, OutputArrays, RowsToFill, fill_rows
from cdc.decode.kernels.rows import Measured, RowArrays, locate_rows
from cdc.decode.layout import (
    BEFORE,
    METADATA_FIELDS,
    Images,
    KernelSpec,
    TableLayout,
    value_width,
)
from cdc.decode.row_events import RowEvents, with_all_columns
from cdc.decode.scan import TransactionSlice, table_events
from cdc.decode.transactions import (
    ALL_TABLES,
    NO_HISTORY,
    TableHistory,
    Transactions,
    gtid_strings,
    history_of,
    open_paths,
    open_range,
)

Longs = npt.NDArray[np.int64]

TARGET_BYTES = 32 * 1024 * 1024
_ROWS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class DecodeOptions:
    """The rows and columns to decode, and the form of their values."""

    images: Images = "after"
    """``after``: the new row of inserts and updates and the old row of deletes; an update that changes the key's bytes
    gives a delete of the old row first, with the same ``_seq`` and ``_row``. ``both``: one row for each change, and
    behind the source columns ``_before``, a struct of the old row, null for inserts."""
    columns: Sequence[str] | None = None
    """The wanted source columns; None for all."""
    after_seq: int = 0
    upto_seq: int | None = None
    """Only transactions with ``after_seq`` < seq ≤ ``upto_seq`` are read."""
    table_mask: int = ALL_TABLES
    """Only transactions with one of these bits in the table mask of their index entry are read."""
    policies: ValuePolicies = DEFAULT_POLICIES
    target_bytes: int = TARGET_BYTES
    """The size of the row events that make up a batch (at least one event); memory grows with it."""

    def __post_init__(self) -> None:
        if self.images not in ("after", "both"):
            raise UsageError(f"images must be 'after' or 'both', not {self.images!r}")
        if self.target_bytes < 1:
            raise UsageError("target_bytes must be at least 1")


DEFAULT_OPTIONS = DecodeOptions()


@dataclass
class DecodeStats:
    """Counts of a decoding. The caller hands in an object, and decoding adds to it."""

    events: int = 0
    rows: int = 0
    bytes: int = 0
    """The size of the row events that were read, in bytes."""
    null_dates: dict[str, int] = field(default_factory=dict)
    """The number of zero and impossible dates that became null, by column."""

    def add_dates(self, column: str, count: int) -> None:
        """Adds to ``null_dates``."""
        if count:
            self.null_dates[column] = self.null_dates.get(column, 0) + count


# ---------------------------------------------------------------- entry points


def decode_range(
    path: Path | str,
    offset: int,
    length: int,
    *,
    table: str,
    options: DecodeOptions = DEFAULT_OPTIONS,
    schema: TableSchema | None = None,
    part: TransactionSlice | None = None,
    stats: DecodeStats | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decodes one table's rows in a byte range of a segment that holds whole transactions. ``path`` is a local segment
    with its index beside it, or the URI of a staged segment.

    Yields record batches with the columns ``_op`` int8 (0 delete, 1 insert, 2 update), ``_seq`` int64, ``_row`` int64
    (the ordinal of the row event among the table's in its transaction, times 2**32, plus the row), ``_commit_time``
    timestamp (µs, UTC), ``_gtid`` string, then the source columns.

    ``schema`` is the table in ``information_schema`` at that position. It gives what table maps lack: names if the
    server is MySQL 5.6 or 5.7; MariaDB's UUID, INET and VECTOR. ``part`` restricts decoding to a slice of the range's
    one transaction, see :func:`~cdc.decode.scan.split_transaction`.

    If the table is altered inside the range, later batches have the later schema; :func:`~cdc.decode.layouts` tells in
    advance. Raises DamagedError, UnsupportedEventError, UnsupportedTypeError, SourceRefusedError (metadata or row image
    not FULL), UsageError, StorageError.
    """
    return decode_transactions(
        open_range(path, offset, length, options.table_mask, None if part is None else part.byte_ranges),
        table=table,
        options=options,
        history=TableHistory.always(schema),
        part=part,
        stats=stats,
    )


def read(
    *paths: Path | str,
    table: str,
    options: DecodeOptions = DEFAULT_OPTIONS,
    schemas: Schemas | None = None,
    stats: DecodeStats | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decodes one table's rows in binlog files, segments or stores (folders), one after another, as
    :func:`decode_range` does.

    ``schemas``: the tables in ``information_schema`` when the files were written, which must not alter the table; by
    default those that the store of a segment keeps. A file without an index is verified and framed first. The epoch in
    the ``_seq`` of files that are no segments is 0. Batches are yielded as they are decoded: memory is bounded by
    ``target_bytes`` and the largest row event, not by the files. Damage in a file is raised after the rows before it.
    Raises the errors of :func:`decode_range`, and UsageError for a path that does not exist.
    """
    for transactions, path, damage in open_paths(paths):
        if schemas is not None:
            _require_unaltered(transactions.between(options.after_seq, options.upto_seq), table)
        yield from decode_transactions(
            transactions,
            table=table,
            options=options,
            history=history_of(path, table) if schemas is None else TableHistory.always(schemas.tables.get(table)),
            stats=stats,
        )
        if damage is not None:
            raise damage


def _require_unaltered(transactions: Transactions, table: str) -> None:
    """Raises UsageError if a statement of these transactions alters the table: one definition does not describe the
    rows before and behind it."""
    from cdc.store.reader.batch_builder import statements_in  # of the store's reader, for this check alone

    entries = transactions.entries
    for entry in entries[(entries["flags"] & int(EntryFlag.DDL)) != 0]:
        begin, seq = int(entry["offset"]), int(entry["seq"])
        data = transactions.buf[begin : begin + int(entry["length"])].tobytes()
        for statement in statements_in(data, transactions.has_checksum):
            names = {f"{database}.{name}".lower() for database, name in statement.tables}
            if table.lower() in names and not statement.leaves_rows_alone:
                raise UsageError(
                    f"{statement.verb} changes {table} at seq {seq}, and one definition does not describe the rows "
                    "before and behind it",
                    place=str(transactions.path),
                    remedy=f"Decode the rows before it with --to {seq - 1}, and those behind it with --from {seq + 1}, "
                    "each with the definition of its time.",
                )


def decode_transactions(
    transactions: Transactions,
    *,
    table: str,
    options: DecodeOptions = DEFAULT_OPTIONS,
    history: TableHistory = NO_HISTORY,
    part: TransactionSlice | None = None,
    stats: DecodeStats | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decodes one table's rows in opened transactions; see :func:`decode_range`."""
    chosen = transactions.between(options.after_seq, options.upto_seq).of_tables(options.table_mask)
    stats = DecodeStats() if stats is None else stats
    decoder: Decoder | None = None
    for run in table_events(chosen, table, options.target_bytes, history, options.policies, part):
        if decoder is None or decoder.layout is not run.layout:
            decoder = Decoder(chosen, run.layout, options, stats)
        done = 0
        while done < len(run):
            batch, count = decoder.decode(run.slice(done, len(run)))
            done += count
            yield batch


# ---------------------------------------------------------------- the decoder of one layout


@dataclass(frozen=True)
class _Located:
    """The result of the first pass."""

    events: int
    """The number of events whose rows were located."""
    rows: RowArrays
    totals: Longs
    """(2, columns): bytes that each column of texts needs, for new and for old rows."""


class _FillFault(Exception):
    """A fault that the second pass reports: code, column, offset in the buffer."""

    def __init__(self, code: int, column: int, pos: int) -> None:
        super().__init__(code)
        self.code, self.column, self.pos = code, column, pos


class Decoder:
    """Decodes row events of one layout into record batches."""

    def __init__(
        self, transactions: Transactions, layout: TableLayout, options: DecodeOptions, stats: DecodeStats
    ) -> None:
        self.transactions = transactions
        self.layout = layout
        self.both = options.images == "both"
        self.stats = stats
        self.schema = layout.arrow_schema(options.images, options.columns)
        self.spec = layout.kernel_spec(options.columns)

    def decode(self, events: RowEvents) -> tuple[pa.RecordBatch, int]:
        """Decodes the first events. Returns a record batch and the number of events in it, at least 1."""
        located = self._locate(events)
        if located is None:
            events = with_all_columns(events, self.spec, self.transactions)
            located = self._locate(events)
            assert located is not None, "rewritten rows hold all columns"
        done = events.slice(0, located.events)
        rows = located.rows
        arrays = self._metadata(done, rows)
        arrays += self._values(done, rows.at, located.totals[0])
        if self.both:
            old = self._values(done, rows.before_at, located.totals[1])
            missing = pa.array(rows.before_at < 0)
            arrays.append(pa.StructArray.from_arrays(old, fields=list(self.schema.field(BEFORE).type), mask=missing))
        self.stats.events += len(done)
        self.stats.rows += len(rows.at)
        self.stats.bytes += int(done.length.sum())
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema), located.events

    def _locate(self, events: RowEvents) -> _Located | None:
        """Runs the first pass over as many events as have room. None if some have rows that lack columns."""
        columns = len(self.layout.row_columns)
        count = len(events)
        most = int(events.length.sum()) // self.spec.min_row_bytes + 2
        room = min(most if self.both else 2 * most, _ROWS_AT_ONCE)
        while True:
            measured = Measured(
                totals=np.zeros((2, columns), dtype=np.int64),
                saved=np.zeros((2, columns), dtype=np.int64),
                key_at=np.zeros((2, columns, 2), dtype=np.int64),
                err=np.zeros(k.ERR_SIZE, dtype=np.int64),
            )
            rows = RowArrays(
                at=np.empty(room, np.int64),
                before_at=np.empty(room if self.both else 0, np.int64),
                event=np.empty(room, np.int32),
                op=np.empty(room, np.int8),
                number=np.empty(room, np.int64),
            )
            first = events.slice(0, count).for_kernels(self.transactions.tail)
            done, row_count = locate_rows(first, self.spec.arrays, self.both, self.spec.has_key, rows, measured)
            if measured.err[k.ERR_CODE] == k.PART_IMAGE:
                return None
            if measured.err[k.ERR_CODE] != k.OK:
                raise self._located_fault(measured.err, events)
            if done == 0:  # not even one event has room
                room *= 2
            elif int(measured.totals.max(initial=0)) > MAX_TEXT_BYTES:
                if done == 1:
                    raise UnsupportedError(
                        f"one row event of table {self.layout.table} holds more than 2 GiB of text in one column",
                        place=f"{self.transactions.path}, position {int(events.origin[0])}",
                    )
                count = done // 2
            else:
                break
        return _Located(done, rows.first(row_count), measured.totals)

    def _metadata(self, events: RowEvents, rows: RowArrays) -> list[pa.Array]:
        """``_op``, ``_seq``, ``_row``, ``_commit_time``, ``_gtid``."""
        changes = np.empty(len(events), dtype=bool)
        changes[:1] = True
        changes[1:] = np.diff(events.tx) != 0
        entries = self.transactions.entries[events.tx[changes]]
        entry_of = (np.cumsum(changes) - 1)[rows.event]
        gtids = gtid_strings(entries)
        gtid = pa.repeat(gtids[0], len(entry_of)) if len(entries) == 1 else gtids.take(pa.array(entry_of))
        return [
            pa.array(rows.op),
            pa.array(entries["seq"].astype(np.int64)[entry_of]),
            pa.array(rows.number),
            pa.array(entries["commit_time_us"][entry_of]).view(METADATA_FIELDS[3].type),
            gtid,
        ]

    def _values(self, events: RowEvents, row_at: Longs, totals: Longs) -> list[pa.Array]:
        """The source columns of the rows at ``row_at``: runs the second pass and the conversions."""
        try:
            raw, null_dates = _fill(events, row_at, self.spec, totals)
        except _FillFault as fault:
            raise self._row_fault(fault.code, events, fault.pos, fault.column) from None
        arrays = []
        for i, (ordinal, array) in enumerate(zip(self.spec.columns, raw, strict=True)):
            conversion, name = self.spec.conversions[i], self.spec.fields[i].name
            self.stats.add_dates(name, int(null_dates[ordinal]))
            if conversion is not None:
                array = self._converted(conversion, array, events, row_at, ordinal)
            elif array.type == pa.string() and self.spec.arrays.spec[ordinal, k.SPEC_KIND] == k.BYTES:
                array = sound_utf8(array)
            arrays.append(array)
        return arrays

    def _converted(
        self, conversion: Conversion, raw: pa.Array, events: RowEvents, row_at: Longs, ordinal: int
    ) -> pa.Array:
        try:
            array = conversion(raw)
        except BadValueError as bad_value:
            code = k.ZERO_DATE if bad_value.zero_date else LOST_BYTES if bad_value.lost_bytes else k.BAD_VALUE
            raise self._row_fault(code, events, int(row_at[bad_value.row]), ordinal, bad_value.why) from None
        self.stats.add_dates(self.layout.columns[ordinal].name, array.null_count - raw.null_count)
        return array

    def _located_fault(self, err: Longs, events: RowEvents) -> Exception:
        code, event, column = int(err[k.ERR_CODE]), int(err[k.ERR_EVENT]), int(err[k.ERR_COLUMN])
        place = self._file_offset(events, event, int(err[k.ERR_POS]))
        return row_fault(code, self.transactions.path, place, int(events.origin[event]), self.layout, column)

    def _row_fault(self, code: int, events: RowEvents, pos: int, column: int, why: str | None = None) -> Exception:
        event = events.event_of(pos)
        place = self._file_offset(events, event, pos)
        return row_fault(code, self.transactions.path, place, int(events.origin[event]), self.layout, column, why)

    def _file_offset(self, events: RowEvents, event: int, pos: int) -> int | None:
        """The offset in the file; None if the event was rewritten in memory."""
        return pos if events.origin[event] == events.offset[event] else None


# ---------------------------------------------------------------- Arrow buffers


def _round_up(size: int) -> int:
    return (size + 63) & ~63


def _place_columns(spec: KernelSpec, rows: int, totals: Longs) -> tuple[Longs, int]:
    """The offsets of every column's parts in one buffer (columns, OUT_SIZE), and the buffer's size in bytes."""
    places = np.zeros((len(spec.arrays.spec), k.OUT_SIZE), dtype=np.int64)
    at = 0
    for i, kind in zip(spec.columns, spec.raw, strict=True):
        width = value_width(kind)
        places[i, k.OUT_VALIDITY] = at
        at += _round_up((rows + 7) // 8)
        if width == 0:
            places[i, k.OUT_OFFSETS] = at
            at += _round_up(4 * (rows + 1))
        places[i, k.OUT_VALUES] = at
        places[i, k.OUT_LIMIT] = at + (int(totals[i]) if width == 0 else width * rows)
        at = _round_up(int(places[i, k.OUT_LIMIT]))
    return places, at


def _fill(events: RowEvents, row_at: Longs, spec: KernelSpec, totals: Longs) -> tuple[list[pa.Array], Longs]:
    """The wanted columns of the rows at ``row_at`` (-1: all null) in the kernels' types, and the number of dates that
    became null in each of the table's columns. Raises _FillFault."""
    rows = len(row_at)
    places, size = _place_columns(spec, rows, totals)
    memory = pa.allocate_buffer(max(64, size))
    out = np.frombuffer(memory, dtype=np.uint8)
    for i, kind in zip(spec.columns, spec.raw, strict=True):
        begin = places[i, k.OUT_VALIDITY]
        out[begin : begin + _round_up((rows + 7) // 8)] = 0xFF
        if value_width(kind) == 0:
            begin = places[i, k.OUT_OFFSETS]
            out[begin : begin + 4] = 0
    whole = out[: len(out) & ~7]
    output = OutputArrays(
        bytes=out,
        shorts=whole.view(np.int16),
        ints=whole.view(np.int32),
        longs=whole.view(np.int64),
        places=places,
        text_at=places[:, k.OUT_VALUES].copy(),
        null_dates=np.zeros(len(places), dtype=np.int64),
        err=np.zeros(k.ERR_SIZE, dtype=np.int64),
    )
    source = RowsToFill(events.buf, events.end, row_at, np.empty(BLOCK_ROWS, dtype=np.int64))
    code = fill_rows(source, spec.arrays, output)
    if code != k.OK:
        raise _FillFault(int(code), int(output.err[k.ERR_COLUMN]), int(output.err[k.ERR_POS]))
    arrays = []
    for i, kind in zip(spec.columns, spec.raw, strict=True):
        width = value_width(kind)
        validity = memory.slice(int(places[i, k.OUT_VALIDITY]), (rows + 7) // 8)
        begin = int(places[i, k.OUT_VALUES])
        if width:
            buffers = [validity, memory.slice(begin, width * rows)]
        else:
            offsets = memory.slice(int(places[i, k.OUT_OFFSETS]), 4 * (rows + 1))
            buffers = [validity, offsets, memory.slice(begin, int(places[i, k.OUT_LIMIT]) - begin)]
        arrays.append(pa.Array.from_buffers(kind, rows, buffers))
    return arrays, output.null_dates


# ---------------------------------------------------------------- loading all kernels at once

# A binlog file with one transaction that inserts 1 into towpath.warm (id INT PRIMARY KEY): deflated, base 85.
_WARM_UP_FILE = (
    "c-"
    "s4yl$poyF*uc<k%57s8i?x|K!An8QqNq^gn?8bOuSM?FV(8|AgdKYR(k;Pai|13fNEfZ>x9t`auO<BY{4#7zd`0Ofy51g_y>wAb`"
    "VjLUtW+{lEL8Q>h9?$uzS*CkOpCp5?dfP1*=VgYGa2fW+_iB%4J|=204j=g_$Wcg@chn+WH$iNV6PBj|LFOqG)DfVEhlZT78a4Fi"
    "4#Mh$9cgHH^rvGF_s$9RSeQDMt"
)


def warm_up_file() -> bytes:
    """A binlog file of one row, which :func:`warm_up` decodes."""
    return zlib.decompress(base64.b85decode(_WARM_UP_FILE))


def warm_up() -> None:
    """Loads the kernels that all tables need from their cache, or compiles them. Call this in a process before others
    are forked from it. Kernels of conversions are loaded when a column needs them, which in most processes none
    does."""
    with tempfile.TemporaryDirectory(prefix="towpath-") as folder:
        path = Path(folder) / "binlog.000001"
        path.write_bytes(warm_up_file())
        for _ in read(path, table="towpath.warm"):
            pass
