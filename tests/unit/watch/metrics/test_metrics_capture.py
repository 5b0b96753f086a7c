"""The metrics of a capture, and its health, without a source: what they say after each kind of report."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.base.errors import ConfigError
from cdc.capture import CaptureProgress
from cdc.capture.watermark import SourceClock
from cdc.watch.metrics import catalogue as names
from cdc.watch.metrics.capture import CaptureMonitor, capture_values
from cdc.watch.metrics.serve import served
from tests.support.metrics import NOW_US, configuration, connected


def value(progress: CaptureProgress | None, metric: names.Metric) -> float | None:
    samples = capture_values(progress).get(metric, [])
    return samples[0][1] if samples else None


def test_the_lag_is_by_the_sources_clock_and_grows_without_a_connection() -> None:
    assert value(connected(), names.LAG) == pytest.approx(2, abs=1)
    asked = SourceClock(NOW_US, time.monotonic() - 100)
    assert value(replace(connected(), connected=False, clock=asked), names.LAG) == pytest.approx(102, abs=1)


def test_the_lag_of_a_capture_that_catches_up_is_that_of_its_last_transaction() -> None:
    behind = replace(connected(), complete_until_us=0)
    assert value(behind, names.LAG) == pytest.approx(60, abs=1)
    assert value(behind, names.COMPLETE_UNTIL) is None
    assert value(replace(behind, last_commit_us=0), names.LAG) is None, "nothing is known yet, so nothing is said"


def test_counters_and_position() -> None:
    metrics = (names.TRANSACTIONS, names.EVENTS, names.STORED_BYTES, names.RECEIVED_BYTES, names.RECONNECTS)
    assert [value(connected(), metric) for metric in metrics] == [3, 9, 500, 900, 2]
    assert (value(connected(), names.POSITION_FILE), value(connected(), names.POSITION_BYTES)) == (7, 1234)
    assert value(None, names.CONNECTED) == 0


def test_health_by_the_time_since_the_last_connection() -> None:
    now = [100.0]
    monitor = CaptureMonitor("shop", 60, clock=lambda: now[0])
    assert monitor.health().ok, "it may still connect"
    now[0] += 61
    assert monitor.health() == (False, "shop: not connected yet, for 1 min 1 s; metrics.unhealthy_after is 1 min.")
    monitor.observe(connected())
    assert monitor.health() == (True, "shop: connected, at binlog.000007:1234.")
    now[0] += 61
    assert not monitor.health().ok, "a capture that hangs is not healthy"
    assert "has not reported for 1 min 1 s" in monitor.health().text
    monitor.observe(connected())
    monitor.observe(replace(connected(), connected=False))
    now[0] += 59
    assert monitor.health().ok
    assert "the capture is connecting" in monitor.health().text
    now[0] += 2
    assert "the connection to the source is lost, for 1 min 1 s" in monitor.health().text
    assert not monitor.health().ok


def test_a_port_that_is_taken_is_refused_with_a_sentence(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"cannot listen at 0.0.0.0, port {port}"),
            served(configuration("{}"), port),
        ):
            pass


def test_without_a_port_nothing_is_served() -> None:
    with served(configuration("{}")) as observe:
        assert observe is None


def test_the_names_of_the_catalogue_are_those_of_prometheus() -> None:
    every = {*names.CAPTURE, *names.RUN, *names.SERVER, *names.PUSH}  # some are those of several processes
    assert len({metric.name for metric in every}) == len(every)
    for metric in every:
        assert metric.name.startswith("towpath_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
