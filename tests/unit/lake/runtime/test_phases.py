"""The time of a table by phase: at any moment in one of them, and in no other thread."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cdc.lake.runtime.phases import in_phase, measured_phases


def test_an_inner_phase_interrupts_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 3.5, 6.0, 6.0, 7.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with measured_phases() as times:
        with in_phase("merge"), in_phase("commit"):
            pass
        assert times.seconds() == {"read": 1.0, "merge": 4.5, "commit": 0.5}
        assert times.seconds()["read"] == 2.0, "what follows is read again"


def test_a_phase_ends_with_an_error() -> None:
    with measured_phases() as times:
        with pytest.raises(RuntimeError), in_phase("merge"):
            raise RuntimeError
        assert times.enter("read") == "read"


def test_other_threads_measure_nothing_or_their_own() -> None:
    def work() -> None:
        with in_phase("plan"):
            time.sleep(0.01)

    with measured_phases() as times, ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    work()
    assert "plan" not in times.seconds()
