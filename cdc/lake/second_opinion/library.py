"""Feeds mysql-replication with transactions from bytes, without a connection to a server.

The library parses an event out of a packet, and asks its connection for nothing but the kind of the server. So an event
is wrapped into a packet object, and the connection is a stand-in. Names, signs, character sets and members come from
the library's own reading of a table map; a table map without names (``binlog_row_metadata`` is not FULL) gets them from
the stored definition of the table.

Two of its faults are avoided rather than excused. Texts are taken as bytes, because it reads UTF-16 in the wrong byte
order and raises at bytes without a meaning: :mod:`.values` decodes them with Python's codecs. A JSON document that it
cannot read must not end the reading of the row behind it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pymysql.protocol import MysqlPacket
from pymysqlreplication.constants import FIELD_TYPE
from pymysqlreplication.json_binary import parse_json
from pymysqlreplication.packet import BinLogPacketWrapper
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    PartialUpdateRowsEvent,
    TableMapEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)

from cdc.binlog.constants import CHECKSUM_SIZE, HEADER_SIZE, EventType
from cdc.binlog.sql.schemas import quoted_members

if TYPE_CHECKING:
    import numpy as np

    from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
    from cdc.decode.transactions import Transactions

INTERNAL_NAMES = (
    (BinLogPacketWrapper, "read_binary_json"),
    (BinLogPacketWrapper, "read_uint_by_size"),
    (MysqlPacket, "_data"),
    (MysqlPacket, "_position"),
)
"""Names without a promise, which this module overrides or calls, or a packet must have for the library: (class, name).
A test names the one that a new version has removed."""

_ROW_CLASSES = (WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent, PartialUpdateRowsEvent)
_ALLOWED = (TableMapEvent, *_ROW_CLASSES)
_TABLE_MAP = int(EventType.TABLE_MAP)
_V1 = {
    int(kind): kind - EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1 + EventType.WRITE_ROWS_V1 for kind in (166, 167, 168)
}
_V2 = {int(kind): kind - EventType.MARIADB_WRITE_ROWS_COMPRESSED + EventType.WRITE_ROWS for kind in (169, 170, 171)}
_UNPACKED = _V1 | _V2
"""MariaDB's compressed row events, and the types that they have when their rows are unpacked."""
_UPDATES = (EventType.UPDATE_ROWS, EventType.UPDATE_ROWS_V1)
_ROWS = frozenset({*_UNPACKED, *_UNPACKED.values(), int(EventType.PARTIAL_UPDATE_ROWS)})
_LONGEST_REASON = 100
"""Characters of an error of the library that are reported."""
BYTES = "iso8859-1"
"""The codec by which the library hands over the bytes of a text: each byte is one character."""
_SETTLED_SIGNS = (8, 0, 33)
"""Before this version of MySQL, signs in a table map with YEAR columns may be those of other columns."""


@dataclass(frozen=True)
class Json:
    """A JSON document as the library reads it."""

    value: Any = None
    is_partial: bool = False
    """Whether the event holds changes of the document instead of the document."""
    fault: str | None = None
    """Why the library cannot read it."""


@dataclass(frozen=True)
class LibraryColumn:
    """A column as the library knows it."""

    name: str
    type: int
    charset: str | None
    """The library's name for the character set of a text, ENUM or SET; None if it is not known, or for other types."""
    length: int
    """STRING, VARCHAR: the largest size of a value in bytes."""
    digits: int
    """DATETIME, TIMESTAMP, TIME: digits of the fraction."""
    members: tuple[str, ...]


Image = tuple[dict[str, Any], dict[str, str]]
"""A row image: the values by column, and for values that are None the library's reason."""
Images = tuple[Image | None, Image | None]
"""Old and new image of a row; None where an event has none."""


@dataclass(frozen=True)
class LibraryEvent:
    """The rows of one row event of a table."""

    seq: int
    ordinal: int
    """The number of the event among the table's row events in its transaction."""
    columns: tuple[LibraryColumn, ...]
    rows: tuple[Images, ...]
    fault: str | None = None
    """Why the library could not read the event; it then has no rows."""


def table_rows(transactions: Transactions, table: str, schema: TableSchema | None) -> Iterator[LibraryEvent]:
    """Yields the row events of a table in opened transactions, as the library reads them. ``schema`` is the stored
    definition of the table."""
    for entry in transactions.entries:
        yield from _Transaction(transactions, entry, table, schema).events()


class _Server:
    """Stands in for the library's connection."""

    charset = "utf8mb4"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def _get_dbms(self) -> str:
        return self._kind


class _Packet(BinLogPacketWrapper):  # type: ignore[misc]
    """The library's reader of an event, with documents that do not raise."""

    def read_binary_json(self, size: int, is_partial: bool) -> Json:
        data = self.read(self.read_uint_by_size(size))
        if is_partial:
            return Json(is_partial=True)
        if not data:
            return Json()
        try:
            return Json(parse_json(data[0], data[1:]))
        except Exception as error:  # noqa: BLE001 - times of more than a day, deep documents and others
            return Json(fault=_reason(error))


class _Transaction:
    def __init__(self, transactions: Transactions, entry: np.void, table: str, schema: TableSchema | None) -> None:
        self._transactions, self._entry, self._schema = transactions, entry, schema
        writer = self._writer = transactions.writer
        db, _, name = table.partition(".")
        self._names = (db.encode(), name.encode())
        self._server = _Server("mysql" if writer is None else writer.flavor)
        self._maps: dict[int, Any] = {}
        self._columns: dict[int, tuple[LibraryColumn, ...]] = {}
        self._faults: dict[int, str] = {}

    def events(self) -> Iterator[LibraryEvent]:
        ordinal = 0
        for event in self._bytes():
            table_id = int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 6], "little")
            if event[4] == _TABLE_MAP:
                self._map(event, table_id)
            elif event[4] in _ROWS and table_id in self._columns:
                yield self._rows(event, table_id, ordinal)
                ordinal += 1

    def _bytes(self) -> Iterator[bytes]:
        """Yields the events of the transaction, each with four bytes behind it in the place of a checksum."""
        buf, tail = self._transactions.buf, self._transactions.tail
        at = int(self._entry["offset"])
        end = at + int(self._entry["length"])
        while at < end:
            head = buf[at : at + HEADER_SIZE].tobytes()
            size = int.from_bytes(head[9:13], "little")
            if size < HEADER_SIZE + tail:
                return  # our decoder has refused the file before
            if head[4] == _TABLE_MAP or head[4] in _ROWS:
                yield _sized(buf[at : at + size - tail].tobytes())
            at += size

    def _map(self, event: bytes, table_id: int) -> None:
        self._columns.pop(table_id, None)
        self._maps.pop(table_id, None)
        self._faults.pop(table_id, None)
        db, name, behind = _names(event)
        if (db, name) != self._names:
            return
        try:
            parsed = None if self._are_signs_unsure(event, behind) else self._parsed(event)
        except Exception as error:  # noqa: BLE001 - fields and types that it does not know raise many kinds
            parsed, self._faults[table_id] = None, f"of the table map: {_reason(error)}"
        if parsed is None or not parsed.optional_metadata.column_name_list:
            parsed = self._described(event, behind, table_id)
        self._columns[table_id] = () if parsed is None else tuple(_column(column) for column in parsed.columns)
        for column in () if parsed is None else parsed.columns:
            if column.character_set_name is not None and column.type not in (FIELD_TYPE.ENUM, FIELD_TYPE.SET):
                column.character_set_name = BYTES

    def _are_signs_unsure(self, event: bytes, behind: int) -> bool:
        if self._writer is None or self._writer.flavor != "mysql" or not self._writer.version < _SETTLED_SIGNS:
            return False
        count, at = _packed(event, behind)
        return FIELD_TYPE.YEAR in event[at : at + count]

    def _described(self, event: bytes, behind: int, table_id: int) -> Any:
        """The table map without its optional metadata, with what the stored definition says. None, with a fault, if
        there is no definition that fits."""
        schema = self._schema
        if schema is None:
            self._faults.setdefault(
                table_id, "the table map has no names, and no stored definition describes the table"
            )
            return None
        try:
            parsed = self._parsed(_without_metadata(event, behind))
        except Exception as error:  # noqa: BLE001 - see _map
            self._faults.setdefault(table_id, f"of the table map: {_reason(error)}")
            return None
        if len(parsed.columns) != len(schema.columns):
            self._faults[table_id] = "the stored definition has another number of columns than the table map"
            return None
        self._faults.pop(table_id, None)
        for column, definition in zip(parsed.columns, schema.columns, strict=True):
            _describe(column, definition)
        return parsed

    def _rows(self, event: bytes, table_id: int, ordinal: int) -> LibraryEvent:
        seq = int(self._entry["seq"])
        columns, fault = self._columns[table_id], self._faults.get(table_id)
        if fault is None:
            try:
                plain = _unpacked(event) if event[4] in _UNPACKED else event
                parsed = self._parsed(plain)
                images = _old_image if isinstance(parsed, DeleteRowsEvent) else _new_image
                return LibraryEvent(seq, ordinal, columns, tuple(images(row) for row in parsed.rows))
            except Exception as error:  # noqa: BLE001 - struct.error, ValueError, AssertionError, NotImplementedError, …
                fault = _reason(error)
        return LibraryEvent(seq, ordinal, columns, (), fault)

    def _parsed(self, event: bytes) -> Any:
        packet = _Packet(
            MysqlPacket(b"\0" + event, "utf8"),
            self._maps,
            self._server,
            (0, 0, 0),
            use_checksum=True,
            allowed_events=_ALLOWED,
            only_tables=None,
            ignored_tables=None,
            only_schemas=None,
            ignored_schemas=None,
            freeze_schema=False,
            ignore_decode_errors=False,
            verify_checksum=False,
            optional_meta_data=True,
            enable_logging=False,
        )
        if packet.event is None:
            raise ValueError(f"events of type {event[4]} are unknown to it")
        return packet.event


def _old_image(row: dict[str, Any]) -> Images:
    return (row["values"], row["none_sources"]), None


def _new_image(row: dict[str, Any]) -> Images:
    """The images of a row of an insert or an update."""
    if "values" in row:
        return None, (row["values"], row["none_sources"])
    return (row["before_values"], row["before_none_sources"]), (row["after_values"], row["after_none_sources"])


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text[:_LONGEST_REASON]}"


# --- bytes of events


def _sized(event: bytes) -> bytes:
    """The event with four zeros for its checksum, and its size in the header."""
    size = len(event) + CHECKSUM_SIZE
    return event[:9] + size.to_bytes(4, "little") + event[13:] + bytes(CHECKSUM_SIZE)


def _names(event: bytes) -> tuple[bytes, bytes, int]:
    """Database and table of a table map, and the offset behind them."""
    at = HEADER_SIZE + 8
    db = event[at + 1 : at + 1 + event[at]]
    at += len(db) + 2
    name = event[at + 1 : at + 1 + event[at]]
    return db, name, at + len(name) + 2


def _packed(event: bytes, at: int) -> tuple[int, int]:
    """A length-coded number, and the offset behind it."""
    size = {252: 2, 253: 3, 254: 8}.get(event[at], 0)
    if not size:
        return event[at], at + 1
    return int.from_bytes(event[at + 1 : at + 1 + size], "little"), at + 1 + size


def _without_metadata(event: bytes, behind: int) -> bytes:
    count, at = _packed(event, behind)
    size, at = _packed(event, at + count)
    return _sized(event[: at + size + (count + 7) // 8])


def _unpacked(event: bytes) -> bytes:
    """A compressed row event of MariaDB as a plain one: behind the bitmaps lie a byte 0x80 | size, the length of the
    rows in as many bytes (big-endian), and a zlib stream. Raises ValueError, zlib.error."""
    kind = _UNPACKED[event[4]]
    at = HEADER_SIZE + 8
    if event[4] in _V2:
        at += int.from_bytes(event[at : at + 2], "little")
    count, at = _packed(event, at)
    at += (count + 7) // 8 * (2 if kind in _UPDATES else 1)
    width = event[at] & 7
    rows = zlib.decompress(event[at + 1 + width : -CHECKSUM_SIZE])
    if len(rows) != int.from_bytes(event[at + 1 : at + 1 + width], "big"):
        raise ValueError("the compressed rows have another length than they say")
    return _sized(event[:4] + bytes([kind]) + event[5:at] + rows)


# --- columns


def _column(column: Any) -> LibraryColumn:
    return LibraryColumn(
        name=column.name,
        type=column.type,
        charset=column.character_set_name if column.collation_name is not None else None,
        length=getattr(column, "max_length", 0),
        digits=getattr(column, "fsp", 0),
        members=tuple(column.enum_values or column.set_values or ()),
    )


_TEXT_TYPES = (FIELD_TYPE.STRING, FIELD_TYPE.VAR_STRING, FIELD_TYPE.VARCHAR, FIELD_TYPE.BLOB)
_UNSIGNED = re.compile(r"\b(unsigned|zerofill)\b", re.IGNORECASE)


def _describe(column: Any, definition: ColumnSchema) -> None:
    """Gives the library's column what ``information_schema`` says of it."""
    column.name = definition.name
    column.unsigned = _UNSIGNED.search(definition.column_type) is not None and column.type not in _TEXT_TYPES
    if column.type in _TEXT_TYPES or column.type in (FIELD_TYPE.ENUM, FIELD_TYPE.SET):
        column.character_set_name = definition.charset or "binary"
        column.collation_name = definition.collation or "binary"
    if column.type == FIELD_TYPE.ENUM:
        column.enum_values = ["", *quoted_members(definition.column_type)]
    elif column.type == FIELD_TYPE.SET:
        column.set_values = list(quoted_members(definition.column_type))
