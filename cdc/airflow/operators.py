"""The operators: capture, and the three steps of a run that applies a batch.

Each reads its configuration file when it runs, never when the DAG is parsed. A permanent error fails the task without
retries (see :mod:`cdc.errors`); for other errors the task's retries apply.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped

from cdc.airflow import interval, xcom
from cdc.airflow.connections import airflow_connections
from cdc.config import DestinationConfig, load
from cdc.errors import PermanentError

if TYPE_CHECKING:
    from airflow.sdk import Context


class _DestinationOperator(BaseOperator):
    """A task of one destination, named by its configuration file."""

    ui_color = "#dbe9f4"

    def __init__(self, *, conf_file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conf_file = conf_file

    def _config(self) -> DestinationConfig:
        return load(Path(self.conf_file))

    @property
    def _owner(self) -> str:
        """The owner of the batches: the DAG, of which one run is active at a time."""
        return f"airflow:{self.dag_id}"


class CaptureOperator(_DestinationOperator):
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

        self.log.info("Capturing %s into %s", config.source.url, config.store.path)
        Capture(config).run(stop, for_s=self.capture_for_s)

    def on_kill(self) -> None:
        """Tells the capture loop to end."""
        self._killed = True
        if self._stop is not None:
            # Airflow calls this from a signal handler. Its thread may hold the event's lock, so that set() would
            # block for ever; another thread sets the event.
            threading.Thread(target=self._stop.set, name="stop-capture").start()


class FetchOperator(_DestinationOperator):
    """Takes the next batch for this DAG and returns the batch's id, the lease's fingerprint and the manifest's path.

    If there is nothing to apply, the later tasks are skipped and the run succeeds. With ``airflow.until:
    interval_end`` the batch holds only transactions that were committed before the end of the run's data interval.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        """Raises LeaseHeldError (retried) while another owner holds the batch, StoreIncompleteError (retried) while
        the store is not known to be complete up to the interval's end."""
        with xcom.airflow_errors():
            config = self._config()
            lease = xcom.pipeline().fetch(config, self._owner, interval.end(config, context))
        if lease is None:
            self.log.info("Nothing new in the store of %s.", config.name)
            followers = sorted(self.get_flat_relative_ids(upstream=False))
            raise DownstreamTasksSkipped(tasks=followers)  # type: ignore[no-untyped-call]
        manifest = lease.manifest
        self.log.info(
            "Batch %d: %d transactions, %d row events of %s (seq %d to %d).",
            manifest.batch,
            manifest.transactions,
            manifest.row_events,
            ", ".join(manifest.tables) or "no table",
            manifest.first_seq,
            manifest.last_seq,
        )
        return xcom.from_lease(lease)


class MergeOperator(_DestinationOperator):
    """Merges the batch of the task ``fetch_task_id``, and returns one result per table.

    With ``airflow.until: interval_end`` it also merges the following batches up to the interval's end, and returns the
    last one.
    """

    def __init__(self, *, fetch_task_id: str = "fetch", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fetch_task_id = fetch_task_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Raises MergeFailedError (retried), TokenError if this run no longer owns the batch."""
        from cdc.batches.results import read_results, run_stats

        with xcom.airflow_errors():
            config, ti = self._config(), context["ti"]
            fetched = ti.xcom_pull(task_ids=self.fetch_task_id)
            until = interval.end(config, context)
            if until is not None and fetched is not None:
                return interval.merge_all(config, self._owner, until, fetched, ti.try_number == 1)
            lease = xcom.to_lease(config, fetched)
            with run_stats() as stats:
                results = xcom.pipeline().merge(config, lease)
                stats.add(read_results(results))
        return xcom.from_results(lease, results)

    def on_kill(self) -> None:
        """Kills the driver that this task started."""
        xcom.pipeline().stop()


class FinalizeOperator(_DestinationOperator):
    """Acks the batch when the merge succeeded, else rolls it back and fails the run.

    It runs in any case and asks Airflow for the states of the earlier tasks, because a killed process sends no callback
    and raises no exception. A merge counts as successful only if it also returned results for this very batch, so
    marking it as successful by hand does not ack a batch that was never merged.
    """

    def __init__(self, *, fetch_task_id: str = "fetch", merge_task_id: str = "merge", **kwargs: Any) -> None:
        kwargs.setdefault("trigger_rule", TriggerRule.ALL_DONE)
        super().__init__(**kwargs)
        self.fetch_task_id = fetch_task_id
        self.merge_task_id = merge_task_id

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException after a rollback, and if there is no batch because fetch failed."""
        ti = context["ti"]
        states = xcom.task_states(context, [self.fetch_task_id, self.merge_task_id])
        fetched = ti.xcom_pull(task_ids=self.fetch_task_id)
        if fetched is None:
            if states[self.fetch_task_id] in ("success", "skipped"):
                raise AirflowSkipException("There was nothing to apply.")
            raise AirflowFailException(
                f"No batch was taken: the task {self.fetch_task_id} ended as {states[self.fetch_task_id]}; see its log."
            )
        merged = ti.xcom_pull(task_ids=self.merge_task_id)
        succeeded = states[self.merge_task_id] == "success"
        with xcom.airflow_errors():
            config = self._config()
            if interval.end(config, context) is None:
                ended = self._one(config, fetched, merged if succeeded else None)
            else:
                ended = self._interval(config, fetched, merged if succeeded else None)
        if ended is None:
            return
        raise AirflowFailException(
            f"{ended}: the task {self.merge_task_id} ended as {states[self.merge_task_id]}. Nothing is lost: the next "
            "run takes the same changes again."
        )

    def _one(self, config: DestinationConfig, fetched: Any, merged: Any) -> str | None:
        """Acks the batch and returns None, or rolls it back and says so."""
        ok = xcom.is_result_of(merged, fetched)
        lease = xcom.to_lease(config, fetched)
        xcom.pipeline().finalize(config, lease, ok, xcom.to_results(merged) if ok else None)
        if not ok:
            return f"Batch {lease.manifest.batch} was rolled back"
        self.log.info("Batch %d is acked.", lease.manifest.batch)
        return None

    def _interval(self, config: DestinationConfig, fetched: Any, merged: Any) -> str | None:
        """Acks the interval's last batch and returns None, or rolls back outstanding batches and says so."""
        if not interval.is_result_of(merged, fetched):
            gone = xcom.pipeline().release(config, self._owner)
            what = " and ".join(str(batch) for batch in gone)
            return f"Batch {what} was rolled back" if gone else "No batch was outstanding"
        if merged["batch"] is not None:
            lease = xcom.to_lease(config, merged)
            xcom.pipeline().finalize(config, lease, True, xcom.to_results(merged))
            self.log.info("Batch %d is acked; it is the interval's last.", lease.manifest.batch)
        return None
