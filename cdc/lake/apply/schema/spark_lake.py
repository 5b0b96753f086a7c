"""Changes Delta tables by Spark, statement by statement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.base.errors import TargetError
from cdc.lake.apply.schema.columns import next_step
from cdc.lake.apply.schema.evidence import select_has_row
from cdc.lake.apply.schema.shared_tables import create, ensure_columns
from cdc.lake.delta.log import has_rows, state_before
from cdc.lake.delta.sql import literal
from cdc.lake.delta.tables import missing_features, sql_properties

if TYPE_CHECKING:
    from pyspark.sql import types as t

    from cdc.batches.manifest import Manifest
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.apply.schema.columns import Goals
    from cdc.lake.apply.schema.lake import NewGeneration, Work
    from cdc.lake.apply.schema.partition_removal import RemovedRows
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.rows.columns import SourceColumns
    from cdc.lake.runtime.session import TableSession

_MOST_STEPS = 20_000


def _nothing(table: str, step: str) -> None:
    """The default of :data:`before_step`."""


before_step: Callable[[str, str], None] = _nothing
"""Hook: called with ``db.table`` and the SQL right before each statement that does not carry the position."""


@dataclass(frozen=True)
class SparkLake:
    """Implements :class:`~cdc.lake.apply.schema.lake.Lake`."""

    session: TableSession
    manifest: Manifest
    check: Callable[[], object]
    """Raises if the batch may not be applied any more."""
    carry: Callable[[DeltaState, int, str | None], None]
    """Runs the statement of a state (whose properties tell the generation) that carries this seq; ``manifest.last_seq``
    goes into the ledger as well."""

    def state(self, target: Target) -> DeltaState | None:
        return target.state()

    def state_before(self, target: Target, seq: int) -> DeltaState | None:
        return state_before(target.path, target.destination, target.table, seq)

    def has_rows(self, target: Target, state: DeltaState) -> bool:
        return has_rows(state.path, target.table)

    def has_such_row(
        self, target: Target, state: DeltaState, conditions: Collection[str], *, present: bool = True
    ) -> bool:
        return select_has_row(self.session.spark, target, state, conditions, present=present)

    def create(self, target: Target, columns: SourceColumns, schema: TableSchema) -> DeltaState:
        self.check()
        before_step(target.table, "CREATE TABLE")
        return create(self.session.spark, target, columns, schema, self.manifest)

    def grow(self, target: Target, fields: Sequence[t.StructField]) -> None:
        ensure_columns(self.session.spark, target, fields, self.check)

    def set_properties(self, target: Target, properties: Mapping[str, str]) -> None:
        self._execute(target, f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({target.sql_properties(properties)})")

    def unset_properties(self, target: Target, names: Iterable[str]) -> None:
        listed = ", ".join(literal(target.stored_name(name)) for name in names)
        self._execute(target, f"ALTER TABLE {target.sql} UNSET TBLPROPERTIES IF EXISTS ({listed})")

    def alter(self, target: Target, goals: Goals) -> None:
        alter(target, goals, lambda statement: self._execute(target, statement))

    def replace(self, target: Target, state: DeltaState, seq: int, generation: NewGeneration) -> None:
        self.carry(state, seq, generation.statement)

    def commit(self, target: Target, state: DeltaState, seq: int, statement: str | None, work: Work) -> None:
        self.carry(state, seq, statement)

    def removal(self, target: Target, state: DeltaState, removed: RemovedRows) -> AbstractContextManager[str]:
        return removed.statement(self.session, target, state)

    def _execute(self, target: Target, statement: str) -> None:
        self.check()
        before_step(target.table, statement)
        self.session.spark.sql(statement).collect()


def alter(target: Target, goals: Goals, execute: Callable[[str], object]) -> None:
    """Runs the ALTERs that bring a table to its goals. ``execute`` runs a statement. Raises TargetError."""
    failed: str | None = None
    features = missing_features(_present(target), [column.type for column in goals.columns])
    if features:
        execute(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({sql_properties(features)})")
    for _ in range(_MOST_STEPS):
        step = next_step(_present(target), goals)
        if step is None:
            return
        if step == failed:
            raise TargetError(
                f"the Delta table does not follow: ALTER TABLE … {step} was done, and is due again",
                place=f"table {target.table} at {target.path}",
            )
        execute(f"ALTER TABLE {target.sql} {step}")
        failed = step
    raise AssertionError("each step brings the table nearer to its columns")


def _present(target: Target) -> DeltaState:
    state = target.state()
    if state is None:
        raise TargetError("the Delta table is gone", place=f"table {target.table} at {target.path}")
    return state
