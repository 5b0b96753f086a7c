"""Damaged JSON values, with every array access of the kernels checked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.long
def test_with_bounds_checks(seed: int) -> None:
    """Damaged documents and partial updates never make a kernel leave an array."""
    script = (
        "from cdc.kernels.jit import BOUNDS_CHECKED; assert BOUNDS_CHECKED\n"
        "from tests.unit.decode import test_binary_json as t\n"
        f"for raw in t.damaged({seed}, 3000): t.outcome(raw, b'')\n"
        f"print(t.damage_event({seed}, 1500))\n"
    )
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
