"""Unpacks MySQL's compressed transactions (TRANSACTION_PAYLOAD events) as they arrive, in bounded memory.

The event's body is a list of fields (type, length, value, all numbers as in the client protocol), ended by a zero, and
then a zstd stream of the transaction's events without checksums. Only the beginning of each inner event is kept, and
only until it has been handed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, cast

import zstandard

from cdc.binlog import events
from cdc.binlog.constants import HEADER_SIZE, ROW_EVENTS, EventType, type_name
from cdc.binlog.event_types import SKIPPED
from cdc.binlog.rare_events import parse_xa, parse_xa_prepare
from cdc.errors import DamagedError

NO_TABLE = 0xFFFFFF  # in a row event without rows, which only ends the statement

_SIZE, _METHOD, _UNPACKED = 1, 2, 3  # fields
_ZSTD, _NONE = 0, 255  # methods
_LONGEST_HEAD = 256
_LONGEST_TEXT = 1 << 18
_PIECE = 1 << 17

# Bytes of an inner event that are handed over: enough for its names, its table id, its text.
_WANTED = {
    EventType.QUERY: _LONGEST_TEXT,
    EventType.EXECUTE_LOAD_QUERY: _LONGEST_TEXT,
    EventType.TABLE_MAP: HEADER_SIZE + 8 + 2 * 257,
    EventType.XA_PREPARE: 256,
    **dict.fromkeys(ROW_EVENTS, HEADER_SIZE + 8),
}

InnerEvent = Callable[[bytes, bool], None]
"""Takes the beginning of an inner event, and whether it is the whole event."""


class PayloadFault(Exception):
    """The event contradicts itself; the text says how."""


class PayloadReader:
    """Takes the body of a TRANSACTION_PAYLOAD event piece by piece, and hands over the events in it."""

    def __init__(self, event: InnerEvent) -> None:
        self._event = event
        self._head: bytes | None = b""  # None: the fields have been read
        self._zstd: zstandard.ZstdDecompressionWriter | None = None
        self._packed = self._unpacked = 0
        self._says_packed: int | None = None
        self._says_unpacked: int | None = None
        self._rest = b""
        self._skip = 0

    def feed(self, piece: memoryview) -> None:
        """Takes the next bytes. Raises PayloadFault, and the errors of the callback."""
        if self._head is not None:
            piece = memoryview(self._head + piece)
            at = self._read_fields(piece)
            if at is None:
                self._head = bytes(piece)
                if len(self._head) > _LONGEST_HEAD:
                    raise PayloadFault("its fields have no end")
                return
            self._head, piece = None, piece[at:]
        self._packed += len(piece)
        try:
            if self._zstd is None:
                self.write(piece)
            else:
                self._zstd.write(piece)
        except zstandard.ZstdError as error:
            raise PayloadFault(f"it cannot be unpacked: {error}") from None

    def finish(self) -> None:
        """Ends the event. Raises PayloadFault if it is not complete."""
        if self._head is not None:
            raise PayloadFault("its fields have no end")
        for what, says, found in (
            ("packed", self._says_packed, self._packed),
            ("unpacked", self._says_unpacked, self._unpacked),
        ):
            if says is not None and says != found:
                raise PayloadFault(f"it says that it has {says} bytes {what}, and has {found}")
        if self._rest or self._skip:
            raise PayloadFault("the last event in it is cut")

    def write(self, unpacked: bytes | memoryview) -> int:
        """Takes the next unpacked bytes; zstandard calls this with at most ``_PIECE`` of them."""
        size = len(unpacked)
        self._unpacked += size
        if self._says_unpacked is not None and self._unpacked > self._says_unpacked:
            raise PayloadFault(f"it says that it has {self._says_unpacked} bytes unpacked, and has more")
        data = self._rest + unpacked if self._rest else bytes(unpacked)
        at = 0
        while True:
            step = min(self._skip, len(data) - at)
            at += step
            self._skip -= step
            if self._skip or len(data) - at < HEADER_SIZE:
                break
            length = int.from_bytes(data[at + 9 : at + 13], "little")
            if length < HEADER_SIZE:
                raise PayloadFault("the length of an event in it is wrong")
            wanted = min(length, _WANTED.get(data[at + 4], HEADER_SIZE))
            if len(data) - at < wanted:
                break
            self._event(data[at : at + wanted], wanted == length)
            at += wanted
            self._skip = length - wanted
        self._rest = data[at:]
        return size

    def _read_fields(self, data: memoryview) -> int | None:
        """The offset of the packed bytes, or None while some fields have not arrived."""
        at = 0
        method: int | None = None
        while True:
            kind, at = _number(data, at)
            if kind == 0:
                break
            size, at = _number(data, at)
            if kind is None or size is None or at + size > len(data):
                return None
            value, end = _number(data, at)
            if kind in (_SIZE, _METHOD, _UNPACKED) and (value is None or end != at + size):
                raise PayloadFault(f"the length of its field {kind} is wrong")
            if kind == _SIZE:
                self._says_packed = value
            elif kind == _METHOD:
                method = value
            elif kind == _UNPACKED:
                self._says_unpacked = value
            at += size
        if method == _ZSTD:
            if not self._says_unpacked:
                raise PayloadFault(
                    "it does not say how long it is" if self._says_unpacked is None else "it says that it is empty"
                )
            self._zstd = zstandard.ZstdDecompressor().stream_writer(
                cast("IO[bytes]", self), write_size=_PIECE, closefd=False
            )
        elif method != _NONE:
            raise PayloadFault(f"its method of compression ({method}) is not known")
        return at


class PayloadContents:
    """What a compressed transaction changes: ``tables``, the (database, table) of each row event in it.

    ``statement`` is called with each statement other than those that begin and end the transaction.
    """

    def __init__(self, statement: Callable[[events.QueryEvent], None]) -> None:
        self.tables: dict[tuple[str, str], None] = {}
        self.unknown: str | None = None
        """The type of an event that is not known to be harmless, if there is one."""
        self.prepared: str | None = None
        """The xid, if the transaction is a prepared XA transaction."""
        self._statement = statement
        self._maps: dict[int, tuple[str, str]] = {}
        self._reader = PayloadReader(self._look_at)

    def feed(self, piece: memoryview) -> None:
        """Takes the next bytes. Raises PayloadFault."""
        self._reader.feed(piece)

    def finish(self) -> None:
        """Ends the event. Raises PayloadFault if it is not complete."""
        self._reader.finish()

    def _look_at(self, event: bytes, whole: bool) -> None:
        kind = event[4]
        try:
            if kind == EventType.TABLE_MAP:
                table_id, db, table = events.parse_table_name(event)
                self._maps[table_id] = db, table
            elif kind in ROW_EVENTS:
                self._rows(event)
            elif kind in (EventType.QUERY, EventType.EXECUTE_LOAD_QUERY):
                query = events.parse_query(event, has_checksum=False)
                if query.sql not in ("BEGIN", "COMMIT") and parse_xa(query.sql) is None:
                    self._statement(query)
            elif kind == EventType.XA_PREPARE:
                one_phase = event[HEADER_SIZE : HEADER_SIZE + 1] == b"\1"
                self.prepared = None if one_phase else parse_xa_prepare(event)
            elif kind != EventType.XID and kind not in SKIPPED:
                self.unknown = type_name(kind)
        except (DamagedError, UnicodeDecodeError) as error:
            raise PayloadFault(f"an event in it ({type_name(kind)}) is damaged: {error}") from None

    def _rows(self, event: bytes) -> None:
        table_id = int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 6], "little")
        if table_id in self._maps:
            self.tables[self._maps[table_id]] = None
        elif table_id != NO_TABLE:
            raise PayloadFault(f"an event in it ({type_name(event[4])}) has no TABLE_MAP")


def _number(data: memoryview, at: int) -> tuple[int | None, int]:
    """A number of the client protocol and the offset behind it; None while some of its bytes have not arrived."""
    if at >= len(data):
        return None, at
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}.get(first)
    if size is None:
        raise PayloadFault("a number in its fields is wrong")
    end = at + 1 + size
    return (int.from_bytes(data[at + 1 : end], "little"), end) if end <= len(data) else (None, at)
