"""Canal's filter expressions: regular expressions over ``schema.table``, separated by commas, that match whole names
regardless of case."""

from __future__ import annotations

import re
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from cdc.errors import UsageError

MOST_CHARACTERS = 4096
_MOST_REPEATS = 4
_EVERYTHING = (r".*\..*", ".*", r".*\\..*")
"""Filters of all tables; clients send the last one when its backslash was doubled once too often."""


def table_pattern(expression: str) -> str | None:
    """Returns the regular expression that a subscription keeps; None for all tables. Raises UsageError.

    An expression that could take for ever to match is refused, because any client may send one.
    """
    if len(expression) > MOST_CHARACTERS:
        raise UsageError(f"the filter has more than {MOST_CHARACTERS} characters")
    parts = [part.strip() for part in expression.split(",")]
    parts = [part for part in parts if part]
    if not parts or any(part in _EVERYTHING for part in parts):
        return None
    for part in parts:
        try:
            parsed = _parser.parse(part)
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(
                f"the filter {part!r} is not a regular expression: {error}",
                remedy=r"Write one over schema.table, like shop\..* or shop\.(orders|items).",
            ) from None
        if _repeats(parsed) > _MOST_REPEATS or parsed.state.groupdict or _has(parsed, "GROUPREF"):
            raise UsageError(
                f"the filter {part!r} could take too long to match",
                remedy=f"Use at most {_MOST_REPEATS} of * and + in an expression, none inside another, and no "
                "references to groups.",
            )
    joined = "|".join(f"(?:{part})" for part in parts)
    return f"(?i:{joined})"


def _repeats(parsed: Any, inside: bool = False) -> int:
    """Counts unbounded repetitions; one inside another counts as too many."""
    found = 0
    for code, value in parsed:
        name = str(code)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            is_long = int(value[1]) > 16
            if is_long and inside:
                return _MOST_REPEATS + 1
            found += int(is_long) + _repeats(value[2], inside or is_long)
        else:
            found += sum(_repeats(one, inside) for one in _children(value))
    return found


def _has(parsed: Any, name: str) -> bool:
    return any(str(code).startswith(name) or any(_has(one, name) for one in _children(value)) for code, value in parsed)


def _children(value: Any) -> list[Any]:
    if isinstance(value, _parser.SubPattern):
        return [value]
    if isinstance(value, tuple | list):
        return [one for part in value for one in _children(part)]
    return []
