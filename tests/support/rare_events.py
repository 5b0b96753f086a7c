"""Builds events that few sources write: compressed transactions and statements, tagged GTIDs, XA transactions."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import zstandard

from cdc.binlog.constants import EventType
from cdc.testing.binlog import BinlogBuilder


def inner(*, db: str, table: str, sql: str | None = None, end: Callable[[BinlogBuilder], None] | None = None) -> bytes:
    """The events of a compressed transaction: without GTID and without checksums."""
    log = BinlogBuilder()
    log.query("BEGIN")
    log.table_map("other", "also_locked")
    log.table_map(db, table)
    log.rows(db, table, [1, 2])
    if sql is not None:
        log.query(sql)
    if end is None:
        log.xid()
    else:
        end(log)
    out = b""
    for event in log.events[1:]:
        out += event[:9] + (len(event) - 4).to_bytes(4, "little") + event[13:-4]
    return out


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


def xa_prepare(log: BinlogBuilder, *, one_phase: bool) -> None:
    log.event(EventType.XA_PREPARE, bytes([one_phase]) + struct.pack("<iII", 1, 2, 0) + b"ab")


def xa_transaction(log: BinlogBuilder, db: str, *, one_phase: bool) -> None:
    """The event in the form that MySQL writes."""
    log.gtid()
    log.query("XA START X'6162',X'',1", db)
    log.table_map(db, "orders")
    log.rows(db, "orders", [7])
    log.query("XA END X'6162',X'',1", db)
    xa_prepare(log, one_phase=one_phase)


def compressed_query(log: BinlogBuilder, sql: str, *, packed: bytes | None = None, says: int | None = None) -> None:
    size = len(sql) if says is None else says
    packed = zlib.compress(sql.encode()) if packed is None else packed
    head = struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0"
    log.event(EventType.MARIADB_QUERY_COMPRESSED, head + b"\x82" + size.to_bytes(2, "big") + packed)
