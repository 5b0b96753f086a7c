"""Which transactions make a batch: entries go in, until a limit is reached.

A batch is either transactions with rows, or one DDL statement, or a run of DDL statements that leave rows alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from cdc.binlog.entry import Entries, EntryFlag
from cdc.store.formats.time_index import Until
from cdc.store.reader.selection import Limits, Range

_BRIDGE_BYTES = 16384
"""A filtered batch reads over so many bytes of others' transactions rather than begin a new range: each range costs a
look at the index, and in Spark a task."""
_RUN = 1000
"""DDL statements in one batch, at most: the text of each is read, and each may make a table."""


class Picker:
    """Collects entries until a limit is reached."""

    def __init__(
        self,
        limits: Limits,
        until: Until | None = None,
        is_harmless: Callable[[Path, np.void], bool] = lambda segment, entry: False,
    ) -> None:
        """``is_harmless``: whether the DDL statement of an entry leaves rows alone, so that it may share a batch with
        others of its kind. It is asked about the statements that are taken, and about the one behind them."""
        self._limits = limits
        self._until = until
        self._is_harmless = is_harmless
        self._run_ended = False
        self.full = False
        self.transactions = self.row_events = self.mask = 0
        self.ddl = False
        self.ranges: list[Range] = []
        self.first: np.void | None = None
        self.last: np.void | None = None
        self._used_bytes = 0
        self.given_up: list[tuple[str, int]] = []
        """Segment and seq of what somebody has said to go on without."""

    @property
    def bytes(self) -> int:
        """Of all ranges."""
        return sum(part.length for part in self.ranges)

    def add(self, segment: Path, entries: Entries, wanted: np.ndarray | None = None) -> None:
        """Entries that follow those before. ``wanted``: which of them the reader's filter lets through; the others
        count for nothing, as position entries do."""
        # What was given up is never read over, nor is a DDL statement of others.
        given_up = (entries["flags"] & int(EntryFlag.GIVEN_UP)) != 0
        foreign_ddl = given_up
        if wanted is not None:
            entries = entries.copy()
            foreign_ddl = given_up | ~wanted & ((entries["flags"] & int(EntryFlag.DDL)) != 0)
            for name in ("length", "row_events", "flags", "table_mask"):
                entries[name][~wanted] = 0
        stop = self._stop(segment, entries)
        if stop < len(entries):
            self.full = True
            entries, foreign_ddl, given_up = entries[:stop], foreign_ddl[:stop], given_up[:stop]
        if len(entries) == 0:
            return
        self.given_up += [(segment.name, int(seq)) for seq in entries["seq"][given_up]]
        keep = entries["length"] > 0
        there = entries[keep]
        self.last = entries[-1]
        if len(there) == 0:
            return
        if self.first is None:
            self.first = there[0]
        self.ddl = bool(int(there["flags"][0]) & EntryFlag.DDL)
        self.transactions += len(there)
        self.row_events += int(there["row_events"].sum())
        self.mask |= int(np.bitwise_or.reduce(there["table_mask"]))
        self._used_bytes += int(there["length"].sum())
        self._add_ranges(segment, there, np.cumsum(foreign_ddl)[keep])

    def _add_ranges(self, segment: Path, there: Entries, foreign_ddls: np.ndarray) -> None:
        """``foreign_ddls``: how many DDL statements of others lie before each transaction; none is read over, since
        the tables may look otherwise behind it."""
        starts = there["offset"].astype(np.int64)
        ends = starts + there["length"].astype(np.int64)
        breaks = (starts[1:] - ends[:-1] > _BRIDGE_BYTES) | (np.diff(foreign_ddls) > 0)
        firsts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        lasts = np.concatenate([firsts[1:] - 1, [len(there) - 1]])
        for start, end in zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
            before = self.ranges[-1] if self.ranges else None
            if before is not None and before.path == segment and before.offset + before.length == start:
                self.ranges[-1] = Range(segment, before.offset, end - before.offset)
            else:
                self.ranges.append(Range(segment, start, end - start))

    def _stop(self, segment: Path, entries: Entries) -> int:
        """How many of these entries still belong to the batch."""
        limits = self._limits
        stop = len(entries)
        counts = entries["length"] > 0
        if self._until is not None:
            stop = self._until.stop(entries)
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
            return self._end_of_run(segment, entries, stop)
        ddl = np.flatnonzero((entries["flags"] & int(EntryFlag.DDL)) != 0)
        if len(ddl):
            at = int(ddl[0])
            rows_before = self.transactions + int(np.count_nonzero(counts[:at]))
            return min(stop, at) if rows_before else self._end_of_run(segment, entries, stop)
        return stop

    def _end_of_run(self, segment: Path, entries: Entries, stop: int) -> int:
        """How many of these entries belong to a batch of DDL statements, ``stop`` at most. Position entries that follow
        the last of them do."""
        taken = self.transactions
        for at in np.flatnonzero(entries["length"][:stop]).tolist():
            is_ddl = bool(int(entries["flags"][at]) & EntryFlag.DDL)
            if self._run_ended or not is_ddl or taken == _RUN:
                return at
            harmless = self._is_harmless(segment, entries[at])
            if taken and not harmless:
                return at
            self._run_ended = not harmless
            taken += 1
        return stop
