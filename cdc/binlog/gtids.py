"""GTIDs as values: MySQL's sets, and MariaDB's positions and states.

MySQL's set has exact intervals of numbers for each source, which is a server's UUID and, from MySQL 8.3 on, a tag.
MariaDB has no sets: a position names one GTID for each domain, and stands for all numbers of the domain up to that one,
because a domain is one stream with rising numbers. Its binlog's *state* (``gtid_binlog_state``) names the last number
of each server in each domain, and is a :class:`GtidSet` here (:func:`parse_state`), so that both products' histories
are compared in the same way.

Texts that are not what they should be raise DamagedError, because nearly all of them come from servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Self

from cdc.base.errors import DamagedError

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"(\d+)(?:-(\d+))?")
_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)")
_MOST_SHOWN = 5
_LARGEST = (1 << 63) - 2
"""The largest number that MySQL gives a transaction."""

Interval = tuple[int, int]
"""The first and the last number, both included."""


class GtidSet:
    """An immutable set of GTIDs: sorted intervals by source, of which no two touch.

    A source is a name: MySQL's UUID, with ``:tag`` if there is one. Other names can be used for numbers of other kinds.
    ``|``, ``&`` and ``-`` are union, intersection and difference, ``<=`` says whether it is a subset, ``in`` whether it
    holds a single GTID, and ``str`` is the text that MySQL prints.
    """

    __slots__ = ("_intervals",)

    def __init__(self, intervals: Mapping[str, Iterable[Interval]] | None = None) -> None:
        merged = {name: _merged(ranges) for name, ranges in (intervals or {}).items()}
        self._intervals: dict[str, tuple[Interval, ...]] = {n: merged[n] for n in sorted(merged) if merged[n]}

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Parses MySQL's notation: ``uuid:1-5:7:tag:1,uuid:tag:3``. White space has no meaning. Raises DamagedError."""
        intervals: dict[str, list[Interval]] = {}
        for part in filter(None, "".join(text.split()).lower().split(",")):
            name, *rest = part.split(":")
            if not _UUID.fullmatch(name) or not rest:
                raise DamagedError(f"{part!r} is not a set of GTIDs like {_EXAMPLE}")
            source = name
            for text_part in rest:
                match = _INTERVAL.fullmatch(text_part)
                if match is None and _TAG.fullmatch(text_part):
                    source = f"{name}:{text_part}"
                    continue
                first = int(match[1]) if match else 0
                last = int(match[2] or first) if match else 0
                if not 1 <= first <= last <= _LARGEST:
                    raise DamagedError(f"{text_part!r} in {part!r} is not an interval of numbers, nor a tag")
                intervals.setdefault(source, []).append((first, last))
            if source not in intervals:
                raise DamagedError(f"{part!r} has a tag without numbers")
        return cls(intervals)

    def __or__(self, other: GtidSet) -> GtidSet:
        names = {*self._intervals, *other._intervals}
        return GtidSet({name: (*self.intervals(name), *other.intervals(name)) for name in names})

    def __sub__(self, other: GtidSet) -> GtidSet:
        return GtidSet({name: _difference(mine, other.intervals(name)) for name, mine in self._intervals.items()})

    def __and__(self, other: GtidSet) -> GtidSet:
        return self - (self - other)

    def __le__(self, other: GtidSet) -> bool:
        return not self - other

    def __contains__(self, gtid: str) -> bool:
        name, _, number = gtid.rpartition(":")
        return any(first <= int(number) <= last for first, last in self.intervals(name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidSet) and self._intervals == other._intervals

    def __hash__(self) -> int:
        return hash(tuple(self._intervals.items()))

    def __bool__(self) -> bool:
        return bool(self._intervals)

    def sources(self) -> Iterator[tuple[str, tuple[Interval, ...]]]:
        """Yields each source with its intervals, in the order of the names."""
        yield from self._intervals.items()

    def intervals(self, source: str) -> tuple[Interval, ...]:
        """Returns the intervals of a source; none if the set has no number of it."""
        return self._intervals.get(source, ())

    def first(self, source: str) -> int | None:
        """Returns the smallest number of a source; None if it has none."""
        intervals = self.intervals(source)
        return intervals[0][0] if intervals else None

    def last(self, source: str) -> int | None:
        """Returns the largest number of a source; None if it has none."""
        intervals = self.intervals(source)
        return intervals[-1][1] if intervals else None

    @property
    def count(self) -> int:
        """The number of GTIDs."""
        return sum(last - first + 1 for intervals in self._intervals.values() for first, last in intervals)

    def __str__(self) -> str:
        parts: list[str] = []
        before = None
        for name, intervals in self.sources():
            uuid, _, tag = name.partition(":")
            numbers = ":".join(_shown(interval) for interval in intervals)
            if uuid == before:
                parts[-1] += f":{tag}:{numbers}"
            else:
                parts.append(f"{name}:{numbers}")
            before = uuid
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"GtidSet.parse({str(self)!r})"

    def shown(self) -> str:
        """Returns the set for messages: at most five intervals, and how many there are more."""
        listed = [f"{name}:{_shown(interval)}" for name, intervals in self.sources() for interval in intervals]
        more = f" and {len(listed) - _MOST_SHOWN} more intervals" if len(listed) > _MOST_SHOWN else ""
        return ", ".join(listed[:_MOST_SHOWN]) + more


_EXAMPLE = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-77"


def _shown(interval: Interval) -> str:
    first, last = interval
    return str(first) if first == last else f"{first}-{last}"


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _difference(mine: Iterable[Interval], theirs: tuple[Interval, ...]) -> Iterator[Interval]:
    """The numbers of ``mine`` that are not in ``theirs``; both are sorted and have no overlaps."""
    start = 0
    for first, last in mine:
        while start < len(theirs) and theirs[start][1] < first:
            start += 1
        for low, high in theirs[start:]:
            if low > last:
                break
            if low > first:
                yield first, low - 1
            first = high + 1
        if first <= last:
            yield first, last


# --- MariaDB


@dataclass(frozen=True, order=True)
class MariadbGtid:
    """A GTID of MariaDB: the domain, the server that wrote the transaction, and its number in the domain."""

    domain: int
    server: int
    number: int

    @classmethod
    def parse(cls, text: str) -> MariadbGtid:
        """Parses ``0-1-77``. Raises DamagedError."""
        match = _MARIADB.fullmatch(text.strip())
        if match is None:
            raise DamagedError(f"{text.strip()!r} is not a GTID like 0-1-77 (domain, server, number)")
        return cls(int(match[1]), int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.number}"


def _order(gtid: MariadbGtid) -> tuple[int, int]:
    return gtid.number, gtid.server


class MariadbPosition:
    """An immutable position in MariaDB's binlogs: the last GTID of each domain.

    It stands for all numbers of a domain up to that GTID's. ``|`` is the later and ``&`` the earlier position in each
    domain, ``<=`` says whether a position lies nowhere behind another, ``in`` whether a GTID lies before it, and ``-``
    is the set of the numbers between two, by domain. The server in a GTID says who wrote it and orders nothing.
    """

    __slots__ = ("_last",)

    def __init__(self, gtids: Iterable[MariadbGtid] = ()) -> None:
        """Raises DamagedError if two GTIDs have the same domain."""
        last: dict[int, MariadbGtid] = {}
        for gtid in gtids:
            gtid_of_domain = last.setdefault(gtid.domain, gtid)
            if gtid_of_domain != gtid:
                raise DamagedError(
                    f"{gtid_of_domain} and {gtid} have the same domain; a position has one GTID for each domain"
                )
        self._last = dict(sorted(last.items()))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses ``0-1-77,1-2-5``, the form of ``gtid_current_pos``. Raises DamagedError."""
        return cls(MariadbGtid.parse(part) for part in text.split(",") if part.strip())

    @classmethod
    def of_state(cls, gtids: Iterable[MariadbGtid]) -> Self:
        """Returns the position after all of these GTIDs, of which a domain may have several."""
        last: dict[int, MariadbGtid] = {}
        for gtid in gtids:
            last[gtid.domain] = max(last.get(gtid.domain, gtid), gtid, key=_order)
        return cls(last.values())

    def last(self, domain: int) -> MariadbGtid | None:
        """Returns the last GTID of a domain; None if the position has none of it."""
        return self._last.get(domain)

    def __iter__(self) -> Iterator[MariadbGtid]:
        return iter(self._last.values())

    def __contains__(self, gtid: MariadbGtid) -> bool:
        last = self._last.get(gtid.domain)
        return last is not None and gtid.number <= last.number

    def __or__(self, other: MariadbPosition) -> MariadbPosition:
        return MariadbPosition.of_state([*self, *other])

    def __and__(self, other: MariadbPosition) -> MariadbPosition:
        both = [(self._last[d], other._last[d]) for d in self._last if d in other._last]
        return MariadbPosition(min(pair, key=_order) for pair in both)

    def __sub__(self, other: MariadbPosition) -> GtidSet:
        return self._numbers() - other._numbers()

    def __le__(self, other: MariadbPosition) -> bool:
        return not self - other

    def _numbers(self) -> GtidSet:
        return GtidSet({str(gtid.domain): [(1, gtid.number)] for gtid in self if gtid.number})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariadbPosition) and self._last == other._last

    def __hash__(self) -> int:
        return hash(tuple(self._last.values()))

    def __bool__(self) -> bool:
        return bool(self._last)

    def __str__(self) -> str:
        return ",".join(str(gtid) for gtid in self)

    def __repr__(self) -> str:
        return f"MariadbPosition.parse({str(self)!r})"


# --- histories of both products

Flavor = Literal["mysql", "mariadb"]


def parse_state(text: str, flavor: Flavor) -> GtidSet:
    """Parses the GTIDs that a server has executed and logged: MySQL's ``gtid_executed``, or MariaDB's
    ``gtid_binlog_state``, whose numbers become the intervals from 1 on of a source ``DOMAIN-SERVER``. Raises
    DamagedError."""
    if flavor == "mysql":
        return GtidSet.parse(text)
    return state_of(MariadbGtid.parse(part) for part in text.split(",") if part.strip())


def state_of(gtids: Iterable[MariadbGtid]) -> GtidSet:
    """Returns the state after all of these GTIDs."""
    intervals: dict[str, list[Interval]] = {}
    for gtid in gtids:
        if gtid.number:
            intervals.setdefault(f"{gtid.domain}-{gtid.server}", []).append((1, gtid.number))
    return GtidSet(intervals)


def format_state(gtids: GtidSet, flavor: Flavor) -> str:
    """Returns the text that :func:`parse_state` parses."""
    if flavor == "mysql":
        return str(gtids)
    return ",".join(f"{name}-{gtids.last(name)}" for name, _ in gtids.sources())


def show_state(gtids: GtidSet, flavor: Flavor) -> str:
    """Returns a set, or the difference of two, for messages."""
    if flavor == "mysql":
        return gtids.shown()
    parts = [
        f"{name}-{first}" if first == last else f"{name}-{first} to {name}-{last}"
        for name, intervals in gtids.sources()
        for first, last in intervals
    ]
    more = f" and {len(parts) - _MOST_SHOWN} more intervals" if len(parts) > _MOST_SHOWN else ""
    return ", ".join(parts[:_MOST_SHOWN]) + more


def state_name(gtid: str, flavor: Flavor) -> str:
    """Returns a single GTID as ``SOURCE:NUMBER``, which a set of :func:`parse_state` can be asked for with ``in``."""
    if flavor == "mysql":
        return gtid
    source, _, number = gtid.rpartition("-")
    return f"{source}:{number}"
