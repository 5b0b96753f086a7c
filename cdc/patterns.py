"""Regular expressions over ``db.table``, as people bring them along."""

from __future__ import annotations

import re

# What may hold a comma of its own: an escape, a set of characters, a counted repetition.
_OWN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d*,\d*\}", re.DOTALL)


def is_list(pattern: str) -> bool:
    r"""Is it a list with commas, as Canal writes several expressions (``shop\..*,crm\..*``)? As one expression it would
    match no table, and nobody would be told. A comma that belongs to a name is written ``\,``."""
    return "," in _OWN.sub("", pattern)
