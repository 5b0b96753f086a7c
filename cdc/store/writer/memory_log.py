"""The relay log of a store in memory: it counts what readers have not acked, and limits the size of a transaction."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import NamedTuple

from cdc.base.errors import StoreLimitError
from cdc.binlog.entry import ENTRY_SIZE, Entries
from cdc.store.writer.log import RelayLog


class _Mark(NamedTuple):
    """The end of transactions that were published together, and the totals up to there."""

    seq: int
    bytes: int
    events: int


class MemoryLog(RelayLog):
    """A relay log in a folder in memory, of which :attr:`held_bytes` and :attr:`held_events` are not acked.

    Transactions that are in the folder when it is opened count as one. Each counts 128 bytes more than its events, for
    its index entry.
    """

    def __init__(
        self,
        path: Path,
        *,
        destination: str,
        segment_bytes: int,
        max_transaction_bytes: int,
        lower_case_table_names: int = 0,
    ) -> None:
        super().__init__(
            path,
            destination=destination,
            segment_bytes=segment_bytes,
            lower_case_table_names=lower_case_table_names,
        )
        self._max_transaction_bytes = max_transaction_bytes
        self._bytes = self._events = 0
        self._released = _Mark(0, 0, 0)
        self._marks: deque[_Mark] = deque()

    @property
    def total_bytes(self) -> int:
        """Bytes that were published since the log was opened."""
        return self._bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of transactions that were published and are not released."""
        return self._bytes - self._released.bytes

    @property
    def held_events(self) -> int:
        """Events of transactions that were published and are not released."""
        return self._events - self._released.events

    def count(self, size_bytes: int, events: int, last_seq: int) -> None:
        """Adds the transactions that were in the folder when the log was opened."""
        self._bytes += size_bytes
        self._events += events
        self._marks.append(_Mark(last_seq, self._bytes, self._events))

    def release(self, seq: int) -> None:
        """Says that all readers have acked everything up to ``seq``."""
        while self._marks and self._marks[0].seq <= seq:
            self._released = self._marks.popleft()

    def append(self, data: memoryview, boundary: int = 0) -> None:
        """As :meth:`RelayLog.append`. Raises StoreLimitError, before anything is written, for a transaction that is
        larger than the limit or than the memory that is left."""
        size = self._current.size
        begin = max(boundary, self._tail.written.end_offset)
        if size + len(data) - begin > self._max_transaction_bytes:
            raise StoreLimitError(
                f"a transaction has more than {self._max_transaction_bytes:,} bytes, which is what the store in memory "
                "takes (store.max_transaction_bytes)",
                place=f"{self._current.file}, after {self.last_seq or 0}",
                remedy="Raise store.max_transaction_bytes, if the machine has the memory, or use store.kind: file, "
                "which takes any transaction. Nothing was left out.",
            )
        super().append(data, boundary)

    def publish(self, entries: Entries) -> None:
        super().publish(entries)
        entries = entries[entries["length"] > 0]  # a position takes no room, and nobody acks it
        if not len(entries):
            return
        self._bytes += int(entries["length"].sum()) + ENTRY_SIZE * len(entries)
        self._events += int(entries["events"].sum())
        self._marks.append(_Mark(int(entries["seq"][-1]), self._bytes, self._events))
