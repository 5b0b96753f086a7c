"""Raw values of JSON columns, as a server wrote them into its binlog."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql

from cdc.binlog.constants import CHECKSUM_SIZE
from cdc.binlog.file import BinlogFile
from cdc.testing.servers import Server

WRITE_ROWS = 30


@contextmanager
def new_binlog(server: Server) -> Iterator[list[Path]]:
    """Writes the events inside the block to binlog files of their own, and lists these afterwards."""
    files: list[Path] = []
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        before = _files(cursor)
        yield files
        cursor.execute("FLUSH BINARY LOGS")
        files += [server.data / name for name in _files(cursor)[len(before) - 1 : -1]]


def _files(cursor: pymysql.cursors.Cursor) -> list[str]:
    cursor.execute("SHOW BINARY LOGS")
    return [row[0] for row in cursor.fetchall()]


def row_events(opened: BinlogFile, kinds: set[int], table: str) -> list[tuple[int, int]]:
    """Position and length of the row events (19: the table maps) of some types, of the table ``db.table``."""
    events = []
    db, _, name = table.encode().partition(b".")
    names = bytes([len(db)]) + db + b"\0" + bytes([len(name)]) + name + b"\0"
    ids: dict[bytes, bool] = {}
    for entry in opened.entries:
        pos, end = int(entry["offset"]), int(entry["offset"] + entry["length"])
        while pos < end:
            length = int.from_bytes(opened.buf[pos + 9 : pos + 13].tobytes(), "little")
            kind = int(opened.buf[pos + 4])
            table_id = opened.buf[pos + 19 : pos + 25].tobytes()
            if kind == 19:
                ids[table_id] = opened.buf[pos + 27 : pos + 27 + len(names)].tobytes() == names
            if kind in kinds and ids.get(table_id):
                events.append((pos, length))
            pos += length
    return events


def inserted(paths: list[Path], table: str) -> dict[int, bytes | None]:
    """The documents that were inserted into a table (id INT, doc JSON), by id."""
    rows: dict[int, bytes | None] = {}
    for path in paths:
        opened = BinlogFile.open(path)
        assert opened.damage is None and opened.has_checksum
        for pos, length in row_events(opened, {WRITE_ROWS}, table):
            event = opened.buf[pos : pos + length - CHECKSUM_SIZE].tobytes()
            at = 27 + int.from_bytes(event[27:29], "little")
            assert event[at : at + 2] == b"\x02\xff"
            at += 2
            while at < len(event):
                null = bool(event[at] & 2)
                number = int.from_bytes(event[at + 1 : at + 5], "little", signed=True)
                at += 5
                rows[number] = None
                if not null:
                    size = int.from_bytes(event[at : at + 4], "little")
                    rows[number] = event[at + 4 : at + 4 + size]
                    at += 4 + size
    return rows


def query(server: Server, sql: str) -> list[tuple[Any, ...]]:
    """All rows of a query's answer."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
