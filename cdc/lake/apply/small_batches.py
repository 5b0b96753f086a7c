"""Merges the few rows of a small batch by the ``deltalake`` library (delta-rs), without a JVM.

The rows are those of the key plan, the statement has the meaning of :mod:`cdc.lake.apply.statements`, and the commit
carries the same transaction version and user metadata. The statement reads the version of the table whose applied
position was read, and its commit is that version's successor or fails: delta-rs makes one attempt, so it never puts its
files on top of another writer's commit.

Only tables are merged here whose features, properties, columns and keys are all in the lists below; every other table
is left to Spark. Decision 0074 says what was tried, and why the lists are as short as they are.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql import types as t

from cdc.base.errors import CdcError, MergeFailedError
from cdc.base.log import get_logger
from cdc.base.targets import has_percent_sign, local_path
from cdc.batches.manifest import TableResult
from cdc.decode.layout import DELETE
from cdc.lake.apply import commit, ddl
from cdc.lake.apply.commit import MergeStats
from cdc.lake.apply.large_values import has_large_values
from cdc.lake.apply.rows import require_keys
from cdc.lake.apply.schema.agreement import columns_there, disagreement, resolved
from cdc.lake.apply.schema.columns import is_disturbed
from cdc.lake.apply.statements import user_metadata
from cdc.lake.apply.table_changes import TableChanges
from cdc.lake.delta.log import open_delta
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import recorded_policies, require_same_policies, schema_of
from cdc.lake.delta.tracked import record_in_force
from cdc.lake.rows.changes import is_small, read_all
from cdc.lake.rows.columns import columns_of_layout
from cdc.lake.rows.key_plan import KeyPlan, make_plan
from cdc.lake.rows.row_choice import SEEN
from cdc.lake.runtime.failures import ConcurrentCommitError, broken_rule, first_line
from cdc.lake.runtime.phases import in_phase

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, WriterProperties

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.apply.prepare import PreparedBatch
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.rows.columns import SourceColumns

MODES = frozenset({"upsert", "soft_delete"})
FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
"""Delta's table features that a table may have."""
PROPERTIES = frozenset(
    {
        "delta.checkpointInterval",
        "delta.dataSkippingNumIndexedCols",
        "delta.deletedFileRetentionDuration",
        "delta.enableExpiredLogCleanup",
        "delta.feature.appendOnly",
        "delta.feature.invariants",
        "delta.feature.timestampNtz",
        "delta.logRetentionDuration",
        "delta.minReaderVersion",
        "delta.minWriterVersion",
        "delta.setTransactionRetentionDuration",
    }
)
"""Delta's own properties that a table may have. Those of other names than ``delta.`` mean nothing to Delta."""
VALUES = (
    t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType, t.FloatType, t.DoubleType, t.BooleanType,
    t.DateType, t.TimestampType, t.TimestampNTZType, t.StringType, t.BinaryType,
)  # fmt: skip
KEYS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.StringType, t.BinaryType, t.DateType)
"""Types of key columns. Spark and delta-rs compare -0.0 differently; decimals have inexact statistics in delta-rs."""
_WITHOUT_STATISTICS = (t.DecimalType, t.FloatType, t.DoubleType)
"""Types without the least and the greatest value in files of delta-rs: it rounds those of decimals to doubles, so that
Spark would skip files that have rows."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")
_writing = threading.BoundedSemaphore(os.cpu_count() or 1)
"""Held while files are rewritten: more tables at a time than cores would only take more memory."""
_log = get_logger(__name__)


class LeftToSparkError(Exception):
    """The table is left to Spark; the message says why, as a clause. Raised before anything is written."""


def merge_small(batch: PreparedBatch, target: Target, state: DeltaState | None) -> TableResult | None:
    """Merges the batch into one table, whose owner and position were proved. Returns None if Spark must merge it.

    Raises ConcurrentCommitError if another writer has committed since ``state`` was read, MergeFailedError if delta-rs
    fails, and what decoding raises.
    """
    began = time.monotonic()
    try:
        merge = _small_merge(batch, target, state)
        if merge.state.applied_seq >= batch.manifest.last_seq:
            return merge.result(MergeStats(ran=False), began, merge.count())
        plan = merge.plan()
    except LeftToSparkError as reason:
        _log.debug("Spark merges the table", table=target.table, batch=batch.manifest.batch, reason=str(reason))
        return None
    with in_phase("merge"):
        stats = merge.execute(plan)
    result = merge.result(stats, began)
    _log.debug(
        "delta-rs merged the table", table=target.table, batch=batch.manifest.batch, rows=plan.rows,
        seconds=result.seconds,
    )  # fmt: skip
    return result


# --- which tables ----------------------------------------------------------------------------------------------------


def _small_merge(batch: PreparedBatch, target: Target, state: DeltaState | None) -> SmallMerge:
    """Returns the merge of a table that delta-rs may write. Raises LeftToSparkError, and what the same checks raise
    before a merge by Spark."""
    layout = batch.layout(target.table)
    if batch.manifest.ddl or layout is None:
        _leave("the batch has DDL")
    if state is None:
        _leave("the Delta table is not there yet")
    if target.apply.mode not in MODES:
        _leave(f"mode {target.apply.mode}")
    if batch.is_large(target.table) or has_large_values(state):
        _leave("there may be values of many megabytes")
    if local_path(target.path) is None or has_percent_sign(target.path):
        _leave("its path is no plain folder of this machine")
    record = record_in_force(state)
    if record is None or record.schema is None or is_disturbed(state):
        _leave("its columns may have to be changed first")
    _require_writable(target, state)
    stored = batch.schema(target.table)
    ddl.require_configured(target, state, layout, stored)
    if not all(column.declared for column in layout.columns):
        layout, stored = resolved(layout, record.schema), record.schema
    if disagreement(target, layout, record.schema) is not None:
        _leave("the rows have other columns than its tracked schema")
    columns = columns_of_layout(layout, target.policies)
    names = [column.name for column in layout.columns]
    require_same_policies(state, target, columns, names)
    labels = {name.lower(): columns.labels[name.lower()] for name in names if name.lower() in columns.labels}
    if not labels.items() <= recorded_policies(state).items():
        _leave("policies of its columns must be recorded first")
    columns = columns_there(target, state, columns)
    sources = require_keys(target.table, target.apply.keys, layout.primary_key, names)
    keys = columns.keys(sources)
    if set(sources) != set(layout.primary_key):
        _leave("its keys are not the primary key")
    _require_same_types(state, columns, keys)
    return SmallMerge(batch, target, state, columns.exact(sources), keys, stored)


def _require_writable(target: Target, state: DeltaState) -> None:
    """Raises LeftToSparkError unless everything that the table's protocol and properties ask of a writer is known here.
    delta-rs ignores some of what it does not know."""
    unknown = {name for name in state.properties if name.startswith("delta.")} - PROPERTIES
    if unknown:
        _leave(f"its property {min(unknown)}")
    with _opened(target, state) as delta:
        protocol, metadata = delta.protocol(), delta.metadata()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        versions = protocol.min_reader_version, protocol.min_writer_version
        by_names = versions[0] in (1, 2, 3) and versions[1] == 7
        if features - FEATURES:
            _leave(f"its table feature {min(features - FEATURES)}")
        if not (by_names or (versions[0] == 1 and versions[1] in (1, 2))):
            _leave(f"its protocol {versions[0]}, {versions[1]}")
        if metadata.partition_columns:
            _leave("it is partitioned")
    for field in schema_of(state).fields:
        if not field.nullable or set(field.metadata) - {"comment"}:
            _leave(f"the column {field.name} has a constraint or an expression")
        if not _PLAIN_NAME.fullmatch(field.name):
            _leave(f"the name of the column {field.name}")
        if not isinstance(field.dataType, VALUES) and field.dataType != t.ArrayType(t.FloatType(), True):
            _leave(f"the column {field.name} of type {field.dataType.simpleString()}")
        if isinstance(field.dataType, t.StringType) and field.dataType != t.StringType():
            _leave(f"the collation of the column {field.name}")


def _require_same_types(state: DeltaState, columns: SourceColumns, keys: Sequence[str]) -> None:
    """Raises LeftToSparkError if a value would have to be converted, or a key cannot be compared here."""
    lake_types = {field.name: field.dataType for field in schema_of(state).fields}
    for field in columns.fields:
        if lake_types.get(field.name) != field.dataType:
            _leave(f"the column {field.name} is of another type, or spelt otherwise")
        if field.name in keys and not isinstance(field.dataType, KEYS):
            _leave(f"a key of type {field.dataType.simpleString()}")


@contextmanager
def _opened(target: Target, state: DeltaState) -> Iterator[DeltaTable]:
    """Opens the table at the version of a state, which must be the newest one. Raises ConcurrentCommitError."""
    with open_delta(target.path, target.table) as delta:
        if delta is None or delta.version() != state.version or str(delta.metadata().id) != state.id:
            raise _concurrent(target)
        yield delta


def _leave(reason: str) -> NoReturn:
    raise LeftToSparkError(reason)


def _concurrent(target: Target) -> ConcurrentCommitError:
    return ConcurrentCommitError("another writer has committed to the Delta table", place=f"table {target.table}")


# --- the merge -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SmallMerge:
    """The merge of a batch into one table by delta-rs."""

    batch: PreparedBatch
    target: Target
    state: DeltaState
    columns: SourceColumns
    keys: tuple[str, ...]
    schema: TableSchema | None
    """The table at the source, as the decoder needs it."""

    @property
    def changes(self) -> TableChanges:
        return TableChanges(self.target, self.batch.manifest, self.schema)

    def plan(self) -> KeyPlan:
        """Decodes the changes, and finds the last one of each key. Raises LeftToSparkError if they are too many."""
        limit = self.batch.config.apply.small_batches.max_rows or 0
        splits = self.changes.splits(self.state.applied_seq)
        if not is_small(splits):
            _leave("its changes are too large to be decoded here")
        reader = self.changes.reader(self.columns, self.state.applied_seq, "after", counts=bool(self.columns.dates))
        with in_phase("plan"):
            plan = make_plan(reader, splits, self.keys, keep=True)
        if plan is None:
            _leave("its keys cannot be compared here")
        rows = sum(len(table) for table in plan.tables)
        if rows > limit:
            _leave(f"{rows} changes, and apply.small_batches.max_rows is {limit}")
        return plan

    def execute(self, plan: KeyPlan) -> MergeStats:
        """Commits the rows that win in a plan, and the batch's position, as the next version of the table."""
        from deltalake.exceptions import DeltaError

        with _opened(self.target, self.state) as delta:
            self.batch.check()
            commit.before_statement(self.target.table)
            try:
                with _writing:
                    stats = self._merge(delta, plan) if plan.rows else MergeStats()
                if delta.version() == self.state.version:
                    # delta-rs commits nothing if no row changes, but the table must get its position.
                    delta.create_write_transaction([], "append", delta.schema(), commit_properties=self._commit())
            except (DeltaError, OSError, ValueError) as error:
                raise self._explained(error) from error
        return replace(stats, null_dates=plan.null_dates)

    def count(self) -> int:
        """Counts the changes of the batch. Raises LeftToSparkError if they are too many."""
        splits = self.changes.splits(0)
        if not is_small(splits):
            _leave("its changes are too large to be decoded here")
        return len(read_all(self.changes.reader(None, 0, "both"), splits))

    def result(self, stats: MergeStats, began: float, skipped: int = 0) -> TableResult:
        """Returns the table's result. ``skipped``: the changes that the table had already."""
        return self.changes.result(self.target.state() or self.state, stats, began, skipped)

    def _merge(self, delta: DeltaTable, plan: KeyPlan) -> MergeStats:
        marks, names = self.target.apply.mode == "soft_delete", [field.name for field in self.columns.fields]
        merger = delta.merge(
            _rows(plan),
            self._predicate(plan),
            source_alias="s",
            target_alias="t",
            streamed_exec=False,
            writer_properties=self._properties(),
            commit_properties=self._commit(),
            post_commithook_properties=_after_commit(),
        )
        values = {quote(name): f"s.{quote(name)}" for name in names}
        if marks:
            values |= {quote(name): f"s.{quote(name)}" for name in ("_commit_time", "_seq")}
            values["`_deleted`"] = f"(s.`_op` = {DELETE})"
            merger = merger.when_matched_update(values).when_not_matched_insert(values, f"s.{quote(SEEN)}")
        else:
            merger = merger.when_matched_delete(f"s.`_op` = {DELETE}").when_matched_update(values)
            merger = merger.when_not_matched_insert(values, f"s.`_op` <> {DELETE}")
        metrics = merger.execute()
        return MergeStats(
            int(metrics["num_target_rows_inserted"]),
            int(metrics["num_target_rows_updated"]),
            int(metrics["num_target_rows_deleted"]),
        )

    def _predicate(self, plan: KeyPlan) -> str:
        """Returns the condition under which rows match. Ranges of integers prune files; no text of the source is in
        it."""
        kinds = {field.name: field.dataType for field in self.columns.fields}
        parts = [f"t.{quote(key)} = s.{quote(key)}" for key in self.keys]
        for key, ranges in zip(self.keys, plan.spans(self.keys), strict=True):
            if isinstance(kinds[key], t.IntegralType) and ranges:
                each = [
                    f"(t.{quote(key)} >= {int(low.as_py())} AND t.{quote(key)} <= {int(high.as_py())})"
                    for low, high in ranges
                ]
                parts.append(f"({' OR '.join(each)})")
        return " AND ".join(parts)

    def _commit(self) -> CommitProperties:
        """Returns user metadata and transaction version, as in Spark's commits.

        Without retries: a second attempt of delta-rs would put the same files on top of another writer's commit
        wherever it sees no conflict. With the time: Spark overlooks transaction versions without one in tables that
        have a retention for them.
        """
        from deltalake import CommitProperties, Transaction

        application, now_ms = self.target.application_id(self.state), int(time.time() * 1000)
        metadata = user_metadata(self.batch.manifest, self.target, self.state.applied_seq, self.state.generation)
        return CommitProperties(
            custom_metadata={"userMetadata": json.dumps(json.loads(metadata), ensure_ascii=False)},
            max_commit_retries=0,
            app_transactions=[Transaction(application, self.batch.manifest.last_seq, now_ms)],
        )

    def _properties(self) -> WriterProperties:
        from deltalake import ColumnProperties, WriterProperties

        without = {
            field.name: ColumnProperties(statistics_enabled="NONE")
            for field in schema_of(self.state).fields
            if isinstance(field.dataType, _WITHOUT_STATISTICS)
        }
        return WriterProperties(compression="SNAPPY", column_properties=without or None)

    def _explained(self, error: Exception) -> CdcError:
        state = self.target.state()
        if state is None or state.version != self.state.version:
            return _concurrent(self.target)
        return broken_rule(error, self.target.table, self.state.properties) or MergeFailedError(
            f"delta-rs could not merge it: {first_line(error)}",
            place=f"table {self.target.table}",
            remedy="Spark merges the table without apply.small_batches.",
        )


def _rows(plan: KeyPlan) -> pa.Table:
    """Returns the rows that win, with :data:`~cdc.lake.rows.row_choice.SEEN`."""
    import pyarrow as pa

    parts = []
    for table, last, seen in zip(plan.tables, plan.last_changes.last, plan.last_changes.seen, strict=True):
        parts.append(table.filter(pa.array(last)).append_column(SEEN, pa.array(seen[last])))
    return pa.concat_tables(parts).combine_chunks()


def _after_commit() -> PostCommitHookProperties:
    """Checkpoints as the table's properties ask, so that its log stays short. What else is removed, Spark removes."""
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
