"""What a store answers, whatever it is made of: the values that its readers get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True)
class Limits:
    """Where a selection ends: the first limit reached. The first transaction is always in it, whatever its size."""

    max_bytes: int = 268435456
    max_transactions: int | None = None
    max_row_events: int | None = None
    until_us: int | None = None
    """Only the longest run of transactions whose commit times (the largest so far) lie before this one, µs since
    1970."""


@dataclass(frozen=True)
class Place:
    """An entry's end in the source's own words."""

    file: str
    pos: int
    gtid: str | None
    commit_time_us: int


class Range(NamedTuple):
    """Whole transactions, one after another, in one segment; ``path`` is absolute."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True)
class Selection:
    """Transactions from a store. ``first_seq`` is the first transaction's; ``last_seq`` the last entry's, which may lie
    behind the last transaction where the source has moved on over transactions with nothing of ours."""

    first_seq: int
    last_seq: int
    transactions: int
    row_events: int
    bytes: int
    ddl: bool
    tables: tuple[str, ...]
    ranges: tuple[Range, ...]
    first: Place
    last: Place
    table_bits: Mapping[str, int] = field(default_factory=dict)
    """The bit of each of ``tables`` in the table masks of the index."""
    file_created_s: int | None = None
    """When the source created the file that ``last_seq`` lies in, seconds since 1970; None where no bytes of the
    selection come from it."""


@dataclass(frozen=True)
class Behind:
    """What lies after a seq. The times of the oldest transaction, µs since 1970, are None where there is none."""

    transactions: int
    bytes: int
    oldest_commit_time_us: int | None
    oldest_store_time_us: int | None = None


@dataclass(frozen=True)
class Totals:
    """All that a store holds."""

    transactions: int
    bytes: int
