"""``airflow``: how the DAGs that are generated from a configuration file are scheduled."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cdc.config.values import Doc, DurationS, Section, Whole


class AirflowConfig(Section):
    """Schedules of the generated DAGs `capture_DEST`, `apply_DEST`, `snapshot_DEST` and `verify_DEST`."""

    apply_every: DurationS = 60.0
    """Interval of the apply DAG."""
    run_for: DurationS = 300.0
    """Time budget of a run of the apply DAG, and of `cdc apply` without options. A run takes batch after batch until it
    has applied what the store had when it began; once the budget is spent it begins no further batch and ends as a
    success, and the next run goes on. It does not limit runs with `until: interval_end`."""
    snapshot_every: DurationS = 60.0
    """Interval of the snapshot DAG, which loads the tables that are due for a snapshot."""
    verify_every: DurationS | None = None
    """Interval of the verify DAG; null means that it runs only when it is triggered."""
    capture_for: DurationS = 3600.0
    """Duration of a run of the capture DAG. The run ends cleanly, and the next run starts at once."""
    retries: Whole = Field(default=3, ge=0)
    """Number of times that Airflow repeats a failed task."""
    until: Annotated[
        Literal["interval_end", "none"],
        Doc(
            choices={
                "none": "a run applies what the store has when it begins, within `run_for`",
                "interval_end": "a run applies exactly what was committed before the end of its data interval, in as "
                "many batches as that takes",
            }
        ),
    ] = "none"
    """Share of the waiting changes that a run of the apply DAG applies."""
