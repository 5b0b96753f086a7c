"""DAGs out of configuration files: ``capture_<dest>`` and ``apply_<dest>`` for each ``conf/<dest>.yaml``.

Parsing asks no server and no connection. A broken file hides no other destination's DAGs: its own keep their names and
tasks, are tagged ``configuration-error``, show the sentence as their documentation, and fail with it when they run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from airflow.sdk import DAG, get_parsing_context
from airflow.timetables.interval import DeltaDataIntervalTimetable

from cdc.airflow.operators import CaptureOperator, FetchOperator, FinalizeOperator, MergeOperator
from cdc.config import AirflowConfig, as_named, destinations, load
from cdc.errors import ConfigError

Kind = Literal["capture", "apply"]

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Nothing is caught up, so this only has to lie in the past."""
RETRY_DELAY = timedelta(seconds=10)
MAX_RETRY_DELAY = timedelta(minutes=5)
FINALIZE_RETRIES = 5
"""Ack and rollback are small and may be repeated: worth more patience than a merge."""
ERROR_TAG = "configuration-error"

_DAG_NAME = re.compile(r"[\w.-]{1,200}", re.ASCII)


def conf_folder(dag_file: str) -> Path:
    """``$CDC_CONF``, else the folder ``conf`` beside the folder that the DAG file lies in, as Airflow names that: where
    git-sync swaps a link, the configuration keeps its path."""
    return as_named(Path(os.environ.get("CDC_CONF") or as_named(Path(dag_file)).parent.parent / "conf"))


def build_dags(conf_dir: Path, kinds: Iterable[Kind] = ("capture", "apply")) -> dict[str, DAG]:
    """The DAGs of a configuration folder by their ids, sorted; none when there is no such folder.

    When Airflow says that it needs a single DAG (a task is about to run), only that one is made.
    """
    wanted = get_parsing_context().dag_id
    dags: dict[str, DAG] = {}
    for name in destinations(conf_dir):
        if not _DAG_NAME.fullmatch(name):
            continue
        for kind in sorted(kinds):
            dag_id = f"{kind}_{name}"
            if wanted is None or wanted == dag_id:
                dags[dag_id] = _BUILD[kind](dag_id, name, conf_dir / f"{name}.yaml")
    return dags


def check_configurations(conf_dir: Path) -> None:
    """Raises one ConfigError with all that is wrong in the folder's configuration files."""
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


def capture_dag(dag_id: str, name: str, file: Path) -> DAG:
    """Runs capture for ``airflow.capture_for`` at a time, one run after the other."""
    settings, error = _settings(file)
    dag = DAG(
        dag_id,
        schedule="@continuous",
        start_date=START,
        catchup=False,
        max_active_runs=1,
        default_args=_task_defaults(settings),
        tags=_tags("capture", name, error),
        doc_md=error or f"Reads the source of `{name}` into its store. Stopped, it resumes where it was.",
    )
    with dag:
        CaptureOperator(
            task_id="capture", conf_file=str(file), capture_for_s=settings.capture_for, execution_timeout=None
        )
    return dag


def apply_dag(dag_id: str, name: str, file: Path) -> DAG:
    """``fetch >> merge >> finalize``, every ``airflow.apply_every``: one batch per run, or the run's data interval."""
    settings, error = _settings(file)
    every = timedelta(seconds=settings.apply_every)
    what = "a batch" if settings.until == "none" else "what was committed before the end of each run's interval"
    dag = DAG(
        dag_id,
        # A bare timedelta makes intervals without length in Airflow 3; their end is right, but nobody sees what a run
        # applies.
        schedule=every if settings.until == "none" else DeltaDataIntervalTimetable(every),
        start_date=START,
        catchup=False,
        # The owner of a batch is the DAG, so two runs at once would take each other's batch away.
        max_active_runs=1,
        default_args=_task_defaults(settings),
        tags=_tags("apply", name, error),
        doc_md=error or f"Merges {what} of `{name}` into the Delta tables, then acks or rolls back.",
    )
    with dag:
        fetch = FetchOperator(task_id="fetch", conf_file=str(file))
        merge = MergeOperator(task_id="merge", conf_file=str(file))
        finalize = FinalizeOperator(task_id="finalize", conf_file=str(file), retries=FINALIZE_RETRIES)
        fetch >> merge >> finalize
    return dag


_BUILD: Mapping[Kind, Callable[[str, str, Path], DAG]] = {"capture": capture_dag, "apply": apply_dag}


def _settings(file: Path) -> tuple[AirflowConfig, str | None]:
    try:
        return load(file).airflow, None
    except ConfigError as error:
        return AirflowConfig(), str(error)


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
