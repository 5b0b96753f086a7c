"""The header of a segment: magic, the source's format description, a rotate event (``docs/formats/segment.md``).

With it a segment is a binlog file that ``mysqlbinlog`` can read. The rotate event names the source's file and the
position at which the segment begins.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

from cdc.base.errors import DamagedError, StorageError
from cdc.binlog.constants import HEADER_SIZE as EVENT_HEADER_SIZE
from cdc.binlog.constants import MAGIC
from cdc.binlog.events import make_rotate, parse_header, parse_rotate, stored_format_description, with_checksum
from cdc.binlog.positions import make_seq, split_seq
from cdc.disk.durable import storage_errors
from cdc.disk.encryption.read import open_content
from cdc.store.formats.layout import segment_start

_READ_BYTES = 8192
_SHORT_READ_BYTES = 4096


class SegmentHeader(NamedTuple):
    """The contents of a segment's header."""

    format_description: bytes
    """The event as it was stored: the fields that describe one server process (flags, start time) are cleared."""
    file: str
    """The source's binlog file, such as ``binlog.000012``."""
    pos: int
    """The position in that file at which the segment begins."""
    server_id: int
    size: int
    """Bytes before the first transaction."""


def make_segment_header(format_description: bytes, file: str, pos: int, server_id: int) -> bytes:
    """Returns the header of a segment whose events come from ``file``, beginning at ``pos``."""
    return MAGIC + stored_format_description(format_description) + make_rotate(file, pos, server_id)


def segment_header_size(segment: Path) -> int:
    """Returns the number of bytes before a segment's first transaction. Raises OSError."""
    with open_content(segment) as file:
        data = file.read(_SHORT_READ_BYTES)
    at = len(MAGIC)
    for _ in range(2):
        at += int.from_bytes(data[at + 9 : at + 13], "little")
    return at


def read_segment_header(segment: Path) -> SegmentHeader:
    """Reads a header without comparing its checksums. Raises StorageError, DamagedError."""
    with storage_errors(segment), open_content(segment) as file:
        data = file.read(_SHORT_READ_BYTES)
    at = len(MAGIC)
    description = data[at : at + parse_header(data[at:]).length]
    at += len(description)
    header = parse_header(data[at:])
    rotate = parse_rotate(data[at : at + header.length], has_checksum=True)
    return SegmentHeader(description, rotate.file, rotate.pos, header.server_id, at + header.length)


def position_seq(segment: Path) -> int:
    """Returns the seq of the position in the source's file at which a segment begins, as its header says. Its name is
    one byte further if another segment has the name of that position. Raises StorageError."""
    start = segment_start(segment)
    assert start is not None, "only names that say where they begin are listed"
    parts = split_seq(start)
    return make_seq(parts.epoch, parts.file_number, read_segment_header(segment).pos)


def require_sound_header(segment: Path) -> None:
    """Raises DamagedError if the magic or an event of the header is damaged.

    A rotate event from a server may lack a checksum, so a scan does not compare it; the one in a segment has one.
    """
    with storage_errors(segment), open_content(segment) as file:
        data = file.read(_READ_BYTES)
    if not data.startswith(MAGIC):
        raise DamagedError("does not begin with fe 62 69 6e", place=str(segment))
    at = len(MAGIC)
    for name in ("format description", "rotate event"):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        event = data[at : at + length]
        if length < EVENT_HEADER_SIZE + 4 or len(event) < length:
            raise DamagedError(f"does not begin with a whole {name}", place=f"{segment}: byte {at}")
        if zlib.crc32(event[:-4]).to_bytes(4, "little") != event[-4:]:
            raise DamagedError(f"the checksum of its {name} is wrong", place=f"{segment}: byte {at}")
        at += length


def source_file_created_s(segment: Path) -> int:
    """Returns when the source created the binlog file of a segment's events, in seconds since 1970, as its format
    description says. Raises StorageError."""
    try:
        with open_content(segment) as file:
            data = file.read(len(MAGIC) + EVENT_HEADER_SIZE)
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(segment)) from None
    return parse_header(data[len(MAGIC) :]).timestamp


def with_rotate_pos(header: bytes, pos: int) -> bytes:
    """Returns the header with another position in its rotate event."""
    at = len(MAGIC) + parse_header(header[len(MAGIC) :]).length
    rotate = bytearray(header[at:])
    rotate[19:27] = pos.to_bytes(8, "little")
    return header[:at] + with_checksum(bytes(rotate))


def without_rotate_pos(header: bytes) -> bytes:
    """Returns the header without the rotate event's position and checksum, which differ between two segments of one
    source file."""
    at = len(MAGIC) + int.from_bytes(header[len(MAGIC) + 9 : len(MAGIC) + 13], "little") + 19
    return header[:at] + header[at + 8 : -4]
