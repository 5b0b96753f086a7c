"""The operators: capture, and the watch over one; fetch, merge and finalize of a run; snapshots, replays,
verifications; maintenance.

Each reads its configuration file when it runs, never when the DAG is parsed. Promises that a permanent error fails the
task without retries (see :mod:`cdc.errors`); for other errors the task's retries apply. DAG files may import them.
"""

from cdc.airflow.batches import TowpathFetchOperator, TowpathFinalizeOperator, TowpathMergeOperator
from cdc.airflow.capture import TowpathCaptureOperator, TowpathCaptureWatchOperator
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
    "TowpathMaintainOperator",
    "TowpathMergeOperator",
    "TowpathPlanOperator",
    "TowpathReplayOperator",
    "TowpathSnapshotOperator",
    "TowpathVerifyOperator",
]
