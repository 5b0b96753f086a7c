"""Decoded values as the texts that SELECT prints, for hashing them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def as_select_prints(values: pa.Array, digits: int = 0) -> pa.Array:
    """Single values without nulls as ``string``; ``binary`` stays as it is. ``digits``: of a timestamp's fraction.

    BIT is printed as a number and TIMESTAMP in UTC. A FLOAT has as many digits as it takes to tell it from its
    neighbours; servers print six.
    """
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return values
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8()).cast(pa.string())
    if pa.types.is_decimal(kind):
        return pa.array([format(value, "f") for value in values.to_pylist()], pa.string())
    if pa.types.is_floating(kind):
        return pa.array([_float_text(value) for value in values.to_numpy(zero_copy_only=False)], pa.string())
    if pa.types.is_timestamp(kind):
        full = values.cast(pa.timestamp("us")).cast(pa.string())  # 2024-02-29 12:34:56.789000
        return pc.utf8_slice_codeunits(full, start=0, stop=19 + (digits + 1 if digits else 0))
    return values.cast(pa.string())


def _float_text(value: np.floating) -> str:
    """The shortest text that is read as the same number, with an exponent only where servers print one."""
    size = abs(value)
    if size == 0 or 1e-15 <= size < 1e15:
        return np.format_float_positional(value, trim="-")
    mantissa, _, exponent = np.format_float_scientific(value, trim="-").partition("e")
    return f"{mantissa}e{int(exponent)}"
