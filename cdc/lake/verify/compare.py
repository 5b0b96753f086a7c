"""Compares the two sides: bucket by bucket, then key by key in the buckets that differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class BucketSum(NamedTuple):
    """The number of rows in a bucket, and the sum of their checksums."""

    rows: int
    total: int


class KeyedRow(NamedTuple):
    """A row in canonical form."""

    key: str
    checksum: int
    sign: int
    """1, or -1 for the old image of a change."""
    seq: int
    """The seq of the change; 0 for a row of a mirror."""


class ShownRow(NamedTuple):
    """A row with its values, for people."""

    key: str
    checksum: int
    values: dict[str, tuple[str, str | None]]
    """For each column, by its name in Delta, the piece of the canonical text and the value as text."""


def add_sums(first: Mapping[int, BucketSum], second: Mapping[int, BucketSum], sign: int = 1) -> dict[int, BucketSum]:
    """Adds the sums of the second to those of the first, or subtracts them with ``sign=-1``."""
    sums = dict(first)
    for bucket, (rows, total) in second.items():
        bucket_sum = sums.get(bucket, BucketSum(0, 0))
        sums[bucket] = BucketSum(bucket_sum.rows + sign * rows, bucket_sum.total + sign * total)
    return sums


def differing(first: Mapping[int, BucketSum], second: Mapping[int, BucketSum]) -> list[int]:
    """Returns the buckets whose sums differ, in order."""
    empty = BucketSum(0, 0)
    return sorted(b for b in {*first, *second} if first.get(b, empty) != second.get(b, empty))


@dataclass(frozen=True)
class DifferentKey:
    """A canonical key whose rows are not the same on both sides. The rows are given by their checksums."""

    key: str
    source: tuple[int, ...]
    delta: tuple[int, ...]
    note: str | None = None


@dataclass
class _Key:
    """The rows of one canonical key."""

    source: Counter[int] = field(default_factory=Counter)
    delta: Counter[int] = field(default_factory=Counter)
    changes: list[KeyedRow] = field(default_factory=list)
    """The images of its changes after the Delta table's position, in order."""


class Narrowing:
    """Finds the differing keys among the rows of some buckets.

    The rows of a Delta table at its position, followed by the changes of the store, must give the rows of the source.
    A key with changes is compared twice: what the Delta table has with the old image of the first change, and what the
    source has with the new image of the last one.
    """

    def __init__(self, *, has_key: bool, low_seq: int) -> None:
        """``low_seq``: changes after it may be missing on the source's side."""
        self._has_key, self._low_seq = has_key, low_seq
        self._keys: defaultdict[str, _Key] = defaultdict(_Key)

    def add_source(self, rows: Iterable[tuple[str, int]]) -> None:
        """Adds rows of the source: canonical key and checksum."""
        for key, checksum in rows:
            self._keys[key].source[checksum] += 1

    def add_delta(self, rows: Iterable[KeyedRow]) -> None:
        """Adds rows of the Delta table."""
        for row in rows:
            self._keys[row.key].delta[row.checksum] += row.sign

    def add_changes(self, rows: Iterable[KeyedRow]) -> None:
        """Adds images of changes, in their order."""
        for row in rows:
            self._keys[row.key].changes.append(row)

    def findings(self) -> list[DifferentKey]:
        """Returns the keys that differ, in order."""
        findings = []
        for name, key in sorted(self._keys.items()):
            finding = self._keyed(name, key) if self._has_key and key.changes else self._plain(name, key)
            if finding is not None:
                findings.append(finding)
        return findings

    def _plain(self, name: str, key: _Key) -> DifferentKey | None:
        delta = Counter(key.delta)
        for change in key.changes:
            delta[change.checksum] += change.sign
        if any(delta[c] != key.source[c] for c in {*delta, *key.source}):
            return DifferentKey(name, _listed(key.source), _listed(delta))
        return None

    def _keyed(self, name: str, key: _Key) -> DifferentKey | None:
        states = _states(key.changes)
        before = states[0][1]
        if _listed(key.delta) != before or min(key.delta.values(), default=0) < 0:
            return DifferentKey(
                name, before, _listed(key.delta), "compared at the Delta table's position; the row changes after it"
            )
        # The source may lack changes after low_seq.
        certain = max(at for at, (seq, _) in enumerate(states) if seq <= self._low_seq)
        if _listed(key.source) not in [rows for _, rows in states[certain:]]:
            return DifferentKey(
                name, _listed(key.source), states[-1][1], "compared after the changes that the store has"
            )
        return None


def _states(changes: list[KeyedRow]) -> list[tuple[int, tuple[int, ...]]]:
    """Returns the rows of a key over time, each with the seq from which on they are so: first, as the old image of the
    first change has them, then after each change."""
    first = changes[0]
    current: Counter[int] = Counter([first.checksum] if first.sign < 0 else [])
    states = [(0, _listed(current))]
    for change in changes:
        current = Counter() if change.sign < 0 else Counter([change.checksum])
        if states[-1][0] == change.seq:
            states.pop()  # inside one transaction only its end is visible
        states.append((change.seq, _listed(current)))
    return states


def _listed(rows: Counter[int]) -> tuple[int, ...]:
    return tuple(sorted(rows.elements()))
