"""Compiled functions that read, compare and move bytes, shared by all other kernels.

Numbers are little-endian unless the function says otherwise. The caller has checked that the bytes lie inside the
array, except for :func:`copy_bytes`, which checks it itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import inlined, intrinsic, njit

Bytes = npt.NDArray[np.uint8]


@intrinsic
def _memcpy() -> Any:
    from numba import extending, types
    from numba.core import cgutils

    @extending.intrinsic
    def memcpy(typingctx: Any, dst: Any, dst_at: Any, src: Any, src_at: Any, n: Any) -> Any:
        signature = types.void(dst, types.int64, src, types.int64, types.int64)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            target = context.make_array(sig.args[0])(context, builder, args[0]).data
            source = context.make_array(sig.args[2])(context, builder, args[2]).data
            cgutils.raw_memcpy(builder, builder.gep(target, [args[1]]), builder.gep(source, [args[3]]), args[4], 1)
            return context.get_dummy_value()

        return signature, codegen

    return memcpy


@njit
def copy_bytes(dst: Bytes, dst_at: int, src: Bytes, src_at: int, n: int) -> None:
    """Copies ``src[src_at:src_at+n]`` to ``dst[dst_at:dst_at+n]``; the two arrays must not overlap. Raises IndexError
    for a copy that would leave either array."""
    if n < 0 or dst_at < 0 or src_at < 0 or dst_at + n > dst.shape[0] or src_at + n > src.shape[0]:
        raise IndexError("copy outside of an array")
    _memcpy(dst, np.int64(dst_at), src, np.int64(src_at), np.int64(n))


@intrinsic
def _memmove() -> Any:
    from numba import extending, types
    from numba.core import cgutils

    @extending.intrinsic
    def memmove(typingctx: Any, buf: Any, to: Any, at: Any, n: Any) -> Any:
        signature = types.void(buf, types.int64, types.int64, types.int64)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            data = context.make_array(sig.args[0])(context, builder, args[0]).data
            cgutils.raw_memmove(builder, builder.gep(data, [args[1]]), builder.gep(data, [args[2]]), args[3], 1)
            return context.get_dummy_value()

        return signature, codegen

    return memmove


@njit
def move_bytes(buf: Bytes, to: int, at: int, n: int) -> None:
    """Moves ``buf[at:at+n]`` to ``buf[to:to+n]``; the two may overlap. Raises IndexError for a move that would leave
    the array."""
    if n < 0 or to < 0 or at < 0 or to + n > buf.shape[0] or at + n > buf.shape[0]:
        raise IndexError("move outside of an array")
    _memmove(buf, np.int64(to), np.int64(at), np.int64(n))


@njit
def load_u(buf: Bytes, at: int, n: int) -> int:
    """The unsigned integer of ``n`` (≤ 7) bytes at ``at``."""
    value = np.int64(0)
    for k in range(n):
        value |= np.int64(buf[at + k]) << np.int64(8 * k)
    return value


@njit
def store_u32(buf: Bytes, at: int, value: int) -> None:
    """Writes an integer of 4 bytes."""
    for k in range(4):
        buf[at + k] = np.uint8(value >> (8 * k) & 0xFF)


def word(text: bytes) -> Bytes:
    """Returns bytes as a constant of kernels, for :func:`put_word` and :func:`spells`."""
    return np.frombuffer(text, dtype=np.uint8)


@inlined
def put_word(out: Bytes, at: int, text: Bytes) -> int:
    """Writes a constant. Returns the offset behind it."""
    for i in range(text.shape[0]):
        out[at + i] = text[i]
    return at + text.shape[0]


@inlined
def spells(buf: Bytes, at: int, end: int, text: Bytes) -> bool:
    """Whether ``buf[at:end]`` is exactly this text."""
    return bool(end - at == text.shape[0] and equal_bytes(buf, at, text, 0, text.shape[0]))


@inlined
def equal_bytes(a: Bytes, at: int, b: Bytes, bt: int, size: int) -> bool:
    """Whether runs of two arrays are equal."""
    difference = np.uint8(0)
    for i in range(size):  # without an early end, so that it is compiled into wide instructions
        difference |= a[at + i] ^ b[bt + i]
    return bool(difference == 0)


@inlined
def u16(buf: Bytes, p: int) -> int:
    """The unsigned integer of 2 bytes at ``p``."""
    return np.int64(buf[p]) | np.int64(buf[p + 1]) << 8


@inlined
def u24(buf: Bytes, p: int) -> int:
    """The unsigned integer of 3 bytes at ``p``."""
    return np.int64(buf[p]) | np.int64(buf[p + 1]) << 8 | np.int64(buf[p + 2]) << 16


@inlined
def u32(buf: Bytes, p: int) -> int:
    """The unsigned integer of 4 bytes at ``p``."""
    return np.int64(buf[p]) | np.int64(buf[p + 1]) << 8 | np.int64(buf[p + 2]) << 16 | np.int64(buf[p + 3]) << 24


@inlined
def u48(buf: Bytes, p: int) -> int:
    """The unsigned integer of 6 bytes at ``p``."""
    return u32(buf, p) | u16(buf, p + 4) << 32


@inlined
def i64(buf: Bytes, p: int) -> int:
    """The signed integer of 8 bytes at ``p``."""
    return np.int64(u32(buf, p)) | np.int64(u32(buf, p + 4)) << np.int64(32)


@inlined
def big_endian(buf: Bytes, p: int, size: int) -> int:
    """The unsigned big-endian integer of ``size`` (≤ 7) bytes at ``p``."""
    value = np.int64(0)
    for i in range(size):
        value = value << 8 | np.int64(buf[p + i])
    return value


@inlined
def prefix_value(buf: Bytes, p: int, size: int) -> int:
    """The length in ``size`` (1 to 4) bytes at ``p``."""
    if size == 1:
        return np.int64(buf[p])
    if size == 2:
        return u16(buf, p)
    if size == 3:
        return u24(buf, p)
    return u32(buf, p)


@inlined
def value_bounds(buf: Bytes, p: int, end: int, width: int, prefix: int) -> tuple[int, int]:
    """The offset and the size of a column's value in a row image. Its size is ``width``; if that is 0, it is in the
    ``prefix`` bytes at ``p``, before the value. Returns -1 for a size that leads behind ``end``."""
    size = width
    if width == 0:
        if p + prefix > end:
            return p, -1
        size = prefix_value(buf, p, prefix)
        p += prefix
    return p, size if size <= end - p else -1


@inlined
def bit_is_set(buf: Bytes, at: int, number: int) -> bool:
    """Whether a bit is set in the bitmap at ``at``."""
    return bool(buf[at + (number >> 3)] >> (number & 7) & 1)


@inlined
def same_bytes(buf: Bytes, a: int, b: int, size: int) -> bool:
    """Whether two runs of ``size`` bytes are equal."""
    return equal_bytes(buf, a, buf, b, size)
