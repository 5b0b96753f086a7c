"""The scan for one table's events, which can stop anywhere and go on, here or in another process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdc.decode.kernels import constants as k
from cdc.decode.kernels.scan import scan_events
from cdc.decode.transactions import Transactions

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
_MAP_NAMES_AT = 27
"""Where in a table map event the names begin: after its header, the table id and the flags."""


@dataclass(frozen=True)
class Part:
    """The events of a transaction from ``start`` to ``stop`` (positions in the file), for one table."""

    start: int
    stop: int
    ordinal: int
    """Row events of the table before it in the transaction."""
    maps: tuple[tuple[int, int, int], ...]
    """The table's table maps in force: table id, where the event begins, and its length."""


class ScanCursor:
    """Where a scan for one table's events stands, and what it knows of the table maps."""

    def __init__(self, tail: int) -> None:
        self._tail = tail
        self.state: Longs = np.zeros(k.SCAN_STATE_SIZE, dtype=np.int64)
        self.state[k.SCAN_POS] = -1
        self.ids: Longs = np.zeros((k.MAX_IDS, 2), dtype=np.int64)
        self.maps: Longs = np.zeros((k.MAX_LAYOUTS, 2), dtype=np.int64)
        """For each distinct table map of the table: from its names to the end of its body."""
        self._scratch = np.zeros(16, dtype=np.uint8)

    def scan(
        self, transactions: Transactions, begin: Longs, end: Longs, name: Bytes, out: list[Longs], max_bytes: int
    ) -> tuple[int, int]:
        """Go on: (status, number of events). ``out``: room for offset, length, type, transaction, ordinal, layout."""
        offset, length, kind, tx, ordinal, layout = out
        return scan_events(
            transactions.buf,
            begin,
            end,
            self._tail,
            name,
            self.state,
            self.ids,
            self.maps,
            offset,
            length,
            kind,
            tx,
            ordinal,
            layout,
            max_bytes,
            self._scratch,
        )

    def part_here(self) -> Part:
        """A part that begins here; its end is not known yet."""
        maps = []
        for table_id, layout in self.ids[: self.state[k.SCAN_IDS]].tolist():
            start = int(self.maps[layout, 0]) - _MAP_NAMES_AT
            maps.append((table_id, start, int(self.maps[layout, 1]) + self._tail - start))
        return Part(int(self.state[k.SCAN_POS]), 0, int(self.state[k.SCAN_ORDINAL]), tuple(maps))

    def go_to(self, part: Part) -> None:
        """Stand at the beginning of a part."""
        self.state[k.SCAN_POS] = part.start
        self.state[k.SCAN_ORDINAL] = part.ordinal
        self.state[k.SCAN_IDS] = self.state[k.SCAN_LAYOUTS] = len(part.maps)
        for number, (table_id, start, length) in enumerate(part.maps):
            self.ids[number] = table_id, number
            self.maps[number] = start + _MAP_NAMES_AT, start + length - self._tail
