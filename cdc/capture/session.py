"""One connection to the source: receives packets, frames them, and appends the kept transactions to the store."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cdc.base.errors import CdcError, CorruptStreamError
from cdc.base.log import get_logger
from cdc.binlog import events
from cdc.binlog import frame_state as k
from cdc.binlog.file import rows_to_entries
from cdc.binlog.frame_buffers import Numbers
from cdc.binlog.framer import Decision, Framer, ServerErrorPacket, row_gtid
from cdc.binlog.positions import (
    FILE_SHIFT,
    MAX_OFFSET,
    BinlogPosition,
    make_file_name,
    make_seq,
    split_file_name,
    split_seq,
)
from cdc.binlog.rare_events import XaStatement
from cdc.capture.prepared import PreparedRecorder
from cdc.capture.schema_history import SchemaHistory
from cdc.capture.sink import CaptureLog
from cdc.capture.start import Start, no_event_at_start
from cdc.capture.statement_filter import StatementFilter
from cdc.capture.tracked_schemas import TrackedSchemas
from cdc.config import DestinationConfig, StartPosition
from cdc.source.binlog_files import BinlogFiles
from cdc.source.connection import place_of
from cdc.source.dump import MAX_POSITION, DumpStream
from cdc.source.dump_errors import explain_dump_error
from cdc.source.folder_dump import FolderDump
from cdc.source.schemas import list_sequences
from cdc.source.server import Source, replica_label
from cdc.source.statement_targets import StatementTargets

if TYPE_CHECKING:
    from cdc.capture.tracked_schemas import TrackedSchemas
    from cdc.source.folder_dump import FolderDump

# Small enough to stay in the CPU cache between the three copies (from the socket, to the output, to the file).
_SRC_BYTES = 1 << 20
_OUT_BYTES = 3 << 19
_TRANSACTIONAL = ("innodb", "rocksdb", "tokudb", "ndbcluster")
"""Engines whose rows a ROLLBACK takes back."""
_POSITIONS_EVERY_S = 1.0
_MAX_WAITING = 4096
_MAX_UNFLUSHED = 1 << 16
"""The number of transactions that may wait in memory for a flush of the disk."""

log = get_logger(__name__)


@dataclass
class CaptureCounters:
    """Counts what capture has done since it was started."""

    transactions: int = 0
    events: int = 0
    bytes: int = 0
    """Bytes appended to the store."""
    received_bytes: int = 0
    """Bytes received from the source."""
    reconnects: int = 0
    """Connections that were lost, after each of which capture connects again."""


def _first_packet(config: DestinationConfig) -> int | None:
    """Returns the number of a dump's first packet, the answer to a command; None if packets are not numbered like that:
    a compressed connection counts in another way, and files are read in their order."""
    return 1 if config.source.compression is None and config.source.folder is None else None


class ByteStream(Protocol):
    """The packets of a dump: :class:`~cdc.source.dump.DumpStream`, or a stream that a test provides."""

    def recv_into(self, buffer: memoryview) -> int:
        """Reads the bytes that are available, up to the buffer's size, and returns their number; 0 if none arrived for
        a moment. Raises CdcError when the stream ends."""

    def close(self) -> None:
        """Closes the connection."""


class CaptureSession:
    """Reads one connection, and implements the hooks of the framer.

    ``control`` is a second connection to the same server, for table definitions and positions.
    """

    def __init__(
        self,
        config: DestinationConfig,
        control: Source,
        log: CaptureLog,
        start: Start,
        counters: CaptureCounters,
        *,
        stream: ByteStream | None = None,
    ) -> None:
        """Requests the dump, unless ``stream`` is given. Raises SourceUnavailableError, SourceRefusedError."""
        self._config = config
        self._log = log
        self.epoch = start.identity.epoch
        self._filter = StatementFilter(config.tables, log.tables)
        self._tracked: TrackedSchemas | None = None
        self._schemas: SchemaHistory | TrackedSchemas
        if isinstance(control, BinlogFiles):
            self._schemas = self._tracked = TrackedSchemas(config, log)
        else:
            self._schemas = SchemaHistory(control, config, log, self.epoch, named=start.named)
            self._filter.sequences = list_sequences(control, config.tables)
            self._filter.targets = StatementTargets(control, config.tables)
        self._filter.engine_of = self._schemas.engine_of
        self.counters = counters
        self._framer = Framer(
            np.empty(_SRC_BYTES, dtype=np.uint8),
            self,
            packets=True,
            first_packet=_first_packet(config),
            out_bytes=_OUT_BYTES,
            place=f"source {place_of(config.source)}",
            may_lack=self._schemas.are_generated,
        )
        self._described = False  # whether the current file's format description has come
        self._broken = False  # later transactions must not become visible
        self._unpublished: list[Numbers] = []  # rows that are not published yet; position rows wait to be coalesced
        self._published_at = time.monotonic()
        stored = max(start.seq, log.last_seq or 0)
        self._stored = split_seq(stored)
        """Everything up to this seq is in the store or was not to be captured."""
        self.ended_at: BinlogPosition | None = None
        """The position of the event at which the connection ended, as the events before it imply."""
        self.gtid: str | None = None
        self.time_us = 0
        self._overlap = start.overlap
        self._schemas.begin(start.seq, start.position)
        self._prepared = PreparedRecorder(config, control, log, self._filter, stored)
        # A dump request has 32 bits for the offset. Beyond 4 GiB the dump begins at the file's start.
        pos = start.position.pos
        begin = BinlogPosition(start.position.file, pos if pos <= MAX_POSITION else 4)
        self._files: FolderDump | None = None
        """The stream, if it is that of a folder."""
        if stream is not None:
            self._stream: ByteStream = stream
        elif config.source.folder is not None:
            self._stream = self._files = FolderDump(config.source, begin, follow=True)
        else:
            self._stream = DumpStream(config.source, begin, replica_label(config))
        self._start_file(begin)

    # --- reading -----------------------------------------------------------------------------------------------------

    def step(self) -> int:
        """Reads once, stores what arrived, and returns the number of bytes received. Raises the CdcError that ends the
        connection."""
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
            elif self._unpublished:
                self._publish_all()
        except CdcError as error:
            self.ended_at = BinlogPosition(self._file, framer.event_pos)
            position = self.position
            self._drop_unfinished()
            explained = self._explain(error, position)
            if explained is error:
                raise
            raise explained from None
        return n

    def _explain(self, error: CdcError, position: BinlogPosition) -> CdcError:
        """Translates the error that ended the connection into one that names settings."""
        if isinstance(error, ServerErrorPacket):
            self._discard_start()
            return explain_dump_error(error.code, error.text, self._config.source, position)
        if self._files is not None:
            error = self._files.explain(error, position)
        if isinstance(error, CorruptStreamError):
            self._discard_start()
            if self._log.last_seq is None and isinstance(self._config.source.start, StartPosition):
                return no_event_at_start(self._config, error)
        return error

    @property
    def position(self) -> BinlogPosition:
        """The position up to which the source has been read, including events that are no part of a transaction."""
        return BinlogPosition(self._file, self._framer.seen_pos)

    def has_passed(self, position: BinlogPosition) -> bool:
        """Whether everything before ``position`` has been read."""
        if self._framer.in_transaction:
            return position.file_number < self.position.file_number
        reached = self.position
        return (reached.file_number, reached.pos) >= (position.file_number, position.pos)

    def has_reached(self, position: BinlogPosition) -> bool:
        """Whether everything before ``position`` has been read that can be read: the last file of a folder may end
        inside a transaction, of which the rest is still to come."""
        return self.has_passed(position) or (self._files is not None and self._files.has_sent(position))

    def close(self) -> None:
        """Closes the connection. Whole transactions are kept; an unfinished one is discarded and will be read again."""
        self._stream.close()
        try:
            self._drop_unfinished()
            self._publish_all()
        finally:
            self._prepared.close()

    # --- hooks of the framer -----------------------------------------------------------------------------------------

    def table(self, db: str, table: str) -> int | None:
        number = self._filter.table(db, table, self._framer.event(), has_checksum=bool(self._framer.st.has_crc))
        if number is not None and (self._tracked is None or not self._framer.skips):
            st = self._framer.st
            seq = int(st.seq_base) | min(self._framer.event_pos, MAX_OFFSET)
            self._schemas.table_map(self._framer.event(), bool(st.has_crc), seq, self._framer.where)
        return number

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        framer = self._framer
        decision, ends = self._filter.statement(query, framer.where)
        if ends:
            framer.st.tx_begin = 0
        if framer.skips:
            return Decision(keep=False)
        if decision.ddl and decision.keep:
            begins = int(framer.st.tx_start) if in_transaction else None
            self._schemas.statement(query, decision.altered, begins, decision.named)
        return decision

    def is_transactional(self, table: str) -> bool:
        return self._schemas.engine_of(table) in _TRANSACTIONAL

    def cut(self, offset: int) -> None:
        self._log.drop_unfinished(offset)

    def prepare(self, framer: Framer, event: bytes) -> None:
        self._prepared.prepare(framer, event)

    def complete(self, framer: Framer, xa: XaStatement) -> Iterable[bytes | memoryview] | None:
        return self._prepared.complete(framer, xa)

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        if self._tracked is not None:
            self._tracked.written_by(description.server_version)
        if description.server_started:
            self._filter.server_started()
        self._described = True
        # A server that crashed in a transaction leaves it unfinished at the end of its file.
        self._drop_unfinished()
        stored = self._stored_up_to(BinlogPosition(self._file, 4).file_number)
        if stored > MAX_OFFSET:  # everything in this file is stored already
            self._framer.start_output(0, 0)
            return
        pos = max(stored, self._framer.source_pos)
        server_id = events.parse_header(event).server_id
        offset = self._log.begin(self.epoch, self._file, pos, event, server_id)
        self._prepared.begin_file(self._file, pos, event, server_id)
        self._framer.start_output(offset, self._config.store.segment_bytes)
        seq = int(self._framer.st.seq_base) | pos
        if self._log.last_seq is None or seq > self._log.last_seq:
            # Record this position. `start: now` means the moment of the first start only; and after a rotation the
            # source may purge the file before, even if no transaction follows for days.
            row = np.zeros((1, k.ROW_WIDTH), dtype=np.int64)
            row[0, k.R_SEQ], row[0, k.R_FLAGS] = seq, k.FLAG_POSITION
            # Published later, because a position that the server refuses must not be recorded.
            self._unpublished.append(row)

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        if not artificial:
            return  # an artificial event follows, which names the next file again
        if rotate.file == self._file:
            return
        # This event may have no checksum, so check the name against the expected one.
        base, number = split_file_name(self._file)
        if rotate.pos != 4 or rotate.file != make_file_name(base, number + 1):
            raise CorruptStreamError(
                f"the server continues with {rotate.file!r}, position {rotate.pos}, which does not follow {self._file}",
                place=self._framer.where,
                remedy="Capture reconnects by itself.",
            )
        self._drop_unfinished()
        self._publish_all()
        self._start_file(BinlogPosition(rotate.file, rotate.pos))

    def _start_file(self, position: BinlogPosition) -> None:
        self._file = position.file
        self._described = False
        number = position.file_number
        self._framer.start_file(
            position.file,
            position.pos,
            make_seq(self.epoch, number, 0),
            skip_until=self._stored_up_to(number),
        )
        asks = self._overlap is not None and self._overlap.is_after(position)
        self._framer.ask_about_gtids(self._is_stored if asks else None)

    def _is_stored(self, gtid: str) -> bool:
        """Whether a transaction of a new epoch is in the store from the epoch before."""
        overlap = self._overlap
        assert overlap is not None
        if not overlap.is_after(BinlogPosition(self._file, self._framer.source_pos)):
            self._framer.ask_about_gtids(None)
            return False
        return overlap.has(gtid)

    def _stored_up_to(self, number: int) -> int:
        """Returns the offset up to which transactions of a binlog file are skipped because the store has them. For a
        file before the newest one in the store that is all of them (beyond ``MAX_OFFSET``)."""
        stored = self._stored
        if stored.epoch != self.epoch or number > stored.file_number:
            return 0
        return stored.offset if number == stored.file_number else MAX_OFFSET + 1

    def flush(self, framer: Framer) -> None:
        if self._broken:
            return
        if not self._described and (framer.definite() or framer.st.n_rows):
            self._broken = True
            raise CorruptStreamError(
                f"events come before the format description of {self._file}",
                place=framer.where,
                remedy="Capture reconnects by itself.",
            )
        rows = framer.take_rows()
        self._prepared.sync()
        # Write schemas before the transactions' bytes are in the log, where recovery would find them.
        try:
            self._schemas.before(rows)
        except CdcError:
            self._broken = True
            ready = self._schemas.ready
            end = int(rows[ready, k.R_OFFSET])
            self._append(framer, framer.take_output()[: max(0, end - int(framer.st.out_base))])
            self._publish(rows[:ready])
            self._log.drop_unfinished()
            raise
        self._append(framer, framer.take_output())
        framer.drop_output()
        self._publish(rows)

    def roll(self, framer: Framer) -> None:
        offset = self._log.roll(self.epoch, framer.source_pos)
        framer.start_output(offset, self._config.store.segment_bytes)

    def set_statement_end(self, offset: int, length: int) -> int:
        self.flush(self._framer)
        return self._log.set_statement_end(offset, length)

    # --- appending to the store --------------------------------------------------------------------------------------

    def _append(self, framer: Framer, data: memoryview) -> None:
        if len(data):
            self._log.append(data, int(framer.st.last_tx_end))
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
        self._unpublished.append(rows)
        if count == 0 and time.monotonic() - self._published_at < _POSITIONS_EVERY_S:
            if sum(map(len, self._unpublished)) > _MAX_WAITING:
                self._unpublished = [_coalesce(self._unpublished)]
            return
        self._publish_all()

    def _publish_all(self) -> None:
        if not self._unpublished:
            return
        rows = _coalesce(self._unpublished)
        self._unpublished = []
        self._published_at = time.monotonic()
        self._log.publish(rows_to_entries(rows, store_time_us=time.time_ns() // 1000))
        while self._log.published - self._log.visible > _MAX_UNFLUSHED:  # the disk is slower than the source
            self._log.wait_flushed(self._log.flushed.seq)

    def _discard_start(self) -> None:
        """Discards a configured start position that the server refuses or at which no event begins, so that another
        one can be configured. A position that the server reported (``start: now``) is kept."""
        if self._log.last_seq is None and isinstance(self._config.source.start, StartPosition):
            self._unpublished = []

    def _drop_unfinished(self) -> None:
        """Publishes whole transactions and discards an unfinished one, including the part of it that is in the log."""
        if not self._broken:
            if self._framer.in_transaction:
                self._schemas.abandon(int(self._framer.st.tx_start))
            self._framer.abandon_transaction()
            self.flush(self._framer)
        self._log.drop_unfinished()


def _coalesce(parts: list[Numbers]) -> Numbers:
    """Concatenates the arrays and merges adjacent position rows with contiguous GTIDs."""
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
    same_file = earlier[:, k.R_SEQ] >> FILE_SHIFT == later[:, k.R_SEQ] >> FILE_SHIFT
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
