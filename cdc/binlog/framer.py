"""The Python half of framing: runs the kernel, and answers its questions about tables, statements and rare events.

Used by capture (packets in, kept bytes out), by the store's recovery and by readers of any binlog file (a scan of
plain bytes, which gives only the transactions' rows).
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import numpy as np

from cdc.base.errors import (
    CorruptStreamError,
    DamagedError,
    IdentityError,
    SourceUnavailableError,
    UnsupportedEventError,
)
from cdc.binlog import events, refusals
from cdc.binlog import frame_state as k
from cdc.binlog.constants import CHECKSUM_SIZE, FULL_PACKET, HEADER_SIZE, MARIADB_GTID_FLAGS_AT, EventType, type_name
from cdc.binlog.frame_buffers import (
    BadLengthError,
    Bytes,
    FrameBuffers,
    Numbers,
    OutOfStepError,
    OutputTooLargeError,
    SavepointMark,
)
from cdc.binlog.frame_events import TableIds, add_table, find_table
from cdc.binlog.frame_kernel import frame
from cdc.binlog.optional_columns import Columns, lacking_columns, let_lack, named
from cdc.binlog.payload import PayloadFault, PayloadReader
from cdc.binlog.rare_events import XaStatement, parse_incident, parse_tagged_gtid, parse_xa, parse_xa_prepare
from cdc.kernels.jit import bind
from cdc.kernels.zstd import unpacker

if TYPE_CHECKING:
    from cdc.binlog.payload import PayloadReader
    from cdc.kernels.zstd import Unpacker

T = TypeVar("T")

# Flags of MariaDB's GTID event, and its extra flags.
_GROUP_COMMIT_ID, _TRANSACTIONAL, _PREPARED_XA, _COMPLETED_XA = 0x02, 0x04, 0x40, 0x80
_START_ALTER, _ROLLBACK_ALTER = 0x02, 0x08
_GTID_EVENT_MAX = 256
"""More than the longest GTID event, which has the id of an XA transaction."""

_TABLES_CAPACITY = 1 << 15
_NOTHING: Bytes = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True)
class Decision:
    """Whether a statement is kept, whether it is DDL, and which captured tables it names."""

    keep: bool
    ddl: bool = False
    table_mask: int = 0
    altered: frozenset[str] = frozenset()
    """For DDL that is kept: the captured tables (``db.table``) whose columns it may change."""
    named: frozenset[str] = frozenset()
    """For DDL that is kept: the captured tables that it names."""
    savepoint: str | None = None
    """For SAVEPOINT and ROLLBACK TO SAVEPOINT: the name."""
    undoes: bool = False
    """Whether the transaction's rows are void, from the savepoint on if there is one."""


class Hooks(Protocol):
    """The decisions and actions that framing asks of its caller. Any method may raise an error to stop framing."""

    def table(self, db: str, table: str) -> int | None:
        """Returns the number of a captured table; None for a table that is not captured."""

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        """Decides about a QUERY event other than BEGIN and COMMIT, XA START and XA END. An UnsupportedEventError
        that it raises is raised again at the end of the transaction, where its position is known."""

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        """Handles the begin of a file, or the dump thread's description of the events that follow."""

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        """Handles the source's change to another file, or its announcement of the current file."""

    def flush(self, framer: Framer) -> None:
        """Takes ``framer.take_output()`` and ``framer.take_rows()``, because one of the buffers is full."""

    def roll(self, framer: Framer) -> None:
        """Begins a new segment: the current one is full, and no transaction is open."""

    def set_statement_end(self, offset: int, length: int) -> int:
        """Sets STMT_END_F on the row event at ``offset`` of the output, which was taken already. Returns its new
        CRC32."""

    def is_transactional(self, table: str) -> bool:
        """Whether a ROLLBACK takes back the rows of a captured table (``db.table``), as far as its definition says."""

    def cut(self, offset: int) -> None:
        """Removes the output from ``offset`` on, all of which was taken already. It lies in the open transaction."""

    def prepare(self, framer: Framer, event: bytes) -> None:
        """Puts the open XA transaction aside, which its XA_PREPARE event (without checksum) ends here: the part of it
        that was taken, and ``framer.open_output()``. Cuts the part that was taken off the output."""

    def complete(self, framer: Framer, xa: XaStatement) -> Iterable[bytes | memoryview] | None:
        """Returns the rows of the XA transaction that is committed here, without checksums (see
        :mod:`cdc.binlog.xa_rows`). None if it is rolled back or has no captured rows."""


class StopsAtPrepared:
    """The hooks for prepared XA transactions and rollbacks of those that cannot follow either.

    An XA transaction ends at its XA COMMIT, and the rows that a ROLLBACK takes back depend on their tables' engines.
    """

    def prepare(self, framer: Framer, event: bytes) -> None:
        if framer.st.tx_kept:
            raise framer.prepared_rows(event)

    def complete(self, framer: Framer, xa: XaStatement) -> Iterable[bytes | memoryview] | None:
        return None

    def is_transactional(self, table: str) -> bool:
        return False

    def cut(self, offset: int) -> None:
        raise AssertionError("a rollback is refused")


class Framer(FrameBuffers):
    """Feeds one stream of events through :func:`cdc.binlog.frame_kernel.frame`.

    Put bytes into the buffers, see :class:`~cdc.binlog.frame_buffers.FrameBuffers`, and call :meth:`run`. ``place``
    names the stream in errors.
    """

    def __init__(
        self,
        src: Bytes,
        hooks: Hooks,
        *,
        packets: bool,
        first_packet: int | None = None,
        scan: bool = False,
        out_bytes: int = 8 << 20,
        verify: bool = True,
        place: str = "stream",
        may_lack: Callable[[str, str, Columns], bool] | None = None,
    ) -> None:
        """``first_packet``: the number of the first packet, if packets must come in the order of their numbers.
        ``may_lack`` says whether the rows of a captured table, given by database and name, may lack these columns,
        by their names or ordinals. None: rows that lack columns are refused."""
        super().__init__(src, 64 if scan else out_bytes)
        self.hooks = hooks
        self.place = place
        self._packets = packets
        self.st.packets, self.st.scan, self.st.verify = packets, scan, verify
        self.st.has_crc = 1
        self.st.packet_number = -1 if first_packet is None else first_packet
        self.st.last_row = self.st.last_end = -1
        self._tables = empty_table_ids(_TABLES_CAPACITY)
        self._known_tables = 0
        self._names: dict[int, str] = {}  # of captured tables, by table id
        self._maps: dict[int, bytes] = {}  # their TABLE_MAP events
        self._may_lack = may_lack
        self._scratch: Bytes = np.zeros(16, dtype=np.uint8)
        self._file = ""
        self._numbers: dict[str, int] = {}  # of captured tables, by name
        self._refused: UnsupportedEventError | None = None  # raised at the end of the transaction
        self._is_stored: Callable[[str], bool] | None = None
        self._payload: PayloadReader | None = None
        self._unpacking = False
        self._inserted: str | None = None  # the XA transaction whose rows are the second input
        self._preparing: bytes | None = None  # the XA_PREPARE event of a compressed transaction
        self._savepoints: dict[str, SavepointMark] = {}  # in their order, by their names in lower case
        self._savepoints_of = (-1, -1)  # the transaction that they belong to
        self._unpacker: Unpacker | None = None
        self._call: Callable[[], int] | None = None  # the kernel, bound to these arrays
        self._bound: tuple[Any, ...] = ()

    # --- the source's file -----------------------------------------------------------------------------------------

    def start_file(self, file: str, pos: int, seq_base: int, *, skip_until: int = 0) -> None:
        """Announces that the following transactions lie in ``file``, at ``pos``; ``seq_base`` is the seq of its offset
        0. Transactions that end at or before ``skip_until``, a boundary between two, are skipped."""
        self._file = file
        self.st.skip_until = skip_until
        self.st.last_end = -1
        self.st.file_pos, self.st.seq_base = pos, seq_base
        self.st.seen_pos = pos & 0xFFFFFFFF
        self.forget_tables()

    def start_output(self, offset: int, roll_at: int) -> None:
        """Continues the output at ``offset`` of a segment that is full at ``roll_at``. Call this only between
        transactions."""
        assert self.st.out_pos == 0 and self.st.tx_open == 0
        self.st.out_base = self.st.last_tx_end = offset
        self.st.roll_at = roll_at

    def forget_tables(self) -> None:
        """Forgets all table ids, which are valid only until the next rotation or restart."""
        self._tables.keys[:] = -1
        self._tables = self._tables._replace(optional=_NOTHING)
        self._known_tables = 0
        self._names.clear()
        self._maps.clear()

    def ask_about_gtids(self, is_stored: Callable[[str], bool] | None) -> None:
        """From the next transaction on, keeps nothing of those for whose GTID ``is_stored`` returns true. None: asks no
        more. This costs a call per transaction, so it is for the few after a failover."""
        self._is_stored = is_stored
        self.st.ask_gtid = is_stored is not None

    @property
    def in_transaction(self) -> bool:
        return bool(self.st.tx_open)

    @property
    def skips(self) -> bool:
        """Whether the current transaction is skipped."""
        return bool(self.st.tx_skip)

    @property
    def event_pos(self) -> int:
        """The position of the current event in the source's file, as far as the events before it tell."""
        pos, last = self.source_pos, int(self.st.last_end)
        return pos if last < 0 else pos + ((last - pos) & 0xFFFFFFFF)

    @property
    def seen_pos(self) -> int:
        """The end of the last event that was read, inside a transaction or not; never before :attr:`source_pos`."""
        return max(int(self.st.file_pos), int(self.st.seen_pos))

    @property
    def source_pos(self) -> int:
        """The end of the last finished transaction in the source's file."""
        return int(self.st.file_pos)

    @property
    def where(self) -> str:
        """The position for messages."""
        file = f"{self._file}, behind {self.source_pos}" if self._file else f"byte {int(self.st.event_in)}"
        return f"{self.place}: {file}"

    @property
    def event_end(self) -> int:
        """The end of the current event in the source's file, beyond 32 bits too; 0 if it has no position."""
        at_least = int(self.st.file_pos) + int(self.st.tx_bytes if self.in_transaction else 0)
        pos = int(self.st.event_end_pos)
        end = at_least >> 32 << 32 | pos
        return 0 if not pos else end if end >= at_least else end + (1 << 32)

    @property
    def gtid(self) -> str | None:
        """The GTID of the open transaction, as the server prints it; None if it has none."""
        st = self.st
        if not st.gtid_count:
            return None
        if st.gtid_mariadb:
            return _mariadb_gtid(st.gtid_a, st.gtid_number)
        return _gtid_text(st.gtid_a, st.gtid_b, st.gtid_number, st.gtid_tag)

    @property
    def changed_tables(self) -> list[str]:
        """The captured tables with rows in the open transaction. With more than 64 tables some more may be named."""
        mask = int(self.st.tx_mask)
        return [name for name, number in self._numbers.items() if mask >> (number & 63) & 1]

    def room(self) -> memoryview:
        """The room for the next input, see :meth:`FrameBuffers.room`. Raises CorruptStreamError, DamagedError."""
        try:
            return super().room()
        except BadLengthError:
            self._fail(k.BAD_LENGTH)

    def abandon_transaction(self) -> int:
        """Forgets an unfinished transaction. Returns the offset at which the caller has to cut the output."""
        self._refused = None
        self._unpacking = False
        self._inserted = self._preparing = None
        return self.cut_transaction()

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Frames all input that has arrived. Returns False when the server has ended the stream."""
        try:
            return self._run()
        except BaseException:
            if self.st.unpacked and self.reads_inner:
                self.swap_input()
            raise

    def _run(self) -> bool:
        while True:
            status = self._frame()
            if status == k.NEED_INPUT:
                try:
                    if not self.join_packets():
                        return True
                except BadLengthError:
                    self._fail(k.BAD_LENGTH)
                except OutOfStepError:
                    self._fail(k.OUT_OF_STEP)
            elif status in (k.OUT_FULL, k.ROWS_FULL):
                self._flush()
            elif status == k.AT_BOUNDARY:
                self.hooks.flush(self)
                self.hooks.roll(self)
            elif status == k.NEED_TABLE:
                self._add_table()
            elif status == k.NEED_STATEMENT:
                self._decide()
            elif status == k.NEED_EVENT:
                self._read_event()
            elif status == k.NEED_GTID:
                self._sound_event()
                self.st.decision = k.DROP if self._has_gtid_stored() else k.KEEP
            elif status == k.PATCH_STORED:
                self._patch_stored()
            elif status == k.PAYLOAD_PIECE:
                self._unpack()
            elif status == k.PAYLOAD_WHOLE:
                self._unpack()
                self._end_payload()
            elif status == k.PAYLOAD_END:
                self._end_payload()
            elif status == k.PART_IMAGE:
                self._read_part_image()
            elif status == k.REFUSED and self.st.inner:
                self._refuse(refusals.refused_type(int(self.st.event_type), self.where))
            elif status == k.END_OF_STREAM:
                return False
            else:
                self._fail(status)

    def _frame(self) -> int:
        """Runs the kernel. Its arguments are prepared once, because that takes longer than a small transaction."""
        arrays = *self.inputs(), self.out, self._tables
        if self._call is None or any(array is not other for array, other in zip(arrays, self._bound, strict=True)):
            src, inner, out, tables = self._bound = arrays
            self._call = bind(frame, self.st, src, inner, out, self.rows, tables, self._scratch)
        status = self._call()
        self.follow_input()
        return status

    def _sound_event(self) -> bytes:
        """The current event. If all of it has arrived, its checksum is verified."""
        event = self.event()
        length = int(self.st.event_length)
        in_one = not self.st.packets or self.st.joined > 0 or length < FULL_PACKET
        if len(event) == length and in_one and self._has_crc and self.st.verify and not _is_sound(event):
            self._fail(k.BAD_CHECKSUM)
        return event

    def _flush(self) -> None:
        before = self.definite(), int(self.st.n_rows)
        self.hooks.flush(self)
        if before == (self.definite(), int(self.st.n_rows)):
            try:
                self.grow_output()
            except OutputTooLargeError:
                raise UnsupportedEventError(
                    "the start of a transaction does not fit into memory", place=self.where
                ) from None

    @property
    def _has_crc(self) -> bool:
        return bool(self.st.has_crc)

    def _add_table(self) -> None:
        event = self._sound_event()
        table_id, db, table = self._parsed(events.parse_table_name, event)
        if self._known_tables * 2 >= len(self._tables.keys):
            old = self._tables
            self._tables = empty_table_ids(2 * len(old.keys))._replace(optional=old.optional)
            for slot in np.flatnonzero(old.keys >= 0):
                key, value, length, optional_at = (int(column[slot]) for column in old[:4])
                add_table(self._tables, key, value, length, optional_at)
        number = self.hooks.table(db, table)
        length = int(self.st.event_length) - (4 if self._has_crc else 0)
        self._known_tables += find_table(self._tables.keys, table_id) < 0
        add_table(self._tables, table_id, -1 if number is None else number, length, -1)
        if number is not None:
            self._names[table_id] = f"{db}.{table}"
            self._maps[table_id] = event
            self._numbers[f"{db}.{table}"] = number

    def _parsed(self, parse: Callable[[bytes], T], event: bytes) -> T:
        """Parses an event by ``parse``. Raises CorruptStreamError or DamagedError if it contradicts itself."""
        try:
            return parse(event)
        except (DamagedError, UnicodeDecodeError) as error:
            text = error.message if isinstance(error, DamagedError) else str(error)
            raise self._corrupt(f"an event ({type_name(event[4])}) is invalid: {text}") from None

    def _corrupt(self, text: str) -> CorruptStreamError | DamagedError:
        if self.st.inner and self._inserted is not None:
            return refusals.damaged_prepared(self._inserted, f"in it, {text}")
        if self.st.inner:
            text = _damaged_payload(f"in it, {text}")
        if self._packets:
            return CorruptStreamError(text, place=self.where, remedy="Towpath reconnects.")
        event_in = self.st.saved[k.FrameState.index_of("event_in")] if self.st.inner else self.st.event_in
        return DamagedError(text, place=f"{self.place}: byte {int(event_in)}")

    def _decide(self) -> None:
        event = self._sound_event()
        whole = len(event) == int(self.st.event_length)
        query = self._parsed(lambda e: events.parse_query(e, self._has_crc and whole), event)
        xa = parse_xa(query.sql)
        if xa is not None and xa.verb in ("START", "END"):
            self.st.decision = k.OPENS if xa.verb == "START" else k.ALONG
            return
        if xa is not None and xa.verb in ("COMMIT", "ROLLBACK"):
            self.st.tx_begin = 0  # the statement ends the transaction, whatever MariaDB's GTID event says
            if not self.st.scan:
                self._complete(xa)
                return
        if not self.st.scan and self._gtid_flags()[1] & (_START_ALTER | _ROLLBACK_ALTER):
            self.st.decision = k.DROP  # it takes effect when it comes again as COMMIT ALTER
            return
        try:
            decision = self.hooks.statement(query, bool(self.st.tx_begin) and self.in_transaction)
            if decision.undoes:
                self._undo(decision.savepoint, query)
            elif decision.savepoint is not None:
                self._set_savepoint(decision.savepoint)
        except UnsupportedEventError as error:
            if not self.skips and (self.st.tx_begin == 0 or not self.in_transaction):
                raise self.with_end(error) from None
            self._refuse(error)
            self.st.decision = k.DROP
            return
        if not decision.keep:
            self.st.decision = k.DROP
        else:
            self.st.decision = k.KEEP_DDL if decision.ddl else k.KEEP
            mask = decision.table_mask
            self.st.decision_mask = mask - (1 << 64) if mask >= 1 << 63 else mask

    # --- rollbacks in the binlog

    def _gtid_flags(self) -> tuple[int, int]:
        """The flags and the extra flags of the GTID event (of MariaDB) that began the open transaction; zeros if it has
        none, or its beginning was taken already. See Gtid_log_event in MariaDB's sql/log_event.h."""
        start = int(self.st.tx_start - self.st.out_base)
        if not self.in_transaction or not self.st.gtid_mariadb or start < 0:
            return 0, 0
        event = self.out[start : start + _GTID_EVENT_MAX].tobytes()
        end = events.parse_header(event).length - CHECKSUM_SIZE  # the output always has checksums
        flags, at = event[MARIADB_GTID_FLAGS_AT], MARIADB_GTID_FLAGS_AT + 1
        if flags & _GROUP_COMMIT_ID:
            at += 8
        if flags & (_PREPARED_XA | _COMPLETED_XA):
            at += 6 + event[at + 4] + event[at + 5]
        return flags, event[at] if at < end else 0  # servers leave extra flags out if there are none

    @property
    def first_savepoint(self) -> int:
        """The offset in ``out`` of the open transaction's first savepoint; that of its end without one."""
        offsets = [mark.offset for mark in self._savepoints.values()] if self._has_savepoints() else []
        return min(offsets, default=int(self.st.out_base + self.st.out_pos)) - int(self.st.out_base)

    def _has_savepoints(self) -> bool:
        """Whether the savepoints are those of the open transaction. Forgets them otherwise."""
        transaction = int(self.st.tx_start), int(self.st.file_pos)
        if self._savepoints_of != transaction:
            self._savepoints_of, self._savepoints = transaction, {}
        return bool(self._savepoints)

    def _set_savepoint(self, name: str) -> None:
        """Notes what the open transaction has so far. A savepoint of the same name is replaced."""
        self._has_savepoints()
        self._savepoints.pop(name.lower(), None)
        self._savepoints[name.lower()] = self.mark()

    def _undo(self, name: str | None, query: events.QueryEvent) -> None:
        """Removes the rows of the open transaction from the savepoint on; all of them without one. Raises
        UnsupportedEventError if the server may have kept some of them."""
        st = self.st
        if st.scan or self.skips or not self.in_transaction:
            return
        mark = self._savepoints.get(name.lower()) if name is not None and self._has_savepoints() else None
        if mark is not None:
            names = list(self._savepoints)
            for later in names[names.index((name or "").lower()) + 1 :]:
                del self._savepoints[later]
        if int(st.tx_row_events) == (0 if mark is None else mark.row_events):
            return
        if name is not None and mark is None:
            raise refusals.unknown_savepoint(query.sql, self.changed_tables, self.where)
        kept = [table for table in self.changed_tables if not self.hooks.is_transactional(table)]
        if kept and not self._gtid_flags()[0] & _TRANSACTIONAL:
            raise refusals.mixed_rollback(query.sql, kept, self.where)
        cut = self.undo(mark)
        if cut is not None:
            self.hooks.cut(cut)

    def _read_event(self) -> None:
        event = self.event()
        header = events.parse_header(event)
        decision = k.DROP
        if header.type == EventType.ROTATE:
            self.hooks.rotate(self._parse_rotate(event, header.artificial), header.artificial)
        elif header.type == EventType.FORMAT_DESCRIPTION:
            description = self._parse_description(event)
            self.hooks.format_description(event, description)
            self.st.has_crc = description.has_checksum
        elif header.type == EventType.INCIDENT and not self.skips:
            message = parse_incident(self._body_of(self._sound_event()))
            raise self.with_end(refusals.incident(message, self.where))
        elif header.type == EventType.XA_PREPARE:
            event = self._body_of(self._sound_event())
            self._parsed(parse_xa_prepare, event)
            if self.st.inner:
                self._preparing = event  # it counts when the checksum around it is verified
                self.st.preparing = 1
            else:
                self._prepare(event)
        elif header.type == EventType.GTID_TAGGED:
            self._begin_tagged(self._sound_event())
            decision = k.KEEP
        # An artificial rotate and a format description may lack a checksum that the state says they have, or have one
        # that it does not know. They have been verified as far as possible, so they are stepped over here.
        if header.type in (EventType.ROTATE, EventType.FORMAT_DESCRIPTION):
            self._step_over(len(event))
        else:
            self.st.decision = decision

    def _parse_rotate(self, event: bytes, artificial: bool) -> events.RotateEvent:
        try:
            if artificial:
                return events.parse_artificial_rotate(event)
            return events.parse_rotate(self._sound_event(), self._has_crc)
        except (DamagedError, UnicodeDecodeError):
            self._fail(k.BAD_CHECKSUM)

    def _parse_description(self, event: bytes) -> events.FormatDescription:
        """Parses a format description after verifying its checksum, which it always has. But a server whose events have
        none does not compute it again when it blanks position and time for a dump that begins behind it. Then only
        the byte of the checksum algorithm is proved to be undamaged."""
        event = events.closed(event)
        sound = _is_sound(event)
        try:
            description = events.parse_format_description(event)
        except (DamagedError, UnsupportedEventError):
            if not sound:
                self._fail(k.BAD_CHECKSUM)
            raise
        blanked = events.parse_header(event).end_log_pos == 0 and not description.has_checksum
        if not sound and (not blanked or _is_sound(event[:-5] + b"\1" + event[-4:])):
            self._fail(k.BAD_CHECKSUM)
        return description

    def _step_over(self, length: int) -> None:
        at = int(self.st.event_in - self.st.in_base)
        self.st.in_pos = at + length
        if self._packets and self.st.packet_number >= 0:
            self.st.packet_number = (int(self.src[at - 2]) + 1) & 255  # of the four bytes before a status byte

    def _body_of(self, event: bytes) -> bytes:
        """The event without its checksum."""
        return event[:-4] if self._has_crc else event

    def _begin_tagged(self, event: bytes) -> None:
        st, gtid = self.st, self._parsed(parse_tagged_gtid, self._body_of(event))
        st.gtid_a, st.gtid_b = np.frombuffer(gtid.source, dtype="<i8")
        st.gtid_tag[:] = np.frombuffer(gtid.tag.ljust(32, b"\0"), dtype="<i8")
        st.gtid_number, st.gtid_count = gtid.number, 1
        st.tx_time = gtid.time_us
        if st.ask_gtid and not st.tx_skip and self._has_gtid_stored():
            st.tx_skip = k.SKIPPED_BY_GTID

    def _has_gtid_stored(self) -> bool:
        """Whether the current transaction is stored already, as its GTID tells."""
        gtid = self.gtid
        return gtid is not None and self._is_stored is not None and self._is_stored(gtid)

    # --- compressed transactions

    def _unpack(self) -> None:
        """Unpacks the bytes of a compressed transaction that the kernel hands over, and frames what was in them."""
        # They load zstandard, which few sources need.

        if self._payload is None:
            self._payload = PayloadReader(self._frame_unpacked)
            self._unpacker = unpacker()
            if self._unpacker is not None:  # from the next one on, the kernel unpacks those that have arrived whole
                self.st.unzstd, self.st.unzstd_context = self._unpacker.function, self._unpacker.context
        if not self._unpacking:
            self._unpacking = True
            self._payload.restart()
            self.begin_inner()
        at, n = int(self.st.piece_at), int(self.st.piece_length)
        try:
            self._payload.feed(self.src.data[at : at + n])
        except PayloadFault as fault:
            raise self._corrupt(_damaged_payload(str(fault))) from None

    def _frame_unpacked(self, data: bytes | memoryview) -> None:
        at = 0
        self.swap_input()
        try:
            while at < len(data):
                room = self.room()
                n = min(len(data) - at, len(room))
                room[:n] = data[at : at + n]
                self.fed(n)
                at += n
                self.run()
                self.compact()
        finally:
            self.swap_input()

    def _end_payload(self) -> None:
        """Checks a compressed transaction after all of it has been unpacked and its checksum is verified."""
        by_kernel = bool(self.st.unpacked)
        if not self._unpacking and not by_kernel:
            raise self._corrupt(_damaged_payload("it is empty"))
        self._unpacking = False
        self.st.unpacked = self.st.preparing = 0
        try:
            if not by_kernel:
                assert self._payload is not None
                self._payload.finish()
            if self.inner_rest():
                raise PayloadFault("the last event in it is cut")
            if not self.st.inner_ended:
                raise PayloadFault("no event in it ends the transaction")
        except PayloadFault as fault:
            raise self._corrupt(_damaged_payload(str(fault))) from None
        if self._preparing is not None:
            event, self._preparing = self._preparing, None
            self._prepare(event)

    # --- prepared XA transactions

    def _prepare(self, event: bytes) -> None:
        """Has the open XA transaction put aside. Only its position and its GTID are left in its place."""
        st = self.st
        if st.stmt_open and not st.stmt_rows:  # the table maps of a statement without captured rows
            st.out_pos = st.stmt_start - st.out_base
        self.hooks.prepare(self, event)
        self.drop_open_output()

    def _complete(self, xa: XaStatement) -> None:
        """Ends an XA transaction that was prepared: writes its rows between the GTID and the XA COMMIT."""
        st = self.st
        st.decision = k.DROP
        if self.skips:
            return
        if not st.event_end_pos:
            self._fail(k.NO_POSITION)
        st.decision = k.UNDECIDED
        pieces = self.hooks.complete(self, xa)
        if pieces is not None:
            if not self.in_transaction or st.inner:
                self._fail(k.NESTED)
            self._insert(xa.xid, pieces)
            if self._refused is not None:
                raise self.with_end(self._refused)
        st.decision, st.decision_mask = k.KEEP if st.tx_kept else k.DROP, 0

    def _insert(self, xid: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Frames the rows of a prepared XA transaction at the current position."""
        self.begin_inner()
        self.st.inner_end_pos, self.st.inner_ended = self.st.event_end_pos, 0
        self._inserted = xid
        for piece in pieces:
            self._frame_unpacked(piece)
        if self.inner_rest():
            raise refusals.damaged_prepared(xid, "its last event is cut")
        self._inserted = None

    # --- unsupported events and errors

    def _refuse(self, error: UnsupportedEventError) -> None:
        """Raises an error at the transaction's end, where the position behind it is known; until then nothing more of
        it is kept. A transaction that the server rolled back by dying has no end and is no error."""
        if self.st.scan:
            raise error
        if self.skips:
            return
        if not self.st.tx_refused:
            self.st.tx_refused = 1
            self._refused = error

    def with_end(self, error: UnsupportedEventError) -> UnsupportedEventError:
        """The error with the position behind the current event, which ends its transaction, in its remedy."""
        end = self.event_end
        if not self._file or self.st.scan or not end:
            return error
        return refusals.with_end(error, self._file, end)

    def _read_part_image(self) -> None:
        """Lets the table's rows lack the columns that those of the current event lack, or refuses the event."""
        event = self._sound_event()
        table_id = int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 6], "little")
        table_map = self._maps[table_id]
        columns, lacking = lacking_columns(event)
        names = named(table_map, self._has_crc, columns, lacking)
        if names and self._may_lack is not None and self._may_lack(*events.parse_table_name(table_map)[1:], names):
            self._tables = let_lack(self._tables, table_id, columns, lacking)
        else:
            self._refuse(refusals.partial_rows(self._names[table_id], event[4], self.where))

    def prepared_rows(self, event: bytes) -> UnsupportedEventError:
        """The error for a prepared XA transaction with captured rows, for those that cannot follow it. ``event`` is
        its XA_PREPARE event without checksum."""
        xid = self._parsed(parse_xa_prepare, event)
        return self.with_end(refusals.prepared_xa(xid, self.changed_tables, self.where))

    def _patch_stored(self) -> None:
        st = self.st
        crc = self.hooks.set_statement_end(int(st.last_row), int(st.last_row_length))
        weight = 2 * int(st.last_row_ordinal) + 1
        st.tx_sum = (int(st.tx_sum) + weight * (crc - int(st.last_row_crc))) & 0xFFFFFFFF
        st.decision = k.DROP

    def _fail(self, status: int) -> NoReturn:
        event = self.event()
        kind = type_name(int(self.st.event_type))
        if status == k.SERVER_ERROR:
            at = int(self.st.in_pos)
            size = int.from_bytes(self.src[at : at + 3].tobytes(), "little")
            raise ServerErrorPacket(self.src[at + 4 : at + 4 + size].tobytes())
        if status == k.REFUSED_END:
            self._sound_event()
            assert self._refused is not None
            raise self.with_end(self._refused)
        if status == k.XA:
            raise self.prepared_rows(self._body_of(self._sound_event()))
        if status == k.REFUSED:
            self._sound_event()
            if event[4] == EventType.TRANSACTION_PAYLOAD:
                raise PackedTransactionError(
                    "a compressed transaction has to be unpacked before the file is read", place=self.where
                )
            error = refusals.refused_type(event[4], self.where)
            raise error if self.in_transaction else self.with_end(error)
        if status == k.OVERRUN:
            raise IdentityError(
                f"a transaction ends at {self.source_pos}, and the store holds everything up to "
                f"{int(self.st.skip_until)} in that file, which lies inside it",
                place=f"{self.place}: {self._file}",
                remedy="The source has another history than the captured one: it was reset, or it is another server. "
                "Start a new destination.",
            )
        text = {
            k.BAD_CHECKSUM: f"the checksum of an event ({kind}) is wrong",
            k.BAD_LENGTH: f"the length of an event ({kind}) is wrong",
            k.BAD_PACKET: "the server sent a packet that is not an event",
            k.OUT_OF_STEP: "a packet is missing, or comes a second time or in another order, by its number",
            k.NO_TABLE_MAP: f"an event ({kind}) has no TABLE_MAP",
            k.NESTED: f"an event ({kind}) does not fit the transaction around it",
            k.OUT_OF_ORDER: f"the position of an event ({kind}) lies before that of the previous event",
            k.NO_POSITION: f"an event ({kind}) ends a transaction without a position",
        }[status]
        raise self._corrupt(text)


def _damaged_payload(why: str) -> str:
    return f"a compressed transaction (TRANSACTION_PAYLOAD) is damaged: {why}"


def _is_sound(event: bytes) -> bool:
    """Whether an event's last four bytes are its checksum."""
    return zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little")


def empty_table_ids(capacity: int) -> TableIds:
    keys, values, lengths, optional_at = (np.full(capacity, -1, dtype=np.int64) for _ in range(4))
    return TableIds(keys, values, lengths, optional_at, _NOTHING)


class PackedTransactionError(UnsupportedEventError):
    """A scan met a compressed transaction, of which it cannot give offsets."""


class ServerErrorPacket(SourceUnavailableError):
    """The server ended the dump with an error packet, whose ``code`` and ``text`` this error holds."""

    def __init__(self, packet: bytes) -> None:
        self.code = int.from_bytes(packet[1:3], "little")
        text = packet[3:]
        if text[:1] == b"#":
            text = text[6:]
        self.text = text.decode("utf-8", "replace")
        super().__init__(f"the server ended the stream: {self.text} (error {self.code})")


def row_gtid(row: Numbers) -> str | None:
    """The GTID of a transaction's row, as the server prints it, or None."""
    if not row[k.R_GTID_COUNT]:
        return None
    if int(row[k.R_FLAGS]) & k.FLAG_GTID_MARIADB:
        return _mariadb_gtid(row[k.R_GTID_A], row[k.R_GTID_NUMBER])
    tag = row[k.R_GTID_TAG : k.R_GTID_TAG + 4]
    return _gtid_text(row[k.R_GTID_A], row[k.R_GTID_B], row[k.R_GTID_NUMBER], tag)


def _mariadb_gtid(source: int, number: int) -> str:
    both = int(source)
    return f"{both & 0xFFFFFFFF}-{both >> 32 & 0xFFFFFFFF}-{int(number)}"


def _gtid_text(a: int, b: int, number: int, tag: Numbers) -> str:
    source = b"".join((int(half) & (1 << 64) - 1).to_bytes(8, "little") for half in (a, b))
    name = tag.tobytes().rstrip(b"\0").decode("ascii")
    return f"{uuid.UUID(bytes=source)}:{name + ':' if name else ''}{int(number)}"


class _NoHooks(StopsAtPrepared):
    """Nothing comes that would need a decision."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def warm_up() -> None:
    """Loads the kernels of framing from their cache. Compiles them if they are not there, which takes tens of seconds
    on a busy machine."""
    framer = Framer(np.empty(1 << 16, dtype=np.uint8), _NoHooks(), packets=True, out_bytes=1 << 20)
    framer.start_output(0, 1 << 30)
    framer.run()
    add_table(empty_table_ids(16), 1, -1, 0, -1)
