"""Reads the configuration files of DAGs, tasks and triggers."""

from __future__ import annotations

from pathlib import Path

from cdc.airflow.compat import bundle_storage
from cdc.base.errors import ConfigError
from cdc.config import DestinationConfig, load


def read_config(file: str | Path) -> DestinationConfig:
    """Returns the configuration in a file. Raises ConfigError, also for data that would lie in a DAG bundle: each
    version of a Git bundle has a folder of its own, so the next commit would begin without the data, and Airflow
    deletes the folders of old versions."""
    config, storage = load(Path(file)), bundle_storage()
    folders: dict[str, str] = {}
    if "path" in config.store.model_fields_set:
        folders["store.path"] = str(config.store.path)
    if "path" in config.meta.model_fields_set:
        folders["meta.path"] = str(config.meta.path)
    folders["apply.target"] = str(config.apply.target)
    for key, folder in folders.items():
        if "://" not in folder and Path(folder).resolve().is_relative_to(storage.resolve()):
            raise ConfigError(
                f"{folder} lies among the files of DAG bundles, which Airflow replaces and deletes",
                place=f"{file}: {key}",
                remedy=f"Write an absolute path outside of {storage}. Airflow's bundle is where a relative one begins.",
            )
    return config
