"""The GTIDs in a store's index, as sets, and the state that MariaDB prints."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from cdc.binlog.entry import Entries, EntryFlag
from cdc.binlog.gtids import GtidSet, Interval

_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)")


def gtids_of(parts: Iterable[Entries]) -> GtidSet:
    """Returns the GTIDs of index entries, those of position entries included. MariaDB's sources are named
    ``domain-server``."""
    intervals: dict[str, list[Interval]] = {}
    for entries in parts:
        for name, mine in by_source(entries):
            intervals.setdefault(name, []).extend(_runs(*_numbers(entries[mine])))
    return GtidSet(intervals)


def parse_mariadb(text: str) -> dict[str, int]:
    """Parses ``domain-server-number,…``. Returns the number of each ``domain-server``."""
    numbers: dict[str, int] = {}
    for match in _MARIADB.finditer(text):
        name = f"{match[1]}-{match[2]}"
        numbers[name] = max(numbers.get(name, 0), int(match[3]))
    return numbers


def by_source(entries: Entries) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Yields the name of each source with the places of its entries. Those without a GTID belong to none."""
    places = np.flatnonzero(entries["gtid_count"] > 0)
    left = entries[places]
    while len(left):
        # There are few sources, so one comparison for each is faster than sorting.
        entry = left[0]
        is_mariadb = int(entry["flags"]) & int(EntryFlag.GTID_MARIADB)
        same = (left["gtid_source"] == entry["gtid_source"]) & (left["gtid_tag"] == entry["gtid_tag"])
        same &= (left["flags"] & int(EntryFlag.GTID_MARIADB)) == is_mariadb
        yield _name(entry, is_mariadb=bool(is_mariadb)), places[same]
        places, left = places[~same], left[~same]


def _name(entry: np.void, *, is_mariadb: bool) -> str:
    source = bytes(entry["gtid_source"])
    if is_mariadb:
        return f"{int.from_bytes(source[:4], 'little')}-{int.from_bytes(source[4:8], 'little')}"
    tag = bytes(entry["gtid_tag"]).decode("ascii")
    return str(uuid.UUID(bytes=source)) + (f":{tag}" if tag else "")


def _numbers(entries: Entries) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the first and the last number of each entry."""
    last = entries["gtid_number"].astype(np.int64)
    return last - entries["gtid_count"].astype(np.int64) + 1, last


def _runs(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> list[Interval]:
    """Joins neighbours that follow one another, so that millions of entries become few intervals."""
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    breaks = np.flatnonzero(first[1:] > last[:-1] + 1)
    starts = np.concatenate([[0], breaks + 1])
    ends = np.concatenate([breaks, [len(first) - 1]])
    return list(zip(first[starts].tolist(), last[ends].tolist(), strict=True))
