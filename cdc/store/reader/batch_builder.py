"""Selects the transactions of a batch: limits, a subscriber's table filter, and the isolation of DDL.

A batch holds either transactions with rows, or one DDL statement, or a run of DDL statements that leave rows alone.
With :attr:`Limits.mixes` statements on single tables share a batch with rows, if each of these tables has all its rows
of the batch behind the one statement that changes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.base.errors import CdcError, StorageError, UsageError
from cdc.base.patterns import PatternError, TablePattern, is_list
from cdc.binlog.constants import HEADER_SIZE, MAGIC, EventType
from cdc.binlog.entry import Entries, EntryFlag
from cdc.binlog.event_types import SKIPPED
from cdc.binlog.events import parse_format_description, parse_header, parse_query
from cdc.binlog.positions import CommitPosition
from cdc.binlog.sql import changes
from cdc.binlog.sql.changes import Unsupported, table_of
from cdc.binlog.sql.statements import classify
from cdc.disk.encryption.read import open_content
from cdc.store.formats.time_index import CommitTimeLimit

if TYPE_CHECKING:
    from cdc.binlog.sql.statements import Statement

_BRIDGE_BYTES = 16384
"""A filtered batch includes a gap of so many bytes of other tables' transactions rather than begin a new range, because
each range costs a look at the index, and in Spark a task."""
_MOST_DDL = 1000
"""DDL statements in one batch, at most: the text of each is read, and each may create a table."""


@dataclass(frozen=True)
class Limits:
    """The limits of a batch; the first one that is reached ends it. The first transaction is always included, whatever
    its size."""

    max_bytes: int = 268435456
    max_transactions: int | None = None
    max_row_events: int | None = None
    until_us: int | None = None
    """Commit-time limit, µs since 1970: only the longest run of transactions whose running maximum of commit times
    lies before it."""
    until_seq: int | None = None
    """Only entries up to this seq, inclusive."""
    mixes: bool = False
    """Whether a batch may hold rows and DDL statements, or several statements that change tables, as
    :class:`_Mixture` says; for readers that apply each table's statement before its rows."""


class Range(NamedTuple):
    """Consecutive whole transactions in one segment; ``path`` is absolute."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True)
class Selection:
    """The transactions of a batch.

    ``first_seq`` belongs to the first transaction, ``last_seq`` to the last index entry. That may come after the last
    transaction if the source has moved on over transactions of other tables.
    """

    first_seq: int
    last_seq: int
    transactions: int
    row_events: int
    bytes: int
    ddl: bool
    """Whether there is a DDL statement among them. Without :attr:`mixed` there is nothing else."""
    tables: tuple[str, ...]
    ranges: tuple[Range, ...]
    first: CommitPosition
    last: CommitPosition
    table_bits: Mapping[str, int] = field(default_factory=dict)
    """The bit of each of ``tables`` in the table masks of the index."""
    file_created_s: int | None = None
    """When the source created the file that ``last_seq`` lies in, seconds since 1970; None if no bytes of the selection
    come from it."""
    server_id: int | None = None
    """The id of the server that executed the transaction of ``last_seq`` first; None if that is not known."""
    mixed: bool = False
    """Whether only :attr:`Limits.mixes` allows this batch."""


# --- building a batch


class DdlTraits(NamedTuple):
    """The properties of a DDL statement that decide which batch it may be in."""

    leaves_rows_alone: bool
    """Whether no row and no column of an existing table changes, so that it may follow others of its kind."""
    is_local: bool = False
    """Whether it concerns the one table that it names, and no foreign key, so that rows of other tables may come in the
    same batch."""
    touches: bool = True
    """Whether it makes a table, or changes the definition or the rows of one."""


ALONE = DdlTraits(leaves_rows_alone=False)
"""The properties of a statement that could not be read: it is a batch of its own."""


class _Mixture:
    """The rules by which DDL statements come into a batch, alone, in a run, or together with rows.

    A run holds statements that leave rows alone. In a mixture each statement is local, and a statement that touches a
    table comes before all rows of the table in the batch, and is the only one that does; so the table's definition at
    the end of the batch is that of all its rows. Tables are told apart by their bits in the index: those that share a
    bit count as one.
    """

    def __init__(self, *, mixes: bool) -> None:
        self._mixes = mixes
        self._statements = 0
        self._has_rows = False
        self._ended = False
        self._all_local, self._all_harmless = True, True
        self._rows = self._touched = 0
        """Table masks of the rows, and of the statements that touch tables."""

    @property
    def has_ddl(self) -> bool:
        return self._statements > 0

    @property
    def is_mixed(self) -> bool:
        """Whether no run could have these transactions."""
        return self.has_ddl and (self._has_rows or (self._statements > 1 and not self._all_harmless))

    def take_rows(self, mask: int) -> bool:
        """Adds transactions with rows of these tables. Returns False if they may not follow."""
        if self._ended or (self.has_ddl and not (self._mixes and self._all_local)):
            return False
        self._has_rows = True
        self._rows |= mask
        return True

    def take_statement(self, mask: int, traits_of: Callable[[], DdlTraits]) -> bool:
        """Adds a statement. Returns False if it may not follow. ``traits_of`` is called if that matters."""
        if self._ended or self._statements == _MOST_DDL or (self._has_rows and not self._mixes):
            return False
        traits = traits_of()
        is_local = self._mixes and traits.is_local
        if not self._may_follow(traits, is_local, mask):
            return False
        self._ended = not traits.leaves_rows_alone and not is_local
        self._statements += 1
        self._all_local &= is_local
        self._all_harmless &= traits.leaves_rows_alone
        self._touched |= mask if traits.touches else 0
        return True

    def _may_follow(self, traits: DdlTraits, is_local: bool, mask: int) -> bool:
        if not self._has_rows and (not self._statements or (self._all_harmless and traits.leaves_rows_alone)):
            return True
        is_first_of_table = not traits.touches or not mask & (self._rows | self._touched)
        return is_local and self._all_local and is_first_of_table


class BatchBuilder:
    """Collects index entries until a limit is reached."""

    def __init__(
        self,
        limits: Limits,
        until: CommitTimeLimit | None = None,
        traits_of: Callable[[Path, np.void], DdlTraits] = lambda segment, entry: ALONE,
    ) -> None:
        """``traits_of`` returns those of the DDL statement of an entry. It is called for the statements that are taken,
        and for the next one."""
        self._limits = limits
        self._until = until
        self._traits_of = traits_of
        self._mixture = _Mixture(mixes=limits.mixes)
        self.full = False
        """Whether a limit is reached."""
        self.transactions = self.row_events = self.mask = 0
        self.ranges: list[Range] = []
        self.first: np.void | None = None
        self.last: np.void | None = None
        self._used_bytes = 0
        self.lost: list[tuple[str, int]] = []
        """Segment and seq of transactions that were lost to damage (:class:`cdc.store.formats.missing.LostRange`)."""

    @property
    def ddl(self) -> bool:
        """Whether there is a DDL statement."""
        return self._mixture.has_ddl

    @property
    def mixed(self) -> bool:
        """Whether there is something that only :attr:`Limits.mixes` allows."""
        return self._mixture.is_mixed

    @property
    def bytes(self) -> int:
        """Bytes of all ranges."""
        return sum(byte_range.length for byte_range in self.ranges)

    def add(self, segment: Path, entries: Entries, passing: np.ndarray | None = None) -> None:
        """Adds entries that follow those added before. ``passing`` says which of them pass the reader's filter; the
        others add nothing to the batch, like position entries."""
        # A range never spans lost transactions, nor a DDL statement of other tables.
        lost = (entries["flags"] & int(EntryFlag.LOST)) != 0
        barriers = lost
        if passing is not None:
            entries = entries.copy()
            barriers = lost | ~passing & ((entries["flags"] & int(EntryFlag.DDL)) != 0)
            for name in ("length", "row_events", "table_mask"):
                entries[name][~passing] = 0
            entries["flags"][~passing] &= int(EntryFlag.GTID_MARIADB)
        stop = self._count_fitting(segment, entries)
        if stop < len(entries):
            self.full = True
            entries, barriers, lost = entries[:stop], barriers[:stop], lost[:stop]
        if len(entries) == 0:
            return
        self.lost += [(segment.name, int(seq)) for seq in entries["seq"][lost]]
        keep = entries["length"] > 0
        transactions = entries[keep]
        self.last = entries[-1]
        if len(transactions) == 0:
            return
        if self.first is None:
            self.first = transactions[0]
        self.transactions += len(transactions)
        self.row_events += int(transactions["row_events"].sum())
        self.mask |= int(np.bitwise_or.reduce(transactions["table_mask"]))
        self._used_bytes += int(transactions["length"].sum())
        self._add_ranges(segment, transactions, np.cumsum(barriers)[keep])

    def _add_ranges(self, segment: Path, transactions: Entries, barriers_before: np.ndarray) -> None:
        """Adds the ranges of transactions. No range spans a barrier, because the tables may look different after it;
        ``barriers_before`` counts the barriers before each transaction."""
        starts = transactions["offset"].astype(np.int64)
        ends = starts + transactions["length"].astype(np.int64)
        breaks = (starts[1:] - ends[:-1] > _BRIDGE_BYTES) | (np.diff(barriers_before) > 0)
        firsts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        lasts = np.concatenate([firsts[1:] - 1, [len(transactions) - 1]])
        for start, end in zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
            before = self.ranges[-1] if self.ranges else None
            if before is not None and before.path == segment and before.offset + before.length == start:
                self.ranges[-1] = Range(segment, before.offset, end - before.offset)
            else:
                self.ranges.append(Range(segment, start, end - start))

    def _count_fitting(self, segment: Path, entries: Entries) -> int:
        """Returns how many of these entries still belong to the batch."""
        limits = self._limits
        stop = len(entries)
        counts = entries["length"] > 0
        if self._until is not None:
            stop = self._until.count_before(entries)
        for values, used, limit in (
            (entries["length"], self._used_bytes, limits.max_bytes),
            (counts, self.transactions, limits.max_transactions),
            (entries["row_events"], self.row_events, limits.max_row_events),
        ):
            if limit is not None:
                total = used + np.cumsum(values.astype(np.int64))
                over = np.flatnonzero((total > limit) & counts)
                if len(over):
                    at = int(over[0])
                    first = self.transactions == 0 and not counts[:at].any()
                    stop = min(stop, at + 1 if first else at)
        return self._take(segment, entries, stop)

    def _take(self, segment: Path, entries: Entries, stop: int) -> int:
        """Returns how many of these entries may be in one batch, at most ``stop``. Position entries after the last
        transaction are included."""
        is_transaction = entries["length"] > 0
        is_ddl = is_transaction & ((entries["flags"] & int(EntryFlag.DDL)) != 0)
        begin = 0
        for at in [*np.flatnonzero(is_ddl[:stop]).tolist(), stop]:
            rows = begin + np.flatnonzero(is_transaction[begin:at])
            if len(rows) and not self._mixture.take_rows(int(np.bitwise_or.reduce(entries["table_mask"][rows]))):
                return int(rows[0])
            if at < stop:
                traits_of = partial(self._traits_of, segment, entries[at])
                if not self._mixture.take_statement(int(entries["table_mask"][at]), traits_of):
                    return at
            begin = at + 1
        return stop


# --- a subscriber's tables


class TableFilter:
    """The tables that a subscriber wants: a regular expression over ``db.table`` that matches the whole name.

    Canal's subscriptions bring such a filter; it is kept in the meta and applied when transactions are selected.
    Raises UsageError for an invalid or empty expression, and for several joined by commas, as Canal's filters are.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        try:
            self.matches = TablePattern(pattern).matches
        except PatternError as error:
            raise UsageError(
                f"the filter {error}",
                remedy=r"Write one over db.table, like shop\.(orders|items); flags as (?i:shop)\..*",
            ) from None
        if not pattern.strip():
            raise UsageError(
                f"the filter {pattern!r} is empty: it would match no table", remedy="Leave it out to get all tables."
            )
        if is_list(pattern):
            raise UsageError(
                f"the filter {pattern!r} has a comma, which does not separate expressions here",
                remedy=r"Give each its own --filter, or join them with |; a comma in a table's name is written \,",
            )

    def mask(self, names: Sequence[str]) -> int:
        """Returns the bits of all matching tables. With more than 64 tables a bit may stand for other tables, too; the
        subscriber then gets more transactions than it wants, never fewer."""
        mask = 0
        for number, name in enumerate(names):
            if self.matches(name):
                mask |= 1 << (number & 63)
        return mask

    def wanted(self, entries: Entries, names: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Returns which entries are transactions of matching tables; a DDL that names no table is for every subscriber.

        Read ``names`` after ``entries``: a table's name is durable before its first transaction is visible.
        """
        masks = entries["table_mask"]
        ddl = (entries["flags"] & int(EntryFlag.DDL)) != 0
        ours = ((masks & np.uint64(self.mask(names))) != 0) | (ddl & (masks == 0))
        matches: npt.NDArray[np.bool_] = ours & (entries["length"] > 0)
        return matches


def join_filters(patterns: Iterable[str]) -> str | None:
    """Joins several filters into one that matches a table if any of them does; None for none. Raises UsageError."""
    expressions = [TableFilter(pattern).pattern for pattern in patterns]
    if not expressions:
        return None
    joined = expressions[0] if len(expressions) == 1 else "|".join(f"(?:{pattern})" for pattern in expressions)
    return TableFilter(joined).pattern


# --- what the DDL statement of an index entry does

_LONGEST_DDL = 1 << 20
"""A longer transaction counts as one that changes rows of any table, without being read."""
_STATEMENTS = (EventType.QUERY, EventType.EXECUTE_LOAD_QUERY, EventType.MARIADB_QUERY_COMPRESSED)
_WITHOUT_ROWS = frozenset(
    {EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED, EventType.MARIADB_GTID, EventType.XID, *SKIPPED}
)


_FOREIGN_KEY = re.compile(r"\b(?:REFERENCES|FOREIGN|CONSTRAINT)\b", re.IGNORECASE)
"""A word of each statement that makes or drops a foreign key."""
_LOCAL_CHANGES = (
    changes.AddColumn, changes.ChangeColumn, changes.ConvertCharset, changes.DropColumn, changes.DropPrimaryKey,
    changes.NoEffect, changes.RenameColumn, changes.SetDefault, changes.SetPrimaryKey, changes.SetTableCharset,
    changes.SetVisible, changes.TruncateTable,
)  # fmt: skip
"""Changes that concern one table, and read nothing of others."""


def ddl_traits(segment: Path, entry: np.void) -> DdlTraits:
    """Returns what matters of the DDL statement of an index entry: :data:`ALONE` if that is not certain; the apply
    process then decides. Raises StorageError."""
    queries = _read_queries(segment, entry)
    if not queries:
        return ALONE
    statements = [statement for _, statement in queries]
    touches = not all(isinstance(change, changes.NoEffect) for each in statements for change in each.changes)
    is_local = all(_is_local(sql, statement) for sql, statement in queries)
    return DdlTraits(
        all(statement.leaves_rows_alone for statement in statements),
        is_local and (not touches or int(entry["table_mask"]) != 0),
        touches,
    )


def _is_local(sql: str, statement: Statement) -> bool:
    if statement.any_table or _FOREIGN_KEY.search(sql):
        return False
    return all(
        isinstance(change, _LOCAL_CHANGES)
        or (isinstance(change, changes.CreateTable) and not (change.like or change.has_rows or change.replaces))
        for change in statement.changes
    )


def may_remove_rows(segment: Path, entry: np.void) -> bool:
    """Returns whether the transaction of an index entry is a DDL statement that may take rows out of a table, as
    TRUNCATE, DROP and RENAME do. Returns True if that is not certain. Raises StorageError."""
    removing = (
        changes.DropTable,
        changes.DropDatabase,
        changes.RenameTable,
        changes.TruncateTable,
        changes.DropPartitions,
        changes.MovePartition,
        changes.Unsupported,
    )
    statements = _read_statements(segment, entry)
    return not statements or any(
        isinstance(change, removing) for statement in statements for change in statement.changes
    )


def names_other_tables(segment: Path, entry: np.void, tables: Iterable[str]) -> bool:
    """Returns whether the transaction of an index entry is a DDL statement that names none of the tables, which are
    ``db.table``, in letters of either case.

    Returns False if that is not certain. Raises StorageError.
    """
    ours = {table.lower() for table in tables}
    databases = {table.partition(".")[0] for table in ours}
    statements = _read_statements(segment, entry)
    return bool(statements) and not any(
        statement.any_table
        or any(f"{database}.{table}".lower() in ours for database, table in statement.tables)
        or any(database.lower() in databases for database in statement.databases)
        or any(isinstance(change, Unsupported) and table_of(change) is None for change in statement.changes)
        for statement in statements
    )


def _read_statements(segment: Path, entry: np.void) -> list[Statement]:
    """Returns the DDL statements of a transaction; none if it has rows as well, or cannot be read."""
    return [statement for _, statement in _read_queries(segment, entry)]


def _read_queries(segment: Path, entry: np.void) -> list[tuple[str, Statement]]:
    """Returns the DDL statements of a transaction, each with its text, as :func:`_read_statements` does."""
    offset, length = int(entry["offset"]), int(entry["length"])
    if int(entry["row_events"]) or length > _LONGEST_DDL:
        return []
    try:
        with open_content(segment) as file:
            file.seek(len(MAGIC))
            head = file.read(HEADER_SIZE)
            head += file.read(parse_header(head).length - HEADER_SIZE)
            file.seek(offset)
            data = file.read(length)
        return _queries_in(data, parse_format_description(head).has_checksum) if len(data) == length else []
    except CdcError:  # damage: apply reads the batch again, and its error names the position
        return []
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(segment)) from None


def statements_in(data: bytes, has_checksum: bool) -> list[Statement]:
    """Returns the DDL statements among the events of a transaction; none if it has rows as well."""
    return [statement for _, statement in _queries_in(data, has_checksum)]


def _queries_in(data: bytes, has_checksum: bool) -> list[tuple[str, Statement]]:
    queries: list[tuple[str, Statement]] = []
    at = 0
    while at + HEADER_SIZE <= len(data):
        header = parse_header(data[at : at + HEADER_SIZE])
        if header.length < HEADER_SIZE:
            return []
        if header.type in _STATEMENTS:
            query = parse_query(data[at : at + header.length], has_checksum)
            statement = classify(query.sql, query.db, query.sql_mode)
            if statement.kind == "ddl":
                queries.append((query.sql, statement))
            elif statement.kind != "transaction" and not statement.leaves_rows_alone:
                return []
        elif header.type not in _WITHOUT_ROWS:
            return []
        at += header.length
    return queries if at == len(data) else []
