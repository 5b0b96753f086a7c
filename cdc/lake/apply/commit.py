"""The one statement of a table that carries its new applied position, and what the statement changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cdc.lake.apply.large_values import careful_parquet, has_large_values
from cdc.lake.apply.statements import empty_statement
from cdc.lake.delta import local_tables
from cdc.lake.delta.row_replacement import LoggedTable, NewRows, Replaced, replace_rows
from cdc.lake.delta.transaction import AlreadyThereError, commit_position
from cdc.lake.delta.vectors import has_deletion_vectors, marking_rows
from cdc.lake.runtime.phases import in_phase
from cdc.lake.runtime.session import transaction, view_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cdc.lake.delta.files import TableFiles
    from cdc.lake.delta.local_tables import Change, LocalTable
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.rows.key_plan import KeyRanges
    from cdc.lake.runtime.driver_jvm import DriverJvm
    from cdc.lake.runtime.session import TableSession


def _nothing(table: str) -> None:
    """The default of :data:`before_statement`."""


before_statement: Callable[[str], None] = _nothing
"""Hook: called with ``db.table`` right before a table's statement, after its applied position was read and the lease
was checked. The entry point of a driver may replace it; drivers of tests stop there."""


@dataclass(frozen=True)
class MergeStats:
    """The rows that a MERGE changed."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    null_dates: int = 0
    """Zero and impossible dates that became null."""
    ran: bool = True
    """False: the table had the batch's position already, and the statement did nothing."""


Way: TypeAlias = Callable[[], MergeStats | None]
"""Changes the table and returns what has changed; or returns None, and changes nothing, if another way has to."""


@dataclass(frozen=True)
class Commit:
    """What the statement's commit says beside its rows. ``state`` is the table as its applied position was read."""

    session: TableSession
    target: Target
    state: DeltaState
    seq: int
    """The applied position after the commit."""
    metadata: str
    """The user metadata, as the value of a Spark setting."""
    check: Callable[[], object]
    """Raises if the statement may not run any more."""
    use_vectors: bool | None = None
    """Whether a MERGE marks changed rows in deletion vectors, in a table that has them; None: as Delta decides."""
    application: str | None = None
    """The application id under which the commit carries :attr:`seq`; None: that of the table's applied position."""

    def execute(self, statement: str | None, *instead: Way) -> MergeStats:
        """Runs the statement; its commit carries position and metadata. Does nothing if the table has the position.
        ``statement``: None if no rows change. ``instead``: are called in turn before the statement, which does not run
        if one of them returns what has changed.
        """
        if statement is None:
            return self.execute(empty_statement(self.target), self._position)
        stats = self.execute_by(*instead, lambda: self._run(statement))
        assert stats is not None  # a statement always says what it has done
        return stats

    def execute_by(self, *ways: Way) -> MergeStats | None:
        """Calls these in turn until one returns what it has changed, and returns that; None if none has done it. Their
        commit carries position and metadata."""
        with in_phase("merge"):
            return self._execute(ways)

    def _execute(self, ways: Sequence[Way]) -> MergeStats | None:
        spark = self.session.spark
        careful = careful_parquet(spark) if has_large_values(self.state) else nullcontext()
        marking: AbstractContextManager[None] = nullcontext()
        if self.use_vectors is not None and has_deletion_vectors(self.state):
            marking = marking_rows(spark, self.use_vectors)
        application = self.application or self.target.application_id(self.state)
        carried = transaction(spark, application, self.seq, self.metadata)
        with careful, marking, carried:
            self.check()
            before_statement(self.target.table)
            return next((stats for way in ways if (stats := way()) is not None), None)

    def _run(self, statement: str) -> MergeStats:
        spark = self.session.spark
        rows: list[Any] = spark.sql(statement).collect()
        row = rows[0].asDict() if rows else {}
        # An UPDATE, DELETE or INSERT says only how many rows it affected.
        is_merge = "num_updated_rows" in row
        if not is_merge and row.get("num_affected_rows") == 0:
            # A DELETE of no rows commits nothing; after a commit, this statement is skipped.
            spark.sql(empty_statement(self.target)).collect()
        if not rows:
            return MergeStats(ran=False)
        if not is_merge:
            return MergeStats()
        return MergeStats(int(row["num_inserted_rows"]), int(row["num_updated_rows"]), int(row["num_deleted_rows"]))

    def replace_rows(self, new: NewRows, files: TableFiles | None, keys: Mapping[str, KeyRanges]) -> MergeStats | None:
        """Replaces rows by key. Returns None, and changes nothing, if a statement has to do it. ``files``: those of
        :attr:`state`; None if they are not known. ``keys``: ranges of integer keys that hold the keys of the new
        rows."""
        table, marks = LoggedTable(self.state, files, keys), bool(self.use_vectors)
        return self._by_transaction(lambda jvm: _stats(replace_rows(jvm, table, new, marks=marks)))

    def change_here(self, table: LoggedTable, work: Callable[[LocalTable], Change]) -> MergeStats | None:
        """Changes a table in this process. Returns None, and changes nothing, if Spark has to do it."""
        file_format = local_tables.table_format(self.session, self.state)
        if file_format is None:
            return None
        return self._by_transaction(lambda jvm: _stats(local_tables.change(jvm, table, file_format, work)))

    def _position(self) -> MergeStats | None:
        """Commits the position without a statement, where this is possible."""
        if self.application is not None:
            return None
        return self._by_transaction(lambda jvm: MergeStats() if commit_position(jvm, self.state) else None)

    def _by_transaction(self, work: Callable[[DriverJvm], MergeStats | None]) -> MergeStats | None:
        """Returns what ``work`` has changed by a transaction of Delta; None if the driver's JVM is not at hand."""
        with self.session.jvm() as jvm:
            if jvm is None:
                return None
            try:
                return work(jvm)
            except AlreadyThereError:
                return MergeStats(ran=False)

    def execute_with(self, rows: DataFrame, make: Callable[[str], str]) -> MergeStats:
        """Runs the statement that ``make`` returns for the name of a view of these rows."""
        with view_of(rows) as view:
            return self.execute(make(view))


def _stats(rows: Replaced | None) -> MergeStats | None:
    return None if rows is None else MergeStats(rows.inserted, rows.updated, rows.deleted)
