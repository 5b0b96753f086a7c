"""Reading a store from any process: what is visible, and which bytes a batch is made of. Nothing here writes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cdc.binlog.entry import Entries, format_gtid
from cdc.errors import DamagedError, StorageError
from cdc.log import get_logger
from cdc.positions import FILE_SHIFT, make_file_name, split_seq
from cdc.store.formats import layout
from cdc.store.formats.beginning import Beginning, read_beginning
from cdc.store.formats.index import IndexFile, read_entries
from cdc.store.formats.removed import holding, kept_names, read_removed, require_kept
from cdc.store.formats.segment_stats import Counts
from cdc.store.formats.state import CaptureState, TableNumbers, read_capture_state
from cdc.store.formats.time_index import Until, complete_until_us
from cdc.store.reader.batch_builder import Picker
from cdc.store.reader.ddl_text import leaves_rows_alone
from cdc.store.reader.filters import TableFilter
from cdc.store.reader.selection import Behind, Limits, Place, Selection, Totals

log = get_logger(__name__)

_FIRST_SLICE, _SLICE = 256, 65536
"""Entries looked at together: few at first, since most batches are small."""


class StoreReader:
    """A store on disk. ``base_name`` is that of the source's binlog files, for positions in the source's words."""

    def __init__(self, path: Path, base_name: str = "binlog") -> None:
        self.path = Path(path)
        self.base_name = base_name
        layout.check(self.path)

    # --- where it begins and ends

    def exists(self) -> bool:
        """Whether there is a store at all in this folder."""
        return layout.exists(self.path)

    def beginning(self) -> Beginning | None:
        """Where the store begins, and why; None where capture has not begun to read yet."""
        return read_beginning(self.path, self.base_name)

    def first_seq(self) -> int | None:
        """The oldest transaction that is there, None in an empty store."""
        for _, index in self._indexes(0):
            at = first_transaction(index.entries, 0)
            if at is not None:
                return int(index.entries["seq"][at])
        return None

    def removed_seq(self) -> int:
        """Retention has removed every transaction up to here, and none behind; 0: it has removed none. A new subscriber
        begins behind it."""
        return read_removed(self.path).seq

    def last_seq(self) -> int | None:
        """The seq up to which the source has been read, transactions of others included."""
        entry = self.last_entry()
        return None if entry is None else int(entry["seq"])

    def last_entry(self) -> np.void | None:
        """The newest visible entry."""
        for name in reversed(kept_names(self.path)):
            entries = IndexFile(self._segment(name)).entries
            if len(entries):
                return np.array(entries[-1:])[0]  # type: ignore[no-any-return]
        return None

    # --- finding a batch ---------------------------------------------------------------------------------------------

    def select(self, after_seq: int, limits: Limits, table_filter: TableFilter | None = None) -> Selection | None:
        """The transactions behind ``after_seq``, up to the first limit. None where there is none. A DDL statement's
        transaction comes alone, or with the DDL statements behind it where none of them changes rows.

        With a filter, only transactions with a table that matches, and only such tables are named; the ranges may
        hold others' transactions in between. Raises DamagedError, and CutOffError where retention has removed
        something behind ``after_seq``: what follows is not handed out as if nothing were missing.
        """
        self.require_kept(after_seq)
        picked = Picker(limits, self._until(after_seq, limits), leaves_rows_alone)
        for segment, index in self._indexes(after_seq):
            start, size = index.after(after_seq), _FIRST_SLICE
            names = [] if table_filter is None else TableNumbers(self.path).names
            while start < len(index.entries) and not picked.full:
                entries = index.verified(start, min(start + size, len(index.entries)))
                picked.add(segment, entries, None if table_filter is None else table_filter.wanted(entries, names))
                start, size = start + len(entries), min(2 * size, _SLICE)
            if picked.full:
                break
        self.require_kept(after_seq)
        if picked.given_up:
            log.warning(
                "passed over what was given up in a damaged segment",
                transactions=len(picked.given_up),
                first_seq=picked.given_up[0][1],
                last_seq=picked.given_up[-1][1],
                segments=sorted({name for name, _ in picked.given_up}),
                record=str(self.path / "damaged.json"),
            )
        if picked.transactions == 0:
            return None
        assert picked.first is not None and picked.last is not None
        numbers = TableNumbers(self.path)
        tables = numbers.in_mask(picked.mask)
        if table_filter is not None:
            tables = tuple(filter(table_filter.matches, tables))
        return Selection(
            first_seq=int(picked.first["seq"]),
            last_seq=int(picked.last["seq"]),
            transactions=picked.transactions,
            row_events=picked.row_events,
            bytes=picked.bytes,
            ddl=picked.ddl,
            tables=tables,
            ranges=tuple(picked.ranges),
            first=self.place(picked.first),
            last=self.place(picked.last),
            table_bits={table: numbers.bit(table) for table in tables},
            file_created_s=_file_created_s(picked.ranges[-1].path, int(picked.last["seq"])),
        )

    def require_kept(self, after_seq: int) -> None:
        """Raises CutOffError where retention has removed transactions behind ``after_seq``."""
        require_kept(self.path, after_seq)

    def passed(self, after_seq: int, table_filter: TableFilter) -> int:
        """Up to where nothing is for a reader with this filter, by whole segments; ``after_seq`` where the first one
        holds something for it. So far its cursor may move, and does not hold the store back."""
        found, pending = after_seq, after_seq
        for _, index in self._indexes(after_seq):
            entries = index.entries[index.after(after_seq) :]
            found = pending  # this segment exists: the one before it is finished
            names = TableNumbers(self.path).names
            if any(table_filter.wanted(part, names).any() for part in _slices(entries)):
                break
            pending = int(entries["seq"][-1]) if len(entries) else pending
        self.require_kept(after_seq)
        return found

    def _until(self, after_seq: int, limits: Limits) -> Until | None:
        """The time limit, having seen what lies before the selection: whether that was acked or not changes nothing."""
        if limits.until_us is None:
            return None
        until = Until(self.path, limits.until_us)
        for _, index in self._indexes(until.surely_before):
            start, stop = index.after(until.surely_before), index.after(after_seq)
            for at in range(start, stop, _SLICE):
                until.stop(index.verified(at, min(at + _SLICE, stop)))
            if stop < len(index.entries):
                break
        return until

    def complete_until_us(self) -> int:
        """Everything committed before this moment, by the source's clock, can be read here; 0 while not known."""
        return complete_until_us(self.path)

    def place(self, entry: np.void) -> Place:
        """An entry's end in the source's words."""
        parts = split_seq(int(entry["seq"]))
        file = make_file_name(self.base_name, parts.file_number)
        return Place(file, parts.offset, format_gtid(entry), int(entry["commit_time_us"]))

    def entries(self, segment: Path, offset: int, length: int) -> Entries:
        """The transactions inside a byte range of a segment."""
        return read_entries(segment, offset, length)

    # --- finding a time ----------------------------------------------------------------------------------------------

    def find_by_store_time(self, time_us: int) -> int | None:
        """The seq of the first entry that was stored at or after a time (µs since 1970), None where all are older.
        O(log n). Store times are the machine's clock: where that was set back, the answer may be off by as much."""
        names = kept_names(self.path)
        low, high = 0, len(names)
        while low < high:
            middle = probe = (low + high) // 2
            entries = self._entries(names[probe])
            while not len(entries) and probe > low:  # without an entry: as the one before
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
        """The seq of the first entry that was committed at or after a time (µs since 1970), None where all are older.

        Commit times do not only rise; the first one that is not below the time is where their running maximum reaches
        it: where :attr:`Limits.until_us` ends a batch, unless the time index knows better
        (:mod:`cdc.store.formats.time_index`).
        The segment is found by its counts, and looked through: the cost is bounded by its size, not by the store's.
        """
        counts = Counts(self.path)
        for name in kept_names(self.path):
            if counts.of(name).newest_commit_us < time_us:
                continue
            index = IndexFile(self._segment(name))
            start = 0
            for part in _slices(index.entries):
                late = np.flatnonzero(part["commit_time_us"] >= time_us)
                if len(late):
                    at = start + int(late[0])
                    return int(index.verified(at, at + 1)["seq"][0])
                start += len(part)
        return None

    # --- counting

    def behind(self, after_seq: int) -> Behind:
        """What lies after a seq. Finished segments that are counted already cost a look at their size."""
        names = kept_names(self.path)
        names = names[holding(names, after_seq) :]
        counts = Counts(self.path)
        counted = [found for name in names[1:] if (found := counts.counted(name)) is not None]
        transactions = sum(found.transactions for found in counted)
        size = sum(found.bytes for found in counted)
        rest = names[:1] + [name for name in names[1:] if counts.counted(name) is None]
        for _, index in self._indexes(after_seq, rest):
            for part in _slices(index.entries[index.after(after_seq) :]):
                transactions += int(np.count_nonzero(part["length"]))
                size += int(part["length"].sum())
        oldest = self._oldest(names, after_seq)
        if oldest is None:
            return Behind(transactions, size, None)
        return Behind(transactions, size, int(oldest["commit_time_us"]), int(oldest["store_time_us"]))

    def _oldest(self, names: list[str], after_seq: int) -> np.void | None:
        """The first transaction behind a seq."""
        for name in names:
            index = IndexFile(self._segment(name))
            at = first_transaction(index.entries, index.after(after_seq))
            if at is not None:
                return index.verified(at, at + 1)[0]  # type: ignore[no-any-return]
        return None

    def totals(self) -> Totals:
        """All that the store holds. ``bytes`` are the segments', heads included."""
        transactions = size = 0
        counts = Counts(self.path)
        for name in kept_names(self.path):
            segment = self._segment(name)
            transactions += counts.of(name).transactions
            try:
                size += segment.stat().st_size
            except FileNotFoundError:
                continue  # retention removed it between the listing and now
            except OSError as error:
                raise StorageError(f"cannot be read: {error.strerror}", place=str(segment)) from None
        return Totals(transactions, size)

    def capture_state(self) -> CaptureState | None:
        """What capture last said of itself; None where it never ran."""
        return read_capture_state(self.path)

    def schema_path(self, last_seq: int) -> Path | None:
        """The table definitions in force after ``last_seq``: the newest file not behind it; where capture began later
        than that, the oldest there is."""
        folder = layout.schemas_folder(self.path)
        seqs = sorted(int(p.stem) for p in folder.glob("*.json") if p.stem.isdigit()) if folder.is_dir() else []
        if not seqs:
            return None
        at = bisect_right(seqs, last_seq)
        return folder / f"{seqs[max(0, at - 1)]}.json"

    def _segment(self, name: str) -> Path:
        return layout.segments_folder(self.path) / name

    def _entries(self, name: str) -> Entries:
        return IndexFile(self._segment(name)).entries

    def _indexes(self, after_seq: int, names: list[str] | None = None) -> Iterator[tuple[Path, IndexFile]]:
        """Segments that may hold something behind a seq (of those named), in order. Raises DamagedError where an index
        lacks transactions and a later segment has visible ones: going on would pass over what it lacks."""
        if names is None:
            names = kept_names(self.path)
            names = names[holding(names, after_seq) :]
        gap: IndexFile | None = None
        for name in names:
            segment = self._segment(name)
            index = IndexFile(segment)
            if gap is not None and len(index.entries):
                if IndexFile(gap.segment).is_whole():
                    return  # the writer has published both in between; the rest comes with the next call
                raise DamagedError(
                    "lacks transactions that its segment holds",
                    place=str(gap.path),
                    remedy="Start `cdc capture`: it verifies the segment and completes the index.",
                )
            yield segment, index
            if gap is None and not index.is_whole():
                gap = index


def _file_created_s(segment: Path, seq: int) -> int | None:
    """When the source created the file of ``seq``, if ``segment`` comes from that file."""
    start = layout.segment_start(segment)
    if start is None or start >> FILE_SHIFT != seq >> FILE_SHIFT:
        return None
    return layout.source_file_created_s(segment)


def first_transaction(entries: Entries, start: int) -> int | None:
    """The number of the first entry from ``start`` on that has bytes."""
    for part in _slices(entries[start:], 256):
        there = np.flatnonzero(part["length"])
        if len(there):
            return start + int(there[0])
        start += len(part)
    return None


def _slices(entries: Entries, size: int = _SLICE) -> Iterator[Entries]:
    for start in range(0, len(entries), size):
        yield entries[start : start + size]
