"""Plans a migration with what is at hand: the stored schemas, and the logs of the Delta tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError, UsageError
from cdc.binlog.constants import HEADER_SIZE, MAGIC
from cdc.binlog.events import parse_format_description, parse_header
from cdc.binlog.sql.schemas import Schemas
from cdc.binlog.sql.server import LATEST, ServerVersion
from cdc.client import open_meta, open_store
from cdc.disk.encryption.read import open_content
from cdc.lake.migration.effects import READERS, ColumnChanges, column_changes, new_features
from cdc.lake.migration.estimates import TableCost, cost_of
from cdc.lake.migration.lake_tables import LakeTable, lake_table
from cdc.lake.migration.planner import Kind, Planner, Session, StatementVerdict, TableVerdict
from cdc.lake.migration.script import DEFAULT_SQL_MODE, bits_of, statements_in
from cdc.lake.migration.trial import ServerToAsk, Trial, try_migration
from cdc.store.formats.layout import list_segments

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.lake.delta.tables import Target
    from cdc.meta import Subscription

_LATEST_MARIADB = ServerVersion(mariadb=True, version=(11, 8, 0))


@dataclass(frozen=True)
class PlanSettings:
    """What the session of a migration is like, and where its definitions come from."""

    database: str = ""
    """The database of names without one."""
    sql_mode: str = DEFAULT_SQL_MODE
    time_zone: str = "SYSTEM"
    schemas: Path | None = None
    """A file of table schemas, instead of the newest of the store."""
    server: ServerToAsk | None = None
    """A server that executes the statements on empty tables; None asks none."""


@dataclass(frozen=True)
class TableReport:
    """A verdict about a table, with what follows from it for its readers and for the lake."""

    verdict: TableVerdict
    changes: ColumnChanges
    unread: Mapping[str, Mapping[str, str]]
    """The features that the Delta table gets, each with the readers that do not read it: see
    :data:`cdc.lake.migration.effects.READERS`."""
    cost: TableCost | None
    """The rows that are written or read; None if there are none, or the table is not at hand."""


@dataclass(frozen=True)
class MigrationPlan:
    """The verdicts about a migration."""

    statements: tuple[tuple[StatementVerdict, tuple[TableReport, ...]], ...]
    remarks: tuple[str, ...] = ()
    trial: Trial | None = None
    """The answers of a server; None if none was asked."""

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of all verdicts."""
        return {verdict.kind for verdict, _ in self.statements}


@dataclass
class _Lake:
    """Reads the logs of Delta tables, and remembers the first reason why one cannot be read."""

    remarks: list[str] = field(default_factory=list)

    def table(self, target: Target) -> LakeTable | None:
        try:
            return lake_table(target)
        except CdcError as error:
            self.remarks.append(f"the Delta table of {target.table} is taken as its source is: {error.message}")
            return None


def plan_migration(config: DestinationConfig, text: str, settings: PlanSettings) -> MigrationPlan:
    """Plans the statements of a text. Raises UsageError if there are no stored schemas, or the text cannot be split,
    and what the store and the server raise."""
    sql_mode = bits_of(settings.sql_mode)
    statements = list(statements_in(text, sql_mode))
    seq, schemas, server = _stored(config, settings)
    lake = _Lake()
    session = Session(server, sql_mode, settings.database, settings.time_zone)
    subscription = None if settings.schemas is not None else open_meta(config).read().subscriptions.get("apply")
    planner = Planner(config, schemas, session, lake.table, seq, _waiting(config, settings, schemas, subscription))
    verdicts = planner.run(statements)
    reports = ((verdict, tuple(_report(planner, table) for table in verdict.tables)) for verdict in verdicts)
    trial = None
    if settings.server is not None:
        trial = try_migration(settings.server, verdicts, schemas.tables, config.tables)
    remarks = (*lake.remarks, *_parked(subscription, verdicts), *(() if trial is None else trial.remarks))
    return MigrationPlan(tuple(reports), remarks, trial)


def _waiting(
    config: DestinationConfig, settings: PlanSettings, schemas: Schemas, subscription: Subscription | None
) -> frozenset[str]:
    """Returns the tables that wait for their first snapshot, as far as the meta is asked."""
    if settings.schemas is not None or config.source.start != "snapshot":
        return frozenset()
    if subscription is None:  # apply has never run
        return frozenset(schemas.tables)
    parked = subscription.parked.items()
    return frozenset(name for name, table in parked if table.due == "snapshot" and name not in subscription.tables)


def _parked(subscription: Subscription | None, verdicts: Sequence[StatementVerdict]) -> Iterator[str]:
    """Yields a remark for each parked table that the migration changes."""
    names = dict.fromkeys(table.table for verdict in verdicts for table in verdict.tables)
    for name in names:
        if subscription is not None and name in subscription.parked and name in subscription.tables:
            yield f"{name} is parked: {subscription.parked[name].reason} The verdicts are those after that."


def _report(planner: Planner, verdict: TableVerdict) -> TableReport:
    before, after = verdict.before, verdict.after
    return TableReport(
        verdict,
        column_changes(before, after),
        {feature: READERS[feature] for feature in new_features(before, after)},
        cost_of(planner.lake.get(verdict.table), verdict),
    )


def _stored(config: DestinationConfig, settings: PlanSettings) -> tuple[int, Schemas, ServerVersion]:
    """Returns the newest definitions, a seq that they have, and the server that they are of."""
    by_url = _LATEST_MARIADB if config.source.flavor == "mariadb" else LATEST
    if settings.schemas is not None:
        asked = by_url if settings.server is None else settings.server.version()
        return 0, Schemas.load(settings.schemas), asked if asked.mariadb == by_url.mariadb else by_url
    reader = open_store(config)
    stored = reader.newest_schemas()
    if stored is None:
        raise UsageError(
            "the store has no definitions of tables yet",
            place=reader.place,
            remedy="Run `cdc capture --until-current` first, or name a file of them with --schemas.",
        )
    return max(stored[0], reader.last_seq() or 0), stored[1], _server_of(config) or by_url


def _server_of(config: DestinationConfig) -> ServerVersion | None:
    """Returns the server that wrote the newest segment on this machine; None if there is none."""
    segments = list_segments(config.store.path) if config.store.kind == "file" else []
    if not segments:
        return None
    with open_content(segments[-1]) as file:
        file.seek(len(MAGIC))
        head = file.read(HEADER_SIZE)
        event = head + file.read(parse_header(head).length - HEADER_SIZE)
    return ServerVersion.parse(parse_format_description(event).server_version)
