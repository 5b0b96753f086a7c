"""Runs the ALTERs that bring a Delta table to the columns that it must have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cdc.errors import TargetError
from cdc.targets import NEEDS_MAPPING
from spark_jobs.apply.schema.columns import MAPPING, WIDENING, Goals, columns_of, is_mapped, next_step

if TYPE_CHECKING:
    from spark_jobs.apply.schema.plan import PlannedColumn
    from spark_jobs.delta.log import DeltaState
    from spark_jobs.delta.tables import Target

_MOST_STEPS = 20_000


def goals_of(state: DeltaState, columns: Sequence[PlannedColumn]) -> Goals:
    """Returns the goal of a table that must get these columns."""
    there, inner = columns_of(state), columns_of(state, before=True)
    physical = {column.name: column.physical for column in inner}
    return Goals(
        tuple(column.goal(physical) for column in columns),
        {column.physical: column.name for column in there},
        {column.physical: column.name for column in inner},
    )


def needed_features(state: DeltaState, columns: Sequence[PlannedColumn]) -> dict[str, str]:
    """Returns the properties that switch on what the ALTERs need: column mapping, type widening."""
    properties: dict[str, str] = {}
    stay = {c.was.physical for c in columns if c.was is not None}
    renames = any(c.was is not None and c.was.name != c.name for c in columns)
    special = any(NEEDS_MAPPING & set(c.name) for c in columns)
    if not is_mapped(state) and (renames or special or any(c.physical not in stay for c in columns_of(state))):
        properties |= MAPPING
    if any(c.was is not None and c.was.type != c.type for c in columns):
        properties |= WIDENING
    return properties


def alter(target: Target, goals: Goals, read: Callable[[], DeltaState], run: Callable[[str], None]) -> None:
    """Runs the ALTERs that are left. ``read`` returns the table as it is, ``run`` runs a statement."""
    failed: str | None = None
    for _ in range(_MOST_STEPS):
        step = next_step(read(), goals)
        if step is None:
            return
        if step == failed:
            raise TargetError(
                f"the Delta table does not follow: ALTER TABLE … {step} was done, and is due again",
                place=f"table {target.table} at {target.path}",
            )
        run(f"ALTER TABLE {target.sql} {step}")
        failed = step
    raise AssertionError("each step brings the table nearer to its columns")
