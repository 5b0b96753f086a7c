"""What a put is made of beside the flush: transactions made into bytes and entries, standbys, and futures."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from queue import SimpleQueue
from typing import NamedTuple, Protocol, cast

from cdc.binlog.entry import EntryFlag
from cdc.binlog.events import stored_format_description
from cdc.errors import UsageError
from cdc.log import get_logger
from cdc.positions import OFFSET_BITS, format_seq, make_seq, split_file_name
from cdc.store.transaction import PutStatus, SourceFile, Transaction
from cdc.store.writer.flush import Flushed, Work
from cdc.store.writer.latency import LatencyFigures

log = get_logger(__name__)

_U32, _U64, _I64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<q")
_OFFSET_AT, _LENGTH_AT, _STORE_TIME_AT, _FLAGS_AT, _MASK_AT, _CRC_AT = 8, 16, 32, 48, 80, 124
"""Places in an entry, see :data:`cdc.binlog.entry.ENTRY`."""


class Replication(Protocol):
    """A standby, or several, as a put sees them (RocketMQ's ``HAService``)."""

    def wait(self, segment_name: str, end_offset: int, seq: int, timeout_s: float | None) -> PutStatus:
        """Wait until a standby holds the log up to here. PUT_OK; FLUSH_SLAVE_TIMEOUT when ``timeout_s`` is over (None:
        no limit); SLAVE_NOT_AVAILABLE, at once, where none follows or it is too far behind. Called from many threads;
        with ``flush: sync`` after these bytes are on the disk here."""
        ...


@dataclass(frozen=True)
class RelayLogMetrics:
    """Counters of a relay log's writer, since it was opened."""

    puts: LatencyFigures
    """Calls that waited until they were answered, and how long they took."""
    put_transactions: int
    put_bytes: int
    put_timeouts: int
    """Answered with another status than PUT_OK."""
    flushes: LatencyFigures
    """Calls of fdatasync."""
    waiting_bytes: int
    """Handed in, and not durable yet."""


class Raw(NamedTuple):
    """A transaction whose entry is open for changes."""

    seq: int
    entry: bytearray
    transaction: Transaction


def above(transactions: Sequence[Transaction], seq: int) -> list[Raw]:
    """Those above ``seq``, in order, checked. Raises UsageError for what is not what it says."""
    found: list[Raw] = []
    source: SourceFile | None = None
    base = 0
    for transaction in transactions:
        entry = bytearray(transaction.entry.tobytes())
        own = int.from_bytes(entry[:8], "little")
        if own <= seq:
            continue
        if transaction.source is not source:
            source = transaction.source
            base = file_base(source)
        if own >> OFFSET_BITS != base >> OFFSET_BITS:
            raise _wrong(transaction, own, f"is not of the source file {source.name} in epoch {source.epoch}")
        length = len(transaction.data)
        if int.from_bytes(entry[_LENGTH_AT : _LENGTH_AT + 8], "little") != length:
            raise _wrong(transaction, own, f"has {length} bytes, and its entry says otherwise")
        if not length and not entry[_FLAGS_AT] & EntryFlag.POSITION:
            raise _wrong(transaction, own, "has no bytes")
        if not transaction.tables and any(entry[_MASK_AT : _MASK_AT + 8]):
            raise _wrong(transaction, own, "does not name the tables that its entry marks")
        found.append(Raw(own, entry, transaction))
        seq = own
    return found


@lru_cache(maxsize=64)
def file_base(source: SourceFile) -> int:
    """The seq of a source file's byte 0. Raises where a segment could not begin with its format description."""
    stored_format_description(source.format_description)
    return make_seq(source.epoch, split_file_name(source.name)[1], 0)


def seal_entry(entry: bytearray, offset: int, store_time_us: int, table_mask: int) -> None:
    """Fill in what the store knows, and the checksum."""
    _U64.pack_into(entry, _OFFSET_AT, offset)
    _I64.pack_into(entry, _STORE_TIME_AT, store_time_us)
    _U64.pack_into(entry, _MASK_AT, table_mask)
    _U32.pack_into(entry, _CRC_AT, zlib.crc32(memoryview(entry)[:_CRC_AT]))


def _wrong(transaction: Transaction, seq: int, what: str) -> UsageError:
    return UsageError(
        f"the transaction {what}",
        place=f"put of seq {seq} ({format_seq(seq)}, {transaction.source.name})",
        remedy="Put transactions as capture or a store's get makes them.",
    )


class _Promise(NamedTuple):
    future: Future[PutStatus]
    work: Work
    end: Flushed
    deadline: float | None


class Acknowledger:
    """Completes the futures of asynchronous puts, in their order, on a thread of its own: a callback that waits, even
    for another put, holds up later futures only, never a flush."""

    def __init__(self, settle: Callable[[Work, Flushed, float | None], PutStatus]) -> None:
        """``settle`` waits for work and answers what became of it."""
        self._settle = settle
        self._queue: SimpleQueue[_Promise | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def promise(self, work: Work, end: Flushed, deadline: float | None) -> Future[PutStatus]:
        """A future of work that was handed to the flusher. Called in the order of the puts, under the log's lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="acknowledger", daemon=True)
            self._thread.start()
        future: Future[PutStatus] = Future()
        self._queue.put(_Promise(future, work, end, deadline))
        return future

    def close(self) -> None:
        """End once all futures are complete; called from one's callback, without waiting for those behind it."""
        if self._thread is not None:
            self._queue.put(None)
            if self._thread is not threading.current_thread():
                self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (promise := self._queue.get()) is not None:
            future, work, end, deadline = promise
            if not future.set_running_or_notify_cancel():
                continue
            status: PutStatus | None = None
            error: BaseException | None = None
            try:
                status = self._settle(work, end, deadline)
            except BaseException as met:  # noqa: BLE001  # it belongs to whoever asks for the result
                error = met
            try:
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(cast(PutStatus, status))
            except BaseException:  # a callback that would end this thread; those behind it want their answers
                log.exception("a callback of a put's future failed")
