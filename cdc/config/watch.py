"""Notices that a file which others write has another content.

Contents are compared, not times: a file keeps its time when it is restored from a copy, and a symbolic link that is
swapped (git-sync, a ConfigMap of Kubernetes) may lead to a file with the same size and time. A file that somebody is
writing may be valid before it is whole, so a content counts at the second look that finds it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

READ_AT_START = ("source", "store", "meta", "metrics")
"""Sections that a capture reads once, when it starts. It notices changes of ``tables`` by itself."""


class WatchedFile:
    """A file, and the content that was taken last. Each look reads it, so it is for small files."""

    def __init__(self, path: Path, *, taken: bool = True) -> None:
        """``taken``: whether the present content is known already."""
        self.path = path
        self._seen = _fingerprint(path)
        self._taken = self._seen if taken else None

    @property
    def is_there(self) -> bool:
        """Whether the content that was taken last is that of a file; False: there was none."""
        return self._taken is not None

    def look(self) -> bool:
        """Takes a content that is new and was there at the last look already. Returns whether it has taken one; a file
        that is gone counts as a content."""
        fingerprint = _fingerprint(self.path)
        settled, self._seen = fingerprint == self._seen, fingerprint
        if not settled or fingerprint == self._taken:
            return False
        self._taken = fingerprint
        return True

    def take(self) -> None:
        """Takes the present content at once."""
        self._taken = self._seen = _fingerprint(self.path)


def _fingerprint(file: Path) -> bytes | None:
    """Returns a digest of a file's content; None if there is no file that can be read."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a pipe would wait
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        digest = hashlib.sha256()
        while part := os.read(fd, 1 << 16):
            digest.update(part)
        return digest.digest()
    except OSError:
        return None
    finally:
        os.close(fd)
