"""Reading a store from any process: what is visible, and which bytes a batch is made of. Nothing here writes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cdc.binlog.entry import Entries, EntryFlag, format_gtid
from cdc.errors import DamagedError, StorageError
from cdc.positions import make_file_name, split_seq
from cdc.store import layout
from cdc.store.base import Behind, Limits, Place, Range, Selection, Totals
from cdc.store.index import IndexFile, read_entries
from cdc.store.state import CaptureState, TableNumbers, read_capture_state

_SLICE = 65536


class StoreReader:
    """A store on disk. ``base_name`` is that of the source's binlog files, for positions in the source's words."""

    def __init__(self, path: Path, base_name: str = "binlog") -> None:
        self.path = Path(path)
        self.base_name = base_name
        layout.check(self.path)

    # --- where it begins and ends

    def first_seq(self) -> int | None:
        """The oldest transaction that is there, None in an empty store."""
        for _, index in self._indexes(0):
            at = np.flatnonzero(index.entries["length"])
            if len(at):
                return int(index.entries["seq"][at[0]])
        return None

    def last_seq(self) -> int | None:
        """The seq up to which the source has been read, transactions of others included."""
        entry = self.last_entry()
        return None if entry is None else int(entry["seq"])

    def last_entry(self) -> np.void | None:
        """The newest visible entry."""
        for segment in reversed(layout.list_segments(self.path)):
            entries = IndexFile(segment).entries
            if len(entries):
                return np.array(entries[-1:])[0]  # type: ignore[no-any-return]
        return None

    # --- finding a batch ---------------------------------------------------------------------------------------------

    def select(self, after_seq: int, limits: Limits) -> Selection | None:
        """The transactions behind ``after_seq``, up to the first limit; a DDL statement's transaction comes alone. None
        where there is none. Raises DamagedError."""
        picked = _Picker(limits)
        for segment, index in self._indexes(after_seq):
            start = index.after(after_seq)
            while start < len(index.entries) and not picked.full:
                entries = index.verified(start, min(start + _SLICE, len(index.entries)))
                picked.add(segment, entries)
                start += len(entries)
            if picked.full:
                break
        if picked.transactions == 0:
            return None
        assert picked.first is not None and picked.last is not None
        return Selection(
            first_seq=int(picked.first["seq"]),
            last_seq=int(picked.last["seq"]),
            transactions=picked.transactions,
            row_events=picked.row_events,
            bytes=picked.bytes,
            ddl=picked.ddl,
            tables=TableNumbers(self.path).in_mask(picked.mask),
            ranges=tuple(picked.ranges),
            first=self.place(picked.first),
            last=self.place(picked.last),
        )

    def place(self, entry: np.void) -> Place:
        """An entry's end in the source's words."""
        parts = split_seq(int(entry["seq"]))
        file = make_file_name(self.base_name, parts.file_number)
        return Place(file, parts.offset, format_gtid(entry), int(entry["commit_time_us"]))

    def entries(self, segment: Path, offset: int, length: int) -> Entries:
        """The transactions inside a byte range of a segment."""
        return read_entries(segment, offset, length)

    # --- counting

    def behind(self, after_seq: int) -> Behind:
        """What lies after a seq."""
        transactions = size = 0
        oldest: int | None = None
        for _, index in self._indexes(after_seq):
            entries = index.entries[index.after(after_seq) :]
            lengths = entries["length"]
            there = np.flatnonzero(lengths)
            transactions += len(there)
            size += int(lengths.sum())
            if oldest is None and len(there):
                oldest = int(entries["commit_time_us"][there[0]])
        return Behind(transactions, size, oldest)

    def totals(self) -> Totals:
        """All that the store holds. ``bytes`` are the segments', heads included."""
        transactions = size = 0
        for segment in layout.list_segments(self.path):
            transactions += int(np.count_nonzero(IndexFile(segment).entries["length"]))
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

    def _indexes(self, after_seq: int) -> Iterator[tuple[Path, IndexFile]]:
        """Segments that may hold something behind a seq, in order. Raises DamagedError where an index lacks
        transactions and a later segment has visible ones: going on would pass over what it lacks."""
        segments = layout.list_segments(self.path)
        starts = [layout.segment_start(s) or 0 for s in segments]
        gap: IndexFile | None = None
        for segment in segments[max(0, bisect_right(starts, after_seq) - 1) :]:
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


class _Picker:
    """Collects entries until a limit is reached."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.full = False
        self.transactions = self.row_events = self.bytes = self.mask = 0
        self.ddl = False
        self.ranges: list[Range] = []
        self.first: np.void | None = None
        self.last: np.void | None = None
        self._newest_us = -1

    def add(self, segment: Path, entries: Entries) -> None:
        stop = self._stop(entries)
        if stop < len(entries):
            self.full = True
            entries = entries[:stop]
        if len(entries) == 0:
            return
        there = entries[entries["length"] > 0]
        self.last = entries[-1]
        if len(there) == 0:
            return
        if self.first is None:
            self.first = there[0]
        self.ddl = bool(int(there["flags"][0]) & EntryFlag.DDL)
        self.transactions += len(there)
        self.row_events += int(there["row_events"].sum())
        self.mask |= int(np.bitwise_or.reduce(there["table_mask"]))
        offset = int(there["offset"][0])
        length = int(there["offset"][-1]) + int(there["length"][-1]) - offset
        self.bytes += length
        if self.ranges and self.ranges[-1].path == segment and sum(self.ranges[-1][1:]) == offset:
            self.ranges[-1] = Range(segment, self.ranges[-1].offset, self.ranges[-1].length + length)
        else:
            self.ranges.append(Range(segment, offset, length))

    def _stop(self, entries: Entries) -> int:
        """How many of these entries still belong to the batch."""
        limits = self._limits
        stop = len(entries)
        counts = entries["length"] > 0
        if limits.until_us is not None:
            newest = np.maximum.accumulate(np.maximum(entries["commit_time_us"], self._newest_us))
            late = np.flatnonzero(newest >= limits.until_us)
            stop = min(stop, int(late[0]) if len(late) else stop)
            self._newest_us = int(newest[-1])
        ddl = np.flatnonzero((entries["flags"] & int(EntryFlag.DDL)) != 0)
        if len(ddl):
            at = int(ddl[0])
            before = self.transactions + int(np.count_nonzero(counts[:at]))
            stop = min(stop, at if before else at + 1)
        if self.ddl:  # alone, and what follows begins a new batch
            return 0
        for values, used, limit in (
            (entries["length"], self.bytes, limits.max_bytes),
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
        return stop
