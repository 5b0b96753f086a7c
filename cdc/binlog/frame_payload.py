"""Unpacks a compressed transaction that has arrived whole (TRANSACTION_PAYLOAD) from inside the framing kernel.

The zstd library is called by the address of its function, which Python puts into the state (``cdc.kernels.zstd``). A
Python call for each of them would cost twenty times as much as the rest of a small transaction. What is unusual or
damaged is left to ``cdc.binlog.payload``, which finds out what is wrong with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cdc.binlog.frame_state import FrameState
from cdc.kernels.jit import intrinsic, njit
from cdc.kernels.memory import load_u

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_SIZE, _METHOD, _UNPACKED = 1, 2, 3  # fields
_ZSTD = 0
_LARGEST_BYTE = 250


@intrinsic
def _call_zstd() -> Any:
    """Calls ``ZSTD_decompressDCtx`` by its address. Returns what it returns: the bytes unpacked, or a number close to
    2^64 for an error, which is negative here."""
    from llvmlite import ir
    from numba import extending, types

    @extending.intrinsic
    def call_zstd(typingctx: Any, function: Any, context: Any, dst: Any, src: Any, src_at: Any, n: Any) -> Any:
        signature = types.int64(types.int64, types.int64, dst, src, types.int64, types.int64)

        def codegen(ctx: Any, builder: Any, sig: Any, args: Any) -> Any:
            word, byte = ir.IntType(64), ir.IntType(8).as_pointer()
            target = ctx.make_array(sig.args[2])(ctx, builder, args[2])
            source = ctx.make_array(sig.args[3])(ctx, builder, args[3]).data
            kind = ir.FunctionType(word, [word, byte, word, byte, word])
            called = builder.inttoptr(args[0], kind.as_pointer())
            return builder.call(called, [args[1], target.data, target.nitems, builder.gep(source, [args[4]]), args[5]])

        return signature, codegen

    return call_zstd


@njit
def unpack_payload(st: FrameState, src: Bytes, inner: Bytes) -> int:
    """Unpacks the payload between ``st.piece_at`` and ``st.piece_length`` bytes behind it to the front of ``inner``.
    Returns the number of bytes, or 0 if Python has to unpack it: it is larger than ``inner``, not made by zstd, or
    damaged."""
    at = st.piece_at
    end = at + st.piece_length
    packed = np.int64(-1)
    unpacked = np.int64(-1)
    method = np.int64(-1)
    while True:
        if at + 2 >= end:
            return 0
        kind, size = np.int64(src[at]), np.int64(src[at + 1])
        if kind == 0:
            at += 1
            break
        at += 2
        if kind > _LARGEST_BYTE or size == 0 or size > 9 or at + size > end:
            return 0
        first = np.int64(src[at])
        value = first
        if size == 3 and first == 252:
            value = load_u(src, at + 1, 2)
        elif size == 4 and first == 253:
            value = load_u(src, at + 1, 3)
        elif size == 9 and first == 254 and src[at + 8] == 0:
            value = load_u(src, at + 1, 7)
        elif size != 1 or first > _LARGEST_BYTE:
            return 0
        if kind == _SIZE:
            packed = value
        elif kind == _METHOD:
            method = value
        elif kind == _UNPACKED:
            unpacked = value
        at += size
    if method != _ZSTD or packed != end - at or unpacked <= 0 or unpacked > inner.shape[0]:
        return 0
    n = _call_zstd(st.unzstd, st.unzstd_context, inner, src, np.int64(at), np.int64(end - at))
    return n if n == unpacked else 0
