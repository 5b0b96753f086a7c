"""Up to when the store is known to be complete.

Heartbeats carry no time, so the source's clock is asked, *then* its binlog position: whatever committed before that
moment stands before that position. Once the stream has passed the position and readers can see what it brought,
the store is complete up to the clock's answer, less one second for transactions that had their time but not yet their
place. What a probe has proved is kept in the store's clock log.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pymysql

from cdc.capture.session import Session
from cdc.durable import storage_errors
from cdc.errors import CdcError, DamagedError, StorageError
from cdc.log import get_logger
from cdc.positions import make_seq
from cdc.source.server import ClockProbe, clock_and_position
from cdc.store.formats.time_index import MARGIN_US, TimeIndexWriter, time_index_path
from cdc.store.writer.log import RelayLog

log = get_logger(__name__)

_MOST_PROBES = 600


class SourceClock:
    """Probes of the source's clock and what they prove."""

    def __init__(self) -> None:
        self._ahead: deque[ClockProbe] = deque()
        self._read: deque[tuple[int, int, int]] = deque()  # (clock, its place, entries that have to be visible)
        self._log: TimeIndexWriter | None = None
        self.complete_until_us = 0

    def probe(self, control: pymysql.connections.Connection[Any]) -> None:
        """Ask the source. Without an answer nothing is proved, and the next probe may do better."""
        try:
            self._ahead.append(clock_and_position(control))
        except CdcError as error:
            log.debug("the source's clock could not be asked", error=str(error))
            return
        if len(self._ahead) > _MOST_PROBES:  # far behind: the older half of the probes is as good as all
            self._ahead = deque(list(self._ahead)[::2])

    def expect(self, probe: ClockProbe) -> None:
        """A probe that was made before all those still ahead: the place at which a bounded capture ends. Those of
        :meth:`probe` may lie behind that place on a busy source, and then prove nothing any more."""
        self._ahead.appendleft(probe)

    def settle(self, session: Session, store: RelayLog) -> None:
        """Take over what the stream has passed since."""
        while self._ahead and session.has_passed(self._ahead[0].position):
            probe = self._ahead.popleft()
            seq = make_seq(session.epoch, probe.position.file_number, probe.position.pos)
            self._read.append((probe.time_us, seq, store.published))
        while self._read and store.visible >= self._read[0][2]:
            time_us, seq, _ = self._read.popleft()
            if time_us - MARGIN_US > self.complete_until_us:
                self.complete_until_us = time_us - MARGIN_US
                self._note(store.path, seq)

    def forget(self) -> None:
        """The connection was lost: positions of the former one prove nothing."""
        self._ahead.clear()
        self._read.clear()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _note(self, store: Path, seq: int) -> None:
        try:
            if self._log is None:
                self._log = _open_log(store)
            self._log.add(seq, self.complete_until_us)
        except StorageError as error:  # the store's own writes will say it where it matters
            log.warning("the source's time could not be noted", error=str(error))


def _open_log(store: Path) -> TimeIndexWriter:
    """The store's log; a damaged one is put aside, since capture can do without."""
    try:
        return TimeIndexWriter(store)
    except DamagedError as error:
        path = time_index_path(store)
        log.warning("the clock log is begun anew", reason=error.message, kept=f"{path}.damaged")
        with storage_errors(path):
            path.replace(f"{path}.damaged")
        return TimeIndexWriter(store)
