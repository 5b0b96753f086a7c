"""CRC32 in kernels against zlib's."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from cdc.kernels import crc

SCRATCH = np.zeros(16, dtype=np.uint8)
DATA = np.random.default_rng(7).integers(0, 256, 200_000, dtype=np.uint8)


@pytest.mark.parametrize("start", [0, 1, 7])
def test_equals_zlib_for_every_short_length(start: int) -> None:
    for n in [*range(300), 1023, 1024, 8191, 150_001]:
        assert crc.crc32(DATA, start, start + n, SCRATCH) == zlib.crc32(DATA[start : start + n].tobytes())


def test_continues_over_pieces() -> None:
    value = 0xFFFFFFFF
    for start, end in [(0, 100), (100, 101), (101, 5000), (5000, 70_000)]:
        value = int(crc.crc32_update(value, DATA, start, end, SCRATCH))
    assert value ^ 0xFFFFFFFF == zlib.crc32(DATA[:70_000].tobytes())


def test_table_kernel_uncompiled() -> None:
    with np.errstate(over="ignore"):
        plain = crc.crc32_tables.py_func(np.uint32(0x12345678), DATA, 3, 90)
    assert int(plain) == int(crc.crc32_tables(0x12345678, DATA, 3, 90))
