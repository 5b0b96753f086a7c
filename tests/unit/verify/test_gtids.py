"""Sets of GTIDs: parsed, made from index entries, and subtracted."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.binlog.entry import ENTRY, Entries, EntryFlag
from cdc.errors import DamagedError
from cdc.verify.gtids import GtidSet, parse_mariadb

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def entries(*found: tuple[str, int, int], tag: str = "", flags: int = 0) -> Entries:
    """Entries by UUID, last number and count."""
    made = np.zeros(len(found), dtype=ENTRY)
    for i, (source, number, count) in enumerate(found):
        made[i]["gtid_source"] = np.void(uuid.UUID(source).bytes)
        made[i]["gtid_number"], made[i]["gtid_count"] = number, count
        made[i]["gtid_tag"], made[i]["flags"] = tag.encode(), flags
    return made


def test_mysqls_notation() -> None:
    found = GtidSet.parse(f"{A.upper()}:1-5:7,\n{B}:2:tag:1-3")
    assert dict(found.sources()) == {A: [(1, 5), (7, 7)], B: [(2, 2)], f"{B}:tag": [(1, 3)]}
    assert (found.count, found.first(A), found.last(A), found.first("x")) == (10, 1, 7, None)
    assert not GtidSet.parse("")
    with pytest.raises(DamagedError):
        GtidSet.parse("nonsense")


def test_entries_with_counts_tags_and_without_gtids() -> None:
    made = [
        entries((A, 3, 3), (A, 4, 1), (B, 9, 2)),
        entries((A, 7, 1)),
        entries((A, 5, 1), tag="t"),
        entries((A, 0, 0)),
    ]
    assert dict(GtidSet.of_entries(made).sources()) == {A: [(1, 4), (7, 7)], B: [(8, 9)], f"{A}:t": [(5, 5)]}


def test_mariadbs_entries_are_named_by_domain_and_server() -> None:
    made = np.zeros(1, dtype=ENTRY)
    made["gtid_source"] = np.void((7).to_bytes(4, "little") + (42).to_bytes(4, "little") + bytes(8))
    made["gtid_number"], made["gtid_count"], made["flags"] = 12, 3, int(EntryFlag.GTID_MARIADB)
    assert dict(GtidSet.of_entries([made]).sources()) == {"7-42": [(10, 12)]}
    assert parse_mariadb("0-1-5,0-2-9") == {"0-1": 5, "0-2": 9}


def test_entries_outside_of_a_set() -> None:
    known = GtidSet.parse(f"{A}:1-5:7")
    found = known.outside(entries((A, 3, 3), (A, 6, 1), (A, 7, 2), (A, 7, 1), (B, 1, 1), (A, 0, 0)))
    assert found.tolist() == [False, True, True, False, True, False]


numbers = st.sets(st.integers(1, 40))


@given(numbers, numbers)
def test_difference_and_union_are_those_of_sets(one: set[int], other: set[int]) -> None:
    def made(found: set[int]) -> GtidSet:
        return GtidSet({A: [(n, n) for n in found]})

    def members(found: GtidSet) -> set[int]:
        return {n for _, parts in found.sources() for first, last in parts for n in range(first, last + 1)}

    assert members(made(one) - made(other)) == one - other
    assert members(made(one) | made(other)) == one | other
