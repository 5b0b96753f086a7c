"""The Python half of framing: it gives the kernel its buffers and answers what a kernel cannot.

Used by capture (packets in, kept bytes out), by the store's recovery and by readers of any binlog file (a scan of
plain bytes; nothing comes out but the transactions).
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from cdc.binlog import events, refusals
from cdc.binlog import kernels as k
from cdc.binlog.constants import HEADER_SIZE, REFUSED, SKIPPED, EventType, type_name
from cdc.binlog.rare_events import parse_incident, parse_tagged_gtid, parse_xa, parse_xa_prepare
from cdc.errors import (
    CorruptStreamError,
    DamagedError,
    IdentityError,
    SourceUnavailableError,
    UnsupportedEventError,
)

if TYPE_CHECKING:
    from cdc.binlog.payload import PayloadContents

T = TypeVar("T")
Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

ROWS_CAPACITY = 65536
_TABLES_CAPACITY = 1 << 15
_FULL_PACKET = 0xFFFFFF
_LARGEST_EVENT = (1 << 30) + (1 << 20)
"""The protocol limits an event to 1 GiB (``max_allowed_packet``), and its headers come on top."""


@dataclass(frozen=True)
class Decision:
    """What becomes of a statement: kept or not, a DDL or not, and which captured tables it names."""

    keep: bool
    ddl: bool = False
    table_mask: int = 0
    altered: frozenset[str] = frozenset()
    """Of a DDL that is kept: the captured tables (``db.table``) whose columns it may change."""


class Hooks(Protocol):
    """What the kernel asks. Any method may raise to stop."""

    def table(self, db: str, table: str) -> int | None:
        """The number of a captured table; None for one that is not captured."""

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        """Decides about a QUERY event other than BEGIN and COMMIT, XA START and XA END. An UnsupportedEventError
        that it raises is raised again at the end of the transaction, where its position is known."""

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        """A file begins (or the dump thread says how the events after it are to be read)."""

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        """The source goes on to another file, or says in which one it is."""

    def flush(self, framer: Framer) -> None:
        """Take ``framer.take_output()`` and ``framer.take_rows()``: one of the buffers is full."""

    def roll(self, framer: Framer) -> None:
        """The segment is full, and no transaction is open: begin a new one."""

    def set_statement_end(self, offset: int, length: int) -> int:
        """Set STMT_END_F on the row event at ``offset`` of the output, which was taken already; its new CRC32."""


def _event_kinds() -> Numbers:
    kinds = np.full(256, k.T_REFUSE, dtype=np.int64)
    kinds[list(SKIPPED)] = k.T_SKIP
    kinds[list(REFUSED)] = k.T_REFUSE
    kinds[[23, 24, 25, 30, 31, 32, 39]] = k.T_ROWS
    kinds[EventType.TABLE_MAP] = k.T_TABLE_MAP
    kinds[range(EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1, EventType.MARIADB_DELETE_ROWS_COMPRESSED + 1)] = (
        k.T_COMPRESSED_ROWS
    )
    kinds[[EventType.QUERY, EventType.EXECUTE_LOAD_QUERY]] = k.T_QUERY
    kinds[EventType.MARIADB_QUERY_COMPRESSED] = k.T_COMPRESSED_QUERY
    kinds[EventType.XA_PREPARE] = k.T_XA_PREPARE
    kinds[EventType.TRANSACTION_PAYLOAD] = k.T_PAYLOAD
    kinds[EventType.XID] = k.T_XID
    kinds[[EventType.GTID, EventType.ANONYMOUS_GTID]] = k.T_GTID
    kinds[EventType.MARIADB_GTID] = k.T_MARIADB_GTID
    kinds[EventType.GTID_TAGGED] = k.T_GTID_TAGGED
    kinds[[EventType.ROTATE, EventType.FORMAT_DESCRIPTION, EventType.INCIDENT]] = k.T_PYTHON
    return kinds


EVENT_KINDS = _event_kinds()


class Framer:
    """Feeds one stream of events through :func:`cdc.binlog.kernels.frame`.

    ``src`` is read in place: put bytes behind ``end`` (or into :meth:`room`) and call :meth:`run`; afterwards
    :meth:`compact` moves what is unread to the front. ``place`` names the stream in errors. Both buffers grow for an
    event that has to be seen whole, or statements that are undecided for long, and shrink afterwards.
    """

    def __init__(
        self,
        src: Bytes,
        hooks: Hooks,
        *,
        packets: bool,
        scan: bool = False,
        out_bytes: int = 8 << 20,
        verify: bool = True,
        place: str = "stream",
    ) -> None:
        self.src = self._first_src = src
        self.hooks = hooks
        self.place = place
        self.st: Numbers = np.zeros(k.STATE_SIZE, dtype=np.int64)
        self.st[k.PACKETS], self.st[k.SCAN], self.st[k.VERIFY] = packets, scan, verify
        self.st[k.HAS_CRC] = 1
        self.st[k.HOLD] = -1
        self.st[k.LAST_ROW] = self.st[k.LAST_END] = -1
        self.out: Bytes = np.empty(64 if scan else out_bytes, dtype=np.uint8)
        self._first_out = self.out
        self.rows: Numbers = np.zeros((ROWS_CAPACITY, k.ROW_WIDTH), dtype=np.int64)
        self._keys: Numbers = np.full(_TABLES_CAPACITY, -1, dtype=np.int64)
        self._values: Numbers = np.full(_TABLES_CAPACITY, -1, dtype=np.int64)
        self._known_tables = 0
        self._names: dict[int, str] = {}  # of captured tables, by table id
        self._scratch: Bytes = np.zeros(16, dtype=np.uint8)
        self._file = ""
        self._numbers: dict[str, int] = {}  # of captured tables, by name
        self._refused: UnsupportedEventError | None = None  # raised where the transaction ends
        self._payload: PayloadContents | None = None
        self.prepared: set[str] = set()
        """xids of prepared XA transactions without captured rows, whose XA COMMIT or ROLLBACK is still to come."""

    # --- the source's file -----------------------------------------------------------------------------------------

    def start_file(self, file: str, pos: int, seq_base: int, *, skip_until: int = 0) -> None:
        """Transactions from here on lie in ``file``; ``seq_base`` is the seq of its offset 0. Those that end at or
        before ``skip_until``, a boundary between two, are passed over."""
        self._file = file
        self.st[k.SKIP_UNTIL] = skip_until
        self.st[k.LAST_END] = -1
        self.st[k.FILE_POS], self.st[k.SEQ_BASE] = pos, seq_base
        self.st[k.SEEN_POS] = pos & 0xFFFFFFFF
        self.forget_tables()

    def start_output(self, offset: int, roll_at: int) -> None:
        """The output goes on at ``offset`` of a segment that is full at ``roll_at``. Only between transactions."""
        assert self.st[k.OUT_POS] == 0 and self.st[k.TX_OPEN] == 0
        self.st[k.OUT_BASE] = self.st[k.LAST_TX_END] = offset
        self.st[k.ROLL_AT] = roll_at

    def forget_tables(self) -> None:
        """Table ids are good only until the next rotation or restart."""
        self._keys[:] = -1
        self._known_tables = 0
        self._names.clear()

    @property
    def in_transaction(self) -> bool:
        return bool(self.st[k.TX_OPEN])

    @property
    def skips(self) -> bool:
        """Whether the transaction in hand is passed over."""
        return bool(self.st[k.TX_SKIP])

    @property
    def event_pos(self) -> int:
        """Where the event in hand begins in the source's file, as far as the events before it tell."""
        pos, last = self.source_pos, int(self.st[k.LAST_END])
        return pos if last < 0 else pos + ((last - pos) & 0xFFFFFFFF)

    @property
    def seen_pos(self) -> int:
        """End of the last event that was read, of a transaction or not; never before :attr:`source_pos`."""
        return max(int(self.st[k.FILE_POS]), int(self.st[k.SEEN_POS]))

    @property
    def source_pos(self) -> int:
        """End of the last finished transaction in the source's file."""
        return int(self.st[k.FILE_POS])

    @property
    def where(self) -> str:
        """For messages."""
        file = f"{self._file}, behind {self.source_pos}" if self._file else f"byte {int(self.st[k.EVENT_IN])}"
        return f"{self.place}: {file}"

    # --- buffers -----------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Where the next input byte belongs in ``src``."""
        return int(self.st[k.IN_END])

    def fed(self, n: int) -> None:
        """``n`` bytes have been put behind ``end``."""
        self.st[k.IN_END] += n

    def compact(self) -> None:
        """Move unread bytes to the front of ``src``."""
        pos, end = int(self.st[k.IN_POS]), int(self.st[k.IN_END])
        first = self._first_src
        if self.src is not first and end - pos < len(first):
            first[: end - pos] = self.src[pos:end]
            self.src = first
        elif pos == 0:
            return
        else:
            self.src[: end - pos] = self.src[pos:end].copy() if end - pos > pos else self.src[pos:end]
        self.st[k.IN_BASE] += pos
        self.st[k.IN_POS], self.st[k.IN_END] = 0, end - pos

    def room(self) -> memoryview:
        """Where the next input belongs: at least one byte, in a larger buffer where an event has to be seen whole."""
        if self.end == len(self.src):
            self.compact()
        if self.end == len(self.src):
            if self.end > 2 * _LARGEST_EVENT:
                self._fail(k.BAD_LENGTH)
            larger: Bytes = np.empty(2 * len(self.src), dtype=np.uint8)
            larger[: self.end] = self.src
            self.src = larger
        return self.src.data[self.end :]

    def take_output(self) -> memoryview:
        """The bytes that are definitely kept. They must be used before :meth:`drop_output`."""
        return self.out.data[: self._definite()]

    def drop_output(self) -> None:
        """Forget what :meth:`take_output` returned."""
        n, pos = self._definite(), int(self.st[k.OUT_POS])
        if n == 0:
            return
        first = self._first_out
        if self.out is not first and pos - n <= len(first) >> 1:
            first[: pos - n] = self.out[n:pos]
            self.out = first
        else:
            self.out[: pos - n] = self.out[n:pos].copy()
        self.st[k.OUT_POS] = pos - n
        self.st[k.OUT_BASE] += n

    def take_rows(self) -> Numbers:
        """(n, ROW_WIDTH) a copy of the finished transactions' rows, which are forgotten here."""
        rows = self.rows[: int(self.st[k.N_ROWS])].copy()
        self.st[k.N_ROWS] = 0
        return rows

    def _definite(self) -> int:
        hold = int(self.st[k.HOLD])
        return int(self.st[k.OUT_POS]) if hold < 0 else hold - int(self.st[k.OUT_BASE])

    def abandon_transaction(self) -> int:
        """Forget an unfinished transaction; returns the offset at which the output has to be cut."""
        self.st[k.TX_OPEN] = 0
        self.st[k.HOLD] = self.st[k.LAST_END] = -1
        self.st[k.EVENT_LEFT] = 0
        self.st[k.TX_REFUSED] = self.st[k.PAYLOAD] = 0
        self._refused = self._payload = None
        end = int(self.st[k.LAST_TX_END])
        self.st[k.OUT_POS] = max(0, end - int(self.st[k.OUT_BASE]))
        self.st[k.OUT_BASE] = min(end, int(self.st[k.OUT_BASE]))
        return end

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Frame all input that is there; False when the server has ended the stream."""
        while True:
            status = k.frame(
                self.st, self.src, self.out, self.rows, EVENT_KINDS, self._keys, self._values, self._scratch
            )
            if status == k.NEED_INPUT:
                if not self._join_packets():
                    return True
            elif status in (k.OUT_FULL, k.ROWS_FULL):
                before = self._definite(), int(self.st[k.N_ROWS])
                self.hooks.flush(self)
                if before == (self._definite(), int(self.st[k.N_ROWS])):
                    self._grow_output()
            elif status == k.AT_BOUNDARY:
                self.hooks.flush(self)
                self.hooks.roll(self)
            elif status == k.NEED_TABLE:
                self._add_table()
            elif status == k.NEED_STATEMENT:
                self._judge()
            elif status == k.NEED_EVENT:
                self._look_at()
            elif status == k.PATCH_STORED:
                self._patch_stored()
            elif status == k.PAYLOAD_PIECE:
                self._unpack()
            elif status == k.PAYLOAD_END:
                self._end_payload()
            elif status in (k.PART_IMAGE, k.COMPRESSED_ROWS):
                self._refuse(self._unsupported_rows(status))
            elif status == k.END_OF_STREAM:
                return False
            else:
                self._fail(status)

    def _grow_output(self) -> None:
        """What is undecided yet (table maps, before the first row of a statement is known to be ours) does not fit."""
        if len(self.out) > 2 * _LARGEST_EVENT:
            raise UnsupportedEventError("the start of a transaction does not fit into memory", place=self.where)
        larger: Bytes = np.empty(max(2 * len(self.out), 2 * k.PREFIX_MAX), dtype=np.uint8)
        larger[: len(self.out)] = self.out
        self.out = larger

    def _join_packets(self) -> bool:
        """Make one packet of the several that hold an event which has to be seen whole; False while they are not
        there."""
        length, at = int(self.st[k.WHOLE]), int(self.st[k.IN_POS])
        if not length or not self.st[k.PACKETS] or self.st[k.JOINED]:
            return False
        if int.from_bytes(self.src[at : at + 3].tobytes(), "little") < _FULL_PACKET:
            return False
        if length > _LARGEST_EVENT:
            self._fail(k.BAD_LENGTH)
        payload = 1 + length
        count = payload // _FULL_PACKET + 1
        end = at + payload + 4 * count
        if int(self.st[k.IN_END]) < end:
            return False
        sizes = [_FULL_PACKET] * (count - 1) + [payload % _FULL_PACKET]
        parts: list[Bytes] = []
        for size in sizes:
            if int.from_bytes(self.src[at : at + 3].tobytes(), "little") != size:
                self._fail(k.BAD_LENGTH)
            parts.append(self.src[at + 4 : at + 4 + size])
            at += 4 + size
        self.src[end - payload : end] = np.concatenate(parts)
        begin = end - payload - 4
        self.src[begin : begin + 4] = 255
        self.st[k.IN_POS] = begin
        self.st[k.JOINED] = payload
        return True

    def _event(self) -> bytes:
        """The event in hand, or as much of it as is there."""
        at = int(self.st[k.EVENT_IN] - self.st[k.IN_BASE])
        n = min(int(self.st[k.EVENT_LENGTH]), int(self.st[k.IN_END]) - at)
        return self.src[at : at + n].tobytes()

    def _sound_event(self) -> bytes:
        """The event in hand, its checksum verified before anything in it is believed (if all of it is there)."""
        event = self._event()
        length = int(self.st[k.EVENT_LENGTH])
        in_one = not self.st[k.PACKETS] or self.st[k.JOINED] > 0 or length < _FULL_PACKET
        if len(event) == length and in_one and self._has_crc and self.st[k.VERIFY] and not _is_sound(event):
            self._fail(k.BAD_CHECKSUM)
        return event

    @property
    def _has_crc(self) -> bool:
        return bool(self.st[k.HAS_CRC])

    def _add_table(self) -> None:
        table_id, db, table = self._parsed(events.parse_table_name, self._sound_event())
        if self._known_tables * 2 >= len(self._keys):
            keys, values = self._keys, self._values
            self._keys, self._values = np.full(len(keys) * 2, -1, np.int64), np.full(len(keys) * 2, -1, np.int64)
            for key, value in zip(keys[keys >= 0], values[keys >= 0], strict=True):
                k.add_table(self._keys, self._values, int(key), int(value))
        number = self.hooks.table(db, table)
        k.add_table(self._keys, self._values, table_id, -1 if number is None else number)
        self._known_tables += 1
        if number is not None:
            self._names[table_id] = f"{db}.{table}"
            self._numbers[f"{db}.{table}"] = number

    def _parsed(self, parse: Callable[[bytes], T], event: bytes) -> T:
        """What ``parse`` makes of an event. Raises CorruptStreamError or DamagedError where it contradicts itself."""
        try:
            return parse(event)
        except (DamagedError, UnicodeDecodeError) as error:
            text = error.message if isinstance(error, DamagedError) else str(error)
            raise self._corrupt(f"an event ({type_name(event[4])}) makes no sense: {text}") from None

    def _corrupt(self, text: str) -> CorruptStreamError | DamagedError:
        if self.st[k.PACKETS]:
            return CorruptStreamError(text, place=self.where, remedy="The connection is made anew.")
        return DamagedError(text, place=f"{self.place}: byte {int(self.st[k.EVENT_IN])}")

    def _judge(self) -> None:
        event = self._sound_event()
        whole = len(event) == int(self.st[k.EVENT_LENGTH])
        query = self._parsed(lambda e: events.parse_query(e, self._has_crc and whole), event)
        xa = parse_xa(query.sql)
        if xa is not None and xa.verb in ("START", "END"):
            self.st[k.DECISION] = k.OPENS if xa.verb == "START" else k.ALONG
            return
        try:
            decision = self.hooks.statement(query, bool(self.st[k.TX_BEGIN]) and self.in_transaction)
        except UnsupportedEventError as error:
            if not self.skips and (self.st[k.TX_BEGIN] == 0 or not self.in_transaction):
                raise self._with_end(error) from None
            self._refuse(error)
            self.st[k.DECISION] = k.DROP
            return
        if not decision.keep:
            self.st[k.DECISION] = k.DROP
        else:
            self.st[k.DECISION] = k.KEEP_DDL if decision.ddl else k.KEEP
            mask = decision.table_mask
            self.st[k.DECISION_MASK] = mask - (1 << 64) if mask >= 1 << 63 else mask

    def _look_at(self) -> None:
        event = self._event()
        header = events.parse_header(event)
        decision = k.DROP
        if header.type == EventType.ROTATE:
            self.hooks.rotate(self._parse_rotate(event, header.artificial), header.artificial)
        elif header.type == EventType.FORMAT_DESCRIPTION:
            description = self._parse_description(event)
            self.hooks.format_description(event, description)
            self.st[k.HAS_CRC] = description.has_checksum
        elif header.type == EventType.INCIDENT and not self.skips:
            message = parse_incident(self._body_of(self._sound_event()))
            raise self._with_end(refusals.incident(message, self.where))
        elif header.type == EventType.XA_PREPARE:
            self.prepared.add(self._parsed(parse_xa_prepare, self._body_of(self._sound_event())))
        elif header.type == EventType.GTID_TAGGED:
            self._begin_tagged(self._sound_event())
            decision = k.KEEP
        # An artificial rotate and a format description may lack a checksum that the state says they have (or have
        # one it knows nothing of): they have been verified as far as they can be, so they are stepped over here.
        if header.type in (EventType.ROTATE, EventType.FORMAT_DESCRIPTION):
            self._step_over(len(event))
        else:
            self.st[k.DECISION] = decision

    def _parse_rotate(self, event: bytes, artificial: bool) -> events.RotateEvent:
        try:
            if artificial:
                return events.parse_artificial_rotate(event)
            return events.parse_rotate(self._sound_event(), self._has_crc)
        except (DamagedError, UnicodeDecodeError):
            self._fail(k.BAD_CHECKSUM)

    def _parse_description(self, event: bytes) -> events.FormatDescription:
        """Parse a format description once its checksum is verified. It has one always; but a server whose events have
        none does not make it anew when it blanks position and time for a dump that begins behind it. Then only the
        algorithm's byte is proved to be no damage."""
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
        at = int(self.st[k.EVENT_IN] - self.st[k.IN_BASE])
        self.st[k.IN_POS] = at + length

    def _body_of(self, event: bytes) -> bytes:
        """The event without its checksum."""
        return event[:-4] if self._has_crc else event

    def _begin_tagged(self, event: bytes) -> None:
        st, gtid = self.st, self._parsed(parse_tagged_gtid, self._body_of(event))
        st[k.GTID_A : k.GTID_B + 1] = np.frombuffer(gtid.source, dtype="<i8")
        st[k.GTID_TAG : k.GTID_TAG + 4] = np.frombuffer(gtid.tag.ljust(32, b"\0"), dtype="<i8")
        st[k.GTID_NUMBER], st[k.GTID_COUNT] = gtid.number, 1
        st[k.TX_TIME] = gtid.time_us

    # --- compressed transactions

    def _unpack(self) -> None:
        from cdc.binlog.payload import PayloadContents, PayloadFault  # loads zstandard, which few sources need

        if self._payload is None:
            self._payload = PayloadContents(self._judge_packed)
        at, n = int(self.st[k.PIECE_AT]), int(self.st[k.PIECE_LENGTH])
        try:
            self._payload.feed(self.src.data[at : at + n])
        except PayloadFault as fault:
            raise self._corrupt(f"a compressed transaction (TRANSACTION_PAYLOAD) is damaged: {fault}") from None

    def _judge_packed(self, query: events.QueryEvent) -> None:
        try:
            if self.hooks.statement(query, True).keep:
                text = " ".join(query.sql.split())[:200]
                self._refuse(
                    refusals.compressed_transaction(f"holds a statement on captured tables: {text}", self.where)
                )
        except UnsupportedEventError as error:
            self._refuse(error)

    def _end_payload(self) -> None:
        """All of it has been unpacked, and its checksum is right."""
        from cdc.binlog.payload import PayloadFault

        found, self._payload = self._payload, None
        try:
            if found is None:
                raise PayloadFault("it is empty")
            found.finish()
        except PayloadFault as fault:
            raise self._corrupt(f"a compressed transaction (TRANSACTION_PAYLOAD) is damaged: {fault}") from None
        names = [f"{db}.{table}" for db, table in found.tables if self.hooks.table(db, table) is not None]
        if names:
            self._refuse(refusals.compressed_transaction(f"changes rows of {', '.join(names)}", self.where))
        elif found.unknown is not None:
            self._refuse(
                refusals.compressed_transaction(
                    f"holds an event ({found.unknown}) that Towpath does not know", self.where
                )
            )
        elif found.prepared is not None:
            self.prepared.add(found.prepared)

    # --- what is not supported

    def _refuse(self, error: UnsupportedEventError) -> None:
        """Go on to the transaction's end, keeping nothing more of it, and raise the error there, where the position
        behind it is known. What the server rolled back by dying has no end and is no error."""
        if self.st[k.SCAN]:
            raise error
        if self.skips:
            return
        if not self.st[k.TX_REFUSED]:
            self.st[k.TX_REFUSED] = 1
            self._refused = error

    def _with_end(self, error: UnsupportedEventError) -> UnsupportedEventError:
        """The error, its remedy completed by the position behind the event in hand, which ends its transaction."""
        end = self._event_end()
        if not self._file or self.st[k.SCAN] or not end:
            return error
        return refusals.with_end(error, self._file, end)

    def _event_end(self) -> int:
        """Where the event in hand ends in the source's file, beyond 32 bits too; 0: it does not say."""
        at_least = int(self.st[k.FILE_POS]) + int(self.st[k.TX_BYTES] if self.in_transaction else 0)
        pos = int(self.st[k.EVENT_END_POS])
        end = at_least >> 32 << 32 | pos
        return 0 if not pos else end if end >= at_least else end + (1 << 32)

    def _unsupported_rows(self, status: int) -> UnsupportedEventError:
        event = self._sound_event()
        table = self._names[int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 6], "little")]
        make = refusals.compressed_rows if status == k.COMPRESSED_ROWS else refusals.partial_rows
        return make(table, event[4], self.where)

    def _prepared_rows(self) -> UnsupportedEventError:
        """A prepared XA transaction has captured rows: whether they count will be known by its XA COMMIT only."""
        xid = self._parsed(parse_xa_prepare, self._body_of(self._sound_event()))
        mask = int(self.st[k.TX_MASK])
        names = [name for name, number in self._numbers.items() if mask >> (number & 63) & 1]
        return refusals.prepared_xa(xid, names, self.where)

    def _patch_stored(self) -> None:
        st = self.st
        crc = self.hooks.set_statement_end(int(st[k.LAST_ROW]), int(st[k.LAST_ROW_LENGTH]))
        weight = 2 * int(st[k.LAST_ROW_ORDINAL]) + 1
        st[k.TX_SUM] = (int(st[k.TX_SUM]) + weight * (crc - int(st[k.LAST_ROW_CRC]))) & 0xFFFFFFFF
        st[k.DECISION] = k.DROP

    def _fail(self, status: int) -> NoReturn:
        event = self._event()
        kind = type_name(int(self.st[k.EVENT_TYPE]))
        if status == k.SERVER_ERROR:
            at = int(self.st[k.IN_POS])
            size = int.from_bytes(self.src[at : at + 3].tobytes(), "little")
            raise ServerErrorPacket(self.src[at + 4 : at + 4 + size].tobytes())
        if status == k.REFUSED_END:
            self._sound_event()
            assert self._refused is not None
            raise self._with_end(self._refused)
        if status == k.XA:
            raise self._with_end(self._prepared_rows())
        if status == k.REFUSED:
            self._sound_event()
            in_file = bool(self.st[k.SCAN]) and EVENT_KINDS[event[4]] != k.T_REFUSE
            error = refusals.refused_type(event[4], self.where, in_file=in_file)
            raise error if self.in_transaction else self._with_end(error)
        if status == k.OVERRUN:
            raise IdentityError(
                f"a transaction ends at {self.source_pos}, and the store holds everything up to "
                f"{int(self.st[k.SKIP_UNTIL])} in that file, which lies inside it",
                place=f"{self.place}: {self._file}",
                remedy="The source's history is another one than that which was captured: it was reset, or it is "
                "another server. Start a new destination.",
            )
        text = {
            k.BAD_CHECKSUM: f"the checksum of an event ({kind}) is wrong",
            k.BAD_LENGTH: f"the length of an event ({kind}) is wrong",
            k.BAD_PACKET: "the server sent a packet that is not an event",
            k.NO_TABLE_MAP: f"an event ({kind}) without its TABLE_MAP",
            k.NESTED: f"an event ({kind}) that does not fit the transaction around it",
            k.OUT_OF_ORDER: f"an event ({kind}) that lies before the one sent before it",
            k.NO_POSITION: f"an event ({kind}) that ends a transaction without a position",
        }[status]
        raise self._corrupt(text)


def _is_sound(event: bytes) -> bool:
    """Whether an event's last four bytes are its checksum."""
    return zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little")


class ServerErrorPacket(SourceUnavailableError):
    """The server ended the dump with an error packet; ``code`` and ``text`` are its own."""

    def __init__(self, packet: bytes) -> None:
        self.code = int.from_bytes(packet[1:3], "little")
        text = packet[3:]
        if text[:1] == b"#":
            text = text[6:]
        self.text = text.decode("utf-8", "replace")
        super().__init__(f"the server ended the stream: {self.text} (error {self.code})")


def row_gtid(row: Numbers) -> str | None:
    """The GTID of a row, as the server prints it, or None."""
    if not row[k.R_GTID_COUNT]:
        return None
    a, b = int(row[k.R_GTID_A]), int(row[k.R_GTID_B])
    if int(row[k.R_FLAGS]) & k.FLAG_GTID_MARIADB:
        return f"{a & 0xFFFFFFFF}-{a >> 32 & 0xFFFFFFFF}-{int(row[k.R_GTID_NUMBER])}"
    source = (a & (1 << 64) - 1).to_bytes(8, "little") + (b & (1 << 64) - 1).to_bytes(8, "little")
    tag = row[k.R_GTID_TAG : k.R_GTID_TAG + 4].tobytes().rstrip(b"\0").decode("ascii")
    return f"{uuid.UUID(bytes=source)}:{tag + ':' if tag else ''}{int(row[k.R_GTID_NUMBER])}"


assert HEADER_SIZE == 19
