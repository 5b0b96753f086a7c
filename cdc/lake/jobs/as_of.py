"""All tables of a destination as of one transaction of the source, as DataFrames.

For each table: the newest version of the Delta table whose applied position is at or before that transaction, and over
it, as a query, the changes between the two from the store. Nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from cdc.base.errors import CdcError, NeedsSnapshotError, TargetError, UnsupportedError, UsageError
from cdc.base.log import get_logger
from cdc.base.targets import DESTINATION_PROPERTY, SINCE_PROPERTY, application_id, is_shared, local_path, split_table
from cdc.batches.manifest import Manifest, schemas_of
from cdc.batches.table_batches import TableChangeReader, batches_between
from cdc.binlog.positions import format_seq
from cdc.binlog.sql.changes import KEEPS_COLUMNS, SetTableCharset, table_of
from cdc.client import open_table_batches
from cdc.config import as_config
from cdc.decode.layout import DELETE, survey
from cdc.decode.policies import value_policies
from cdc.lake.apply.commit import Commit
from cdc.lake.apply.foreign_keys.jobs import cascades_of_table, manifest_without_events
from cdc.lake.apply.merge import RowKeys, TableMerge, read_changes
from cdc.lake.apply.rows import append_rows, latest, require_keys, with_moved_rows, with_variants
from cdc.lake.apply.schema.statements import read_statements
from cdc.lake.apply.versions import CLOSES, last_of_transactions, other_keys, same_key, versions
from cdc.lake.delta.log import DeltaState, open_delta, reader_uri
from cdc.lake.delta.present_rows import LakeVersion
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import MODE_PROPERTY, Target, policy_changes, schema_of, target_of
from cdc.lake.rows.columns import columns_of_layout, columns_of_schema
from cdc.lake.rows.row_choice import SEEN
from cdc.lake.runtime.session import TableSession, setting_of
from cdc.lake.runtime.spark_settings import OLD_VERSIONS
from cdc.meta.state import Subscription
from cdc.store.reader.points import find_point

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

    from cdc.config import DestinationConfig
    from cdc.lake.apply.foreign_keys.changes import CascadedRows

_SAME_CONTENT = {"OPTIMIZE", "VACUUM START", "VACUUM END", "REORG"}
"""Operations that leave a table's rows and columns as they are."""
_log = get_logger(__name__)


def read_as_of(
    spark: SparkSession,
    destination: DestinationConfig | str | Path | None = None,
    *,
    seq: int | None = None,
    time: datetime | str | None = None,
    gtid: str | None = None,
    tables: Iterable[str] | None = None,
) -> dict[str, DataFrame]:
    """Returns the tables of a destination as of one transaction, by ``db.table``; see :func:`cdc.read_as_of`."""
    config = as_config(destination)
    batches = open_table_batches(config, archived="keep")
    seq_wanted = _seq(batches, seq, time, gtid)
    subscription = batches.meta.read().subscriptions.get("apply") or Subscription()
    frames: dict[str, DataFrame] = {}
    for table in _tables(config, subscription, tables):
        try:
            frames[table] = _Table(spark, config, table, batches, subscription).as_of(seq_wanted)
        except _NotYetError as error:
            if tables is not None:
                raise
            _log.warning("left out a table that began later", table=table, reason=str(error))
    return frames


def create_views_as_of(
    spark: SparkSession,
    destination: DestinationConfig | str | Path | None = None,
    *,
    prefix: str = "",
    seq: int | None = None,
    time: datetime | str | None = None,
    gtid: str | None = None,
    tables: Iterable[str] | None = None,
) -> dict[str, str]:
    """Creates a temporary view of each table; see :func:`cdc.create_views_as_of`."""
    frames = read_as_of(spark, destination, seq=seq, time=time, gtid=gtid, tables=tables)
    names = {table: prefix + table.replace(".", "_") for table in frames}
    clash = [table for table, name in names.items() if [*names.values()].count(name) > 1]
    if clash:
        raise UsageError(
            f"the views of {' and '.join(clash)} would have the same name", remedy="Name the tables, in two calls."
        )
    for table, frame in frames.items():
        frame.createOrReplaceTempView(quote(names[table]))
    return names


class _NotYetError(TargetError):
    """The table did not exist yet."""


def _seq(batches: TableChangeReader, seq: int | None, time: datetime | str | None, gtid: str | None) -> int:
    """Returns the seq of the point that the caller named."""
    points = [point for point in (seq, time, gtid) if point is not None]
    if len(points) != 1:
        raise UsageError(f"{len(points)} points are given", remedy="Give one of seq, time and gtid.")
    if seq is not None:
        return seq
    return find_point(batches.reader, time.isoformat() if isinstance(time, datetime) else str(points[0]))


def _tables(config: DestinationConfig, subscription: Subscription, tables: Iterable[str] | None) -> list[str]:
    if tables is None:
        return sorted(t for t in subscription.tables if config.tables.includes(*split_table(t)))
    return [config.tables.name(table) for table in tables]


@dataclass(frozen=True)
class _Version:
    """A version of a Delta table with the position of its content."""

    version: int
    seq: int
    exact: int
    """The content is also that as of each later seq up to this one."""


class _Table:
    """One table of the destination."""

    def __init__(
        self,
        spark: SparkSession,
        config: DestinationConfig,
        table: str,
        batches: TableChangeReader,
        subscription: Subscription,
    ) -> None:
        self._session = TableSession(spark)
        self._config, self._batches, self._subscription = config, batches, subscription
        self._target: Target = target_of(config, table)
        self._place = f"table {table} at {self._target.path}"

    def as_of(self, seq: int) -> DataFrame:
        """Raises TargetError if neither Delta's history nor the store reaches there."""
        version = self._version(seq)
        spark = self._session.spark
        with setting_of(spark, {OLD_VERSIONS: "false"}):
            base = spark.read.format("delta").option("versionAsOf", version.version).load(self._target.path)
        if version.exact >= seq:
            return base
        parked = self._subscription.parked.get(self._target.table)
        try:
            manifest = self._changes(version.seq, seq)
        except CdcError as error:
            if error.retryable:
                raise
            raise TargetError(
                f"as of seq {format_seq(seq)}, the changes after version {version.version} (at "
                f"{format_seq(version.seq)}) are needed, and cannot be read from the store: {error.message}",
                place=self._place,
                remedy=error.remedy or "Choose a transaction that Delta's history or the store still reaches.",
            ) from error
        cascaded = self._cascaded(version, seq)
        if manifest is None and cascaded is not None:
            manifest = manifest_without_events(self._batches, self._target.table, version.seq, seq)
        if manifest is None:
            return base
        if parked is not None:
            raise TargetError(
                f"the table is parked at {format_seq(version.seq)}, with changes after that: {parked.reason}",
                place=self._place,
                remedy="Bring it back (`cdc status` says how), or choose an earlier transaction.",
            )
        return self._overlaid(base, version, manifest, cascaded)

    # --- the version of the Delta table

    def _version(self, seq: int) -> _Version:
        with open_delta(self._target.path, self._target.table) as delta:
            if delta is None:
                raise TargetError("there is no Delta table", place=self._place, remedy="Run `cdc apply` first.")
            if is_shared(delta.metadata().configuration):
                raise UnsupportedError(
                    "a version of a shared table holds rows of several sources, each as of another transaction",
                    place=self._place,
                    remedy="Read the source's table as of that transaction from one of its own: `cdc replay "
                    f"{self._target.destination} {self._target.table} --to SEQ --into URI`.",
                )
            owner = delta.metadata().configuration.get(DESTINATION_PROPERTY)
            if owner != self._target.destination:
                raise TargetError(
                    f"the Delta table belongs to {owner or 'another program'}, not to {self._target.destination}",
                    place=self._place,
                    remedy="Correct apply.target.",
                )
            mode = delta.metadata().configuration.get(MODE_PROPERTY, self._target.apply.mode)
            if mode != self._target.apply.mode:
                apply = self._target.apply.model_copy(update={"mode": mode})
                self._target = replace(self._target, apply=apply)
            commits = sorted(delta.history(), key=lambda commit: int(commit["version"]))
        version = self._choose(commits, seq)
        self._require_files(version, seq)
        return version

    def _choose(self, commits: list[dict[str, Any]], seq: int) -> _Version:
        """Returns the newest version at or before a seq. ``commits``: all that Delta's log still has, oldest first."""
        entries = [(i, self._ledger_entry(commit)) for i, commit in enumerate(commits)]
        ours = [(i, entry) for i, entry in entries if entry is not None]
        chosen = next((n for n in reversed(range(len(ours))) if int(ours[n][1]["last_seq"]) <= seq), None)
        if chosen is not None:
            at, position = ours[chosen][0], int(ours[chosen][1]["last_seq"])
            following = ours[chosen + 1] if chosen + 1 < len(ours) else None
        else:
            at, position = 0, self._position(int(commits[0]["version"]), seq)
            following = ours[0] if ours else None
        end = len(commits) if following is None else following[0]
        while at + 1 < end and str(commits[at + 1].get("operation", "")).upper() in _SAME_CONTENT:
            at += 1
        if following is not None:
            # The table had no changes between its position and the beginning of its next batch. A rebuild says nothing
            # about what was before it.
            exact = position if following[1].get("rebuild") else int(following[1].get("after_seq", position))
        elif self._target.table in self._subscription.parked:
            exact = position
        else:
            exact = self._subscription.acked_seq
        return _Version(int(commits[at]["version"]), position, max(position, exact))

    def _ledger_entry(self, commit: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the user metadata of a commit that carries a position of this table."""
        try:
            entry = json.loads(commit.get("userMetadata") or "null")
        except json.JSONDecodeError:
            return None  # a commit of another program
        if not isinstance(entry, dict) or "last_seq" not in entry:
            return None
        ours = (entry.get("destination"), entry.get("table")) == (self._target.destination, self._target.table)
        return entry if ours else None

    def _position(self, version: int, seq: int) -> int:
        """Returns the position of the oldest version that Delta's log still has."""
        state = self._state(version)
        if state is None or state.applied_seq > seq:
            raise TargetError(
                f"Delta's log does not reach back to seq {format_seq(seq)}: its oldest version is {version}"
                + (f", at {format_seq(state.applied_seq)}" if state is not None else ""),
                place=self._place,
                remedy=f"Rebuild the table as of that point beside it: `cdc replay {self._target.destination} "
                f"{self._target.table} --to {seq} --into URI`.",
            )
        since = int(state.properties.get(SINCE_PROPERTY, "0"))
        if state.applied_seq == 0 and since > seq:
            raise _NotYetError(
                f"the table was created at {format_seq(since)}, after {format_seq(seq)}",
                place=self._place,
                remedy="Choose a later transaction, or leave the table out.",
            )
        return max(state.applied_seq, since)

    def _state(self, version: int) -> DeltaState | None:
        """Returns the table at a version; None if it cannot be rebuilt from the log."""
        from deltalake.exceptions import DeltaError

        try:
            with reader_uri(self._target.path, whole=True) as uri:
                if uri is None:
                    return None
                delta = _open(uri, version)
                metadata = delta.metadata()
                properties = {key: str(value) for key, value in metadata.configuration.items()}
                state = DeltaState(
                    self._target.path, version, properties, delta.schema().to_json(), 0, id=str(metadata.id)
                )
                name = application_id(self._target.destination, self._target.table, state.generation)
                return replace(state, applied_seq=delta.transaction_version(name) or 0)
        except (DeltaError, OSError):
            return None

    def _require_files(self, version: _Version, seq: int) -> None:
        """Raises TargetError if VACUUM has removed files of the version, as far as this machine sees them."""
        state = self._state(version.version)
        missing = state is None
        folder = local_path(self._target.path)
        if state is not None and folder is not None:
            with reader_uri(self._target.path, rows=True) as uri:
                missing = uri is None or not all(
                    Path(file).exists() for file in _open(uri, version.version).file_uris()
                )
        if missing:
            raise TargetError(
                f"version {version.version} of the Delta table, which seq {format_seq(seq)} needs, is not whole now: "
                "VACUUM or the cleaning of the log has removed files of it",
                place=self._place,
                remedy=f"Rebuild the table as of that point beside it: `cdc replay {self._target.destination} "
                f"{self._target.table} --to {seq} --into URI`.",
            )

    # --- the changes of the store

    def _changes(self, after_seq: int, upto_seq: int) -> Manifest | None:
        """Returns the table's changes in the store, as one batch; None if there are none."""
        reader, table = self._batches.reader, self._target.table
        begins, last = reader.beginning(), reader.last_seq()
        if begins is not None and begins.seq > after_seq:
            raise UsageError(f"it begins at {format_seq(begins.seq)}")
        if last is None or last < upto_seq:
            raise UsageError(f"it ends at {format_seq(last or 0)}", remedy="Wait until capture has read that far.")
        if self._config.store.stages_batches:
            raise UsageError(
                "executors read the store through store.stage, whose copies live no longer than a batch",
                remedy="Choose a transaction at which a batch of the table ended.",
            )
        whole: Manifest | None = None
        for manifest in batches_between(self._batches, table, after_seq, upto_seq, whole=True):
            if manifest.ddl:
                self._require_harmless(manifest)
            else:
                ranges = manifest.ranges if whole is None else (*whole.ranges, *manifest.ranges)
                whole = manifest.model_copy(update={"ranges": ranges})
        return None if whole is None else whole.model_copy(update={"last_seq": upto_seq})

    def _require_harmless(self, manifest: Manifest) -> None:
        for statement in read_statements(manifest.ranges, ignores_case=self._config.tables.ignores_case):
            for change in statement.statement.changes:
                named = table_of(change)
                if named is not None and ".".join(named) != self._target.table:
                    continue
                if not isinstance(change, (*KEEPS_COLUMNS, SetTableCharset)):
                    raise UnsupportedError(
                        f"the Delta table has not got this statement yet: {statement.shown}",
                        remedy=f"Run `cdc apply {self._target.destination}`, or choose an earlier transaction.",
                    )

    def _cascaded(self, base_version: _Version, seq: int) -> CascadedRows | None:
        """Returns the changes by foreign keys that the version lacks. Raises TargetError if they cannot be found."""

        def version() -> LakeVersion | None:
            state = self._target.state()
            return (
                None if state is None else LakeVersion.of(self._target, state, base_version.version, base_version.seq)
            )

        try:
            return cascades_of_table(
                self._config, self._target.table, self._batches, version, base_version.seq, seq, lambda: self._session
            )
        except NeedsSnapshotError as error:
            raise TargetError(
                f"as of seq {format_seq(seq)}, the changes by foreign keys after version {base_version.version} are "
                f"needed: {error.message}",
                place=self._place,
                remedy="Choose a transaction at which a batch of the table ended.",
            ) from error

    def _overlaid(
        self, base: DataFrame, version: _Version, manifest: Manifest, cascaded: CascadedRows | None
    ) -> DataFrame:
        """Returns the version with the changes over it."""
        table, policies = self._target.table, value_policies(self._target.apply)
        schemas = schemas_of(manifest)
        mask = manifest.table_mask(table)
        masks = {} if mask is None else {"table_mask": mask}
        layout = survey(manifest.ranges, [table], schemas, lambda _: policies, **masks).layouts.get(table)
        state = self._state(version.version)
        assert state is not None  # its files were looked at
        if layout is not None:
            columns = columns_of_layout(layout, self._target.policies)
            source_names: Sequence[str] = [column.name for column in layout.columns]
        elif cascaded is not None:
            columns = columns_of_schema(cascaded.schema, self._target.policies)
            source_names = cascaded.schema.column_names
        else:
            return base
        for change in policy_changes(state, self._target, columns, source_names):
            raise TargetError(
                f"version {version.version} of the Delta table has the column {change.column} by the policy "
                f"{change.was or 'keep'}, and the changes up to {format_seq(manifest.last_seq)} would get the policy "
                f"{change.now or 'keep'}",
                place=self._place,
                remedy="Choose a transaction at which a batch of the table ended; the newest version is brought to the "
                f"policy by `cdc remask {self._target.destination} {self._target.table}`.",
            )
        lake_names = {field.name.lower() for field in schema_of(state).fields}
        lacking = [field.name for field in columns.fields if field.name.lower() not in lake_names]
        if lacking:
            raise TargetError(
                f"the changes up to {format_seq(manifest.last_seq)} have columns that version {version.version} of the "
                f"Delta table lacks: {', '.join(lacking)}",
                place=self._place,
                remedy=f"Run `cdc apply {self._target.destination}`, or choose an earlier transaction.",
            )
        schema = schemas.tables.get(table) if schemas is not None else None
        state = replace(state, applied_seq=version.seq)
        mode = self._target.apply.mode
        merge = TableMerge(
            self._session, self._target, manifest, layout, columns, schema, lambda: None, unlogged=cascaded
        )
        if mode == "append":
            rows = with_variants(read_changes(merge, columns, version.seq, "both"), columns.variants)
            return base.unionByName(append_rows(rows, schema_of(state)))
        names, primary = merge.definition
        sources = require_keys(table, self._target.apply.keys, primary, names)
        keys = RowKeys(columns.keys(sources), is_primary={*sources} == {*primary})
        columns = columns.exact(sources)
        changes = read_changes(merge, columns, version.seq, "after" if keys.is_primary else "both")
        if not keys.is_primary:
            changes = with_moved_rows(changes, keys.names)
        if mode == "scd2":
            events = last_of_transactions(changes, keys.names)
            commit = Commit(self._session, self._target, state, manifest.last_seq, "", lambda: None)
            rows = with_variants(versions(commit, events, keys.names, []), columns.variants)
            return _with_versions(base, rows, keys.names)
        rows = with_variants(latest(changes, keys.names, seen=True), columns.variants)
        return _with_states(base, rows, keys.names, marks=mode == "soft_delete")


def _open(uri: str, version: int) -> DeltaTable:
    from deltalake import DeltaTable

    return DeltaTable(uri, version=version)


def _with_states(base: DataFrame, last: DataFrame, keys: tuple[str, ...], *, marks: bool) -> DataFrame:
    """Returns the rows of an ``upsert`` or ``soft_delete`` table after the last change of each key."""
    others = other_keys(keys)
    changed = last.select(*[f.col(quote(key)).alias(other) for key, other in zip(keys, others, strict=True)])
    kept = base.join(changed, same_key(keys, others), "left_anti")
    if not marks:
        return kept.unionByName(_like(last.where(f.col("_op") != DELETE), base))
    present = base.select(*[f.col(quote(key)).alias(other) for key, other in zip(keys, others, strict=True)])
    last_and_present = last.join(present.withColumn("_towpath_there", f.lit(True)), same_key(keys, others), "left")
    rows = last_and_present.where(f.col(SEEN) | f.col("_towpath_there").isNotNull()).withColumn(
        "_deleted", f.col("_op") == DELETE
    )
    return kept.unionByName(_like(rows, base))


def _with_versions(base: DataFrame, rows: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Returns the rows of an ``scd2`` table with the new versions, and with those that they close."""
    others = other_keys(keys)
    closed = rows.where(CLOSES).select(
        *[f.col(quote(key)).alias(other) for key, other in zip(keys, others, strict=True)],
        f.col("_seq").alias("_towpath_seq"),
        f.col("_valid_to").alias("_towpath_end"),
    )
    same = same_key(keys, others) & (f.col("_seq") == f.col("_towpath_seq"))
    old = base.join(closed, same, "left")
    old = old.withColumn("_current", f.col("_current") & f.col("_towpath_end").isNull())
    old = old.withColumn("_valid_to", f.coalesce("_valid_to", "_towpath_end"))
    return old.select(*[f.col(quote(name)) for name in base.columns]).unionByName(
        _like(rows.where(~f.col(CLOSES)), base)
    )


def _like(rows: DataFrame, base: DataFrame) -> DataFrame:
    """Returns rows with the columns and types of the table; a column that they lack is null."""
    names = {name.lower(): name for name in rows.columns}
    return rows.select(
        *[
            (f.col(quote(names[field.name.lower()])) if field.name.lower() in names else f.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in base.schema.fields
        ]
    )
