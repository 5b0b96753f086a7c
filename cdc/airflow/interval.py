"""The end of a run's data interval (``airflow.until: interval_end``)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cdc.lake.runs import RunLimits

if TYPE_CHECKING:
    from cdc.config import DestinationConfig


def end(config: DestinationConfig, context: Mapping[str, Any]) -> datetime | None:
    """Returns the end of this run's interval; None if runs take what the store has. The interval of a run that was
    triggered without a date ends when the run was due."""
    if config.airflow.until == "none":
        return None
    interval_end: datetime | None = context.get("data_interval_end")
    return context["dag_run"].run_after if interval_end is None else interval_end


def limits(config: DestinationConfig, context: Mapping[str, Any]) -> RunLimits:
    """Returns where this run ends: at its interval's end, else when it is level or ``airflow.run_for`` is spent."""
    until = end(config, context)
    return RunLimits(until=until) if until is not None else RunLimits(run_for_s=config.airflow.run_for)
