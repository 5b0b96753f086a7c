"""MySQL's sets of GTIDs and MariaDB's positions: their texts, and their arithmetic held against sets of single numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.base.errors import DamagedError
from cdc.binlog.gtids import GtidSet, MariadbGtid, MariadbPosition

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"

# --- MySQL

Members = set[tuple[str, int]]
members = st.sets(st.tuples(st.sampled_from([A, B, f"{A}:tag", f"{B}:a_1"]), st.integers(1, 30)))


def made(pairs: Members) -> GtidSet:
    return GtidSet({name: [(n, n) for other, n in pairs if other == name] for name, _ in pairs})


def members_of(gtid_set: GtidSet) -> Members:
    return {(name, n) for name, parts in gtid_set.sources() for first, last in parts for n in range(first, last + 1)}


@given(members, members)
def test_the_arithmetic_is_that_of_sets(pairs: Members, other: Members) -> None:
    a, b = made(pairs), made(other)
    assert members_of(a | b) == pairs | other
    assert members_of(a & b) == pairs & other
    assert members_of(a - b) == pairs - other
    assert (a <= b) == (pairs <= other)
    assert (a == b) == (pairs == other)
    assert bool(a) == bool(pairs) and a.count == len(pairs)
    assert all((f"{name}:{n}" in a) == ((name, n) in pairs) for name in (A, f"{A}:tag") for n in range(1, 32))
    if a == b:
        assert hash(a) == hash(b)


@given(members)
def test_intervals_are_sorted_and_touch_nowhere(pairs: Members) -> None:
    for _, parts in made(pairs).sources():
        assert all(first <= last for first, last in parts)
        assert all(before[1] + 1 < after[0] for before, after in pairwise(parts))


@given(members)
def test_a_printed_set_is_read_as_the_same(pairs: Members) -> None:
    a = made(pairs)
    assert GtidSet.parse(str(a)) == a
    assert repr(a) == f"GtidSet.parse('{a}')"


def test_mysqls_notation() -> None:
    gtid_set = GtidSet.parse(f"{A.upper()}:1-5:7,\n{B}:2:tag:1-3")
    assert dict(gtid_set.sources()) == {A: ((1, 5), (7, 7)), B: ((2, 2),), f"{B}:tag": ((1, 3),)}
    assert str(gtid_set) == f"{A}:1-5:7,{B}:2:tag:1-3"
    assert (gtid_set.count, gtid_set.first(A), gtid_set.last(A), gtid_set.first("x")) == (10, 1, 7, None)
    assert not GtidSet.parse(" ") and str(GtidSet()) == ""


def test_a_long_set_is_cut_in_messages() -> None:
    gtid_set = GtidSet.parse(f"{A}:1:3:5:7:9-10:12:14")
    assert gtid_set.shown() == f"{A}:1, {A}:3, {A}:5, {A}:7, {A}:9-10 and 2 more intervals"


@pytest.mark.parametrize(
    "text",
    ["nonsense", A, f"{A}:", f"{A}:0", f"{A}:5-1", f"{A}:1-", f"{A}:tag", f"{A}:1:9tag:2", f"{A}:1:tag", "0-1-5",
     f"{A}:1:{'x' * 33}:1", f"{A[:-1]}:1", f"{A}:1-{1 << 63}"],
)  # fmt: skip
def test_a_text_that_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(DamagedError):
        GtidSet.parse(text)


# --- MariaDB

Last = dict[int, int]
positions = st.dictionaries(st.integers(0, 3), st.integers(1, 20))


def position(last: Last) -> MariadbPosition:
    return MariadbPosition(MariadbGtid(domain, 1, number) for domain, number in last.items())


def numbers(last: Last) -> set[tuple[int, int]]:
    return {(domain, n) for domain, number in last.items() for n in range(1, number + 1)}


@given(positions, positions)
def test_the_arithmetic_is_that_of_the_numbers_of_each_domain(last_numbers: Last, other: Last) -> None:
    a, b = position(last_numbers), position(other)
    mine, theirs = numbers(last_numbers), numbers(other)
    assert numbers({g.domain: g.number for g in a | b}) == mine | theirs
    assert numbers({g.domain: g.number for g in a & b}) == mine & theirs
    assert {(int(name), n) for name, n in members_of(a - b)} == mine - theirs
    assert (a <= b) == (mine <= theirs) and (a == b) == (mine == theirs)
    assert all((MariadbGtid(d, 9, n) in a) == ((d, n) in mine) for d in range(4) for n in range(1, 22))
    assert MariadbPosition.parse(str(a)) == a
    assert bool(a) == bool(last_numbers)


def test_mariadbs_notation() -> None:
    position = MariadbPosition.parse(" 1-2-5, 0-1-77")
    assert str(position) == "0-1-77,1-2-5" and position.last(1) == MariadbGtid(1, 2, 5) and position.last(7) is None
    assert str(MariadbPosition.of_state([MariadbGtid(0, 1, 5), MariadbGtid(0, 2, 9), MariadbGtid(0, 1, 7)])) == "0-2-9"
    with pytest.raises(DamagedError, match="0-1-5 and 0-2-9 have the same domain"):
        MariadbPosition.parse("0-1-5,0-2-9")
    for text in ("0-1", "a-b-c", "0-1-2-3", f"{A}:1"):
        with pytest.raises(DamagedError):
            MariadbPosition.parse(text)
