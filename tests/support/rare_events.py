"""Builds events that few sources write: compressed transactions and statements, tagged GTIDs, XA transactions."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence

import zstandard

from cdc.binlog.constants import EventType
from cdc.testing.binlog import BinlogBuilder


def inner(
    *,
    db: str,
    table: str,
    sql: str | None = None,
    end: Callable[[BinlogBuilder], object] | None = None,
    values: Sequence[int] = (1, 2),
) -> bytes:
    """The events of a compressed transaction: without GTID and without checksums."""
    log = BinlogBuilder()
    log.query("BEGIN")
    log.table_map("other", "also_locked")
    log.table_map(db, table)
    log.rows(db, table, list(values))
    if sql is not None:
        log.query(sql)
    if end is None:
        log.xid()
    else:
        end(log)
    return unchecked(log.events[1:])


def unchecked(events: Iterable[bytes]) -> bytes:
    """The events without checksums and positions."""
    return b"".join(event[:9] + (len(event) - 4).to_bytes(4, "little") + bytes(4) + event[17:-4] for event in events)


def split_events(data: bytes | bytearray) -> list[bytes]:
    """Cuts a chain of events into events."""
    events, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        events.append(bytes(data[at : at + length]))
        at += length
    return events


def packed_log(plain: BinlogBuilder, how: Callable[[], str], *, pos: int | None = None) -> BinlogBuilder:
    """The same transactions, each compressed as ``how`` says: ``zstd``, ``frames`` (several in one stream), ``unsized``
    (a stream that does not name its size), ``none``, or ``plain``, not put into a payload. ``pos``: where they begin."""
    log = BinlogBuilder(server_id=plain.server_id, timestamp=plain.timestamp)
    log.pos = log.pos if pos is None else pos
    starts = [number for number, event in enumerate(plain.events) if event[4] == EventType.GTID]
    for start, stop in zip(starts, [*starts[1:], len(plain.events)], strict=True):
        log.gtid()
        form = how()
        if form == "plain":
            for event in plain.events[start + 1 : stop]:
                log.event(event[4], event[19:-4])
            continue
        data = unchecked(plain.events[start + 1 : stop])
        if form == "none":
            log.event(EventType.TRANSACTION_PAYLOAD, payload_body(data, method=255))
            continue
        middle = len(data) // 2 if form == "frames" else len(data)
        writer = zstandard.ZstdCompressor(write_content_size=form != "unsized")
        packed = writer.compress(data[:middle])
        packed += writer.compress(data[middle:]) if middle < len(data) else b""
        log.event(EventType.TRANSACTION_PAYLOAD, payload_body(data, packed=packed))
    return log


def compressed_rows(
    log: BinlogBuilder, kind: int, db: str, table: str, values: Sequence[int], *, packed: bytes | None = None
) -> bytes:
    """One of MariaDB's compressed row events; an update's old rows hold the values less one. Its table map precedes
    it."""
    table_id = int.from_bytes(next(e for e in reversed(log.events) if e[4] == EventType.TABLE_MAP)[19:25], "little")
    is_update = kind in (EventType.MARIADB_UPDATE_ROWS_COMPRESSED_V1, EventType.MARIADB_UPDATE_ROWS_COMPRESSED)
    rows = b""
    for value in values:
        rows += (b"\0" + struct.pack("<i", value - 1) if is_update else b"") + b"\0" + struct.pack("<i", value)
    if packed is None:
        size = max(1, (len(rows).bit_length() + 7) // 8)
        packed = bytes([0x80 | size]) + len(rows).to_bytes(size, "big") + zlib.compress(rows)
    extra = b"\2\0" if kind >= EventType.MARIADB_WRITE_ROWS_COMPRESSED else b""
    masks = b"\xff\xff" if is_update else b"\xff"
    return log.event(kind, table_id.to_bytes(6, "little") + b"\1\0" + extra + b"\1" + masks + packed)


def payload_body(data: bytes, *, method: int = 0, says: int | None = None, packed: bytes | None = None) -> bytes:
    if packed is None:
        packed = zstandard.compress(data) if method == 0 else data
    size = len(data) if says is None else says
    fields = b"\2\1" + bytes([method]) if method < 251 else b"\2\3\xfc\xff\0"
    fields += b"\3\x09\xfe" + size.to_bytes(8, "little") + b"\1\x09\xfe" + len(packed).to_bytes(8, "little")
    return fields + b"\0" + packed


def varlen(value: int) -> bytes:
    """A number in MySQL's form of one to nine bytes."""
    for size in range(1, 9):
        if value < 1 << 7 * size:
            return (value << size | (1 << size - 1) - 1).to_bytes(size, "little")
    return b"\xff" + value.to_bytes(8, "little")


def tagged(tag: bytes, number: int, time_us: int) -> bytes:
    fields = varlen(0) + varlen(1) + varlen(1) + b"".join(varlen(b) for b in b"\1" * 15 + b"\xfe")
    fields += varlen(2) + varlen(2 * number) + varlen(3) + varlen(len(tag)) + tag
    fields += varlen(4) + varlen(2) + varlen(5) + varlen(4) + varlen(6) + varlen(time_us) + varlen(8) + varlen(300)
    return varlen(1) + varlen(len(fields) + 3) + varlen(0) + fields


def xa_prepare(log: BinlogBuilder, *, one_phase: bool, xid: bytes = b"ab") -> None:
    log.event(EventType.XA_PREPARE, bytes([one_phase]) + struct.pack("<iII", 1, len(xid), 0) + xid)


def xa_transaction(
    log: BinlogBuilder,
    db: str,
    *,
    one_phase: bool,
    xid: bytes = b"ab",
    values: Sequence[int] = (7,),
    more: str | None = None,
) -> None:
    """The event in the form that MySQL writes. With ``more`` a statement changes a table of that database too, last."""
    log.gtid()
    log.query(f"XA START X'{xid.hex()}',X'',1", db)
    log.table_map(db, "orders")
    if more is not None:
        log.table_map(more, "orders")
    log.rows(db, "orders", list(values), end=more is None)
    if more is not None:
        log.rows(more, "orders", [1])
    log.query(f"XA END X'{xid.hex()}',X'',1", db)
    xa_prepare(log, one_phase=one_phase, xid=xid)


def xa_commit(log: BinlogBuilder, *, verb: str = "COMMIT", xid: str = "X'6162',X'',1") -> None:
    """The end of a prepared transaction, a transaction of its own."""
    log.gtid()
    log.query(f"XA {verb} {xid}")


def compressed_query(log: BinlogBuilder, sql: str, *, packed: bytes | None = None, says: int | None = None) -> None:
    size = len(sql) if says is None else says
    packed = zlib.compress(sql.encode()) if packed is None else packed
    head = struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0"
    log.event(EventType.MARIADB_QUERY_COMPRESSED, head + b"\x82" + size.to_bytes(2, "big") + packed)
