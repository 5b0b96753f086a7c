"""The capture process: connect, read, reconnect, until somebody says stop."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pymysql

from cdc.batches.retention import make_cleaner
from cdc.capture import replication
from cdc.capture.clock import SourceClock
from cdc.capture.failures import Failures
from cdc.capture.session import Counters, Session
from cdc.capture.start import Start, find_start
from cdc.config import DestinationConfig
from cdc.errors import CdcError, CorruptStreamError, SourceUnavailableError
from cdc.log import get_logger
from cdc.meta import State, open_meta
from cdc.positions import BinlogPosition
from cdc.source.connection import connect, place_of
from cdc.source.preflight import require_source
from cdc.source.server import ClockProbe, clock_and_position, current_position
from cdc.store.formats.state import Beginning, CaptureState, record_beginning, write_capture_state
from cdc.store.retention.cleaner import LogCleaner
from cdc.store.writer.log import RelayLog

if TYPE_CHECKING:
    from cdc.replication.master import Master

log = get_logger(__name__)

_PROBE_EVERY_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_TRIES_UNTIL_CURRENT = 5


@dataclass(frozen=True)
class Progress:
    """Where capture stands, for whoever watches."""

    connected: bool
    position: BinlogPosition
    target: BinlogPosition | None
    """Where ``until_current`` ends."""
    counters: Counters
    complete_until_us: int


class Capture:
    """Reads one destination's source into its store. At most one runs for a store, by its lock."""

    def __init__(self, config: DestinationConfig, on_progress: Callable[[Progress], None] | None = None) -> None:
        self._config = config
        self._on_progress = on_progress
        self.counters = Counters()
        self._clock = SourceClock()
        self._target: ClockProbe | None = None
        self._last: Progress | None = None
        self._cleaner: LogCleaner | None = None
        self._session: Session | None = None
        """Of the connection in hand, also after it has ended."""
        self._end: BinlogPosition | None = None
        """Where the source's binlog ended when the connection was made."""

    def run(
        self, stop: threading.Event | None = None, for_s: float | None = None, until_current: bool = False
    ) -> Counters:
        """Capture until ``stop`` is set, ``for_s`` is over, or (``until_current``) everything that the server had at
        the start is in the store, durable and visible.

        A connection that breaks is made anew, for ever (with ``until_current`` a few times); one that could never be
        made raises. Connections that break at one place again and again, with nothing new in the store, end it after
        ``source.max_failures`` of them. Raises any CdcError that going on cannot mend.
        """
        stop = threading.Event() if stop is None else stop
        deadline = None if for_s is None else time.monotonic() + for_s
        config = self._config
        replication.require_no_standby(config)
        # Before the lock is taken and a folder is made: a wrong password leaves nothing behind.
        control: pymysql.connections.Connection[Any] | None = self._control()
        store = RelayLog(
            config.store.path,
            destination=config.name,
            segment_bytes=config.store.segment_bytes,
            policy=config.store.flush_policy,
            permissions=config.store.permissions,
        )
        master: Master | None = None
        try:
            master = replication.start(config, store)
            tries, pause_s = 0, _FIRST_PAUSE_S
            most = config.source.max_failures
            stuck = Failures(min(most, _TRIES_UNTIL_CURRENT - 1) if until_current else most)
            while True:
                before, self._session = self.counters.received_bytes, None
                stuck.moved(store.last_seq)
                try:
                    if control is None:
                        control = self._control()
                    self._connected(store, control, stop, deadline, until_current)
                    replication.finish(config, store, master)
                    return self.counters
                except (SourceUnavailableError, CorruptStreamError) as error:
                    received = self.counters.received_bytes > before
                    if received and (isinstance(error, CorruptStreamError) or self._has_more()):
                        stuck.met(error, f"source {place_of(config.source)}", self._ended_at(), store.last_seq)
                    if received and not stuck.count:
                        tries, pause_s = 0, _FIRST_PAUSE_S
                    tries += 1
                    if (until_current and tries >= _TRIES_UNTIL_CURRENT) or self._last is None:
                        raise
                    log.warning("connection lost", error=str(error), again_in_s=pause_s)
                    self._clock.forget()
                    self._report(store, None)
                    _close(control)
                    control = None
                if stop.wait(pause_s) or (deadline is not None and time.monotonic() >= deadline):
                    return self.counters
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            self._report(store, None)
            self._clock.close()
            if master is not None:
                master.close()
            store.close()
            _close(control)

    def _ended_at(self) -> BinlogPosition | None:
        return None if self._session is None else self._session.ended_at

    def _has_more(self) -> bool:
        """Whether the connection that has ended left something of the source unread."""
        return self._session is None or self._end is None or not self._session.has_passed(self._end)

    def _control(self) -> pymysql.connections.Connection[Any]:
        control = connect(self._config.source)
        try:
            require_source(self._config, control)
        except BaseException:
            _close(control)
            raise
        return control

    def _connected(
        self,
        store: RelayLog,
        control: pymysql.connections.Connection[Any],
        stop: threading.Event,
        deadline: float | None,
        until_current: bool,
    ) -> None:
        """One connection, until there is nothing more to do."""
        config = self._config
        if until_current:
            if self._target is None:
                self._target = clock_and_position(control)
            self._clock.expect(self._target)
        meta = open_meta(config)
        store.flush()  # what is proved is what readers see
        known = meta.read()
        start = find_start(config, control, meta, store.last_seq)
        if start.first:
            record_beginning(store.path, _beginning(start, known))
        if self._cleaner is None:
            self._cleaner = make_cleaner(config, meta)
        self._end = current_position(control)
        session = self._session = Session(config, control, store, start, self.counters)
        try:
            self._report(store, session)
            probed_at = -_PROBE_EVERY_S
            while not stop.is_set():
                target = self._target
                if target is not None and store.last_seq is not None and session.has_passed(target.position):
                    break
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    break
                if now - probed_at >= _PROBE_EVERY_S:
                    probed_at = now
                    self._clock.probe(control)
                    self._report(store, session)
                    self._cleaner.tick(store.written.segment)
                if not self._cleaner.wait_for_room(stop):
                    if until_current:
                        raise self._cleaner.watch.error()
                    continue
                self._cleaner.level(session.step())
        finally:
            session.close()
        store.flush()
        self._report(store, session)

    def _report(self, store: RelayLog, session: Session | None) -> None:
        """Write the state file, and tell whoever watches."""
        if session is not None:
            self._clock.settle(session, store)
            target = None if self._target is None else self._target.position
            self._last = Progress(True, session.position, target, self.counters, self._clock.complete_until_us)
            self._gtid, self._time_us = session.gtid, session.time_us
        if self._last is None:
            return
        state = CaptureState(
            pid=os.getpid(),
            connected=session is not None,
            file=self._last.position.file,
            pos=self._last.position.pos,
            gtid=self._gtid,
            time_us=self._time_us,
            complete_until_us=self._clock.complete_until_us,
        )
        try:
            write_capture_state(store.path, state)
        except CdcError as error:  # the store's own writes will say it where it matters
            log.warning("capture's state could not be written", error=str(error))
        if self._on_progress is not None:
            self._on_progress(self._last)

    _gtid: str | None = None
    _time_us: int = 0


def _beginning(start: Start, known: State) -> Beginning:
    """``known``: the meta as it was before this start."""
    again = known.source is not None or any(s.position() for s in known.subscriptions.values())
    return Beginning(
        seq=start.seq,
        file=start.position.file,
        pos=start.position.pos,
        gtid=start.gtid,
        time_us=time.time_ns() // 1000,
        reason="started again" if again else "first start",
    )


def _close(connection: pymysql.connections.Connection[Any] | None) -> None:
    if connection is not None and connection.open:
        connection.close()
