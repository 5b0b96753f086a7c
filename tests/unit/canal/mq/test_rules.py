"""Topics and partitions by Canal's expressions."""

from __future__ import annotations

import pytest

from cdc.base.errors import ConfigError, PermanentError
from cdc.canal.mq.rules import Hashing, Rules, java_hash


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("1234", 1509442),
        ("polygenelubricants", -(1 << 31)),
        ("ö😀", 246 * 961 + 55357 * 31 + 56832),
    ],
)
def test_the_hash_is_that_of_java(text: str, code: int) -> None:
    assert java_hash(text) == code


@pytest.mark.parametrize(
    ("dynamic", "topic"),
    [
        (None, "rest"),
        (r"test\.test", "rest"),
        (r"shop\.orders", "shop_orders"),
        (r"SHOP\.Orders", "shop_orders"),
        ("shop.orders", "shop_orders"),  # no sign of a regular expression: the name itself
        (r".*\..*", "shop_orders"),
        ("shop", "shop"),
        (".*", "shop"),  # without an escaped point: the database
        (r"other,all:.*\..*", "all"),
        (r"first:shop\..*,second:shop\.orders", "first"),
        (r"shop;all:shop\..*", "all"),  # expressions over tables come before those over databases
        (r"a.b:shop\.orders", "a_b"),
    ],
)
def test_a_table_has_the_topic_of_the_first_expression_that_matches(dynamic: str | None, topic: str) -> None:
    assert Rules("rest", dynamic).topic_of("Shop" if dynamic == "x" else "shop", "orders") == topic


def test_what_has_no_table_goes_to_the_fixed_topic() -> None:
    assert Rules("rest", r".*\..*,.*").topic_of("shop", "") == "rest"


def test_a_name_that_kafka_does_not_have_is_refused() -> None:
    with pytest.raises(PermanentError, match=r"'shop_straße' cannot be.*table shop\.straße|table shop\.straße.*'shop_"):
        Rules("rest", r".*\..*").topic_of("shop", "straße")
    assert Rules("rest", r"street:shop\.straße,.*\..*").topic_of("shop", "straße") == "street"


@pytest.mark.parametrize(
    ("expression", "hashing"),
    [
        (r".*\..*:$pk$", Hashing(by_key=True)),
        (r".*\..*:$PK$", Hashing(by_key=True)),
        ("shop.orders:Id^name", Hashing(columns=("id", "name"))),
        (r"shop\..*", Hashing(by_table=True)),
        (r"shop\.items:$pk$,shop\..*", Hashing(by_table=True)),
        (r"shop\.orders:a;.*\..*:$pk$", Hashing(columns=("a",))),
        ("shop", None),
        (r"other\..*:$pk$", None),
    ],
)
def test_rows_are_spread_by_the_first_expression_that_matches(expression: str, hashing: Hashing | None) -> None:
    assert Rules("rest", partition_hash=expression, partitions=3).hashing_of("shop", "orders") == hashing


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (Rules("rest", "(:shop"), "cannot be the name of a topic"),
        (Rules("rest", r"a:shop\.(("), "not a regular expression"),
        (Rules("rest", partition_hash=r"shop\.((:$pk$"), "not a regular expression"),
        (Rules("rest", partition_hash="shop.orders:"), "no column follows"),
    ],
)
def test_wrong_expressions_are_refused(rules: Rules, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        rules.check()
    assert "mq." in str(caught.value)
