"""The second step of decoding, for types whose bytes the kernels only copy: what it takes, gives and raises."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

Conversion = Callable[[pa.Array], pa.Array]
"""From a column's raw values (mostly ``binary``, each with the bytes of the row image, nulls as nulls) to an array of
the same length in the column's final type; raises :class:`BadValueError`."""


class BadValueError(Exception):
    """A value whose bytes mean nothing that a server writes: its row in the array, and why. ``zero_date``: it is sound,
    but a zero or impossible date, where these are not to become null. ``lost_bytes``: it is a key's text, and some of
    its bytes mean nothing."""

    def __init__(self, row: int, why: str, *, zero_date: bool = False, lost_bytes: bool = False) -> None:
        super().__init__(f"row {row}: {why}")
        self.row = row
        self.why = why
        self.zero_date = zero_date
        self.lost_bytes = lost_bytes


def by_distinct(raw: pa.Array, one: Callable[[bytes], object], kind: pa.DataType) -> pa.Array:
    """A conversion of each distinct value once, for what has no kernel; nulls stay nulls. Raises BadValueError with the
    first row whose value ``one`` refuses by a ValueError, which says why."""
    encoded = pc.dictionary_encode(raw)
    found = []
    for number, value in enumerate(encoded.dictionary.to_pylist()):
        try:
            found.append(one(value))
        except ValueError as error:
            row = pc.index(encoded.indices, pa.scalar(number, encoded.indices.type)).as_py()
            raise BadValueError(row, str(error)) from None
    return pa.array(found, kind).take(encoded.indices)
