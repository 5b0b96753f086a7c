"""Parsers for events that are rare: a few in each file, or one for each DDL statement.

An event is always whole: its 19-byte header, its body, and its CRC32 if the file has checksums.
Source: the event layouts in MySQL's ``libs/mysql/binlog/event`` and MariaDB's ``sql/log_event.h``.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from cdc.base.errors import DamagedError, UnsupportedEventError
from cdc.binlog.constants import (
    CHECKSUM_SIZE,
    FLAG_ARTIFICIAL,
    FLAG_IN_USE,
    FLAG_THREAD_SPECIFIC,
    HEADER_SIZE,
    MAGIC,
    EventType,
)

_HEADER = struct.Struct("<IBIIIH")
_QUERY = struct.Struct("<IIBHH")
_LONGEST_TEXT = 1 << 20  # bytes of a compressed statement that are unpacked: its beginning is enough to classify it
_OLDEST_MYSQL = (5, 6, 0)
"""Before it, a format description does not say whether events end with a checksum."""


@dataclass(frozen=True)
class Header:
    """The header of an event, its first 19 bytes."""

    timestamp: int
    type: int
    server_id: int
    length: int
    end_log_pos: int
    flags: int

    @property
    def artificial(self) -> bool:
        """Whether the dump thread made the event, so that it is not in the file."""
        return bool(self.flags & FLAG_ARTIFICIAL)


@dataclass(frozen=True)
class FormatDescription:
    """The first event of a file, which describes the others."""

    server_version: str
    has_checksum: bool
    post_header_lengths: bytes
    server_started: bool = False
    """Whether the server began the file when it started, after which no session of before is left."""

    @property
    def flavor(self) -> str:
        return "mariadb" if "mariadb" in self.server_version.lower() else "mysql"

    @property
    def version(self) -> tuple[int, ...]:
        """``(8, 0, 33)``; zeros for a version that is none."""
        match = re.match(r"(?:5\.5\.5-(?=\d))?(\d+)\.(\d+)\.(\d+)", self.server_version)
        return (0, 0, 0) if match is None else tuple(int(part) for part in match.groups())

    @property
    def is_mysql_5(self) -> bool:
        """Whether a MySQL before 8.0 wrote the file."""
        return self.flavor == "mysql" and (5,) < self.version < (8,)


@dataclass(frozen=True)
class QueryEvent:
    """A statement in the log: BEGIN, COMMIT, DDL, or DML text of a session in STATEMENT format."""

    db: str
    sql: str
    timestamp: int
    thread_id: int
    error_code: int
    sql_mode: int = 0
    thread_specific: bool = False
    """Whether it used a temporary table or CONNECTION_ID() (header flag LOG_EVENT_THREAD_SPECIFIC_F)."""
    microseconds: int | None = None
    """The fraction of the statement's time, whose seconds are ``timestamp``; None if the statement did not need it."""
    time_zone: str | None = None
    """The session's ``time_zone``, such as ``SYSTEM`` or ``+02:00``; None if the statement did not need it."""
    explicit_defaults: bool | None = None
    """The session's ``explicit_defaults_for_timestamp``; None if the event does not say it. MySQL 8 has a status
    variable for it. MariaDB has a flag; without it the setting is off, or the server is too old to write it."""


@dataclass(frozen=True)
class RotateEvent:
    """The name of the next file, and the position in it."""

    file: str
    pos: int


def parse_header(event: bytes | memoryview) -> Header:
    return Header(*_HEADER.unpack_from(event, 0))


def parse_format_description(event: bytes | memoryview) -> FormatDescription:
    """Parses a format description. MySQL ≥ 5.6.1 and MariaDB ≥ 5.3 end it with a checksum algorithm and always four CRC
    bytes. Raises DamagedError, UnsupportedEventError."""
    event = bytes(event)
    if len(event) < HEADER_SIZE + 57 + 5 or event[4] != EventType.FORMAT_DESCRIPTION:
        raise DamagedError("is not a format description event", place="format description")
    version, server = struct.unpack_from("<H50s", event, HEADER_SIZE)
    algorithm = event[-5]
    description = FormatDescription(
        server_version=server.split(b"\0", 1)[0].decode("ascii", "replace"),
        has_checksum=algorithm == 1,
        post_header_lengths=event[HEADER_SIZE + 57 : -5],
        server_started=any(event[HEADER_SIZE + 52 : HEADER_SIZE + 56]),
    )
    is_old = description.flavor == "mysql" and (0, 0, 0) < description.version < _OLDEST_MYSQL
    if version != 4 or is_old:
        raise UnsupportedEventError(
            f"the binlog is of MySQL {description.server_version or 'before 5.0'}, which is too old",
            remedy="MySQL 5.6 and MariaDB 10.1 are the oldest servers whose binlogs are read.",
        )
    if algorithm not in (0, 1):
        raise UnsupportedEventError(f"unknown checksum algorithm {algorithm} in the format description")
    return description


def parse_query(event: bytes | memoryview, has_checksum: bool) -> QueryEvent:
    """Parses a QUERY or EXECUTE_LOAD_QUERY event, or MariaDB's compressed QUERY. Only the beginning of a very long
    compressed text is unpacked. Raises DamagedError if lengths contradict each other or the text cannot be unpacked."""
    event = bytes(event)
    header = parse_header(event)
    end = len(event) - (CHECKSUM_SIZE if has_checksum else 0)
    start = HEADER_SIZE + _QUERY.size + (13 if header.type == EventType.EXECUTE_LOAD_QUERY else 0)
    if start > end:
        raise DamagedError(
            f"a QUERY event of {len(event)} bytes is too short", place=f"end_log_pos {header.end_log_pos}"
        )
    thread_id, _, db_length, error_code, status_length = _QUERY.unpack_from(event, HEADER_SIZE)
    db_at = start + status_length
    sql_at = db_at + db_length + 1
    if sql_at > end:
        raise DamagedError("the lengths in a QUERY event exceed it", place=f"end_log_pos {header.end_log_pos}")
    status = _status_variables(event[start:db_at])
    fraction = status.get(_MICROSECONDS) or status.get(_HIGH_RESOLUTION)
    text = event[sql_at:end]
    if header.type == EventType.MARIADB_QUERY_COMPRESSED:
        text = _unpacked(text, header.end_log_pos)
    return QueryEvent(
        db=event[db_at : db_at + db_length].decode("utf-8", "replace"),
        sql=_decoded(text.rstrip(b"\0"), int.from_bytes(status.get(_CHARSET, b"")[:2], "little")),
        timestamp=header.timestamp,
        thread_id=thread_id,
        error_code=error_code,
        sql_mode=int.from_bytes(status.get(_SQL_MODE, b""), "little"),
        thread_specific=bool(header.flags & FLAG_THREAD_SPECIFIC),
        microseconds=None if fraction is None else int.from_bytes(fraction, "little"),
        time_zone=status[_TIME_ZONE][1:].decode("ascii", "replace") if _TIME_ZONE in status else None,
        explicit_defaults=_explicit_defaults(status),
    )


def _explicit_defaults(status: Mapping[int, bytes]) -> bool | None:
    if _EXPLICIT_DEFAULTS in status:
        return bool(status[_EXPLICIT_DEFAULTS][0])
    return True if int.from_bytes(status.get(_FLAGS2, b""), "little") & _OPTION_EXPLICIT_DEFAULTS else None


def _unpacked(packed: bytes, end_log_pos: int) -> bytes:
    """The text of MariaDB's compressed QUERY event: a byte ``0x80 | size of the length``, the text's length
    (big-endian), and a zlib stream."""
    place = f"end_log_pos {end_log_pos}"
    size = packed[0] & 7 if packed else 0
    if not packed or packed[0] & 0xF8 != 0x80 or not 1 <= size <= 4 or len(packed) < 1 + size:
        raise DamagedError("a compressed QUERY event has no known method or no length", place=place)
    length = int.from_bytes(packed[1 : 1 + size], "big")
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(packed[1 + size :], min(length, _LONGEST_TEXT) + 1)
    except zlib.error as error:
        raise DamagedError(f"a compressed QUERY event cannot be unpacked: {error}", place=place) from None
    if len(text) > length or (unpacking.eof and len(text) != length):
        raise DamagedError(f"a compressed QUERY event says {length} bytes and unpacks to {len(text)}", place=place)
    return text


_STATUS_SIZES = {
    0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1, 128: 3, 129: 8,
}  # fmt: skip
"""Sizes of a QUERY event's status variables that have one, by their codes."""
_STATUS_TEXTS = {5: 1, 6: 1, 11: 2}
"""Status variables that are texts with their length before it, and how many: time zone, catalog, invoker."""
_SQL_MODE, _CHARSET, _TIME_ZONE, _DATABASES, _COLLATIONS = 1, 4, 5, 12, 131
_MICROSECONDS, _HIGH_RESOLUTION = 13, 128
"""The fraction of the statement's time: MySQL's variable, and MariaDB's."""
_EXPLICIT_DEFAULTS = 16
_FLAGS2, _OPTION_EXPLICIT_DEFAULTS = 0, 1 << 24
"""The session's options, and MariaDB's bit for ``explicit_defaults_for_timestamp``."""
_TOO_MANY_DATABASES = 254
_LATIN1 = frozenset({5, 8, 15, 31, 47, 48, 49, 94})
_CODECS = {
    collation: codec
    for codec, collations in {
        "big5": (1, 84), "cp932": (13, 88, 95, 96), "cp1251": (14, 23, 50, 51, 52), "cp1250": (26, 34, 44, 66, 99),
        "gbk": (28, 87), "koi8-r": (7, 74), "iso8859-2": (2, 9, 21, 27, 77), "cp1256": (57, 67), "cp1257": (58, 59),
        "euc_jp": (12, 91), "euc_kr": (19, 85), "gb2312": (24, 86), "iso8859-7": (25, 70), "iso8859-9": (30, 78),
    }.items()
    for collation in collations
}  # fmt: skip
"""Codecs of Python by the collation id of a session's character_set_client; UTF-8 for all others."""


def _status_variables(status: bytes) -> dict[int, bytes]:
    """Returns the status variables of a QUERY event by their codes, up to the first one whose size is not known."""
    status_variables: dict[int, bytes] = {}
    at = 0
    while at < len(status):
        code, begin = status[at], at + 1
        end = begin + _STATUS_SIZES.get(code, 0)
        for _ in range(_STATUS_TEXTS.get(code, 0)):
            end += 1 + status[end] if end < len(status) else 1
        if code == _DATABASES and begin < len(status):
            end = begin + 1
            for _ in range(status[begin] if status[begin] != _TOO_MANY_DATABASES else 0):
                end = status.find(b"\0", end) + 1 or len(status) + 1
        elif code == _COLLATIONS and begin < len(status):
            end = begin + 1 + 4 * status[begin]
        if end == begin or end > len(status):
            break
        status_variables[code] = status[begin:end]
        at = end
    return status_variables


def _decoded(text: bytes, charset: int) -> str:
    """A statement's text, which is in the session's character set, given by a collation's id. What cannot be read
    becomes U+FFFD and stops nobody: nearly all character sets contain ASCII, in which keywords and most names are
    written."""
    if text.isascii():
        return text.decode("ascii")
    if charset in _LATIN1:  # MySQL's latin1 is Windows-1252 with five control characters in its holes
        return "".join(char if (char := bytes([byte]).decode("cp1252", "ignore")) else chr(byte) for byte in text)
    return text.decode(_CODECS.get(charset, "utf-8"), "replace")


def parse_rotate(event: bytes | memoryview, has_checksum: bool) -> RotateEvent:
    event = bytes(event)
    end = len(event) - (CHECKSUM_SIZE if has_checksum else 0)
    if end < HEADER_SIZE + 9:
        raise DamagedError(f"a ROTATE event of {len(event)} bytes is too short", place="rotate event")
    (pos,) = struct.unpack_from("<Q", event, HEADER_SIZE)
    return RotateEvent(event[HEADER_SIZE + 8 : end].decode("utf-8"), pos)


def parse_artificial_rotate(event: bytes | memoryview) -> RotateEvent:
    """Parses the first event of a dump, which may end with a checksum: only the format description behind it tells."""
    event = bytes(event)
    crc = int.from_bytes(event[-4:], "little")
    return parse_rotate(event, has_checksum=zlib.crc32(event[:-4]) == crc)


def parse_table_name(event: bytes | memoryview) -> tuple[int, str, str]:
    """(table id, database, table) of a TABLE_MAP event."""
    event = bytes(event)
    try:
        table_id = int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 6], "little")
        at = HEADER_SIZE + 8
        db_end = at + 1 + event[at]
        db = event[at + 1 : db_end]
        table_end = db_end + 2 + event[db_end + 1]
        table = event[db_end + 2 : table_end]
        if table_end > len(event) or event[db_end] or event[table_end]:
            raise IndexError
    except IndexError:
        raise DamagedError("the lengths in a TABLE_MAP event exceed it", place="table map") from None
    return table_id, db.decode("utf-8"), table.decode("utf-8")


def closed(event: bytes) -> bytes:
    """The event without the in-use flag, which a server sets in the file that it writes and leaves out of the
    checksum."""
    return event[:17] + bytes([event[17] & ~FLAG_IN_USE]) + event[18:]


def with_checksum(event: bytes) -> bytes:
    """The event with its last four bytes replaced by the CRC32 of the bytes before them."""
    return event[:-4] + zlib.crc32(event[:-4]).to_bytes(4, "little")


def stored_format_description(event: bytes) -> bytes:
    """A source's format description in the form that segments hold: without the in-use flag, with checksums, and
    without the creation time, which a reader would take for a server start and roll back."""
    flags = int.from_bytes(event[17:19], "little") & ~(FLAG_IN_USE | FLAG_ARTIFICIAL)
    body = bytearray(event)
    body[17:19] = flags.to_bytes(2, "little")
    body[HEADER_SIZE + 52 : HEADER_SIZE + 56] = bytes(4)
    body[-5] = 1
    body[13:17] = (len(MAGIC) + len(event)).to_bytes(4, "little")
    return with_checksum(bytes(body))


def make_rotate(file: str, pos: int, server_id: int) -> bytes:
    """The event after a segment's format description, which names the source's file as in a relay log. ``end_log_pos``
    is 0 and the artificial flag is set, because the event is in no file of the source."""
    name = file.encode()
    length = HEADER_SIZE + 8 + len(name) + CHECKSUM_SIZE
    header = _HEADER.pack(0, EventType.ROTATE, server_id, length, 0, FLAG_ARTIFICIAL)
    return with_checksum(header + struct.pack("<Q", pos) + name + bytes(4))
