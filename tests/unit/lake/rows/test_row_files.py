"""The folder for the rows of a batch: who has one, and what a killed process leaves."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.lake.rows.row_files import PREFIX, row_files


def session(folder: Path | None, *, is_local: bool = True) -> Any:
    """A session whose ``spark.local.dir`` is this folder."""
    settings = {} if folder is None else {"spark.local.dir": f"{folder},/other"}
    conf = SimpleNamespace(get=lambda name, default: settings.get(name, default))
    return SimpleNamespace(is_local=is_local, spark=SimpleNamespace(conf=conf))


def test_the_folder_is_below_the_first_local_folder_of_spark_and_goes_with_the_block(tmp_path: Path) -> None:
    with row_files(session(tmp_path)) as files:
        assert files is not None
        assert files.folder.parent == tmp_path
        assert files.folder.stat().st_mode & 0o777 == 0o700
        (files.folder / "0.parquet").touch()
    assert not list(tmp_path.iterdir())


def test_the_folder_goes_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), row_files(session(tmp_path)):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_without_a_setting_the_folder_is_a_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with row_files(session(None)) as files:
        assert files is not None and files.folder.parent == tmp_path


@pytest.mark.parametrize("name", ["with a space", "a[bc]", "{a,b}", "100%25", "wild*"])
def test_a_path_that_spark_could_read_as_a_pattern_has_no_files(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with row_files(session(folder)) as files:
        assert files is None
    assert not list(folder.iterdir())


def test_tasks_on_other_machines_get_no_files(tmp_path: Path) -> None:
    with row_files(session(tmp_path, is_local=False)) as files:
        assert files is None
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    with row_files(session(tmp_path / "gone")) as files:
        assert files is None


HOLD = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from cdc.lake.rows.row_files import row_files
conf = SimpleNamespace(get=lambda name, default: sys.argv[1])
with row_files(SimpleNamespace(is_local=True, spark=SimpleNamespace(conf=conf))) as files:
    (files.folder / "0.parquet").write_bytes(b"rows")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_and_the_folders_of_others_stay(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], timeout=60)
    assert killed.returncode == -9
    (leftover,) = tmp_path.glob(f"{PREFIX}*")
    fresh = tmp_path / f"{PREFIX}fresh"  # another process is about to create its lock
    fresh.mkdir()
    with row_files(session(tmp_path)) as ours:
        assert ours is not None
        assert not leftover.exists()
        with row_files(session(tmp_path)) as theirs:
            assert theirs is not None
            assert ours.folder.exists()
            lock = os.open(ours.folder / ".lock", os.O_RDWR)
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(lock)
    assert list(tmp_path.iterdir()) == [fresh]


def test_threads_do_not_take_each_others_new_folders_for_abandoned_ones(tmp_path: Path) -> None:
    """Eight tables are merged at a time, and each looks for abandoned folders before it makes its own."""

    def is_kept(_: int) -> bool:
        with row_files(session(tmp_path)) as files:
            return files is not None and files.folder.exists()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_kept, range(400)))
    assert not list(tmp_path.iterdir())
