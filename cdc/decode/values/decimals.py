"""DECIMAL columns of more digits than Arrow's decimal128 has room for: as text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc.decode.arrow_text import TextBuffers, binary_parts
from cdc.decode.conversion import BadValueError, Conversion
from cdc.decode.kernels.decimal_text import decimal_texts


def decimal_text(precision: int, scale: int) -> Conversion:
    """A conversion from the packed bytes of a DECIMAL(precision, scale) to its text, exactly as SELECT prints it.

    ``precision`` at most 65, ``scale`` at most 38 (MariaDB's limit) and the precision. The conversion raises
    BadValueError for bytes that are no such decimal.
    """

    def convert(raw: pa.Array) -> pa.Array:
        parts = binary_parts(raw)
        nothing, no_offsets = np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int32)
        total, bad = decimal_texts(parts.data, parts.offsets, parts.nulls, precision, scale, nothing, no_offsets, False)
        if bad >= 0:
            raise BadValueError(bad, f"the bytes are no DECIMAL({precision},{scale})")
        texts = TextBuffers(parts, total)
        decimal_texts(parts.data, parts.offsets, parts.nulls, precision, scale, texts.data, texts.offsets, True)
        return texts.array()

    return convert
