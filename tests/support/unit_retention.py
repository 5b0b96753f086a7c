"""Makes stores of many segments for tests of retention and of the reader."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from cdc.binlog.entry import Entries
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile, make_header, seal
from cdc.store.formats.layout import index_path, list_segments
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler

HOUR_US = 3_600_000_000


def fill(
    path: Path, transactions: int = 60, *, tables: tuple[str, ...] = ("orders",), ddls: tuple[int, ...] = ()
) -> None:
    """Makes a store of segments of about 64 KiB with about ten transactions each."""
    log = BinlogBuilder()
    for n in range(transactions):
        if n in ddls:
            log.ddl(f"ALTER TABLE {tables[0]} ADD c{n} INT")
        else:
            log.transaction("shop", tables[n % len(tables)], [n] * 1200)
    filler = Filler(path, segment_bytes=65536)
    filler.put(log)
    filler.close()


def names(path: Path) -> list[str]:
    return [segment.name for segment in list_segments(path)]


def last_seqs(path: Path) -> list[int]:
    """Returns the seq of the last transaction of each segment."""
    return [int(IndexFile(segment).entries["seq"][-1]) for segment in list_segments(path)]


def rewrite(segment: Path, entries: Entries) -> None:
    """Replaces a segment's entries."""
    index_path(segment).write_bytes(make_header() + seal(entries))


def age(path: Path, hours: list[float], now_us: int) -> None:
    """Makes each segment's entries so many hours old, by their store times."""
    for segment, ago in zip(list_segments(path), hours, strict=True):
        entries = np.array(IndexFile(segment).entries)
        entries["store_time_us"] = now_us - int(ago * HOUR_US)
        rewrite(segment, entries)


def files(path: Path) -> set[str]:
    return set(os.listdir(layout.segments_folder(path)))
