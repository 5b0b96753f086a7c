"""Values as texts for people: on one line, cut to a length that fits, without characters that a terminal would obey."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from cdc.decode.jsonl import hexadecimal, plain_texts

LONGEST_VALUE = 60
"""Characters of a value, at most."""
_UNPRINTABLE = r"[^\p{L}\p{M}\p{N}\p{P}\p{S} ]"


def printable(text: str) -> str:
    """Returns a text with control characters escaped, which a terminal would obey."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def cut(text: str, most: int = LONGEST_VALUE) -> str:
    """Returns at most the first characters of a text, with an ellipsis if something is missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


def value_texts(values: pa.Array, most: int = LONGEST_VALUE) -> pa.StringArray:
    """Returns the values as texts of at most about ``most`` characters; null is ``NULL``. Bytes are hexadecimal."""
    kind = values.type
    if pa.types.is_string(kind):
        texts = _without_controls(_cut(values, most))
    elif pa.types.is_binary(kind):
        head = pc.binary_slice(values.fill_null(b""), 0, most // 2)
        texts = _cut(pc.binary_join_element_wise("0x", hexadecimal(head), ""), most)
        texts = pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.string()))
    else:
        texts = _cut(plain_texts(values), most)
    return texts.fill_null("NULL")


def _cut(texts: pa.StringArray, most: int) -> pa.StringArray:
    is_long = pc.greater(pc.utf8_length(texts), most)
    if not pc.any(is_long).as_py():
        return texts
    short = pc.binary_join_element_wise(pc.utf8_slice_codeunits(texts, 0, most - 1), "…", "")
    return pc.if_else(is_long, short, texts)


def _without_controls(texts: pa.StringArray) -> pa.StringArray:
    if not pc.any(pc.match_substring_regex(texts, _UNPRINTABLE)).as_py():
        return texts
    distinct = pc.dictionary_encode(texts)
    shown = [printable(text) for text in distinct.dictionary.to_pylist()]
    return pa.array(shown, pa.string()).take(distinct.indices)
