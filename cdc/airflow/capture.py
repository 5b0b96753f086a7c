"""The operators that run capture, and that watch a capture outside Airflow."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cdc.airflow import xcom
from cdc.airflow.base import DestinationOperator
from cdc.airflow.compat import AirflowFailException
from cdc.airflow.connections import airflow_connections
from cdc.airflow.triggers import TowpathCaptureTrigger
from cdc.base.errors import PermanentError
from cdc.config import DestinationConfig

if TYPE_CHECKING:
    from airflow.sdk import Context


_PARENT_POLL_S = 0.5


@contextmanager
def ended_with_parent(stop: threading.Event) -> Iterator[None]:
    """Sets ``stop`` when the parent of this process ends during the block."""
    parent, over = os.getppid(), threading.Event()

    def watch() -> None:
        while not over.wait(_PARENT_POLL_S):
            if os.getppid() != parent:
                stop.set()
                return

    thread = threading.Thread(target=watch, name="watch-supervisor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class TowpathCaptureOperator(DestinationOperator):
    """Runs capture for ``capture_for_s`` seconds, then ends cleanly; the DAG's next run continues.

    SIGTERM (the task was cleared or marked, the worker shuts down) ends it within a second: Airflow kills after five.
    So does the end of the task's supervisor: without it nobody could end the task, and it would keep the next run from
    the store.
    A permanent error (a wrong password, a statement that cannot be captured) is logged at once, but the task fails only
    ``failure_pause_s`` later: a continuous DAG starts its next run immediately, and would fill its history with failed
    runs.
    """

    def __init__(self, *, capture_for_s: float | None = None, failure_pause_s: float = 30.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.capture_for_s = capture_for_s
        self.failure_pause_s = failure_pause_s
        self._stop: threading.Event | None = None
        self._killed = False

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException for a PermanentError; a RetryableError is raised unchanged."""
        stop = self._stop = threading.Event()
        if self._killed:
            return
        with xcom.airflow_errors():
            try:
                with airflow_connections():
                    self._capture(self._config(), stop)
            except PermanentError as error:
                self.log.error("Capture cannot go on: %s", error)
                stop.wait(self.failure_pause_s)
                raise

    def _capture(self, config: DestinationConfig, stop: threading.Event) -> None:
        from cdc.capture import Capture  # the source's driver, NumPy and Numba: too much for each file of DAGs
        from cdc.watch.metrics.serve import served

        self.log.info("Capturing %s into %s", config.source.url, config.store.path)
        with served(config) as observe, ended_with_parent(stop):
            Capture(config, observe).run(stop, for_s=self.capture_for_s)

    def on_kill(self) -> None:
        """Tells the capture loop to end."""
        self._killed = True
        if self._stop is not None:
            # Airflow calls this from a signal handler. Its thread may hold the event's lock, so that set() would
            # block for ever; another thread sets the event.
            threading.Thread(target=self._stop.set, name="stop-capture").start()


class TowpathCaptureWatchOperator(DestinationOperator):
    """Watches a capture that runs outside Airflow (``airflow.capture: external``), in the triggerer and not in a slot.

    It ends well after ``watch_for_s`` seconds, and fails as soon as the capture has been away, without a connection, or
    without progress for ``metrics.unhealthy_after``. A source without changes is progress. The triggerer has to see the
    store's disk, on the machine where capture runs.
    """

    def __init__(self, *, watch_for_s: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.watch_for_s = watch_for_s

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException if the configuration is broken."""
        with xcom.airflow_errors():
            self._config()
        trigger = TowpathCaptureTrigger(conf_file=self.conf_file, watch_for_s=self.watch_for_s)
        self.defer(trigger=trigger, method_name="resume")

    def resume(self, context: Context, event: dict[str, Any]) -> None:
        """Raises AirflowFailException if the capture is dead or stuck: a retry would only say so later."""
        if not event["ok"]:
            raise AirflowFailException(event["text"])
        self.log.info("%s", event["text"])
