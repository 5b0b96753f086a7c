"""The three steps of a run that applies batches: fetch, merge, finalize."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from cdc.airflow import interval, lineage, links, xcom
from cdc.airflow.base import BatchOperator
from cdc.airflow.changes import telling_batches
from cdc.airflow.compat import (
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
    TriggerRule,
    default_deferrable,
)
from cdc.airflow.metrics import tell
from cdc.airflow.triggers import TowpathBatchTrigger
from cdc.base.units import iso_time
from cdc.batches.results import RunStats, run_stats
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.lake.runs import Merged, Run, RunListener

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from cdc.batches.lease import Lease


_MOST_LINES = 200
"""The lines for a table of a batch that a run logs. Those of later batches have the level DEBUG: the run ends with a
line for each table."""


class TowpathFetchOperator(BatchOperator):
    """Takes the next batch for this DAG, without waiting for one. Returns the batch's id, the lease's fingerprint and
    the manifest's path.

    If there is nothing to apply, parked tables are tried again, and merge and finalize are skipped. What a run acked
    before it failed is told by the next fetch: it emits the events of the tables (:mod:`cdc.airflow.changes`). With
    ``airflow.until: interval_end`` the batch holds only transactions that were committed before the end of the run's
    data interval.

    ``deferrable`` (default: Airflow's ``[operators] default_deferrable``): while another owner holds the batch, or the
    store is not complete up to the interval's end, the task waits in the triggerer instead of in a slot, for at most
    ``batch.until_wait_s``. The merge then never has to wait. ``destination``: its name, for the events; needed if a
    template makes the name of ``conf_file``.
    """

    operator_extra_links = (links.TowpathManifestLink(),)

    def __init__(self, *, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**telling_batches(kwargs))
        self.deferrable = default_deferrable() if deferrable is None else deferrable

    def execute(self, context: Context) -> dict[str, Any]:
        """Raises LeaseHeldError (retried) while another owner holds the batch, StoreIncompleteError (retried) while
        the store is not known to be complete up to the interval's end."""
        return self._fetch(context, None)

    def resume(self, context: Context, event: dict[str, str]) -> dict[str, Any]:
        """Goes on after a wait in the triggerer, and looks at everything anew. ``event``: the deadline of the waits."""
        return self._fetch(context, datetime.fromisoformat(event["deadline"]))

    def _fetch(self, context: Context, deadline: datetime | None) -> dict[str, Any]:
        with xcom.airflow_errors():
            config = self._config()
            until = interval.end(config, context)
            if self.deferrable:
                self._wait_for_turn(config, until, deadline)
            # Waiting would cost a slot of the worker, and the schedule brings the next run anyway.
            lease = pipeline.fetch(config, self._owner, until, 0.0 if until is None else None)
            self._tell_changes(config, context, None)
            if lease is None:
                pipeline.retry_parked(config)
        if lease is None:
            self.log.info("Nothing new in the store of %s.", config.name)
            tell(config, RunStats(), succeeded=True)
            self._require_none_left_out(config)
            raise DownstreamTasksSkipped(tasks=self._later_steps())  # type: ignore[no-untyped-call]
        self.link_targets[links.MANIFEST] = links.manifest_address(config, lease)
        self.log.info("Batch %d is leased.", lease.manifest.batch)
        return xcom.from_lease(lease, until)

    def _wait_for_turn(self, config: DestinationConfig, until: datetime | None, deadline: datetime | None) -> None:
        """Defers the task while something is in the way of a fetch. Raises that when the deadline has passed."""
        error = pipeline.obstacle(config, self._owner, until)
        if error is None:
            return
        now = datetime.now(UTC)
        ends = now + timedelta(seconds=config.batch.until_wait_s) if deadline is None else deadline
        if now >= ends:
            raise error
        self.log.info("Waiting in the triggerer, until %s at most: %s", iso_time(ends), error)
        trigger = TowpathBatchTrigger(
            conf_file=self.conf_file,
            owner=self._owner,
            until=None if until is None else until.isoformat(),
            deadline=ends.isoformat(),
        )
        self.defer(trigger=trigger, method_name="resume")

    def _later_steps(self) -> list[str]:
        """Returns the ids of the run's later steps. Other tasks of the DAG follow their own trigger rules."""
        later = self.get_flat_relatives(upstream=False)
        steps = [task for task in later if getattr(task, "fetch_task_id", None) == self.task_id]
        merges = {task.merge_task_id for task in steps if isinstance(task, TowpathFinalizeOperator)}
        return sorted({task.task_id for task in steps} | merges)


class TowpathMergeOperator(lineage.LineageMixin, BatchOperator):
    """Merges the batch of the task ``fetch_task_id`` and those that follow it, in one Spark session, and acks all but
    the last one, which it returns with one result per table.

    The run ends when it has applied what the store had when it began, or ``airflow.run_for`` is spent; with
    ``airflow.until: interval_end`` it ends at the end of the run's data interval (see :mod:`cdc.lake.runs`).
    """

    operator_extra_links = (links.TowpathManifestLink(), links.TowpathTableLink(), links.TowpathSparkLink())

    def __init__(self, *, fetch_task_id: str = "fetch", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fetch_task_id = fetch_task_id
        self._run: Run | None = None
        self._killed = False

    def execute(self, context: Context) -> dict[str, Any]:
        """Raises MergeFailedError and StoreIncompleteError (retried), TokenError if this run no longer owns the
        batch."""
        with xcom.airflow_errors():
            config, ti = self._config(), context["ti"]
            fetched = ti.xcom_pull(task_ids=self.fetch_task_id)
            limits = interval.limits(config, context)
            lease = self._lease(config, fetched, limits.until, getattr(ti, "try_number", 1) == 1)
            with run_stats() as stats:
                log = _RunLog(self.log, stats, config, self.link_targets)
                run = self._run = Run(pipeline, config, self._owner, limits, log)
                if self._killed:
                    run.stop()
                try:
                    last = None if lease is None else run.merge(lease)
                finally:
                    tell(config, stats, succeeded=None)
                    self._tell_lineage(lambda: lineage.written(config, _written(stats)))
            if run.spent:
                self.log.info("%.0f s are spent, and more is waiting: the next run takes it.", config.airflow.run_for)
        return xcom.from_run(last, fetched, log.batches_acked)

    def _lease(self, config: DestinationConfig, fetched: Any, until: datetime | None, first_try: bool) -> Lease | None:
        """Returns the batch to begin with: the fetched one. A later try gets the first outstanding or waiting batch:
        an earlier one may have acked some, and the new token stops it if it is still alive."""
        if first_try or fetched is None:
            return xcom.to_lease(config, fetched)
        return pipeline.fetch(config, self._owner, until, None if until is not None else 0.0)

    def on_kill(self) -> None:
        """Kills the driver that this task started, and lets the run begin no other batch."""
        self._killed = True
        if self._run is not None:
            self._run.stop()
        pipeline.stop()


def _written(stats: RunStats) -> list[lineage.ChangedTable]:
    return [
        lineage.ChangedTable(name, table.changes, table.delta_version)
        for name, table in sorted(stats.tables.items())
        if table.delta_version is not None
    ]


class _RunLog(RunListener):
    """Writes the batches to the task's log, and keeps the task's links up to date. The statistics write a line for each
    table at the end of the run."""

    def __init__(self, log: Any, stats: RunStats, config: DestinationConfig, addresses: dict[str, str]) -> None:
        self._log, self._stats = log, stats
        self._config, self._addresses = config, addresses
        self.batches_acked = 0
        self._lines = 0
        addresses[links.SPARK] = links.spark_address(config)

    def began(self, lease: Lease) -> None:
        manifest = lease.manifest
        self._addresses[links.MANIFEST] = links.manifest_address(self._config, lease)
        self._log.info(
            "Batch %d: %d %s, %d row events of %s (seq %d to %d).",
            manifest.batch,
            manifest.transactions,
            "DDL statements" if manifest.ddl and not manifest.mixed else "transactions",
            manifest.row_events,
            ", ".join(manifest.tables) or "no table",
            manifest.first_seq,
            manifest.last_seq,
        )

    def merged(self, batch: Merged) -> None:
        self._stats.add(batch.results, batch.lease.manifest)
        changes = ((name, table_stats.changes) for name, table_stats in self._stats.tables.items())
        if (table := links.most_changed(changes)) is not None:
            self._addresses[links.TABLE] = links.table_address(self._config, table)
        for result in batch.results:
            if result.idle:
                continue
            if result.parked is not None:
                self._log.warning("Batch %d leaves out %s: %s", batch.lease.batch, result.table, result.parked.reason)
                continue
            self._lines += 1
            self._log.log(
                logging.INFO if self._lines <= _MOST_LINES else logging.DEBUG,
                "Batch %d, %s: %d inserted, %d updated, %d deleted, %d skipped; version %s, %.1f s.",
                batch.lease.batch,
                result.table,
                result.inserted,
                result.updated,
                result.deleted,
                result.skipped,
                result.delta_version,
                result.seconds,
            )

    def acked(self, batch: Merged) -> None:
        self.batches_acked += 1
        self._log.info("Batch %d is acked.", batch.lease.batch)


class TowpathFinalizeOperator(lineage.LineageMixin, BatchOperator):
    """Acks the run's last batch when the merge succeeded, else rolls back what is outstanding and fails the run.

    It runs in any case and asks Airflow for the states of the earlier tasks, because a killed process sends no callback
    and raises no exception. A merge counts as successful only if it also returned results for this very batch, so
    marking it as successful by hand does not ack a batch that was never merged. Batches that the merge acked before it
    failed stay acked. Emits an event for each table that the acked batches have changed
    (:mod:`cdc.airflow.changes`). ``destination``: its name, for the events; needed if a template makes the name of
    ``conf_file``.

    ``merge_acks``: the merge is a job of ``cdc apply`` elsewhere, with the owner of this task, and acks all its batches
    itself. If the fetched batch is not acked, it failed, whatever the platform says of it.
    """

    def __init__(
        self, *, fetch_task_id: str = "fetch", merge_task_id: str = "merge", merge_acks: bool = False, **kwargs: Any
    ) -> None:
        kwargs.setdefault("trigger_rule", TriggerRule.ALL_DONE)
        super().__init__(**telling_batches(kwargs))
        self.fetch_task_id = fetch_task_id
        self.merge_task_id = merge_task_id
        self.merge_acks = merge_acks

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException after a rollback, and if there is no batch because fetch failed."""
        ti = context["ti"]
        states = xcom.task_states(context, [self.fetch_task_id, self.merge_task_id])
        fetched = ti.xcom_pull(task_ids=self.fetch_task_id)
        if fetched is None:
            if states[self.fetch_task_id] in ("success", "skipped"):
                raise AirflowSkipException("There was nothing to apply.")
            with xcom.airflow_errors():
                tell(self._config(), None, succeeded=False)
            raise AirflowFailException(
                f"No batch was taken: the task {self.fetch_task_id} ended as {states[self.fetch_task_id]}; see its log."
            )
        with xcom.airflow_errors():
            config = self._config()
            if states[self.merge_task_id] == "success" and self._is_acked(config, ti, fetched):
                changes = self._tell_changes(config, context, fetched["batch"])
                if self.merge_acks:  # the merge in a task tells its own
                    tables = [
                        lineage.ChangedTable(change.table, change.rows, change.delta_version) for change in changes
                    ]
                    self._tell_lineage(lambda: lineage.written(config, tables))
                tell(config, None, succeeded=True)
                self._require_none_left_out(config)
                return
            gone = pipeline.release(config, self._owner)  # a job that still runs has lost its lease with it
            tell(config, None, succeeded=False)
        ended = f"Batch {', '.join(map(str, gone))} was rolled back" if gone else "No batch was outstanding"
        raise AirflowFailException(
            f"{ended}: the task {self.merge_task_id} ended as {states[self.merge_task_id]}. Nothing is lost: the next "
            "run takes the same changes again."
        )

    def _is_acked(self, config: DestinationConfig, ti: Any, fetched: Mapping[str, Any]) -> bool:
        """Whether the merge was of the fetched batch, and its last one is acked, here or by the job itself."""
        if self.merge_acks:
            # Batches are acked in order, and one that was rolled back comes again under a higher number.
            return bool(pipeline.acked_manifests(config, fetched["batch"] - 1))
        merged = ti.xcom_pull(task_ids=self.merge_task_id)
        if not xcom.is_result_of(merged, fetched):
            return False
        if merged["batch"] is not None:
            pipeline.finalize(config, xcom.to_lease(config, merged), True, list(merged["results"]))
            self.log.info("Batch %d is acked; it is the run's last.", merged["batch"])
        return True
