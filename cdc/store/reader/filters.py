"""A subscriber's own choice of tables: a regular expression over ``db.table``, matched whole.

Canal's subscriptions bring such a filter; it is kept in the meta, and honoured where transactions are selected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cdc.binlog.entry import Entries, EntryFlag
from cdc.errors import UsageError
from cdc.patterns import is_list


class TableFilter:
    """Which tables a subscriber wants. Raises UsageError for what is no regular expression, for an empty one, and
    for several joined by commas, as Canal's filters are."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise UsageError(
                f"the filter {pattern!r} is not a regular expression: {error}",
                remedy=r"Write one over db.table, like shop\.(orders|items); flags as (?i:shop)\..*",
            ) from None
        if not pattern.strip():
            raise UsageError(
                f"the filter {pattern!r} is empty: it would match no table", remedy="Leave it out to get all tables."
            )
        if is_list(pattern):
            raise UsageError(
                f"the filter {pattern!r} has a comma, which does not separate expressions here",
                remedy=r"Give each its own --filter, or join them with |; a comma in a table's name is written \,",
            )
        self.matches = lru_cache(maxsize=4096)(self._matches)

    def _matches(self, table: str) -> bool:
        return self._pattern.fullmatch(table) is not None

    def mask(self, names: Sequence[str]) -> int:
        """The bits of all matching tables; above 64 tables a bit may stand for others, too: a transaction too many is
        handed out then, never one too few."""
        mask = 0
        for number, name in enumerate(names):
            if self.matches(name):
                mask |= 1 << (number & 63)
        return mask

    def wanted(self, entries: Entries, names: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which entries are transactions with a table of ours. ``names`` must have been read after the entries: a
        table's name is durable before its first transaction is visible. A DDL that names no table is everybody's."""
        masks = entries["table_mask"]
        ddl = (entries["flags"] & int(EntryFlag.DDL)) != 0
        ours = ((masks & np.uint64(self.mask(names))) != 0) | (ddl & (masks == 0))
        found: npt.NDArray[np.bool_] = ours & (entries["length"] > 0)
        return found


def join_filters(patterns: Iterable[str]) -> str | None:
    """One filter of several, any of which may match; None for none. Raises UsageError."""
    given = [TableFilter(pattern).pattern for pattern in patterns]
    if not given:
        return None
    joined = given[0] if len(given) == 1 else "|".join(f"(?:{pattern})" for pattern in given)
    return TableFilter(joined).pattern
