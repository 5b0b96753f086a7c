"""Copies of the package without compiled kernels, and processes that run in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cdc

PACKAGE = Path(cdc.__file__).parent

CHECKSUM = """
import numpy as np
from cdc.kernels.crc import crc32
from cdc.kernels.cache import cache_root
data = np.frombuffer(b"123456789", dtype=np.uint8).copy()
print(cache_root(), int(crc32(data, 0, len(data), np.zeros(16, dtype=np.uint8))))
"""


def started(package: Path, script: str = CHECKSUM, **environment: str) -> subprocess.Popen[str]:
    """Starts a process that runs a script with the package in this folder."""
    given = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "XDG", "PYTHON"))}
    given |= {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=given,
        cwd=package,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str]) -> tuple[Path, int]:
    """Returns the cache folder and the value that :data:`CHECKSUM` prints."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    folder, value = out.split()
    return Path(folder), int(value)


def installed(folder: Path, *, read_only: bool = False) -> Path:
    """Makes a copy of the package without anything compiled. A read-only one has a file where the cache belongs, because
    permissions do not stop root."""
    shutil.copytree(PACKAGE, folder / "cdc", ignore=shutil.ignore_patterns("__pycache__", "prebuilt"))
    if read_only:
        (folder / "cdc" / "kernels" / "__pycache__").write_text("")
    return folder
