"""One connection's worth of capture: packets in, kept transactions into the store."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import pymysql

from cdc.binlog import events
from cdc.binlog import kernels as k
from cdc.binlog.file import rows_to_entries
from cdc.binlog.framer import Framer, Judgement, Numbers, ServerErrorPacket, row_gtid
from cdc.binlog.rare_events import parse_xa
from cdc.capture.definitions import Definitions
from cdc.capture.start import Start, no_event_there
from cdc.capture.statement_filter import Judge
from cdc.config import DestinationConfig, StartPosition
from cdc.errors import CdcError, CorruptStreamError
from cdc.log import get_logger
from cdc.positions import MAX_OFFSET, BinlogPosition, make_file_name, make_seq, split_file_name, split_seq
from cdc.source.dump import MAX_POSITION
from cdc.source.server import replica_label
from cdc.source.stream import DumpStream, explain_dump_error
from cdc.store.writer.log import RelayLog

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

# Small enough to stay in the processor's cache between the three copies (from the socket, to the output, to the file).
_SRC_BYTES = 1 << 20
_OUT_BYTES = 3 << 19
_POSITIONS_EVERY_S = 1.0

log = get_logger(__name__)


@dataclass
class Counters:
    """What a capture has done since it was started."""

    transactions: int = 0
    events: int = 0
    bytes: int = 0
    """Appended to the store."""
    received_bytes: int = 0


class ByteStream(Protocol):
    """Where the packets of a dump come from: :class:`~cdc.source.stream.DumpStream`, or a test's own."""

    def recv_into(self, buffer: memoryview) -> int:
        """Read what is there, up to the buffer's size; 0: nothing came for a moment. Raises when the stream ends."""

    def close(self) -> None:
        """Cut the connection."""


class Session:
    """Reads one connection. ``control`` is a second connection to the same server, for its table definitions."""

    def __init__(
        self,
        config: DestinationConfig,
        control: Connection,
        log: RelayLog,
        start: Start,
        counters: Counters,
        *,
        stream: ByteStream | None = None,
    ) -> None:
        """Connect, unless ``stream`` has the packets already. Raises SourceUnavailableError, SourceRefusedError."""
        self._config = config
        self._log = log
        self.epoch = start.identity.epoch
        self._judge = Judge(config.tables, log.tables)
        self._definitions = Definitions(control, config, log, self.epoch, named=start.named)
        self.counters = counters
        self._framer = Framer(
            np.empty(_SRC_BYTES, dtype=np.uint8),
            self,
            packets=True,
            out_bytes=_OUT_BYTES,
            place=f"source {config.source.host}:{config.source.port}",
        )
        self._broken = False  # what comes next cannot become visible
        self._held: list[Numbers] = []  # position rows that wait for something worth an index entry
        self._published_at = time.monotonic()
        self._stored = split_seq(max(start.seq, log.last_seq or 0))
        """Everything up to there is in the store, or not to be captured."""
        self.ended_at: BinlogPosition | None = None
        """Where the event begins at which the connection ended, as far as the events before it tell."""
        self.gtid: str | None = None
        self.time_us = 0
        self._definitions.begin(start.seq)
        self._stream: ByteStream = (
            DumpStream(config.source, start.position, replica_label(config)) if stream is None else stream
        )
        # A dump request has 32 bits for the offset: behind 4 GiB the server begins at the file's start.
        pos = start.position.pos
        self._start_file(BinlogPosition(start.position.file, pos if pos <= MAX_POSITION else 4))

    # --- reading -----------------------------------------------------------------------------------------------------

    def step(self) -> int:
        """Read once and store what came; returns the number of bytes. Raises whatever ends the connection."""
        framer = self._framer
        try:
            n = self._stream.recv_into(framer.room())
            if n:
                self.counters.received_bytes += n
                framer.fed(n)
                alive = framer.run()
                self.flush(framer)
                framer.compact()
                if not alive:
                    raise explain_dump_error(0, "end of stream", self._config.source, self.position)
            elif self._held:
                self._publish_held()
        except CdcError as error:
            self.ended_at = BinlogPosition(self._file, framer.event_pos)
            position = self.position
            self._settle()
            explained = self._explain(error, position)
            if explained is error:
                raise
            raise explained from None
        return n

    def _explain(self, error: CdcError, position: BinlogPosition) -> CdcError:
        """What ended the connection, in the words of the configuration."""
        if isinstance(error, ServerErrorPacket):
            self._forget_start()
            return explain_dump_error(error.code, error.text, self._config.source, position)
        if isinstance(error, CorruptStreamError):
            self._forget_start()
            if self._log.last_seq is None and isinstance(self._config.source.start, StartPosition):
                return no_event_there(self._config, error)
        return error

    @property
    def position(self) -> BinlogPosition:
        """Up to where the source has been read, what is no transaction included."""
        return BinlogPosition(self._file, self._framer.seen_pos)

    def has_passed(self, position: BinlogPosition) -> bool:
        """Has everything before ``position`` been read?"""
        if self._framer.in_transaction:
            return position.file_number < self.position.file_number
        mine = self.position
        return (mine.file_number, mine.pos) >= (position.file_number, position.pos)

    def close(self) -> None:
        """Cut the connection. What was read whole is kept; an unfinished transaction is forgotten, and will be read
        again."""
        self._stream.close()
        self._settle()
        self._publish_held()

    # --- what the framer asks

    def table(self, db: str, table: str) -> int | None:
        return self._judge.table(db, table)

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Judgement:
        framer = self._framer
        self._note_xa(query)
        judgement, ends = self._judge.statement(query, framer.where, rows_before=bool(framer.st[k.TX_KEPT]))
        if ends:
            framer.st[k.TX_BEGIN] = 0
        if framer.skips:
            return Judgement(keep=False)
        if judgement.ddl and judgement.keep:
            self._definitions.statement(judgement.altered, int(framer.st[k.TX_START]) if in_transaction else None)
        return judgement

    def _note_xa(self, query: events.QueryEvent) -> None:
        """Say where a transaction is committed whose rows lie before the place from which this connection reads."""
        xa = parse_xa(query.sql)
        if xa is None:
            return
        if xa.verb == "COMMIT" and xa.xid not in self._framer.prepared:
            log.warning(
                "an XA transaction is committed that was prepared before this capture began to read; "
                "if that was before the store's beginning, the store does not have its rows",
                xid=xa.xid,
                place=self._framer.where,
                remedy="If it changed captured tables, load them anew from behind this place.",
            )
        self._framer.prepared.discard(xa.xid)

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        # A server that died in a transaction leaves it unfinished at the end of a file; the next file begins anew.
        self._settle()
        stored = self._stored_up_to(BinlogPosition(self._file, 4).file_number)
        if stored > MAX_OFFSET:  # nothing in this file is new
            self._framer.start_output(0, 0)
            return
        pos = max(stored, self._framer.source_pos)
        offset = self._log.begin(self.epoch, self._file, pos, event, events.parse_header(event).server_id)
        self._framer.start_output(offset, self._config.store.segment_bytes)
        seq = int(self._framer.st[k.SEQ_BASE]) | pos
        if self._log.last_seq is None or seq > self._log.last_seq:
            # From here on the place is known: `start: now` means the moment of the first start only, and behind a
            # rotation the source may purge the file before, though no transaction follows for days.
            row = np.zeros((1, k.ROW_WIDTH), dtype=np.int64)
            row[0, k.R_SEQ], row[0, k.R_FLAGS] = seq, k.FLAG_POSITION
            # Published with what comes next, or when nothing does: a place that the server refuses must not stay.
            self._held.append(row)

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        if not artificial:
            return  # the server names the next file once more, with an artificial event
        if rotate.file == self._file:
            return
        # This event may come without a checksum; where the stream goes on, is known besides.
        base, number = split_file_name(self._file)
        if rotate.pos != 4 or rotate.file != make_file_name(base, number + 1):
            raise CorruptStreamError(
                f"the server goes on with {rotate.file!r}, position {rotate.pos}, which does not follow {self._file}",
                place=self._framer.where,
                remedy="The connection is made anew.",
            )
        self._settle()
        self._publish_held()
        self._start_file(BinlogPosition(rotate.file, rotate.pos))

    def _start_file(self, position: BinlogPosition) -> None:
        self._file = position.file
        number = position.file_number
        self._framer.start_file(
            position.file,
            position.pos,
            make_seq(self.epoch, number, 0),
            skip_until=self._stored_up_to(number),
        )

    def _stored_up_to(self, number: int) -> int:
        """Up to where transactions of a file of the source are passed over: all of them, where it is an earlier file
        than the newest one in the store."""
        stored = self._stored
        if stored.epoch != self.epoch or number > stored.file_number:
            return 0
        return stored.offset if number == stored.file_number else MAX_OFFSET + 1

    def flush(self, framer: Framer) -> None:
        if self._broken:
            return
        rows = framer.take_rows()
        # Before their bytes are in the log, where recovery would find them.
        try:
            self._definitions.before(rows)
        except CdcError:
            self._broken = True
            ready = self._definitions.ready
            end = int(rows[ready, k.R_OFFSET])
            self._append(framer.take_output()[: max(0, end - int(framer.st[k.OUT_BASE]))])
            self._publish(rows[:ready])
            self._log.drop_unfinished()
            raise
        self._append(framer.take_output())
        framer.drop_output()
        self._publish(rows)

    def roll(self, framer: Framer) -> None:
        offset = self._log.roll(self.epoch, framer.source_pos)
        framer.start_output(offset, self._config.store.segment_bytes)

    def set_statement_end(self, offset: int, length: int) -> int:
        self.flush(self._framer)
        return self._log.set_statement_end(offset, length)

    # --- into the store

    def _append(self, data: memoryview) -> None:
        if len(data):
            self._log.append(data)
            self.counters.bytes += len(data)

    def _publish(self, rows: Numbers) -> None:
        if not len(rows):
            return
        self.time_us = max(self.time_us, int(rows[-1, k.R_TIME]))
        self.gtid = row_gtid(rows[-1]) or self.gtid
        real = rows[:, k.R_LENGTH] > 0
        count = int(np.count_nonzero(real))
        self.counters.transactions += count
        self.counters.events += int(rows[:, k.R_EVENTS].sum())
        self._held.append(rows)
        if count == 0 and time.monotonic() - self._published_at < _POSITIONS_EVERY_S:
            self._held = [_coalesce(self._held)]
            return
        self._publish_held()

    def _publish_held(self) -> None:
        if not self._held:
            return
        rows = _coalesce(self._held)
        self._held = []
        self._published_at = time.monotonic()
        self._log.publish(rows_to_entries(rows, store_time_us=time.time_ns() // 1000))

    def _forget_start(self) -> None:
        """A configured place is not kept where the server refuses it, or has no event there: another can then be
        configured. One that the server named itself is kept: `start: now` means the moment of the first start."""
        if self._log.last_seq is None and isinstance(self._config.source.start, StartPosition):
            self._held = []

    def _settle(self) -> None:
        """Keep what was read whole, and forget an unfinished transaction, also where a part of it is in the log."""
        if not self._broken:
            if self._framer.in_transaction:
                self._definitions.abandon(int(self._framer.st[k.TX_START]))
            self._framer.abandon_transaction()
            self.flush(self._framer)
        self._log.drop_unfinished()


def _coalesce(parts: list[Numbers]) -> Numbers:
    """One array; neighbouring position rows that can be one become one."""
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    positions = (rows[:, k.R_FLAGS] & k.FLAG_POSITION) != 0
    if np.count_nonzero(positions) < 2:
        return rows
    earlier, later = rows[:-1], rows[1:]
    no_gtid = (earlier[:, k.R_GTID_COUNT] == 0) & (later[:, k.R_GTID_COUNT] == 0)
    follows = (
        (earlier[:, k.R_GTID_COUNT] > 0)
        & (later[:, k.R_GTID_COUNT] > 0)
        & (earlier[:, k.R_GTID_A] == later[:, k.R_GTID_A])
        & (earlier[:, k.R_GTID_B] == later[:, k.R_GTID_B])
        & (earlier[:, k.R_GTID_TAG : k.R_GTID_TAG + 4] == later[:, k.R_GTID_TAG : k.R_GTID_TAG + 4]).all(axis=1)
        & (later[:, k.R_GTID_NUMBER] - later[:, k.R_GTID_COUNT] == earlier[:, k.R_GTID_NUMBER])
    )
    same_file = earlier[:, k.R_SEQ] >> 34 == later[:, k.R_SEQ] >> 34
    same_kind = earlier[:, k.R_FLAGS] == later[:, k.R_FLAGS]
    joins = np.concatenate([[False], positions[:-1] & positions[1:] & (no_gtid | follows) & same_file & same_kind])
    group = np.cumsum(~joins) - 1
    last = np.flatnonzero(np.concatenate([~joins[1:], [True]]))
    result: Numbers = rows[last].copy()
    counts = np.zeros(len(last), dtype=np.int64)
    np.add.at(counts, group, rows[:, k.R_GTID_COUNT])
    result[:, k.R_GTID_COUNT] = counts
    np.maximum.at(result[:, k.R_TIME], group, rows[:, k.R_TIME])
    return result
