"""The values of the event store's contract: transactions, their positions, and the batches of a get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cdc.binlog.entry import Entries, EntryFlag, format_gtid
from cdc.binlog.positions import split_seq


@dataclass(frozen=True)
class SourceFile:
    """The source's binlog file that transactions come from: what the header of their segment is made of."""

    epoch: int
    name: str
    """Such as ``binlog.000012``; Canal calls it journal."""
    format_description: bytes
    """The event as received, checksum included."""
    server_id: int


@dataclass(frozen=True)
class LogPosition:
    """The end of a transaction (Canal's ``LogPosition``). A restart may begin here, never inside a transaction."""

    seq: int
    file: str
    pos: int
    commit_time_us: int
    """Microseconds since 1970, UTC."""
    server_id: int
    gtid: str | None

    @property
    def identity(self) -> tuple[int, str, int, int]:
        """The fields by which two positions are compared: the seq, and Canal's journal, offset and time."""
        return self.seq, self.file, self.pos, self.commit_time_us

    def __str__(self) -> str:
        return f"{self.file}:{self.pos} (seq {self.seq})"


@dataclass(frozen=True)
class Transaction:
    """A whole transaction, events as received."""

    entry: Entries
    """Its index entry, shape (1,), dtype :data:`cdc.binlog.entry.ENTRY`; the store sets the offset in it."""
    data: bytes
    source: SourceFile
    tables: tuple[str, ...] = ()
    """``db.table`` of each table with rows, or that the DDL statement names."""

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

    @cached_property  # making a position takes longer than the rest of a put
    def position(self) -> LogPosition:
        entry: np.void = self.entry[0]
        return LogPosition(
            seq=self.seq,
            file=self.source.name,
            pos=split_seq(self.seq).offset,
            commit_time_us=self.commit_time_us,
            server_id=self.source.server_id,
            gtid=format_gtid(entry),
        )


@dataclass(frozen=True)
class Events:
    """The batch of a get: whole transactions in order; none if there was nothing in time."""

    transactions: Sequence[Transaction]
    start: LogPosition | None = None
    """Position of the first transaction."""
    end: LogPosition | None = None
    """Position of the last transaction."""
    ack: LogPosition | None = None
    """The position to ack: the end of the last transaction, so a restart never begins inside one."""


@dataclass(frozen=True)
class StoreMetrics:
    """Counters of a store since it was opened; sizes at this moment. Times in seconds, memory in bytes."""

    put_transactions: int = 0
    put_rows: int = 0
    put_bytes: int = 0
    get_transactions: int = 0
    get_bytes: int = 0
    ack_transactions: int = 0
    ack_bytes: int = 0
    held_events: int = 0
    """Events that were put and not acked."""
    held_bytes: int = 0
    put_delay_s: float = 0.0
    """Time between the commit and the put of the newest transaction."""
    get_delay_s: float = 0.0
    ack_delay_s: float = 0.0
    table_rows: dict[str, int] = field(default_factory=dict)
    """Row events put, by table. A transaction of several tables counts under the first one's name."""
    table_delay_s: dict[str, float] = field(default_factory=dict)
    """Time between the commit and the put of the newest transaction, by table (Canal's execution time per table)."""
