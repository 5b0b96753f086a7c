"""The names of tables, and regular expressions over ``db.table``: for one name, and checks of what users write."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

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


# --- names on servers that do not tell capitals from small letters

_KEPT = frozenset("ȠϘϴҊӅӉӍԀԂԄԆԈԊԌԎ")
"""Letters of Unicode 3.2 that servers do not know yet."""


@lru_cache(maxsize=8192)
def lower_name(name: str) -> str:
    """Returns the name of a database or table in lower case, as servers convert it with ``lower_case_table_names`` 1
    and 2: character by character, with the letters of Unicode 3.0. All servers from MySQL 5.6 to 9 and from MariaDB
    10.5 to 11.8 agree on it."""
    return name.lower() if name.isascii() else "".join(map(_lower_letter, name))


def _lower_letter(letter: str) -> str:
    if letter == "İ":
        return "i"
    lower = letter.lower()
    is_known = len(lower) == 1 and all(unicodedata.ucd_3_2_0.category(char) != "Cn" for char in letter + lower)
    return lower if is_known and letter not in _KEPT else letter
