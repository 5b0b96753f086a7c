"""The base of all operators: a task of one destination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator

from cdc.config import DestinationConfig, load


class DestinationOperator(BaseOperator):
    """A task of one destination, named by its configuration file."""

    ui_color = "#dbe9f4"

    def __init__(self, *, conf_file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conf_file = conf_file

    def _config(self) -> DestinationConfig:
        return load(Path(self.conf_file))

    @property
    def _owner(self) -> str:
        """The owner of the batches: the DAG, of which one run is active at a time."""
        return f"airflow:{self.dag_id}"
