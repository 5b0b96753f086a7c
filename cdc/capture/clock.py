"""Up to when the store is known to be complete.

Heartbeats carry no time, so the source's clock is asked, *then* its binlog position: whatever committed before that
moment stands before that position. Once the stream has passed the position and readers can see what it brought,
the store is complete up to the clock's answer, less one second for transactions that had their time but not yet their
place.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pymysql

from cdc.capture.session import Session
from cdc.errors import CdcError
from cdc.log import get_logger
from cdc.source.server import ClockProbe, clock_and_position
from cdc.store.relaylog import RelayLog

log = get_logger(__name__)

_MARGIN_US = 1_000_000
_MOST_PROBES = 600


class SourceClock:
    """Probes of the source's clock and what they prove."""

    def __init__(self) -> None:
        self._ahead: deque[ClockProbe] = deque()
        self._read: deque[tuple[int, int]] = deque()  # (clock, entries that have to be visible)
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

    def settle(self, session: Session, store: RelayLog) -> None:
        """Take over what the stream has passed since."""
        while self._ahead and session.has_passed(self._ahead[0].position):
            self._read.append((self._ahead.popleft().time_us, store.published))
        while self._read and store.visible >= self._read[0][1]:
            self.complete_until_us = max(self.complete_until_us, self._read.popleft()[0] - _MARGIN_US)

    def forget(self) -> None:
        """The connection was lost: positions of the former one prove nothing."""
        self._ahead.clear()
        self._read.clear()
