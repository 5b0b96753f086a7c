"""``airflow``: how the DAGs that are generated from a configuration file are scheduled, and what their tasks get."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from cdc.config.schedules import ScheduleText, TimeZoneName
from cdc.config.values import Doc, DurationS, FilledText, Section, Whole

DagKind = Literal["capture", "apply", "intervals", "snapshot", "backfill", "verify", "maintain"]
DAG_KINDS: tuple[DagKind, ...] = get_args(DagKind)
"""The kinds of DAGs that ``dags/`` makes for a destination; the id of one is ``KIND_DESTINATION``."""
_SCHEDULES = ("apply_every", "snapshot_every", "verify_every", "maintain_every")
MANIFEST_FIELDS = frozenset({"destination", "batch", "path"})
TABLE_FIELDS = frozenset({"destination", "db", "table", "path"})
SPARK_FIELDS = frozenset({"destination"})
RUN_FIELDS = frozenset({"destination", "dag_id", "run_id", "task_id", "try"})


class _LinkTemplate:
    """Checks an address with placeholders."""

    def __init__(self, fields: frozenset[str]) -> None:
        self._fields = fields

    def __call__(self, text: str) -> str:
        if not re.match(r"https?://[^/]", text):
            raise ValueError("must begin with http:// or https://")
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError:
            raise ValueError("has a single brace; write {{ and }} for braces that are no placeholder") from None
        for _, name, form, conversion in parts:
            if name is not None and (name not in self._fields or form or conversion):
                raise ValueError(f"has an unknown placeholder; known are {', '.join(sorted(self._fields))}")
        return text


ALARMS = "alarms"
"""The value of ``on_failure`` that stands for the handlers of the section ``alarms``."""


def _dotted(path: str) -> str:
    if path != ALARMS and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", path):
        raise ValueError("is neither alarms nor the path of a function like alerts.on_failure")
    return path


class LinksConfig(Section):
    """Addresses of the extra links of tasks, for pages of yours that show these things."""

    manifest: Annotated[FilledText, AfterValidator(_LinkTemplate(MANIFEST_FIELDS))] | None = None
    """Address of a batch's manifest, with `{destination}`, `{batch}` and `{path}`. null means the batch on
    the destination's page in Airflow."""
    table: Annotated[FilledText, AfterValidator(_LinkTemplate(TABLE_FIELDS))] | None = None
    """Address of a Delta table's history, with `{destination}`, `{db}`, `{table}` and `{path}`. A run that changed
    several tables shows the one with most changes. null means the table on the
    destination's page in Airflow."""
    spark: Annotated[FilledText, AfterValidator(_LinkTemplate(SPARK_FIELDS))] | None = None
    """Address of Spark's UI or history server, with `{destination}`. null means no link."""
    run: Annotated[FilledText, AfterValidator(_LinkTemplate(RUN_FIELDS))] | None = None
    """Address of a task of a DAG run, for `cdc history` and the pages, with `{destination}`, `{dag_id}`, `{run_id}`,
    `{task_id}` and `{try}`. null means Airflow's own page below `$AIRFLOW__API__BASE_URL`, and no link without that
    variable."""


class TaskDefaultsConfig(Section):
    """`default_args` of the generated tasks, as Airflow takes them."""

    owner: FilledText = "towpath"
    """Owner that Airflow shows."""
    retry_delay: DurationS = 10.0
    """Pause before the first repetition; it doubles each time."""
    max_retry_delay: DurationS = 300.0
    """Longest pause before a repetition."""
    execution_timeout: DurationS | None = None
    """Time after which Airflow kills fetch, merge, finalize or plan; null means none. Capture, snapshots, replays,
    verifications and maintenance have none."""
    pool_slots: Whole = Field(default=1, ge=1)
    """Slots of the pool that each task takes."""
    priority_weight: Whole = Field(default=1, ge=1)
    """Priority of the tasks in the executor's queue."""
    weight_rule: Annotated[
        Literal["downstream", "upstream", "absolute"],
        Doc(
            choices={
                "downstream": "a task's priority counts those after it",
                "upstream": "a task's priority counts those before it",
                "absolute": "each task has exactly `priority_weight`",
            }
        ),
    ] = "downstream"
    """Rule by which Airflow computes the priority."""


class AirflowConfig(Section):
    """Schedules and settings of the generated DAGs `capture_DEST`, `apply_DEST`, `intervals_DEST`, `snapshot_DEST`,
    `verify_DEST`, `maintain_DEST` and `backfill_DEST`."""

    apply_every: ScheduleText = 60.0
    """Interval of the apply DAG, or a cron expression of five fields such as `'*/5 6-22 * * *'`."""
    start: Annotated[
        Literal["schedule", "data"],
        Doc(
            choices={
                "schedule": "every `apply_every`",
                "data": "when the store has got changes, within seconds, and also every `apply_every`, which repeats "
                "what failed; needs Airflow's triggerer, which has to see this file, and the store and the meta or the "
                "server of both",
            }
        ),
    ] = "schedule"
    """The start of a run of the apply DAG. Changes cannot start runs with `until: interval_end`, because such a run has
    no data interval."""
    start_pause: Annotated[DurationS, Doc(only_with="start: data")] = 10.0
    """Shortest time between two starts by changes: under steady traffic a table gets about one commit in that time."""
    run_for: DurationS = 300.0
    """Time budget of a run of the apply DAG, and of `cdc apply` without options. A run takes batch after batch until it
    has applied what the store had when it began; once the budget is spent it begins no further batch and ends as a
    success, and the next run goes on. It does not limit runs with `until: interval_end`."""
    snapshot_every: ScheduleText = 60.0
    """Interval of the snapshot DAG, which loads the tables that are due for a snapshot, or a cron expression."""
    verify_every: ScheduleText | None = None
    """Interval of the verify DAG, or a cron expression; null means that it runs only when it is triggered."""
    maintain_every: ScheduleText | None = 86400.0
    """Interval of the maintain DAG, which does what `cdc maintain` does, or a cron expression; null means that it runs
    only when it is triggered."""
    timezone: TimeZoneName = "UTC"
    """Time zone of the cron expressions, and of the days of `interval: day`. Without either, another value than UTC is
    refused."""
    capture: Annotated[
        Literal["task", "external"],
        Doc(
            choices={
                "task": "it runs capture, in a task that keeps a slot of a worker all the time",
                "external": "it watches a capture that runs as a service on the triggerer's machine, without a slot, "
                "and fails while that one is away, not connected or without progress for `metrics.unhealthy_after`",
            }
        ),
    ] = "task"
    """The work of the capture DAG."""
    capture_for: DurationS = 3600.0
    """Duration of a run of the capture DAG. The run ends cleanly, and the next run starts at once."""
    retries: Whole = Field(default=3, ge=0)
    """Number of times that Airflow repeats a failed task."""
    until: Annotated[
        Literal["interval_end", "none"],
        Doc(
            choices={
                "none": "a run applies what the store has when it begins, within `run_for`",
                "interval_end": "a run applies exactly what was committed before the end of its data interval, in as "
                "many batches as that takes",
            }
        ),
    ] = "none"
    """Share of the waiting changes that a run of the apply DAG applies."""
    interval: Annotated[
        Literal["hour", "day", "none"],
        Doc(
            choices={
                "none": "there is no intervals DAG",
                "hour": "hours, in UTC",
                "day": "days, in `timezone`",
            }
        ),
    ] = "none"
    """Intervals of the intervals DAG, which emits an event of each table's partitioned asset when the lake has all
    changes of an interval. Needs Airflow 3.3."""
    interval_wait: Annotated[DurationS, Doc(only_with="interval: hour or day")] = 21600.0
    """Longest time that a run of the intervals DAG waits until the lake has all changes of its interval; then it fails
    with the reason."""
    interval_deadline: Annotated[DurationS | None, Doc(only_with="interval: hour or day")] = None
    """Time after which a run of the intervals DAG that still waits is told to the handlers of the section `alarms`, by
    Airflow's triggerer; null means never. It counts from the run's beginning, at the end of its interval."""
    table_events: bool = True
    """Whether runs emit an event for each Delta table that they have changed, through which DAGs of others start (see
    ``docs/how-to/asset-events.md``). Airflow's database keeps the events until ``airflow db clean``."""
    approve_losses: bool = False
    """Whether the form of the backfill DAG can accept that changes are lost, after a person has approved in Airflow
    what is given up (see ``docs/how-to/backfill.md``). Needs Airflow 3.1."""
    max_consecutive_failed_dag_runs: Whole | None = Field(default=None, ge=0)
    """Number of failed runs in a row after which Airflow pauses a DAG; 0 means never, and null Airflow's setting."""
    pool: FilledText | None = None
    """Airflow's pool for all tasks, which has to exist; null means Airflow's default. The capture task keeps its slots
    all the time."""
    queue: FilledText | None = None
    """Queue of all tasks, for executors with queues, so that they run where the store is; null means Airflow's
    default."""
    executor: FilledText | None = None
    """Executor of all tasks, one of those that Airflow's `[core] executor` names; null means the first of them."""
    on_failure: Annotated[FilledText, AfterValidator(_dotted)] | None = None
    """Who is told when a run has failed: `alarms` for the handlers of the section `alarms`, or a function as
    MODULE.FUNCTION, which gets Airflow's context. It is the `on_failure_callback` of the DAGs: Airflow's DAG processor
    calls it, where the function has to be importable."""
    default_args: TaskDefaultsConfig = TaskDefaultsConfig()
    links: LinksConfig = LinksConfig()

    def _contradictions(self) -> Iterator[str]:
        if self.start == "data" and self.until == "interval_end":
            yield (
                "start: data and until: interval_end contradict each other: a run that changes start has no data "
                "interval; remove one of them"
            )
        if self.start != "data" and "start_pause" in self.model_fields_set:
            yield "start_pause has no effect without start: data; remove it, or add start: data"
        cron = any(isinstance(getattr(self, key), str) for key in _SCHEDULES)
        if self.timezone != "UTC" and not cron and self.interval != "day":
            yield f"timezone has no effect without a cron expression in {', '.join(_SCHEDULES)}, or interval: day"
        for key in ("interval_wait", "interval_deadline"):
            if self.interval == "none" and key in self.model_fields_set:
                yield f"{key} has no effect without interval; remove it, or add interval: hour"
        if self.interval_deadline is not None and self.interval_deadline >= self.interval_wait:
            yield "interval_deadline is not before interval_wait, when the run fails; make it shorter"
