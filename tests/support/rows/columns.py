"""Columns of a table map, completed from the table's schema, and the reading of their values."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pymysql.charset import charset_by_id

from cdc.base.errors import DamagedError, UnsupportedTypeError
from cdc.binlog.sql.schemas import ColumnSchema
from cdc.binlog.table_map import ColumnMeta, ColumnType
from tests.support.rows import binary_json, values
from tests.support.rows.charsets import Charset

_T = ColumnType
_INTEGER_BYTES = {_T.TINY: 1, _T.SHORT: 2, _T.INT24: 3, _T.LONG: 4, _T.LONGLONG: 8}
_BLOBS = frozenset({_T.TINY_BLOB, _T.BLOB, _T.MEDIUM_BLOB, _T.LONG_BLOB})
_PREFIXED = _BLOBS | {_T.JSON, _T.GEOMETRY, _T.VECTOR, _T.BLOB_COMPRESSED}
_STRINGS = frozenset({_T.STRING, _T.VARCHAR, _T.VAR_STRING, _T.VARCHAR_COMPRESSED})
_COMPRESSED = frozenset({_T.BLOB_COMPRESSED, _T.VARCHAR_COMPRESSED})
_OLD_TIMES = {_T.TIME: 3, _T.DATETIME: 8, _T.TIMESTAMP: 4}
_MEMBER = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_MEMBER_ESCAPES = {"\\\\": "\\", "''": "'", "\\0": "\0", "\\n": "\n", "\\r": "\r", "\\t": "\t", "\\Z": "\x1a"}


class Bytes:
    """A cursor over an event's body. Raises DamagedError instead of leaving it."""

    def __init__(self, data: bytes, place: str) -> None:
        self.data, self.at, self.place = data, 0, place

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise DamagedError(f"the row event ends inside a value, at its byte {self.at}", place=self.place)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def packed(self) -> int:
        first = self.number(1)
        return first if first < 251 else self.number({252: 2, 253: 3, 254: 8}[first])


@dataclass(frozen=True)
class Column:
    """A column; ``charset`` is None for bytes."""

    meta: ColumnMeta
    name: str
    unsigned: bool
    charset: str | None
    members: tuple[str, ...]
    declared: str
    """``uuid``, ``vector``, …: the data type by the schema; empty without one."""
    hires: int | None
    """Digits of a fraction in the storage of MariaDB 5.3, which table maps do not hold."""

    @classmethod
    def of(cls, meta: ColumnMeta, schema: ColumnSchema | None, charset: Charset) -> Column:
        name = schema.charset if schema is not None else None
        if meta.collation is not None and schema is None:
            name = _charset_name(meta.collation)
        name = None if name == "binary" else name
        hires = None
        if schema is not None and "mariadb-5.3" in schema.column_type:
            digits = re.search(r"\((\d)\)", schema.column_type)
            hires = int(digits.group(1)) if digits else 0
        members: tuple[str, ...] = ()
        if meta.members:
            members = tuple(charset(raw, name or "utf8mb4") if name else raw.decode("latin-1") for raw in meta.members)
        elif schema is not None and meta.type in (_T.ENUM, _T.SET):
            members = tuple(_plain(member) for member in _MEMBER.findall(schema.column_type))
        return cls(
            meta=meta,
            name=schema.name if schema is not None else meta.name,
            unsigned=meta.unsigned or (schema is not None and "unsigned" in schema.column_type.lower()),
            charset=name,
            members=members,
            declared=schema.data_type if schema is not None else "",
            hires=hires,
        )

    def read(self, body: Bytes, charset: Charset) -> Any:
        """The value at the cursor. Raises DamagedError, UnsupportedTypeError."""
        meta, kind = self.meta, self.meta.type
        if kind in _STRINGS or kind in _PREFIXED:
            return self._text(self.raw(body), charset)
        if kind in _INTEGER_BYTES:
            number = values.integer(body.take(_INTEGER_BYTES[_T(kind)]), self.unsigned)
            return Decimal(number) if kind == _T.LONGLONG and self.unsigned else number
        if kind == _T.FLOAT:
            return values.float32(body.take(4))
        if kind == _T.DOUBLE:
            return values.float64(body.take(8))
        if kind == _T.NEWDECIMAL:
            raw = body.take(values.decimal_size(meta.precision, meta.scale))
            form = values.decimal if meta.precision <= 38 else values.decimal_text
            return form(raw, meta.precision, meta.scale)
        if kind == _T.BIT:
            number = int.from_bytes(body.take((meta.length + 7) // 8), "big")
            return Decimal(number) if meta.length == 64 else number
        if kind in (_T.ENUM, _T.SET):
            return self._members(body.number(meta.length))
        return self._time(body)

    def raw(self, body: Bytes) -> bytes:
        """The bytes of a value with a length before it."""
        prefix = self.meta.length if self.meta.type in _PREFIXED else 1 if self.meta.length <= 255 else 2
        return body.take(body.number(prefix))

    def _text(self, raw: bytes, charset: Charset) -> Any:
        kind, declared = self.meta.type, self.declared
        if kind in _COMPRESSED:
            raw = _inflated(raw)
        if kind == _T.JSON:
            return binary_json.text(raw, of_mysql_5=self.meta.of_mysql_5)
        if kind == _T.VECTOR or declared == "vector":
            return [values.float32(raw[i : i + 4]) for i in range(0, len(raw), 4)]
        fixed = {"uuid": (16, values.uuid_text), "inet4": (4, values.inet4_text), "inet6": (16, values.inet6_text)}
        if declared in fixed:
            size, form = fixed[declared]
            return form(raw.ljust(size, b"\0"))
        if kind == _T.GEOMETRY or self.charset is None:
            return raw.ljust(self.meta.length, b"\0") if kind == _T.STRING else raw
        return charset(raw, self.charset)

    def _members(self, number: int) -> str:
        if self.meta.type == _T.ENUM:
            return ("", *self.members)[number]
        return ",".join(member for n, member in enumerate(self.members) if number >> n & 1)

    def _time(self, body: Bytes) -> Any:
        meta, kind = self.meta, self.meta.type
        fraction = (meta.scale + 1) // 2
        if kind in _OLD_TIMES:
            if self.hires is not None:
                raw = body.take(values.hires_size(_T(kind).name.lower(), self.hires))
                return {
                    _T.TIME: values.hires_time,
                    _T.DATETIME: values.hires_datetime,
                    _T.TIMESTAMP: values.hires_timestamp,
                }[_T(kind)](raw, self.hires)
            raw = body.take(_OLD_TIMES[_T(kind)])
            if kind == _T.TIMESTAMP:
                return values.unix_time(int.from_bytes(raw, "little"), 0)
            return values.old_time(raw) if kind == _T.TIME else values.old_datetime(raw)
        if kind in (_T.DATE, _T.NEWDATE):
            return values.date3(body.take(3))
        if kind == _T.DATETIME2:
            return values.datetime2(body.take(5 + fraction), meta.scale)
        if kind == _T.TIMESTAMP2:
            return values.timestamp2(body.take(4 + fraction), meta.scale)
        if kind == _T.TIME2:
            return values.time2(body.take(3 + fraction), meta.scale)
        if kind == _T.YEAR:
            number = body.number(1)
            return number and 1900 + number
        raise UnsupportedTypeError(f"the column {self.name} has the type {meta.type_name}", place=body.place)


def _charset_name(collation: int) -> str:
    """MariaDB numbers its newest collations by character set, and those without padding like the others, 1024 on."""
    if collation >= 2048:
        return ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")[(collation - 2048) // 256]
    try:
        return str(vars(charset_by_id(collation % 1024))["name"])
    except KeyError:
        raise UnsupportedTypeError(f"the collation {collation} is not known here; give the table's schema") from None


def _plain(member: str) -> str:
    return re.sub(r"\\.|''", lambda match: _MEMBER_ESCAPES.get(match.group(), match.group()), member, flags=re.DOTALL)


def _inflated(raw: bytes) -> bytes:
    """MariaDB's COMPRESSED: a byte of method and length's size, the length before compression (big-endian), the data;
    method 0 is none. Bit 3 says that the data are deflated without zlib's frame."""
    if not raw:
        return b""
    if not raw[0]:
        return raw[1:]
    return zlib.decompress(raw[1 + (raw[0] & 7) :], wbits=-15 if raw[0] & 8 else 15)
