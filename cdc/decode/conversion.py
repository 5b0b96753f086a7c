"""The second step of decoding, for types whose bytes the kernels only copy: what it takes, gives and raises."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

Conversion = Callable[[pa.Array], pa.Array]
"""From a column's raw values (mostly ``binary``, each with the bytes of the row image, nulls as nulls) to an array of
the same length in the column's final type; raises :class:`BadValueError`."""


class BadValueError(Exception):
    """A value whose bytes mean nothing that a server writes: its row in the array, and why. ``zero_date``: it is sound,
    but a zero or impossible date, where these are not to become null."""

    def __init__(self, row: int, why: str, *, zero_date: bool = False) -> None:
        super().__init__(f"row {row}: {why}")
        self.row = row
        self.why = why
        self.zero_date = zero_date
