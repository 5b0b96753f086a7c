"""The watermark: the time up to which the store is known to be complete.

Heartbeats carry no time. So capture probes the source: it asks for the clock, *then* for the binlog position. Whatever
committed before that time lies before that position. Once the stream has passed the position and its transactions are
visible to readers, the store is complete up to that time, less one second for transactions that already had their
commit time but not yet their position. Each new watermark is recorded in the store's time index.

A source that is a replica itself may lack what its own source has committed. Its lag is subtracted; while it is
read-only and does not replicate, nothing is known to be complete.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from math import isinf
from pathlib import Path
from typing import NamedTuple

from cdc.base.errors import CdcError, DamagedError, SourceRefusedError, StorageError
from cdc.base.log import get_logger
from cdc.binlog.positions import make_seq
from cdc.capture.session import CaptureSession
from cdc.capture.sink import CaptureLog
from cdc.disk.durable import storage_errors
from cdc.source.binlog_files import BinlogFiles
from cdc.source.connection import server_of
from cdc.source.server import ClockProbe, Source, behind_s, clock_and_position
from cdc.store.formats.time_index import MARGIN_US, TimeIndexWriter, time_index_path

log = get_logger(__name__)

_MAX_PROBES = 600


class SourceClock(NamedTuple):
    """The source's clock, as the last probe has found it."""

    time_us: int = 0
    """Unix time in microseconds; 0: not asked yet."""
    asked_at: float = 0.0
    """A time of ``time.monotonic``."""

    def now_us(self) -> int | None:
        """Returns the time at the source now; None if the source was not asked yet."""
        return self.time_us + int((time.monotonic() - self.asked_at) * 1e6) if self.time_us else None


UNKNOWN_CLOCK = SourceClock()


class WatermarkTracker:
    """Probes the source's clock and advances the watermark, ``complete_until_us`` (Unix time in microseconds)."""

    def __init__(self, *, records: bool = True) -> None:
        """``records``: whether the store has a time index. One in memory has none, since it would only grow."""
        self._records = records
        self._ahead: deque[ClockProbe] = deque()  # the stream has not passed their positions yet
        self._read: deque[tuple[int, int, int]] = deque()  # (time, seq of its position, entries that must be visible)
        self._index: TimeIndexWriter | None = None
        self.complete_until_us = 0
        self.clock = UNKNOWN_CLOCK
        self._may_ask_for_lag = True
        self._is_stalled = False

    def probe(self, control: Source) -> None:
        """Asks the source for its lag as a replica, and then for its clock and position. A failure is logged only: the
        next probe replaces this one."""
        try:
            lag_s = self._lag_s(control)
            probed = clock_and_position(control)
            self.clock = SourceClock(probed.time_us, time.monotonic())
            if isinf(lag_s):
                return
            self._ahead.append(replace(probed, time_us=probed.time_us - int(lag_s * 1e6)))
        except CdcError as error:
            log.debug("the source's clock could not be read", error=str(error))
            return
        if len(self._ahead) > _MAX_PROBES:  # capture is far behind: every second probe is enough
            self._ahead = deque(list(self._ahead)[::2])

    def _lag_s(self, control: Source) -> float:
        """Returns by how many seconds the source's state may be older than its clock: 0 for a server that replicates no
        other one, infinite for a read-only one that has stopped to replicate."""
        if isinstance(control, BinlogFiles) or not self._may_ask_for_lag:
            return 0.0
        try:
            lag_s = behind_s(control)
        except SourceRefusedError as error:
            self._may_ask_for_lag = False
            log.debug("whether the source is a replica that lags is not known", reason=error.message)
            return 0.0
        is_stalled = lag_s is not None and isinf(lag_s)
        if is_stalled and not self._is_stalled:
            log.warning(
                "the source is a replica that has stopped to replicate: until it goes on, no time is known up to which "
                "the store is complete",
                source=server_of(control),
            )
        elif self._is_stalled and not is_stalled:
            log.info("the source replicates again", source=server_of(control))
        self._is_stalled = is_stalled
        # Whole seconds are shown.
        return 0.0 if lag_s is None else lag_s + 1

    def expect(self, probe: ClockProbe) -> None:
        """Adds a probe that is older than all others: the one at whose position a bounded capture ends. On a busy
        source those of :meth:`probe` may lie after that position, which the stream then never passes."""
        self._ahead.appendleft(probe)

    def settle(self, session: CaptureSession, store: CaptureLog) -> None:
        """Advances the watermark to the newest probe whose position the stream has passed."""
        while self._ahead and session.has_passed(self._ahead[0].position):
            probe = self._ahead.popleft()
            seq = make_seq(session.epoch, probe.position.file_number, probe.position.pos)
            self._read.append((probe.time_us, seq, store.published))
        while self._read and store.visible >= self._read[0][2]:
            time_us, seq, _ = self._read.popleft()
            if time_us - MARGIN_US > self.complete_until_us:
                self.complete_until_us = time_us - MARGIN_US
                if self._records:
                    self._record(store.path, seq)

    def forget(self) -> None:
        """Discards all probes, because a lost connection's positions prove nothing for the next one."""
        self._ahead.clear()
        self._read.clear()
        self._may_ask_for_lag = True

    def close(self) -> None:
        """Closes the time index."""
        if self._index is not None:
            self._index.close()
            self._index = None

    def _record(self, store: Path, seq: int) -> None:
        try:
            if self._index is None:
                self._index = _open_index(store)
            self._index.add(seq, self.complete_until_us)
        except StorageError as error:  # a full disk fails the store's own writes, too
            log.warning("the watermark could not be recorded", store=str(store), error=str(error))


def _open_index(store: Path) -> TimeIndexWriter:
    """Opens the store's time index. Renames a damaged one and begins a new one, which capture can do without."""
    try:
        return TimeIndexWriter(store)
    except DamagedError as error:
        path = time_index_path(store)
        log.warning("a new time index is begun", reason=error.message, old_file=f"{path}.damaged")
        with storage_errors(path):
            path.replace(f"{path}.damaged")
        return TimeIndexWriter(store)
