"""The capture process: connect, read into the store, reconnect, until it is stopped."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError, CorruptStreamError, SourceUnavailableError
from cdc.base.log import get_logger, hide_password
from cdc.batches.parking import excluded_tables, park_excluded
from cdc.batches.retention import make_cleaner
from cdc.binlog.positions import BinlogPosition
from cdc.capture import own_store, replication
from cdc.capture.config_watch import ConfigWatch, tell_tables
from cdc.capture.gtid_recorder import GtidRecorder
from cdc.capture.memory_room import MemoryRoom
from cdc.capture.reconnect import ReconnectPolicy
from cdc.capture.schema_history import ColumnNamesMissingError
from cdc.capture.servers import SourceServers
from cdc.capture.session import CaptureCounters, CaptureSession
from cdc.capture.sink import CaptureLog, Room, Sink
from cdc.capture.start import Start, find_start
from cdc.capture.warm_up import warm_up
from cdc.capture.watermark import UNKNOWN_CLOCK, SourceClock, WatermarkTracker
from cdc.config import DestinationConfig, StoreConfig, TablesConfig
from cdc.copies.archive.background import archiving
from cdc.meta import Meta, State, open_meta
from cdc.source.binlog_files import BinlogFiles
from cdc.source.purge import REMEDY, PurgeMargin, PurgeWatch
from cdc.source.server import ClockProbe, Source, clock_and_position, current_position
from cdc.store.formats.state import (
    Beginning,
    CaptureState,
    read_capture_state,
    record_beginning,
    write_capture_state,
)
from cdc.store.reader.reader import StoreReader
from cdc.store.writer.durability import FlushPolicy
from cdc.store.writer.log import LogWriter, RelayLog
from cdc.store.writer.memory_log import MemoryLog

if TYPE_CHECKING:
    from cdc.copies.standby.master import Master

log = get_logger(__name__)

_PROBE_EVERY_S = 1.0
_PURGE_EVERY_S = 60.0


@dataclass(frozen=True)
class CaptureProgress:
    """The state of a running capture, for progress displays and metrics."""

    connected: bool
    position: BinlogPosition
    target: BinlogPosition | None
    """The position at which ``until_current`` ends."""
    counters: CaptureCounters
    complete_until_us: int
    last_seq: int = 0
    """The newest seq in the store; 0 if it is empty."""
    last_commit_us: int = 0
    """Commit time of the newest transaction that was stored since the start; 0 if there was none."""
    clock: SourceClock = UNKNOWN_CLOCK
    purge: PurgeMargin | None = None
    """The margin between the unread part of the binlog and its purge, at the last check."""


class Capture:
    """Reads one destination's source into its store. The store's lock admits only one at a time."""

    def __init__(
        self,
        config: DestinationConfig,
        on_progress: Callable[[CaptureProgress], None] | None = None,
        *,
        sink: Sink | None = None,
    ) -> None:
        """``sink``: where to write, in place of the store of the configuration. Its log is closed at the end."""
        self._config = config
        self._sink = sink
        self._on_progress = on_progress
        self._watch = ConfigWatch(config)
        self.counters = CaptureCounters()
        self._watermark = WatermarkTracker(records=not config.store.in_memory)
        self._servers = SourceServers(config)
        self._purge = PurgeAlarm(config)
        self._target: ClockProbe | None = None
        self._last: CaptureProgress | None = None
        self._has_begun = True
        """Whether the position where the store begins is durable. The state says that capture runs from then on only:
        after a kill before that, the next one would begin at a later position."""
        self._cleaner: Room | None = None if sink is None else sink.room
        self._session: CaptureSession | None = None
        """The current connection, or the last one after it has ended."""
        self._end: BinlogPosition | None = None
        """The end of the source's binlog when the connection was made."""
        self._epoch: int | None = None
        """The epoch of the last connection."""
        self._gtid: str | None = None
        self._time_us = 0
        self._expects_names = True
        """Whether no rows without the names of their columns have come from a server that is set to write them."""
        self._error: str | None = None
        """Why there is no connection, or why capture ends."""
        self.is_loading = False
        """Whether :meth:`run` loads or compiles its kernels. It then holds nothing but a connection to the source, and
        looks at no ``stop``: an exception raised by a signal handler may end it."""

    def reload(self) -> None:
        """Lets capture read its configuration's file again soon, as SIGHUP asks for. Safe in signal handlers."""
        self._watch.ask()

    def run(
        self, stop: threading.Event | None = None, for_s: float | None = None, until_current: bool = False
    ) -> CaptureCounters:
        """Captures until ``stop`` is set, ``for_s`` seconds have passed, or (``until_current``) everything that the
        server had at the start is in the store, durable and visible.

        Reconnects after a connection is lost, to a standby if the server does not come back, without limit (with
        ``until_current``: 5 times in a row), but raises if the first connection fails. After ``source.max_failures``
        connections that stored nothing new, it raises DamagedError or SourceRefusedError. Raises any other CdcError
        that a new connection cannot solve.
        """
        stop = threading.Event() if stop is None else stop
        deadline = None if for_s is None else time.monotonic() + for_s
        config = self._config
        folder = config.store.path  # an error if another machine has the store
        replication.require_no_standby(config)
        # Connect before the store's folder and lock are created, so that a wrong password leaves no traces.
        control: Source | None = self._servers.connect(stop, _stored_until(folder))
        self.is_loading = True
        if not stop.is_set():
            warm_up()
        self.is_loading = False
        has_others = config.server.ha.enabled and not config.store.in_memory  # which begins anew with each leadership
        if has_others:
            assert control is not None
            own_store.prepare(config, open_meta(config).read(), control)
        store = _open_log(config) if self._sink is None else self._sink.log
        master: Master | None = None
        beside = ExitStack()
        failure: str | None = None
        try:
            if has_others:
                own_store.claim(config)
            if isinstance(store, LogWriter):
                master = replication.start_master(config, store)
            beside.enter_context(archiving(config))
            reconnect = ReconnectPolicy(config.source.max_failures, bounded=until_current)
            while True:
                before, self._session = self.counters.received_bytes, None
                reconnect.connecting(store.last_seq)
                try:
                    if control is None:
                        control = self._servers.connect(stop, self._newest(store))
                    other = self._read_connection(store, control, stop, deadline, until_current)
                    if other is None:
                        if isinstance(store, LogWriter):
                            replication.finish_master(config, store, master)
                        return self.counters
                    control = self._capture_other_tables(other, control, stop, store)
                    continue
                except ColumnNamesMissingError as error:
                    log.warning("capture goes on with the definitions of the server's tables", reason=str(error))
                    self._expects_names = False
                    continue
                except (SourceUnavailableError, CorruptStreamError) as error:
                    received = self.counters.received_bytes > before
                    if received and (isinstance(error, CorruptStreamError) or self._has_more()):
                        reconnect.stuck(
                            error, f"source {self._servers.current.source.address}", self._ended_at(), store.last_seq
                        )
                    if not reconnect.failed(received=received) or self._last is None:
                        raise
                    pause_s = reconnect.pause_s()
                    self.counters.reconnects += 1
                    log.warning("connection to the source lost", error=str(error), reconnect_in_s=pause_s)
                    self._error = hide_password(str(error))
                    self._watermark.forget()
                    self._report(store, None)
                    _close(control)
                    control = None
                if stop.wait(pause_s) or (deadline is not None and time.monotonic() >= deadline):
                    return self.counters
        except Exception as error:
            failure = hide_password(str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}")
            raise
        finally:
            self._error = failure
            self._report(store, None, ended=True)
            self._watermark.close()
            if master is not None:
                master.close()
            beside.close()
            store.close()
            _close(control)

    def _capture_other_tables(
        self,
        config: DestinationConfig,
        control: Source,
        stop: threading.Event,
        store: CaptureLog,
    ) -> Source:
        """Goes over to a configuration with other tables, and returns a new connection. If the source cannot be
        captured with it, capture stays with the one before."""
        servers = SourceServers(config)
        new: Source | None = None
        try:
            new = servers.connect(stop, self._newest(store))
            tell_tables(new, self._config, config)
        except CdcError as error:
            _close(new)
            log.error("these tables cannot be captured; capture goes on as before", error=str(error))
            if error.retryable:
                self._watch.ask()
            return control
        _close(control)
        self._config, self._servers = config, servers
        self._watch.take(config)
        return new

    def _ended_at(self) -> BinlogPosition | None:
        return None if self._session is None else self._session.ended_at

    def _has_more(self) -> bool:
        """Whether the connection ended before it had read everything that the source had when it was made."""
        return self._session is None or self._end is None or not self._session.has_passed(self._end)

    def _newest(self, store: CaptureLog) -> int | None:
        """Returns the newest seq after everything is flushed."""
        store.flush()
        return store.last_seq

    def _read_connection(
        self,
        store: CaptureLog,
        control: Source,
        stop: threading.Event,
        deadline: float | None,
        until_current: bool,
    ) -> DestinationConfig | None:
        """Reads over one connection until capture is stopped or has reached its end. Returns the configuration with
        which capture goes on if its file names other tables."""
        config = self._servers.current
        meta = open_meta(config)
        store.flush()  # the proof reads what is visible
        state = meta.read()
        target = clock_and_position(control) if until_current else None
        resume = self._servers.take_resume(store.last_seq)
        start = find_start(config, control, meta, store.last_seq, resume, self._sink)
        _park_excluded(meta, state, config.tables)
        if until_current:
            if self._target is None or start.identity.epoch != self._epoch:
                self._target = target  # positions of another server's binlog mean nothing in this one's
            assert self._target is not None
            self._watermark.expect(self._target)
        if start.identity.epoch != self._epoch:
            self._purge = PurgeAlarm(config)
        self._epoch = start.identity.epoch
        if start.first:
            record_beginning(store.path, _beginning(start, state))
        # Only a failover needs them, and a log without segments has none.
        gtids = GtidRecorder(config, control, start, store.last_seq) if isinstance(store, LogWriter) else None
        if self._cleaner is None:
            self._cleaner = (
                MemoryRoom(config, meta, store) if isinstance(store, MemoryLog) else make_cleaner(config, meta)
            )
        self._end = current_position(control)
        start = replace(start, named=start.named and self._expects_names)
        session = self._session = CaptureSession(config, control, store, start, self.counters)
        other: DestinationConfig | None = None
        self._has_begun = not (start.first and isinstance(store, LogWriter))
        try:
            self._report(store, session)
            probed_at = -_PROBE_EVERY_S
            while not stop.is_set():
                target = self._target
                if target is not None and store.last_seq is not None and session.has_reached(target.position):
                    break
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    break
                if now - probed_at >= _PROBE_EVERY_S:
                    probed_at = now
                    self._watermark.probe(control)
                    self._purge.tick(control, session.position)
                    self._report(store, session)
                    if gtids is not None:
                        gtids.tick()
                    self._cleaner.tick(store.written.segment)
                    other = self._watch.look()
                    if other is not None:
                        break
                if not self._cleaner.wait_for_room(stop):
                    if until_current:
                        raise self._cleaner.error()
                    continue
                self._cleaner.level(session.step())
                if not self._has_begun and store.last_seq is not None:
                    store.flush()
                    self._has_begun = True
                    self._report(store, session)
        finally:
            session.close()
        store.flush()
        if gtids is not None:
            gtids.record()
        self._report(store, session)
        return other

    def _report(self, store: CaptureLog, session: CaptureSession | None, *, ended: bool = False) -> None:
        """Writes the state file and calls ``on_progress``. ``ended``: this is the last report."""
        if session is not None:
            self._error = None
            self._watermark.settle(session, store)
            target = None if self._target is None else self._target.position
            self._gtid, self._time_us = session.gtid, session.time_us
            self._last = CaptureProgress(
                connected=True,
                position=session.position,
                target=target,
                counters=self.counters,
                complete_until_us=self._watermark.complete_until_us,
                last_seq=store.last_seq or 0,
                last_commit_us=max(self._time_us, 0 if self._last is None else self._last.last_commit_us),
                clock=self._watermark.clock,
                purge=self._purge.margin,
            )
        if self._last is None:
            self._report_failed_start(store)
            return
        if session is None:
            self._last = replace(self._last, connected=False)
        if not self._has_begun and not ended:
            return
        state = CaptureState(
            pid=os.getpid(),
            connected=session is not None,
            file=self._last.position.file,
            pos=self._last.position.pos,
            gtid=self._gtid,
            time_us=self._time_us,
            complete_until_us=self._watermark.complete_until_us,
            error=self._error,
            ended=ended,
            purge_left=None if self._purge.margin is None else round(self._purge.margin.left, 4),
            purge=None if self._purge.margin is None else str(self._purge.margin),
        )
        _write(store, state)
        if self._on_progress is not None:
            self._on_progress(self._last)

    def _report_failed_start(self, store: CaptureLog) -> None:
        """Adds the error of a capture that has read nothing to the state of the one before it."""
        if self._error is None:
            return
        try:
            before = read_capture_state(store.path)
        except CdcError as error:
            log.warning("capture's state file could not be read", error=str(error))
            return
        if before is not None:
            _write(store, replace(before, pid=os.getpid(), connected=False, error=self._error, ended=True))


def _open_log(config: DestinationConfig) -> RelayLog:
    settings = config.store
    if settings.in_memory:
        return MemoryLog(
            settings.path,
            destination=config.name,
            segment_bytes=settings.segment_bytes,
            max_transaction_bytes=settings.max_transaction_bytes,
            lower_case_table_names=config.tables.lower_case_table_names,
        )
    return RelayLog(
        settings.path,
        destination=config.name,
        segment_bytes=settings.segment_bytes,
        policy=_flush_policy(settings),
        permissions=settings.permissions,
        lower_case_table_names=config.tables.lower_case_table_names,
    )


def _write(store: CaptureLog, state: CaptureState) -> None:
    try:
        write_capture_state(store.path, state)
    except CdcError as error:  # a full disk fails the store's own writes, too
        log.warning("capture's state file could not be written", error=str(error))


class PurgeAlarm:
    """Asks once a minute how far the unread part of the binlog is from its purge, and warns when it comes near."""

    def __init__(self, config: DestinationConfig) -> None:
        self._watch = PurgeWatch(config.source)
        self._ratio = config.source.purge_alarm_ratio
        self._asked_at = -_PURGE_EVERY_S
        self._near = False
        self.margin: PurgeMargin | None = None
        """The last answer."""

    def tick(self, control: Source, position: BinlogPosition) -> None:
        """Asks if a minute has passed. A failure is logged only, because reading goes on."""
        now = time.monotonic()
        if now - self._asked_at < _PURGE_EVERY_S or isinstance(control, BinlogFiles):
            return
        self._asked_at = now
        try:
            self.margin = self._watch.measure(control, position)
        except CdcError as error:
            log.warning("the distance of the source's purge is not known", error=str(error))
            return
        near = self.margin.left < self._ratio
        if near:
            log.warning("the source is about to purge what was not read", margin=str(self.margin), remedy=REMEDY)
        elif self._near:
            log.info("the source's purge is far again", margin=str(self.margin))
        self._near = near


def _stored_until(folder: Path) -> int | None:
    """Returns the newest seq of a store that is not open; None if there is none."""
    if not folder.is_dir():  # opening it says what is wrong with a path that cannot be used
        return None
    reader = StoreReader(folder)
    return reader.last_seq() if reader.exists() else None


def _beginning(start: Start, state: State) -> Beginning:
    """``state`` is the meta as it was before this start."""
    again = state.source is not None or any(subscription.position() for subscription in state.subscriptions.values())
    return Beginning(
        seq=start.seq,
        file=start.position.file,
        pos=start.position.pos,
        gtid=start.gtid,
        time_us=time.time_ns() // 1000,
        reason="started again" if again else "first start",
    )


def _park_excluded(meta: Meta, state: State, tables: TablesConfig) -> None:
    """Parks the lake's tables that are not captured from now on. ``state`` is what the meta has."""
    subscriptions = state.subscriptions.values()
    if not any(excluded_tables(subscription, tables, subscription.tables) for subscription in subscriptions):
        return
    now = datetime.now(UTC).replace(microsecond=0)
    with meta.change() as changed:
        for subscription in changed.subscriptions.values():
            park_excluded(subscription, excluded_tables(subscription, tables, subscription.tables), now)


def _close(connection: Source | None) -> None:
    if connection is not None and connection.open:
        connection.close()


def _flush_policy(store: StoreConfig) -> FlushPolicy:
    return FlushPolicy(
        store.flush,
        interval_s=store.flush_interval_s,
        least_pages=store.flush_least_pages,
        thorough_interval_s=store.flush_thorough_interval_s,
        slow_flush_s=store.slow_flush_s,
    )
