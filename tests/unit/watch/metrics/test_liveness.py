"""Whether a capture that runs elsewhere is dead or stuck, by the files that it writes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.store.formats import layout
from cdc.store.formats.state import CaptureState, StoreLock, is_locked, write_capture_state
from cdc.watch.metrics.liveness import CaptureWatch

STATE = CaptureState(os.getpid(), True, "binlog.000003", 4711, None, 0, 1_000_000)


class Capture:
    """A capture that runs while it is asked to, and the watch over it."""

    def __init__(self, store: Path) -> None:
        self.store, self.now_s, self.state = store, 0.0, STATE
        self._lock: ExitStack | None = None
        self.watch = CaptureWatch("shop", store, 60, lambda: self.now_s)

    def start(self) -> None:
        layout.create(self.store, "shop")
        lock, self._lock = StoreLock(self.store), ExitStack()
        self._lock.callback(lock.release)

    def die(self) -> None:
        assert self._lock is not None
        self._lock.close()

    def report(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
        write_capture_state(self.store, self.state)

    def after(self, seconds: float) -> tuple[bool, str]:
        self.now_s += seconds
        return self.watch.health()


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Capture]:
    capture = Capture(tmp_path / "store")
    yield capture
    if capture._lock is not None:
        capture.die()


def test_an_idle_source_is_not_stuck(capture: Capture) -> None:
    capture.start()
    for second in range(300):
        capture.report(complete_until_us=second * 1_000_000)
        assert capture.after(1) == (True, f"shop: capture (process {os.getpid()}) is at binlog.000003:4711.")


def test_a_source_without_a_clock_may_idle(capture: Capture) -> None:
    """The state that the capture of a folder of files writes stays the same while no file comes, and is written."""
    capture.watch = CaptureWatch("shop", capture.store, 60, lambda: capture.now_s, idles=True)
    capture.start()
    for second in range(300):
        capture.report()
        os.utime(capture.store / "capture.json", (second, second))
        assert capture.after(1)[0]
    assert capture.after(60)[0]
    assert not capture.after(1)[0]


def test_a_capture_without_progress_is_stuck_after_a_while(capture: Capture) -> None:
    capture.start()
    capture.report()
    assert capture.after(1)[0]
    assert capture.after(60)[0], "not yet"
    ok, text = capture.after(1)
    assert not ok
    assert text == (
        f"shop: capture (process {os.getpid()}) runs, and has not moved from binlog.000003:4711, for 1 min 1 s. "
        "It hangs, or its disk is full: see its log."
    )
    capture.report(pos=4800)
    assert capture.after(1)[0], "it goes on"


def test_a_dead_capture(capture: Capture) -> None:
    capture.start()
    capture.report()
    assert capture.after(1)[0]
    capture.die()
    assert capture.after(59) == (True, "shop: no capture runs, for 59 s.")
    assert capture.after(2) == (
        False,
        "shop: no capture runs, for 1 min 1 s. Start `cdc capture shop` where its store is.",
    )
    capture.start()
    assert capture.after(1)[0], "it has not reported yet"
    assert not capture.after(61)[0]


def test_a_capture_without_a_connection(capture: Capture) -> None:
    capture.start()
    capture.report(connected=False)
    assert capture.after(59)[0]
    ok, text = capture.after(2)
    assert (ok, "has no connection to the source, for 1 min 1 s" in text) == (False, True)


def test_no_store_and_no_capture_yet(capture: Capture) -> None:
    assert capture.after(0)[0]
    ok, text = capture.after(61)
    assert (ok, f"there is no store in {capture.store} on this machine" in text) == (False, True)
    layout.create(capture.store, "shop")
    assert "no capture has ever run" in capture.after(1)[1]


def test_a_state_file_that_cannot_be_read_says_so(capture: Capture) -> None:
    capture.start()
    (capture.store / "capture.json").write_text("{")
    ok, text = capture.after(1)
    assert (ok, "capture.json: is not valid JSON" in text) == (False, True)


def test_a_look_at_the_lock_keeps_no_capture_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look takes the lock for a moment, in which a capture may start."""
    layout.create(tmp_path, "shop")
    StoreLock(tmp_path).release()
    looked: list[bool] = []
    slow: Callable[[int], None] = os.close

    def at_that_moment(fd: int) -> None:
        if not looked:
            looked.append(True)
            time.sleep(0.1)
        slow(fd)

    monkeypatch.setattr("cdc.store.formats.state.os.close", at_that_moment)
    look = threading.Thread(target=is_locked, args=(tmp_path,))
    look.start()
    wait_until(lambda: bool(looked))
    lock = StoreLock(tmp_path)
    look.join()
    assert is_locked(tmp_path)
    lock.release()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
