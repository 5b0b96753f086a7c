"""The bases of all operators: a task of one destination, and a task that leases its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator

from cdc.airflow.changes import TableChange, tell_batches
from cdc.airflow.compat import AirflowFailException
from cdc.airflow.configuration import read_config
from cdc.base.errors import TablesLeftOutError
from cdc.config import DestinationConfig
from cdc.lake import pipeline


class DestinationOperator(BaseOperator):
    """A task of one destination, named by its configuration file.

    ``conf_file``: the path of ``DEST.yaml`` on the worker (templated).
    """

    template_fields: Sequence[str] = ("conf_file",)
    ui_color = "#dbe9f4"

    def __init__(self, *, conf_file: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conf_file = conf_file
        self.link_targets: dict[str, str] = {}
        """Addresses of the extra links by the name of their target; execute() sets them."""

    def _config(self) -> DestinationConfig:
        return read_config(self.conf_file)


class BatchOperator(DestinationOperator):
    """A task of a run that leases batches.

    ``batch_owner``: the owner of the batches, the same for the three tasks of a run; by default the DAG. Only one run
    of an owner may be active at a time, so the DAG needs ``max_active_runs=1``.
    """

    def __init__(self, *, batch_owner: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch_owner = batch_owner

    def _tell_changes(
        self, config: DestinationConfig, context: Mapping[str, Any], first_batch: int | None
    ) -> list[TableChange]:
        """Emits the events of the tables that acked batches have changed, logs and returns them."""
        changes = tell_batches(self, config, context, first_batch)
        if changes:
            self.log.info(
                "Emits events of %d tables, %d rows in batches %d to %d.",
                len(changes),
                sum(change.rows for change in changes),
                min(change.first_batch or 0 for change in changes),
                max(change.last_batch or 0 for change in changes),
            )
        return changes

    @property
    def _owner(self) -> str:
        return self.batch_owner or f"airflow:{self.dag_id}"

    def _require_none_left_out(self, config: DestinationConfig) -> None:
        """Names the parked tables in the log. Raises AirflowFailException if ``apply.on_parked`` says so: another try
        of the task would not help, and the next run tries the tables again."""
        try:
            pipeline.require_none_left_out(config, self.log.warning)
        except TablesLeftOutError as error:
            raise AirflowFailException(str(error)) from error
