"""TIME as SELECT prints it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc.decode.conversion import Conversion
from cdc.decode.kernels.texts import measure_times, write_times


def time_text(digits: int) -> Conversion:
    """The conversion of a TIME with so many digits of the fraction: microseconds (``int64``) to ``string``."""

    def convert(raw: pa.Array) -> pa.Array:
        us = np.ascontiguousarray(raw.fill_null(0).to_numpy(zero_copy_only=False))
        valid = np.ones(len(raw), dtype=np.uint8)
        if raw.null_count:
            valid = raw.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False)
        offsets = np.empty(len(raw) + 1, dtype=np.int32)
        text = np.empty(int(measure_times(us, valid, digits, offsets)), dtype=np.uint8)
        write_times(us, valid, digits, offsets, text)
        validity = raw.is_valid() if raw.null_count else None
        buffers = [None if validity is None else validity.buffers()[1], pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(raw), buffers)

    return convert
