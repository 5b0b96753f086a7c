"""Loads or replays a part of a table: the rows of a range of keys, or those that fulfil a condition.

The table is first brought to a position by its own changes. Then one commit gives it the rows of the part as of that
position, which come from chunks of the source and the changes behind them, or from a table that was built beside. Rows
outside the part, the applied position and the ledger stay as they are, so a job that is killed leaves a table that
apply brings level as any other. Decision 0153 says which conditions are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql import types as t

from cdc.base.errors import (
    CutOffError,
    NeedsSnapshotError,
    SchemaChangedError,
    TargetError,
    UnsupportedError,
    UsageError,
)
from cdc.base.targets import MODE_COLUMNS
from cdc.client import open_meta, open_store
from cdc.lake.apply.commit import Commit
from cdc.lake.apply.foreign_keys.jobs import ancestors_of
from cdc.lake.apply.full_state import replace_part
from cdc.lake.apply.merge import RowKeys
from cdc.lake.apply.rows import require_keys, with_variants
from cdc.lake.apply.schema.requirements import require_recorded_policies
from cdc.lake.delta.catalog import require_catalog
from cdc.lake.delta.present_rows import matched
from cdc.lake.delta.proof import position_of
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import require_owner, schema_of, target_of
from cdc.lake.delta.tracked import tracked_schema
from cdc.lake.jobs.catch_up import TransactionRange
from cdc.lake.jobs.columns import UnusableError
from cdc.lake.jobs.generations import Load, LoadPosition, Rebuild, load_position, require_no_archive
from cdc.lake.jobs.job import SUBSCRIBER, Job, table_sessions
from cdc.lake.jobs.load import ChangesMeanwhile, changes_meanwhile, state_of_snapshot
from cdc.lake.jobs.retry import bring_level, bring_to
from cdc.lake.jobs.table_part import TablePart
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime.commit_metadata import commit_metadata
from cdc.lake.runtime.failures import SHARED_ATTEMPTS, again_if_concurrent
from cdc.meta import Subscription, UnknownColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cdc.config import DestinationConfig
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.jobs.results import CatchUp
    from cdc.lake.jobs.table_part import PartRequest
    from cdc.lake.runtime.session import TableSession
    from cdc.source.snapshot.files import SnapshotFiles

MODES = ("upsert", "soft_delete")
MOST_KEYS = 10_000
"""Rows of the lake whose keys the source is asked for, because the source has no such row in the part."""


class MoreRowsError(UnusableError):
    """The source has to be asked for more rows: the lake has rows in the part, and the chunks do not have their
    keys."""

    def __init__(self, table: str, keys: Sequence[Sequence[Any]]) -> None:
        super().__init__(
            f"the lake has {len(keys)} rows in the part that the source does not have there, and it is asked for them",
            place=f"table {table}",
        )
        self.keys = keys


def require_table_for_part(config: DestinationConfig, table: str) -> int:
    """Raises UnsupportedError, UsageError or TargetError if no part of a table can be replaced. Returns a seq up to
    which the table is complete."""
    target = target_of(config, table)
    place = f"table {table}"
    if target.apply.mode not in MODES:
        raise UnsupportedError(
            f"the table has the mode {target.apply.mode}, and keeps the history of its rows, of which no part can be "
            "replaced",
            place=place,
            remedy="Take the whole table: leave out --keys and --where.",
        )
    if target.apply.shared:
        members = "source tables (tables.route)" if target.is_routed else "destinations (apply.shared)"
        raise UnsupportedError(
            f"several {members} have rows in the Delta table, and no part of it can be replaced",
            place=place,
            remedy="Leave out --keys and --where: then all rows of this one are replaced, and no others.",
        )
    subscription = open_meta(config).read().subscriptions.get(SUBSCRIBER) or Subscription()
    parked = subscription.parked.get(table)
    if parked is not None and parked.due != "retry":
        raise UsageError(
            f"the table is parked, and a part of it does not bring it back: {parked.reason}",
            place=place,
            remedy=f"Run `cdc {'replay' if parked.due == 'hold' else 'snapshot'} {config.name} {table}` first.",
        )
    state = target.state()
    if state is None:
        raise TargetError(
            "there is no Delta table of which a part could be replaced",
            place=f"{place} at {target.path}",
            remedy="Leave out --keys and --where to load the whole table.",
        )
    require_owner(state, target)
    require_no_archive(state, target)
    if (tracked := tracked_schema(state)) is not None:
        require_recorded_policies(target, state, tracked)  # the other rows stay as they are
    return subscription.position() if parked is None else parked.keep_seq or 0


def resolve_part(config: DestinationConfig, table: str, request: PartRequest) -> TablePart:
    """Returns the part of a table with the columns that it had when capture last looked. Raises UsageError."""
    newest = open_store(config).newest_schemas()
    schema = None if newest is None else newest[1].tables.get(table)
    if schema is None:
        raise UsageError(f"the store knows no table {table}", place=config.name, remedy="Check the name.")
    policies = target_of(config, table).policies
    configured = config.table_apply(table).keys
    keys = schema.primary_key or require_keys(table, configured, (), schema.column_names)
    return request.resolve(table, schema, columns_of_schema(schema, policies), keys)


def load_part(mine: Job, files: SnapshotFiles, request: PartRequest, low: int) -> tuple[CatchUp, int, int]:
    """Gives a part of a table the rows that chunks of the source have, and brings the table level. The store must be
    complete up to the chunks' last position. ``low``: the chunks show everything up to there.

    Returns the catch-up behind it, the position of the part, and the number of keys whose rows differed. Raises
    UnusableError or SchemaChangedError if the chunks have to be read again.
    """
    done = _bring_to(mine, max(files.high_seq(), reached_seq(mine)))
    seq, schema, config = done.level_seq, files.info.definition, mine.config
    target = target_of(config, mine.table)
    columns = columns_of_schema(schema, target.policies)
    part = request.resolve(mine.table, schema, columns, files.info.key)
    assert files.info.part is not None  # the caller has looked
    if part.record.comparisons != files.info.part.comparisons:
        raise UnusableError("the columns of the condition have changed", place=f"table {mine.table}")
    part = replace(part, record=files.info.part)
    position = load_position(mine, seq)
    keys = RowKeys(columns.keys(files.info.key), {*files.info.key} == {*schema.primary_key})
    load = Load(target, None, columns, schema.primary_key, position, Rebuild("snapshot", files.id, low), schema)
    try:
        with mine.batches.next(mine.table, low, seq, whole=True) as manifest, table_sessions(config).one() as session:
            if manifest is not None and (manifest.ddl or mine.has_changes(manifest.last_seq, seq)):
                raise SchemaChangedError(
                    "a DDL statement changed the table while a part of it was read", place=f"table {mine.table}"
                )
            require_catalog(session.spark, config)
            meanwhile = ChangesMeanwhile(config, mine.batches, manifest, low)
            changes, has_cascades = changes_meanwhile(session, load, files, meanwhile, keys)
            if has_cascades and _may_move(mine, part, seq):
                raise UnusableError(
                    "a foreign key may have moved rows into the part or out of it while it was read",
                    place=f"table {mine.table}",
                    remedy="Take the part while the rows that it refers to do not change.",
                )
            rows = state_of_snapshot(session.spark, files.paths(), columns, keys.names, changes)
            merge = _PartMerge(session, target, part, with_variants(rows, columns.variants), keys, position)
            differed = merge.run(asks=True)
    except CutOffError as error:
        raise UnusableError(error.message, place=f"table {mine.table}", remedy="Take the part again.") from error
    return bring_level(mine, seq), seq, differed


def replay_part(mine: Job, built: DestinationConfig, request: PartRequest, seq: int) -> tuple[CatchUp, int]:
    """Gives a part of a table the rows of a table that was built elsewhere up to ``seq``, and brings it level.
    ``built``: the configuration that names the other one; the table must not have reached a later seq. Returns the
    catch-up behind it, and the number of keys whose rows differed."""
    _bring_to(mine, seq)
    target, side = target_of(mine.config, mine.table), target_of(built, mine.table)
    state = side.state()
    if state is None:
        raise TargetError("the store has no rows of the table", place=f"table {mine.table}")
    part = resolve_part(mine.config, mine.table, request)
    with table_sessions(mine.config).one() as session:
        require_catalog(session.spark, mine.config)
        rows = session.spark.read.format("delta").load(side.path)
        if side.present_rows is not None:
            rows = rows.where(side.present_rows)
        rows = rows.drop(*MODE_COLUMNS[side.apply.mode])
        keys = RowKeys(tuple(part.columns[name].field.name for name in part.keys), is_primary=False)
        differed = _PartMerge(session, target, part, rows, keys, load_position(mine, seq)).run(asks=False)
    return bring_level(mine, seq), differed


class _PartMerge:
    """The commit that gives a table the rows of a part."""

    def __init__(
        self,
        session: TableSession,
        target: Target,
        part: TablePart,
        rows: DataFrame,
        keys: RowKeys,
        position: LoadPosition,
    ) -> None:
        self._session = session
        self._target = target
        self._part = part
        self._rows = rows
        """Rows as of the position, all that belong to the part among them."""
        self._keys = keys
        self._position = position

    def run(self, *, asks: bool) -> int:
        """Returns the number of keys whose rows differed. ``asks``: rows of the lake that are not among the rows may
        be at the source, outside the part. Raises MoreRowsError for them."""
        return again_if_concurrent(lambda: self._merge(asks=asks), self._part.table, SHARED_ATTEMPTS)

    def _merge(self, *, asks: bool) -> int:
        target, part = self._target, self._part
        state = target.state()
        assert state is not None  # it was brought to the position
        is_part = f.coalesce(part.condition(), f.lit(False))
        rows = self._rows.where(is_part)
        if not part.is_of_keys:
            present = self._present_keys(state)
            if asks:
                self._require_known(present)
            others = matched(self._rows.where(~is_part), present, self._keys.names, "left_semi")
            rows = rows.unionByName(others)
        shaped = self._shaped(rows, schema_of(state))
        # The version is the transaction's: a driver that was overtaken by another part's does nothing.
        application = f"{target.application_id(state)}:part"
        commit = Commit(
            self._session, target, state, state.version, commit_metadata(), lambda: None, application=application
        )
        moment = datetime.fromtimestamp(self._position.time_us / 1e6, UTC)
        return replace_part(
            commit, shaped, is_part, self._keys, (self._position.seq, moment), is_of_keys=part.is_of_keys
        )

    def _present_keys(self, state: DeltaState) -> DataFrame:
        """Returns the keys of the lake's rows that belong to the part."""
        rows = self._session.spark.sql(f"SELECT * FROM {self._target.sql} VERSION AS OF {state.version}")  # noqa: S608
        rows = rows.where(self._part.condition())
        if self._target.present_rows is not None:
            rows = rows.where(self._target.present_rows)
        return rows.select(*[quote(name) for name in self._keys.names]).distinct()

    def _require_known(self, present: DataFrame) -> None:
        names, part = self._keys.names, self._part
        unknown = matched(present, self._rows.select(*[quote(name) for name in names]), names, "left_anti")
        asked = part.more_keys()
        if asked:
            fields = [present.schema[name] for name in names]
            frame = self._session.spark.createDataFrame(asked, t.StructType(fields))
            unknown = matched(unknown, frame, names, "left_anti")
        # A timestamp that is collected would depend on the time zone of this process.
        kinds = {field.name: field.dataType for field in unknown.schema.fields}
        values = [
            f.unix_micros(quote(name)) if isinstance(kinds[name], t.TimestampType) else f.col(quote(name))
            for name in names
        ]
        rows = unknown.limit(MOST_KEYS + 1).select(*values).collect()
        if len(rows) > MOST_KEYS:
            raise UnsupportedError(
                f"more than {MOST_KEYS:,} rows of the lake fulfil the condition, and no row of the source with their "
                "keys does",
                place=f"table {part.table}",
                remedy="Choose the rows by columns of the key, or take the whole table.",
            )
        if rows:
            raise MoreRowsError(part.table, [tuple(row) for row in rows])

    def _shaped(self, rows: DataFrame, schema: t.StructType) -> DataFrame:
        """Returns rows with the columns that the Delta table has, under its names. Raises UnsupportedError for a column
        of another type."""
        own = {field.name.lower(): field for field in rows.schema.fields}
        columns = []
        lacking = {*self._keys.names, *(self._part.columns[name].field.name for name in self._part.compared)}
        lacking = {name for name in lacking if name.lower() not in {field.name.lower() for field in schema.fields}}
        if lacking:
            raise UnsupportedError(
                f"the Delta table has no column {', '.join(sorted(lacking))}",
                place=f"table {self._part.table}",
                remedy="Choose the rows by other columns.",
            )
        for field in schema.fields:
            read = own.get(field.name.lower())
            if read is None:
                continue
            if read.dataType.simpleString() != field.dataType.simpleString():
                raise UnsupportedError(
                    f"the column {field.name} has the type {field.dataType.simpleString()} in the Delta table, and "
                    f"{read.dataType.simpleString()} at the source",
                    place=f"table {self._part.table}",
                    remedy="Take the whole table: leave out --keys and --where.",
                )
            columns.append(f.col(quote(read.name)).alias(field.name))
        return rows.select(*columns)


def reached_seq(mine: Job) -> int:
    """Returns the position that the table has already."""
    state = target_of(mine.config, mine.table).state()
    return 0 if state is None else position_of(state)


def _bring_to(mine: Job, seq: int) -> CatchUp:
    """Applies the table's changes up to a position."""
    try:
        return bring_to(mine, TransactionRange(mine.keep_seq(), seq))
    except NeedsSnapshotError as error:
        columns, record = UnknownColumns.of(error), mine.record()
        kept = None if columns is None or record is None else record.keep_seq
        mine.mark("snapshot", str(error), kept, columns=columns)
        raise UnsupportedError(
            f"the table has to be loaded first: {error.message}",
            place=f"table {mine.table}",
            remedy=f"Run `cdc snapshot {mine.config.name} {mine.table}`.",
        ) from error


def _may_move(mine: Job, part: TablePart, seq: int) -> bool:
    """Whether foreign keys may move rows into the part, or change them by rows outside it, by the definitions at a
    position."""
    stored = mine.batches.reader.schemas(seq)
    keys = {} if stored is None else stored[1].foreign_keys or {}
    compared = {name.lower() for name in part.compared}
    return any(
        compared & {name.lower() for name in key.columns} or mine.table in ancestors_of(keys, key.parent)
        for key in keys.get(mine.table, ())
    )
