"""The DDL statements of a batch, and what each of them does to one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from cdc.batches.manifest import schemas_of
from cdc.binlog.constants import MAGIC
from cdc.binlog.entry import EntryFlag, format_gtid
from cdc.binlog.events import QueryEvent, parse_format_description
from cdc.binlog.sql.changes import (
    Change,
    CreateTable,
    DropDatabase,
    DropPartitions,
    DropTable,
    MovePartition,
    NoEffect,
    RenameTable,
    TruncateTable,
    Unsupported,
    table_of,
)
from cdc.binlog.sql.moment import Moment
from cdc.binlog.sql.schemas import Offsets
from cdc.binlog.sql.server import ServerVersion
from cdc.binlog.sql.statements import Statement, classify
from cdc.decode.transactions import Transactions, open_range

if TYPE_CHECKING:
    from cdc.batches.manifest import ByteRange, Manifest

_LONGEST_SHOWN = 300


@dataclass(frozen=True)
class DdlStatement:
    """A DDL statement of the batch."""

    seq: int
    """That of its transaction."""
    sql: str
    sql_mode: int
    statement: Statement
    commit_time: datetime
    gtid: str | None
    zone_offset_s: int | None = None
    """:attr:`cdc.binlog.sql.moment.Moment.zone_offset_s` of the statement."""

    @property
    def shown(self) -> str:
        """The statement for messages, on one line."""
        text = " ".join(self.sql.split())
        return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


def zone_of(manifest: Manifest) -> Offsets:
    """Returns the own time zone of the server that wrote a batch; nothing if it is not known."""
    schemas = schemas_of(manifest)
    return () if schemas is None else schemas.system_zone or ()


def read_statements(
    ranges: Sequence[ByteRange], *, ignores_case: bool, system_zone: Offsets = ()
) -> Iterator[DdlStatement]:
    """Yields the DDL statements in the ranges, in their order. ``ignores_case``: as for
    :func:`~cdc.binlog.sql.statements.classify`. ``system_zone``: the server's own time zone. Raises DamagedError."""
    for byte_range in ranges:
        segment = open_range(byte_range.path, byte_range.offset, byte_range.length).between(0, None)
        begins, ends = segment.bounds()
        server = _server(segment)
        for at in np.flatnonzero(segment.entries["flags"] & int(EntryFlag.DDL)).tolist():
            entry = segment.entries[at]
            for _, query in segment.queries(int(begins[at]), int(ends[at])):
                moment = Moment.of(query, system_zone)
                statement = classify(
                    query.sql, query.db, query.sql_mode, server, ignores_case=ignores_case, moment=moment
                )
                if statement.kind == "ddl":
                    yield _statement(entry, query, statement, moment)


def _server(segment: Transactions) -> ServerVersion | None:
    """Returns the server that wrote a segment, from its format description."""
    size = int.from_bytes(segment.buf[len(MAGIC) + 9 : len(MAGIC) + 13].tobytes(), "little")
    event = segment.buf[len(MAGIC) : len(MAGIC) + size].tobytes()
    return ServerVersion.parse(parse_format_description(event).server_version)


def _statement(entry: np.void, query: QueryEvent, statement: Statement, moment: Moment) -> DdlStatement:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(entry["commit_time_us"]))
    seq, zone_offset_s = int(entry["seq"]), moment.zone_offset_s
    return DdlStatement(seq, query.sql, query.sql_mode, statement, time, format_gtid(entry), zone_offset_s)


# --- one table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableEffect:
    """What one statement does to one table."""

    statement: DdlStatement
    origin: str | None
    """The table, by its name before the statement, whose rows this table has afterwards; None if there is no such table
    afterwards, or if it is new."""
    changes: tuple[Change, ...] = ()
    """The changes of the origin's columns and rows, without renaming the table."""
    creates: CreateTable | None = None
    drops: bool = False
    """Whether the table is gone afterwards: dropped, or renamed."""
    is_renamed: bool = False
    """Whether it is gone because it has another name now."""

    def new_name_of(self, table: str) -> str:
        """Returns the name that a table has after the statement, if it is there then."""
        for change in self.statement.statement.changes:
            if isinstance(change, RenameTable) and _name(change.table) == table:
                table = _name(change.to)
        return table

    @property
    def tolerates_missing(self) -> bool:
        """Whether the statement passes over tables that are not there: ``RENAME TABLE IF EXISTS``."""
        changes = self.statement.statement.changes
        return any(isinstance(change, RenameTable) and change.if_exists for change in changes)

    @property
    def truncates(self) -> bool:
        return any(isinstance(change, TruncateTable) for change in self.changes)

    @property
    def drops_partitions(self) -> DropPartitions | None:
        """The partitions whose rows go, if the statement does nothing else."""
        return self._only_change if isinstance(self._only_change, DropPartitions) else None

    @property
    def moves(self) -> MovePartition | None:
        """The partition whose rows come from another table or go there, if the statement does nothing else to the
        columns and rows."""
        return self._only_change if isinstance(self._only_change, MovePartition) else None

    @property
    def _only_change(self) -> Change | None:
        return self.changes[0] if len(self.changes) == 1 else None


def effect_on(table: str, statement: DdlStatement) -> TableEffect | None:
    """Returns the effect of a statement on ``db.table``; None if it has none."""
    origins: dict[str, str | None] = {}
    creates: CreateTable | None = None
    is_renamed = False
    for change in statement.statement.changes:
        if isinstance(change, RenameTable):
            old, new = _name(change.table), _name(change.to)
            origins[new] = origins.get(old, old)
            origins[old] = None
            is_renamed = is_renamed or old == table
        elif isinstance(change, DropTable):
            origins[_name(change.table)] = None
        elif isinstance(change, DropDatabase):
            if table.startswith(f"{change.db}."):
                origins[table] = None
        elif isinstance(change, CreateTable) and _name(change.table) == table:
            creates = change
    if creates is not None:
        others = tuple(
            c for c in statement.statement.changes if isinstance(c, Unsupported | MovePartition) and _is_of(c, table)
        )
        return TableEffect(statement, None, others, creates=creates)
    origin = origins.get(table, table)
    if origin is None:
        return TableEffect(statement, None, drops=True, is_renamed=is_renamed)
    changes = tuple(
        change
        for change in statement.statement.changes
        if not isinstance(change, RenameTable | NoEffect) and _is_of(change, origin)
    )
    return TableEffect(statement, origin, changes) if changes or origin != table else None


def _is_of(change: Change, table: str) -> bool:
    named_table = table_of(change)
    return named_table is not None and _name(named_table) == table


def _name(table: tuple[str, str]) -> str:
    return f"{table[0]}.{table[1]}"
