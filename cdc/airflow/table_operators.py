"""The operators that work on single tables: plan, snapshot, replay, verify, and the end of a backfill."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.airflow import forms, lineage, links, texts, xcom
from cdc.airflow.assets import PROVED, proved_asset
from cdc.airflow.base import DestinationOperator
from cdc.airflow.changes import LoadKind, tell_loads, telling_loads
from cdc.airflow.compat import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped, TriggerRule
from cdc.airflow.connections import airflow_connections
from cdc.base.errors import RetryableError, UsageError
from cdc.base.log import hide_password
from cdc.lake import attestation, pipeline

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc.config import DestinationConfig

_PROGRESS_S = 10.0
"""The interval at which the progress of a job is logged."""
PLAN, SUMMARY = "plan", "summary"
"""Keys of the XComs of a plan: what will be done, for the tasks and, as Markdown, for people."""


class _JobOperator(lineage.LineageMixin, DestinationOperator):
    """A job on tables.

    ``tables`` (templated): names as DB.TABLE, in a list or in a text with commas. ``plan_task_id``: instead, the task
    whose plan says which tables, and what to do with them.
    """

    template_fields: Sequence[str] = ("conf_file", "tables")

    def __init__(
        self, *, tables: Sequence[str] | str | None = None, plan_task_id: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if tables is not None and plan_task_id is not None:
            raise UsageError(
                "tables and plan_task_id contradict each other",
                place=f"the task {self.task_id}",
                remedy="Give one of them: a plan names its tables itself.",
            )
        self.tables = tables
        self.plan_task_id = plan_task_id
        self._shown: dict[str, float] = {}

    def _tell_loads(
        self,
        config: DestinationConfig,
        context: Context,
        kind: LoadKind,
        results: Sequence[Any],
        wanted: Sequence[str] | None,
    ) -> int:
        """Emits the events of the loaded tables; returns their number. ``wanted``: None for all tables."""
        changes = tell_loads(self, config, context, kind, results, wanted)
        if changes:
            self.log.info("Emits events of %s.", ", ".join(change.table for change in changes))
        return len(changes)

    def on_kill(self) -> None:
        """Kills the driver that this task started."""
        pipeline.stop()

    def _wanted(self, config: DestinationConfig, context: Context) -> list[str] | None:
        """Returns the tables of this task or of its plan; None for all. Raises UsageError."""
        asked = self._asked(context)
        if asked is not None:
            return list(asked["tables"])
        return None if self.tables is None else forms.table_names(config, self.tables)

    def _asked(self, context: Context) -> Mapping[str, Any] | None:
        """Returns what the form asked for; None without a plan task."""
        if self.plan_task_id is None:
            return None
        asked = context["ti"].xcom_pull(task_ids=self.plan_task_id, key=PLAN)
        if asked is None:
            raise AirflowFailException(f"The task {self.plan_task_id} left no plan. Clear the whole run.")
        return asked  # type: ignore[no-any-return]

    def _progress(self, progress: Any) -> None:
        """Logs progress, every few seconds for each table. Called from any thread."""
        table, now = str(getattr(progress, "table", "")), time.monotonic()
        if not getattr(progress, "complete", False) and now - self._shown.get(table, -_PROGRESS_S) < _PROGRESS_S:
            return
        self._shown[table] = now
        self.log.info("%s", texts.progress_line(progress))

    def _report(self, config: DestinationConfig, results: Sequence[Any]) -> dict[str, Any]:
        """Logs a table of the results, and returns them as an XCom."""
        documents = [result.as_dict() for result in results]
        tables = [lineage.ChangedTable(row["table"], row["rows"], path=row.get("path")) for row in documents]
        self._tell_lineage(lambda: lineage.written(config, tables))
        self.link_targets[links.SPARK] = links.spark_address(config)
        if (table := links.most_changed((row["table"], row["rows"]) for row in documents)) is not None:
            path = next(document.get("path") for document in documents if document["table"] == table)
            self.link_targets[links.TABLE] = links.table_address(config, table, path)
        self.log.info("Done:\n%s", texts.text_table(documents))
        return {"tables": documents}


class TowpathSnapshotOperator(_JobOperator):
    """Takes snapshots of ``tables``, of the tables of the plan, or, without either, of those that are due, and loads
    them.

    A task that is repeated does not read finished chunks again. Emits an event for each table that it has loaded
    (:mod:`cdc.airflow.changes`).
    """

    operator_extra_links = (links.TowpathTableLink(), links.TowpathSparkLink())

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**telling_loads(kwargs))

    def execute(self, context: Context) -> dict[str, Any]:
        """Raises AirflowSkipException if no table is due, or nothing was captured yet."""
        with xcom.airflow_errors(), airflow_connections():
            config = self._config()
            tables = self._wanted(config, context)
            if tables is None and not pipeline.has_captured(config):
                raise AirflowSkipException("Nothing was captured yet: the snapshots begin when capture does.")
            results = pipeline.snapshot(config, tables, progress=self._progress)
            sent = self._tell_loads(config, context, "snapshot", results, tables)
        if not results and not sent:
            raise AirflowSkipException("No table is due for a snapshot.")
        return self._report(config, results)


class TowpathReplayOperator(_JobOperator):
    """Rebuilds tables from the store, as a whole or in a range: those of the plan, or ``tables``.

    ``from_`` and ``to`` (templated): a seq, a time with its offset, a GTID or a GTID set. ``into`` (templated): a
    folder or URI for new tables, with ``mode`` as their mode. An empty text counts as none. Emits an event for each
    table (:mod:`cdc.airflow.changes`).
    """

    operator_extra_links = (links.TowpathTableLink(), links.TowpathSparkLink())
    template_fields: Sequence[str] = ("conf_file", "tables", "from_", "to", "into", "mode")

    def __init__(
        self,
        *,
        from_: str | None = None,
        to: str | None = None,
        into: str | None = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**telling_loads(kwargs))
        self.from_, self.to, self.into, self.mode = from_, to, into, mode
        if (self.tables is None) == (self.plan_task_id is None):
            raise UsageError(
                "a replay needs tables", place=f"the task {self.task_id}", remedy="Set tables or plan_task_id."
            )
        if self.plan_task_id is not None and any(value is not None for value in (from_, to, into, mode)):
            raise UsageError(
                "from_, to, into and mode contradict plan_task_id",
                place=f"the task {self.task_id}",
                remedy="Leave them out: the plan has its own.",
            )

    def execute(self, context: Context) -> dict[str, Any]:
        """Raises what stopped a table; a permanent error fails the task without retries."""
        asked = self._asked(context)
        with xcom.airflow_errors(), airflow_connections():
            config = self._config()
            tables = self._wanted(config, context)
            assert tables is not None
            own = {"from": self.from_, "to": self.to, "into": self.into, "mode": self.mode}
            arguments = forms.replay_arguments(own if asked is None else asked)
            results = pipeline.replay(config, tables, progress=self._progress, **arguments)
            self._tell_loads(config, context, "replay", results, tables)
        return self._report(config, results)


class TowpathVerifyOperator(_JobOperator):
    """Verifies ``tables``, the tables of the plan, or, without either, all tables. Logs the report as a table, and
    fails if something differs.

    ``second_opinion``: rows of the store that are decoded once more with another library; 0 for none. ``attest``
    (templated): the file of a signed document, as ``cdc verify --attest`` writes it; a file that exists is refused, so
    that its name should hold ``{{ run_id }}`` and ``{{ ti.try_number }}``.

    Emits an event of :func:`proved_asset` for each table if everything is proved.
    """

    template_fields: Sequence[str] = ("conf_file", "tables", "attest")

    def __init__(self, *, second_opinion: int = 2000, attest: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("outlets", [PROVED])
        super().__init__(**kwargs)
        self.second_opinion = second_opinion
        self.attest = attest

    def execute(self, context: Context) -> dict[str, Any]:
        """Raises AirflowFailException if something differs or a column cannot be compared, VerificationError (retried)
        if it could not be told."""
        with xcom.airflow_errors(), airflow_connections():
            config = self._config()
            tables = self._wanted(config, context)
            attest = None if self.attest is None else Path(self.attest)
            if attest is not None:
                attestation.require_possible(config, attest)
            report = pipeline.verify(config, tables, progress=self._progress, second_opinion=self.second_opinion)
            if attest is not None:
                attestation.write(config, report, attest)
        document: dict[str, Any] = report.document()
        self._tell_lineage(lambda: lineage.verified(config, document["tables"]))
        lines = texts.verification(document)
        context["ti"].xcom_push(key=SUMMARY, value=lines)
        if report.state == "proved":
            self.log.info("Everything is proved:\n%s", lines)
            self._emit(config, document, context["outlet_events"])
            return document
        self.log.error("Not everything is proved:\n%s", lines)
        names = ", ".join(table["table"] for table in document["tables"] if not table["ok"]) or "the store's history"
        if (document["second_opinion"] or {}).get("differences"):
            raise AirflowFailException(
                f"A second library reads other values in the store of {config.name}. See the log."
            )
        if report.state == "differs":
            raise AirflowFailException(f"The tables of {config.name} differ from the source: {names}. See the log.")
        if report.state == "partial":
            raise AirflowFailException(f"Columns of {names} could not be compared. See the log.")
        raise VerificationError(f"it could not be told whether {names} equal the source", place=config.name)

    def _emit(self, config: DestinationConfig, document: Mapping[str, Any], events: Any) -> None:
        """Emits an event for each table of a report in which everything is proved."""
        for table in document["tables"]:
            checksums = table["checksums"]
            extra = {
                "destination": config.name,
                "table": table["table"],
                "path": hide_password(config.table_path(table["table"])),
                "delta_version": table["delta_version"],
                "applied_seq": table["applied_seq"],
                "seq": checksums["seq"],
                "gtids": checksums["gtids"],
                "rows": table["rows"],
                "sum": checksums["sum"],
                "attestation": self.attest,
            }
            events[PROVED].add(proved_asset(config.name, table["table"]), extra=extra)


class TowpathMaintainOperator(lineage.LineageMixin, DestinationOperator):
    """Does what ``cdc maintain`` does: removes from the store what no subscriber needs any more, and compacts, clusters
    and vacuums Delta tables. It needs the store's disk.

    ``tables`` (templated): the Delta tables, as DB.TABLE in a list or in a text with commas; None for all.
    ``store_only``: the Delta tables are left alone. ``vacuum``: whether files are deleted that no readable version of a
    table needs. ``dry_run``: the log says what the store would lose, and nothing changes.
    """

    template_fields: Sequence[str] = ("conf_file", "tables")

    def __init__(
        self,
        *,
        tables: Sequence[str] | str | None = None,
        store_only: bool = False,
        vacuum: bool = True,
        dry_run: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tables = tables
        self.store_only = store_only
        self.vacuum = vacuum
        self.shows_only = dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        """Returns the document that ``cdc maintain --json`` prints. Raises UsageError on a standby or for an unknown
        table, ConfigError without a store; both fail the task without a retry."""
        with xcom.airflow_errors():
            config = self._config()
            tables = [] if self.tables is None else forms.table_names(config, self.tables)
            document = pipeline.maintain(
                config,
                tables,
                dry_run=self.shows_only,
                store_only=self.store_only,
                vacuum=self.vacuum,
                progress=lambda maintained: self.log.info("%s", maintained),
            )
        tables = [] if self.shows_only else [table["table"] for table in document.get("tables", ())]
        self._tell_lineage(lambda: lineage.maintained(config, tables))
        self.log.info("%s", texts.maintenance(document))
        for name in document["cut_off"]:
            self.log.warning("Subscriber %s was cut off: it had not acked all that was removed.", name)
        return document


class VerificationError(RetryableError):
    """A verification could not be completed, for example because capture was behind."""


class TowpathPlanOperator(DestinationOperator):
    """Reads the form of a backfill, says in its log and XComs what will be done, and skips what was not asked for.

    A dry run ends here: all later tasks are skipped, and the run succeeds. ``work``: the task of each kind of backfill.
    """

    def __init__(self, *, work: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.work = dict(work)

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException if the form contradicts itself or the configuration."""
        with xcom.airflow_errors(), airflow_connections():
            config = self._config()
            form = forms.read_form(config, context["params"])
            plan = self._plan(config, form)
        summary = texts.plan_summary(form, plan)
        self.log.info("What will be done:\n%s", summary)
        ti = context["ti"]
        ti.xcom_push(key=PLAN, value={**form.as_dict(), "plan": plan})
        ti.xcom_push(key=SUMMARY, value=summary)
        if form.dry_run:
            self.log.info("This is a dry run: nothing is done.")
            left_out = sorted(self.get_flat_relative_ids(upstream=False))
        else:
            left_out = sorted(task for kind, task in self.work.items() if kind != form.kind)
        raise DownstreamTasksSkipped(tasks=left_out)  # type: ignore[no-untyped-call]

    def _plan(self, config: DestinationConfig, form: forms.Backfill) -> dict[str, Any]:
        """Returns the plan as JSON; empty for a verification, which changes nothing."""
        asked = form.as_dict()
        if form.kind == "snapshot":
            return pipeline.plan_snapshot(config, form.tables).as_dict()
        if form.kind == "replay":
            return pipeline.plan_replay(config, form.tables, **forms.replay_arguments(asked)).as_dict()
        if form.kind == "accept":
            return pipeline.find_loss(config, form.tables)
        return {}


class TowpathFinalizeBackfillOperator(DestinationOperator):
    """Ends a backfill: says what was done, or fails the run and says how to go on.

    It runs in any case, and asks Airflow for the states of the tasks before it. Each table is replaced by one commit,
    so there is no half of it to roll back. A table whose replay was cut off is brought level by the next run of apply,
    and a table whose snapshot was cut off waits for the next try, or for the snapshot DAG.
    """

    def __init__(self, *, work: Mapping[str, str], plan_task_id: str = "plan", **kwargs: Any) -> None:
        kwargs.setdefault("trigger_rule", TriggerRule.ALL_DONE)
        super().__init__(**kwargs)
        self.work, self.plan_task_id = dict(work), plan_task_id

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException if the work was not done."""
        ti = context["ti"]
        asked = ti.xcom_pull(task_ids=self.plan_task_id, key=PLAN)
        if asked is None:
            raise AirflowFailException(f"Nothing was done: the task {self.plan_task_id} has no plan; see its log.")
        task = self.work[asked["kind"]]
        state = xcom.task_states(context, [task])[task]
        if asked["kind"] == "accept" and state != "success":
            raise AirflowFailException(
                f"Nothing was accepted; see the log of the task {task}. Trigger the DAG again to be asked anew."
            )
        if state != "success" or ti.xcom_pull(task_ids=task) is None:
            raise AirflowFailException(
                f"The backfill is not done: the task {task} ended as {state}; see its log. Clear that task to go on: "
                "tables that are done, and chunks that were read, are kept."
            )
        self.log.info("The backfill of %s is done.", ", ".join(asked["tables"]) or "all tables")
