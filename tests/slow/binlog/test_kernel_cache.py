"""Where compiled kernels are kept: beside the package, elsewhere where that cannot be written, by many at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import cdc

_CHECKSUM = """
import numpy as np
from cdc.binlog.crc import crc32
from cdc.binlog.jit import cache_folder
data = np.frombuffer(b"123456789", dtype=np.uint8).copy()
print(cache_folder(), int(crc32(data, 0, len(data), np.zeros(16, dtype=np.uint8))))
"""


def started(package: Path, **environment: str) -> subprocess.Popen[str]:
    """A process that runs a kernel of the package in this folder."""
    given = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "XDG", "PYTHON"))}
    given |= {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.Popen(
        [sys.executable, "-c", _CHECKSUM], env=given, cwd=package, stdout=subprocess.PIPE, text=True
    )


def answer(process: subprocess.Popen[str]) -> tuple[Path, int]:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    folder, value = out.split()
    return Path(folder), int(value)


def installed(folder: Path, *, read_only: bool) -> Path:
    """A copy of the package without anything compiled; one that cannot be written has a file in the cache's place, since
    permissions do not stop root."""
    source = Path(cdc.__file__).parent
    shutil.copytree(source, folder / "cdc", ignore=shutil.ignore_patterns("__pycache__"))
    if read_only:
        (folder / "cdc" / "binlog" / "__pycache__").write_text("")
    return folder


def test_several_processes_begin_at_once(tmp_path: Path) -> None:
    package = installed(tmp_path, read_only=False)
    found = {answer(process) for process in [started(package) for _ in range(4)]}
    ((folder, value),) = found
    assert value == zlib.crc32(b"123456789")
    assert folder.parent == package / "cdc" / "binlog" / "__pycache__"
    assert list(folder.rglob("*.nbi"))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")}
    assert answer(started(package)) == (folder, value)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")} == before, "compiled again"


def test_a_package_that_cannot_be_written(tmp_path: Path) -> None:
    package = installed(tmp_path / "package", read_only=True)
    folder, value = answer(started(package, XDG_CACHE_HOME=str(tmp_path / "cache")))
    assert value == zlib.crc32(b"123456789")
    assert folder.parent == tmp_path / "cache" / "towpath"
    assert list(folder.rglob("*.nbi"))
    # Neither: a private folder, whose work is lost, but which works.
    (tmp_path / "file").write_text("")
    folder, value = answer(started(package, XDG_CACHE_HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path)))
    assert value == zlib.crc32(b"123456789")
    assert folder.name.startswith("towpath-kernels-")
    assert folder.parent == tmp_path


def test_a_changed_kernel_is_compiled_anew(tmp_path: Path) -> None:
    package = installed(tmp_path, read_only=False)
    before, _ = answer(started(package))
    kernel = package / "cdc" / "decode" / "kernels" / "single.py"
    kernel.write_text(kernel.read_text() + "\n# changed\n")
    after, _ = answer(started(package))
    assert after != before
