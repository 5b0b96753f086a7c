"""A transaction as every store takes it and hands it out, and what it answers to a put."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cdc.binlog.entry import Entries, EntryFlag, format_gtid
from cdc.positions import split_seq


@dataclass(frozen=True)
class SourceFile:
    """The source's binlog file that transactions come from: what a segment has to begin with to be readable."""

    epoch: int
    name: str
    """``binlog.000012``; Canal calls it journal."""
    format_description: bytes
    """The event as received, checksum included."""
    server_id: int


@dataclass(frozen=True)
class Position:
    """A transaction's end: where a restart may begin, never inside one."""

    seq: int
    file: str
    pos: int
    commit_time_us: int
    """Microseconds since 1970, UTC."""
    server_id: int
    gtid: str | None


@dataclass(frozen=True)
class Transaction:
    """A whole transaction, events as received. ``entry`` is its index entry (shape (1,), dtype
    :data:`cdc.binlog.entry.ENTRY`); the offset in it is set by the store."""

    entry: Entries
    data: bytes
    source: SourceFile
    tables: tuple[str, ...] = ()
    """``db.table`` of each table with rows, or named by the DDL statement."""

    @property
    def seq(self) -> int:
        return int(self.entry["seq"][0])

    @property
    def events(self) -> int:
        return int(self.entry["events"][0])

    @property
    def row_events(self) -> int:
        return int(self.entry["row_events"][0])

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def commit_time_us(self) -> int:
        return int(self.entry["commit_time_us"][0])

    @property
    def ddl(self) -> bool:
        return bool(int(self.entry["flags"][0]) & EntryFlag.DDL)

    @cached_property  # what is put in a position takes longer than the rest of a put
    def position(self) -> Position:
        entry: np.void = self.entry[0]
        return Position(
            seq=self.seq,
            file=self.source.name,
            pos=split_seq(self.seq).offset,
            commit_time_us=self.commit_time_us,
            server_id=self.source.server_id,
            gtid=format_gtid(entry),
        )


class PutStatus(enum.Enum):
    """What became of a put (RocketMQ's statuses, and one for a store without room)."""

    PUT_OK = "PUT_OK"
    """Stored as the store promises: on disk (sync), in the page cache (async), at the standby (sync master)."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Written here, but the flush did not end in time; it may still."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """On the disk here; the standby did not confirm it in time."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """On the disk here only: no standby follows, or it is too far behind."""
    STORE_FULL = "STORE_FULL"
    """Not stored: no room within the time-out. The same put may be tried again."""

    @property
    def stored(self) -> bool:
        """Is it in the store, whatever else is known of it?"""
        return self is not PutStatus.STORE_FULL


@dataclass(frozen=True)
class Events:
    """What a get hands out: whole transactions in order, none where there was nothing in time."""

    transactions: Sequence[Transaction]
    start: Position | None = None
    """The first transaction's."""
    end: Position | None = None
    """The last one's."""
    ack: Position | None = None
    """What to ack: the last transaction's end, so that a restart never begins inside one."""


@dataclass(frozen=True)
class StoreMetrics:
    """Counters of a store, since it was opened; sizes as of now. Times in seconds, memory in bytes."""

    put_transactions: int = 0
    put_rows: int = 0
    put_bytes: int = 0
    get_transactions: int = 0
    get_bytes: int = 0
    ack_transactions: int = 0
    ack_bytes: int = 0
    held_events: int = 0
    """Put and not acked."""
    held_bytes: int = 0
    put_delay_s: float = 0.0
    """Between the commit and the put, of the newest transaction."""
    get_delay_s: float = 0.0
    ack_delay_s: float = 0.0
    table_rows: dict[str, int] = field(default_factory=dict)
    """Row events put, by table, where a transaction has a single table; else under the first one's name."""
    table_delay_s: dict[str, float] = field(default_factory=dict)
    """Between the commit and the put of the newest transaction, by table (Canal's execution time per table)."""
