"""Merges the rows of a batch into one table: the one MERGE per table and batch, which carries the applied position.

The statement is idempotent: under a repeated batch, under other batch boundaries, and if an orphaned driver commits
between the reading of the applied position and the statement's own snapshot. ``upsert`` and ``soft_delete`` write the
last state of each key that changed after the applied position, whatever part of it is there already. ``append`` inserts
the changes that are not there yet by (``_seq``, ``_row``), and ``scd2`` the versions by key and ``_seq``; see
:mod:`cdc.lake.apply.versions`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f

from cdc.base.targets import MODE_COLUMNS
from cdc.batches.manifest import Manifest, TableResult
from cdc.decode.columns import METADATA_COLUMNS
from cdc.decode.layout import DELETE
from cdc.lake.apply.commit import Commit, MergeStats, Way
from cdc.lake.apply.large_values import keep_last, mark_large
from cdc.lake.apply.rows import append_rows, latest, require_keys, with_moved_rows, with_variants
from cdc.lake.apply.small_history import FewChanges
from cdc.lake.apply.statements import (
    SourceRows,
    append_statement,
    bound_text,
    insert_statement,
    key_ranges,
    range_conditions,
    scd2_statement,
    soft_delete_statement,
    upsert_statement,
    user_metadata,
)
from cdc.lake.apply.table_changes import TableChanges
from cdc.lake.apply.versions import CLOSES, last_of_transactions, recent, versions, with_values
from cdc.lake.delta.files import TableFiles
from cdc.lake.delta.keyed_rows import Clauses, FewRows, WrittenRows
from cdc.lake.delta.local_tables import may_change, may_write, table_format
from cdc.lake.delta.proof import require_all_rows, require_applied
from cdc.lake.delta.row_replacement import LoggedTable, NewRows
from cdc.lake.delta.tables import Target, delta_schema, schema_of
from cdc.lake.delta.vectors import add_deletion_vectors, may_mark_rows
from cdc.lake.rows import null_dates
from cdc.lake.rows.changes import changes_frame, is_small
from cdc.lake.rows.columns import SourceColumns
from cdc.lake.rows.key_plan import FileOutput, KeyPlan, KeyRanges, integer_spans, make_plan, planned_frame
from cdc.lake.rows.row_choice import SEEN
from cdc.lake.rows.row_files import TableRowFiles, row_files
from cdc.lake.runtime.phases import in_phase
from cdc.lake.runtime.session import view_name, view_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql import types as t

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.decode import TableLayout
    from cdc.lake.apply.foreign_keys.changes import CascadedRows
    from cdc.lake.apply.schema.moved_rows import MovedRows
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.rows.input_splits import InputSplit
    from cdc.lake.rows.table_format import TableFormat
    from cdc.lake.runtime.session import TableSession


_DELETES = f"_op = {DELETE}"
_UPSERT_CLAUSES: Clauses = ([(f"({_DELETES})", "delete"), (None, "update")], [(f"(NOT ({_DELETES}))", "insert")])
"""The clauses that a commit names which replaces rows by key."""


@dataclass(frozen=True)
class TableMerge:
    """The merge of a batch into one table."""

    session: TableSession
    target: Target
    manifest: Manifest
    layout: TableLayout | None
    """None: the batch has no row events of the table."""
    columns: SourceColumns | None
    """The columns of the rows; None: only the position is committed."""
    schema: TableSchema | None
    """The table in the stored schemas."""
    check: Callable[[], object]
    """Raises if the batch may not be merged any more."""
    is_large: bool = False
    """Whether there may be values of which an executor cannot hold several copies."""
    unlogged: CascadedRows | MovedRows | None = None
    """The changes of the table by foreign keys, or by a statement about partitions: they have no row events."""

    @property
    def definition(self) -> tuple[Sequence[str], Sequence[str]]:
        """The names of the source's columns, and its primary key."""
        if self.layout is None:
            assert self.unlogged is not None
            return self.unlogged.schema.column_names, self.unlogged.schema.primary_key
        return [column.name for column in self.layout.columns], self.layout.primary_key

    @property
    def changes(self) -> TableChanges:
        return TableChanges(self.target, self.manifest, self.schema)


def merge_table(merge: TableMerge, state: DeltaState) -> TableResult:
    """Applies the batch to one table, which exists and has all columns."""
    began = time.monotonic()
    manifest, apply = merge.manifest, merge.target.apply
    if state.applied_seq >= manifest.last_seq:
        return _result(merge, state, MergeStats(ran=False), began)
    if merge.columns is None:
        stats = _commit(merge, state).execute(None)
    elif apply.mode == "append":
        state = _mark_if_large(merge, state, ("_seq", "_row"))
        stats = _append(merge, state, merge.columns)
    else:
        names, primary = merge.definition
        sources = require_keys(merge.target.table, apply.keys, primary, names)
        keys = RowKeys(merge.columns.keys(sources), is_primary=set(sources) == set(primary))
        state = _mark_if_large(merge, state, (*keys.names, *MODE_COLUMNS[apply.mode]))
        work = _versions if apply.mode == "scd2" else _last_states
        stats = work(merge, state, keys, merge.columns.exact(sources))
    state = merge.target.state() or state
    require_all_rows(merge.target, state)
    require_applied(merge.target, state, manifest.last_seq)
    return _result(merge, state, stats, began)


def _commit(merge: TableMerge, state: DeltaState, source: SourceRows | None = None) -> Commit:
    metadata = user_metadata(merge.manifest, merge.target, state.applied_seq, state.generation, source)
    return Commit(merge.session, merge.target, state, merge.manifest.last_seq, metadata, merge.check)


def _mark_if_large(merge: TableMerge, state: DeltaState, keys: Sequence[str]) -> DeltaState:
    """Prepares the table for large values if the batch may have some. ``keys``: the columns that the statement looks
    up."""
    if not merge.is_large:
        return state
    merge.check()
    return mark_large(merge.session.spark, merge.target, state, keys)


@dataclass(frozen=True)
class RowKeys:
    """The columns that identify a row."""

    names: tuple[str, ...]
    """Their names in Delta."""
    is_primary: bool
    """They are the primary key, so they are never null, and the decoder adds a delete for each row that changes its
    key."""


def _changes_by_key(
    merge: TableMerge,
    state: DeltaState,
    keys: RowKeys,
    columns: SourceColumns,
    counter: null_dates.NullDateCounter | None = None,
) -> DataFrame:
    """Returns the changes after the applied position; an update that changes its key is a delete, too."""
    images: Literal["after", "both"] = "after" if keys.is_primary else "both"
    rows = read_changes(merge, columns, state.applied_seq, images, counts=counter is not None)
    if counter is not None:
        rows = counter.watch(rows)
    return rows if keys.is_primary else with_moved_rows(rows, keys.names)


def _last_states(merge: TableMerge, state: DeltaState, keys: RowKeys, columns: SourceColumns) -> MergeStats:
    """Merges the last row of each key, in the modes ``upsert`` and ``soft_delete``: by the key plan, or as Spark finds
    them if the changes cannot be planned. Both give the same rows."""
    if not keys.is_primary or merge.is_large or merge.unlogged is not None:
        return _merge_reduced(merge, state, keys, columns)
    splits = merge.changes.splits(state.applied_seq)
    small = is_small(splits)
    first = columns if small else columns.only([*keys.names, *columns.dates])
    reader = merge.changes.reader(first, state.applied_seq, "after", counts=bool(columns.dates))
    with nullcontext() if small else row_files(merge.session, _own_format(merge, state, columns)) as files:
        output = None
        if files is not None:
            output = FileOutput(files, merge.changes.reader(columns, state.applied_seq, "after"), _marks(merge))
        with in_phase("plan"):
            plan = make_plan(reader, splits, keys.names, keep=small, output=output)
        if plan is not None:
            return _merge_plan(merge, state, keys, columns, plan, splits)
    return _merge_reduced(merge, state, keys, columns)


def _marks(merge: TableMerge) -> bool:
    """Whether deleted rows stay and are marked."""
    return merge.target.apply.mode == "soft_delete"


def _own_format(merge: TableMerge, state: DeltaState, columns: SourceColumns) -> TableFormat | None:
    """Returns the form of the table's files if the rows of a batch may become such files."""
    apply, kinds = merge.target.apply, {field.name: field.dataType for field in columns.fields}
    if apply.mode != "upsert" or apply.shared or not may_write(state, kinds):
        return None
    return table_format(merge.session, state)


def _merge_plan(
    merge: TableMerge,
    state: DeltaState,
    keys: RowKeys,
    columns: SourceColumns,
    plan: KeyPlan,
    splits: Sequence[InputSplit],
) -> MergeStats:
    """Merges the rows of these splits that win in a plan."""
    marks = _marks(merge)
    if not plan.rows:
        return _commit(merge, state).execute(None)
    integers = plan.integer_ranges(keys.names)
    files = TableFiles.of(state, merge.target.table)
    # No file can have a row with one of the keys.
    is_new = plan.last_changes.is_all_new and files is not None and not files.may_hold(integers)
    commit = _commit(merge, state, SourceRows(plan.rows, plan.upserts(seen=marks)))
    if not is_new and may_mark_rows(merge.target, state):
        commit = _for_changes(merge, commit, files, plan.rows, integers)
    reader = merge.changes.reader(columns, state.applied_seq, "after")
    # Spark compiles numbers into its code, so a statement with other ranges is compiled anew for each batch. That takes
    # longer than reading a small table, or what ranges leave out that have most of a large one.
    is_small_table = files is not None and files.is_small
    ranges = [] if is_small_table else _plan_ranges(plan, keys, columns, files)
    names = [field.name for field in columns.fields]
    name = view_name()
    statement = _statement_for(merge, name, keys, names, ranges, is_new=is_new)
    with ExitStack() as stack:

        @cache
        def view() -> str:
            rows = planned_frame(merge.session, reader, splits, plan, seen=marks)
            return stack.enter_context(view_of(with_variants(rows, columns.variants), name))

        def nothing_yet() -> None:
            view()  # for the statement

        ways: list[Way] = []
        if not merge.target.apply.shared:  # rows that are replaced are found by their keys alone
            table = LoggedTable(commit.state, files, integers)
            ways.append(lambda: _replace_here(commit, table, plan, columns, keys, marks=marks))
            ways.append(lambda: _take_files(commit, table, plan, reader.fields, keys))
            if not marks:
                is_stored = bool(plan.tables) or plan.files is not None
                upserts = plan.upserts(seen=False)
                new = NewRows(view, keys.names, _DELETES, ranges, plan.rows, upserts, is_stored)
                ways.append(lambda: commit.replace_rows(new, files, integers))
        stats = commit.execute(statement, *ways, nothing_yet)
    return replace(stats, null_dates=plan.null_dates) if stats.ran else stats


def _statement_for(
    merge: TableMerge, view: str, keys: RowKeys, names: Sequence[str], ranges: Sequence[str], *, is_new: bool
) -> str:
    """Returns the MERGE of the rows that win in a plan. ``is_new``: the table can have none of their keys."""
    marks = _marks(merge)
    if is_new:
        return insert_statement(merge.target, view, keys.names, names, ranges, marks=marks)
    make = soft_delete_statement if marks else upsert_statement
    return make(merge.target, view, keys.names, names, ranges, null_keys=False)


def _replace_here(
    commit: Commit, table: LoggedTable, plan: KeyPlan, columns: SourceColumns, keys: RowKeys, *, marks: bool
) -> MergeStats | None:
    """Replaces rows of a small table in this process, if the changes are decoded here, too. ``marks``: deleted rows
    stay and are marked."""
    fields = [*columns.fields, *(delta_schema([], "soft_delete") if marks else ())]
    is_small = table.files is not None and table.files.is_small
    if not plan.tables or not is_small or not may_change(table, keys.names, fields):
        return None
    rows = plan.winners(seen=marks)
    deletes = rows.column("_op").to_numpy() == DELETE
    none = np.zeros(len(rows), dtype=np.bool_)
    if marks:
        is_new = rows.column(SEEN).combine_chunks().to_numpy(zero_copy_only=False)
        rows = rows.append_column("_deleted", pa.array(deletes))
        few = FewRows(rows, keys.names, none, ~is_new, ([(None, "update")], [(SEEN, "insert")]))
    else:
        few = FewRows(rows, keys.names, deletes, none, _UPSERT_CLAUSES)
    return commit.change_here(table, few.replace)


def _take_files(
    commit: Commit, table: LoggedTable, plan: KeyPlan, fields: t.StructType, keys: RowKeys
) -> MergeStats | None:
    """Makes the files of the plan's rows files of the table, if they have its form. ``fields``: those of the rows."""
    files = plan.files
    if not isinstance(files, TableRowFiles) or commit.use_vectors or not may_change(table, keys.names, fields):
        return None
    written = WrittenRows(
        files=files.written,
        read_keys=lambda: files.keys(keys.names, fields),
        keys=keys.names,
        rows=plan.rows,
        upserts=plan.upserts(seen=False),
        clauses=_UPSERT_CLAUSES,
    )
    return commit.change_here(table, written.replace)


def _plan_ranges(plan: KeyPlan, keys: RowKeys, columns: SourceColumns, files: TableFiles | None) -> list[str]:
    """Returns conditions that hold for every row that can match; none if they would leave out little of the table."""
    kinds = {field.name: field.dataType for field in columns.fields}
    spans = plan.spans(keys.names)
    integers = integer_spans(keys.names, spans)
    if files is not None and len(integers) == len(keys.names) and files.are_wide(integers):
        return []
    texts = [[(bound_text(low), bound_text(high)) for low, high in ranges] for ranges in spans]
    return range_conditions(keys.names, [kinds[key] for key in keys.names], texts)


def _for_changes(
    merge: TableMerge, commit: Commit, files: TableFiles | None, changed: int, keys: Mapping[str, KeyRanges]
) -> Commit:
    """Returns the commit for a MERGE that changes ``changed`` rows with these keys in a table that may have deletion
    vectors. It marks the rows in such vectors if they are scattered; else it rewrites their files."""
    if files is None or not files.touched(keys, changed).is_scattered(changed):
        return replace(commit, use_vectors=False)
    merge.check()
    state = add_deletion_vectors(merge.session.spark, merge.target, commit.state)
    return replace(commit, state=state, use_vectors=True)


def _commit_of_changes(merge: TableMerge, state: DeltaState, rows: DataFrame) -> Commit:
    """Returns the commit for a MERGE of these rows, of which Spark knows the keys."""
    commit = _commit(merge, state)
    if not may_mark_rows(merge.target, state):
        return commit
    return _for_changes(merge, commit, TableFiles.of(state, merge.target.table), rows.count(), {})


def _merge_reduced(merge: TableMerge, state: DeltaState, keys: RowKeys, columns: SourceColumns) -> MergeStats:
    """Merges the last row of each key as a window of Spark finds it."""
    marks = _marks(merge)
    dates = null_dates.NullDateCounter(merge.session.observation()) if columns.dates and keys.is_primary else None
    first = columns.only([*keys.names, *columns.dates]) if merge.is_large else columns
    last = latest(_changes_by_key(merge, state, keys, first, dates), keys.names, seen=marks).persist()
    try:
        ranges = key_ranges(last, keys.names)
        if ranges is None:
            return _commit(merge, state).execute(None)
        commit, rows = _commit_of_changes(merge, state, last), last
        if merge.is_large:
            also = (SEEN,) if marks else ()
            changes = _changes_by_key(merge, state, keys, columns)
            rows = keep_last(changes, last, keys.names, also=also, deleted=marks)
        names = [field.name for field in columns.fields]
        make = soft_delete_statement if marks else upsert_statement
        stats = commit.execute_with(
            with_variants(rows, columns.variants),
            lambda view: make(merge.target, view, keys.names, names, ranges, not keys.is_primary),
        )
        if not stats.ran:
            return stats
        nulls = _count_null_dates(merge, columns, state.applied_seq) if dates is None else dates.total
        return replace(stats, null_dates=nulls)
    finally:
        last.unpersist()


def _versions(merge: TableMerge, state: DeltaState, keys: RowKeys, columns: SourceColumns) -> MergeStats:
    """Merges the versions of each key, in mode ``scd2``: in this process if the changes are few and the table is small,
    else as Spark finds them. Both give the same versions."""
    if keys.is_primary and not merge.is_large and merge.unlogged is None:
        stats = _versions_here(merge, state, keys, columns)
        if stats is not None:
            return stats
    first = columns.only(keys.names) if merge.is_large else columns
    events = last_of_transactions(_changes_by_key(merge, state, keys, first), keys.names).persist()
    try:
        ranges = key_ranges(events, keys.names)
        if ranges is None:
            return _commit(merge, state).execute(None)
        commit = _commit_of_changes(merge, state, events)
        conditions = [*ranges, recent(events)]
        new_versions = rows = versions(commit, events, keys.names, conditions).persist()
        try:
            if merge.is_large:
                rows = with_values(new_versions, _changes_by_key(merge, state, keys, columns), keys.names)
            stats = merge_versions(commit, with_variants(rows, columns.variants), keys, conditions)
        finally:
            new_versions.unpersist()
        if not stats.ran:
            return stats
        return replace(stats, null_dates=_count_null_dates(merge, columns, state.applied_seq))
    finally:
        events.unpersist()


def _versions_here(merge: TableMerge, state: DeltaState, keys: RowKeys, columns: SourceColumns) -> MergeStats | None:
    """Merges the versions of a small table in this process. Returns None, and changes nothing, if Spark has to do
    it."""
    splits = merge.changes.splits(state.applied_seq)
    if not is_small(splits) or merge.target.apply.shared:
        return None
    files = TableFiles.of(state, merge.target.table)
    if files is None or not files.is_small:
        return None
    table_columns = [*columns.fields, *delta_schema([], "scd2").fields]
    if not may_change(LoggedTable(state, files, {}), keys.names, table_columns):
        return None
    reader = merge.changes.reader(columns, state.applied_seq, "after", counts=bool(columns.dates))
    with in_phase("plan"):
        plan = make_plan(reader, splits, keys.names, keep=True)
    if plan is None:
        return None
    commit = _commit(merge, state)
    if not plan.rows:
        return commit.execute(None)
    changes = FewChanges(pa.concat_tables(plan.tables), keys.names)
    table = LoggedTable(state, files, plan.integer_ranges(keys.names))
    stats = commit.execute_by(lambda: commit.change_here(table, changes.versions))
    return stats if stats is None or not stats.ran else replace(stats, null_dates=plan.null_dates)


def _append(merge: TableMerge, state: DeltaState, columns: SourceColumns) -> MergeStats:
    """Inserts all changes with both images."""
    changes = with_variants(read_changes(merge, columns, state.applied_seq, "both"), columns.variants)
    rows = append_rows(changes, schema_of(state))
    stats = _commit(merge, state).execute_with(rows, lambda view: append_statement(merge.target, view, state))
    if not stats.ran:
        return stats
    # A statement may finish without reading all rows, so the dates are counted by a read of their own.
    return replace(stats, null_dates=_count_null_dates(merge, columns, state.applied_seq))


def _count_null_dates(merge: TableMerge, columns: SourceColumns, after_seq: int) -> int:
    """Counts the dates of the changes that became null, by a read of these columns alone."""
    if not columns.dates:
        return 0
    dates = read_changes(merge, columns.only(columns.dates), after_seq, "after", counts=True)
    return int(dates.agg(f.sum(null_dates.COLUMN)).collect()[0][0] or 0)


def merge_versions(
    commit: Commit, new_versions: DataFrame, keys: RowKeys, conditions: Sequence[str], *, corrects: bool = False
) -> MergeStats:
    """Merges what :func:`cdc.lake.apply.versions.versions` has found with these conditions. ``corrects``: versions
    that are there already may have other values."""
    names = [
        name for name in new_versions.columns if name.lower() not in METADATA_COLUMNS | {*MODE_COLUMNS["scd2"], CLOSES}
    ]
    return commit.execute_with(
        new_versions,
        lambda view: scd2_statement(
            commit.target, view, keys.names, names, conditions, not keys.is_primary, corrects=corrects
        ),
    )


def read_changes(
    merge: TableMerge,
    columns: SourceColumns | None,
    after_seq: int,
    images: Literal["after", "both"],
    *,
    counts: bool = False,
) -> DataFrame:
    """Returns the changes of the table after a seq, with these columns; None: with the metadata columns only.
    ``counts``: also with the number of dates that became null."""
    reader = merge.changes.reader(columns, after_seq, images, counts=counts)
    splits = [] if merge.layout is None else merge.changes.splits(after_seq)
    rows = changes_frame(merge.session, reader, splits)
    if merge.unlogged is None:
        return rows
    own = replace(merge, unlogged=None)
    unlogged = merge.unlogged.frame(
        merge.session, columns, after_seq, images, lambda others: read_changes(own, others, 0, "both"), counts=counts
    )
    return rows.unionByName(unlogged)


def _result(merge: TableMerge, state: DeltaState, stats: MergeStats, began: float) -> TableResult:
    skipped = 0
    if not stats.ran and merge.layout is not None:
        skipped = read_changes(merge, None, 0, "both").count()
    return merge.changes.result(state, stats, began, skipped)
