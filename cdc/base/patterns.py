"""The names of tables, and regular expressions over ``db.table``: for one name, and checks of what users write."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache, partial
from typing import Any

# The parts that may hold a comma: an escape, a set of characters, a counted repetition.
_MAY_HOLD_COMMA = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,\d*\}", re.DOTALL)


REFERENCE = re.compile(r"\\([1-9])")
"""A reference to a group of an expression, in a template."""
_COUNT_WITHOUT_LEAST = re.compile(r"(?<!\\)(?:\\\\)*\{,\d+\}")
_MOST_MEMORY_BYTES = 8 << 20
_MOST_NAMES = 1 << 16
"""Names whose result is remembered. With more tables than this, each look at all of them in turn would find none."""


class PatternError(ValueError):
    """An expression that is none, or one that takes too much memory."""


class TablePattern:
    """A regular expression of RE2, which matches whole names.

    Its time grows with the length of a name and never exponentially, so that an expression may come from anybody. RE2
    (https://github.com/google/re2/wiki/Syntax) has neither lookarounds nor references to groups, and its ``\\w`` and
    ``\\d`` are of ASCII.
    """

    def __init__(self, expression: str, *, ignores_case: bool = False) -> None:
        """Raises PatternError."""
        self.expression, self._ignores_case = expression, ignores_case
        self._compiled = _compile(expression, ignores_case)
        self.matches = lru_cache(maxsize=_MOST_NAMES)(self._matches)
        """Returns whether the expression matches the whole name. Calling RE2 takes ten times as long as a look here."""

    def _matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None

    @property
    def groups(self) -> int:
        """The number of groups in the expression."""
        return int(self._compiled.groups)

    def expanded(self, name: str, template: str) -> str | None:
        r"""Returns a template with what the groups match in place of ``\1`` to ``\9``; None if the expression does not
        match the whole name."""
        match = self._compiled.fullmatch(name)
        if match is None:
            return None
        return REFERENCE.sub(lambda reference: match.group(int(reference[1])) or "", template)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(TablePattern, self.expression, ignores_case=self._ignores_case), ()


@lru_cache(maxsize=1024)
def _compile(expression: str, ignores_case: bool) -> Any:
    """Returns the expression as RE2 has compiled it. Raises PatternError."""
    import re2

    # RE2 takes {,2} for these four characters, where Python and Java count.
    if _COUNT_WITHOUT_LEAST.search(expression):
        raise PatternError(f"{expression!r} has a count without its least number; write {{0,n}} for {{,n}}")
    options = re2.Options()
    options.log_errors, options.case_sensitive = False, not ignores_case
    options.dot_nl = True  # a name may hold a line end
    options.max_mem = _MOST_MEMORY_BYTES
    try:
        return re2.compile(expression, options)
    except re2.error as error:
        raise PatternError(f"{expression!r} is not a regular expression of RE2: {_reason(error)}") from None
    except UnicodeEncodeError:
        raise PatternError(f"{expression!r} has characters that no name has") from None


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    if text.startswith("invalid perl operator"):
        return f"{text} (it has no lookarounds; `tables.exclude` leaves tables out)"
    return text


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


@lru_cache(maxsize=_MOST_NAMES)
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
