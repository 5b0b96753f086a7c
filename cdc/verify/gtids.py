"""Sets of GTIDs: those of a store's index, those that a server prints, and their difference.

MySQL's sets are exact intervals for each UUID and tag. MariaDB's state names only the last number of each pair of
domain and server.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from cdc.binlog.entry import Entries, EntryFlag
from cdc.errors import DamagedError

_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)")
_INTERVAL = re.compile(r"(\d+)(?:-(\d+))?")
_MOST_SHOWN = 5


class GtidSet:
    """Intervals of numbers by source: a UUID, with ``:tag`` if there is one; for MariaDB ``domain-server``."""

    def __init__(self, intervals: dict[str, list[tuple[int, int]]] | None = None) -> None:
        self._intervals = {name: _merged(found) for name, found in (intervals or {}).items() if found}

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Parses MySQL's notation: ``uuid:1-5:7,uuid:tag:1``. Raises DamagedError."""
        found: dict[str, list[tuple[int, int]]] = {}
        for part in filter(None, ("".join(text.split())).split(",")):
            name, *rest = part.split(":")
            source = name.lower()
            for one in rest:
                match = _INTERVAL.fullmatch(one)
                if match is None:
                    source = f"{name.lower()}:{one.lower()}"
                    continue
                first = int(match[1])
                found.setdefault(source, []).append((first, int(match[2] or first)))
            if not rest:
                raise DamagedError(f"{part!r} is not a set of GTIDs")
        return cls(found)

    @classmethod
    def of_entries(cls, parts: Iterable[Entries]) -> GtidSet:
        """Returns the GTIDs of index entries, those of position entries included."""
        found: dict[str, list[tuple[int, int]]] = {}
        for entries in parts:
            for name, mine in by_source(entries):
                found.setdefault(name, []).extend(_runs(*_numbers(entries[mine])))
        return cls(found)

    def outside(self, entries: Entries) -> npt.NDArray[np.bool_]:
        """Returns which of the entries have a GTID that is not in the set. False for entries without one."""
        found = np.zeros(len(entries), dtype=np.bool_)
        for name, mine in by_source(entries):
            first, last = _numbers(entries[mine])
            known = np.array(self._intervals.get(name, [(0, -1)]), dtype=np.int64)
            at = np.maximum(np.searchsorted(known[:, 0], first, side="right") - 1, 0)
            found[mine] = (first < known[at, 0]) | (last > known[at, 1])
        return found

    def __sub__(self, other: GtidSet) -> GtidSet:
        left: dict[str, list[tuple[int, int]]] = {}
        for name, mine in self._intervals.items():
            theirs = other._intervals.get(name, [])
            for first, last in mine:
                at = first
                for low, high in theirs:
                    if high < at or low > last:
                        continue
                    if low > at:
                        left.setdefault(name, []).append((at, low - 1))
                    at = max(at, high + 1)
                if at <= last:
                    left.setdefault(name, []).append((at, last))
        return GtidSet(left)

    def __or__(self, other: GtidSet) -> GtidSet:
        names = {*self._intervals, *other._intervals}
        return GtidSet({n: [*self._intervals.get(n, []), *other._intervals.get(n, [])] for n in names})

    def __bool__(self) -> bool:
        return bool(self._intervals)

    def sources(self) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        """Yields each source with its intervals."""
        yield from sorted(self._intervals.items())

    def first(self, source: str) -> int | None:
        """Returns the smallest number of a source; None if it has none."""
        found = self._intervals.get(source)
        return found[0][0] if found else None

    def last(self, source: str) -> int | None:
        """Returns the largest number of a source; None if it has none."""
        found = self._intervals.get(source)
        return found[-1][1] if found else None

    @property
    def count(self) -> int:
        return sum(last - first + 1 for found in self._intervals.values() for first, last in found)

    def __str__(self) -> str:
        listed = [f"{name}:{_shown(*one)}" for name, found in self.sources() for one in found]
        more = f" and {len(listed) - _MOST_SHOWN} more intervals" if len(listed) > _MOST_SHOWN else ""
        return ", ".join(listed[:_MOST_SHOWN]) + more


def parse_mariadb(text: str) -> dict[str, int]:
    """Parses ``domain-server-number,…``. Returns the number of each ``domain-server``."""
    found: dict[str, int] = {}
    for match in _MARIADB.finditer(text):
        name = f"{match[1]}-{match[2]}"
        found[name] = max(found.get(name, 0), int(match[3]))
    return found


def _shown(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def by_source(entries: Entries) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Yields the name of each source with the places of its entries. Those without a GTID belong to none."""
    there = np.flatnonzero(entries["gtid_count"] > 0)
    left = entries[there]
    while len(left):
        # There are few sources, so one comparison for each is faster than sorting.
        one = left[0]
        is_mariadb = int(one["flags"]) & int(EntryFlag.GTID_MARIADB)
        same = (left["gtid_source"] == one["gtid_source"]) & (left["gtid_tag"] == one["gtid_tag"])
        same &= (left["flags"] & int(EntryFlag.GTID_MARIADB)) == is_mariadb
        yield _name(one, is_mariadb=bool(is_mariadb)), there[same]
        there, left = there[~same], left[~same]


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


def _runs(first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Joins neighbours that follow one another, so that millions of entries become few intervals."""
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    breaks = np.flatnonzero(first[1:] > last[:-1] + 1)
    starts = np.concatenate([[0], breaks + 1])
    ends = np.concatenate([breaks, [len(first) - 1]])
    return list(zip(first[starts].tolist(), last[ends].tolist(), strict=True))
