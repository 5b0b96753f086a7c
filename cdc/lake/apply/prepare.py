"""Prepares a batch before Spark is started: what it holds, which tables it concerns, and whether it may be applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError
from cdc.base.log import get_logger
from cdc.base.targets import split_table
from cdc.batches.manifest import Manifest, TableResult, schemas_of
from cdc.client import open_table_batches
from cdc.decode.layout import Survey, survey
from cdc.decode.policies import value_policies
from cdc.decode.transactions import ALL_TABLES
from cdc.lake.apply import ddl
from cdc.lake.apply.foreign_keys.changes import CascadedRows
from cdc.lake.apply.foreign_keys.reach import reached_tables
from cdc.lake.apply.large_values import LARGE_BYTES
from cdc.lake.delta.comments import follows_comments
from cdc.lake.delta.proof import prove_idle
from cdc.lake.delta.tables import target_of
from cdc.meta.state import Subscription
from cdc.source.foreign_keys import refusal

if TYPE_CHECKING:
    from cdc.batches.parking import TableGate
    from cdc.binlog.sql.schemas import Schemas, TableSchema
    from cdc.config import DestinationConfig
    from cdc.decode import TableLayout
    from cdc.lake.apply.schema.column_reading import ColumnReading
    from cdc.lake.apply.schema.statements import DdlStatement
    from cdc.meta import ParkedTable

_log = get_logger(__name__)


@dataclass(frozen=True)
class PreparedBatch:
    """A batch with everything that its merge needs to know."""

    config: DestinationConfig
    manifest: Manifest
    check: Callable[[], object]
    """Raises if this process may not merge the batch (any more)."""
    subscription: Subscription
    """The subscriber as the meta knows it, with the tables as of its last ack."""
    contents: Survey
    """The layouts of the tables with rows in the batch, and the sizes of their largest row events."""
    schemas: Schemas | None
    statements: tuple[DdlStatement, ...] = ()
    """The batch's DDL statements."""
    applied_before: tuple[DdlStatement, ...] = ()
    """The statements of a mixed batch that come before these rows; see :meth:`parts`."""
    tables: tuple[str, ...] = ()
    """The tables to work on: those with rows, those that the DDL changes, and those that may be missing in Delta."""
    gate: TableGate | None = None
    """The way to each table beside other jobs; None for the job that has a table for itself."""
    released: tuple[str, ...] = ()
    """Parked tables that wait for their first snapshot, and are dropped or renamed by the batch: nothing of them is
    needed any more."""
    idle: tuple[TableResult, ...] = ()
    """The versions of tables without changes in the batch that others have written to since the last ack."""
    faults: dict[str, CdcError] = field(default_factory=dict)
    """Tables that cannot be merged, and are to be parked; they are among :attr:`tables`."""
    reached: frozenset[str] = frozenset()
    """Tables that foreign keys may change without row events."""
    cascaded: Mapping[str, CascadedRows] = field(default_factory=dict)
    """The changes by foreign keys, once they were found. Tables that have some are among :attr:`tables`."""
    reading: ColumnReading | None = None
    """The values that only the server knew after a statement, for a job on the one table that it has changed."""

    def enter(self, table: str) -> AbstractContextManager[ParkedTable | None]:
        """Holds the table's commit lock while the block runs. Yields the record of a parked table, else None."""
        alone = any(part.statements for part in self.parts(table))
        return nullcontext(None) if self.gate is None else self.gate.enter(table, alone=alone)

    def parts(self, table: str) -> list[PreparedBatch]:
        """Returns the batches that bring this table through the batch, one after the other: itself, unless it is mixed.
        Of a mixed batch, the statement on the table comes first, and commits its own position, as if it had a batch of
        its own; the table's rows come after it."""
        if not self.manifest.mixed:
            return [self]
        unmixed = self.manifest.model_copy(update={"mixed": False, "ddl": False})
        rows = replace(self, manifest=unmixed, statements=())
        has_rows = self.layout(table) is not None
        statements = ddl.changing(self.statements, table)
        if not statements and not has_rows:
            statements = ddl.naming(self.statements, table)  # perhaps a table that is not in the lake yet
        if not statements:
            return [rows]  # an index may have come between the rows, whose position none of these may pass
        upto = statements[-1]
        last = self.manifest.positions.last.model_copy(update={"gtid": upto.gtid})
        positions = self.manifest.positions.model_copy(update={"last": last})
        own = unmixed.model_copy(update={"ddl": True, "last_seq": upto.seq, "positions": positions})
        alone = replace(self, manifest=own, statements=statements, contents=Survey({}, {}))
        return [alone, replace(rows, applied_before=statements)] if has_rows else [alone]

    def creates(self, table: str) -> bool:
        """Whether the batch's DDL creates this table."""
        return ddl.creates((*self.applied_before, *self.statements), table)

    def layout(self, table: str) -> TableLayout | None:
        """Returns the layout of a table with rows in the batch, else None."""
        return self.contents.layouts.get(table)

    def is_large(self, table: str) -> bool:
        """Whether the table may have values of many megabytes in the batch."""
        return self.contents.largest_event_bytes.get(table, 0) > LARGE_BYTES

    def schema(self, table: str) -> TableSchema | None:
        """Returns the table in the stored schemas."""
        return self.schemas.tables.get(table) if self.schemas is not None else None

    def changes(self, table: str) -> bool:
        """Whether the batch commits to this table, which is one of :attr:`tables`: it has rows of it, or DDL that names
        it."""
        if table in self.cascaded:
            return True
        return table in self.manifest.tables and (self.layout(table) is not None or self.manifest.ddl)


def prepare(
    manifest: Manifest,
    config: DestinationConfig,
    check: Callable[[], object],
    subscription: Subscription,
    gate: TableGate | None = None,
    *,
    follows_keys: bool = True,
) -> PreparedBatch:
    """Reads what the batch holds, and proves the tables that it does not change. Needs no Spark session.

    Tables that are parked are left out; ``gate`` looks again before each commit. ``follows_keys``: whether to look for
    changes of rows by foreign keys.

    Raises UnsupportedDdlError for a statement that cannot be applied, ConfigError if a configured key is missing,
    TargetError for a table that lies behind what was acked, and whatever ``check`` raises.
    """
    check()
    schemas = schemas_of(manifest)
    statements = ddl.statements_of(config, manifest)
    # A table that was excluded after the batch was made is left alone: that is the way out if it cannot be applied.
    followed = tuple(
        table
        for table in manifest.tables
        if config.tables.includes(*split_table(table)) and table not in subscription.parked
    )
    faults: dict[str, CdcError] = {}
    contents = _survey_each(manifest, config, followed, schemas, faults)
    changed = ddl.changed_tables(statements, followed)
    # DDL without effect (an index) leaves a Delta table alone if the last ack knows it: no statement.
    tables = [
        table
        for table in followed
        if table in contents.layouts
        or table in changed
        or table in faults
        or (manifest.ddl and (subscription.table(table) is None or _has_new_comments(config, table, schemas)))
    ]
    if schemas is not None and (manifest.after_seq == 0 or manifest.ddl):
        # An included table exists in Delta even while it is empty. Those that the meta knows are there.
        left_out = {*tables, *subscription.parked}
        tables += [
            table
            for table in sorted(schemas.tables)
            if table not in left_out
            and subscription.table(table) is None
            and manifest.wants(table)
            and config.tables.includes(*split_table(table))
        ]
    for table in tables:
        target_of(config, table)  # reports a missing hash key before Spark is started
    if schemas is not None:
        _warn_of_unused_policies(config, schemas)
    lost: dict[str, CdcError] = {}
    idle = prove_idle(config, manifest, subscription, {*tables, *subscription.parked}, lost)
    for table, error in lost.items():
        note_fault(config, table, error, faults)
    tables += sorted(lost)
    reached: frozenset[str] = frozenset()
    if follows_keys:
        reached, unlogged = _reached(config, manifest, subscription, schemas, faults)
        for table, error in unlogged.items():
            note_fault(config, table, error, faults)
        tables += sorted(unlogged.keys() - set(tables))
    return PreparedBatch(
        config=config,
        manifest=manifest,
        check=check,
        subscription=subscription,
        contents=contents,
        schemas=schemas,
        statements=statements,
        tables=tuple(tables),
        released=tuple(_released(manifest, config, statements, subscription, gate)),
        gate=gate,
        idle=tuple(idle),
        faults=faults,
        reached=reached,
    )


def _released(
    manifest: Manifest,
    config: DestinationConfig,
    statements: tuple[DdlStatement, ...],
    subscription: Subscription,
    gate: TableGate | None,
) -> Iterator[str]:
    for table in manifest.tables if statements else ():
        parked = subscription.parked.get(table)
        if parked is None or parked.due != "snapshot" or subscription.table(table) is not None:
            continue
        if not config.tables.includes(*split_table(table)) or not ddl.ends(statements, table):
            continue
        # A snapshot that is being taken is of the table that has the name later.
        if gate is None or not gate.has_job(table):
            yield table


def _reached(
    config: DestinationConfig,
    manifest: Manifest,
    subscription: Subscription,
    schemas: Schemas | None,
    faults: Mapping[str, CdcError],
) -> tuple[frozenset[str], dict[str, CdcError]]:
    """Returns the tables that foreign keys may change without row events, and the errors of those that they may change
    in a way that cannot be followed. Tables whose rows are in the lake are looked at: those that the subscriber wants,
    and that are neither parked nor still to be loaded."""
    if schemas is None or not schemas.foreign_keys or manifest.ddl:
        return frozenset(), {}
    stored = schemas

    def is_followed(table: str) -> bool:
        if table in subscription.parked or table in faults or not manifest.wants(table):
            return False
        if not config.tables.includes(*split_table(table)):
            return False
        is_loaded = config.source.start != "snapshot" or subscription.table(table) is not None
        return is_loaded or target_of(config, table).state() is not None

    return reached_tables(
        config,
        manifest,
        schemas,
        [table for table in sorted(schemas.tables) if table in schemas.foreign_keys and is_followed(table)],
        lambda table: _applied_seq(subscription, table),
        lambda table, key, updates: refusal(config, stored, table, key, updates),
        lambda: open_table_batches(config).reader,
    )


def _applied_seq(subscription: Subscription, table: str) -> int:
    record = subscription.table(table)
    return 0 if record is None or record.applied_seq is None else record.applied_seq


def _has_new_comments(config: DestinationConfig, table: str, schemas: Schemas | None) -> bool:
    """Whether a table that DDL names has got other comments than its Delta table has."""
    comments = None if schemas is None else schemas.comments_of(table)
    if comments is None or not config.table_apply(table).comments:
        return False
    target = target_of(config, table)
    state = target.state()
    return state is not None and not follows_comments(state, target, comments)


def note_fault(config: DestinationConfig, table: str, error: CdcError, faults: dict[str, CdcError]) -> None:
    """Notes the fault of a table that may be parked. Raises the error for any other table."""
    if config.table_apply(table).on_error == "block":
        raise error
    faults[table] = error


def _survey_each(
    manifest: Manifest,
    config: DestinationConfig,
    tables: Sequence[str],
    schemas: Schemas | None,
    faults: dict[str, CdcError],
) -> Survey:
    """Makes :func:`_survey` of all tables at once or, if that fails and a table may be parked, of each by itself."""
    try:
        return _survey(manifest, config, tables, schemas)
    except CdcError:
        if all(config.table_apply(table).on_error == "block" for table in tables):
            raise
    survey = Survey({}, {})
    for table in tables:
        try:
            table_survey = _survey(manifest, config, [table], schemas)
        except CdcError as error:
            note_fault(config, table, error, faults)
        else:
            survey.layouts.update(table_survey.layouts)
            survey.largest_event_bytes.update(table_survey.largest_event_bytes)
    return survey


def _survey(manifest: Manifest, config: DestinationConfig, tables: Iterable[str], schemas: Schemas | None) -> Survey:
    """Finds the layouts and the largest row events of these tables.

    The index tells which transactions have rows of these tables; no others are read. Of those, the events' headers and
    the table maps are read, because no index entry holds a layout, and no executor would notice a table whose columns
    change inside a batch. That takes about 60 ns an event: 0.3 s for a batch of five million events.
    """
    masks = [manifest.table_mask(table) for table in tables]
    if not masks:
        return Survey({}, {})
    mask = 0
    for table_mask in masks:
        mask |= ALL_TABLES if table_mask is None else table_mask
    return survey(
        [byte_range for byte_range in manifest.ranges if byte_range.may_hold(mask)],
        tables,
        schemas,
        lambda table: value_policies(config.table_apply(table)),
        table_mask=mask,
    )


def _warn_of_unused_policies(config: DestinationConfig, schemas: Schemas) -> None:
    """Warns of columns in ``apply.columns`` that no table has: such a name may be misspelt."""
    names = {column.name.lower() for table in schemas.tables.values() for column in table.columns}
    unused = sorted(set(config.apply.columns) - names)
    if unused and schemas.tables:
        _log.warning("no table has a column that apply.columns names", columns=", ".join(unused))
