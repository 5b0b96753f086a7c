"""Parsers for events that few sources write: tagged GTIDs, XA transactions, incidents.

Each takes a whole event without its CRC32, and raises DamagedError if the event contradicts itself.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from cdc.base.errors import DamagedError
from cdc.binlog.constants import HEADER_SIZE

_TAG = re.compile(rb"[a-z_][a-z0-9_]{0,31}")
_XA = re.compile(
    r"XA\s+(START|BEGIN|END|PREPARE|COMMIT|ROLLBACK)\s+(.+?)(?:\s+ONE\s+PHASE)?\s*;?\s*", re.IGNORECASE | re.DOTALL
)

# The fields of a GTID_TAGGED event up to the last one that is read here.
_FLAGS, _UUID, _NUMBER, _TAG_FIELD, _LAST_COMMITTED, _SEQUENCE, _COMMIT_TIME = range(7)


@dataclass(frozen=True)
class TaggedGtid:
    """The GTID ``UUID:tag:number`` of a transaction, and its commit time."""

    source: bytes
    """The UUID's 16 bytes."""
    tag: bytes
    number: int
    time_us: int
    """Microseconds since 1970; 0 if the event does not hold it."""


class _Fields:
    """Reads MySQL's serialization format: numbers of one to nine bytes, fields in the order of their ids."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        if len(piece) != size:
            raise DamagedError("the lengths in a GTID_TAGGED event exceed it", place="tagged GTID")
        self._at += size
        return piece

    def number(self) -> int:
        """Reads a number. The lowest bits of the first byte that are set, up to the first clear bit, count the bytes
        that follow."""
        first = self.take(1)
        if first[0] == 0xFF:
            return int.from_bytes(self.take(8), "little")
        more = (~first[0] & first[0] + 1).bit_length() - 1
        return int.from_bytes(first + self.take(more), "little") >> more + 1

    def signed(self) -> int:
        value = self.number()
        return ~(value >> 1) if value & 1 else value >> 1


def parse_tagged_gtid(event: bytes) -> TaggedGtid:
    """Parses MySQL's GTID_TAGGED event (8.3 and later)."""
    fields = _Fields(event[HEADER_SIZE:])
    version, size, _ = fields.number(), fields.number(), fields.number()
    if version != 1 or size > len(event) - HEADER_SIZE:
        raise DamagedError(f"a GTID_TAGGED event of {size} bytes in format {version}", place="tagged GTID")
    source, tag, number, time_us = b"", b"", 0, 0
    last_field = -1
    while fields.left and last_field < _COMMIT_TIME:
        field = fields.number()
        if field <= last_field:
            raise DamagedError("the fields of a GTID_TAGGED event are not in order", place="tagged GTID")
        last_field = field
        if field == _UUID:
            parts = [fields.number() for _ in range(16)]
            if max(parts) > 255:
                raise DamagedError("the UUID in a GTID_TAGGED event is not one", place="tagged GTID")
            source = bytes(parts)
        elif field == _NUMBER:
            number = fields.signed()
        elif field == _TAG_FIELD:
            tag = fields.take(fields.number())
        elif field in (_LAST_COMMITTED, _SEQUENCE):
            fields.signed()
        elif field in (_FLAGS, _COMMIT_TIME):
            value = fields.number()
            time_us = value if field == _COMMIT_TIME else 0
    if not source or not 0 < number < 1 << 63 or time_us >> 55 or (tag and not _TAG.fullmatch(tag)):
        raise DamagedError("a GTID_TAGGED event holds no GTID", place="tagged GTID")
    return TaggedGtid(source, tag, number, time_us)


@dataclass(frozen=True)
class XaStatement:
    """``XA verb xid``; ``xid`` is in the form in which servers log it, ``x'61',x'',1``, in lower case."""

    verb: str
    xid: str


def parse_xa(sql: str) -> XaStatement | None:
    """Parses an XA statement that names a transaction. Returns None for any other statement."""
    if sql[:2].upper() != "XA":
        return None
    match = _XA.fullmatch(sql)
    if match is None:
        return None
    verb = match[1].upper()
    return XaStatement("START" if verb == "BEGIN" else verb, match[2].lower())


def parse_xa_prepare(event: bytes) -> str:
    """The xid of an XA_PREPARE event, in the form in which servers log statements: ``x'61',x'',1``, in lower case."""
    try:
        format_id, gtrid, bqual = struct.unpack_from("<iII", event, HEADER_SIZE + 1)
    except struct.error:
        raise DamagedError("an XA_PREPARE event is too short", place="XA") from None
    at = HEADER_SIZE + 13
    if gtrid > 64 or bqual > 64 or at + gtrid + bqual > len(event):
        raise DamagedError("the lengths in an XA_PREPARE event are wrong", place="XA")
    data = event[at : at + gtrid + bqual]
    return f"x'{data[:gtrid].hex()}',x'{data[gtrid:].hex()}',{format_id}"


def parse_incident(event: bytes) -> str:
    """The number and the server's message of an INCIDENT event."""
    number = int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 2], "little")
    length = event[HEADER_SIZE + 2] if len(event) > HEADER_SIZE + 2 else 0
    text = event[HEADER_SIZE + 3 : HEADER_SIZE + 3 + length].decode("utf-8", "replace").strip("\0 ")
    what = "events were lost (1)" if number == 1 else f"incident {number}"
    return f"{what}: {text}" if text else what
