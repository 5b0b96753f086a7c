"""The schema history: ``schemas/SEQ.json`` holds the captured tables' columns as they are from that seq on.

If table maps name the columns, the files add what table maps lack (``tinyint(1)``, defaults, UUID and INET), and a
definition that is slightly too new does no harm. If table maps name no columns (``binlog_row_metadata`` is not FULL, or
the server is older than it: MySQL before 8.0, MariaDB before 10.5), the files are the only source of names. But
``information_schema`` shows a table as it is now, while the stream may be behind:

- The source's position is read *after* the definitions. Up to that position, a further DDL statement may already be
  part of a definition. Such a table is *unsure*, which is recorded in the file.

Without names in table maps:

- Only the tables that a DDL statement names are read again. All others keep their known definition, also when capture
  continues after a pause.
- If a DDL statement arrives for an unsure table after rows of it, the names of their columns are unknown, and capture
  stops with an error.

The setting may change at any time. A table map without names ends a connection that was made for names, and the next
one is made for none, with the definitions of the last file. The way back is taken with a later connection, once no
table is unsure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pymysql

from cdc.base.errors import RetryableError, UnsupportedDdlError, UnsupportedTypeError
from cdc.base.log import get_logger
from cdc.base.patterns import exclusion
from cdc.binlog import frame_state as k
from cdc.binlog.events import QueryEvent, parse_table_name
from cdc.binlog.frame_buffers import Numbers
from cdc.binlog.optional_columns import Columns
from cdc.binlog.positions import BinlogPosition, make_seq, split_seq
from cdc.binlog.sql.changes import Change
from cdc.binlog.sql.schemas import ForeignKey, Offsets, Schemas, TableComments, TableSchema
from cdc.binlog.sql.statements import classify
from cdc.binlog.table_map import names_columns
from cdc.capture.alter_search import AlterSearch
from cdc.capture.partition_history import NEVER, PartitionHistory
from cdc.capture.sink import CaptureLog
from cdc.config import DestinationConfig
from cdc.source.schemas import check_members, read_partitions, read_schema, read_schemas, with_members
from cdc.source.server import current_position
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import list_segments, schema_files, schemas_folder

log = get_logger(__name__)

_REMEDY = (
    "Exclude the table (tables.exclude), so that capture goes on. When it has passed the statement, include the table "
    "again, and load it by `cdc snapshot`. Before you run DDL, wait until capture has caught up: the binlog names no "
    "columns (binlog_row_metadata is not FULL)."
)
Connection: TypeAlias = "pymysql.connections.Connection[Any]"
ForeignKeys: TypeAlias = "dict[str, tuple[ForeignKey, ...]] | None"


class ColumnNamesMissingError(RetryableError):
    """Rows name no columns, and the connection was made for rows that do."""


@dataclass
class _Unsure:
    """A definition that was read while the source was ahead of the stream."""

    since: int
    """The seq from which the definition is used."""
    until: int
    """The seq of the source's position when it was read."""
    rows: bool
    """Whether the table may have had rows without the names of their columns since."""


@dataclass(frozen=True)
class _Altered:
    """The tables whose columns one transaction's DDL may change. ``begins`` is the transaction's offset in the output,
    or None if the transaction is the statement alone."""

    names: frozenset[str]
    begins: int | None
    named: frozenset[str] = frozenset()
    """All captured tables that the DDL names."""
    changes: tuple[Change, ...] = ()


class SchemaHistory:
    """Writes the schema files of one store. ``named`` says that table maps name the columns."""

    def __init__(
        self, control: Connection, config: DestinationConfig, log: CaptureLog, epoch: int, *, named: bool
    ) -> None:
        self._control = control
        self._destination = config
        self._config = config.tables
        self._log = log
        self._epoch = epoch
        self._named = named
        self._folder = schemas_folder(log.path)
        self._current: dict[str, TableSchema] = {}
        self._latest: dict[str, TableSchema] = {}
        """If table maps name the columns: the definitions that were read last."""
        self._comments: dict[str, TableComments] | None = None
        self._engines: dict[str, str] | None = None
        self._foreign_keys: ForeignKeys = None
        self._system_zone: Offsets | None = None
        self._earlier_keys: set[str] = set()
        """The tables on either end of foreign keys that the source has dropped, by a statement that was not read yet.
        Their names are in lower case."""
        self._unsure: dict[str, _Unsure] = {}
        self._nameless: dict[str, int] = {}
        """The tables that have had rows without the names of their columns, and the seq of the first ones."""
        self._pending: deque[_Altered] = deque()
        self._read_at = BinlogPosition("", 0)
        """The source's position after definitions were read last."""
        self._look: tuple[dict[str, TableSchema], int] | None = None
        """The definitions that were read for the rows last passed to :meth:`before`, and the source's seq then."""
        self._statements: dict[int, frozenset[str]] = {}
        """All captured tables that the DDL statements name which :meth:`before` has not passed yet, by their seqs."""
        self._seen: tuple[Schemas, int] | None = None
        """The same if table maps name the columns."""
        self._partitions = PartitionHistory(config.tables, self._read_partitions)
        self.ready = 0
        """The number of the rows last passed to :meth:`before` whose schemas are written."""

    def begin(self, seq: int, position: BinlogPosition) -> None:
        """Writes or completes the definitions that hold after ``seq``, where capture begins to read. It is the
        source's ``position``. Raises UnsupportedDdlError if the binlog names no columns, and they cannot be known."""
        files = self._files()
        earlier = [n for n in files if n <= seq]
        stored = Schemas.load(self._folder / f"{earlier[-1]}.json") if earlier else None
        self._partitions.begin(seq, stored)
        if self._named and (stored is None or stored.named is not False):
            self._save_as_they_are(seq, stored if earlier == files else None)
            return
        fresh, until = self._read()
        completed = False
        if stored is not None:
            base = with_members(self._config, stored)
            # Nobody follows the statements on a table that is left out. Included again, it is a new one.
            self._current = {name: schema for name, schema in base.tables.items() if self._config.includes_name(name)}
            completed = base != stored or base.comments != self._comments or base.named is not False
            completed = completed or base.engines != self._engines
            completed = completed or base.foreign_keys != self._foreign_keys or base.read_at is None
            completed = completed or base.system_zone != self._system_zone
            completed = completed or base.partitions != self._partitions.into(base).partitions
            completed = completed or len(self._current) < len(base.tables)
            # After a failover, positions of the former server say nothing about this one's binlog.
            until_here = {name: until if self._is_unread(end, seq) else end for name, end in base.unsure.items()}
            self._unsure = {
                name: _Unsure(earlier[-1], end, self._rows_since(earlier[-1], name))
                for name, end in until_here.items()
                if end > seq and name in self._current
            }
        new = [name for name in fresh if name not in self._current]
        for name in new:
            self._current[name] = fresh[name]
            if until > seq:
                self._unsure[name] = _Unsure(seq, until, rows=False)
        if self._unsure:
            self._named = False  # the store may have rows without names that a later statement casts doubt on
            self._search(position, first=not earlier)
        if new or not earlier or completed:
            self._save(seq)

    def _search(self, begin: BinlogPosition, *, first: bool) -> None:
        """Reads ahead for statements that contradict a definition, so that no row becomes visible that has other
        columns. ``first``: this is the first start."""
        log.info(
            "looking for statements that altered tables, because the binlog names no columns",
            begin=str(begin),
            end=str(self._read_at),
            tables=len(self._unsure),
        )
        until = {name: self._unsure[name].until if name in self._unsure else None for name in self._current}
        conflict = AlterSearch(self._destination, self._epoch, until).run(begin, self._read_at)
        if conflict is not None:
            raise UnsupportedDdlError(
                f"the column names of its rows behind {conflict.rows_at} are unknown: the binlog names none, and a "
                f"statement behind {conflict.at} changed the columns before they were read",
                place=f"table {conflict.table}",
                remedy="Set source.start to snapshot, or to a position behind the statement, or exclude the table "
                f"({exclusion(conflict.table)})."
                if first
                else _REMEDY,
            )

    def table_map(self, event: bytes, has_checksum: bool, seq: int, where: str) -> None:
        """Notes whether a captured table's rows from ``seq`` on name their columns. Raises ColumnNamesMissingError if
        they do not, and the connection was made for rows that do."""
        if names_columns(event, has_checksum) is not False:
            return  # an event that cannot be read is an error for those who decode its rows
        _, db, table = parse_table_name(event)
        if self._named:
            raise ColumnNamesMissingError(
                f"the rows of {db}.{table} name no columns: binlog_row_metadata was not FULL when they were written",
                place=where,
            )
        self._nameless.setdefault(f"{db}.{table}", seq)

    def statement(
        self, query: QueryEvent, altered: frozenset[str], begins: int | None, named: frozenset[str] = frozenset()
    ) -> None:
        """Notes a DDL statement that was kept, with the tables whose columns it may change, and all that it names.
        ``begins``: see :class:`_Altered`."""
        changes = classify(query.sql, query.db, query.sql_mode, ignores_case=self._config.ignores_case).changes
        last = self._pending[-1] if self._pending else None
        if begins is not None and last is not None and last.begins == begins:
            self._pending[-1] = _Altered(last.names | altered, begins, last.named | named, (*last.changes, *changes))
        else:
            self._pending.append(_Altered(altered, begins, named, changes))

    def abandon(self, begins: int) -> None:
        """Discards the notes of the unfinished transaction that begins at this offset."""
        if self._pending and self._pending[-1].begins == begins:
            self._pending.pop()

    def before(self, rows: Numbers) -> None:
        """Writes the schemas that transactions need. Call it before they become visible. Raises UnsupportedDdlError if
        the columns of a table can no longer be known; :attr:`ready` then says how many rows may be published."""
        self.ready = begin = 0
        is_saved = False
        # One look has all statements of these rows: the source had executed them before they came. A look takes a
        # second with 5,000 tables, and a migration has thousands of statements.
        self._look = self._seen = None
        statements = np.flatnonzero(rows[:, k.R_FLAGS] & k.FLAG_DDL)
        seqs = rows[statements, k.R_SEQ].tolist()
        self._statements = {seq: statement.named for seq, statement in zip(seqs, self._pending, strict=False)}
        for at in statements:
            self._pass(rows[begin:at])
            self.ready = int(at)
            seq = int(rows[at, k.R_SEQ])
            altered = self._pending.popleft()
            has_partitions = self._partitions.follow(seq, altered.changes)
            if not self._named:
                self._alter(seq, altered)
            elif not is_saved or has_partitions or self._awaits_statement(altered.named):
                later = list(self._pending)[: len(statements) - 1]
                files = self._files()
                before = Schemas.load(self._folder / f"{files[-1]}.json") if files and files[-1] <= seq else None
                names = altered.names.union(*(statement.names for statement in later))
                self._save_as_they_are(seq, before, names, altered.named)
                is_saved = True
            self._statements.pop(seq, None)
            begin = int(at)  # the statement's own rows (CREATE TABLE … SELECT) have the new definition
        self._pass(rows[begin:])
        self.ready = len(rows)

    def are_generated(self, db: str, table: str, columns: Columns) -> bool:
        """Whether these columns of a captured table are generated ones. Reads its definition if the known one does not
        say so: a DDL statement may have come with the rows that are being read. Raises SourceUnavailableError."""
        schema = (self._latest if self._named else self._current).get(f"{db}.{table}")
        if schema is not None and schema.are_generated(columns):
            return True
        present = read_schema(self._control, self._config, db, table)
        return present is not None and present.are_generated(columns)

    def engine_of(self, table: str) -> str | None:
        """Returns the storage engine of a captured table, as it was read last; None for an unknown table."""
        tables = self._latest if self._named else self._current
        return Schemas(tables=tables, engines=self._engines).engine_of(table)

    # --- servers without names in table maps

    def _pass(self, rows: Numbers) -> None:
        if not self._unsure or not len(rows):
            return
        changed = rows[rows[:, k.R_ROW_EVENTS] > 0]
        mask = int(np.bitwise_or.reduce(changed[:, k.R_MASK]))
        last = int(rows[-1, k.R_SEQ])
        for name, unsure in list(self._unsure.items()):
            since = self._nameless.get(name)
            if since is not None and not unsure.rows and mask >> self._bit(name) & 1:
                nameless = changed[changed[:, k.R_SEQ] > since, k.R_MASK]
                unsure.rows = bool(int(np.bitwise_or.reduce(nameless)) >> self._bit(name) & 1)
            if last >= unsure.until:
                del self._unsure[name]

    def _alter(self, seq: int, statement: _Altered) -> None:
        names = statement.names
        for name in sorted(names & self._unsure.keys()):
            unsure = self._unsure[name]
            if unsure.rows and seq <= unsure.until:
                raise _unknown_columns(name, unsure.since, seq)
        if self._look is None:
            self._look = self._read()
        fresh, until = self._look
        for name in sorted(names & (self._current.keys() | fresh.keys())):
            self._unsure.pop(name, None)
            if name not in fresh:
                self._current.pop(name, None)
                continue
            self._current[name] = fresh[name]
            if until > seq:
                self._unsure[name] = _Unsure(seq, until, rows=False)
        self._save(seq, statement.named)

    def _read(self) -> tuple[dict[str, TableSchema], int]:
        """Reads the current definitions, then the source's position. Returns the definitions and the position's seq."""
        schemas = read_schemas(self._control, self._config)
        tables, self._comments, self._engines = schemas.tables, schemas.comments, schemas.engines
        self._foreign_keys, self._system_zone = schemas.foreign_keys, schemas.system_zone
        for finding in check_members(self._destination, Schemas(tables=tables)):
            raise UnsupportedTypeError(finding.message, place=finding.subject, remedy=finding.remedy)
        return tables, self._source_seq()

    def _read_partitions(self, names: Sequence[str] | None) -> tuple[dict[str, str], int]:
        partitions = read_partitions(self._control, self._config, names)
        # A source without partitions is not asked for a position that says when they were read.
        return partitions, self._source_seq() if partitions or names is not None else NEVER

    def _source_seq(self) -> int:
        self._read_at = position = current_position(self._control)
        return make_seq(self._epoch, position.file_number, position.pos)

    def _is_unread(self, until: int, seq: int) -> bool:
        """Whether a position of the server before the one of ``seq`` was never reached."""
        return split_seq(until).epoch < split_seq(seq).epoch and until > (self._log.last_seq or 0)

    def _save(self, seq: int, named: frozenset[str] = frozenset()) -> None:
        unsure = {name: change.until for name, change in sorted(self._unsure.items())}
        tables = dict(sorted(self._current.items()))
        earlier = [n for n in self._files() if n <= seq]
        before = Schemas.load(self._folder / f"{earlier[-1]}.json") if earlier else None
        schemas = Schemas(
            tables=tables,
            unsure=unsure,
            comments=self._comments,
            engines=self._engines,
            foreign_keys=self._with_earlier_keys(self._foreign_keys, before, named, tables),
            system_zone=self._system_zone,
            read_at=make_seq(self._epoch, self._read_at.file_number, self._read_at.pos),
            named=False,
        )
        schemas = self._partitions.into(self._with_statements(schemas, before))
        if before == _as_read_with(before, schemas):
            return
        schemas.save(self._folder / f"{seq}.json")

    def _bit(self, name: str) -> int:
        return self._log.tables.number(name) & 63

    def _rows_since(self, seq: int, name: str) -> bool:
        """Whether the store holds rows of this table after ``seq``."""
        segments = list_segments(self._log.path)
        if not segments:  # a log without segments may have had any
            return self._log.last_seq is not None
        for segment in reversed(segments):
            entries = read_entries(segment)
            later = entries[entries["seq"] > seq]
            touched = (later["table_mask"] >> np.uint64(self._bit(name)) & np.uint64(1)).astype(bool)
            if (touched & (later["row_events"] > 0)).any():
                return True
            if len(later) < len(entries):
                break
        return False

    # --- servers with names in table maps

    def _save_as_they_are(
        self,
        seq: int,
        before: Schemas | None,
        altered: frozenset[str] = frozenset(),
        named: frozenset[str] = frozenset(),
    ) -> None:
        """Writes the current definitions. They may contain a later DDL statement already, which readers of rows with
        names allow for. Tables that have another definition than in the file ``before``, or were ``altered`` by
        statements from ``seq`` on, are unsure up to the source's position. ``named``: the tables that the statement at
        ``seq`` names."""
        if self._seen is None:
            current = read_schemas(self._control, self._config).model_copy(update={"named": True})
            self._seen = current, self._source_seq()
        schemas, until = self._seen
        schemas = schemas.model_copy(
            update={"foreign_keys": self._with_earlier_keys(schemas.foreign_keys, before, named, schemas.tables)}
        )
        schemas = self._with_statements(self._partitions.into(schemas).model_copy(update={"read_at": until}), before)
        self._latest, self._engines = schemas.tables, schemas.engines
        earlier, unsure = (before.tables, before.unsure) if before is not None else ({}, {})
        changed = {name for name, table in schemas.tables.items() if earlier.get(name) != table}
        changed.update(altered & schemas.tables.keys())
        if not changed and before == _as_read_with(before, schemas.model_copy(update={"unsure": unsure})):
            return
        ends = {name: end for name, end in unsure.items() if name in schemas.tables} | dict.fromkeys(changed, until)
        unsure = {name: end for name, end in sorted(ends.items()) if end > seq}
        schemas.model_copy(update={"unsure": unsure}).save(self._folder / f"{seq}.json")

    def _with_statements(self, schemas: Schemas, before: Schemas | None) -> Schemas:
        """Adds the statements that :meth:`before` has not passed yet and that name a table on either end of a foreign
        key: until each of them, the keys may have been others than those that were read."""
        ends = schemas.key_ends | (frozenset() if before is None else before.key_ends)
        named = {seq: tuple(sorted(tables & ends)) for seq, tables in self._statements.items()}
        return schemas.model_copy(update={"key_statements": {seq: tables for seq, tables in named.items() if tables}})

    def _with_earlier_keys(
        self, keys: ForeignKeys, before: Schemas | None, named: frozenset[str], tables: Collection[str]
    ) -> ForeignKeys:
        """Returns the foreign keys as they are together with those of the file before that are gone, unless their table
        or parent is gone or ``named`` by the statement: a statement that was not read yet has dropped them."""
        self._earlier_keys = set()
        if keys is None or before is None:
            return keys
        merged = dict(keys)
        for table, earlier in (before.foreign_keys or {}).items():
            if table not in tables or table in named:
                continue
            names = {key.name for key in keys.get(table, ())}
            kept = tuple(key for key in earlier if key.name not in names and key.parent not in named)
            if kept:
                merged[table] = (*keys.get(table, ()), *kept)
                self._earlier_keys.update({table}, (key.parent for key in kept))
        return dict(sorted(merged.items()))

    def _awaits_statement(self, named: frozenset[str]) -> bool:
        """Whether a statement that names these tables may be one that dropped a foreign key."""
        return not self._earlier_keys.isdisjoint(named)

    def _files(self) -> list[int]:
        return [seq for seq, _ in schema_files(self._folder)]


def _as_read_with(before: Schemas | None, schemas: Schemas) -> Schemas:
    """Returns definitions as if they had been read when those of the file before were, if no statement on foreign keys
    came with them: such definitions need no file of their own."""
    if before is None or before.read_at is None or schemas.key_statements:
        return schemas
    return schemas.model_copy(update={"read_at": before.read_at, "key_statements": before.key_statements})


def _unknown_columns(name: str, since: int, seq: int) -> UnsupportedDdlError:
    first, second = split_seq(since), split_seq(seq)
    return UnsupportedDdlError(
        f"the column names of its rows between binlog file {first.file_number}, position {first.offset}, and the DDL "
        f"statement in file {second.file_number}, position {second.offset}, are unknown: the statement may have "
        "changed the columns before they were read",
        place=f"table {name}",
        remedy=_REMEDY,
    )
