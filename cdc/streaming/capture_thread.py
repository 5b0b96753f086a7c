"""Capture in a thread of the calling program."""

from __future__ import annotations

import threading

from cdc.base.errors import StoreClosedError
from cdc.capture import Capture, CaptureProgress
from cdc.capture.sink import Sink
from cdc.config import DestinationConfig


class CaptureThread:
    """Runs a capture, and keeps the error that has ended it."""

    def __init__(self, config: DestinationConfig, sink: Sink, *, follow: bool) -> None:
        """``follow``: whether capture goes on at the end of what the server has when it begins."""
        self._capture = Capture(config, self._note, sink=sink)
        self._follow = follow
        self._stop = threading.Event()
        self._begun = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="cdc-stream", daemon=True)
        self.has_ended = False
        """Whether nothing more is put."""
        self.progress: CaptureProgress | None = None
        """Position and counters, about once a second; None before the first connection."""

    @property
    def is_stopping(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stop.is_set()

    def start(self) -> None:
        """Starts the thread, and waits until capture reads the source. Raises the error that keeps it from that."""
        self._thread.start()
        while not self._begun.wait(0.2):  # in short waits, which Ctrl-C interrupts at once
            pass
        if self._failure is not None:
            self._thread.join()
            self.raise_failure()

    def stop(self) -> None:
        """Asks capture to end. A put that waits has to be ended by closing its store."""
        self._stop.set()

    def join(self) -> None:
        """Waits until the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def raise_failure(self) -> None:
        """Raises the error that has ended capture, if one has: a RetryableError if a new stream may succeed, another
        CdcError if something has to be changed first."""
        if self._failure is not None:
            raise self._failure

    def _note(self, progress: CaptureProgress) -> None:
        self.progress = progress
        self._begun.set()

    def _run(self) -> None:
        try:
            self._capture.run(self._stop, until_current=not self._follow)
        except StoreClosedError as error:
            if not self.is_stopping:
                self._failure = error
        except Exception as error:  # noqa: BLE001  # raised again in the readers
            self._failure = error
        finally:
            self.has_ended = True
            self._begun.set()
