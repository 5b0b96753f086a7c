"""Blocks of Markdown for the pages that benchmarks make."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable


def text(words: str, first: str = "", following: str = "") -> str:
    """Returns a paragraph in lines of at most 120 characters. ``first``, ``following``: the beginnings of its lines."""
    return "\n".join(
        textwrap.wrap(
            words,
            120,
            initial_indent=first,
            subsequent_indent=following,
            break_on_hyphens=False,
            break_long_words=False,
        )
    )


def bullets(*texts: str) -> str:
    """Returns a list with an item for each text."""
    return "\n".join(text(words, "- ", "  ") for words in texts)


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a table whose columns but the first are aligned to the right."""
    lines = [heads, ("---", *("---:" for _ in heads[1:])), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
