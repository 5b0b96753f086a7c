"""The cache of compiled kernels: where it lies, several processes at once, and which modules a change compiles anew."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from cdc.kernels import cache as kernel_cache
from tests.support.kernel_packages import CHECKSUM, PACKAGE, answer, installed, started


def compiled(folder: Path) -> dict[str, int]:
    """The files of compiled code and when they were written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*.kernel")}


def test_several_processes_begin_at_once(tmp_path: Path) -> None:
    package = installed(tmp_path, read_only=False)
    answers = {answer(process) for process in [started(package) for _ in range(4)]}
    ((folder, value),) = answers
    assert value == zlib.crc32(b"123456789")
    assert folder == package / "cdc" / "kernels" / "__pycache__" / "kernels"
    before = compiled(folder)
    assert before
    assert answer(started(package)) == (folder, value)
    assert compiled(folder) == before, "compiled again"


@pytest.mark.long
def test_a_package_that_cannot_be_written(tmp_path: Path) -> None:
    package = installed(tmp_path / "package", read_only=True)
    folder, value = answer(started(package, XDG_CACHE_HOME=str(tmp_path / "cache")))
    assert value == zlib.crc32(b"123456789")
    assert folder == tmp_path / "cache" / "towpath" / "kernels"
    assert list(folder.rglob("*.kernel"))
    # If the user's cache folder cannot be written either, a private folder works for this process.
    (tmp_path / "file").write_text("")
    folder, value = answer(started(package, XDG_CACHE_HOME=str(tmp_path / "file"), TMPDIR=str(tmp_path)))
    assert value == zlib.crc32(b"123456789")
    assert folder.name.startswith("towpath-kernels-")
    assert folder.parent == tmp_path


# ---------------------------------------------------------------- which modules a change compiles anew

_FOLDERS = """
from cdc.kernels.cache import cache_folder
from pathlib import Path
import cdc
root = Path(cdc.__file__).parent
for path in sorted(root.rglob("*.py")):
    if b"cdc.kernels.jit import" in path.read_bytes():
        print(path.relative_to(root), cache_folder(path).name)
"""


def folders(package: Path) -> dict[str, str]:
    """The name of each kernel module's cache folder."""
    out, _ = started(package, _FOLDERS).communicate(timeout=120)
    return dict(line.split() for line in out.splitlines())


def test_a_change_renames_the_folders_of_the_module_and_of_its_importers(tmp_path: Path) -> None:
    package = installed(tmp_path, read_only=False)
    before = folders(package)
    assert len(before) > 8
    for changed, expected in {
        "decode/kernels/fill.py": {"decode/kernels/fill.py"},
        "decode/charsets/kernels.py": {"decode/charsets/kernels.py"},
        "decode/kernels/values.py": {
            "decode/kernels/values.py",
            "decode/kernels/fill.py",
            "decode/binary_json/scalar_kernels.py",
            "decode/binary_json/document_kernels.py",
            "source/snapshot/kernels.py",
            "source/snapshot/binary_kernels.py",
            "canal/kernels/texts.py",
            "canal/kernels/entries.py",
            "canal/mq/kernels/messages.py",
            "canal/mq/kernels/flat.py",
            "canal/mq/kernels/raw.py",
            "canal/mq/kernels/texts.py",
            "canal/mq/kernels/envelope.py",
        },
        "binlog/frame_kernel.py": {"binlog/frame_kernel.py", "binlog/framer.py"},
        "kernels/jit.py": set(before),
        "kernels/cache.py": set(before),
        "kernels/compiler.py": set(before),
        "base/log.py": set(),
        "decode/reader.py": set(),
    }.items():
        path = package / "cdc" / changed
        source = path.read_text()
        path.write_text(source + "\n# changed\n")
        after = folders(package)
        assert {module for module, name in after.items() if name != before[module]} == expected, changed
        path.write_text(source)
    assert folders(package) == before


_BASE = """
from cdc.kernels.jit import njit
@njit
def twice(value: int) -> int:
    return 2 * value
"""
_USER = """
from cdc.binlog import base_kernel
from cdc.binlog.base_kernel import twice
from cdc.kernels.jit import njit
@njit
def four_times(value: int) -> int:
    return twice(twice(value))
"""
_OTHER = """
from cdc.kernels.jit import njit
@njit
def half(value: int) -> int:
    return value // 2
"""
_CALL = """
from cdc.kernels.cache import cache_root
from cdc.binlog.user_kernel import four_times
from cdc.binlog.other_kernel import half
print(cache_root(), four_times(10) * 100 + half(10))
"""


def test_a_changed_callee_is_compiled_with_its_caller_and_nothing_else(tmp_path: Path) -> None:
    package = installed(tmp_path, read_only=False)
    kernels = package / "cdc" / "binlog"
    (kernels / "base_kernel.py").write_text(_BASE)
    (kernels / "user_kernel.py").write_text(_USER)
    (kernels / "other_kernel.py").write_text(_OTHER)
    folder, value = answer(started(package, _CALL))
    assert value == 4005
    before = compiled(folder)
    (kernels / "base_kernel.py").write_text(_BASE.replace("2 *", "3 *"))
    assert answer(started(package, _CALL)) == (folder, 9005)
    after = compiled(folder)
    assert {name: after[name] for name in before} == before, "compiled again, or removed"
    new = {name.partition("-")[0] for name in after.keys() - before.keys()}
    assert new == {"binlog.user_kernel"}, "the callee is compiled into its caller, and was not called by itself"


def test_other_versions_of_the_compiler_have_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = PACKAGE / "kernels" / "crc.py"

    def name() -> str:
        kernel_cache._digest.cache_clear()
        kernel_cache.cache_folder.cache_clear()
        return kernel_cache.cache_folder(module).name

    before = name()
    assert f'"{np.__version__}"'.encode() in kernel_cache._versions()
    with monkeypatch.context() as changed:
        changed.setattr(kernel_cache, "_versions", lambda: b"another")
        assert name() != before
    assert name() == before


def test_another_cpu_has_files_of_its_own() -> None:
    module = PACKAGE / "kernels" / "crc.py"
    zen_file, other = (
        kernel_cache.kernel_file(module, "crc32", "types", cpu) for cpu in ("x86_64 zen5", "x86_64 skylake")
    )
    assert zen_file != other
    assert zen_file.parent == other.parent


# ---------------------------------------------------------------- the files


_WITHOUT_NUMBA = (
    CHECKSUM
    + """
import sys
if "numba" in sys.modules:
    raise SystemExit("numba was loaded")
"""
)


def test_a_compiled_kernel_runs_without_numba(tmp_path: Path) -> None:
    package = installed(tmp_path, read_only=False)
    folder, value = answer(started(package))
    assert value == zlib.crc32(b"123456789")
    assert answer(started(package, _WITHOUT_NUMBA)) == (folder, value)


@pytest.mark.parametrize(
    "damage", ["bit", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("cut", "empty", "other format"))]
)
def test_a_damaged_file_is_compiled_again(tmp_path: Path, damage: str) -> None:
    package = installed(tmp_path, read_only=False)
    folder, value = answer(started(package))
    files = list(folder.rglob("*.kernel"))
    assert len(files) == 1, "one file for each kernel and set of argument types"
    whole = files[0].read_bytes()
    middle = len(whole) // 2
    damaged = {
        "cut": whole[:middle],
        "empty": b"",
        "bit": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "other format": whole.replace(b"towpath-kernel 1", b"towpath-kernel 0"),
    }[damage]
    files[0].write_bytes(damaged)
    assert answer(started(package)) == (folder, value)
    assert files[0].read_bytes() == whole
    assert answer(started(package, _WITHOUT_NUMBA)) == (folder, value)
