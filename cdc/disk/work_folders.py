"""Folders for the files that a process needs while it works. Those of a process that was killed are removed by the next
one: each has a lock that its process holds, and the operating system releases it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_LOCK = ".lock"
"""Names with a dot are hidden from Spark."""


def make_work_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """Removes the folders with this prefix that nobody uses any more, and makes a new one, which only this user can
    read. Returns it with the file descriptor of its lock: the folder is in use until that is closed. Raises OSError."""
    _remove_abandoned(parent, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))  # 0700
    new = folder / f"{_LOCK}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / _LOCK)  # held from the moment when others can see it
    return folder, lock


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:  # another user's, or one that has no lock yet
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
