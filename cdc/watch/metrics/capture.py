"""The metrics of a capture, collected when they are asked for, and whether it is healthy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import cdc
from cdc.base.errors import CdcError
from cdc.base.log import get_logger
from cdc.base.targets import split_table
from cdc.base.units import human_seconds
from cdc.batches.subscribers import make_filter
from cdc.meta import open_meta
from cdc.store.formats.archive_record import record_of
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.disk import disk_usage
from cdc.watch.metrics import catalogue as names
from cdc.watch.metrics.catalogue import Metric
from cdc.watch.metrics.families import AlarmCounts, Sample, Values, alarm_values, families

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from cdc.capture import CaptureProgress
    from cdc.config import DestinationConfig
    from cdc.meta import Meta

_log = get_logger(__name__)


class Health(NamedTuple):
    """Whether a capture does its work, and a sentence about it."""

    ok: bool
    text: str


class CaptureMonitor:
    """Knows the last report of a capture. :meth:`observe` is called by the capture, the rest by other threads."""

    def __init__(self, destination: str, unhealthy_after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` (seconds) is for tests."""
        self.destination = destination
        self._limit_s = unhealthy_after_s
        self._clock = clock
        self._connected_at = self._reported_at = clock()
        self.progress: CaptureProgress | None = None
        """The last report; None before the first connection."""

    def observe(self, progress: CaptureProgress) -> None:
        """Takes note of a report."""
        self._reported_at = self._clock()
        if progress.connected:
            self._connected_at = self._reported_at
        self.progress = progress

    def health(self) -> Health:
        """Returns whether the capture reads, or is level, or has lost its connection for a short time only."""
        progress, now = self.progress, self._clock()
        if progress is not None and progress.connected:
            silent_s = now - self._reported_at
            if silent_s <= self._limit_s:
                return Health(True, f"{self.destination}: connected, at {progress.position}.")
            return Health(
                False, f"{self.destination}: connected, but the capture has not reported for {human_seconds(silent_s)}."
            )
        lost_s = now - self._connected_at
        what = "not connected yet" if progress is None else "the connection to the source is lost"
        text = f"{self.destination}: {what}, for {human_seconds(lost_s)}"
        if lost_s <= self._limit_s:
            return Health(True, f"{text}; the capture is connecting.")
        return Health(False, f"{text}; metrics.unhealthy_after is {human_seconds(self._limit_s)}.")


class CaptureCollector:
    """A collector of ``prometheus_client``: the capture of one destination, its store, and who reads the store."""

    def __init__(self, config: DestinationConfig, monitor: CaptureMonitor, alarms: AlarmCounts | None = None) -> None:
        self._config, self._monitor, self._alarms = config, monitor, alarms
        self._meta: Meta | None = None
        self._lock = threading.Lock()
        self._failed: set[str] = set()

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Yields all metrics. A part that cannot be read is left out, and ``towpath_scrape_success`` says so."""
        with self._lock:  # the meta's client is used by one thread at a time
            samples: dict[Metric, Sequence[Sample]] = {names.INFO: [((cdc.__version__,), 1)]}
            samples.update(capture_values(self._monitor.progress))
            samples.update(alarm_values(self._alarms))
            readable: list[Sample] = []
            parts = [("store", self._store), ("disk", self._disk), ("subscriptions", self._subscriptions)]
            if self._config.store.archive.url is not None:
                parts.append(("archive", self._archive))
            for part, read in parts:
                values = self._try(part, read)
                samples.update(values or {})
                readable.append(((part,), float(values is not None)))
            samples[names.READABLE] = readable
        yield from families(names.CAPTURE, samples, self._config.name)

    def _try(self, part: str, read: Callable[[], Values]) -> Values | None:
        """Returns the values of a part; None if it cannot be read, which is logged the first time."""
        try:
            values = read()
        except (CdcError, OSError) as error:
            self._meta = None
            if part not in self._failed:
                _log.warning("metrics could not be read", part=part, reason=str(error))
            self._failed.add(part)
            return None
        self._failed.discard(part)
        return values

    def _store(self) -> Values:
        reader = StoreReader(self._config.store.path)
        if not reader.exists():
            return {}
        totals = reader.totals()
        return {
            names.POSITION_SEQ: _one(reader.last_seq()),
            names.STORE_TRANSACTIONS: _one(totals.transactions),
            names.STORE_BYTES: _one(totals.bytes),
        }

    def _disk(self) -> Values:
        path = self._config.store.path
        if not path.is_dir():
            return {}
        usage = disk_usage(path)
        return {
            names.DISK_TOTAL: _one(usage.total),
            names.DISK_FREE: _one(usage.free),
            names.DISK_LIMIT: _one(self._config.store.disk.stop_ratio),
        }

    def _archive(self) -> Values:
        from cdc.copies.archive.writer import backlog_of  # zstandard, for an archive alone

        store = self._config.store.path
        record = record_of(store, self._config.archive_uri or "")
        behind, now_us = backlog_of(store, record.archived_seq), time.time_ns() // 1000
        failing_us = now_us - record.failing_since_us if record.failing_since_us else 0
        return {
            names.ARCHIVED_SEQ: _one(record.archived_seq),
            names.ARCHIVE_BYTES: _one(record.bytes),
            names.ARCHIVE_WAITING: _one(behind.segments),
            names.ARCHIVE_WAITING_BYTES: _one(behind.bytes),
            names.ARCHIVE_LAG: _one(max(0, now_us - behind.since_us) / 1e6 if behind.since_us else 0.0),
            names.ARCHIVE_FAILING: _one(max(0, failing_us) / 1e6),
        }

    def _subscriptions(self) -> Values:
        if self._meta is None:
            self._meta = open_meta(self._config)
        state, reader = self._meta.read(), StoreReader(self._config.store.path)
        failovers = () if state.source is None else state.source.failovers()
        samples: dict[Metric, list[Sample]] = {
            names.FAILOVERS: _one(len(failovers)),
            names.LAST_FAILOVER: _one(failovers[-1][1].time.timestamp() if failovers else None),
        }
        now = datetime.now(UTC)
        for name, subscription in sorted(state.subscriptions.items()):
            behind = reader.backlog(subscription.acked_seq, make_filter(subscription.filter))
            oldest_us = behind.oldest_commit_time_us
            values = {
                names.CURSOR_LAG: 0.0 if oldest_us is None else max(0.0, time.time() - oldest_us / 1e6),
                names.BEHIND_TRANSACTIONS: behind.transactions,
                names.BEHIND_BYTES: behind.bytes,
                names.ACKED_SEQ: subscription.acked_seq,
                names.OUTSTANDING: len(subscription.outstanding),
                names.EXPIRED: sum(batch.expires <= now for batch in subscription.outstanding),
            }
            for metric, value in values.items():
                samples.setdefault(metric, []).append(((name,), value))
            parked = [
                table for table in sorted(subscription.parked) if self._config.tables.includes(*split_table(table))
            ]
            samples.setdefault(names.PARKED, []).extend(((name, table), 1) for table in parked)
        return samples


def _one(value: float | None) -> list[Sample]:
    return [] if value is None else [((), value)]


def capture_values(progress: CaptureProgress | None) -> Values:
    """Returns the metrics of the capture itself. ``progress``: its last report; None: it was never connected."""
    if progress is None:
        return {names.CONNECTED: _one(0), names.RECONNECTS: _one(0)}
    purge = progress.purge
    counters, clock_us = progress.counters, progress.clock.now_us()
    reached_us = max(progress.complete_until_us, progress.last_commit_us)
    lag_s = None if clock_us is None or not reached_us else max(0.0, (clock_us - reached_us) / 1e6)
    return {
        names.CONNECTED: _one(float(progress.connected)),
        names.LAG: _one(lag_s),
        names.COMPLETE_UNTIL: _one(progress.complete_until_us / 1e6 or None),
        names.LAST_COMMIT: _one(progress.last_commit_us / 1e6 or None),
        names.RECEIVED_BYTES: _one(counters.received_bytes),
        names.STORED_BYTES: _one(counters.bytes),
        names.TRANSACTIONS: _one(counters.transactions),
        names.EVENTS: _one(counters.events),
        names.RECONNECTS: _one(counters.reconnects),
        names.POSITION_FILE: _one(progress.position.file_number),
        names.POSITION_BYTES: _one(progress.position.pos),
        names.UNREAD_BYTES: _one(None if purge is None else purge.unread_bytes),
        names.PURGE_AT: _one(None if purge is None else purge.purge_at_s),
        names.PURGE_LEFT: _one(None if purge is None else purge.left),
    }
