"""The operators: capture; fetch, merge and finalize of a run; snapshots, replays and verifications of tables.

Each reads its configuration file when it runs, never when the DAG is parsed. Promises that a permanent error fails the
task without retries (see :mod:`cdc.errors`); for other errors the task's retries apply. DAG files may import them.
"""

from cdc.airflow.batches import FetchOperator, FinalizeOperator, MergeOperator
from cdc.airflow.capture import CaptureOperator
from cdc.airflow.table_operators import (
    FinalizeBackfillOperator,
    PlanOperator,
    ReplayOperator,
    SnapshotOperator,
    VerifyOperator,
)

__all__ = [
    "CaptureOperator",
    "FetchOperator",
    "FinalizeBackfillOperator",
    "FinalizeOperator",
    "MergeOperator",
    "PlanOperator",
    "ReplayOperator",
    "SnapshotOperator",
    "VerifyOperator",
]
