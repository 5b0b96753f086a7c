"""``cdc apply``: the steps of the apply DAG without Airflow: fetch, merge, ack or rollback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Annotated, Any

import typer

from cdc.base.errors import CdcError, LeaseHeldError, UsageError
from cdc.base.log import get_logger
from cdc.base.run_identity import airflow_task, work_for_starter
from cdc.batches.lease import Lease, cli_owner, exclusive
from cdc.batches.manifest import TableResult
from cdc.batches.results import RunStats, run_stats
from cdc.binlog.positions import format_seq
from cdc.cli.common import Destination, Json, err, load, out, print_json, say
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.lake.runs import Merged, Run, RunLimits
from cdc.watch.metrics.push import push_run

_log = get_logger(__name__)
_SHOWN = {"table", "inserted", "updated", "deleted", "skipped", "delta_version", "seconds"}


def apply(
    ctx: typer.Context,
    dest: Destination = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Go on until the store has nothing more, however long that takes.")
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="TIME",
            help="Apply exactly what was committed before TIME (ISO 8601 with its offset, as 2026-11-21T10:00:00Z); "
            "none: what the store has.",
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            help="How long to wait for a first transaction, or, with --until, until the store is known to be complete.",
            show_default="batch.max_wait_s, or batch.until_wait_s",
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER",
            help="Owner of the batches, whose outstanding batch is taken over, for a job that a scheduler starts.",
            show_default="cli:<host>:<configuration file>",
        ),
    ] = None,
    airflow_run: Annotated[
        tuple[str, str, str, int] | None,
        typer.Option(
            "--airflow-run",
            metavar="DAG_ID RUN_ID TASK_ID TRY",
            help="The task that the job works for: commits name it, and the finalize of its run tells parked tables.",
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Apply changes to the Delta tables: fetch a batch, merge it, ack it, and so on; a batch that fails is rolled back.

    Without options it does what a run of the apply DAG does: it applies what the store has when it begins, and begins
    no further batch once airflow.run_for is spent. SIGTERM and Ctrl-C end it: the batch under way is rolled back, and
    its transactions come again.
    """
    config = load(ctx, dest)
    limit = None if until in (None, "none") else _time(until)
    if limit is not None:
        limits, first_wait_s = RunLimits(until=limit, wait_s=wait), wait
    elif until_empty:
        limits, first_wait_s = RunLimits(follow=True), 0.0 if wait is None else wait
    else:
        limits, first_wait_s = RunLimits(run_for_s=config.airflow.run_for), wait
    if airflow_run is not None:
        work_for_starter(airflow_task(*airflow_run))
    report = _Report(json_output)
    run = Run(pipeline, config, cli_owner(config, owner), limits, report)
    try:
        with (
            # A job that begins later with the same owner takes the batch over, under a new token.
            exclusive(config) if owner is None else nullcontext(),
            run_stats() as report.stats,
            _rolled_back_at_a_signal(config, run, is_only=owner is None),
            _told(config, report),
        ):
            lease = pipeline.fetch(config, run.owner, limit, first_wait_s)
            try:
                if lease is None:
                    pipeline.retry_parked(config)
                last = None if lease is None else run.merge(lease)
            except Exception:
                if run.merging is not None:
                    _roll_back(config, run.merging)
                raise
            finally:
                report.end()
            if last is not None:
                pipeline.finalize(config, last.lease, True, last.results)
                report.acked(last)
    except _Stopped as stopped:
        say(str(stopped))
        return
    finally:
        if json_output and (report.done or sys.exception() is None):
            print_json({"batches": report.done})
    if not json_output:
        _show_end(config, report, spent=run.spent)
    if airflow_run is None:
        pipeline.require_none_left_out(config, say)


def _show_end(config: DestinationConfig, report: _Report, *, spent: bool) -> None:
    if not report.done:
        out().print("Nothing to apply.")
    if spent:
        out().print(
            f"{config.airflow.run_for:g} s (airflow.run_for) are spent, and more is waiting: run it again, or with "
            "--until-empty."
        )


class _Report:
    """Shows the batches of the run, and collects them for JSON."""

    stats: RunStats
    """Set when the run begins."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._status: Any = None
        self.done: list[dict[str, Any]] = []
        """The acked batches."""

    def began(self, lease: Lease) -> None:
        """Shows on a terminal what is merged."""
        if self._quiet or not err().is_terminal:
            return
        tables = ", ".join(lease.manifest.tables[:3]) + (", …" if len(lease.manifest.tables) > 3 else "")
        self._status = err().status(f"Batch {lease.batch}: {lease.manifest.row_events} row events of {tables}")
        self._status.start()

    def merged(self, batch: Merged) -> None:
        self.stats.add(batch.results, batch.lease.manifest)
        self.end()

    def end(self) -> None:
        """Removes what :meth:`began` shows."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def acked(self, batch: Merged) -> None:
        self.done.append(_as_json(batch.lease, batch.results))
        if not self._quiet:
            _show(batch.lease, batch.results)


class _Stopped(Exception):
    """The command was stopped by a signal; the message is for the user."""


@contextmanager
def _rolled_back_at_a_signal(config: DestinationConfig, run: Run, *, is_only: bool) -> Iterator[None]:
    """Turns SIGTERM and SIGINT into :class:`_Stopped`, after a rollback of the owner's outstanding batches: the current
    one, or one that was fetched at that very moment. Unless this ``is_only`` process of the owner, it rolls back the
    current one alone, by its token."""
    try:
        yield
    except KeyboardInterrupt:
        pipeline.stop()  # no driver may continue
        if is_only:
            gone = pipeline.release(config, run.owner)
        else:
            gone = [run.merging.batch] if run.merging is not None and _roll_back(config, run.merging) else []
        if not gone:
            raise _Stopped(f"{config.name}: stopped; no batch was under way.") from None
        what = f"batch {gone[0]} was" if len(gone) == 1 else f"batches {', '.join(map(str, gone))} were"
        raise _Stopped(f"{config.name}: stopped; {what} rolled back. The next run takes the same changes.") from None


@contextmanager
def _told(config: DestinationConfig, report: _Report) -> Iterator[None]:
    """Pushes the metrics of the run at its end. A run that finds another one at work, or is stopped, pushes none."""
    try:
        yield
    except LeaseHeldError:
        raise
    except Exception:
        push_run(config, report.stats, succeeded=False)
        raise
    push_run(config, report.stats, succeeded=True)


def _roll_back(config: DestinationConfig, lease: Lease) -> bool:
    """Rolls a batch back, and returns whether that was possible."""
    try:
        pipeline.finalize(config, lease, False)
    except CdcError as error:  # log it only: the caller raises the error of the merge
        _log.warning("the batch was not rolled back", batch=lease.batch, reason=str(error))
        return False
    return True


def _time(text: str) -> datetime:
    """Parses a time. Raises UsageError, also for a time without an offset: its time zone would be a guess, and changes
    that were applied too early cannot be taken back."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--until {text!r} is not a time", remedy="Write it like 2026-11-21T10:00:00Z.") from None
    if time.tzinfo is None:
        raise UsageError(
            f"--until {text!r} does not say in which time zone it is",
            remedy="Add its offset: Z for UTC, or one like +01:00.",
        )
    return time


def _as_json(lease: Lease, results: list[TableResult]) -> dict[str, Any]:
    manifest = lease.manifest
    return {
        "batch": manifest.batch,
        "first_seq": manifest.first_seq,
        "last_seq": manifest.last_seq,
        "transactions": manifest.transactions,
        "row_events": manifest.row_events,
        # The keys are an interface, so only these fields are shown.
        "tables": [
            result.model_dump(mode="json", include=_SHOWN)
            for result in results
            if result.parked is None and not result.idle
        ],
        "parked": {result.table: result.parked.reason for result in results if result.parked is not None},
    }


def _show(lease: Lease, results: list[TableResult]) -> None:
    manifest = lease.manifest
    kind = f"{manifest.transactions} transactions, {manifest.row_events} row events"
    if manifest.mixed:
        kind += ", with DDL"
    elif manifest.ddl:
        kind = "DDL" if manifest.transactions == 1 else f"{manifest.transactions} DDL statements"
    console = out()
    console.print(f"Batch {manifest.batch}: {kind}, up to {format_seq(manifest.last_seq)}", markup=False)
    for result in results:
        if result.idle:
            continue
        if result.parked is not None:
            console.print(f"  {result.table}: left out from now on", markup=False)
            continue
        counts = {"inserted": result.inserted, "updated": result.updated, "deleted": result.deleted}
        parts = [f"{count} {word}" for word, count in counts.items() if count]
        if result.skipped:
            parts.append(f"{result.skipped} changes were there already")
        if result.null_dates:
            parts.append(f"{result.null_dates} zero or impossible dates became null")
        console.print(
            f"  {result.table}: {', '.join(parts) or 'no rows'}; "
            f"version {result.delta_version}, {result.seconds:.1f} s",
            markup=False,
        )
