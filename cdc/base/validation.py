"""Describes what pydantic finds wrong with documents and messages. The configuration has messages of its own
(:mod:`cdc.config.messages`)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


def suggestion(word: str, known_words: Iterable[str]) -> str:
    """Returns ``did you mean …?`` with the known word that is most like this one; an empty text if none is."""
    nearest = _nearest(word, known_words)
    return "" if nearest is None else f"did you mean {nearest}?"


def _nearest(word: str, known_words: Iterable[str]) -> str | None:
    words = {known_word.lower(): known_word for known_word in known_words}
    nearest = get_close_matches(word.lower(), words, n=1, cutoff=0.7)
    return words[nearest[0]] if nearest else None


def there_is(table: str, tables: Iterable[str]) -> str | None:
    """Returns the remedy for a ``db.table`` that does not exist: the one that was perhaps meant, else the first of
    those that do; None if there is none."""
    names = sorted(tables)
    db, _, name = table.partition(".")
    nearest = _nearest(name, [existing.partition(".")[2] for existing in names if existing.startswith(f"{db}.")])
    if nearest is not None:
        return f"Did you mean {db}.{nearest}?"
    elsewhere = _nearest(db, [existing.partition(".")[0] for existing in names if existing.endswith(f".{name}")])
    if elsewhere is not None:
        return f"Did you mean {elsewhere}.{name}?"
    return f"There is {', '.join(names[:20])}{', …' if len(names) > 20 else ''}." if names else None


def first_fault(error: ValidationError, *, within: str = "", whole: str = "") -> str:
    """Returns the first fault as ``path.of.keys: sentence``, without the input, which may be a secret.

    ``within`` begins the path. ``whole`` names the document if the fault is in no key of it.
    """
    fault = error.errors(include_input=False, include_url=False)[0]
    path = ".".join(str(step) for step in (*filter(None, [within]), *fault["loc"])) or whole
    message = fault["msg"].removeprefix("Value error, ")
    text = message[:1].lower() + message[1:]
    return f"{path}: {text}" if path else text
