"""The rows of a prepared XA transaction: read from the file in which capture has put it aside, and written anew as the
rows of the transaction that its XA COMMIT makes.

The file has the form of a segment with one transaction (``docs/formats/store.md``). Of its events only table maps and
row events are written anew. They get other table ids, because a server uses the same ids for other tables after a
restart, and a segment may hold both. The new id is made of the table map, so equal maps have equal ids.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import IO

from cdc.binlog import refusals
from cdc.binlog.constants import CHECKSUM_SIZE, HEADER_SIZE, ROW_EVENTS, EventType
from cdc.disk.durable import storage_errors
from cdc.disk.encryption.read import open_content

_TABLE_ID = slice(HEADER_SIZE, HEADER_SIZE + 6)
_LEAST = HEADER_SIZE + 8 + CHECKSUM_SIZE
_NO_TABLE = b"\xff\xff\xff\0\0\0"
"""The table id of a row event that only ends a statement."""
_PIECE_BYTES = 128 << 10


def own_table_id(table_map: bytes) -> bytes:
    """Returns the table id for a TABLE_MAP event without checksum: 48 bits, of which the highest is set, so that no
    server's counter reaches it."""
    table_id = bytearray(blake2b(table_map[_TABLE_ID.stop :], digest_size=6).digest())
    table_id[5] |= 0x80
    return bytes(table_id)


def read_rows(path: Path, offset: int, size: int, xid: str) -> Iterator[bytes]:
    """Yields the table maps and row events of a file of ``size`` bytes, without checksums, after verifying these; the
    transaction begins at ``offset``. The pieces may end anywhere in an event. At most a few hundred KiB are in memory.

    Raises DamagedError, StorageError.
    """
    with storage_errors(path), open_content(path) as file:
        yield from _Rows(file, offset, size, xid).pieces()


class _Rows:
    def __init__(self, file: IO[bytes], offset: int, size: int, xid: str) -> None:
        self._file, self._at, self._size, self._xid = file, offset, size, xid
        self._ids: dict[bytes, bytes] = {}
        file.seek(offset)

    def pieces(self) -> Iterator[bytes]:
        piece = bytearray()
        while self._at < self._size:
            head = self._read(HEADER_SIZE)
            length = int.from_bytes(head[9:13], "little")
            if length < HEADER_SIZE + CHECKSUM_SIZE or self._at + length > self._size:
                self._fail(f"the length of the event at byte {self._at} is wrong")
            kind = head[4]
            if kind in ROW_EVENTS and length > _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
                yield from self._large(head, length)
            else:
                event = head + self._read(length - HEADER_SIZE)
                self._verify(zlib.crc32(event[:-CHECKSUM_SIZE]), event[-CHECKSUM_SIZE:])
                if kind in ROW_EVENTS or kind == EventType.TABLE_MAP:
                    piece += self._renewed(event[:-CHECKSUM_SIZE])
                if len(piece) >= _PIECE_BYTES:
                    yield bytes(piece)
                    piece.clear()
            self._at += length
        yield bytes(piece)

    def _renewed(self, event: bytes) -> bytes:
        """Returns the beginning of an event, or all of it, with its new table id and length."""
        if len(event) < _LEAST - CHECKSUM_SIZE:
            self._fail(f"the event at byte {self._at} is too short")
        table_id = event[_TABLE_ID]
        if event[4] == EventType.TABLE_MAP:
            self._ids[table_id] = own_table_id(event)
        elif table_id not in self._ids and table_id != _NO_TABLE:
            self._fail(f"the event at byte {self._at} has no TABLE_MAP")
        length = int.from_bytes(event[9:13], "little") - CHECKSUM_SIZE
        renewed = self._ids.get(table_id, table_id)
        return event[:9] + length.to_bytes(4, "little") + event[13:HEADER_SIZE] + renewed + event[_TABLE_ID.stop :]

    def _large(self, head: bytes, length: int) -> Iterator[bytes]:
        """Yields a large row event in pieces."""
        part, left = head + self._read(8), length - HEADER_SIZE - 8
        crc = zlib.crc32(part)
        yield self._renewed(part)
        while left > CHECKSUM_SIZE:
            part = self._read(min(_PIECE_BYTES, left - CHECKSUM_SIZE))
            crc = zlib.crc32(part, crc)
            left -= len(part)
            yield part
        self._verify(crc, self._read(CHECKSUM_SIZE))

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            self._fail(f"the file ends at byte {self._at + len(data)}")
        return data

    def _verify(self, crc: int, stored: bytes) -> None:
        if crc.to_bytes(CHECKSUM_SIZE, "little") != stored:
            self._fail(f"the checksum of the event at byte {self._at} is wrong")

    def _fail(self, why: str) -> None:
        raise refusals.damaged_prepared(self._xid, f"{self._file.name}: {why}")
