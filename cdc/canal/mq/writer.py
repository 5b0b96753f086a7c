"""Turns entries into messages: a list of them for each topic and partition, in the order of the binlog."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cdc.base.errors import UnsupportedError
from cdc.canal.encoder import MOST_OUT_BYTES
from cdc.canal.fields import data, number
from cdc.canal.messages import EventType, Header, RowChange, parsed
from cdc.canal.mq.definitions import DefinitionSet, MessageOptions
from cdc.canal.mq.kernels import messages as m
from cdc.canal.mq.kernels import rows as r
from cdc.canal.mq.kernels.flat import MORE_ROWS
from cdc.canal.statements import INSERT, XA_ROLLBACK

if TYPE_CHECKING:
    from cdc.canal.encoder import Taken

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_FORMS = {"canal-json": m.FLAT, "canal-protobuf": m.RAW, "debezium-json": m.ENVELOPE}
_FIRST_OUT_BYTES = 4 << 20
_MOST_MESSAGES = 1 << 14
_FIRST_ROWS = 1 << 14
_TYPES = {value: name for name, value in EventType.items() if INSERT <= value <= XA_ROLLBACK}
_PACKET_HEAD = number(2, 1) + number(3, 7)  # version and MESSAGES
_MESSAGE_ROOM = 64
_NEW_KEY, _OLD_KEY = "__debezium.newkey", "__debezium.oldkey"


@dataclass
class QueueMessage:
    """A message. ``partition`` None: Kafka's client chooses it by the key."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    rows: int
    table: str
    pos: int
    """Of the event in the source's file."""
    headers: list[tuple[str, bytes]] | None = None


class MessageWriter:
    """Writes the messages of one destination. Not safe in several threads at once."""

    def __init__(self, options: MessageOptions, *, max_bytes: int, with_ddl: bool = True) -> None:
        """``max_bytes``: size at which a message of ``canal-protobuf`` ends; ``with_ddl``: whether statements become
        messages, in Canal's formats."""
        self.options = options
        self.definitions = DefinitionSet(options)
        self._form = _FORMS[options.format]
        self._max_bytes = max_bytes
        self._with_ddl = with_ddl and options.format != "debezium-json"
        self._out = np.empty(_FIRST_OUT_BYTES, dtype=np.uint8)
        self._messages = r.Message.array(_MOST_MESSAGES)
        self._progress = r.MessageProgress.new()
        self._parts = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self._cells = r.Cell.array(2)
        self._entry = r.EntryParts.new()

    def begin(self) -> None:
        """Forgets what it knows of earlier entries, before the first ones of a batch."""
        self._entry.numbers[:] = 0

    def messages(self, taken: Taken, batch: int) -> Iterator[list[QueueMessage]]:
        """Yields the messages of entries, some at a time. Raises what :class:`DefinitionSet` raises; UnsupportedError
        for an entry that is larger than an array may be."""
        at, end = 0, taken.size
        now_us = time.time_ns() // 1000
        while at < end:
            if len(self._cells) < 2 * self.definitions.most_columns:
                self._cells = r.Cell.array(2 * self.definitions.most_columns)
            source = r.MessageSource(taken.out, self._entry, self.definitions.arrays)
            output = r.MessageOutput(self._out, self._messages, self._progress, self._cells, self._parts)
            status, at = m.put_messages(source, at, end, output, self._form, batch, now_us, self.options.tombstones)
            if status == r.NEED_DEFINITION:
                self.definitions.add(self._entry, taken.out)
            elif status == r.FULL and self._progress.count == 0:
                self._grow(taken)
            elif status == MORE_ROWS:
                self._parts = np.zeros(2 * len(self._parts), dtype=np.int64)
            elif status in (r.OK, r.FULL):
                yield from self._flush(batch)
            elif status == r.STATEMENT:
                yield from self._flush(batch)
                message = self._statement(taken, batch)
                if message is not None:
                    yield [message]
                at = int(r.read_entry.py_func(taken.out, at, self._entry))
            else:
                raise self._fault(int(status), taken)

    def _flush(self, batch: int) -> Iterator[list[QueueMessage]]:
        count = int(self._progress.count)
        if not count:
            return
        raw = self._out[: int(self._progress.end)].tobytes()
        table = self._messages[:count].view(np.int64).reshape(count, -1)
        self._progress.numbers[:] = 0
        yield self._packed(raw, table, batch) if self._form == m.RAW else self._listed(raw, table)

    def _listed(self, raw: bytes, table: Longs) -> list[QueueMessage]:
        topics, names = self.definitions.topics, self.definitions.names
        messages = []
        for start, end, key, key_end, number_, part, rows, other, other_end, kind, pos in table.tolist():
            message = QueueMessage(
                topics[number_],
                None if part < 0 else part,
                None if key < 0 else raw[key:key_end],
                None if start < 0 else raw[start:end],
                rows,
                names[number_],
                pos,
            )
            if kind:
                name = _NEW_KEY if kind == r.HAS_NEW_KEY else _OLD_KEY
                message.headers = [(name, raw[other:other_end])]
            messages.append(message)
        return messages

    def _packed(self, raw: bytes, table: Longs, batch: int) -> list[QueueMessage]:
        """Canal's packets: entries of one topic and partition together, until they have ``max_bytes``."""
        topics, names = self.definitions.topics, self.definitions.names
        open_: dict[tuple[str, int], tuple[list[bytes], QueueMessage]] = {}
        sizes: dict[tuple[str, int], int] = {}
        done: list[QueueMessage] = []

        def close(place: tuple[str, int]) -> None:
            parts, message = open_.pop(place)
            message.value = packet(batch, b"".join(parts))
            done.append(message)

        columns = [r.Message.index_of(name) for name in ("start", "end", "table", "partition", "rows", "pos")]
        for start, end, number_, part, rows, pos in table[:, columns].tolist():
            place = (topics[number_], part)
            if place in open_ and sizes[place] + end - start > self._max_bytes - _MESSAGE_ROOM:
                close(place)
            if place not in open_:
                open_[place] = [], QueueMessage(place[0], part, None, None, 0, names[number_], pos)
                sizes[place] = 0
            parts, message = open_[place]
            parts.append(raw[start:end])
            message.rows += rows
            sizes[place] += end - start
        for place in list(open_):
            close(place)
        return done

    def _statement(self, taken: Taken, batch: int) -> QueueMessage | None:
        """The message of an entry without rows: a DDL statement, or the end of an XA transaction."""
        if not self._with_ddl:
            return None
        entry = self._entry
        header = parsed(Header, _part(taken, entry.header, entry.header_length))
        value = parsed(RowChange, _part(taken, entry.value, entry.value_length))
        database, table = header.schema_name, header.table_name
        topic = self.options.rules.topic_of(database, table)
        partition = 0 if self.options.rules.partition_hash is not None else self.options.rules.partition
        name, pos = f"{database}.{table}", int(entry.pos)
        if self._form == m.RAW:
            raw = taken.out[int(entry.start) : int(entry.end)].tobytes()
            return QueueMessage(topic, partition, None, packet(batch, data(2, raw)), 0, name, pos)
        flat = {
            "data": None,
            "database": database,
            "es": int(entry.time),
            "gtid": header.gtid,
            "id": batch,
            "isDdl": value.is_ddl,
            "mysqlType": None,
            "old": None,
            "pkNames": None,
            "sql": value.sql,
            "sqlType": None,
            "table": table,
            "ts": time.time_ns() // 1_000_000,
            "type": _TYPES.get(int(entry.change), "QUERY"),
        }
        text = json.dumps(flat, ensure_ascii=False, separators=(",", ":")).encode()
        return QueueMessage(topic, partition, None, text, 0, name, pos)

    def _grow(self, taken: Taken) -> None:
        if len(self._out) >= MOST_OUT_BYTES:
            raise UnsupportedError(
                f"the messages of one row event have more than {MOST_OUT_BYTES} bytes",
                place=self._place(taken),
                remedy="Leave the table out by mq.filter.",
            )
        self._out = np.empty(min(2 * len(self._out), MOST_OUT_BYTES), dtype=np.uint8)
        self._progress.numbers[:] = 0

    def _fault(self, status: int, taken: Taken) -> Exception:
        what = "a value has another text than its type allows" if status == r.BAD_TEXT else "an entry has other columns"
        return UnsupportedError(
            f"{what} (column {int(self._progress.err_column)})" if status == r.BAD_TEXT else what,
            place=self._place(taken),
            remedy="This is a fault of Towpath; report it. The format canal-json shows texts as they are.",
        )

    def _place(self, taken: Taken) -> str:
        start, size = int(self._entry.name), int(self._entry.name_length)
        names = parsed(Header, taken.out[start : start + size].tobytes())
        return f"table {names.schema_name}.{names.table_name}, position {int(self._entry.pos)}"


def packet(batch: int, entries: bytes) -> bytes:
    """Returns Canal's packet ``MESSAGES``, as its MQ consumers read it. ``entries``: fields ``messages``."""
    return _PACKET_HEAD + data(5, number(1, batch) + entries)


def _part(taken: Taken, start: int, length: int) -> bytes:
    return taken.out[start : start + length].tobytes()


__all__ = ["MessageWriter", "QueueMessage", "packet"]
