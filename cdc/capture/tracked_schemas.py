"""The schema history of a source without a server: a folder of binlog files.

Nobody can be asked for definitions. They come from the file that ``source.schemas`` names, or from what the store has
already, and DDL statements in the binlog change them (:mod:`cdc.binlog.sql.track`). A table in neither is unknown. If
table maps name the columns (``binlog_row_metadata=FULL``), its rows are captured nevertheless. Without names they stop
capture.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdc.base.errors import DamagedError, SourceRefusedError, UnsupportedDdlError, UnsupportedTypeError
from cdc.base.patterns import exclusion
from cdc.binlog import frame_state as k
from cdc.binlog.constants import HEADER_SIZE
from cdc.binlog.events import QueryEvent, parse_header
from cdc.binlog.frame_buffers import Numbers
from cdc.binlog.optional_columns import Columns
from cdc.binlog.positions import BinlogPosition
from cdc.binlog.sql.changes import Change, CreateTable, DropDatabase, NoEffect, RenameTable
from cdc.binlog.sql.schemas import Schemas, TableSchema
from cdc.binlog.sql.server import ServerVersion
from cdc.binlog.sql.statements import classify
from cdc.binlog.sql.track import apply_changes
from cdc.binlog.table_map import parse_table_map
from cdc.capture.partition_history import NEVER, PartitionHistory
from cdc.capture.sink import CaptureLog
from cdc.config import DestinationConfig
from cdc.source.schemas import with_members
from cdc.store.formats.layout import schema_files, schemas_folder

_WITH_CHARSET = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")


@dataclass(frozen=True)
class _Altered:
    """The definitions before and after the DDL of one transaction. ``begins`` is the transaction's offset in the
    output, or None if the transaction is the statement alone."""

    before: dict[str, TableSchema]
    after: dict[str, TableSchema]
    begins: int | None
    changes: tuple[Change, ...] = ()


class TrackedSchemas:
    """Writes the schema files of one store. It is used like :class:`~cdc.capture.schema_history.SchemaHistory`."""

    def __init__(self, config: DestinationConfig, log: CaptureLog) -> None:
        self._config = config
        self._folder = schemas_folder(log.path)
        self._server: ServerVersion | None = None
        self._current: dict[str, TableSchema] = {}
        # Nobody can be asked: what no statement tells stays unknown.
        self._partitions = PartitionHistory(config.tables, lambda _: ({}, NEVER))
        self._pending: deque[_Altered] = deque()
        self.ready = 0
        """The number of the rows last passed to :meth:`before` whose schemas are written."""

    def begin(self, seq: int, _position: BinlogPosition) -> None:
        """Reads the definitions that hold after ``seq``, where capture begins to read. Tables that the store does not
        know are taken from ``source.schemas``. Raises ConfigError, DamagedError, StorageError."""
        stored = self._stored(seq)
        self._partitions.begin(seq, stored)
        stored_tables = {} if stored is None else stored.tables
        # Nobody follows the statements on a table that is left out. Included again, it is an unknown one.
        self._current = {
            name: table for name, table in stored_tables.items() if self._config.tables.includes_name(name)
        }
        for name, table in given_schemas(self._config).tables.items():
            self._current.setdefault(name, table)
        if stored is None or stored.tables != self._current:
            self._save(seq, self._current)

    def written_by(self, version: str) -> None:
        """Notes the server that wrote the following events, on which the meaning of statements depends."""
        self._server = ServerVersion.parse(version)

    def statement(
        self, query: QueryEvent, altered: frozenset[str], begins: int | None, _named: frozenset[str] = frozenset()
    ) -> None:
        """Changes the definitions by a DDL statement that was kept, and notes it. ``begins``: see :class:`_Altered`."""
        before, included = dict(self._current), self._config.tables
        statement = classify(query.sql, query.db, query.sql_mode, self._server, ignores_case=included.ignores_case)
        changes = statement.changes
        self._current = followed(self._current, changes)
        self._current = {n: table for n, table in self._current.items() if included.includes_name(n)}
        last = self._pending[-1] if self._pending else None
        if begins is not None and last is not None and last.begins == begins:
            before, changes = last.before, (*last.changes, *changes)
            self._pending.pop()
        self._pending.append(_Altered(before, dict(self._current), begins, changes))

    def abandon(self, begins: int) -> None:
        """Takes back the notes of the unfinished transaction that begins at this offset."""
        if self._pending and self._pending[-1].begins == begins:
            self._current = self._pending.pop().before

    def before(self, rows: Numbers) -> None:
        """Writes the schemas that transactions need. Call it before they become visible."""
        for at in np.flatnonzero(rows[:, k.R_FLAGS] & k.FLAG_DDL):
            seq, altered = int(rows[at, k.R_SEQ]), self._pending.popleft()
            self._partitions.follow(seq, altered.changes)
            self._save(seq, altered.after)
        self.ready = len(rows)

    def table_map(self, event: bytes, has_checksum: bool, _seq: int, where: str) -> None:
        """Checks that the names of a captured table's columns are known: by its table map, or by its definition. Raises
        SourceRefusedError."""
        if len(event) < HEADER_SIZE or len(event) < parse_header(event).length:
            return  # larger than what arrives at once; apply refuses it if it has no names
        try:
            table_map = parse_table_map(event, has_checksum)
        except (DamagedError, UnsupportedTypeError):
            return  # whoever decodes its rows says what is wrong
        if table_map.has_metadata:
            return
        schema = self._current.get(table_map.full_name)
        if schema is not None and len(schema.columns) == len(table_map.columns) and _is_complete(schema):
            return
        why = "its definition is not known"
        if schema is not None:
            why = f"its known definition has {len(schema.columns)} columns, and the rows have {len(table_map.columns)}"
            if len(schema.columns) == len(table_map.columns):
                why = "its definition does not tell the character set of its texts"
        raise SourceRefusedError(
            f"the rows of {table_map.full_name} name no columns (binlog_row_metadata was not FULL), and {why}",
            place=where,
            remedy="Set source.schemas to a file schemas/SEQ.json of a store that describes the table as it is at this "
            f"position, or leave the table out ({exclusion(table_map.full_name)}). Everything before this position is "
            "in the store. Set binlog_row_metadata=FULL on the server, so that later files name their columns.",
        )

    def engine_of(self, _table: str) -> str | None:
        """Engines are not known without a server."""
        return None

    def are_generated(self, db: str, table: str, columns: Columns) -> bool:
        """Whether these columns of a captured table are generated ones, as its definition says."""
        schema = self._current.get(f"{db}.{table}")
        return schema is not None and schema.are_generated(columns)

    # --- files

    def _stored(self, seq: int) -> Schemas | None:
        earlier = [path for since, path in schema_files(self._folder) if since <= seq]
        return Schemas.load(earlier[-1]) if earlier else None

    def _save(self, seq: int, tables: dict[str, TableSchema]) -> None:
        stored = self._stored(seq)
        comments = None if stored is None else stored.comments
        schemas = self._partitions.into(Schemas(tables=dict(sorted(tables.items())), comments=comments))
        if stored is None or schemas != stored:
            schemas.save(self._folder / f"{seq}.json")


def given_schemas(config: DestinationConfig) -> Schemas:
    """Returns the definitions of included tables in the file of ``source.schemas``; none without one. Raises
    DamagedError, VersionError, StorageError."""
    path = config.source.schemas
    if path is None:
        return Schemas(tables={})
    schemas = Schemas.load(path)
    tables = {name: table for name, table in schemas.tables.items() if config.tables.includes_name(name)}
    return with_members(config.tables, Schemas(tables=tables))


def followed(tables: dict[str, TableSchema], changes: Sequence[Change]) -> dict[str, TableSchema]:
    """Returns the definitions after the changes of one statement. A table whose definition is not certain any more is
    missing."""
    tables_after = dict(tables)
    waiting: dict[str, list[Change]] = {}

    def settle() -> None:
        for name, clauses in waiting.items():
            try:
                table = apply_changes(tables_after.pop(name, None), clauses)
            except UnsupportedDdlError:
                continue
            if table is not None:
                tables_after[name] = table
        waiting.clear()

    for change in changes:
        if isinstance(change, NoEffect):
            continue
        if isinstance(change, DropDatabase):
            for name in [name for name in tables_after if name.partition(".")[0] == change.db]:
                del tables_after[name]
        elif isinstance(change, RenameTable):
            settle()
            moved = tables_after.pop(".".join(change.table), None)
            tables_after.pop(".".join(change.to), None)
            if moved is not None:
                tables_after[".".join(change.to)] = moved
        elif change.table is None:  # it may change any table
            return {}
        elif isinstance(change, CreateTable) and change.schema is None and change.like is not None:
            like = tables_after.get(".".join(change.like))
            if like is not None:
                tables_after.setdefault(".".join(change.table), like)
        else:
            waiting.setdefault(".".join(change.table), []).append(change)
    settle()
    return tables_after


def _is_complete(schema: TableSchema) -> bool:
    """Whether a definition says enough to decode rows without names. One that was read from CREATE TABLE may lack the
    character sets, which the database decided."""
    return all(column.charset is not None for column in schema.columns if column.data_type in _WITH_CHARSET)
