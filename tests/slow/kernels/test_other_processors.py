"""Kernels on a processor without carry-less multiplication: the branch that every other processor than x86-64 takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_WITHOUT_CLMUL = """
import os
import zlib
import numpy as np
from cdc.kernels import levels

plain = (one for one in levels.LEVELS if one.machine == os.uname().machine and "pclmulqdq" not in one.flags)
levels.build_for(next(plain))
from cdc.kernels import crc

assert not crc.HAS_CLMUL
data = np.random.default_rng(7).integers(0, 256, 100_000, dtype=np.uint8)
scratch = np.full(16, 255, dtype=np.uint8)
for start in (0, 1, 7):
    for size in (*range(70), 127, 128, 1023, 99_000):
        assert crc.crc32(data, start, start + size, scratch) == zlib.crc32(data[start : start + size].tobytes())
value = 0xFFFFFFFF
for start, end in ((0, 100), (100, 101), (101, 70_000)):
    value = int(crc.crc32_update(value, data, start, end, scratch))
assert value ^ 0xFFFFFFFF == zlib.crc32(data[:70_000].tobytes())
assert set(scratch) == {255}, "the room for folding is used"
"""


def test_checksums_by_tables_alone_equal_zlibs(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_CLMUL],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
