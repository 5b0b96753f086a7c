"""Rows of a table's events as Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.decode.arrow_text import MAX_TEXT_BYTES
from cdc.decode.buffers import LATIN1_TABLE, FillFault, fill
from cdc.decode.charsets.utf8 import sound_utf8
from cdc.decode.conversion import BadValueError, Conversion
from cdc.decode.cursor import Part
from cdc.decode.events import Events, table_events
from cdc.decode.faults import LOST_BYTES, row_fault
from cdc.decode.gtids import gtid_strings
from cdc.decode.history import NO_HISTORY, TableHistory
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.rows import locate_rows
from cdc.decode.layout import BEFORE, META_FIELDS, Images, TableLayout
from cdc.decode.plans import DEFAULT_POLICIES, ValuePolicies
from cdc.decode.transactions import Transactions
from cdc.errors import UnsupportedError, UsageError

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
    decoder: Decoder | None = None
    for run in table_events(transactions, table, target_bytes, history, policies, part):
        if decoder is None or decoder.layout is not run.layout:
            decoder = Decoder(transactions, run.layout, images, columns, stats)
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


class Decoder:
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
            code = k.ZERO_DATE if found.zero_date else LOST_BYTES if found.lost_bytes else k.BAD_VALUE
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
