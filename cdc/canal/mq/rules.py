"""Chooses the topic and the partition of a table's messages, by Canal's expressions.

``dynamic_topics`` is what Canal calls ``canal.mq.dynamicTopic``, ``partition_hash`` its ``canal.mq.partitionHash``.
Both are read as Canal 1.1 reads them, so that the partitions stay those that Canal has chosen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from cdc.base.errors import ConfigError, PermanentError
from cdc.base.patterns import PatternError, TablePattern

_WILDCARDS = frozenset("*?+|(){}[]\\$^")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
PRIMARY_KEY = "$pk$"


@dataclass(frozen=True)
class Hashing:
    """The way in which a table's rows are spread: by the table's name, its primary key, or columns."""

    by_table: bool = False
    by_key: bool = False
    columns: tuple[str, ...] = ()
    """In lower case."""


@dataclass(frozen=True)
class _TopicRule:
    topic: str | None
    """None: the name that matched."""
    matches: Callable[[str], bool]


@dataclass(frozen=True)
class Rules:
    """The rules of one configuration. Raises ConfigError at the first use if an expression cannot be read."""

    topic: str
    dynamic_topics: str | None = None
    partition: int = 0
    partitions: int | None = None
    partition_hash: str | None = None
    database_hash: bool = True

    def topic_of(self, database: str, table: str) -> str:
        """Returns the topic of a table's messages: by the first expression that matches ``database.table``, else by the
        first one that matches ``database``, else the fixed one. Raises PermanentError if Kafka has no such names."""
        matched = None
        if database and table:
            matched = self._matched(f"{database}.{table}") or self._matched(database)
            if matched is not None:
                matched = matched.replace(".", "_")
        topic = self.topic if matched is None else matched
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise PermanentError(
                f"{topic!r} cannot be the name of a topic: Kafka allows letters, digits, '.', '_' and '-'",
                place=f"table {database}.{table}",
                remedy="Name a topic for it, as mq.dynamic_topics: 'name:database\\.table'.",
            )
        return topic

    def hashing_of(self, database: str, table: str) -> Hashing | None:
        """Returns how a table's rows are spread; None if no expression matches."""
        name = f"{database}.{table}"
        return next((hashing for matches, hashing in self._hash_rules if matches(name)), None)

    def _matched(self, name: str) -> str | None:
        for rule in self._topic_rules:
            if rule.matches(name):
                return name.lower() if rule.topic is None else rule.topic
        return None

    @cached_property
    def _topic_rules(self) -> tuple[_TopicRule, ...]:
        topic_rules = []
        for item in _items(self.dynamic_topics):
            topic, colon, expression = item.partition(":")
            if not colon:
                topic, expression = "", item
            elif not _TOPIC.fullmatch(topic.strip().replace(".", "_")):
                raise _wrong("dynamic_topics", item, f"{topic.strip()!r} cannot be the name of a topic")
            topic_rules.append(_TopicRule(topic.strip() or None, _topic_matcher(expression.strip(), item)))
        return tuple(topic_rules)

    @cached_property
    def _hash_rules(self) -> tuple[tuple[Callable[[str], bool], Hashing], ...]:
        hash_rules = []
        for item in _items(self.partition_hash):
            expression, colon, columns = item.rpartition(":")
            if not colon or not expression:
                hashing = Hashing(by_table=True)
                expression = item
            elif columns.lower() == PRIMARY_KEY:
                hashing = Hashing(by_key=True)
            else:
                names = tuple(name.lower() for name in columns.split("^") if name)
                if not names:
                    raise _wrong("partition_hash", item, "no column follows the colon")
                hashing = Hashing(columns=names)
            hash_rules.append((_matcher(expression, "partition_hash", item), hashing))
        return tuple(hash_rules)

    def check(self) -> None:
        """Reads all expressions. Raises ConfigError."""
        for rules in (self._topic_rules, self._hash_rules):
            tuple(rules)


def java_hash(text: str) -> int:
    """``String.hashCode()``: over the units of UTF-16, as a signed number of 32 bits."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        value = value * 31 + int.from_bytes(raw[at : at + 2], "big") & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _items(expressions: str | None) -> list[str]:
    return [item for item in re.split("[,;]", expressions or "") if item.strip()]


def _topic_matcher(expression: str, item: str) -> Callable[[str], bool]:
    """An expression with an escaped point is for ``database.table``, any other with signs of regular expressions for
    ``database``."""
    matches = _matcher(expression, "dynamic_topics", item)
    if not _WILDCARDS & set(expression):
        return matches
    of_tables = "\\." in expression
    return lambda name: ("." in name) == of_tables and matches(name)


def _matcher(expression: str, key: str, item: str) -> Callable[[str], bool]:
    """A name without signs of regular expressions is compared, regardless of case."""
    if not _WILDCARDS & set(expression):
        return lambda name: name.lower() == expression.lower()
    try:
        return TablePattern(expression, ignores_case=True).matches
    except PatternError as error:
        raise _wrong(key, item, str(error)) from None


def _wrong(key: str, item: str, why: str) -> ConfigError:
    return ConfigError(f"{item!r}: {why}", place=f"mq.{key}", remedy="See docs/how-to/kafka.md for the expressions.")
