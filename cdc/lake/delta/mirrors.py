"""Copies of Delta logs that lie in object stores, kept on this machine.

The ``deltalake`` library reads a log from its copy. A copy outlives its process, so that a table without new commits
costs two requests: the newest known commit is looked at, and the one after it, which is not there. The object store is
read by fsspec, with one access for every kind of it, and with the names of objects as Spark writes them.

A folder of its own for each table, below ``logs`` in the cache: ``lock``, ``known.json``, and ``table/_delta_log``. It
may be removed at any time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cdc.base.log import get_logger
from cdc.base.targets import LOG_FOLDER
from cdc.disk.cache import cache_dir
from cdc.disk.durable import replace_file
from cdc.disk.object_stores import filesystem, reading

MOST_COMMITS = 100
"""Commits that are added to a copy before it is made anew, from a newer checkpoint."""
_FORMAT = 1
_DIGITS = 20
"""Digits of the version in the names of the log's files."""
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint[.\w-]*\.(parquet|json)")
_COMPACTED = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json")
_SIDECARS = "_sidecars"
_log = get_logger(__name__)


@dataclass(frozen=True)
class _Known:
    """The content of a copy."""

    version: int
    mark: str
    """The size and the ETag of the newest commit, else a hash of its content."""
    added: int
    """Commits that were added since the copy was made."""
    whole: bool
    """The copy holds all of the log, not only its newest part."""
    format: int = _FORMAT


@contextmanager
def mirrored(uri: str, depth: int, *, whole: bool = False) -> Iterator[Path | None]:
    """Yields a folder with the log of a table in an object store, as it is now; None if there is no table. Other
    processes wait meanwhile. ``depth``: commits before the last checkpoint that are needed, unless ``whole``.

    Raises RetryableError if the object store cannot be read, ConfigError if it cannot be read from here.
    """
    folder = cache_dir() / "logs" / hashlib.sha256(uri.encode()).hexdigest()[:40]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mirror = _Mirror(uri, folder)
        yield folder / "table" if mirror.update(depth, whole=whole) else None


class _Mirror:
    """The copy of one log. The caller holds its lock."""

    def __init__(self, uri: str, folder: Path) -> None:
        self._uri, self._folder = uri, folder
        self._files, place = filesystem(uri)
        self._log = f"{place.rstrip('/')}/{LOG_FOLDER}"
        self._copy = folder / "table" / LOG_FOLDER

    def update(self, depth: int, *, whole: bool) -> bool:
        """Brings the copy up to date. Returns False if there is no table."""
        with reading(self._uri):
            mirrored = self._mirrored()
            if (
                mirrored is not None
                and mirrored.added < MOST_COMMITS
                and (mirrored.whole or not whole)
                and self._follow(mirrored)
            ):
                return True
            return self._make(depth, whole=whole)

    def _mirrored(self) -> _Known | None:
        try:
            mirrored = _Known(**json.loads((self._folder / "known.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return mirrored if mirrored.format == _FORMAT and (self._copy / _commit(mirrored.version)).exists() else None

    def _follow(self, mirrored: _Known) -> bool:
        """Adds the commits after those that are known. Returns False if they are of another history."""
        if self._mark(mirrored.version) != mirrored.mark:
            return False
        version = mirrored.version
        while (content := self._read(_commit(version + 1))) is not None:
            replace_file(self._copy / _commit(version + 1), content, durable=False)
            version += 1
        if version > mirrored.version:
            mark = self._mark(version)
            if mark is None or self._mark(mirrored.version) != mirrored.mark:
                return False
            self._remember(_Known(version, mark, mirrored.added + version - mirrored.version, mirrored.whole))
        return True

    def _make(self, depth: int, *, whole: bool) -> bool:
        """Copies the log anew: all of it, or the last checkpoint and the commits from ``depth`` before it on."""
        (self._folder / "known.json").unlink(missing_ok=True)
        shutil.rmtree(self._copy.parent, ignore_errors=True)
        names = self._names("")
        commits = {int(match[1]): name for name in names if (match := _COMMIT.fullmatch(name))}
        if not commits:
            return False
        version = max(commits)
        mark = self._mark(version)
        checkpoints = [(int(match[1]), name) for name in names if (match := _CHECKPOINT.fullmatch(name))]
        last = max((at for at, _ in checkpoints), default=0)
        first = 0 if whole else max(0, last - depth)
        chosen = [name for at, name in commits.items() if at >= first]
        chosen += [name for at, name in checkpoints if whole or at >= last]
        chosen += [name for name in names if (match := _COMPACTED.fullmatch(name)) and int(match[1]) >= first]
        chosen += [name for name in names if name == "_last_checkpoint"]
        if _SIDECARS in names:  # parts of checkpoints of the second version
            (self._copy / _SIDECARS).mkdir(parents=True)
            chosen += [f"{_SIDECARS}/{name}" for name in self._names(f"/{_SIDECARS}")]
        self._copy.mkdir(parents=True, exist_ok=True)
        self._fetch(chosen)
        if mark is None or self._mark(version) != mark:
            return self._make(depth, whole=whole)  # replaced meanwhile
        self._remember(_Known(version, mark, 0, whole))
        return True

    def _fetch(self, names: Sequence[str]) -> None:
        paths = {f"{self._log}/{name}": name for name in names}
        for path, content in self._files.cat(list(paths), on_error="return").items():
            if isinstance(content, FileNotFoundError):
                continue  # the log's cleanup removed it since it was listed; readers say what they miss
            if isinstance(content, Exception):
                raise content
            replace_file(self._copy / paths[path], content, durable=False)

    def _names(self, below: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(f"{self._log}{below}", detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in paths)

    def _read(self, name: str) -> bytes | None:
        try:
            # With a start it is one request; s3fs asks for the size of a whole object first, and lists a missing one.
            content: bytes = self._files.cat_file(f"{self._log}/{name}", start=0)
        except FileNotFoundError:
            return None
        return content

    def _mark(self, version: int) -> str | None:
        """Returns what tells a commit from that of another history: the object's tag, else a hash of its content. None
        if there is no such commit."""
        path = f"{self._log}/{_commit(version)}"
        self._files.invalidate_cache(path)
        try:
            info: dict[str, Any] = self._files.info(path)
        except FileNotFoundError:
            return None
        tag = info.get("ETag") or info.get("etag")
        if tag:
            return f"{info.get('size')} {tag}"
        content = self._read(_commit(version))
        return None if content is None else hashlib.sha256(content).hexdigest()

    def _remember(self, mirrored: _Known) -> None:
        replace_file(self._folder / "known.json", json.dumps(asdict(mirrored)).encode(), durable=False)


def _commit(version: int) -> str:
    return f"{version:0{_DIGITS}d}.json"


def read_tip(uri: str, version: int, most_bytes: int) -> str | None:
    """Returns the content of a commit, at most so many bytes of it; None if it is gone, or not the newest one. Takes
    two requests. Raises as :func:`mirrored`."""
    files, place = filesystem(uri)
    log = f"{place.rstrip('/')}/{LOG_FOLDER}"
    with reading(uri):
        try:
            content: bytes = files.cat_file(f"{log}/{_commit(version)}", start=0, end=most_bytes)
        except FileNotFoundError:
            return None
        try:
            files.cat_file(f"{log}/{_commit(version + 1)}", start=0, end=1)
        except FileNotFoundError:
            return content.decode("utf-8", errors="replace")
    return None
