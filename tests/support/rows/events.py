"""Row events of one table, from a binlog file, one change after another."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from cdc.base.errors import DamagedError, UnsupportedEventError
from cdc.binlog.constants import CHECKSUM_SIZE, HEADER_SIZE, MAGIC, EventType
from cdc.binlog.events import parse_format_description
from cdc.binlog.file import BinlogFile
from cdc.binlog.sql.schemas import TableSchema
from cdc.binlog.table_map import ColumnType, TableMap, parse_table_map
from tests.support.rows import binary_json, charsets
from tests.support.rows.charsets import Charset
from tests.support.rows.columns import Bytes, Column


class _Absent(enum.Enum):
    ABSENT = "absent"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent.ABSENT
"""The value of a column that is not in the image (``binlog_row_image`` MINIMAL or NOBLOB)."""

Op = Literal["insert", "update", "delete"]
Row = dict[str, Any]


@dataclass(frozen=True)
class RowChange:
    """A row's change; values by column name, ABSENT where the image does not have the column."""

    op: Op
    before: Row | None
    after: Row | None


_OPS: dict[int, Op] = {
    EventType.WRITE_ROWS_V1: "insert", EventType.UPDATE_ROWS_V1: "update", EventType.DELETE_ROWS_V1: "delete",
    EventType.WRITE_ROWS: "insert", EventType.UPDATE_ROWS: "update", EventType.DELETE_ROWS: "delete",
    EventType.PARTIAL_UPDATE_ROWS: "update",
}  # fmt: skip
_WRAPPED = frozenset({EventType.TRANSACTION_PAYLOAD, *range(166, 172)})


def decode_rows(
    file: Path | str | BinlogFile,
    table: str,
    schema: TableSchema | None = None,
    *,
    charset: Charset = charsets.text,
) -> list[RowChange]:
    """All changes of a table, ``db.table``, in the file's order.

    ``schema`` is needed where table maps do not tell everything: names and signs without FULL metadata, MariaDB's
    UUID, INET4, INET6 and VECTOR, and its times in old storage. ``charset`` turns bytes into text.
    Raises DamagedError, UnsupportedEventError (compressed transactions and events), UnsupportedTypeError.
    """
    return RowReader(file).changes(table, schema, charset=charset)


class RowReader:
    """A file whose events have been found once, for the changes of several tables."""

    def __init__(self, file: Path | str | BinlogFile) -> None:
        if isinstance(file, BinlogFile):
            self.path, self._data = file.path, file.buf.tobytes()
        else:
            self.path = Path(file)
            self._data = self.path.read_bytes()
        self._by_table: dict[str, list[tuple[TableMap, int, int, int]]] = {}
        self._find()

    def _find(self) -> None:
        """Row events by table: table map, type, start and end of the body."""
        data = self._data
        if data[:4] != MAGIC:
            raise DamagedError("is not a binlog file", place=str(self.path))
        maps: dict[int, TableMap] = {}
        at = len(MAGIC)
        tail, description = 0, None
        while at < len(data):
            size = int.from_bytes(data[at + 9 : at + 13], "little")
            kind = data[at + 4] if at + HEADER_SIZE <= len(data) else 0
            if size < HEADER_SIZE or at + size > len(data):
                raise DamagedError("an event goes beyond the end", place=f"{self.path}, position {at}")
            if kind == EventType.FORMAT_DESCRIPTION:
                description = parse_format_description(data[at : at + size])
                tail = CHECKSUM_SIZE if description.has_checksum else 0
                maps = {}
            elif kind == EventType.TABLE_MAP:
                table_map = parse_table_map(data[at : at + size], bool(tail), writer=description)
                maps[table_map.table_id] = table_map
            elif kind in _OPS:
                number = int.from_bytes(data[at + HEADER_SIZE : at + HEADER_SIZE + 6], "little")
                if number not in maps:
                    raise DamagedError("a row event without its table map", place=f"{self.path}, position {at}")
                mapped = maps[number]
                self._by_table.setdefault(mapped.full_name, []).append(
                    (mapped, kind, at + HEADER_SIZE, at + size - tail)
                )
            elif kind in _WRAPPED:
                raise UnsupportedEventError(f"compressed event {kind}", place=f"{self.path}, position {at}")
            at += size

    def changes(
        self, table: str, schema: TableSchema | None = None, *, charset: Charset = charsets.text
    ) -> list[RowChange]:
        """Returns the changes of a table; see :func:`decode_rows`."""
        out: list[RowChange] = []
        columns: list[Column] = []
        described: TableMap | None = None
        for table_map, kind, begin, end in self._by_table.get(table, []):
            if table_map != described:
                described, columns = table_map, _columns(table_map, schema, charset, str(self.path))
            body = Bytes(self._data[begin:end], f"{self.path}, position {begin - HEADER_SIZE}")
            out += _rows(body, kind, columns, charset)
        return out


def _columns(table_map: TableMap, schema: TableSchema | None, charset: Charset, place: str) -> list[Column]:
    if schema is None:
        return [
            Column.of(replace(meta, name=meta.name or f"@{n + 1}"), None, charset)
            for n, meta in enumerate(table_map.columns)
        ]
    if len(schema.columns) != len(table_map.columns):
        raise DamagedError(
            f"table {table_map.full_name} has {len(table_map.columns)} columns, its schema {len(schema.columns)}",
            place=place,
        )
    return [
        Column.of(meta, column_schema, charset)
        for meta, column_schema in zip(table_map.columns, schema.columns, strict=True)
    ]


def _rows(body: Bytes, kind: int, columns: list[Column], charset: Charset) -> Iterator[RowChange]:
    """The body: table id 6, flags 2, in version 2 the length of extra data (which counts itself) and these, the number
    of columns, a bitmap of those in the image (two for updates), the rows."""
    body.take(8)
    if kind >= EventType.WRITE_ROWS:
        body.take(body.number(2) - 2)
    if body.packed() != len(columns):
        raise DamagedError("a row event has another number of columns than its table map", place=body.place)
    op = _OPS[kind]
    present = [_bitmap(body, len(columns))]
    if op == "update":
        present.append(_bitmap(body, len(columns)))
    while body.left:
        first, raw = _image(body, columns, present[0], charset)
        if op == "insert":
            yield RowChange(op, None, first)
        elif op == "delete":
            yield RowChange(op, first, None)
        else:
            partial = raw if kind == EventType.PARTIAL_UPDATE_ROWS else None
            yield RowChange(op, first, _image(body, columns, present[1], charset, partial)[0])


def _bitmap(body: Bytes, count: int) -> list[bool]:
    raw = body.take((count + 7) // 8)
    return [bool(raw[i >> 3] >> (i & 7) & 1) for i in range(count)]


def _image(
    body: Bytes, columns: list[Column], present: list[bool], charset: Charset, before: dict[str, bytes] | None = None
) -> tuple[Row, dict[str, bytes]]:
    """A row image: in partial updates first what is partial; a bitmap of nulls among the columns present; the values.
    Also the bytes of JSON values; ``before`` has those of the old row where this image may be partial."""
    partial: set[str] = set()
    if before is not None and body.packed() & 1:
        documents = [column.name for column in columns if column.meta.type == ColumnType.JSON]
        partial = {
            name for name, is_partial in zip(documents, _bitmap(body, len(documents)), strict=True) if is_partial
        }
    nulls = iter(_bitmap(body, sum(present)))
    row: Row = {}
    raw: dict[str, bytes] = {}
    for column, is_present in zip(columns, present, strict=True):
        if not is_present:
            row[column.name] = ABSENT
        elif next(nulls):
            row[column.name] = None
        elif column.meta.type == ColumnType.JSON:
            document = raw[column.name] = column.raw(body)
            if column.name in partial and before is not None:
                row[column.name] = binary_json.apply_diffs(before[column.name], document)
            else:
                row[column.name] = binary_json.text(document, of_mysql_5=column.meta.of_mysql_5)
        else:
            row[column.name] = column.read(body, charset)
    return row, raw
