"""Texts of a key: no two of them may become one."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from cdc.decode.charsets.multi_byte import MULTI_BYTE
from cdc.decode.charsets.single_byte import SINGLE_BYTE, characters
from cdc.decode.charsets.text import UTF8, multi_units, wide_units
from cdc.decode.charsets.utf8 import utf8_text
from cdc.decode.conversion import BadValueError, Conversion

_QUESTION = "?"


def exact_text(charset: str, conversion: Conversion | None) -> Conversion:
    """The conversion of a character set, which raises BadValueError for a text with bytes that mean nothing in it: they
    become ``?``, so that two keys would be one. ``conversion``: None for UTF-8."""
    convert = utf8_text if conversion is None else conversion

    def exact(raw: pa.Array) -> pa.Array:
        texts = convert(raw)
        for row in pc.indices_nonzero(pc.match_substring(texts, _QUESTION).fill_null(False)).to_pylist():
            if has_meaningless(raw[row].as_py(), charset):
                raise BadValueError(row, "bytes that mean nothing", lost_bytes=True)
        return texts

    return exact


def has_meaningless(raw: bytes, charset: str) -> bool:
    """Whether some bytes of the text are part of no character of the character set."""
    if charset in UTF8:
        try:
            raw.decode()
        except UnicodeDecodeError:
            return True
        return False
    if charset in SINGLE_BYTE:
        table = characters(charset)
        return any(table[byte] == _QUESTION and byte != ord(_QUESTION) for byte in raw)
    if charset in MULTI_BYTE:
        return any(found == _QUESTION and unit != b"?" for found, unit in multi_units(raw, charset))
    return any(found == _QUESTION and unit.strip(b"\0") != b"?" for found, unit in wide_units(raw, charset))
