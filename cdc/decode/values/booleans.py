"""TINYINT(1) and BIT(1) as boolean, where a user wants them so."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def boolean(raw: pa.Array) -> pa.Array:
    """Integers to ``bool``: everything but zero is true, as in MySQL's own conditions."""
    return pc.not_equal(raw, pa.scalar(0, raw.type))
