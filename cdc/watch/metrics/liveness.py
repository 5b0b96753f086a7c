"""Whether a capture that runs elsewhere on this machine does its work, told from the files of its store.

Capture holds the store's lock, and writes its position and the time up to which the store is complete every second.
Both go on while the source is idle, because the source's clock goes on. A capture that hangs, that cannot reach the
source, or that stops to read because the disk is full no longer moves them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cdc.base.errors import CdcError
from cdc.base.units import human_seconds
from cdc.store.formats import layout
from cdc.store.formats.state import CaptureState, capture_state_path, read_capture_state
from cdc.watch.metrics.capture import Health


class CaptureWatch:
    """Watches the capture of one store. Ask :meth:`health` every few seconds."""

    def __init__(
        self,
        destination: str,
        store: Path,
        limit_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        idles: bool = False,
    ) -> None:
        """``limit_s``: how long a capture may be away, without a connection, or without progress, before it counts as
        dead or stuck. ``clock`` (seconds) is for tests. ``idles``: the source has no clock, because it is a folder of
        binlog files; then each report counts as progress."""
        self._destination, self._store, self._limit_s, self._clock = destination, store, limit_s, clock
        self._idles = idles
        self._reported_at: float | None = None
        self._runs = True
        self._seen: CaptureState | None = None
        self._running_at = self._connected_at = self._moved_at = clock()

    def health(self) -> Health:
        """Returns whether the capture is alive and makes progress, or has failed to for a short time only."""
        now = self._clock()
        try:
            state = read_capture_state(self._store)
        except CdcError as error:
            return Health(False, f"{self._destination}: {error}")
        if state is None or not state.running:
            self._runs = False
            return self._verdict(now - self._running_at, self._absent(state))
        if not self._runs:  # it has just begun: its last report may be that of the capture before it
            self._runs, self._connected_at, self._moved_at = True, now, now
        self._running_at = now
        if not state.connected:
            what = f"capture (process {state.pid}) runs, and has no connection to the source"
            return self._verdict(now - self._connected_at, what, "See its log.")
        self._connected_at = now
        reported_at = self._last_report() if self._idles else None
        if state != self._seen or reported_at != self._reported_at:
            self._seen, self._reported_at, self._moved_at = state, reported_at, now
        what = f"capture (process {state.pid}) runs, and has not moved from {state.file}:{state.pos}"
        if now - self._moved_at > self._limit_s:
            return self._verdict(now - self._moved_at, what, "It hangs, or its disk is full: see its log.")
        return Health(True, f"{self._destination}: capture (process {state.pid}) is at {state.file}:{state.pos}.")

    def _last_report(self) -> float | None:
        try:
            return capture_state_path(self._store).stat().st_mtime
        except OSError:
            return None

    def _absent(self, state: CaptureState | None) -> str:
        if state is not None:
            return "no capture runs"
        if not layout.exists(self._store):
            return f"there is no store in {self._store} on this machine"
        return "no capture has ever run"

    def _verdict(self, since_s: float, what: str, remedy: str | None = None) -> Health:
        """``since_s``: for how long that has been so."""
        text = f"{self._destination}: {what}, for {human_seconds(since_s)}."
        if since_s <= self._limit_s:
            return Health(True, text)
        return Health(False, f"{text} {remedy or f'Start `cdc capture {self._destination}` where its store is.'}")
