"""The schema history: ``schemas/SEQ.json`` holds the captured tables' columns as they are from that seq on.

If table maps name the columns, the files add what table maps lack (``tinyint(1)``, defaults, UUID and INET), and a
definition that is slightly too new does no harm. If table maps name no columns (MySQL before 8.0, MariaDB before
10.5), the files are the only source of names. But ``information_schema`` shows a table as it is now, while the stream
may be behind. For such servers:

- Only the tables that a DDL statement names are read again. All others keep their known definition, also when capture
  continues after a pause.
- The source's position is read *after* the definitions. Up to that position, a further DDL statement may already be
  part of a definition. Such a table is *unsure*, which is recorded in the file. If that statement arrives after rows
  of the table, the names of their columns are unknown, and capture stops with an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pymysql

from cdc.binlog import frame_state as k
from cdc.binlog.frame_buffers import Numbers
from cdc.config import DestinationConfig
from cdc.errors import UnsupportedDdlError, UnsupportedTypeError
from cdc.positions import make_seq, split_seq
from cdc.schemas import Schemas, TableComments, TableSchema
from cdc.source.schemas import check_members, read_schema, read_schemas, with_members
from cdc.source.server import current_position
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import list_segments, schemas_folder
from cdc.store.writer.log import RelayLog

Connection: TypeAlias = "pymysql.connections.Connection[Any]"


@dataclass
class _Unsure:
    """A definition that was read while the source was ahead of the stream."""

    since: int
    """The seq from which the definition is used."""
    until: int
    """The seq of the source's position when it was read."""
    rows: bool
    """Whether the table has had rows since."""


@dataclass(frozen=True)
class _Altered:
    """The tables whose columns one transaction's DDL may change. ``begins`` is the transaction's offset in the output,
    or None if the transaction is the statement alone."""

    names: frozenset[str]
    begins: int | None


class SchemaHistory:
    """Writes the schema files of one store. ``named`` says that table maps name the columns."""

    def __init__(
        self, control: Connection, config: DestinationConfig, log: RelayLog, epoch: int, *, named: bool
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
        self._unsure: dict[str, _Unsure] = {}
        self._pending: deque[_Altered] = deque()
        self.ready = 0
        """How many of the rows last passed to :meth:`before` have their schemas written."""

    def begin(self, seq: int) -> None:
        """Writes or completes the definitions that hold after ``seq``, where capture begins to read."""
        if self._named:
            self._save_as_they_are(seq)
            return
        known = [n for n in self._files() if n <= seq]
        fresh, until = self._read()
        completed = False
        if known:
            stored = Schemas.load(self._folder / f"{known[-1]}.json")
            base = with_members(self._config, stored)
            completed = base != stored or base.comments != self._comments
            self._current = dict(base.tables)
            self._unsure = {
                name: _Unsure(known[-1], end, self._rows_since(known[-1], name))
                for name, end in base.unsure.items()
                if end > seq
            }
        new = [name for name in fresh if name not in self._current]
        for name in new:
            self._current[name] = fresh[name]
            self._unsure[name] = _Unsure(seq, until, rows=False)
        if new or not known or completed:
            self._save(seq)

    def statement(self, altered: frozenset[str], begins: int | None) -> None:
        """Notes the tables of a DDL statement that was kept. ``begins``: see :class:`_Altered`."""
        last = self._pending[-1] if self._pending else None
        if begins is not None and last is not None and last.begins == begins:
            self._pending[-1] = _Altered(last.names | altered, begins)
        else:
            self._pending.append(_Altered(altered, begins))

    def abandon(self, begins: int) -> None:
        """Discards the notes of the unfinished transaction that begins at this offset."""
        if self._pending and self._pending[-1].begins == begins:
            self._pending.pop()

    def before(self, rows: Numbers) -> None:
        """Writes the schemas that transactions need. Call it before they become visible. Raises UnsupportedDdlError if
        the columns of a table can no longer be known; :attr:`ready` then says how many rows may be published."""
        self.ready = begin = 0
        is_saved = False
        for at in np.flatnonzero(rows[:, k.R_FLAGS] & k.FLAG_DDL):
            self._pass(rows[begin:at])
            self.ready = int(at)
            seq = int(rows[at, k.R_SEQ])
            altered = self._pending.popleft()
            if not self._named:
                self._alter(seq, altered.names)
            elif not is_saved:
                # One look has all statements of these rows: the source had executed them before they came. A look
                # takes a second with 5,000 tables, and a migration has thousands of statements.
                self._save_as_they_are(seq)
                is_saved = True
            begin = int(at)  # the statement's own rows (CREATE TABLE … SELECT) have the new definition
        self._pass(rows[begin:])
        self.ready = len(rows)

    def are_generated(self, db: str, table: str, columns: frozenset[str]) -> bool:
        """Whether these columns of a captured table are generated ones. Reads its definition if the known one does not
        say so: a DDL statement may have come with the rows that are being read. Raises SourceUnavailableError."""
        known = self._latest.get(f"{db}.{table}")
        if known is not None and known.are_generated(columns):
            return True
        present = read_schema(self._control, self._config, db, table)
        return present is not None and present.are_generated(columns)

    # --- servers without names in table maps

    def _pass(self, rows: Numbers) -> None:
        if not self._unsure or not len(rows):
            return
        mask = int(np.bitwise_or.reduce(rows[rows[:, k.R_ROW_EVENTS] > 0, k.R_MASK]))
        last = int(rows[-1, k.R_SEQ])
        for name, unsure in list(self._unsure.items()):
            unsure.rows = unsure.rows or bool(mask >> self._bit(name) & 1)
            if last >= unsure.until:
                del self._unsure[name]

    def _alter(self, seq: int, names: frozenset[str]) -> None:
        for name in self._matching(names, self._unsure):
            unsure = self._unsure[name]
            if unsure.rows and seq <= unsure.until:
                raise _unknown_columns(name, unsure.since, seq)
        fresh, until = self._read()
        for name in self._matching(names, {**self._current, **fresh}):
            self._unsure.pop(name, None)
            if name not in fresh:
                self._current.pop(name, None)
                continue
            self._current[name] = fresh[name]
            if until > seq:
                self._unsure[name] = _Unsure(seq, until, rows=False)
        self._save(seq)

    def _read(self) -> tuple[dict[str, TableSchema], int]:
        """Reads the current definitions, then the source's position. Returns the definitions and the position's seq."""
        found = read_schemas(self._control, self._config)
        tables, self._comments = found.tables, found.comments
        for finding in check_members(self._destination, Schemas(tables=tables)):
            raise UnsupportedTypeError(finding.message, place=finding.subject, remedy=finding.remedy)
        position = current_position(self._control)
        return tables, make_seq(self._epoch, position.file_number, position.pos)

    def _save(self, seq: int) -> None:
        unsure = {name: found.until for name, found in sorted(self._unsure.items())}
        schemas = Schemas(tables=dict(sorted(self._current.items())), unsure=unsure, comments=self._comments)
        known = [n for n in self._files() if n <= seq]
        if known and Schemas.load(self._folder / f"{known[-1]}.json") == schemas:
            return
        schemas.save(self._folder / f"{seq}.json")

    def _bit(self, name: str) -> int:
        return self._log.tables.number(name) & 63

    def _rows_since(self, seq: int, name: str) -> bool:
        """Whether the store holds rows of this table after ``seq``."""
        for segment in reversed(list_segments(self._log.path)):
            entries = read_entries(segment)
            later = entries[entries["seq"] > seq]
            touched = (later["table_mask"] >> np.uint64(self._bit(name)) & np.uint64(1)).astype(bool)
            if (touched & (later["row_events"] > 0)).any():
                return True
            if len(later) < len(entries):
                break
        return False

    @staticmethod
    def _matching(names: frozenset[str], known: Iterable[str]) -> list[str]:
        """Returns the known tables that a statement names. Names match in another case if none matches exactly."""
        known = list(known)
        exact = names.intersection(known)
        lower = {name.lower() for name in names - exact}
        return [name for name in known if name in exact or name.lower() in lower]

    # --- servers with names in table maps

    def _save_as_they_are(self, seq: int) -> None:
        """Writes the current definitions. They may contain a later DDL statement already, which readers allow for."""
        schemas = read_schemas(self._control, self._config)
        self._latest = schemas.tables
        known = self._files()
        if known and known[-1] <= seq and Schemas.load(self._folder / f"{known[-1]}.json") == schemas:
            return
        schemas.save(self._folder / f"{seq}.json")

    def _files(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdigit())


def _unknown_columns(name: str, since: int, seq: int) -> UnsupportedDdlError:
    first, second = split_seq(since), split_seq(seq)
    return UnsupportedDdlError(
        f"the column names of its rows between binlog file {first.file_number}, position {first.offset}, and the DDL "
        f"statement in file {second.file_number}, position {second.offset}, are unknown: the statement may have "
        "changed the columns before they were read",
        place=f"table {name}",
        remedy="The binlog of this server names no columns. Exclude the table (tables.exclude) or start a new "
        "destination. Before you run DDL, wait until capture has caught up.",
    )
