"""The partitions of captured tables as statements change them.

A statement that drops a partition does not say which rows lie in it, so they have to be known as they were right before
it. They are read from the server once and then follow the text of each statement, because the source may be ahead of
the stream. A definition that was read too late counts only after the position that the source had then. When the source
stands exactly behind a statement, what it shows is compared, so a change without a statement is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from cdc.base.log import get_logger
from cdc.binlog.positions import split_seq
from cdc.binlog.sql.changes import (
    Change,
    ChangeColumn,
    ChangePartitions,
    CreateTable,
    DropColumn,
    DropDatabase,
    DropPartitions,
    DropTable,
    MovePartition,
    RenameColumn,
    RenameTable,
    UnknownEffect,
    Unsupported,
)
from cdc.binlog.sql.partitions import Partitions, coalesced, read_partitions, reorganized, with_added
from cdc.binlog.sql.schemas import KnownPartitions, Schemas
from cdc.config import TablesConfig

log = get_logger(__name__)

_KEPT_STATEMENTS = 16
"""The partitions before a statement are kept in the files of so many further ones. A batch ends with the statement, and
a file behind it may begin before its batch does."""

NEVER = (1 << 63) - 1
"""A seq behind every position of a source: what was read then is never exact."""
Read = Callable[[Sequence[str] | None], tuple[Mapping[str, str], int]]
"""Reads the clauses of partitioned tables, by ``db.table``: of these, or of all. Returns them, and the seq of the
source's position afterwards."""


class PartitionHistory:
    """Follows the partitions of the tables of one store."""

    def __init__(self, tables: TablesConfig, read: Read) -> None:
        self._tables = tables
        self._read = read
        self.definitions: dict[str, KnownPartitions] = {}
        self.dropped: dict[int, dict[str, str]] = {}
        """By the seq of a statement: the partitions right before it, of the tables whose rows left some by it."""

    def begin(self, seq: int, stored: Schemas | None) -> None:
        """Takes the definitions that hold after ``seq`` from the newest file up to it, and those of other tables from
        the source. Raises SourceUnavailableError."""
        fresh, until = self._read(None)
        self.definitions = {name: _read_at(clause, until, seq) for name, clause in fresh.items()}
        if stored is None or stored.partitions is None:
            return
        self.dropped = dict(stored.dropped_partitions)
        if until <= seq:
            return
        for name, partitions in stored.partitions.items():
            if self._tables.includes_name(name):
                # After a failover, positions of the former server say nothing about this one's binlog.
                is_former = split_seq(partitions.until).epoch < split_seq(seq).epoch and partitions.until > 0
                self.definitions[name] = partitions.model_copy(update={"until": until}) if is_former else partitions

    def follow(self, seq: int, changes: Iterable[Change]) -> bool:
        """Changes the definitions by the statement at ``seq``. Returns whether a file has to say so. Raises
        SourceUnavailableError."""
        before, lost = dict(self.definitions), len(self.dropped)
        changes = list(changes)
        self._rename_columns(seq, changes)
        for change in changes:
            self._follow(seq, change)
        for old in sorted(self.dropped)[:-_KEPT_STATEMENTS]:
            del self.dropped[old]
        return self.definitions != before or seq in self.dropped or len(self.dropped) != lost

    def into(self, schemas: Schemas) -> Schemas:
        """Returns the schemas together with the partitions."""
        partitions = {name: self.definitions[name] for name in sorted(self.definitions) if name in schemas.tables}
        return schemas.model_copy(update={"partitions": partitions, "dropped_partitions": dict(self.dropped)})

    def _follow(self, seq: int, change: Change) -> None:
        if isinstance(change, DropDatabase):
            for name in [name for name in self.definitions if name.startswith(f"{change.db}.")]:
                del self.definitions[name]
            return
        if change.table is None:
            return
        name = ".".join(change.table)
        match change:
            case RenameTable():
                to = ".".join(change.to)
                moved = self.definitions.pop(name, None)
                self.definitions.pop(to, None)
                if not self._tables.includes_name(to):
                    return
                if moved is not None and moved.until < seq:
                    self.definitions[to] = moved
                else:
                    self._ask(seq, to)  # what was read ahead may be of the table that has the name later
            case _ if not self._tables.includes_name(name):
                return
            case DropTable():
                self.definitions.pop(name, None)
            case CreateTable():
                self._create(seq, name, change)
            case ChangePartitions() | DropPartitions():
                self._change(seq, name, change)
            case MovePartition():
                self._note_before(seq, name, change)
            case DropColumn() | UnknownEffect() | Unsupported():
                if name in self.definitions:
                    self._ask(seq, name)

    def _rename_columns(self, seq: int, changes: Iterable[Change]) -> None:
        """Gives the columns in definitions their new names. A definition that was read ahead of the statement has them.
        All names in a statement are those from before it."""
        renamed: dict[str, dict[str, str]] = {}
        for change in changes:
            match change:
                case ChangeColumn(table=table, name=column, column=after) if after.name != column:
                    renamed.setdefault(".".join(table), {})[column.lower()] = after.name
                case RenameColumn(table=table, name=column, to=to):
                    renamed.setdefault(".".join(table), {})[column.lower()] = to
        for name, names in renamed.items():
            definition = self.definitions.get(name)
            if definition is None or definition.until >= seq:
                continue
            partitions = read_partitions(definition.clause)
            if partitions is None:
                self._ask(seq, name)
            else:
                clause = partitions.with_renamed(names).to_text()
                self.definitions[name] = definition.model_copy(update={"clause": clause})

    def _create(self, seq: int, name: str, change: CreateTable) -> None:
        if change.like is not None and not change.if_not_exists:
            like = self.definitions.get(".".join(change.like))
            if like is not None and like.until < seq:
                self.definitions[name] = like
                return
        if change.partitions is not None and not change.if_not_exists:
            self.definitions[name] = KnownPartitions(clause=change.partitions.to_text())
        else:
            self._ask(seq, name)

    def _right_before(self, seq: int, name: str) -> Partitions | None:
        """Returns a table's partitions right before the statement at ``seq``; None if they are not certain."""
        partitions = self.definitions.get(name)
        return None if partitions is None or partitions.until >= seq else read_partitions(partitions.clause)

    def _note_before(self, seq: int, name: str, change: MovePartition) -> None:
        """Keeps the partition whose rows leave a partitioned table, which stays as it is."""
        before = self._right_before(seq, name)
        if change.is_partitioned and change.partition is not None and before is not None:
            self.dropped.setdefault(seq, {})[name] = before.reduced([change.partition]).to_text()

    def _change(self, seq: int, name: str, change: ChangePartitions | DropPartitions) -> None:
        before = self._right_before(seq, name)
        after = _after(before, change)
        if isinstance(change, DropPartitions) and before is not None and after is not None and change.names:
            self.dropped.setdefault(seq, {})[name] = before.reduced(change.names).to_text()
        if after is None:
            self._ask(seq, name)
            return
        self.definitions[name] = KnownPartitions(clause=after.to_text())
        fresh, until = self._read([name])
        if until != seq or after.is_same(read_partitions(fresh[name]) if name in fresh else None):
            return
        log.warning("the source shows other partitions than its statements lead to", table=name)
        self.dropped.get(seq, {}).pop(name, None)
        self._take(seq, name, fresh, until)

    def _ask(self, seq: int, name: str) -> None:
        """Takes a table's definition from the source, which may be ahead of the statement."""
        self._take(seq, name, *self._read([name]))

    def _take(self, seq: int, name: str, fresh: Mapping[str, str], until: int) -> None:
        if name in fresh:
            self.definitions[name] = _read_at(fresh[name], until, seq)
        else:
            self.definitions.pop(name, None)


def _read_at(clause: str, until: int, seq: int) -> KnownPartitions:
    return KnownPartitions(clause=clause, until=until if until > seq else 0)


def _after(before: Partitions | None, change: ChangePartitions | DropPartitions) -> Partitions | None:
    """Returns the definition after a change; None if it is not known."""
    if isinstance(change, ChangePartitions) and change.kind == "set":
        return change.partitions
    if before is None or (isinstance(change, ChangePartitions) and change.if_not_exists):
        return None
    if isinstance(change, DropPartitions):
        if not all(map(before.has, change.names)) and not change.if_exists:
            return None
        return before if change.truncates else before.without(change.names)
    if change.kind == "add":
        return with_added(before, change.listed, change.count)
    if change.kind == "reorganize":
        return reorganized(before, change.names, change.listed)
    return coalesced(before, change.count)
