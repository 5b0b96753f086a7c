"""Entries and rows as objects, made from Canal's messages when they are asked for.

The fields are those of ``cdc/canal/canal.proto``. An entry's header is read at once, its rows only when
:attr:`Entry.rows` is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Literal, TypeVar

from cdc.base.errors import DamagedError
from cdc.canal import messages
from cdc.canal.messages import MalformedError, Message, parsed

Kind = Literal["begin", "rows", "ddl", "end", "other"]
_KINDS: dict[int, Kind] = {1: "begin", 2: "rows", 3: "end"}
_EVENTS = ("", *(name.lower() for name in messages.EventType.keys()[1:]))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_M = TypeVar("_M", bound=Message)


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
        return {column.name: column.value for column in self.before}

    @property
    def new(self) -> dict[str, str | None]:
        """The values after the change, by column."""
        return {column.name: column.value for column in self.after}

    @property
    def key(self) -> dict[str, str | None]:
        """The values of the primary key: the new ones; those of a delete are the old ones."""
        return {column.name: column.value for column in self.after or self.before if column.is_key}


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
        return self._change.sql

    @property
    def transaction_id(self) -> str:
        """The XID at the end of a transaction."""
        return _parsed(messages.TransactionEnd, self.value).transaction_id if self.kind in ("begin", "end") else ""

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The changed rows; none of a statement. Raises DamagedError if the message cannot be read."""
        rows = self._change.row_datas if self.kind == "rows" else ()
        return tuple(Row(_columns(row.before_columns), _columns(row.after_columns)) for row in rows)

    @property
    def _change(self) -> messages.RowChange:
        return _parsed(messages.RowChange, self.value if self.kind in ("rows", "ddl") else b"")


def parse_messages(body: bytes) -> tuple[int, list[bytes]]:
    """Parses a ``Messages``: the batch's id, and its entries. Raises DamagedError."""
    batch = _parsed(messages.Messages, body)
    return batch.batch_id, list(batch.messages)


def parse_entry(raw: bytes) -> Entry:
    """Parses an ``Entry``, without its rows. Raises DamagedError."""
    message = _parsed(messages.Entry, raw)
    header, change = message.header, message.header.event_type
    event = _EVENTS[change] if 0 <= change < len(_EVENTS) else str(change)
    word = _KINDS.get(message.entry_type, "other")
    if word == "rows" and event not in ("insert", "update", "delete"):
        word = "ddl"
    return Entry(
        kind=word,
        event=event if word in ("rows", "ddl") else "",
        schema=header.schema_name,
        table=header.table_name,
        file=header.logfile_name,
        pos=header.logfile_offset,
        server_id=header.server_id,
        time=_EPOCH + timedelta(milliseconds=header.execute_time),
        gtid=header.gtid,
        raw=raw,
        value=message.store_value,
    )


def _columns(columns: Iterable[messages.Column]) -> tuple[Column, ...]:
    return tuple(
        Column(
            name=column.name,
            value=None if column.is_null else column.value,
            is_key=column.is_key,
            updated=column.updated,
            sql_type=column.sql_type,
            mysql_type=column.mysql_type,
            index=column.index,
        )
        for column in columns
    )


def _parsed(kind: type[_M], data: bytes) -> _M:
    try:
        return parsed(kind, data)
    except MalformedError:
        raise DamagedError(
            "the server sent a message that cannot be read", remedy="Connect to Canal's port of a server."
        ) from None
