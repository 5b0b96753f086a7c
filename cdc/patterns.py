"""Regular expressions over ``db.table``: for one name, and checks of what users write."""

from __future__ import annotations

import re

# The parts that may hold a comma: an escape, a set of characters, a counted repetition.
_MAY_HOLD_COMMA = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,\d*\}", re.DOTALL)


def is_list(pattern: str) -> bool:
    r"""Whether a pattern is a comma-separated list, as in Canal's filters (``shop\..*,crm\..*``).

    Callers refuse it, because as one expression it would match no table. A comma in a name is written ``\,``."""
    return "," in _MAY_HOLD_COMMA.sub("", pattern)


def exact(name: str) -> str:
    """Returns an expression that matches only this ``db.table``."""
    return re.escape(name).replace(",", r"\,")


def exclusion(name: str) -> str:
    """Returns the key of the configuration that excludes only this table, as a remedy names it."""
    return "tables.exclude: ['" + exact(name).replace("'", "''") + "']"
