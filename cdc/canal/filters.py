"""Canal's filter expressions: regular expressions over ``schema.table``, separated by commas, that match whole names
regardless of case."""

from __future__ import annotations

from cdc.base.errors import UsageError
from cdc.base.patterns import PatternError, TablePattern

MOST_CHARACTERS = 4096
_EVERYTHING = (r".*\..*", ".*", r".*\\..*")
"""Filters of all tables; clients send the last one when its backslash was doubled once too often."""


def table_pattern(expression: str) -> str | None:
    """Returns the regular expression that a subscription keeps; None for all tables. Raises UsageError."""
    if len(expression) > MOST_CHARACTERS:
        raise UsageError(f"the filter has more than {MOST_CHARACTERS} characters")
    parts = [part.strip() for part in expression.split(",")]
    parts = [part for part in parts if part]
    if not parts or any(part in _EVERYTHING for part in parts):
        return None
    for part in parts:
        try:
            TablePattern(part)
        except PatternError as error:
            raise UsageError(
                f"the filter {error}", remedy=r"Write one over schema.table, like shop\..* or shop\.(orders|items)."
            ) from None
    joined = "|".join(f"(?:{part})" for part in parts)
    return f"(?i:{joined})"
