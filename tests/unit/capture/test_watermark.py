"""The watermark: what the probes of the source's clock prove, and how the time index records it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import SourceRefusedError
from cdc.binlog.positions import BinlogPosition, make_seq
from cdc.capture.watermark import WatermarkTracker
from cdc.source.server import ClockProbe
from cdc.store.formats.time_index import MARGIN_US, read_time_index, time_index_path

SECOND = 1_000_000
T0 = 1_700_000_000 * SECOND


@dataclass
class FakeSessionAndStore:
    """The position that a session has passed, and the entries of a store that were published and are visible."""

    path: Path
    epoch: int = 1
    pos: int = 0
    published: int = 0
    visible: int = 0

    def has_passed(self, position: BinlogPosition) -> bool:
        return self.pos >= position.pos


@pytest.fixture(autouse=True)
def replica(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The source's lag as a replica, and whether it is read-only, as the test sets them."""
    said: dict[str, Any] = {"lag_s": None, "read_only": False}

    def lag_s(control: Any) -> float | None:
        if isinstance(said["lag_s"], Exception):
            raise said["lag_s"]
        seconds: float | None = said["lag_s"]
        return seconds

    monkeypatch.setattr("cdc.source.server.replica_lag_s", lag_s)
    monkeypatch.setattr("cdc.source.server.refuses_writes", lambda control: said["read_only"])
    monkeypatch.setattr("cdc.capture.watermark.server_of", lambda control: "db:3306")
    return said


def test_probes_advance_the_watermark_and_the_time_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = [ClockProbe(T0 + n * SECOND, BinlogPosition("binlog.000003", 100 * n), None) for n in (1, 2, 3, 4)]
    monkeypatch.setattr("cdc.capture.watermark.clock_and_position", lambda control: probes.pop(0))
    watermark, fake = WatermarkTracker(), FakeSessionAndStore(tmp_path)
    given: Any = fake
    for _ in range(3):
        watermark.probe(given)
    watermark.settle(given, given)
    assert watermark.complete_until_us == 0, "nothing was read yet"
    fake.pos, fake.published = 250, 7
    watermark.settle(given, given)
    assert watermark.complete_until_us == 0, "the transactions are not visible yet"
    fake.visible = 7
    watermark.settle(given, given)
    assert watermark.complete_until_us == T0 + 2 * SECOND - MARGIN_US
    recorded = [(make_seq(1, 3, 100 * n), T0 + n * SECOND - MARGIN_US) for n in (1, 2)]
    assert read_time_index(tmp_path)[["seq", "time_us"]].tolist() == recorded
    watermark.forget()
    fake.pos = 1000
    watermark.settle(given, given)
    watermark.close()
    assert read_time_index(tmp_path)["seq"].tolist() == [seq for seq, _ in recorded], (
        "a lost connection's probes prove nothing"
    )

    damaged = bytearray(time_index_path(tmp_path).read_bytes())
    damaged[5] ^= 1
    time_index_path(tmp_path).write_bytes(damaged)
    later_tracker = WatermarkTracker()
    later_tracker.probe(given)
    later_tracker.settle(given, given)
    later_tracker.close()
    assert read_time_index(tmp_path)["seq"].tolist() == [make_seq(1, 3, 400)], "capture begins a new time index"
    assert Path(f"{time_index_path(tmp_path)}.damaged").read_bytes() == damaged


@pytest.mark.parametrize(
    ("lag_s", "read_only", "less_s"),
    [
        (None, False, 0),
        (None, True, 0),
        (0.0, True, 1),
        (40.0, True, 41),
        (40.0, False, 41),
        (math.inf, True, None),
        (math.inf, False, 0),
        (SourceRefusedError("denied", place="db", remedy="GRANT …"), True, 0),
    ],
)
def test_a_replica_may_lack_what_its_source_has_committed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    replica: dict[str, Any],
    lag_s: Any,
    read_only: bool,
    less_s: int | None,
) -> None:
    probe = ClockProbe(T0, BinlogPosition("binlog.000003", 100), None)
    monkeypatch.setattr("cdc.capture.watermark.clock_and_position", lambda control: probe)
    replica |= {"lag_s": lag_s, "read_only": read_only}
    watermark, fake = WatermarkTracker(records=False), FakeSessionAndStore(tmp_path, pos=100)
    given: Any = fake
    watermark.probe(given)
    watermark.settle(given, given)
    assert watermark.clock.time_us == T0
    assert watermark.complete_until_us == (0 if less_s is None else T0 - less_s * SECOND - MARGIN_US)
    replica |= {"lag_s": None}
    watermark.probe(given)
    watermark.settle(given, given)
    assert watermark.complete_until_us == T0 - MARGIN_US, "it replicates no more"
