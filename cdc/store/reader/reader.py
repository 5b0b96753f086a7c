"""The reader of a store: finds batches, times and stats in its indexes. Reads what is visible; writes nothing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdc.base.errors import DamagedError, StorageError
from cdc.base.log import get_logger
from cdc.binlog.constants import HEADER_SIZE
from cdc.binlog.entry import Entries, EntryFlag, format_gtid
from cdc.binlog.events import parse_header
from cdc.binlog.gtids import Flavor, GtidSet
from cdc.binlog.positions import FILE_SHIFT, BinlogPosition, CommitPosition, make_file_name, split_file_name, split_seq
from cdc.binlog.sql.schemas import Schemas
from cdc.disk.durable import storage_errors
from cdc.disk.encryption.read import open_content
from cdc.store.formats import layout
from cdc.store.formats.gtids import GtidCheckpoint, gtids_until
from cdc.store.formats.index import IndexFile, SegmentStats, StoreStats, read_entries
from cdc.store.formats.missing import first_after, kept_names, read_removed, require_kept
from cdc.store.formats.segment_header import read_segment_header, source_file_created_s
from cdc.store.formats.state import Beginning, CaptureState, TableNumbers, read_beginning, read_capture_state
from cdc.store.formats.time_index import CommitTimeLimit, complete_until_us
from cdc.store.reader import check
from cdc.store.reader.batch_builder import (
    BatchBuilder,
    DdlTraits,
    Limits,
    Selection,
    TableFilter,
    ddl_traits,
    names_other_tables,
)

log = get_logger(__name__)

_FIRST_SLICE, _SLICE = 256, 65536
"""Entries that are read together: few at first, since most batches are small."""
_TABLE_BITS = 64
"""Bits of the index's table mask."""


@dataclass(frozen=True)
class Backlog:
    """The transactions after a seq. The times of the oldest one, µs since 1970, are None if there is none."""

    transactions: int
    bytes: int
    oldest_commit_time_us: int | None
    oldest_store_time_us: int | None = None


@dataclass(frozen=True)
class StoreTotals:
    """The transactions of a whole store; ``bytes`` are those of its segments, headers included."""

    transactions: int
    bytes: int


class StoreReader:
    """Reads a store on disk. ``base_name`` is the base name of the source's binlog files, for positions in them; None
    if the source is not known. Raises DamagedError, VersionError, StorageError."""

    def __init__(self, path: Path, base_name: str | None = None) -> None:
        self.path = Path(path)
        self.base_name = base_name or "binlog"
        self._base_names: dict[int, str] = {}
        """By epoch, of those before the newest one."""
        layout.check(self.path)

    @property
    def place(self) -> str:
        """The folder of the store, for messages."""
        return str(self.path)

    # --- beginning and end

    def exists(self) -> bool:
        """Returns whether the folder holds a store."""
        return layout.exists(self.path)

    def beginning(self) -> Beginning | None:
        """Returns where the store begins, and why; None if capture has not begun to read yet."""
        return read_beginning(self.path, self.base_name)

    def first_seq(self) -> int | None:
        """Returns the seq of the oldest transaction; None in an empty store."""
        for _, index in self._indexes(0):
            at = first_transaction(index.entries, 0)
            if at is not None:
                return int(index.entries["seq"][at])
        return None

    def removed_seq(self) -> int:
        """Returns the seq up to which retention has removed transactions; 0 if it has removed none. A new subscriber
        begins after it."""
        return read_removed(self.path).seq

    def last_seq(self) -> int | None:
        """Returns the seq up to which the source has been read, transactions of other tables included."""
        entry = self.last_entry()
        return None if entry is None else int(entry["seq"])

    def last_entry(self) -> np.void | None:
        """Returns the newest visible entry."""
        for name in reversed(self._names()):
            entries = IndexFile(self._segment(name)).entries
            if len(entries):
                return np.array(entries[-1:])[0]  # type: ignore[no-any-return]
        return None

    # --- finding a batch

    def select(self, after_seq: int, limits: Limits, table_filter: TableFilter | None = None) -> Selection | None:
        """Selects the transactions after ``after_seq``, up to the first limit; None if there is none. A DDL statement
        comes alone, or with the DDL statements after it if none of them changes rows; see also :attr:`Limits.mixes`.

        With a filter, only transactions of matching tables are selected, and only those tables are named; the ranges
        may include transactions of other tables in between. Raises DamagedError, and CutOffError if retention has
        removed transactions after ``after_seq``.
        """
        self.require_kept(after_seq)
        builder = BatchBuilder(limits, self._until(after_seq, limits), self._ddl_traits)
        for segment, index in self._indexes(after_seq):
            start, size = index.after(after_seq), _FIRST_SLICE
            names = [] if table_filter is None else TableNumbers(self.path).names
            stop = len(index.entries) if limits.until_seq is None else index.after(limits.until_seq)
            while start < stop and not builder.full:
                entries = index.verified(start, min(start + size, stop))
                builder.add(segment, entries, self._wanted(segment, entries, names, table_filter))
                start, size = start + len(entries), min(2 * size, _SLICE)
            if builder.full or stop < len(index.entries):
                break
        self.require_kept(after_seq)
        if builder.lost:
            log.warning(
                "skipped transactions that were lost in a damaged segment",
                transactions=len(builder.lost),
                first_seq=builder.lost[0][1],
                last_seq=builder.lost[-1][1],
                segments=sorted({name for name, _ in builder.lost}),
                record=str(self.path / "damaged.json"),
            )
        if builder.transactions == 0:
            return None
        assert builder.first is not None and builder.last is not None
        self._provide(byte_range.path for byte_range in builder.ranges)
        numbers = TableNumbers(self.path)
        tables = numbers.in_mask(builder.mask)
        if table_filter is not None:
            tables = tuple(filter(table_filter.matches, tables))
        return Selection(
            first_seq=int(builder.first["seq"]),
            last_seq=int(builder.last["seq"]),
            transactions=builder.transactions,
            row_events=builder.row_events,
            bytes=builder.bytes,
            ddl=builder.ddl,
            tables=tables,
            ranges=tuple(builder.ranges),
            first=self.commit_position(builder.first),
            last=self.commit_position(builder.last),
            table_bits={table: numbers.bit(table) for table in tables},
            file_created_s=_file_created_s(builder.ranges[-1].path, int(builder.last["seq"])),
            server_id=_server_id(builder.ranges[-1].path, builder.last),
            mixed=builder.mixed,
        )

    def release(self, selection: Selection) -> None:
        """Says that the bytes of a selection are not needed any more."""

    def require_kept(self, after_seq: int) -> None:
        """Raises CutOffError if retention has removed transactions after ``after_seq``."""
        require_kept(self.path, after_seq)

    def skippable_until(self, after_seq: int, table_filter: TableFilter | None = None) -> int:
        """Returns the seq before the first transaction after ``after_seq`` that passes the filter; the store's end if
        there is none. A reader's cursor may move there, so that it does not hold the store back. Raises what
        :meth:`select` raises."""
        self.require_kept(after_seq)
        upto = after_seq
        for segment, index in self._indexes(after_seq):
            names = TableNumbers(self.path).names
            for entries in index.verified_parts(index.after(after_seq)):
                passing = np.flatnonzero(self._passing(segment, entries, names, table_filter))
                stop = int(passing[0]) if len(passing) else len(entries)
                upto = int(entries["seq"][stop - 1]) if stop else upto
                if len(passing):
                    return upto
        self.require_kept(after_seq)
        return upto

    def _until(self, after_seq: int, limits: Limits) -> CommitTimeLimit | None:
        """Returns the commit-time limit, after it has seen the entries before the selection. It takes the same
        transactions whether or not earlier ones were acked."""
        if limits.until_us is None:
            return None
        until = CommitTimeLimit(self.path, limits.until_us)
        for _, index in self._indexes(until.certain_seq):
            start, stop = index.after(until.certain_seq), index.after(after_seq)
            for part in index.verified_parts(start, stop):
                until.count_before(part)
            if stop < len(index.entries):
                break
        return until

    def complete_until_us(self) -> int:
        """Returns the moment, by the source's clock in µs since 1970, before which every committed transaction can be
        read here; 0 while it is not known."""
        return complete_until_us(self.path)

    def commit_position(self, entry: np.void) -> CommitPosition:
        """Returns the end of an entry's transaction in the source's binlog."""
        seq = int(entry["seq"])
        position = BinlogPosition(self.source_file(seq), split_seq(seq).offset)
        return CommitPosition(position, format_gtid(entry), int(entry["commit_time_us"]))

    def gtids_until(self, last_seq: int, flavor: Flavor, earlier: GtidCheckpoint | None = None) -> GtidSet | None:
        """Returns the source's GTIDs up to a seq, as :func:`cdc.store.formats.gtids.gtids_until` does."""
        return gtids_until(self.path, flavor, last_seq, earlier)

    def source_file(self, seq: int) -> str:
        """Returns the name of the source's binlog file that a seq lies in. Servers of different epochs may name their
        files differently, which the segments tell."""
        epoch, number, _ = split_seq(seq)
        if epoch not in self._base_names:
            names = self._names()
            if not names or layout.segment_epoch(Path(names[-1])) == epoch:
                return make_file_name(self.base_name, number)
            at = bisect_left(names, layout.segment_name(epoch, 0, 0))
            if at == len(names) or layout.segment_epoch(Path(names[at])) != epoch:
                return make_file_name(self.base_name, number)
            self._provide([self._segment(names[at])])
            self._base_names[epoch] = split_file_name(read_segment_header(self._segment(names[at])).file)[0]
        return make_file_name(self._base_names[epoch], number)

    def entries(self, segment: Path, offset: int, length: int) -> Entries:
        """Returns the verified entries of the transactions inside a byte range of a segment."""
        return read_entries(segment, offset, length)

    def entry_at(self, seq: int) -> np.void | None:
        """Returns the last entry up to a seq; None if there is none."""
        for name in reversed(self._names()):
            index = IndexFile(self._segment(name))
            stop = index.after(seq)
            if stop:
                return index.verified(stop - 1, stop)[0]  # type: ignore[no-any-return]
        return None

    def all_entries(self, after_seq: int = 0, upto_seq: int | None = None) -> Iterator[Entries]:
        """Yields the verified entries after a seq, up to another one, in order, some thousands at a time. Raises
        DamagedError."""
        for _, index in self._indexes(after_seq):
            stop = len(index.entries) if upto_seq is None else index.after(upto_seq)
            yield from index.verified_parts(index.after(after_seq), stop)
            if stop < len(index.entries):
                return

    # --- finding a time

    def find_by_store_time(self, time_us: int) -> int | None:
        """Returns the seq of the first entry that was stored at or after a time (µs since 1970); None if all are older.
        O(log n). Store times are by this machine's clock: if it was set back, the answer may be off by as much."""
        names = self._names()
        low, high = 0, len(names)
        while low < high:
            middle = probe = (low + high) // 2
            entries = self._entries(names[probe])
            while not len(entries) and probe > low:  # a segment without entries counts as the one before
                probe -= 1
                entries = self._entries(names[probe])
            if len(entries) and int(entries["store_time_us"][-1]) >= time_us:
                high = probe
            else:
                low = middle + 1
        for name in names[low:]:
            index = IndexFile(self._segment(name))
            at = int(np.searchsorted(index.entries["store_time_us"], np.int64(time_us), side="left"))
            if at < len(index.entries):
                return int(index.verified(at, at + 1)["seq"][0])
        return None

    def find_by_commit_time(self, time_us: int) -> int | None:
        """Returns the seq of the first entry that was committed at or after a time (µs since 1970); None if all are
        older.

        Commit times do not only rise. The entry is the one where their running maximum reaches the time, which is where
        :attr:`Limits.until_us` ends a batch unless the time index is more exact (:mod:`cdc.store.formats.time_index`).
        The segment is found by its stats and searched entry by entry, so the cost depends on its size, not the store's.
        """
        stats = StoreStats(self.path)
        for name in self._names():
            if self._stats_of(stats, name).newest_commit_us < time_us:
                continue
            index = IndexFile(self._segment(name))
            start = 0
            for part in index.parts():
                late = np.flatnonzero(part["commit_time_us"] >= time_us)
                if len(late):
                    at = start + int(late[0])
                    return int(index.verified(at, at + 1)["seq"][0])
                start += len(part)
        return None

    def seq_before(self, time_us: int) -> int:
        """Returns the seq up to which transactions were committed before a time (µs since 1970): where a batch with
        :attr:`Limits.until_us` ends. No transaction need end there; 0 if none that is kept was committed before.

        The answer is final once the store is complete up to that time, as long as the time index is kept. Raises
        DamagedError, VersionError, StorageError.
        """
        limit = CommitTimeLimit(self.path, time_us)
        seq = limit.certain_seq
        for entries in self.all_entries(seq):
            count = limit.count_before(entries)
            if count:
                seq = int(entries["seq"][count - 1])
            if count < len(entries):
                break
        return seq

    # --- stats

    def backlog(self, after_seq: int, table_filter: TableFilter | None = None) -> Backlog:
        """Returns the number and size of the transactions after a seq that pass the filter. Without one, segments with
        recorded stats are not read."""
        names = self._names()
        names = names[first_after(names, after_seq) :]
        transactions = size = 0
        stats = StoreStats(self.path)
        if table_filter is None:
            recorded = {
                name: segment_stats for name in names[1:] if (segment_stats := stats.recorded(name)) is not None
            }
            transactions = sum(segment_stats.transactions for segment_stats in recorded.values())
            size = sum(segment_stats.bytes for segment_stats in recorded.values())
            oldest = self._oldest(names, after_seq)
            names = [name for name in names if name not in recorded]
        else:
            oldest = None
        for segment, index in self._indexes(after_seq, names):
            tables = TableNumbers(self.path).names
            for entries in index.parts(index.after(after_seq)):
                passing = self._passing(segment, entries, tables, table_filter)
                transactions += int(np.count_nonzero(passing))
                size += int(entries["length"][passing].sum())
                if oldest is None and passing.any():
                    oldest = np.array(entries[passing][:1])[0]
        if oldest is None:
            return Backlog(transactions, size, None)
        return Backlog(transactions, size, int(oldest["commit_time_us"]), int(oldest["store_time_us"]))

    def _oldest(self, names: list[str], after_seq: int) -> np.void | None:
        """Returns the entry of the first transaction after a seq."""
        for name in names:
            index = IndexFile(self._segment(name))
            at = first_transaction(index.entries, index.after(after_seq))
            if at is not None:
                return index.verified(at, at + 1)[0]  # type: ignore[no-any-return]
        return None

    def totals(self) -> StoreTotals:
        """Returns the number and size of all transactions."""
        transactions = size = 0
        stats = StoreStats(self.path)
        for name in self._names():
            segment = self._segment(name)
            transactions += self._stats_of(stats, name).transactions
            try:
                size += segment.stat().st_size
            except FileNotFoundError:
                continue  # retention removed it between the listing and now
            except OSError as error:
                raise StorageError(f"cannot be read: {error.strerror}", place=str(segment)) from None
        return StoreTotals(transactions, size)

    def capture_state(self) -> CaptureState | None:
        """Returns the state that capture wrote last; None if it never ran."""
        return read_capture_state(self.path)

    def table_names(self) -> list[str]:
        """Returns the tables of which the store has, or had, changes, as ``db.table`` in the order of their numbers."""
        return TableNumbers(self.path).names

    def table_mask(self, table: str) -> int:
        """Returns the table's bit in the table masks of index entries; 0 if the store has no changes of it."""
        numbers = TableNumbers(self.path)
        return 1 << numbers.bit(table) if table in numbers.names else 0

    def segment_starts(self) -> list[int]:
        """Returns the seq at which each segment begins, oldest first."""
        return [start for path in layout.list_segments(self.path) if (start := layout.segment_start(path)) is not None]

    def check_files(self) -> check.FilesReport:
        """Checks that the segments follow one another, and that their indexes have every byte of them."""
        return check.check_files(self.path)

    def schemas(self, last_seq: int) -> tuple[int, Schemas] | None:
        """Returns the table definitions in force after ``last_seq``, see :meth:`schema_path`, and the seq after which
        they are in force. None if there are none."""
        path = self.schema_path(last_seq)
        return None if path is None else (int(path.stem), Schemas.load(path))

    def has_foreign_keys(self, after_seq: int, last_seq: int) -> bool:
        """Returns whether foreign keys change rows without row events, by any of the definitions in force from after
        ``after_seq`` to after ``last_seq``: capture may have read later ones when a key was gone again. True if there
        are no definitions."""
        files = layout.schema_files(layout.schemas_folder(self.path))
        first = max(0, bisect_right(files, after_seq, key=lambda file: file[0]) - 1)
        last = max(first + 1, bisect_right(files, last_seq, key=lambda file: file[0]))
        return not files or any(Schemas.load(path).foreign_keys for _, path in files[first:last])

    def newest_schemas(self) -> tuple[int, Schemas] | None:
        """Returns the newest table definitions; None if there is no store, or capture has described no table yet."""
        path = self.newest_schema_path()
        return None if path is None else (int(path.stem), Schemas.load(path))

    def schema_path(self, last_seq: int) -> Path | None:
        """Returns the file with the table definitions in force after ``last_seq``: the newest one up to it, or the
        oldest one if capture began later. None if there is none."""
        files = layout.schema_files(layout.schemas_folder(self.path))
        if not files:
            return None
        return files[max(0, bisect_right(files, last_seq, key=lambda file: file[0]) - 1)][1]

    def newest_schema_path(self) -> Path | None:
        """Returns the file with the newest table definitions; None if there is no store, or capture has described no
        table yet."""
        return self.schema_path((1 << 63) - 1) if self.exists() else None

    def _names(self) -> list[str]:
        """Returns the names of all segments, oldest first."""
        return kept_names(self.path)

    def _segment(self, name: str) -> Path:
        """Returns the path of a segment, beside which its index lies."""
        return layout.segments_folder(self.path) / name

    def _provide(self, segments: Iterable[Path]) -> None:
        """Called before the bytes of segments are read or handed out; here they are in the store."""

    def _wanted(
        self, segment: Path, entries: Entries, names: Sequence[str], table_filter: TableFilter | None
    ) -> npt.NDArray[np.bool_] | None:
        """Returns which entries pass the filter. With more than 64 tables, DDL statements of tables that share a bit
        with those of the filter do not."""
        if table_filter is None:
            return None
        passing = table_filter.wanted(entries, names)
        if len(names) > _TABLE_BITS:
            ddl = ((entries["flags"] & int(EntryFlag.DDL)) != 0) & (entries["table_mask"] != 0)
            statements = np.flatnonzero(passing & ddl)
            if len(statements):
                self._provide([segment])
                ours = [name for name in names if table_filter.matches(name)]
            for at in statements:
                passing[at] = not names_other_tables(segment, entries[at], ours)
        return passing

    def _passing(
        self, segment: Path, entries: Entries, names: Sequence[str], table_filter: TableFilter | None
    ) -> npt.NDArray[np.bool_]:
        """Returns which entries are transactions that pass the filter."""
        passing = self._wanted(segment, entries, names, table_filter)
        return entries["length"] > 0 if passing is None else passing

    def _ddl_traits(self, segment: Path, entry: np.void) -> DdlTraits:
        self._provide([segment])
        return ddl_traits(segment, entry)

    def _stats_of(self, stats: StoreStats, name: str) -> SegmentStats:
        return stats.of(name)

    def _entries(self, name: str) -> Entries:
        return IndexFile(self._segment(name)).entries

    def _indexes(self, after_seq: int, names: list[str] | None = None) -> Iterator[tuple[Path, IndexFile]]:
        """Yields the segments (of ``names``, else all) that may hold transactions after a seq, in order. Raises
        DamagedError if an index lacks transactions and a later segment has visible ones: readers would miss them."""
        if names is None:
            names = self._names()
            names = names[first_after(names, after_seq) :]
        gap: IndexFile | None = None
        for name in names:
            segment = self._segment(name)
            index = IndexFile(segment)
            if gap is not None and len(index.entries):
                if IndexFile(gap.segment).is_whole():
                    return  # the writer has published both meanwhile; the next call returns the rest
                raise DamagedError(
                    "lacks transactions that its segment holds",
                    place=str(gap.path),
                    remedy="Start `cdc capture`: it verifies the segment and completes the index.",
                )
            yield segment, index
            if gap is None and not index.is_whole():
                gap = index


def _file_created_s(segment: Path, seq: int) -> int | None:
    """Returns when the source created the file of ``seq``; None if ``segment`` comes from another file."""
    start = layout.segment_start(segment)
    if start is None or start >> FILE_SHIFT != seq >> FILE_SHIFT:
        return None
    return source_file_created_s(segment)


def _server_id(segment: Path, entry: np.void) -> int | None:
    """Returns the id of the server that executed a transaction first, from MariaDB's GTID or the header of its first
    event; None if it has no GTID of MariaDB and no bytes in ``segment``, or if they are damaged."""
    if int(entry["flags"]) & EntryFlag.GTID_MARIADB:
        return int.from_bytes(bytes(entry["gtid_source"])[4:8], "little")
    if not int(entry["length"]):
        return None
    try:
        with storage_errors(segment), open_content(segment) as file:
            file.seek(int(entry["offset"]))
            data = file.read(HEADER_SIZE)
    except DamagedError:  # apply reads the batch, and its error names the position
        return None
    return parse_header(data).server_id if len(data) == HEADER_SIZE else None


def first_transaction(entries: Entries, start: int) -> int | None:
    """Returns the number of the first entry from ``start`` on that has bytes; None if there is none."""
    for at in range(start, len(entries), _FIRST_SLICE):
        transactions = np.flatnonzero(entries["length"][at : at + _FIRST_SLICE])
        if len(transactions):
            return at + int(transactions[0])
    return None
