"""The operators: capture, and the watch over one; fetch, merge and finalize of a run; intervals; snapshots, replays,
verifications; maintenance.

Each reads its configuration file when it runs, never when the DAG is parsed. Promises that a permanent error fails the
task without retries (see :mod:`cdc.base.errors`); for other errors the task's retries apply. DAG files may import them.
"""

from cdc.airflow.batches import TowpathFetchOperator, TowpathFinalizeOperator, TowpathMergeOperator
from cdc.airflow.capture import TowpathCaptureOperator, TowpathCaptureWatchOperator
from cdc.airflow.intervals import TowpathIntervalSensor, TowpathLeftOutOperator, TowpathPublishOperator
from cdc.airflow.table_operators import (
    TowpathFinalizeBackfillOperator,
    TowpathMaintainOperator,
    TowpathPlanOperator,
    TowpathReplayOperator,
    TowpathSnapshotOperator,
    TowpathVerifyOperator,
)

__all__ = [
    "TowpathCaptureOperator",
    "TowpathCaptureWatchOperator",
    "TowpathFetchOperator",
    "TowpathFinalizeBackfillOperator",
    "TowpathFinalizeOperator",
    "TowpathIntervalSensor",
    "TowpathLeftOutOperator",
    "TowpathMaintainOperator",
    "TowpathMergeOperator",
    "TowpathPlanOperator",
    "TowpathPublishOperator",
    "TowpathReplayOperator",
    "TowpathSnapshotOperator",
    "TowpathVerifyOperator",
]
