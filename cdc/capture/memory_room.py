"""The room in a store in memory: while its buffer is full, capture reads nothing from the source.

The buffer is what the server's clients have not acked. A client acks by moving its cursor in the meta, which capture
looks at when the buffer is full, and when it has got a quarter of it since the last look. Segments that all have acked
are removed then. The server sees by a file in the folder that capture waits, so that a client which waits for a larger
batch than the buffer holds gets what there is.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError, ConfigError, LeaseHeldError, RetryableError
from cdc.base.log import get_logger
from cdc.binlog.entry import ENTRY_SIZE
from cdc.config import DestinationConfig
from cdc.config.memory import full_mark, in_memory, owner_lock, readers_lock
from cdc.disk.durable import locked, storage_errors
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import Holder, RetentionRules, retain
from cdc.store.retention.disk import FillLevel
from cdc.store.writer.memory_log import MemoryLog

if TYPE_CHECKING:
    from cdc.meta import Meta

_LOOK_S = 0.01
"""The interval at which cursors are read while the buffer is full. ZooKeeper answers in a few milliseconds."""
_LOCK_S = 5.0
_TELL_S = 60.0
log = get_logger(__name__)


def require_served(config: DestinationConfig) -> DestinationConfig:
    """Returns the configuration of a store in memory for its capture. Raises ConfigError unless a server runs that owns
    the memory."""
    served = in_memory(config)
    try:
        with locked(owner_lock(served.store.run_folder), "its server"):
            pass
    except LeaseHeldError:
        return served
    except CdcError:
        pass  # there is no such folder
    raise ConfigError(
        "a store in memory is captured by `cdc server` alone, which does not run now or has not opened the destination",
        place=str(config.file),
        remedy="Start `cdc server`, with server.capture: always or subscribed.",
    )


class MemoryRoom:
    """The buffer of a store in memory, for the loop of capture. See
    :class:`~cdc.store.retention.cleaner.LogCleaner`, which stands here for a store on a disk."""

    def __init__(self, config: DestinationConfig, meta: Meta, log: MemoryLog) -> None:
        """Counts what the log has already. Raises DamagedError, StorageError."""
        settings = config.store
        self._store, self._destination = settings.path, config.name
        self._meta, self._log = meta, log
        self._most = settings.buffer_size
        self._in_events = settings.batch_mode == "itemsize"
        if not self._in_events:
            self._most *= settings.buffer_unit_bytes
        self._often = max(1 << 16, min(self._most // 4, 4 << 20))
        """Bytes after which cursors are looked at in any case, so that acked segments go."""
        self._looked_at = 0
        """The amount that had been published at the last look."""
        self._mark, self._lock = full_mark(settings.run_folder), readers_lock(settings.run_folder)
        self._is_full, self._full_since = True, time.monotonic()
        self._tell_full(False)
        self._told_at = float("-inf")
        reader = StoreReader(self._store)
        size_bytes = events = last_seq = 0
        for entries in reader.all_entries():
            transactions = entries[entries["length"] > 0]
            if len(transactions):
                size_bytes += int(transactions["length"].sum()) + ENTRY_SIZE * len(transactions)
                events += int(transactions["events"].sum())
                last_seq = int(transactions["seq"][-1])
        if last_seq:
            log.count(size_bytes, events, last_seq)

    @property
    def _held(self) -> int:
        return self._log.held_events if self._in_events else self._log.held_bytes

    def tick(self, segment: str | None = None) -> None:
        """Looks at the cursors. Called about once a second."""
        self._look()

    def level(self, size_bytes: int = 0) -> FillLevel:
        """Shared memory that is full is an error of the write, not of the buffer."""
        return FillLevel.OK

    def wait_for_room(self, stop: threading.Event) -> bool:
        """Returns whether the buffer has room; if not, waits a moment first. Raises nothing that another look could
        mend."""
        if self._held < self._most:
            if self._log.total_bytes - self._looked_at > self._often:
                self._look()
            self._tell_full(False)
            return True
        self._look()
        if self._held < self._most:
            self._tell_full(False)
            return True
        self._tell_full(True)
        stop.wait(_LOOK_S)
        return False

    def error(self) -> CdcError:
        """Returns the error for a capture that must not wait."""
        return RetryableError(
            f"the buffer of the store in memory is full: clients have not acked {self._held:,} "
            f"{'events' if self._in_events else 'bytes'}",
            place=self._destination,
            remedy="Nothing is lost: the source keeps what was not read yet.",
        )

    def _look(self) -> None:
        """Releases what all subscribers have acked, and removes segments."""
        self._looked_at = self._log.total_bytes
        try:
            with locked(self._lock, "a reader that subscribes", wait_s=_LOCK_S):
                acked = self._acked()
                if acked is None:
                    return
                self._log.release(acked)
                rules = RetentionRules(acked_for_s=-1.0)
                retain(self._store, [Holder("all", acked)], rules, now_us=time.time_ns() // 1000)
        except CdcError as error:
            now = time.monotonic()
            if now - self._told_at > _TELL_S:
                self._told_at = now
                log.warning("cursors cannot be read; the buffer is not emptied", reason=str(error))

    def _acked(self) -> int | None:
        """Returns the seq up to which all subscribers have acked; None without any. One that lies before the store's
        beginning gets nothing any more until it subscribes anew, so it does not count."""
        beginning = StoreReader(self._store).beginning()
        begins = 0 if beginning is None else beginning.seq
        seqs = [subscription.position() for subscription in self._meta.read().subscriptions.values()]
        return min((seq for seq in seqs if seq >= begins), default=None)

    def _tell_full(self, is_full: bool) -> None:
        now = time.monotonic()
        if is_full and self._is_full and now - self._full_since > _TELL_S:
            self._full_since = now
            log.warning(
                "the buffer is full: nothing is read from the source until clients ack",
                held=self._held,
                of=self._most,
                subscribers=sorted(self._meta.read().subscriptions),
            )
        if is_full == self._is_full:
            return
        self._is_full, self._full_since = is_full, now
        with storage_errors(self._mark):
            if is_full:
                self._mark.touch()
            else:
                self._mark.unlink(missing_ok=True)
