"""Parts of Airflow that its versions keep in different places: the bag of DAGs, and a run in this process."""

from __future__ import annotations

from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import DAG

BUNDLE = "dags-folder"
VERSION = tuple(int(part) for part in version("apache-airflow").split(".")[:2])


class NoEvents:
    """The events of any inlet of a task: none. Airflow 3.1 cannot hash an asset, so this is no dict."""

    def __getitem__(self, asset: object) -> list[Any]:
        return []


def dag_bag(folder: Path, *, collect: bool = True) -> Any:
    """The bag of a folder of DAG files; with its DAGs, or empty."""
    module: Any
    try:
        from airflow.dag_processing import dagbag as module
    except ImportError:  # before 3.2
        from airflow.models import dagbag as module
    named = {"bundle_name": BUNDLE} if "bundle_name" in module.DagBag.__init__.__annotations__ else {}
    return module.DagBag(dag_folder=folder, collect_dags=collect, bundle_path=folder, **named)


def store_dag(dag: DAG, folder: Path) -> None:
    """Writes a DAG into the database, as the DAG processor does."""
    bag = dag_bag(folder, collect=False)
    bag.bag_dag(dag)
    if hasattr(bag, "sync_to_db"):  # 3.0
        dag.relative_fileloc = "own.py"
        bag.sync_to_db(BUNDLE, None)
        return
    module: Any = __import__(type(bag).__module__, fromlist=["sync_bag_to_db"])
    module.sync_bag_to_db(bag, BUNDLE, None)


def run_in_process(dag: DAG, logical_date: datetime | None, conf: dict[str, Any] | None) -> Any:
    """Runs a DAG once, and returns the DAG run."""
    return dag.test(logical_date=logical_date, run_conf=conf)


def task_runner() -> Any:
    """The module whose function ``_run_task`` runs a task in this process."""
    from airflow.sdk.definitions import dag

    return dag
