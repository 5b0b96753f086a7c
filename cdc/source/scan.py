"""Reads the server's binlog transaction by transaction, and what the start of a file says, by anonymous short dumps.

Only the headers and GTIDs are looked at, to find the position where a capture begins.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from cdc.base.errors import CdcError, CorruptStreamError, DamagedError
from cdc.binlog.constants import CHECKSUM_SIZE, FLAG_ARTIFICIAL, FULL_PACKET, MAGIC, EventType, type_name
from cdc.binlog.events import closed, parse_artificial_rotate, parse_format_description
from cdc.binlog.framer import ServerErrorPacket
from cdc.binlog.gtid_events import gtid_time_us, parse_gtid, parse_gtid_list, parse_mariadb_gtid, parse_previous_gtids
from cdc.binlog.gtids import GtidSet, MariadbGtid
from cdc.binlog.positions import BinlogPosition
from cdc.binlog.rare_events import parse_tagged_gtid
from cdc.config import SourceConfig
from cdc.source.connection import place_of
from cdc.source.dump import DumpBytes, short_dump
from cdc.source.dump_errors import explain_dump_error

T = TypeVar("T")

_BUFFER_BYTES = 1 << 20
_START = struct.Struct("<IBIBIIIH")
"""The header of a packet (length and number), its status byte, and the header of the event in it."""
_BEGINS = frozenset({EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED, EventType.MARIADB_GTID})
_CHANGES = frozenset({*_BEGINS, EventType.QUERY, EventType.STOP})
"""The types that come after those which describe the file."""
_FILE_STARTS = frozenset({EventType.ROTATE, EventType.FORMAT_DESCRIPTION})
_SUMMARIES = frozenset({EventType.PREVIOUS_GTIDS, EventType.MARIADB_GTID_LIST})
_WHOLE = _BEGINS | _FILE_STARTS | _SUMMARIES
_BETWEEN = frozenset({EventType.HEARTBEAT, EventType.HEARTBEAT_V2, EventType.STOP, EventType.MARIADB_BINLOG_CHECKPOINT})
_OUTSIDE = _BETWEEN | _FILE_STARTS | _SUMMARIES
"""The types that are no part of a transaction."""


@dataclass(frozen=True)
class FileStart:
    """The contents of the first events of a binlog file."""

    created_s: int
    """Unix time at which the server created the file."""
    gtids: GtidSet | None = None
    """The GTIDs in all earlier files; None if the file does not say (MariaDB; MySQL without GTIDs)."""
    last_gtids: tuple[MariadbGtid, ...] | None = None
    """MariaDB: the last GTID of each server in each domain, in all earlier files."""


@dataclass(frozen=True)
class ScannedTransaction:
    """A transaction in the server's binlog."""

    begin: BinlogPosition
    end: BinlogPosition
    gtid: str | MariadbGtid | None
    """None for an anonymous transaction."""
    time_us: int
    """Commit time in microseconds since 1970, by the second where the server keeps no fractions."""


def read_file_start(source: SourceConfig, file: str) -> FileStart:
    """Reads the first events of a binlog file.

    Raises SourceUnavailableError, SourceRefusedError, CorruptStreamError.
    """
    created_s = 0
    with short_dump(source, BinlogPosition(file, 4)) as dump:
        for event in _Events(source, dump, file):
            if event.file != file or event.type in _CHANGES:
                break
            if event.type == EventType.FORMAT_DESCRIPTION:
                created_s = event.timestamp
            elif event.type == EventType.PREVIOUS_GTIDS:
                return FileStart(created_s, gtids=event.parsed(parse_previous_gtids))
            elif event.type == EventType.MARIADB_GTID_LIST:
                return FileStart(created_s, last_gtids=event.parsed(parse_gtid_list))
    return FileStart(created_s)


def read_transactions(source: SourceConfig, file: str) -> Iterator[ScannedTransaction]:
    """Yields the transactions from the start of a file to the present end of the binlog, in order. Every transaction
    must begin with a GTID event, as those of MySQL from 5.7 on and of MariaDB do.

    Raises SourceUnavailableError, SourceRefusedError, CorruptStreamError.
    """
    with short_dump(source, BinlogPosition(file, 4)) as dump:
        begin: _Event | None = None
        end, end_s = 0, 0
        for event in _Events(source, dump, file):
            if begin is not None and (event.type in _BEGINS or event.type in _OUTSIDE):
                yield _transaction(begin, end, end_s)
                begin = None
            if event.type in _BEGINS:
                begin = event
            if event.end:
                end, end_s = event.end, event.timestamp
        if begin is not None:
            yield _transaction(begin, end, end_s)


def _transaction(begin: _Event, end: int, end_s: int) -> ScannedTransaction:
    gtid: str | MariadbGtid | None = None
    time_us = 0
    if begin.type == EventType.MARIADB_GTID:
        gtid = begin.parsed(parse_mariadb_gtid)
    elif begin.type == EventType.GTID_TAGGED:
        tagged = begin.parsed(parse_tagged_gtid)
        parts = (str(uuid.UUID(bytes=tagged.source)), tagged.tag.decode("ascii"), str(tagged.number))
        gtid, time_us = ":".join(filter(None, parts)), tagged.time_us
    elif begin.type == EventType.GTID:
        gtid, time_us = begin.parsed(parse_gtid)
    else:
        time_us = begin.parsed(gtid_time_us)
    first = BinlogPosition(begin.file, begin.end - begin.length)
    return ScannedTransaction(first, BinlogPosition(begin.file, end), gtid, time_us or end_s * 1_000_000)


class _Event(NamedTuple):
    type: int
    timestamp: int
    length: int
    file: str
    end: int
    """The end of the event in the file; 0 for an event that is in no file, or has no position (MariaDB ≥ 11.4)."""
    data: bytes
    """The event without its checksum, if its type is one of those that are read whole."""
    place: str

    def parsed(self, parse: Callable[[bytes], T]) -> T:
        """Parses the event. Raises CorruptStreamError if it contradicts itself."""
        try:
            return parse(self.data)
        except (DamagedError, UnicodeDecodeError) as error:
            raise _corrupt(f"an event ({type_name(self.type)}) is invalid: {error}", self.place, self.file) from None


class _Events:
    """The events of a dump that begins at the start of a file."""

    def __init__(self, source: SourceConfig, dump: DumpBytes, file: str) -> None:
        self._source, self._dump, self._file = source, dump, file
        self._place = f"source {place_of(source)}"
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._at = self._end = 0
        self._last = len(MAGIC)
        """The end of the newest event in the file."""
        self._has_crc = True

    def __iter__(self) -> Iterator[_Event]:
        while True:
            self._need(4)
            size = int.from_bytes(self._view[self._at : self._at + 3], "little")
            self._need(4 + min(size, _START.size - 4))
            status = self._buffer[self._at + 4] if size else -1
            if status == 0xFE and size < 9:
                return
            if status == 0xFF:
                raise self._refused(self._take(size))
            if status != 0 or size < _START.size - 4:
                raise _corrupt("the server sent a packet that is not an event", self._place, self._file)
            _, _, timestamp, kind, _, length, end_pos, flags = _START.unpack_from(self._buffer, self._at)
            data = b""
            if kind in _WHOLE:
                data = self._take(size)[1:]
                if kind in _FILE_STARTS:
                    self._begin_file(kind, data, flags)
                else:
                    data = self._sound(kind, data)
            else:
                self._skip(size)
            end = 0
            if end_pos and not flags & FLAG_ARTIFICIAL:
                end = self._last & ~0xFFFFFFFF | end_pos
                end = self._last = end if end >= self._last else end + (1 << 32)
            yield _Event(kind, timestamp, length, self._file, end, data, self._place)

    def _begin_file(self, kind: int, data: bytes, flags: int) -> None:
        """Notes the name of the next file, or whether the file's events have checksums."""
        try:
            if kind == EventType.FORMAT_DESCRIPTION:
                self._has_crc = parse_format_description(closed(data)).has_checksum
            elif flags & FLAG_ARTIFICIAL:
                name = parse_artificial_rotate(data).file
                if name != self._file:
                    self._file, self._last = name, len(MAGIC)
        except (DamagedError, UnicodeDecodeError) as error:
            raise _corrupt(f"an event ({type_name(kind)}) is invalid: {error}", self._place, self._file) from None

    def _sound(self, kind: int, data: bytes) -> bytes:
        """Verifies the checksum of an event, and returns the event without it."""
        if not self._has_crc:
            return data
        if zlib.crc32(data[:-CHECKSUM_SIZE]) != int.from_bytes(data[-CHECKSUM_SIZE:], "little"):
            raise _corrupt(f"the checksum of an event ({type_name(kind)}) is wrong", self._place, self._file)
        return data[:-CHECKSUM_SIZE]

    def _refused(self, packet: bytes) -> CdcError:
        """Translates an error packet."""
        error = ServerErrorPacket(packet)
        return explain_dump_error(error.code, error.text, self._source, BinlogPosition(self._file, self._last))

    # --- packets

    def _need(self, size: int) -> None:
        """Reads until ``size`` bytes lie at the current offset of the buffer."""
        while self._end - self._at < size:
            if self._at:
                rest = bytes(self._view[self._at : self._end])
                self._view[: len(rest)] = rest
                self._at, self._end = 0, len(rest)
            self._end += self._dump.recv_into(self._view[self._end :])

    def _take(self, size: int) -> bytes:
        """Returns the payload of the packet at the current offset and of those that continue it."""
        payload = bytearray()
        while True:
            self._at += 4
            left = size
            while left:
                self._need(1)
                step = min(left, self._end - self._at)
                payload += self._view[self._at : self._at + step]
                self._at += step
                left -= step
            if size < FULL_PACKET:
                return bytes(payload)
            self._need(4)
            size = int.from_bytes(self._view[self._at : self._at + 3], "little")

    def _skip(self, size: int) -> None:
        """Passes over the packet at the current offset and those that continue it."""
        while True:
            self._at += 4
            left = size
            while left > self._end - self._at:
                left -= self._end - self._at
                self._at = self._end = 0
                self._end = self._dump.recv_into(self._view)
            self._at += left
            if size < FULL_PACKET:
                return
            self._need(4)
            size = int.from_bytes(self._view[self._at : self._at + 3], "little")


def _corrupt(text: str, place: str, file: str) -> CorruptStreamError:
    return CorruptStreamError(text, place=f"{place}: {file}", remedy="Towpath reconnects.")
