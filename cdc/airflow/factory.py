"""Builds DAGs from configuration files, for each ``conf/<dest>.yaml``: ``capture_<dest>``, ``apply_<dest>``,
``intervals_<dest>``, ``snapshot_<dest>``, ``backfill_<dest>``, ``verify_<dest>`` and ``maintain_<dest>``.

Parsing connects to no server and reads no connection. A broken file affects only its own DAGs: they keep their names
and tasks, are tagged ``configuration-error``, show the error as their documentation, and fail with it when they run.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Asset, AssetWatcher, BaseOperator, get_parsing_context

from cdc.airflow import forms
from cdc.airflow.compat import (
    RETRY_BACKOFF,
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    deadline,
    has_approvals,
    has_partitions,
    is_executor,
    partition_schedule,
)
from cdc.airflow.configuration import read_config
from cdc.airflow.intervals import CRON, KEY_FORMAT, time_zone
from cdc.airflow.notifier import TowpathNotifier
from cdc.airflow.operators import (
    TowpathCaptureOperator,
    TowpathCaptureWatchOperator,
    TowpathFinalizeBackfillOperator,
    TowpathIntervalSensor,
    TowpathLeftOutOperator,
    TowpathMaintainOperator,
    TowpathPlanOperator,
    TowpathPublishOperator,
    TowpathReplayOperator,
    TowpathSnapshotOperator,
    TowpathVerifyOperator,
)
from cdc.airflow.task_group import MergeJob, apply_tasks
from cdc.airflow.triggers import TowpathStoreTrigger
from cdc.base.errors import ConfigError
from cdc.base.units import human_seconds
from cdc.config import ALARMS, DAG_KINDS, AirflowConfig, DagKind, DestinationConfig, as_named, destinations

if TYPE_CHECKING:
    from airflow.sdk import Context

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Any time in the past: the DAGs have no catch-up."""
ERROR_TAG = "configuration-error"

_DAG_NAME = re.compile(r"[\w.-]{1,200}", re.ASCII)


def conf_folder(dag_file: str) -> Path:
    """Returns ``$CDC_CONF``, else the folder ``conf`` beside the folder of the DAG file.

    Links in the path are kept, so that the path stays the same when git-sync swaps a link.
    """
    return as_named(Path(os.environ.get("CDC_CONF") or as_named(Path(dag_file)).parent.parent / "conf"))


def build_dags(
    conf_dir: Path,
    kinds: Iterable[DagKind] = DAG_KINDS,
    default_args: Mapping[str, Any] | None = None,
    merge: MergeJob | None = None,
) -> dict[str, DAG]:
    """Returns the DAGs of a configuration folder by their ids, sorted; none if there is no such folder.

    A destination with ``store.kind: server`` has no capture DAG: capture runs beside that server. One whose store is
    in the memory of a server has no DAGs: there are no batches for tables. ``default_args``: arguments for all tasks,
    as a DAG takes them, before those of the configuration. ``merge``: makes the task of the apply DAGs that merges in a
    job elsewhere. If Airflow needs a single DAG because a task is about to run, only that one is built.
    """
    parsed_dag_id, built = get_parsing_context().dag_id, sorted(kinds)
    dags: dict[str, DAG] = {}
    for name in destinations(conf_dir):
        ids = {kind: f"{kind}_{name}" for kind in built}
        chosen = [kind for kind, dag_id in ids.items() if parsed_dag_id is None or parsed_dag_id == dag_id]
        if chosen and _DAG_NAME.fullmatch(name):
            destination = replace(_read(conf_dir / f"{name}.yaml", default_args), merge=merge)
            dags |= {ids[kind]: _BUILD[kind](destination) for kind in chosen if _is_ours(kind, destination)}
    return dags


def _is_ours(kind: DagKind, destination: _Destination) -> bool:
    """Whether the DAG has work, and can do it here: capture writes to the disk of the store."""
    if destination.config is not None and destination.config.store.kind == "memory":
        return False
    if kind == "intervals":
        return destination.settings.interval != "none"
    return kind != "capture" or destination.config is None or destination.config.store.kind == "file"


def check_configurations(conf_dir: Path) -> None:
    """Raises one ConfigError with all errors in the configuration files of the folder."""
    errors: list[str] = []
    for name in destinations(conf_dir):
        file = conf_dir / f"{name}.yaml"
        if not _DAG_NAME.fullmatch(name):
            errors.append(f"{file}: the name cannot be part of a DAG's id. Use letters, digits, dot, dash, underscore.")
            continue
        destination = _read(file, None)
        if destination.error is not None:
            errors.append(destination.error)
    if errors:
        raise ConfigError("\n".join(errors))


@dataclass(frozen=True)
class _Destination:
    """A configuration file, as far as its DAGs need it."""

    file: Path
    config: DestinationConfig | None
    """None if the file is broken."""
    error: str | None
    default_args: Mapping[str, Any]
    on_failure: Callable[[Context], None] | None
    merge: MergeJob | None = None
    """See :func:`build_dags`."""

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def conf_file(self) -> str:
        return str(self.file)

    @property
    def settings(self) -> AirflowConfig:
        return AirflowConfig() if self.config is None else self.config.airflow


def _read(file: Path, default_args: Mapping[str, Any] | None) -> _Destination:
    """Reads a configuration file. An error in it becomes part of its DAGs."""
    try:
        config = read_config(file)
    except ConfigError as error:
        return _Destination(file, None, str(error), _task_defaults(AirflowConfig()) | dict(default_args or {}), None)
    settings, failure, callback = config.airflow, None, None
    try:
        callback = _callback(settings.on_failure, file)
        _require_executor(settings.executor)
        _require_partitions(settings)
        _require_approvals(settings)
    except ConfigError as error:
        failure = f"{file}: {error}"
        settings = settings.model_copy(update={"executor": None} | ({} if has_partitions() else {"interval": "none"}))
        config = config.model_copy(update={"airflow": settings})
    return _Destination(file, config, failure, _task_defaults(settings) | dict(default_args or {}), callback)


def capture_dag(destination: _Destination) -> DAG:
    """Builds the DAG that runs capture, or watches the one that runs elsewhere, for ``airflow.capture_for`` at a time,
    one run after the other."""
    if destination.settings.capture == "external":
        what = (
            f"Watches the capture of `{destination.name}`, which runs outside Airflow, and fails while it is dead or "
            "stuck. Runs all the time."
        )
        dag = _dag("capture", destination, schedule="@continuous", doc_md=what)
        with dag:
            TowpathCaptureWatchOperator(
                task_id="capture",
                conf_file=destination.conf_file,
                watch_for_s=destination.settings.capture_for,
                execution_timeout=None,
            )
        return dag
    what = (
        f"Reads the source of `{destination.name}` into its store. After a stop it resumes at its last position. Runs "
        "all the time."
    )
    dag = _dag("capture", destination, schedule="@continuous", doc_md=what)
    with dag:
        TowpathCaptureOperator(
            task_id="capture",
            conf_file=destination.conf_file,
            capture_for_s=destination.settings.capture_for,
            execution_timeout=None,
        )
    return dag


def apply_dag(destination: _Destination) -> DAG:
    """Builds the DAG ``fetch >> merge >> finalize``, every ``airflow.apply_every`` and, with ``airflow.start: data``,
    when the store has got changes: a run applies what the store has, within ``airflow.run_for``, or its data
    interval."""
    settings, asset = destination.settings, _store_asset(destination)
    whole = settings.until == "none"
    what = "the changes" if whole else "what was committed before the end of each run's interval"
    dag = _dag(
        "apply",
        destination,
        schedule=_schedule(settings, settings.apply_every, has_interval=not whole, asset=asset),
        doc_md=f"Merges {what} of `{destination.name}` into the Delta tables, then acks or rolls back. "
        f"{_in_words(settings, settings.apply_every, on_data=asset is not None)}",
    )
    with dag:
        apply_tasks(destination.conf_file, destination.name, f"airflow:{dag.dag_id}", destination.merge)
    return dag


def intervals_dag(destination: _Destination) -> DAG:
    """Builds the DAG ``wait >> publish >> left_out``, one run for each hour or day: it emits an event of each table's
    partitioned asset when the lake has all changes of the interval.

    The first run is for the interval that ended last; from then on no interval is left out.
    """
    settings, options = destination.settings, {}
    if settings.interval_deadline is not None:
        late = f"The lake does not have the changes of the last {settings.interval} of {destination.name} yet."
        message = {"conf_file": destination.conf_file, "summary": late}
        options["deadline"] = deadline(TowpathNotifier, message, settings.interval_deadline)
    dag = _dag(
        "intervals",
        destination,
        schedule=partition_schedule(CRON[settings.interval], time_zone(settings), KEY_FORMAT),
        catchup=True,
        doc_md=f"Emits an event of each table of `{destination.name}` when the lake has all changes of "
        f"{'an hour' if settings.interval == 'hour' else 'a day'}. Runs at the end of each {settings.interval}.",
        **options,
    )
    with dag:
        wait = TowpathIntervalSensor(task_id="wait", conf_file=destination.conf_file, timeout=settings.interval_wait)
        publish = TowpathPublishOperator(
            task_id="publish", conf_file=destination.conf_file, destination=destination.name
        )
        left_out = TowpathLeftOutOperator(
            task_id="left_out", conf_file=destination.conf_file, publish_task_id="publish"
        )
        wait >> publish >> left_out
    return dag


def snapshot_dag(destination: _Destination) -> DAG:
    """Builds the DAG that loads the tables that are due for a snapshot, every ``airflow.snapshot_every``."""
    what = f"Loads the tables of `{destination.name}` that are due for a snapshot, beside the apply DAG."
    return _dag_of_one("snapshot", destination, TowpathSnapshotOperator, destination.settings.snapshot_every, what)


def verify_dag(destination: _Destination) -> DAG:
    """Builds the DAG that verifies all tables, every ``airflow.verify_every``, or only by hand."""
    what = f"Proves that the tables of `{destination.name}` equal the source, and fails if they differ."
    return _dag_of_one("verify", destination, TowpathVerifyOperator, destination.settings.verify_every, what)


def maintain_dag(destination: _Destination) -> DAG:
    """Builds the DAG that maintains the store and the Delta tables, every ``airflow.maintain_every``, or only by
    hand."""
    what = f"Removes what `{destination.name}` does not need any more, and compacts its tables, beside the apply DAG."
    return _dag_of_one("maintain", destination, TowpathMaintainOperator, destination.settings.maintain_every, what)


def backfill_dag(destination: _Destination) -> DAG:
    """Builds the DAG that is started by hand with a form: ``plan >> (snapshot | replay | verify) >> finalize``, with
    ``accept`` beside the three if ``airflow.approve_losses`` says so."""
    work: dict[str, str] = {kind: kind for kind in forms.kinds(destination.config)}
    operators = dict(_BACKFILLS)
    if "accept" in work:
        from cdc.airflow.approval import TowpathAcceptOperator  # its base does not exist before Airflow 3.1

        operators["accept"] = TowpathAcceptOperator
    dag = _dag(
        "backfill",
        destination,
        schedule=None,
        doc_md=f"Loads, rebuilds or verifies tables of `{destination.name}`. Trigger it, and fill in the form.",
        params=forms.fields(destination.config),
    )
    with dag:
        plan = TowpathPlanOperator(task_id="plan", conf_file=destination.conf_file, work=work)
        finalize = TowpathFinalizeBackfillOperator(task_id="finalize", conf_file=destination.conf_file, work=work)
        for kind, operator in operators.items():
            job = operator(task_id=kind, conf_file=destination.conf_file, plan_task_id="plan", execution_timeout=None)
            plan >> job >> finalize
    return dag


_BACKFILLS: Mapping[forms.Kind, Callable[..., BaseOperator]] = {
    "snapshot": TowpathSnapshotOperator,
    "replay": TowpathReplayOperator,
    "verify": TowpathVerifyOperator,
}
_BUILD: Mapping[DagKind, Callable[[_Destination], DAG]] = {
    "capture": capture_dag,
    "apply": apply_dag,
    "intervals": intervals_dag,
    "snapshot": snapshot_dag,
    "backfill": backfill_dag,
    "verify": verify_dag,
    "maintain": maintain_dag,
}


def _dag(kind: DagKind, destination: _Destination, *, doc_md: str, **options: Any) -> DAG:
    """Returns a DAG without tasks. It has one run at a time: two would take each other's batch, or work on the same
    table; and no catch-up, unless ``options`` say so. A configuration error takes the place of its documentation."""
    documentation = destination.error or doc_md
    if destination.settings.max_consecutive_failed_dag_runs is not None:
        options["max_consecutive_failed_dag_runs"] = destination.settings.max_consecutive_failed_dag_runs
    options.setdefault("start_date", START)
    options.setdefault("catchup", False)
    return DAG(
        f"{kind}_{destination.name}",
        dag_display_name=f"{destination.name}: {kind}",  # Airflow's list is sorted by it
        max_active_runs=1,
        default_args=dict(destination.default_args),
        on_failure_callback=destination.on_failure,
        tags=_tags(kind, destination.name, destination.error),
        description=documentation.replace("`", ""),  # the list of DAGs shows it as it is
        doc_md=documentation,
        **options,
    )


def _dag_of_one(
    kind: DagKind,
    destination: _Destination,
    operator: Callable[..., BaseOperator],
    every: float | str | None,
    doc_md: str,
) -> DAG:
    """Returns a DAG of one task, which may take as long as it takes. ``every``: None if it only runs by hand."""
    settings = destination.settings
    doc_md = f"{doc_md} {_in_words(settings, every)}"
    dag = _dag(kind, destination, schedule=_schedule(settings, every), doc_md=doc_md)
    with dag:
        operator(task_id=kind, conf_file=destination.conf_file, execution_timeout=None)
    return dag


def _store_asset(destination: _Destination) -> Asset | None:
    """Returns the asset that stands for a store, watched by Airflow's triggerer; None unless changes start the runs."""
    if destination.config is None or destination.settings.start != "data":
        return None
    store = destination.config.store
    trigger = TowpathStoreTrigger(
        conf_file=destination.conf_file,
        store=str(store.path) if store.url is None else store.url,
        pause_s=destination.settings.start_pause,
    )
    name = f"towpath_store_{destination.name}"
    return Asset(
        name=name,
        uri=f"towpath://store/{destination.name}",
        watchers=[AssetWatcher(name=f"{name}_watcher", trigger=trigger)],
    )


def _schedule(
    settings: AirflowConfig, every: float | str | None, *, has_interval: bool = False, asset: Asset | None = None
) -> Any:
    """Returns a schedule. ``has_interval``: runs have a data interval from one time to the next; with a plain schedule
    Airflow 3 gives them one of length zero. ``asset``: its events start runs too."""
    if every is None:
        return None
    if asset is not None:
        by_time = (
            CronTriggerTimetable(every, timezone=settings.timezone)
            if isinstance(every, str)
            else DeltaTriggerTimetable(timedelta(seconds=every))
        )
        return AssetOrTimeSchedule(timetable=by_time, assets=[asset])
    if isinstance(every, str):
        timetable = CronDataIntervalTimetable if has_interval else CronTriggerTimetable
        return timetable(every, timezone=settings.timezone)
    interval = timedelta(seconds=every)
    return DeltaDataIntervalTimetable(interval) if has_interval else interval


def _in_words(settings: AirflowConfig, every: float | str | None, *, on_data: bool = False) -> str:
    """Returns the schedule as a sentence. Airflow shows a duration as ``0:01:00``, and words only for its own and for
    timetables of a plugin, without which its scheduler would not run the DAG."""
    if every is None:
        return "Runs when it is triggered."
    times = f"at `{every}` ({settings.timezone})" if isinstance(every, str) else f"every {human_seconds(every)}"
    return f"Runs when the store has got changes, and {times}." if on_data else f"Runs {times}."


def _callback(path: str | None, file: Path) -> Callable[[Context], None] | None:
    """Imports a function by its path, or returns one that tells the handlers of the alarms. Raises ConfigError."""
    if path is None:
        return None
    if path == ALARMS:
        return TowpathNotifier(conf_file=str(file))
    module, _, name = path.rpartition(".")
    place, remedy = "airflow.on_failure", "Put its module where DAG files are parsed, for example into the DAG folder."
    try:
        function = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {error}", place=place, remedy=remedy) from error
    if not callable(function):
        raise ConfigError(f"{module} has no function {name}", place=place, remedy=remedy)
    return function  # type: ignore[no-any-return]


def _require_executor(name: str | None) -> None:
    """Raises ConfigError for an executor that this Airflow is not configured with."""
    if name is not None and not is_executor(name):
        raise ConfigError(
            f"{name} is not an executor of this Airflow",
            place="airflow.executor",
            remedy="Add it to [core] executor, or name one that is there.",
        )


def _require_partitions(settings: AirflowConfig) -> None:
    """Raises ConfigError if this Airflow has no partitioned assets and intervals are to be published."""
    if settings.interval != "none" and not has_partitions():
        raise ConfigError(
            f"interval: {settings.interval} needs partitioned assets, which this Airflow does not have",
            place="airflow.interval",
            remedy="Use Airflow 3.3 or later, or remove it.",
        )


def _require_approvals(settings: AirflowConfig) -> None:
    """Raises ConfigError if tasks of this Airflow cannot ask a person, and losses are to be approved."""
    if settings.approve_losses and not has_approvals():
        raise ConfigError(
            "approve_losses: true needs tasks that ask a person, which this Airflow does not have",
            place="airflow.approve_losses",
            remedy="Use Airflow 3.1 or later with its standard provider, or remove it.",
        )


def _task_defaults(settings: AirflowConfig) -> dict[str, Any]:
    """Returns ``default_args``. What is not set is left to Airflow."""
    own = settings.default_args
    chosen = {"pool": settings.pool, "queue": settings.queue, "executor": settings.executor}
    timeout = None if own.execution_timeout is None else timedelta(seconds=own.execution_timeout)
    return {
        "owner": own.owner,
        "retries": settings.retries,
        "retry_delay": timedelta(seconds=own.retry_delay),
        "retry_exponential_backoff": RETRY_BACKOFF,
        "max_retry_delay": timedelta(seconds=own.max_retry_delay),
        "execution_timeout": timeout,
        "pool_slots": own.pool_slots,
        "priority_weight": own.priority_weight,
        "weight_rule": own.weight_rule,
        **{name: value for name, value in chosen.items() if value is not None},
    }


def _tags(kind: DagKind, name: str, error: str | None) -> list[str]:
    # Airflow allows tags of 100 characters.
    return ["towpath", kind, name[:100], *([ERROR_TAG] if error else [])]
