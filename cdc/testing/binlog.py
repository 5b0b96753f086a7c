"""Builds binlog events, for tests that need a stream without a server.

Rows hold one INT column, so that decoders can read them. Every event has a CRC32.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

from cdc.binlog.constants import MAGIC, EventType

_HEADER = struct.Struct("<IBIIIH")


class BinlogBuilder:
    """Builds a source's binlog event by event; ``data`` is the file so far.

    >>> log = BinlogBuilder()
    >>> log.transaction("shop", "orders", [1, 2, 3])
    """

    def __init__(self, *, server_id: int = 1, timestamp: int = 1_700_000_000) -> None:
        self.server_id = server_id
        self.timestamp = timestamp
        self.events: list[bytes] = []
        self.pos = len(MAGIC)
        self.gno = 0
        """The number of the last GTID. Set it to continue with another file."""
        self._table_ids: dict[tuple[str, str], int] = {}
        self.format_description()

    @property
    def data(self) -> bytes:
        return MAGIC + b"".join(self.events)

    @property
    def packets(self) -> bytes:
        """The events as a server sends them: MySQL packets, with an artificial rotate first."""
        name = b"binlog.000001"
        body = struct.pack("<Q", 4) + name
        rotate = _HEADER.pack(0, EventType.ROTATE, self.server_id, 19 + len(body) + 4, 0, 0x20) + body
        stream = [rotate + zlib.crc32(rotate).to_bytes(4, "little"), *self.events]
        return b"".join(packets_of(event) for event in stream)

    def event(self, kind: int, body: bytes, *, flags: int = 0) -> bytes:
        """Appends an event and returns it."""
        length = 19 + len(body) + 4
        self.pos += length
        head = _HEADER.pack(self.timestamp, kind, self.server_id, length, self.pos & 0xFFFFFFFF, flags)
        whole = head + body + zlib.crc32(head + body).to_bytes(4, "little")
        self.events.append(whole)
        return whole

    def format_description(self) -> bytes:
        body = struct.pack("<H50sIB", 4, b"9.7.4", 0, 19) + bytes(42) + b"\1"
        return self.event(EventType.FORMAT_DESCRIPTION, body)

    def gtid(self) -> bytes:
        """Appends the next GTID of the source ``01010101-…``, with a commit time one microsecond after the previous
        one."""
        self.gno += 1
        time_us = self.timestamp * 1_000_000 + self.gno
        body = b"\0" + b"\1" * 16 + struct.pack("<QBQQ", self.gno, 2, 0, self.gno) + time_us.to_bytes(7, "little")
        return self.event(EventType.GTID, body)

    def query(self, sql: str, db: str = "shop") -> bytes:
        body = struct.pack("<IIBHH", 1, 0, len(db), 0, 0) + db.encode() + b"\0" + sql.encode()
        return self.event(EventType.QUERY, body)

    def table_map(self, db: str, table: str, *, padding: int = 0) -> bytes:
        """Appends a TABLE_MAP event. ``padding`` is the size of a further field of metadata of an unknown type."""
        table_id = self._table_ids.setdefault((db, table), 100 + len(self._table_ids))
        names = bytes([len(db)]) + db.encode() + b"\0" + bytes([len(table)]) + table.encode() + b"\0"
        metadata = b"\x01\x01\x00" + b"\x04\x03\x02id" + b"\x08\x01\x00"  # signed, named id, primary key
        if padding:
            metadata += b"\xf0\xfe" + padding.to_bytes(8, "little") + bytes(padding)
        body = table_id.to_bytes(6, "little") + b"\1\0" + names + b"\1\3\0\0" + metadata
        return self.event(EventType.TABLE_MAP, body)

    def rows(self, db: str, table: str, values: list[int], *, end: bool = True) -> bytes:
        """Appends a WRITE_ROWS event; ``end`` marks the last one of the statement."""
        table_id = self._table_ids[db, table]
        rows = b"".join(b"\0" + struct.pack("<i", v) for v in values)
        body = table_id.to_bytes(6, "little") + struct.pack("<HH", 1 if end else 0, 2) + b"\1\xff" + rows
        return self.event(EventType.WRITE_ROWS, body)

    def xid(self) -> bytes:
        return self.event(EventType.XID, struct.pack("<Q", self.gno))

    def transaction(self, db: str, table: str, values: list[int]) -> None:
        """Appends GTID, BEGIN, one INSERT and the commit."""
        self.gtid()
        self.query("BEGIN", db)
        self.table_map(db, table)
        self.rows(db, table, values)
        self.xid()

    def ddl(self, sql: str, db: str = "shop") -> None:
        self.gtid()
        self.query(sql, db)


def numbered_packets(events: Iterable[bytes], number: int = 1) -> list[bytes]:
    """Returns the packets of each event, numbered as a server numbers those of one answer, from ``number`` on."""
    numbered_packets = []
    for event in events:
        numbered_packets.append(packets_of(event, number))
        number += (1 + len(event)) // 0xFFFFFF + 1
    return numbered_packets


def packets_of(event: bytes, number: int = 0) -> bytes:
    """An event as MySQL packets of at most 16 MiB - 1, with a status byte first."""
    payload, out = b"\0" + event, b""
    while True:
        piece, payload = payload[:0xFFFFFF], payload[0xFFFFFF:]
        out += len(piece).to_bytes(3, "little") + bytes([number & 0xFF]) + piece
        number += 1
        if len(piece) < 0xFFFFFF:
            return out
