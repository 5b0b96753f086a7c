"""Airflow's side of Towpath: operators, and DAGs made from the configuration files.

The only package in ``cdc`` that imports Airflow; ``dags/`` imports nothing else. It decides nothing about data: what a
batch is and when it may be acked stands in ``cdc.batches`` and ``cdc.pipeline``. It promises that a run either acks its
batch or rolls it back and fails, and that of a batch only id, token and the manifest's path pass through Airflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdc.airflow.factory import build_dags, check_configurations, conf_folder
    from cdc.airflow.operators import CaptureOperator, FetchOperator, FinalizeOperator, MergeOperator

__all__ = [
    "CaptureOperator",
    "FetchOperator",
    "FinalizeOperator",
    "MergeOperator",
    "build_dags",
    "check_configurations",
    "conf_folder",
]

_FACTORY = ("build_dags", "check_configurations", "conf_folder")


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: Airflow asks this package's entry point who it is while Airflow itself
    is still being imported, and whatever imports Airflow would fail then."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{'factory' if name in _FACTORY else 'operators'}")
    return getattr(module, name)
