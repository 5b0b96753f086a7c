"""VECTOR: bytes to lists of floats, without copying them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc.decode.conversion import BadValueError

_SIZE = 4


def vector_floats(raw: pa.Array) -> pa.Array:
    """Little-endian IEEE floats (``binary``) to ``list<float>``. Raises BadValueError for a part of one."""
    _, offset_buffer, data = raw.buffers()
    if len(raw) == 0 or data is None:
        return pa.array([None] * len(raw), pa.list_(pa.float32())) if len(raw) == raw.null_count else _empty(raw)
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[raw.offset : raw.offset + len(raw) + 1]
    relative = offsets - offsets[0]
    torn = np.flatnonzero(relative % _SIZE)
    if len(torn):
        raise BadValueError(int(torn[0]) - 1, "a VECTOR's length is no multiple of four bytes")
    bytes_ = data.slice(int(offsets[0]), int(relative[-1]))
    values = pa.Array.from_buffers(pa.float32(), int(relative[-1]) // _SIZE, [None, bytes_])
    return pa.ListArray.from_arrays(
        pa.array(relative // _SIZE, pa.int32()), values, mask=raw.is_null() if raw.null_count else None
    )


def _empty(raw: pa.Array) -> pa.Array:
    return pa.array([[] if valid else None for valid in raw.is_valid().to_pylist()], pa.list_(pa.float32()))
