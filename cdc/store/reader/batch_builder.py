"""Selects the transactions of a batch: limits, a subscriber's table filter, and the isolation of DDL.

A batch holds either transactions with rows, or one DDL statement, or a run of DDL statements that leave rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    tables: tuple[str, ...]
    ranges: tuple[Range, ...]
    first: CommitPosition
    last: CommitPosition
    table_bits: Mapping[str, int] = field(default_factory=dict)
    """The bit of each of ``tables`` in the table masks of the index."""
    file_created_s: int | None = None
    """When the source created the file that ``last_seq`` lies in, seconds since 1970; None if no bytes of the selection
    come from it."""


# --- building a batch


class BatchBuilder:
    """Collects index entries until a limit is reached."""

    def __init__(
        self,
        limits: Limits,
        until: CommitTimeLimit | None = None,
        is_harmless: Callable[[Path, np.void], bool] = lambda segment, entry: False,
    ) -> None:
        """``is_harmless`` returns whether the DDL statement of an entry leaves rows alone, so that it may share a batch
        with others of its kind. It is called for the statements that are taken, and for the next one."""
        self._limits = limits
        self._until = until
        self._is_harmless = is_harmless
        self._run_ended = False
        self.full = False
        """Whether a limit is reached."""
        self.transactions = self.row_events = self.mask = 0
        self.ddl = False
        self.ranges: list[Range] = []
        self.first: np.void | None = None
        self.last: np.void | None = None
        self._used_bytes = 0
        self.lost: list[tuple[str, int]] = []
        """Segment and seq of transactions that were lost to damage (:class:`cdc.store.formats.missing.LostRange`)."""

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
            for name in ("length", "row_events", "flags", "table_mask"):
                entries[name][~passing] = 0
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
        self.ddl = bool(int(transactions["flags"][0]) & EntryFlag.DDL)
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
        if self.ddl:
            return self._end_of_ddl_run(segment, entries, stop)
        ddl = np.flatnonzero((entries["flags"] & int(EntryFlag.DDL)) != 0)
        if len(ddl):
            at = int(ddl[0])
            rows_before = self.transactions + int(np.count_nonzero(counts[:at]))
            return min(stop, at) if rows_before else self._end_of_ddl_run(segment, entries, stop)
        return stop

    def _end_of_ddl_run(self, segment: Path, entries: Entries, stop: int) -> int:
        """Returns how many of these entries belong to a batch of DDL statements, at most ``stop``. Position entries
        after the last statement are included."""
        taken = self.transactions
        for at in np.flatnonzero(entries["length"][:stop]).tolist():
            is_ddl = bool(int(entries["flags"][at]) & EntryFlag.DDL)
            if self._run_ended or not is_ddl or taken == _MOST_DDL:
                return at
            harmless = self._is_harmless(segment, entries[at])
            if taken and not harmless:
                return at
            self._run_ended = not harmless
            taken += 1
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


def leaves_rows_alone(segment: Path, entry: np.void) -> bool:
    """Returns whether the transaction of an index entry is a DDL statement that changes no row.

    Returns False if that is not certain; the apply process then decides. Raises StorageError.
    """
    statements = _read_statements(segment, entry)
    return bool(statements) and all(statement.leaves_rows_alone for statement in statements)


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
        return statements_in(data, parse_format_description(head).has_checksum) if len(data) == length else []
    except CdcError:  # damage: apply reads the batch again, and its error names the position
        return []
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(segment)) from None


def statements_in(data: bytes, has_checksum: bool) -> list[Statement]:
    """Returns the DDL statements among the events of a transaction; none if it has rows as well."""
    statements: list[Statement] = []
    at = 0
    while at + HEADER_SIZE <= len(data):
        header = parse_header(data[at : at + HEADER_SIZE])
        if header.length < HEADER_SIZE:
            return []
        if header.type in _STATEMENTS:
            query = parse_query(data[at : at + header.length], has_checksum)
            statement = classify(query.sql, query.db, query.sql_mode)
            if statement.kind == "ddl":
                statements.append(statement)
            elif statement.kind != "transaction" and not statement.leaves_rows_alone:
                return []
        elif header.type not in _WITHOUT_ROWS:
            return []
        at += header.length
    return statements if at == len(data) else []
