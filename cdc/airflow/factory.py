"""Builds DAGs from configuration files, for each ``conf/<dest>.yaml``: ``capture_<dest>``, ``apply_<dest>``,
``snapshot_<dest>``, ``backfill_<dest>`` and ``verify_<dest>``.

Parsing connects to no server and reads no connection. A broken file affects only its own DAGs: they keep their names
and tasks, are tagged ``configuration-error``, show the error as their documentation, and fail with it when they run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from airflow.sdk import DAG, BaseOperator, get_parsing_context

from cdc.airflow import forms
from cdc.airflow.compat import DeltaDataIntervalTimetable
from cdc.airflow.operators import (
    TowpathCaptureOperator,
    TowpathFetchOperator,
    TowpathFinalizeBackfillOperator,
    TowpathFinalizeOperator,
    TowpathMergeOperator,
    TowpathPlanOperator,
    TowpathReplayOperator,
    TowpathSnapshotOperator,
    TowpathVerifyOperator,
)
from cdc.airflow.task_group import FINALIZE_RETRIES
from cdc.config import AirflowConfig, DestinationConfig, as_named, destinations, load
from cdc.errors import ConfigError

Kind = Literal["capture", "apply", "snapshot", "backfill", "verify"]
KINDS: tuple[Kind, ...] = get_args(Kind)

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Any time in the past: the DAGs have no catch-up."""
RETRY_DELAY = timedelta(seconds=10)
MAX_RETRY_DELAY = timedelta(minutes=5)
ERROR_TAG = "configuration-error"

_DAG_NAME = re.compile(r"[\w.-]{1,200}", re.ASCII)


def conf_folder(dag_file: str) -> Path:
    """Returns ``$CDC_CONF``, else the folder ``conf`` beside the folder of the DAG file.

    Links in the path are kept, so that the path stays the same when git-sync swaps a link.
    """
    return as_named(Path(os.environ.get("CDC_CONF") or as_named(Path(dag_file)).parent.parent / "conf"))


def build_dags(conf_dir: Path, kinds: Iterable[Kind] = KINDS) -> dict[str, DAG]:
    """Returns the DAGs of a configuration folder by their ids, sorted; none if there is no such folder.

    If Airflow needs a single DAG because a task is about to run, only that one is built.
    """
    wanted = get_parsing_context().dag_id
    dags: dict[str, DAG] = {}
    for name in destinations(conf_dir):
        if not _DAG_NAME.fullmatch(name):
            continue
        for kind in sorted(kinds):
            dag_id = f"{kind}_{name}"
            if wanted is None or wanted == dag_id:
                dags[dag_id] = _BUILD[kind](name, conf_dir / f"{name}.yaml")
    return dags


def check_configurations(conf_dir: Path) -> None:
    """Raises one ConfigError with all errors in the configuration files of the folder."""
    errors: list[str] = []
    for name in destinations(conf_dir):
        file = conf_dir / f"{name}.yaml"
        if not _DAG_NAME.fullmatch(name):
            errors.append(f"{file}: the name cannot be part of a DAG's id. Use letters, digits, dot, dash, underscore.")
            continue
        try:
            load(file)
        except ConfigError as error:
            errors.append(str(error))
    if errors:
        raise ConfigError("\n".join(errors))


def capture_dag(name: str, file: Path) -> DAG:
    """Builds the DAG that runs capture for ``airflow.capture_for`` at a time, one run after the other."""
    settings, error = _settings(file)
    dag = _dag(
        "capture",
        name,
        settings,
        error,
        schedule="@continuous",
        doc_md=f"Reads the source of `{name}` into its store. After a stop it resumes at its last position.",
    )
    with dag:
        TowpathCaptureOperator(
            task_id="capture", conf_file=str(file), capture_for_s=settings.capture_for, execution_timeout=None
        )
    return dag


def apply_dag(name: str, file: Path) -> DAG:
    """Builds the DAG ``fetch >> merge >> finalize``, every ``airflow.apply_every``: a run applies what the store
    has, within ``airflow.run_for``, or its data interval."""
    settings, error = _settings(file)
    every = timedelta(seconds=settings.apply_every)
    what = "the changes" if settings.until == "none" else "what was committed before the end of each run's interval"
    dag = _dag(
        "apply",
        name,
        settings,
        error,
        # In Airflow 3 a plain timedelta makes intervals of length zero. Their end is right, but the interval does not
        # show what a run applies.
        schedule=every if settings.until == "none" else DeltaDataIntervalTimetable(every),
        doc_md=f"Merges {what} of `{name}` into the Delta tables, then acks or rolls back.",
    )
    with dag:
        fetch = TowpathFetchOperator(task_id="fetch", conf_file=str(file))
        merge = TowpathMergeOperator(task_id="merge", conf_file=str(file))
        finalize = TowpathFinalizeOperator(task_id="finalize", conf_file=str(file), retries=FINALIZE_RETRIES)
        fetch >> merge >> finalize
    return dag


def snapshot_dag(name: str, file: Path) -> DAG:
    """Builds the DAG that loads the tables that are due for a snapshot, every ``airflow.snapshot_every``."""
    settings, error = _settings(file)
    dag = _dag(
        "snapshot",
        name,
        settings,
        error,
        schedule=timedelta(seconds=settings.snapshot_every),
        doc_md=f"Loads the tables of `{name}` that are due for a snapshot, beside the apply DAG.",
    )
    with dag:
        TowpathSnapshotOperator(task_id="snapshot", conf_file=str(file), execution_timeout=None)
    return dag


def verify_dag(name: str, file: Path) -> DAG:
    """Builds the DAG that verifies all tables, every ``airflow.verify_every``, or only by hand."""
    settings, error = _settings(file)
    dag = _dag(
        "verify",
        name,
        settings,
        error,
        schedule=None if settings.verify_every is None else timedelta(seconds=settings.verify_every),
        doc_md=f"Proves that the tables of `{name}` equal the source, and fails if they differ.",
    )
    with dag:
        TowpathVerifyOperator(task_id="verify", conf_file=str(file), execution_timeout=None)
    return dag


def backfill_dag(name: str, file: Path) -> DAG:
    """Builds the DAG that is started by hand with a form: ``plan >> (snapshot | replay | verify) >> finalize``."""
    config, error = _load(file)
    settings = AirflowConfig() if config is None else config.airflow
    work: dict[str, str] = {kind: kind for kind in forms.KINDS}
    dag = _dag(
        "backfill",
        name,
        settings,
        error,
        schedule=None,
        doc_md=f"Loads, rebuilds or verifies tables of `{name}`. Trigger it, and fill in the form.",
        params=forms.fields(config),
    )
    with dag:
        plan = TowpathPlanOperator(task_id="plan", conf_file=str(file), work=work)
        finalize = TowpathFinalizeBackfillOperator(task_id="finalize", conf_file=str(file), work=work)
        for kind, operator in _BACKFILLS.items():
            plan >> operator(task_id=kind, conf_file=str(file), plan_task_id="plan") >> finalize
    return dag


def _dag(kind: Kind, name: str, settings: AirflowConfig, error: str | None, *, doc_md: str, **options: Any) -> DAG:
    """Returns a DAG without tasks. It has no catch-up, and one run at a time: two would take each other's batch, or
    work on the same table. A configuration error takes the place of its documentation."""
    return DAG(
        f"{kind}_{name}",
        start_date=START,
        catchup=False,
        max_active_runs=1,
        default_args=_task_defaults(settings),
        tags=_tags(kind, name, error),
        doc_md=error or doc_md,
        **options,
    )


_BACKFILLS: Mapping[forms.Kind, Callable[..., BaseOperator]] = {
    "snapshot": TowpathSnapshotOperator,
    "replay": TowpathReplayOperator,
    "verify": TowpathVerifyOperator,
}
_BUILD: Mapping[Kind, Callable[[str, Path], DAG]] = {
    "capture": capture_dag,
    "apply": apply_dag,
    "snapshot": snapshot_dag,
    "backfill": backfill_dag,
    "verify": verify_dag,
}


def _load(file: Path) -> tuple[DestinationConfig | None, str | None]:
    try:
        return load(file), None
    except ConfigError as error:
        return None, str(error)


def _settings(file: Path) -> tuple[AirflowConfig, str | None]:
    config, error = _load(file)
    return (AirflowConfig() if config is None else config.airflow), error


def _task_defaults(settings: AirflowConfig) -> dict[str, Any]:
    return {
        "owner": "towpath",
        "retries": settings.retries,
        "retry_delay": RETRY_DELAY,
        "retry_exponential_backoff": 2,
        "max_retry_delay": MAX_RETRY_DELAY,
    }


def _tags(kind: Kind, name: str, error: str | None) -> list[str]:
    # Airflow allows tags of 100 characters.
    return ["towpath", kind, name[:100], *([ERROR_TAG] if error else [])]
