"""The watermark: what the probes of the source's clock prove, and how the time index records it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdc.capture.watermark import WatermarkTracker
from cdc.positions import BinlogPosition, make_seq
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


def test_probes_advance_the_watermark_and_the_time_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = [ClockProbe(T0 + n * SECOND, BinlogPosition("binlog.000003", 100 * n), None) for n in (1, 2, 3, 4)]
    monkeypatch.setattr("cdc.capture.watermark.clock_and_position", lambda control: probes.pop(0))
    watermark, both = WatermarkTracker(), FakeSessionAndStore(tmp_path)
    given: Any = both
    for _ in range(3):
        watermark.probe(given)
    watermark.settle(given, given)
    assert watermark.complete_until_us == 0, "nothing was read yet"
    both.pos, both.published = 250, 7
    watermark.settle(given, given)
    assert watermark.complete_until_us == 0, "the transactions are not visible yet"
    both.visible = 7
    watermark.settle(given, given)
    assert watermark.complete_until_us == T0 + 2 * SECOND - MARGIN_US
    recorded = [(make_seq(1, 3, 100 * n), T0 + n * SECOND - MARGIN_US) for n in (1, 2)]
    assert read_time_index(tmp_path)[["seq", "time_us"]].tolist() == recorded
    watermark.forget()
    both.pos = 1000
    watermark.settle(given, given)
    watermark.close()
    assert read_time_index(tmp_path)["seq"].tolist() == [seq for seq, _ in recorded], (
        "a lost connection's probes prove nothing"
    )

    damaged = bytearray(time_index_path(tmp_path).read_bytes())
    damaged[5] ^= 1
    time_index_path(tmp_path).write_bytes(damaged)
    again = WatermarkTracker()
    again.probe(given)
    again.settle(given, given)
    again.close()
    assert read_time_index(tmp_path)["seq"].tolist() == [make_seq(1, 3, 400)], "capture begins a new time index"
    assert Path(f"{time_index_path(tmp_path)}.damaged").read_bytes() == damaged
