"""CRC32 (zlib's, polynomial 0xEDB88320) over a part of a byte array, from inside compiled kernels.

Every event is verified on its way in, so this has to run at memory speed. On x86-64 with carry-less multiplication
64 bytes are folded at a time, and then 16, after Gopal and others, "Fast CRC Computation for Generic Polynomials Using
PCLMULQDQ Instruction" (Intel, 2009); elsewhere, and for short runs, eight tables of 256 entries take eight bytes at a
time (Sarwate's tables, "slicing by 8").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import intrinsic, njit
from cdc.kernels.levels import cpu_flags

_POLYNOMIAL = 0xEDB88320


def _make_tables() -> npt.NDArray[np.uint32]:
    """(8, 256): table k advances the CRC by a byte and k zero bytes behind it."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for k in range(1, 8):
        for byte in range(256):
            value = int(tables[k - 1, byte])
            tables[k, byte] = value >> 8 ^ int(tables[0, value & 0xFF])
    return tables


_TABLES = _make_tables()


def _x_power_mod(exponent: int) -> int:
    """Bit-reflected x**exponent mod P, shifted left by one bit, as folding needs it."""
    poly, value = 0x104C11DB7, 1
    for _ in range(exponent):
        value <<= 1
        if value & 1 << 32:
            value ^= poly
    return int(f"{value:032b}"[::-1], 2) << 1


# Folding distances in bits: 512 for four accumulators of 128, 128 for one.
_K1, _K2 = _x_power_mod(512 + 32), _x_power_mod(512 - 32)
_K3, _K4 = _x_power_mod(128 + 32), _x_power_mod(128 - 32)

HAS_CLMUL = {"pclmulqdq", "sse4_1"} <= cpu_flags()
_FOLD_MIN = 64


@intrinsic
def _fold() -> Any:
    """Folds ``blocks`` (≥ 1) runs of 64 bytes from ``start`` and ``rest`` runs of 16 bytes behind them, and writes the
    remaining 16 bytes to ``out``."""
    from llvmlite import ir
    from numba import extending, types
    from numba.core import cgutils

    @extending.intrinsic
    def fold(typingctx: Any, buf: Any, start: Any, blocks: Any, rest: Any, crc: Any, out: Any) -> Any:
        signature = types.void(buf, types.int64, types.int64, types.int64, types.uint32, out)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            vec, i64 = ir.VectorType(ir.IntType(64), 2), ir.IntType(64)
            clmul_type = ir.FunctionType(vec, [vec, vec, ir.IntType(8)])
            clmul = cgutils.get_or_insert_function(builder.module, clmul_type, "llvm.x86.pclmulqdq")

            def pair(low: int, high: int) -> Any:
                return ir.Constant(vec, [low, high])

            def fold(value: Any, constants: Any) -> Any:
                low = builder.call(clmul, [value, constants, ir.Constant(ir.IntType(8), 0x00)])
                high = builder.call(clmul, [value, constants, ir.Constant(ir.IntType(8), 0x11)])
                return builder.xor(low, high)

            source = context.make_array(sig.args[0])(context, builder, args[0]).data
            target = context.make_array(sig.args[5])(context, builder, args[5]).data
            base = builder.gep(source, [args[1]])

            def load(offset: Any) -> Any:
                return builder.load(builder.bitcast(builder.gep(base, [offset]), vec.as_pointer()), align=1)

            def const(n: int) -> Any:
                return ir.Constant(i64, n)

            slots = [cgutils.alloca_once(builder, vec) for _ in range(4)]
            for k, slot in enumerate(slots):
                value = load(const(16 * k))
                if k == 0:
                    wide = builder.zext(args[4], i64)
                    first = builder.insert_element(pair(0, 0), wide, ir.Constant(ir.IntType(32), 0))
                    value = builder.xor(value, first)
                builder.store(value, slot)
            with cgutils.for_range(builder, builder.sub(args[2], const(1))) as loop:
                offset = builder.mul(builder.add(loop.index, const(1)), const(64))
                for k, slot in enumerate(slots):
                    data = load(builder.add(offset, const(16 * k)))
                    builder.store(builder.xor(fold(builder.load(slot), pair(_K1, _K2)), data), slot)
            value = builder.load(slots[0])
            for slot in slots[1:]:
                value = builder.xor(fold(value, pair(_K3, _K4)), builder.load(slot))
            builder.store(value, slots[0])
            behind = builder.mul(args[2], const(64))
            with cgutils.for_range(builder, args[3]) as loop:
                data = load(builder.add(behind, builder.mul(loop.index, const(16))))
                builder.store(builder.xor(fold(builder.load(slots[0]), pair(_K3, _K4)), data), slots[0])
            value = builder.load(slots[0])
            builder.store(value, builder.bitcast(target, vec.as_pointer()), align=1)
            return context.get_dummy_value()

        return signature, codegen

    return fold


@njit
def crc32_tables(crc: int, buf: npt.NDArray[np.uint8], start: int, end: int) -> int:
    """Continues the inner (not inverted) CRC over ``buf[start:end]`` by tables."""
    value = np.uint32(crc)
    at = start
    while at + 8 <= end:
        low = value ^ (
            np.uint32(buf[at])
            | np.uint32(buf[at + 1]) << np.uint32(8)
            | np.uint32(buf[at + 2]) << np.uint32(16)
            | np.uint32(buf[at + 3]) << np.uint32(24)
        )
        value = (
            _TABLES[7, low & np.uint32(0xFF)]
            ^ _TABLES[6, low >> np.uint32(8) & np.uint32(0xFF)]
            ^ _TABLES[5, low >> np.uint32(16) & np.uint32(0xFF)]
            ^ _TABLES[4, low >> np.uint32(24)]
            ^ _TABLES[3, buf[at + 4]]
            ^ _TABLES[2, buf[at + 5]]
            ^ _TABLES[1, buf[at + 6]]
            ^ _TABLES[0, buf[at + 7]]
        )
        at += 8
    while at < end:
        value = value >> np.uint32(8) ^ _TABLES[0, (value ^ np.uint32(buf[at])) & np.uint32(0xFF)]
        at += 1
    return value


if HAS_CLMUL:

    @njit
    def crc32_update(crc: int, buf: npt.NDArray[np.uint8], start: int, end: int, scratch: npt.NDArray[np.uint8]) -> int:
        """Continues the inner CRC over ``buf[start:end]``; ``scratch`` (16,) is room. Begin with 0xFFFFFFFF and invert
        the result at the end, as :func:`crc32` does."""
        if end - start < _FOLD_MIN:
            return crc32_tables(crc, buf, start, end)
        blocks = (end - start) // 64
        rest = (end - start) % 64 // 16
        _fold(buf, np.int64(start), np.int64(blocks), np.int64(rest), np.uint32(crc), scratch)
        value = crc32_tables(np.uint32(0), scratch, 0, 16)
        return crc32_tables(value, buf, start + 64 * blocks + 16 * rest, end)

else:

    @njit
    def crc32_update(crc: int, buf: npt.NDArray[np.uint8], start: int, end: int, scratch: npt.NDArray[np.uint8]) -> int:
        """Continues the inner CRC over ``buf[start:end]``; ``scratch`` is not used on this machine."""
        return crc32_tables(crc, buf, start, end)


@njit
def crc32(buf: npt.NDArray[np.uint8], start: int, end: int, scratch: npt.NDArray[np.uint8]) -> int:
    """zlib's CRC32 of ``buf[start:end]``; ``scratch`` (16,) is room."""
    return crc32_update(np.uint32(0xFFFFFFFF), buf, start, end, scratch) ^ np.uint32(0xFFFFFFFF)
