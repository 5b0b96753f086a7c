"""The log that a stream's capture appends to: whole transactions are put into event stores.

Capture appends bytes as they come, and says by index entries where transactions begin and end
(:class:`~cdc.capture.sink.CaptureLog`). :class:`CaptureBuffer` holds the bytes until a transaction is whole. Then it
puts it into the ring of each reader (:class:`RingLog`), or into a log on a disk that all readers share
(:class:`DiskLog`).
"""

from __future__ import annotations

import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from cdc.base.errors import CdcError, StoreClosedError, StoreLimitError
from cdc.base.log import get_logger
from cdc.binlog.entry import Entries, format_gtid
from cdc.binlog.events import parse_header
from cdc.event_store.memory_store import MemoryStore
from cdc.event_store.transaction import SourceFile, Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.meta import HistoryMark
from cdc.store.formats import layout
from cdc.store.formats.state import StoreLock, TableNumbers
from cdc.store.retention.disk import FillLevel
from cdc.store.writer.flush import LogEnd

_STATEMENT_END = 1
"""STMT_END_F in the flags of a row event."""
_FLAGS_AT = 25
_TELL_S = 60.0
"""The time after which a capture that waits for a reader says so, again and again."""
log = get_logger(__name__)


class CaptureBuffer(ABC):
    """Collects the bytes of transactions. Used by capture's thread alone, except for :meth:`mark`."""

    def __init__(self, path: Path, tables: TableNumbers, most_bytes: int, on_begin: Callable[[int], None]) -> None:
        """``most_bytes``: the size of the largest transaction. ``on_begin`` is called with the seq after which capture
        begins, before anything is put."""
        self.path, self.tables = path, tables
        self._most_bytes = most_bytes
        self._on_begin: Callable[[int], None] | None = on_begin
        self._source: SourceFile | None = None
        self._buffer = bytearray()
        self._base = 0
        """The offset of the buffer's first byte in capture's output."""
        self._end = 0
        """The offset behind the last whole transaction."""
        self._mark: HistoryMark | None = None
        self._names = lru_cache(maxsize=1024)(tables.in_mask)

    @abstractmethod
    def put(self, transactions: Sequence[Transaction]) -> None:
        """Puts transactions; waits for room. Raises StoreClosedError once the stream is closed."""

    @property
    def mark(self) -> HistoryMark | None:
        """The mark of the newest transaction that was put."""
        return self._mark

    def begin(self, epoch: int, file: str, pos: int, format_description: bytes, server_id: int) -> int:
        source = SourceFile(epoch, file, format_description, server_id)
        if source != self._source:
            self._source = source
        return self._restart()

    def roll(self, epoch: int, pos: int) -> int:
        return self._restart()

    def _restart(self) -> int:
        self._buffer.clear()
        self._base = self._end = 0
        return 0

    def append(self, data: memoryview, boundary: int = 0) -> None:
        size = self._base + len(self._buffer) + len(data) - max(boundary, self._end)
        if size > self._most_bytes:
            raise self._too_large()
        self._buffer += data

    def _too_large(self) -> StoreLimitError:
        file = "" if self._source is None else self._source.name
        return StoreLimitError(
            f"a transaction has more than {self._most_bytes:,} bytes, which is what this stream takes into memory",
            place=f"{file}, after {self.last_seq or 0}",
            remedy="Pass a larger max_transaction_bytes if the machine has the memory. Nothing was left out.",
        )

    def publish(self, entries: Entries) -> None:
        if not len(entries):
            return
        assert self._source is not None
        if self._on_begin is not None:
            self._on_begin(int(entries["seq"][0]) - (1 if int(entries["length"][0]) else 0))
            self._on_begin = None
        source, names = self._source, self._names
        transactions: list[Transaction] = []
        is_too_large = False
        end = self._base
        with memoryview(self._buffer) as view:
            columns = (entries[name].tolist() for name in ("offset", "length", "table_mask"))
            for number, (offset, length, mask) in enumerate(zip(*columns, strict=True)):
                if length > self._most_bytes:  # it came at once with others
                    is_too_large = True
                    break
                at = offset - self._base if length else 0
                data = bytes(view[at : at + length])
                transactions.append(Transaction(entries[number : number + 1], data, source, names(mask)))
                end = max(end, offset + length if length else 0)
        del self._buffer[: end - self._base]
        self._base = self._end = end
        if transactions:
            self.put(transactions)
            self._mark = mark_of(transactions[-1])
        if is_too_large:
            raise self._too_large()

    def read_unfinished(self, offset: int) -> Iterator[bytes]:
        yield bytes(self._buffer[offset - self._base :])

    def drop_unfinished(self, begin: int | None = None) -> None:
        del self._buffer[max(self._end if begin is None else begin, self._end) - self._base :]

    def set_statement_end(self, offset: int, length: int) -> int:
        at = offset - self._base
        self._buffer[at + _FLAGS_AT] |= _STATEMENT_END
        with memoryview(self._buffer) as view:
            crc = zlib.crc32(view[at : at + length - 4])
        self._buffer[at + length - 4 : at + length] = crc.to_bytes(4, "little")
        return crc

    @property
    @abstractmethod
    def last_seq(self) -> int | None: ...


class RingLog(CaptureBuffer):
    """Puts transactions into the ring of each reader, which waits for the slowest of them."""

    def __init__(
        self,
        path: Path,
        destination: str,
        rings: Mapping[str, MemoryStore],
        cursor: Callable[[str], int],
        *,
        most_bytes: int,
        most_events: int,
        lower_case_table_names: int,
        on_begin: Callable[[int], None],
    ) -> None:
        """``rings``: one for each reader. ``cursor`` returns a reader's cursor: earlier transactions are not put.
        ``most_events``: events that are put at once, unless a transaction has more. ``path``: a folder for tables and
        their definitions, which this locks."""
        layout.create(path, destination, lower_case_table_names=lower_case_table_names)
        self._lock: StoreLock | None = StoreLock(path)
        super().__init__(path, TableNumbers(path), most_bytes, on_begin)
        self._rings, self._cursor = rings, cursor
        self._most_events = most_events
        self._last_seq: int | None = None
        self._count = 0

    def put(self, transactions: Sequence[Transaction]) -> None:
        first = events = 0
        for number, transaction in enumerate(transactions):
            count = transaction.events or 1
            if events and events + count > self._most_events:
                self._put(transactions[first:number])
                first, events = number, 0
            events += count
        self._put(transactions[first:])
        self._count += len(transactions)

    def _put(self, transactions: Sequence[Transaction]) -> None:
        for reader, ring in self._rings.items():
            acked, new = self._cursor(reader), transactions
            if transactions[0].seq <= acked:
                new = [transaction for transaction in transactions if transaction.seq > acked]
            while not ring.put(new, timeout_s=_TELL_S).stored:
                log.warning(
                    "the ring is full: nothing is read from the source until this reader acks",
                    reader=reader,
                    held_events=ring.metrics().held_events,
                    held_bytes=ring.metrics().held_bytes,
                )
        self._last_seq = transactions[-1].seq

    @property
    def last_seq(self) -> int | None:
        return self._last_seq

    @property
    def published(self) -> int:
        return self._count

    @property
    def visible(self) -> int:
        return self._count

    @property
    def flushed(self) -> LogEnd:
        return LogEnd("", 0, self._last_seq or 0)

    @property
    def written(self) -> LogEnd:
        return self.flushed

    def wait_flushed(self, after_seq: int, timeout_s: float | None = None) -> bool:
        return True

    def flush(self) -> None:
        """Everything that was put is there."""

    def close(self) -> None:
        """Releases the folder. The rings stay open: their readers may still take what they have."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class DiskLog(CaptureBuffer):
    """Puts transactions into a log on a disk, whose flush policy says when readers see them."""

    def __init__(self, puts: TransactionLog, *, most_bytes: int, on_begin: Callable[[int], None]) -> None:
        super().__init__(puts.path, puts.tables, most_bytes, on_begin)
        self._log = puts

    def put(self, transactions: Sequence[Transaction]) -> None:
        self._log.put(transactions, timeout_s=None)

    @property
    def last_seq(self) -> int | None:
        return self._log.last_seq

    @property
    def published(self) -> int:
        return self._log.published

    @property
    def visible(self) -> int:
        return self._log.visible

    @property
    def flushed(self) -> LogEnd:
        return self._log.flushed

    @property
    def written(self) -> LogEnd:
        return self._log.written

    def wait_flushed(self, after_seq: int, timeout_s: float | None = None) -> bool:
        return self._log.wait_flushed(after_seq, timeout_s)

    def flush(self) -> None:
        self._log.flush()

    def close(self) -> None:
        """Flushes the log. It stays open for the readers."""
        self._log.flush()


class StreamRoom:
    """The room of a stream: there always is some, because a put waits for it."""

    def tick(self, segment: str | None = None) -> None:
        """Does nothing: readers clean up when they ack."""

    def level(self, size_bytes: int = 0) -> FillLevel:
        return FillLevel.OK

    def wait_for_room(self, stop: threading.Event) -> bool:
        return True

    def error(self) -> CdcError:
        return StoreClosedError("the stream is closed")


def mark_of(transaction: Transaction) -> HistoryMark:
    """Returns the mark by which a transaction is recognised at its source."""
    created_s = parse_header(transaction.source.format_description).timestamp
    commit_time_us = transaction.commit_time_us
    return HistoryMark(
        seq=transaction.seq,
        gtid=format_gtid(transaction.entry[0]),
        file_created_s=created_s or None,
        commit_time_us=commit_time_us if commit_time_us > 0 else None,
        server_id=parse_header(transaction.data).server_id if transaction.data else None,
    )
