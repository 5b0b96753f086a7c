"""Processes that need the same kernel compile it one after the other, and never wait without end."""

from __future__ import annotations

import fcntl
import threading
import time
from pathlib import Path

import pytest

from cdc.kernels import cache as kernel_cache
from cdc.kernels.cache import sole_compiler


def test_the_second_waits_for_the_first(tmp_path: Path) -> None:
    file = tmp_path / "module" / "scan.kernel"
    order: list[str] = []

    def second() -> None:
        with sole_compiler(file):
            order.append("second")

    with sole_compiler(file):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_another_kernel_does_not_wait(tmp_path: Path) -> None:
    with sole_compiler(tmp_path / "scan.kernel"), sole_compiler(tmp_path / "fill.kernel"):
        assert {each.name for each in tmp_path.iterdir()} == {"scan.lock", "fill.lock"}


def test_a_process_that_compiles_for_ever_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "_WAIT_S", 0.2)
    with open(tmp_path / "scan.lock", "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        with sole_compiler(tmp_path / "scan.kernel"):
            assert 0.2 <= time.monotonic() - began < 30


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    compiled = False
    with sole_compiler(tmp_path / "file" / "scan.kernel"):
        compiled = True
    assert compiled


def test_errors_of_the_compiler_are_passed_on(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space"), sole_compiler(tmp_path / "scan.kernel"):
        raise OSError("no space")
    with sole_compiler(tmp_path / "scan.kernel"):
        pass
