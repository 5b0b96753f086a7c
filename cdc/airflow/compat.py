"""Names that Airflow's versions from 3.0 on keep in different modules.

From 3.2 on everything is in ``airflow.sdk``. Other modules of this package import these names from here, and nothing of
Airflow that is not in the ``airflow.sdk`` of 3.0.
"""

from __future__ import annotations

import importlib.util
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    from airflow.sdk import (
        AssetOrTimeSchedule,
        BaseHook,
        CronDataIntervalTimetable,
        CronTriggerTimetable,
        DeltaDataIntervalTimetable,
        DeltaTriggerTimetable,
        TriggerRule,
    )
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        DownstreamTasksSkipped,
        TaskDeferred,
    )
else:
    try:
        from airflow.sdk import BaseHook, TriggerRule
    except ImportError:  # 3.0
        from airflow.hooks.base import BaseHook
        from airflow.utils.trigger_rule import TriggerRule
    try:
        from airflow.sdk import (
            AssetOrTimeSchedule,
            CronDataIntervalTimetable,
            CronTriggerTimetable,
            DeltaDataIntervalTimetable,
            DeltaTriggerTimetable,
        )
        from airflow.sdk.configuration import conf
        from airflow.sdk.exceptions import (
            AirflowFailException,
            AirflowNotFoundException,
            AirflowSensorTimeout,
            AirflowSkipException,
            DownstreamTasksSkipped,
            TaskDeferred,
        )
    except ImportError:  # 3.0 and 3.1
        from airflow.configuration import conf
        from airflow.exceptions import (
            AirflowFailException,
            AirflowNotFoundException,
            AirflowSensorTimeout,
            AirflowSkipException,
            DownstreamTasksSkipped,
            TaskDeferred,
        )
        from airflow.timetables.assets import AssetOrTimeSchedule
        from airflow.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable
        from airflow.timetables.trigger import CronTriggerTimetable, DeltaTriggerTimetable

RETRY_BACKOFF: float = 2 if type(BaseOperator.retry_exponential_backoff) is not bool else True
"""The value of ``retry_exponential_backoff`` with which pauses double; early versions only know whether they grow."""


def bundle_storage() -> Path:
    """Returns the folder below which Airflow keeps the files of the DAG bundles that it fetches."""
    configured = conf.get("dag_processor", "dag_bundle_storage_path", fallback=None)
    return Path(configured) if configured else Path(tempfile.gettempdir(), "airflow", "dag_bundles")


def default_deferrable() -> bool:
    """Returns Airflow's ``[operators] default_deferrable``."""
    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))


def has_partitions() -> bool:
    """Whether this Airflow has partitioned assets whose runs carry a partition key: from 3.3 on."""
    import airflow.sdk

    return all(hasattr(airflow.sdk, name) for name in ("CronPartitionTimetable", "PartitionedAtRuntime"))


def has_approvals() -> bool:
    """Whether tasks of this Airflow can ask a person: from 3.1 on, with a standard provider of that time."""
    return all(
        importlib.util.find_spec(name) is not None
        for name in ("airflow.sdk.execution_time.hitl", "airflow.providers.standard.operators.hitl")
    )


def deadline(callback: type, kwargs: dict[str, str], seconds: float) -> Any:
    """Returns a DAG's deadline, so long after a run was queued, which Airflow's triggerer tells by a callback."""
    from airflow.sdk.definitions.callback import AsyncCallback
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

    return DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=seconds),
        callback=AsyncCallback(callback, kwargs=kwargs),
    )


def partition_schedule(cron: str, timezone: str, key_format: str) -> Any:
    """Returns a schedule with a run at the end of each interval, whose partition key is the interval's beginning."""
    from cdc.airflow.timetables import IntervalTimetable

    return IntervalTimetable(cron, timezone=timezone, run_offset=-1, run_immediately=True, key_format=key_format)


def is_executor(name: str) -> bool:
    """Whether this Airflow is configured with an executor of this name."""
    from airflow.exceptions import UnknownExecutorException
    from airflow.executors.executor_loader import ExecutorLoader

    try:
        ExecutorLoader.lookup_executor_name_by_str(name)
    except UnknownExecutorException:
        return False
    return True


__all__ = [
    "RETRY_BACKOFF",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AssetOrTimeSchedule",
    "BaseHook",
    "CronDataIntervalTimetable",
    "CronTriggerTimetable",
    "DeltaDataIntervalTimetable",
    "DeltaTriggerTimetable",
    "DownstreamTasksSkipped",
    "TaskDeferred",
    "TriggerRule",
    "bundle_storage",
    "conf",
    "deadline",
    "default_deferrable",
    "has_approvals",
    "has_partitions",
    "is_executor",
    "partition_schedule",
]
