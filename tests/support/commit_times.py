"""Stores of transactions whose commit times a test chooses."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cdc.binlog.entry import Entries
from cdc.store.formats.index import IndexFile, seal
from cdc.store.formats.index import make_header as index_header
from cdc.store.formats.layout import index_path, list_segments
from cdc.store.formats.state import CaptureState, write_capture_state
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler

SECOND = 1_000_000
T0 = 1_700_000_000 * SECOND
"""The commit time of the first transaction."""


def fill(
    path: Path, times_s: list[float], *, ddl: frozenset[int] = frozenset(), sizes: list[int] | None = None
) -> None:
    """Writes a store (in segments of 64 KiB) of transactions with these commit times, in seconds after T0."""
    log = BinlogBuilder()
    for n in range(len(times_s)):
        if n in ddl:
            log.ddl("ALTER TABLE orders ADD x INT")
        else:
            log.transaction("shop", "orders", [n] * (sizes[n] if sizes else 1))
    filler = Filler(path, segment_bytes=65536)
    filler.put(log)
    filler.close()
    set_times(path, times_s)


def set_times(path: Path, times_s: list[float]) -> None:
    left = list(times_s)
    for segment in list_segments(path):
        entries = IndexFile(segment).entries
        entries = entries.copy()
        for number in range(len(entries)):
            if entries["length"][number]:
                entries["commit_time_us"][number] = T0 + int(left.pop(0) * SECOND)
        index_path(segment).write_bytes(index_header() + seal(entries))
    assert not left


def entries_of(path: Path) -> Entries:
    entries = np.concatenate([IndexFile(segment).entries for segment in list_segments(path)])
    return entries[entries["length"] > 0]


def seqs_of(path: Path) -> list[int]:
    return [int(seq) for seq in entries_of(path)["seq"]]


def say_complete(store: Path, until_s: float, *, connected: bool = True) -> None:
    write_capture_state(store, CaptureState(1, connected, "binlog.000001", 4, None, 0, T0 + int(until_s * SECOND)))
