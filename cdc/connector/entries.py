"""Entries and rows as objects, made from Canal's messages when they are asked for.

The messages are read by a small parser of protobuf's encoding, so that no library is needed. The fields are those of
``cdc/canal/canal.proto``. An entry's header is read at once, its rows only when :attr:`Entry.rows` is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Literal

from cdc.base.errors import DamagedError

Kind = Literal["begin", "rows", "ddl", "end", "other"]
_KINDS: dict[int, Kind] = {1: "begin", 2: "rows", 3: "end"}
_EVENTS = (
    *("", "insert", "update", "delete", "create", "alter", "erase", "query", "truncate", "rename", "cindex", "dindex"),
    *("gtid", "xacommit", "xarollback", "mheartbeat"),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Buffer = memoryview | bytes


@dataclass(frozen=True, slots=True)
class Column:
    """A value of a row."""

    name: str
    value: str | None
    """The text of Canal's protocol, see ``docs/formats/canal.md``; None: NULL."""
    is_key: bool
    updated: bool
    """Whether the change set it: all values of an insert, of an update those that differ."""
    sql_type: int
    """The column's type, a number of ``java.sql.Types``."""
    mysql_type: str
    index: int


@dataclass(frozen=True, slots=True)
class Row:
    """A changed row. An insert has no columns before, a delete none after."""

    before: tuple[Column, ...]
    after: tuple[Column, ...]

    @property
    def old(self) -> dict[str, str | None]:
        """The values before the change, by column."""
        return {one.name: one.value for one in self.before}

    @property
    def new(self) -> dict[str, str | None]:
        """The values after the change, by column."""
        return {one.name: one.value for one in self.after}

    @property
    def key(self) -> dict[str, str | None]:
        """The values of the primary key: the new ones; those of a delete are the old ones."""
        return {one.name: one.value for one in self.after or self.before if one.is_key}


@dataclass(frozen=True)
class Entry:
    """An entry: the begin or end of a transaction, the rows of an event, or a statement."""

    kind: Kind
    event: str
    """``insert``, ``update``, ``delete``; of a statement ``create``, ``alter``, ``erase``, ``truncate``, ``rename``,
    ``cindex``, ``dindex``, ``query``, ``xacommit``, ``xarollback``; else empty."""
    schema: str
    table: str
    """Without its schema."""
    file: str
    """The source's binlog file,"""
    pos: int
    """and the offset of the event in it."""
    server_id: int
    time: datetime
    """When the source executed the event, in UTC; whole seconds."""
    gtid: str
    raw: bytes = field(repr=False)
    """The message ``Entry``, for programs with a protobuf library."""
    value: bytes = field(repr=False)
    """The message in it: ``RowChange``, ``TransactionBegin`` or ``TransactionEnd``."""

    @property
    def name(self) -> str:
        """``schema.table``."""
        return f"{self.schema}.{self.table}"

    @property
    def sql(self) -> str:
        """The text of a statement."""
        return (
            _text(next((found for number, found in _fields(self.value) if number == 11), b"")) if self._is_row else ""
        )

    @property
    def transaction_id(self) -> str:
        """The XID at the end of a transaction."""
        return "" if self._is_row else _text(next((found for number, found in _fields(self.value) if number == 2), b""))

    @property
    def _is_row(self) -> bool:
        return self.kind in ("rows", "ddl")

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The changed rows; none of a statement. Raises DamagedError if the message cannot be read."""
        if self.kind != "rows":
            return ()
        return tuple(
            _row(found) for number, found in _fields(self.value) if number == 12 and not isinstance(found, int)
        )


def parse_messages(body: bytes) -> tuple[int, list[bytes]]:
    """Parses a ``Messages``: the batch's id, and its entries. Raises DamagedError."""
    batch, entries = 0, []
    for number, found in _fields(memoryview(body)):
        if number == 1 and isinstance(found, int):
            batch = found - (1 << 64) if found >> 63 else found
        elif number == 2 and not isinstance(found, int):
            entries.append(bytes(found))
    return batch, entries


def parse_entry(raw: bytes) -> Entry:
    """Parses an ``Entry``, without its rows. Raises DamagedError."""
    kind, value, header = 0, b"", {}
    for number, found in _fields(raw):
        if number == 1 and not isinstance(found, int):
            header = {n: one for n, one in _fields(found) if n != 12}
        elif number == 2 and isinstance(found, int):
            kind = found
        elif number == 3 and not isinstance(found, int):
            value = bytes(found)
    change = _number(header.get(11, 0))
    event = _EVENTS[change] if 0 <= change < len(_EVENTS) else str(change)
    word = _KINDS.get(kind, "other")
    if word == "rows" and event not in ("insert", "update", "delete"):
        word = "ddl"
    return Entry(
        kind=word,
        event=event if word in ("rows", "ddl") else "",
        schema=_text(header.get(8, b"")),
        table=_text(header.get(9, b"")),
        file=_text(header.get(2, b"")),
        pos=_number(header.get(3, 0)),
        server_id=_number(header.get(4, 0)),
        time=_EPOCH + timedelta(milliseconds=_number(header.get(6, 0))),
        gtid=_text(header.get(13, b"")),
        raw=raw,
        value=value,
    )


def _row(message: _Buffer) -> Row:
    before, after = [], []
    for number, found in _fields(message):
        if number == 1 and not isinstance(found, int):
            before.append(_column(found))
        elif number == 2 and not isinstance(found, int):
            after.append(_column(found))
    return Row(tuple(before), tuple(after))


def _column(message: _Buffer) -> Column:
    found = dict(_fields(message))
    is_null = bool(found.get(6, 0))
    return Column(
        name=_text(found.get(3, b"")),
        value=None if is_null else _text(found.get(8, b"")),
        is_key=bool(found.get(4, 0)),
        updated=bool(found.get(5, 0)),
        sql_type=_signed(_number(found.get(2, 0))),
        mysql_type=_text(found.get(10, b"")),
        index=_number(found.get(1, 0)),
    )


def _text(value: int | _Buffer) -> str:
    return "" if isinstance(value, int) else str(value, "utf-8", "replace")


def _number(value: int | _Buffer) -> int:
    return value if isinstance(value, int) else 0


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _fields(message: _Buffer) -> Iterator[tuple[int, int | _Buffer]]:
    """Yields the fields of a message: number, and a number or a part of the message."""
    at, size = 0, len(message)
    try:
        while at < size:
            tag = message[at]
            at += 1
            if tag >= 0x80:
                tag, at = _varint(message, at, tag)
            value = message[at]
            at += 1
            if value >= 0x80:
                value, at = _varint(message, at, value)
            kind = tag & 7
            if kind == 2:
                if value > size - at:
                    raise IndexError
                yield tag >> 3, message[at : at + value]
                at += value
            elif kind == 0:
                yield tag >> 3, value
            else:
                raise IndexError
    except IndexError:
        raise DamagedError(
            "the server sent a message that cannot be read", remedy="Connect to Canal's port of a server."
        ) from None


def _varint(message: _Buffer, at: int, first: int) -> tuple[int, int]:
    value, shift = first & 0x7F, 7
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
        shift += 7
        if shift > 63:
            raise IndexError
