"""Moving bytes inside compiled kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from cdc.binlog.jit import njit


@intrinsic
def _memcpy(typingctx: Any, dst: Any, dst_at: Any, src: Any, src_at: Any, n: Any) -> Any:
    signature = types.void(dst, types.int64, src, types.int64, types.int64)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target = context.make_array(sig.args[0])(context, builder, args[0]).data
        source = context.make_array(sig.args[2])(context, builder, args[2]).data
        cgutils.raw_memcpy(builder, builder.gep(target, [args[1]]), builder.gep(source, [args[3]]), args[4], 1)
        return context.get_dummy_value()

    return signature, codegen


@njit
def copy_bytes(dst: npt.NDArray[np.uint8], dst_at: int, src: npt.NDArray[np.uint8], src_at: int, n: int) -> None:
    """``dst[dst_at:dst_at+n] = src[src_at:src_at+n]`` for arrays that do not overlap; the bounds are checked first,
    and a copy that would leave either array raises IndexError instead."""
    if n < 0 or dst_at < 0 or src_at < 0 or dst_at + n > dst.shape[0] or src_at + n > src.shape[0]:
        raise IndexError("copy outside of an array")
    _memcpy(dst, np.int64(dst_at), src, np.int64(src_at), np.int64(n))


@njit
def load_u(buf: npt.NDArray[np.uint8], at: int, n: int) -> int:
    """The unsigned little-endian integer of ``n`` (≤ 7) bytes at ``at``."""
    value = np.int64(0)
    for k in range(n):
        value |= np.int64(buf[at + k]) << np.int64(8 * k)
    return value


@njit
def store_u32(buf: npt.NDArray[np.uint8], at: int, value: int) -> None:
    """Write a little-endian 32-bit integer."""
    for k in range(4):
        buf[at + k] = np.uint8(value >> (8 * k) & 0xFF)
