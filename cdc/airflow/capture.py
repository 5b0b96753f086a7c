"""The operator that runs capture."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from cdc.airflow import xcom
from cdc.airflow.base import DestinationOperator
from cdc.airflow.connections import airflow_connections
from cdc.config import DestinationConfig
from cdc.errors import PermanentError

if TYPE_CHECKING:
    from airflow.sdk import Context


class TowpathCaptureOperator(DestinationOperator):
    """Runs capture for ``capture_for_s`` seconds, then ends cleanly; the DAG's next run continues.

    SIGTERM (the task was cleared or marked, the worker shuts down) ends it within a second: Airflow kills after five.
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
        from cdc.capture import Capture
        from cdc.metrics.serve import served

        self.log.info("Capturing %s into %s", config.source.url, config.store.path)
        with served(config) as observe:
            Capture(config, observe).run(stop, for_s=self.capture_for_s)

    def on_kill(self) -> None:
        """Tells the capture loop to end."""
        self._killed = True
        if self._stop is not None:
            # Airflow calls this from a signal handler. Its thread may hold the event's lock, so that set() would
            # block for ever; another thread sets the event.
            threading.Thread(target=self._stop.set, name="stop-capture").start()
