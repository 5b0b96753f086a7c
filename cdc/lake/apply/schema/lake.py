"""The Delta tables as the evolution of a table sees and changes them.

:class:`~cdc.lake.apply.schema.evolve.Evolution` decides what a statement does to a table, and reaches tables through a
:class:`Lake` alone: :class:`~cdc.lake.apply.schema.spark_lake.SparkLake` changes them, and that of
:mod:`cdc.lake.migration` only follows what would be changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from pyspark.sql import types as t

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.apply.schema.columns import Goals
    from cdc.lake.apply.schema.partition_removal import RemovedRows
    from cdc.lake.apply.schema.plan import PlannedColumn
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.rows.columns import SourceColumns
    from cdc.lake.runtime.session import TableSession

Work = Literal["position", "fill", "remove"]
"""What the statement that carries a position does to the rows: nothing, gives them values, removes or marks some."""


@dataclass(frozen=True)
class NewGeneration:
    """The statement that begins a new generation of a table, with the columns that it makes."""

    statement: str
    columns: Sequence[PlannedColumn]
    rows_of: DeltaState | None
    """The version whose rows it takes over; None: it is empty."""


class Lake(Protocol):
    """The Delta tables of a destination."""

    @property
    def session(self) -> TableSession:
        """The Spark session of the table, for rows that a job or a batch brings."""
        ...

    def state(self, target: Target) -> DeltaState | None:
        """Returns a table's state; None if there is no table."""
        ...

    def state_before(self, target: Target, seq: int) -> DeltaState | None:
        """Returns a table as it was before any change at ``seq`` or later; None if that is not known."""
        ...

    def has_rows(self, target: Target, state: DeltaState) -> bool:
        """Whether the table has any row."""
        ...

    def has_such_row(
        self, target: Target, state: DeltaState, conditions: Collection[str], *, present: bool = True
    ) -> bool:
        """Whether a row of the table fulfils one of some SQL conditions. ``present``: only rows count that the source
        has at the table's position."""
        ...

    def create(self, target: Target, columns: SourceColumns, schema: TableSchema) -> DeltaState:
        """Creates the empty table, or joins the shared one, and returns its state."""
        ...

    def grow(self, target: Target, fields: Sequence[t.StructField]) -> None:
        """Gives a shared table the columns that it lacks."""
        ...

    def set_properties(self, target: Target, properties: Mapping[str, str]) -> None:
        """Sets properties of the table in one commit."""
        ...

    def unset_properties(self, target: Target, names: Iterable[str]) -> None:
        """Removes properties of the table in one commit."""
        ...

    def alter(self, target: Target, goals: Goals) -> None:
        """Runs the ALTERs that lead to these columns."""
        ...

    def replace(self, target: Target, state: DeltaState, seq: int, generation: NewGeneration) -> None:
        """Runs the statement of a new generation, which carries ``seq``. ``state``: the table before it, with the
        properties that the new generation has."""
        ...

    def commit(self, target: Target, state: DeltaState, seq: int, statement: str | None, work: Work) -> None:
        """Runs the statement that carries ``seq``; None commits the position alone."""
        ...

    def removal(self, target: Target, state: DeltaState, removed: RemovedRows) -> AbstractContextManager[str]:
        """Yields the statement that removes rows, which runs in the block."""
        ...
