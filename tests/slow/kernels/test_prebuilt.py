"""Kernels that are built ahead: they run without Numba and llvmlite, and no others are used in their place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from cdc.kernels import build, levels, prebuilt
from cdc.kernels.jit import NUMBA, cannot_compile
from tests.support.kernel_packages import CHECKSUM, PACKAGE, answer, installed, started

BEST = levels.fitting()[0]
WITHOUT_COMPILER = "import sys; sys.modules.update(numba=None, llvmlite=None)\n"
"""Importing either is an error, as where it is not installed."""
CRC32 = """cdc.kernels.crc crc32 (('|u1', 1, 1281), 'int64', 'int64', ('|u1', 1, 1281))\n"""


def built(package: Path, signatures: str, level: levels.CpuLevel = BEST) -> Path:
    """Builds these kernels of a copy of the package for a level of CPU."""
    (package / "cdc" / "kernels" / "signatures.txt").write_text(signatures)
    code = (
        "from cdc.kernels import build, levels, prebuilt\n"
        f"level = next(one for one in levels.LEVELS if one.name == {level.name!r})\n"
        "build.build(level, prebuilt.FOLDER)\n"
    )
    process = started(package, code)
    _, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    return package / "cdc" / "kernels" / "prebuilt"


def test_a_built_kernel_runs_without_the_compiler(tmp_path: Path) -> None:
    package = installed(tmp_path)
    folder = built(package, CRC32)
    assert sorted(file.name for file in folder.iterdir()) == [f"kernels-{BEST.name}.{end}" for end in ("json", "so")]
    cache, value = answer(started(package, WITHOUT_COMPILER + CHECKSUM))
    assert value == zlib.crc32(b"123456789")
    assert not list(cache.rglob("*.kernel")), "compiled"
    # A change of the sources, and what was not built, need the compiler; the error says what to install.
    (package / "cdc" / "kernels" / "memory.py").open("a").write("\n# changed\n")
    assert answer(started(package, WITHOUT_COMPILER + CHECKSUM)) == (cache, value), "crc.py does not import memory.py"
    (package / "cdc" / "kernels" / "crc.py").open("a").write("\n# changed\n")
    process = started(package, WITHOUT_COMPILER + CHECKSUM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the kernel crc32 was not built ahead for this machine, and Numba cannot compile it" in err
    assert f"pip install '{NUMBA}'" in err
    # With the compiler, it says what it does.
    process = started(package, CHECKSUM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and str(value) in out
    assert "compiling a kernel, once for this version and this type of CPU" in err and "crc32" in err


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="other machines have one level")
def test_an_older_cpu_has_code_of_its_own(tmp_path: Path) -> None:
    """Code for the oldest CPUs has no carry-less multiplication, and the same results."""
    package = installed(tmp_path)
    folder = built(package, CRC32, levels.LEVELS[1])
    hide = "from cdc.kernels import levels; levels._host_flags = lambda: levels.LEVELS[1].flags\n"
    assert answer(started(package, WITHOUT_COMPILER + hide + CHECKSUM))[1] == zlib.crc32(b"123456789")
    code = subprocess.run(
        ["objdump", "-d", folder / "kernels-x86-64-v2.so"], capture_output=True, text=True, check=True
    )
    assert "pclmul" not in code.stdout and "ymm" not in code.stdout
    none = "from cdc.kernels import levels; levels._host_flags = lambda: frozenset()\n"
    process = started(package, WITHOUT_COMPILER + none + CHECKSUM)
    assert "was not built ahead for this machine" in process.communicate(timeout=60)[1]


def test_a_kernel_for_read_only_arrays_serves_others() -> None:
    read_only, other = "(('|u1', 1, 257), 'int64')", "(('|u1', 1, 1281), 'int64')"
    assert prebuilt.serves(read_only, read_only) and prebuilt.serves(read_only, other)
    assert not prebuilt.serves(other, read_only), "it may write"
    assert not prebuilt.serves(read_only, "(('|u1', 2, 1281), 'int64')")
    assert not prebuilt.serves(read_only, "(('|u1', 1, 1280), 'int64')"), "not contiguous"
    assert not prebuilt.serves(read_only, "(('|u1', 1, 1281),)")


_CAPTURE_AND_DECODE = """
import time
began = time.process_time()
from cdc.capture.warm_up import warm_up
warm_up()
from cdc.decode.reader import warm_up
warm_up()
assert time.process_time() - began < 20, "the kernels were compiled"
"""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_all_kernels_are_built_and_nothing_is_compiled(tmp_path: Path) -> None:
    package = installed(tmp_path)
    folder = built(package, build.SIGNATURES.read_text())
    index = json.loads((folder / f"kernels-{BEST.name}.json").read_text())
    assert sum(map(len, index["kernels"].values())) == len(build.signatures())
    process = started(package, WITHOUT_COMPILER + _CAPTURE_AND_DECODE)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


def test_a_wheel_with_kernels_is_one_for_the_platform(tmp_path: Path) -> None:
    """Kernels of other sources stop the build, since the installed package would compile instead."""
    package = installed(tmp_path)
    root = PACKAGE.parent
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE"):
        (package / name).write_bytes((root / name).read_bytes())
    for name in ("dags", "deploy"):
        (package / name).mkdir()
    (pure,) = WheelBuilder(str(package)).build(directory=str(tmp_path / "pure"), versions=["standard"])
    assert pure.endswith("-py3-none-any.whl")
    folder = package / "cdc" / "kernels" / "prebuilt"
    folder.mkdir()
    (folder / "kernels-x.so").write_bytes(b"")
    index = {"format": 1, "kernels": {}, "modules": {"kernels.crc": "of other sources"}}
    (folder / "kernels-x.json").write_text(json.dumps(index))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    refused = subprocess.run(command, cwd=package, capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "make kernels" in refused.stderr
    code = "from cdc.kernels.cache import source_digest; from pathlib import Path; import cdc.kernels.crc as crc\n"
    digest, _ = started(package, f"{code}print(source_digest(Path(crc.__file__)))").communicate(timeout=60)
    index["modules"] = {"kernels.crc": digest.strip()}
    (folder / "kernels-x.json").write_text(json.dumps(index))
    subprocess.run(command, cwd=package, capture_output=True, text=True, check=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith(f"-py3-none-manylinux_2_17_{os.uname().machine}.whl")
    with zipfile.ZipFile(wheel) as content:
        assert {"cdc/kernels/prebuilt/kernels-x.so", "cdc/kernels/prebuilt/kernels-x.json"} <= set(content.namelist())


def test_a_numba_that_was_not_tried_says_which_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    from cdc.kernels import compiler
    from cdc.kernels.crc import crc32_tables

    def changed(*_args: object) -> None:
        raise AttributeError("'Codegen' object has no attribute '_add_module'")

    monkeypatch.setattr(compiler, "_compile", changed)
    with pytest.raises(AttributeError):  # a version that was tried: a fault of ours
        compiler.compile_kernel(crc32_tables, (), None, "symbol")
    monkeypatch.setattr(numba, "__version__", "0.99.1")
    with pytest.raises(type(cannot_compile("", ""))) as raised:
        compiler.compile_kernel(crc32_tables, (), None, "symbol")
    assert "version 0.99.1 was not tried, and fails (AttributeError" in str(raised.value)
    assert str(raised.value).endswith(f"Install a Numba that can: pip install '{NUMBA}'.")


@pytest.mark.parametrize(
    ("version", "tried"), [("0.61.2", False), ("0.62.0", True), ("0.68.1", True), ("0.69.0rc1", False)]
)
def test_the_versions_that_were_tried(version: str, tried: bool) -> None:
    from cdc.kernels.compiler import was_tried

    assert was_tried(version) is tried
