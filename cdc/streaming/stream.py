"""A stream: a capture in a thread of the program, an event store for its transactions, and readers."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.closing import Closing
from cdc.base.errors import LeaseHeldError, UsageError
from cdc.capture.sink import CaptureLog, Sink
from cdc.config import DestinationConfig
from cdc.disk.durable import locked, make_folder
from cdc.event_store.contract import EventStore
from cdc.event_store.file_store import RelayLogStore
from cdc.event_store.memory_store import MemoryStore
from cdc.event_store.transaction_log import TransactionLog
from cdc.meta import HistoryMark, Meta, open_meta
from cdc.source.connection import place_of
from cdc.store.formats.layout import list_segments, schema_files, schemas_folder
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import remove_until
from cdc.streaming.capture_log import DiskLog, RingLog, StreamRoom
from cdc.streaming.capture_thread import CaptureThread
from cdc.streaming.changes import Transaction
from cdc.streaming.cursors import Cursors
from cdc.streaming.decoder import BatchDecoder
from cdc.streaming.reader import Reader
from cdc.streaming.settings import FileStore, MemoryRing, at_folder

if TYPE_CHECKING:
    from cdc.capture import CaptureProgress

DEFAULT_READER = "default"
_EVENTS_AT_ONCE = 1024
"""Events that are taken from a store on a disk at once; a row event has up to 8 KiB by the server's default."""
_PARTS = 4
"""A get takes, and a put brings, this part of a ring."""


class Stream(Closing):
    """The changes of a server as they come. Made by :func:`cdc.stream`; iterating it iterates its first reader.

    Close it, best by ``with``: capture's thread ends then, and the cursors are stored. Also Ctrl-C and the end of the
    program close it.
    """

    def __init__(
        self,
        config: DestinationConfig,
        store: MemoryRing | FileStore,
        *,
        state: Path | None,
        readers: Sequence[str],
        follow: bool,
    ) -> None:
        """See :func:`cdc.stream`, which has checked the arguments."""
        self._closing = ExitStack()
        self._readers: dict[str, Reader] = {}
        self._thread: CaptureThread | None = None
        self._ring_log: RingLog | None = None
        self._is_closed = False
        try:
            self._open(config, store, state, tuple(readers), follow)
        except BaseException:
            self.close()
            raise

    def _open(
        self,
        config: DestinationConfig,
        store: MemoryRing | FileStore,
        state: Path | None,
        names: tuple[str, ...],
        follow: bool,
    ) -> None:
        if state is None:
            folder = Path(tempfile.mkdtemp(prefix="towpath-stream-"))
            self._closing.callback(shutil.rmtree, folder, ignore_errors=True)
        else:
            folder = state.absolute()
            make_folder(folder)
        self._lock(folder)
        # A ring's folder is emptied at each start, so it is not the one of a store on disk.
        self._config = config = at_folder(config, folder, "store" if isinstance(store, FileStore) else "ring")
        self._meta: Meta = open_meta(config)
        self._closing.callback(self._meta.close)
        cursors = self._cursors = Cursors(folder / "cursors", self._meta, names)
        self._closing.callback(cursors.close)
        stores, log = self._on_disk(names, store) if isinstance(store, FileStore) else self._in_rings(names, store)
        sink = Sink(log=log, room=StreamRoom(), begin_seq=self._begin_seq(names), newest=self._newest)
        self._thread = CaptureThread(config, sink, follow=follow)
        at_once = _EVENTS_AT_ONCE if isinstance(store, FileStore) else max(1, store.buffer_size // _PARTS)
        verified = isinstance(store, MemoryRing)
        place = f"source {place_of(config.source)}"
        for name in names:
            self._readers[name] = Reader(
                name,
                stores[name],
                at_once,
                cursors,
                BatchDecoder(config.store.path, log.tables, place, verified=verified),
                self._thread,
                self._tidy,
            )
        atexit.register(self.close)
        self._thread.start()

    def _lock(self, folder: Path) -> None:
        try:
            self._closing.enter_context(locked(folder / "lock", "another stream"))
        except LeaseHeldError as error:
            raise LeaseHeldError(
                f"another stream has this folder open ({error.message})",
                place=str(folder),
                remedy="Stop it first, or pass another folder as state.",
            ) from None

    # --- the two kinds of stores

    def _in_rings(self, names: tuple[str, ...], settings: MemoryRing) -> tuple[dict[str, EventStore], CaptureLog]:
        folder = self._config.store.path
        # What an earlier program has left there describes a ring that is gone.
        shutil.rmtree(folder, ignore_errors=True)
        rings = {
            name: MemoryStore(
                buffer_size=settings.buffer_size,
                buffer_unit_bytes=settings.buffer_unit_bytes,
                batch_mode=settings.batch_mode,
                takes_larger=True,
            )
            for name in names
        }
        log = RingLog(
            folder,
            self._config.name,
            rings,
            self._cursors.cursor,
            most_bytes=settings.max_transaction_bytes,
            most_events=max(1, settings.buffer_size // _PARTS),
            lower_case_table_names=self._config.tables.lower_case_table_names,
            on_begin=self._begin,
        )
        self._closing.callback(log.close)
        self._ring_log = log
        return dict(rings), log

    def _on_disk(self, names: tuple[str, ...], settings: FileStore) -> tuple[dict[str, EventStore], CaptureLog]:
        config = self._config
        log = TransactionLog(
            config.store.path,
            destination=config.name,
            segment_bytes=settings.segment_bytes,
            policy=settings.policy,
            lower_case_table_names=config.tables.lower_case_table_names,
        )
        self._closing.callback(log.close)
        is_new = log.last_seq is None
        for name in names if not is_new else ():
            if not self._cursors.cursor(name):  # a reader that is new begins with the oldest transaction that is kept
                self._cursors.update_cursor(name, _oldest_seq(config.store.path))
        stores: dict[str, EventStore] = {
            name: RelayLogStore(log, meta=_NoCursors(self._cursors), subscriber=name, owns_log=False) for name in names
        }
        return stores, DiskLog(log, most_bytes=settings.max_transaction_bytes, on_begin=self._begin)

    def _newest(self) -> HistoryMark | None:
        return None if self._ring_log is None else self._ring_log.mark

    def _begin_seq(self, names: tuple[str, ...]) -> int | None:
        """Returns the oldest cursor; None if no reader has begun."""
        return min((seq for name in names if (seq := self._cursors.cursor(name))), default=None)

    def _begin(self, seq: int) -> None:
        """Gives readers that are new the position at which capture begins, so that a restart begins there too."""
        for name in self._readers:
            if not self._cursors.cursor(name):
                self._cursors.update_cursor(name, seq)
        self._cursors.store()

    def _tidy(self) -> None:
        """Removes what all readers have acked: segments, and definitions of tables."""
        acked = min(subscription.position() for subscription in self._meta.read().subscriptions.values())
        if not acked:
            return
        path = self._config.store.path
        if self._ring_log is None:
            if len(list_segments(path)) > 1:
                remove_until(path, acked)
            return
        for (_, file), (later, _) in pairwise(schema_files(schemas_folder(path))):
            if later <= acked:
                file.unlink(missing_ok=True)

    # --- for programs

    def reader(self, name: str) -> Reader:
        """Returns a reader by its name. Raises UsageError if the stream was not opened with it."""
        if name not in self._readers:
            raise UsageError(
                f"this stream has no reader {name!r}",
                place="cdc.stream",
                remedy=f"Pass it in readers, which are {', '.join(self._readers)}.",
            )
        return self._readers[name]

    @property
    def readers(self) -> tuple[str, ...]:
        """The names of the readers."""
        return tuple(self._readers)

    @property
    def _first(self) -> Reader:
        return next(iter(self._readers.values()))

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._first)

    def get(self, timeout_s: float | None = None) -> Transaction | None:
        """:meth:`Reader.get` of the first reader."""
        return self._first.get(timeout_s)

    def rollback(self) -> None:
        """Makes all that the first reader has not acked come again."""
        self._first.rollback()

    @property
    def progress(self) -> CaptureProgress | None:
        """Capture's position and counters, about once a second."""
        return None if self._thread is None else self._thread.progress

    def forget(self, name: str) -> None:
        """Removes the cursor of a reader that is not open: it holds nothing back any more, and begins anew if it is
        opened again. Raises UsageError if it is open."""
        if name in self._readers:
            raise UsageError(
                f"the reader {name!r} is open",
                place="cdc.stream",
                remedy="Open the stream without it first.",
            )
        with self._meta.change() as state:
            state.subscriptions.pop(name, None)
        self._cursors.remove(name)

    def close(self) -> None:
        """Ends capture, stores the cursors, and closes the readers. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.stop()
        for reader in self._readers.values():
            reader.close()
        if self._thread is not None:
            self._thread.join()
        self._closing.close()


def _oldest_seq(store: Path) -> int:
    reader = StoreReader(store)
    beginning = reader.beginning()
    return max(reader.removed_seq(), 0 if beginning is None else beginning.seq)


class _NoCursors:
    """A store's view of the cursors: the reader itself has stored what it acks there."""

    def __init__(self, cursors: Cursors) -> None:
        self._cursors = cursors

    def cursor(self, name: str) -> int:
        return self._cursors.cursor(name)

    def update_cursor(self, name: str, acked_seq: int) -> None:
        """Does nothing: :meth:`Reader.ack` was there before."""
