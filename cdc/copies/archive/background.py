"""The thread of capture that copies to the archive. Nothing that happens to it stops or delays the capture."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError
from cdc.base.log import get_logger
from cdc.meta import open_meta

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

log = get_logger(__name__)

_EVERY_S = 1.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_WARN_AGAIN_S = 600.0
_END_WAIT_S = 5.0


@contextmanager
def archiving(config: DestinationConfig) -> Iterator[None]:
    """Copies the store to its archive while the block runs, if one is configured. The caller is the store's writer."""
    if config.store.archive.url is None:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_run, args=(config, stop), name=f"archive of {config.name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        # A copy that is under way counts only when it is complete, so it need not be waited for.
        thread.join(_END_WAIT_S)


def _run(config: DestinationConfig, stop: threading.Event) -> None:
    from cdc.copies.archive.writer import Archiver  # most captures have no archive

    failures = Failures(config.name)
    pause_s = 0.0
    with open_meta(config) as meta:
        archiver = Archiver(config, meta)
        while not stop.wait(pause_s):
            try:
                archiver.run()
            except CdcError as error:
                pause_s = failures.failed(str(error), retryable=error.retryable)
            except Exception as error:
                log.exception("copying to the archive failed unexpectedly", destination=config.name)
                text = f"unexpected {type(error).__name__}: {error}"
                with suppress(CdcError):  # a full disk: the log has the failure
                    archiver.note(text)
                pause_s = failures.failed(text, retryable=False)
            else:
                failures.succeeded()
                pause_s = _EVERY_S


class Failures:
    """Failed tries in a row: the pause before the next one, and what is logged."""

    def __init__(self, destination: str) -> None:
        self._destination = destination
        self._pause_s = 0.0
        self._warned_at = float("-inf")
        self._text = ""

    def failed(self, text: str, *, retryable: bool) -> float:
        """Takes note of a failure, and returns the seconds until the next try. What a retry does not help is tried
        once a minute, since an operator may have removed the cause."""
        longer_s = max(_FIRST_PAUSE_S, self._pause_s * 2)
        self._pause_s = min(longer_s, _LONGEST_PAUSE_S) if retryable else _LONGEST_PAUSE_S
        now = time.monotonic()
        if text != self._text or now - self._warned_at >= _WARN_AGAIN_S:
            self._text, self._warned_at = text, now
            level = log.warning if retryable else log.error
            level("nothing is copied to the archive", destination=self._destination, error=text)
        return self._pause_s

    def succeeded(self) -> None:
        """Takes note of a success."""
        if self._pause_s:
            log.info("the archive is written again", destination=self._destination)
        self._pause_s, self._text = 0.0, ""
