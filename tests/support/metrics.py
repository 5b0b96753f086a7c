"""Configurations and reports of captures, for the tests of metrics."""

from __future__ import annotations

import time
from pathlib import Path

from cdc.binlog.positions import BinlogPosition
from cdc.capture import CaptureCounters, CaptureProgress
from cdc.capture.watermark import SourceClock
from cdc.config import DestinationConfig, parse

NOW_US = 1_800_000_000_000_000


def connected() -> CaptureProgress:
    """Returns the report of a capture that has three transactions, and has just heard the source's time."""
    return CaptureProgress(
        connected=True,
        position=BinlogPosition("binlog.000007", 1234),
        target=None,
        counters=CaptureCounters(transactions=3, events=9, bytes=500, received_bytes=900, reconnects=2),
        complete_until_us=NOW_US - 2_000_000,
        last_commit_us=NOW_US - 60_000_000,
        clock=SourceClock(NOW_US, time.monotonic()),
    )


def configuration(metrics: str) -> DestinationConfig:
    """Returns the configuration of the destination ``shop`` with this section ``metrics``."""
    text = (
        "source: {url: 'mysql://cdc@db:3306', server_id: 7, start: earliest}\ntables: {include: ['shop\\..*']}\n"
        f"store: {{path: s}}\nmeta: {{path: m}}\napply: {{target: l}}\nmetrics: {metrics}\n"
    )
    return parse(text, Path("/conf/shop.yaml"))
