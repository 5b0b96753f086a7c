"""Follows a growing store: which transactions are new, in pieces that can be decoded."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cdc.base.errors import CdcError, CutOffError, DamagedError, UsageError
from cdc.binlog.entry import Entries, EntryFlag
from cdc.binlog.positions import FILE_SHIFT, format_seq, split_seq
from cdc.binlog.sql.schemas import Schemas
from cdc.client import connect, open_store
from cdc.decode.transactions import ALL_TABLES, Transactions, open_range
from cdc.store.formats.layout import segment_name, segments_folder
from cdc.store.reader.look import StoreLook
from cdc.wire.files import uri_of

if TYPE_CHECKING:
    from pathlib import Path

    from cdc.config import DestinationConfig
    from cdc.store.reader.store import Store

_PIECE_BYTES = 16 << 20
"""Bytes of transactions that are opened together; a larger transaction is opened alone."""
_LOCAL_POLL_S, _REMOTE_POLL_S = 0.05, 0.25
_LEFT_OUT = int(EntryFlag.POSITION | EntryFlag.XA_PREPARED)


@dataclass(frozen=True)
class Piece:
    """Consecutive transactions of one segment, with the tables' definitions in force. A transaction with a DDL
    statement is alone."""

    transactions: Transactions
    schemas: Schemas | None
    is_ddl: bool

    @property
    def entries(self) -> Entries:
        return self.transactions.entries


class StoreFollower:
    """The transactions of a destination's store after a position, as they become visible."""

    def __init__(self, config: DestinationConfig, base_name: str | None = None) -> None:
        """``base_name``: the base name of the source's binlog files. Raises ConfigError, StorageError, VersionError."""
        self.reader: Store = open_store(config, base_name)
        self.seq = 0
        """All transactions up to this seq were handed out, or passed over."""
        self.tables: list[str] = []
        """The tables of which the store has changes, in the order of their numbers."""
        self.lost = 0
        """Transactions that were passed over because their bytes were lost, and an operator has accepted that."""
        self._look: StoreLook | None = None
        if config.store.kind == "file":
            self._look = StoreLook(config.store.path)
            folder = segments_folder(config.store.path)
            self._path: Callable[[str], Path | str] = lambda name: folder / name
        else:
            connection = connect(config)
            self._path = lambda name: uri_of(connection, f"segments/{name}")
        self._seen: object = None
        self._end = (0, -1)
        """The segment of the last transaction that was handed out, by its begin; and the transaction's end in it."""

    @property
    def poll_s(self) -> float:
        """The time to wait between two looks, in seconds."""
        return _REMOTE_POLL_S if self._look is None else _LOCAL_POLL_S

    def has_grown(self) -> bool:
        """Whether there may be something new since the last call: a look at two files, or a question to the server."""
        seen = self.reader.last_seq() if self._look is None else self._look.end()
        grown, self._seen = seen != self._seen, seen
        return grown

    def pieces(self, tables: frozenset[str] | None = None, until_seq: int | None = None) -> Iterator[Piece]:
        """Yields the transactions that the store has now after :attr:`seq`, in order. Asking for the next piece moves
        ``seq`` to the end of the one before. ``tables``: transactions without one of them may be left out.
        ``until_seq``: the last one.

        Raises CutOffError if retention has removed transactions that were not handed out, UsageError if the store
        ends before the last one that was, DamagedError, StorageError, and what the server raises.
        """
        self._require_not_before()
        self._require_kept()
        for entries in self.reader.all_entries(self.seq, until_seq):
            self._require_kept()
            self.tables = self.reader.table_names()
            mask = ALL_TABLES if tables is None else self._mask(tables)
            self.lost += int(np.count_nonzero(entries["flags"] & int(EntryFlag.LOST)))
            transactions = entries[(entries["length"] > 0) & ((entries["flags"] & _LEFT_OUT) == 0)]
            for run in _runs(transactions):
                start = self._segment(run[0])
                is_ddl = bool(int(run["flags"][0]) & EntryFlag.DDL)
                if is_ddl or (run["table_mask"] & np.uint64(mask)).any():
                    yield from self._opened(start, run, mask, is_ddl=is_ddl)
                self._end = start, int(run["offset"][-1]) + int(run["length"][-1])
                self.seq = int(run["seq"][-1])
            self.seq = int(entries["seq"][-1])

    def _mask(self, tables: frozenset[str]) -> int:
        mask = 0
        for number, name in enumerate(self.tables):
            mask |= (1 << (number & 63)) if name in tables else 0
        return mask

    def _opened(self, start: int, entries: Entries, mask: int, *, is_ddl: bool) -> Iterator[Piece]:
        """Opens consecutive transactions of the segment that begins at ``start``, cut where the tables' definitions
        change."""
        last = int(entries["seq"][-1])
        change = self.reader.schemas(last if is_ddl else last - 1)
        if change is not None:
            before = int(np.searchsorted(entries["seq"], np.uint64(change[0]), side="right"))
            if 0 < before < len(entries):
                yield from self._opened(start, entries[:before], mask, is_ddl=is_ddl)
                entries = entries[before:]
        offset = int(entries["offset"][0])
        length = int(entries["offset"][-1]) + int(entries["length"][-1]) - offset
        path = self._path(segment_name(*split_seq(start)))
        try:
            transactions = open_range(path, offset, length, ALL_TABLES if is_ddl else mask)
        except CdcError:
            self._require_kept()  # retention has removed the segment meanwhile
            raise
        yield Piece(transactions, None if change is None else change[1], is_ddl)

    def _segment(self, entry: np.void) -> int:
        """Returns the seq at which the segment of a transaction begins."""
        seq, offset = int(entry["seq"]), int(entry["offset"])
        start, end = self._end
        if offset == end and start >> FILE_SHIFT == seq >> FILE_SHIFT:
            return start  # it follows the last one
        starts = self.reader.segment_starts()
        at = bisect_left(starts, seq)
        if at == 0:
            self._require_kept()
            raise DamagedError(f"no segment holds {format_seq(seq)}", place=self.reader.place)
        return starts[at - 1]

    def _require_not_before(self) -> None:
        last, begins = self.reader.last_seq() or 0, self.reader.beginning()
        if self.seq > max(last, 0 if begins is None else begins.seq):
            raise UsageError(
                f"the store ends at {last} ({format_seq(last)}), before {self.seq} ({format_seq(self.seq)}), "
                "up to which it was read: it was replaced, or its end was removed",
                place=self.reader.place,
                remedy="Start again; --from tells where.",
            )

    def _require_kept(self) -> None:
        try:
            self.reader.require_kept(self.seq)
        except CutOffError:
            removed = self.reader.removed_seq()
            raise CutOffError(
                f"the transactions after {self.seq} ({format_seq(self.seq)}) up to {removed} ({format_seq(removed)}) "
                "were removed by retention before they were shown",
                place=self.reader.place,
                remedy="Begin with the oldest that is kept, --from earliest, or at the end, without --from.",
            ) from None


def _runs(entries: Entries) -> Iterator[Entries]:
    """Cuts entries into runs without gaps, of bounded size, each in one segment; a DDL statement is alone."""
    if not len(entries):
        return
    begin = entries["offset"].astype(np.int64)
    end = begin + entries["length"].astype(np.int64)
    is_ddl = (entries["flags"] & int(EntryFlag.DDL)) != 0
    cut = np.ones(len(entries), dtype=bool)
    cut[1:] = begin[1:] != end[:-1]
    cut[1:] |= (entries["seq"][1:] >> np.uint64(FILE_SHIFT)) != (entries["seq"][:-1] >> np.uint64(FILE_SHIFT))
    cut |= is_ddl
    cut[1:] |= is_ddl[:-1]
    for first, stop in itertools.pairwise([*np.flatnonzero(cut).tolist(), len(entries)]):
        while first < stop:
            fits = int(np.searchsorted(end[first:stop], begin[first] + _PIECE_BYTES, side="right"))
            count = max(1, fits)
            yield entries[first : first + count]
            first += count
