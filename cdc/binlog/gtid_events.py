"""Parsers for GTID events and for the events at the start of a file that sum up the GTIDs of earlier files.

Each takes a whole event without its CRC32, and raises DamagedError if the event contradicts itself.
Source: MySQL's ``Gtid_set::encode``, MariaDB's ``Gtid_list_log_event``.
"""

from __future__ import annotations

import struct
import uuid

from cdc.base.errors import DamagedError
from cdc.binlog.constants import HEADER_SIZE
from cdc.binlog.gtids import GtidSet, Interval, MariadbGtid

_TAGGED = 1
"""The format of a PREVIOUS_GTIDS event that names a tag for each source; MySQL writes it only if there are tags."""


def parse_gtid(event: bytes) -> tuple[str, int]:
    """Returns the GTID of MySQL's GTID event and its commit time in microseconds since 1970, which is 0 before MySQL
    8.0.1."""
    if len(event) < HEADER_SIZE + 25:
        raise DamagedError("a GTID event is too short", place="GTID")
    source = uuid.UUID(bytes=event[HEADER_SIZE + 1 : HEADER_SIZE + 17])
    (number,) = struct.unpack_from("<q", event, HEADER_SIZE + 17)
    return f"{source}:{number}", gtid_time_us(event)


def gtid_time_us(event: bytes) -> int:
    """Returns the commit time of MySQL's GTID event or anonymous GTID event in microseconds since 1970; 0 before MySQL
    8.0.1."""
    at = HEADER_SIZE + 42
    if len(event) < at + 7 or event[HEADER_SIZE + 25] != 2:
        return 0
    return int.from_bytes(event[at : at + 7], "little") & (1 << 55) - 1


def parse_mariadb_gtid(event: bytes) -> MariadbGtid:
    """Returns the GTID of MariaDB's GTID event."""
    if len(event) < HEADER_SIZE + 13:
        raise DamagedError("a GTID event is too short", place="GTID")
    number, domain = struct.unpack_from("<QI", event, HEADER_SIZE)
    return MariadbGtid(domain, int.from_bytes(event[5:9], "little"), number)


def parse_previous_gtids(event: bytes) -> GtidSet:
    """Returns the set of a PREVIOUS_GTIDS event: all GTIDs in earlier files.

    The number of sources comes first. If there are tags, the first and the last of its eight bytes hold the format, and
    each UUID is followed by a tag, whose length is twice the first byte.
    """
    intervals: dict[str, list[Interval]] = {}
    at = HEADER_SIZE
    try:
        (head,) = struct.unpack_from("<Q", event, at)
        tagged = head >> 56 == _TAGGED
        sources = head >> 8 & (1 << 48) - 1 if tagged else head
        at += 8
        for _ in range(sources):
            name = str(uuid.UUID(bytes=event[at : at + 16]))
            at += 16
            if tagged:
                size = event[at] >> 1
                tag = event[at + 1 : at + 1 + size].decode("ascii")
                name, at = f"{name}:{tag}" if tag else name, at + 1 + size
            (count,) = struct.unpack_from("<Q", event, at)
            at += 8
            if count > (len(event) - at) // 16:
                raise ValueError
            numbers = struct.unpack_from(f"<{2 * count}Q", event, at)
            at += 16 * count
            pairs = list(zip(numbers[::2], (after - 1 for after in numbers[1::2]), strict=True))
            if any(not 1 <= first <= last for first, last in pairs):
                raise ValueError
            intervals.setdefault(name, []).extend(pairs)
    except (struct.error, ValueError, IndexError):
        raise DamagedError("a PREVIOUS_GTIDS event holds no set of GTIDs", place="previous GTIDs") from None
    if at != len(event):
        raise DamagedError("a PREVIOUS_GTIDS event holds more than its set", place="previous GTIDs")
    return GtidSet(intervals)


def parse_gtid_list(event: bytes) -> tuple[MariadbGtid, ...]:
    """Returns the GTIDs of a GTID_LIST event: the last one of each server in each domain, in earlier files."""
    try:
        (head,) = struct.unpack_from("<I", event, HEADER_SIZE)
        count = head & 0x0FFFFFFF  # the other bits are flags
        if count > (len(event) - HEADER_SIZE - 4) // 16:
            raise ValueError
        return tuple(MariadbGtid(*struct.unpack_from("<IIQ", event, HEADER_SIZE + 4 + 16 * n)) for n in range(count))
    except (struct.error, ValueError):
        raise DamagedError("a GTID_LIST event holds no list of GTIDs", place="GTID list") from None
