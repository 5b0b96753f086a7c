"""Where captured transactions go: the interface of the log that capture appends to, and of the room in it.

``cdc capture`` appends to the relay log of its destination. A program that captures by itself
(:mod:`cdc.streaming`) hands :class:`~cdc.capture.loop.Capture` a :class:`Sink` of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cdc.base.errors import CdcError
from cdc.binlog.entry import Entries
from cdc.meta import HistoryMark
from cdc.store.formats.state import TableNumbers
from cdc.store.retention.disk import FillLevel
from cdc.store.writer.flush import LogEnd


class CaptureLog(Protocol):
    """The log that capture appends to. :class:`cdc.store.writer.log.RelayLog` says what each method does."""

    path: Path
    """A store's folder, for the files beside the log: tables, definitions of tables, prepared transactions."""
    tables: TableNumbers

    @property
    def last_seq(self) -> int | None: ...
    @property
    def published(self) -> int: ...
    @property
    def visible(self) -> int: ...
    @property
    def flushed(self) -> LogEnd: ...
    @property
    def written(self) -> LogEnd: ...
    def begin(self, epoch: int, file: str, pos: int, format_description: bytes, server_id: int) -> int: ...
    def roll(self, epoch: int, pos: int) -> int: ...
    def append(self, data: memoryview, boundary: int = 0) -> None: ...
    def publish(self, entries: Entries) -> None: ...
    def read_unfinished(self, offset: int) -> Iterator[bytes]: ...
    def drop_unfinished(self, begin: int | None = None) -> None: ...
    def set_statement_end(self, offset: int, length: int) -> int: ...
    def wait_flushed(self, after_seq: int, timeout_s: float | None = None) -> bool: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class Room(Protocol):
    """The room for captured transactions. Capture reads nothing while there is none."""

    def tick(self, segment: str | None = None) -> None:
        """Called about once a second; ``segment`` is the one that is being written."""

    def level(self, size_bytes: int = 0) -> FillLevel:
        """Notes that this many bytes were received, and returns how full the disk is."""

    def wait_for_room(self, stop: threading.Event) -> bool:
        """Returns whether there is room; if not, waits a moment first."""

    def error(self) -> CdcError:
        """Returns the error for a capture that must not wait."""


@dataclass(frozen=True)
class Sink:
    """Where a program's capture writes, in place of the store of its configuration."""

    log: CaptureLog
    room: Room
    begin_seq: int | None
    """The seq after which capture begins if the log is empty; None: where the configuration says."""
    newest: Callable[[], HistoryMark | None]
    """Returns the mark by which the newest transaction is recognised at the source, if the log keeps no segments; None
    if it does, or has no transaction yet."""
