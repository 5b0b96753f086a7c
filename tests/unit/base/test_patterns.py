"""The names of tables in lower case, and the expressions that match them."""

from __future__ import annotations

import pickle
import re
import time

import pytest

from cdc.base.patterns import PatternError, TablePattern, exact, lower_name


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        ("Shop.ORDERS", "shop.orders"),
        ("ÄÖÜ", "äöü"),
        ("İI", "ii"),  # one letter for one
        ("ΣΑΣ", "σας"[:2] + "σ"),  # no final form
        ("ẞß", "ẞß"),  # newer than the servers' letters
        ("ȠԀ", "ȠԀ"),
    ],
)
def test_a_name_is_in_lower_case_as_servers_write_it(name: str, lower: str) -> None:
    assert lower_name(name) == lower


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(", "missing )"),
        (r"(a)\1", "invalid escape sequence"),
        (r"shop\.(?!tmp_).*", "it has no lookarounds; `tables.exclude` leaves tables out"),
        (r"shop\.a{,2}", "write {0,n} for {,n}"),
        ("(a{900}){900}", "invalid repetition size"),
        ("\ud800", "has characters that no name has"),
    ],
)
def test_what_is_no_expression_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(PatternError, match=re.escape(reason)):
        TablePattern(expression)


@pytest.mark.parametrize("expression", ["((.+)+)+!", r"(\w|\w\w)" * 28 + "!", "(a|a)*b", "(.*)*x" * 20])
def test_no_expression_takes_long(expression: str) -> None:
    pattern, began = TablePattern(expression), time.monotonic()
    assert not pattern.matches("a" * 129)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "name", ["shop.orders", "größe.straße", "a b.c,d", "x.-[]{}()*+?.\\^$|#&~'\"`", "a.b\nc", "d.😀"]
)
def test_an_expression_for_one_name_matches_it_alone(name: str) -> None:
    pattern = pickle.loads(pickle.dumps(TablePattern(exact(name))))
    assert pattern.matches(name)
    assert not pattern.matches(name + "x")
    assert TablePattern(".*").matches(name)
    assert not pattern.matches(name.upper())
    assert TablePattern(exact(name.lower()), ignores_case=True).matches(name.upper().replace("SS", "ß"))


def test_a_second_look_at_many_tables_asks_no_expression_again() -> None:
    pattern, names = TablePattern(r"shop\..*"), [f"shop.t{number}" for number in range(20_000)]
    assert all(map(pattern.matches, names))
    misses = pattern.matches.cache_info().misses
    assert all(map(pattern.matches, names))
    assert pattern.matches.cache_info().misses == misses
