"""Towpath's provider for Airflow: operators, triggers, a task group, a hook, assets, a page, and DAGs from the
configuration files.

The only package in ``cdc`` that imports Airflow; ``dags/`` imports nothing else. The rules for batches and acks are in
``cdc.batches`` and ``cdc.lake.pipeline``. Promises that a run either acks its batch or rolls it back and fails, and
that only the batch's id, the lease's fingerprint, the manifest's path and the results pass through Airflow, never a
token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdc.airflow.assets import (
        TableInterval,
        changes_asset,
        delta_asset,
        destination_asset,
        proved_asset,
        table_asset,
    )
    from cdc.airflow.changes import TableChange
    from cdc.airflow.factory import build_dags, check_configurations, conf_folder
    from cdc.airflow.hook import TowpathHook
    from cdc.airflow.notifier import TowpathNotifier
    from cdc.airflow.operators import (
        TowpathCaptureOperator,
        TowpathCaptureWatchOperator,
        TowpathFetchOperator,
        TowpathFinalizeBackfillOperator,
        TowpathFinalizeOperator,
        TowpathIntervalSensor,
        TowpathLeftOutOperator,
        TowpathMaintainOperator,
        TowpathMergeOperator,
        TowpathPlanOperator,
        TowpathPublishOperator,
        TowpathReplayOperator,
        TowpathSnapshotOperator,
        TowpathVerifyOperator,
    )
    from cdc.airflow.task_group import TowpathApplyTaskGroup

__all__ = [
    "TableChange",
    "TableInterval",
    "TowpathApplyTaskGroup",
    "TowpathCaptureOperator",
    "TowpathCaptureWatchOperator",
    "TowpathFetchOperator",
    "TowpathFinalizeBackfillOperator",
    "TowpathFinalizeOperator",
    "TowpathHook",
    "TowpathIntervalSensor",
    "TowpathLeftOutOperator",
    "TowpathMaintainOperator",
    "TowpathMergeOperator",
    "TowpathNotifier",
    "TowpathPlanOperator",
    "TowpathPublishOperator",
    "TowpathReplayOperator",
    "TowpathSnapshotOperator",
    "TowpathVerifyOperator",
    "build_dags",
    "changes_asset",
    "check_configurations",
    "conf_folder",
    "delta_asset",
    "destination_asset",
    "proved_asset",
    "table_asset",
]

_ELSEWHERE = {
    "TableChange": "changes",
    "TableInterval": "assets",
    "TowpathApplyTaskGroup": "task_group",
    "TowpathHook": "hook",
    "TowpathNotifier": "notifier",
    "build_dags": "factory",
    "changes_asset": "assets",
    "check_configurations": "factory",
    "conf_folder": "factory",
    "delta_asset": "assets",
    "destination_asset": "assets",
    "proved_asset": "assets",
    "table_asset": "assets",
}


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used. Airflow loads this package's entry point while Airflow itself is still
    being imported, and an import of Airflow would fail then."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{_ELSEWHERE.get(name, 'operators')}")
    return getattr(module, name)
