"""Texts that are UTF-8 already, but for bytes that some servers let in."""

from __future__ import annotations

import re

import pyarrow as pa

_STRAY = re.compile("[\udc80-\udcff]")


def sound_utf8(array: pa.Array) -> pa.Array:
    """A ``string`` array of copied bytes: the same, or with ``?`` for each byte that is part of no character.

    MySQL 5.6 and MariaDB store halves of surrogate pairs in utf8mb3 and utf8mb4 and send them as they are, which is not
    UTF-8; what reads the array next relies on it. They become what the servers show for bytes without a meaning.
    """
    try:
        array.validate(full=True)
        return array
    except pa.ArrowInvalid:
        return utf8_text(array.cast(pa.binary()))


def utf8_text(raw: pa.Array) -> pa.Array:
    """The same for ``binary``: a conversion."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else _mended(value) for value in raw.to_pylist()]
        return pa.array(texts, pa.string())


def _mended(value: bytes) -> str:
    return _STRAY.sub("?", value.decode("utf-8", "surrogateescape"))
