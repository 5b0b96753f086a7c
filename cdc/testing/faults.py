"""Disks that fail: file operations for tests, in place of the operating system's (:mod:`cdc.disk.files`).

:class:`FaultyFiles` works on real files below a folder, so readers see what a page cache would show. It also knows
which bytes have reached the disk: :meth:`FaultyFiles.power_cut` puts the folder into the state in which a machine would
find it after a power cut, and fails every later call. Paths elsewhere are left alone.

>>> faulty = FaultyFiles(store)
>>> with files.use(faulty):
...     faulty.fail("fdatasync", errno.EIO)
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal, TypeAlias

from cdc.disk.files import Files

Operation: TypeAlias = Literal[
    "open", "write", "pwrite", "pread", "fdatasync", "fsync", "ftruncate", "replace", "unlink", "mkdir", "sync_folder",
    "read_file",
]  # fmt: skip
_CHANGES = {"open", "write", "pwrite", "fdatasync", "fsync", "ftruncate", "replace", "unlink", "mkdir", "sync_folder"}


@dataclass
class _Node:
    """A file: its bytes on the disk, and the operations since (offset and bytes, or a new size)."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    folder: bool = False

    def apply(self, operation: tuple[int, bytes | None]) -> None:
        offset, data = operation
        if data is None:
            del self.durable[offset:]
            self.durable.extend(bytes(offset - len(self.durable)))
        else:
            self.durable.extend(bytes(max(0, offset - len(self.durable))))
            self.durable[offset : offset + len(data)] = data

    def sync(self) -> None:
        for operation in self.pending:
            self.apply(operation)
        self.pending.clear()


@dataclass
class _Plan:
    operation: Operation
    error: int
    skip: int
    times: int | None
    name: str


class UnflushedFiles(Files):
    """Files without syncing: for tests of the meaning of bytes, not of their durability."""

    def fdatasync(self, fd: int) -> None:
        """Does nothing."""

    def fsync(self, fd: int) -> None:
        """Does nothing."""

    def sync_folder(self, folder: Path) -> None:
        """Does nothing."""


class FaultyFiles(Files):
    """A page cache and a disk below ``root``; files that exist already count as durable. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.calls: Counter[str] = Counter()
        """The number of calls of each operation below the root."""
        self.changes = 0
        """The number of calls that change files or make them durable: the moments at which a power cut differs."""
        self.off = False
        """Whether the power is off: every call fails."""
        self._lock = threading.RLock()
        self._plans: list[_Plan] = []
        self._off_at: int | None = None
        self._space: int | None = None
        self._short: int | None = None
        self._fds: dict[int, tuple[_Node, Path, bool]] = {}
        self._names: dict[Path, _Node] = {}
        self._durable_names: dict[Path, _Node] = {}
        self._pending_names: list[dict[Path, _Node | None]] = []
        for path in sorted(self.root.rglob("*")):
            node = _Node(folder=True) if path.is_dir() else _Node(bytearray(path.read_bytes()))
            self._names[path] = self._durable_names[path] = node

    # --- planning faults

    def fail(
        self, operation: Operation, error: int = errno.EIO, *, nth: int = 1, times: int | None = 1, name: str = "*"
    ) -> None:
        """Makes the ``nth`` call from now on of an operation fail with this errno, on a file whose name matches the
        pattern, and ``times`` calls in all (None: all later ones). A failed flush loses its bytes, as on Linux: the
        page cache shows them, the disk never gets them, and the next flush succeeds."""
        self._plans.append(_Plan(operation, error, nth - 1, times, name))

    def limit_space(self, size_bytes: int | None) -> None:
        """Makes writes fail with ENOSPC after ``size_bytes``; None: no limit."""
        self._space = size_bytes

    def write_short(self, size_bytes: int | None) -> None:
        """Makes each write take at most ``size_bytes``; None: all."""
        self._short = size_bytes

    def power_off_at(self, change: int) -> None:
        """Makes every call fail from the one that would be number ``change`` of :attr:`changes`, from 0."""
        self._off_at = change

    @property
    def pending_bytes(self) -> int:
        """The number of bytes that were written and not synced."""
        with self._lock:
            return sum(len(data) for node in self._nodes() for _, data in node.pending if data is not None)

    def power_cut(self, *, keep_bytes: int = 0, seed: int | None = None) -> None:
        """Cuts the power: puts the folder into its state on the disk, and makes every later call fail.

        Of the bytes that were not synced the first ``keep_bytes`` are kept. With a ``seed`` a random part is kept: any
        operation on data may be lost, or torn at any byte, and later changes of names may be lost.
        """
        with self._lock:
            self.off = True
            chance = None if seed is None else random.Random(seed)
            if chance is not None:
                for change in self._pending_names[: chance.randint(0, len(self._pending_names))]:
                    self._settle(change)
            left = keep_bytes
            for node in self._nodes():
                for offset, data in node.pending:
                    if chance is not None:
                        kept = chance.choice((0, 1, 1, 2)) if data is not None else chance.choice((0, 2))
                        size = 0 if data is None else {0: 0, 1: chance.randint(0, len(data)), 2: len(data)}[kept]
                        if kept and (data is None or size):
                            node.apply((offset, None if data is None else data[:size]))
                    elif data is not None and left > 0:
                        node.apply((offset, data[:left]))
                        left -= len(data)
                node.pending.clear()
            self._lay_out()

    # --- the operations

    def open(self, path: Path, flags: int) -> int:
        path = path.absolute()
        if not path.is_relative_to(self.root):
            return super().open(path, flags)
        with self._lock:
            changes = bool(flags & (os.O_CREAT | os.O_TRUNC))
            self._begin("open", path, changes=changes)
            new = changes and not path.exists()
            fd = super().open(path, flags)
            node = self._names.get(path)
            if node is None:  # new, or created without this layer
                node = _Node(bytearray() if new else bytearray(path.read_bytes()))
                self._rename({path: node}, durable=not new)
            if flags & os.O_TRUNC and not new:
                node.pending.append((0, None))
            self._fds[fd] = (node, path, bool(flags & os.O_APPEND))
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._fds.pop(fd, None)
            super().close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        with self._lock:
            open_file = self._known("write", fd)
            if open_file is None:
                return super().write(fd, data)
            node, _, append = open_file
            at = os.fstat(fd).st_size if append else os.lseek(fd, 0, os.SEEK_CUR)
            taken = self._take(bytes(data))
            written = super().write(fd, taken)
            node.pending.append((at, taken[:written]))
            return written

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        with self._lock:
            open_file = self._known("pwrite", fd)
            if open_file is None:
                return super().pwrite(fd, data, offset)
            taken = self._take(bytes(data))
            written = super().pwrite(fd, taken, offset)
            open_file[0].pending.append((offset, taken[:written]))
            return written

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        with self._lock:
            self._known("pread", fd)
        return super().pread(fd, size, offset)

    def seek(self, fd: int, offset: int, whence: int = os.SEEK_SET) -> int:
        with self._lock:
            self._require_power(fd in self._fds)
        return super().seek(fd, offset, whence)

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def ftruncate(self, fd: int, size: int) -> None:
        with self._lock:
            open_file = self._known("ftruncate", fd)
            super().ftruncate(fd, size)
            if open_file is not None:
                open_file[0].pending.append((size, None))

    def replace(self, source: Path, target: Path) -> None:
        source, target = source.absolute(), target.absolute()
        if not source.is_relative_to(self.root):
            super().replace(source, target)
            return
        with self._lock:
            self._begin("replace", target, changes=True)
            super().replace(source, target)
            self._rename({target: self._names.get(source), source: None})

    def unlink(self, path: Path) -> None:
        path = path.absolute()
        if not path.is_relative_to(self.root):
            super().unlink(path)
            return
        with self._lock:
            self._begin("unlink", path, changes=True)
            super().unlink(path)
            self._rename({path: None})

    def mkdir(self, path: Path) -> None:
        path = path.absolute()
        if not path.is_relative_to(self.root):
            super().mkdir(path)
            return
        with self._lock:
            self._begin("mkdir", path, changes=True)
            super().mkdir(path)
            if path not in self._names:
                self._rename({path: _Node(folder=True)})

    def sync_folder(self, folder: Path) -> None:
        folder = folder.absolute()
        if not folder.is_relative_to(self.root):
            super().sync_folder(folder)
            return
        with self._lock:
            self._begin("sync_folder", folder, changes=True)
            here = [change for change in self._pending_names if any(path.parent == folder for path in change)]
            for change in here:
                self._settle(change)
                self._pending_names.remove(change)

    def read_file(self, path: Path) -> bytes:
        if path.absolute().is_relative_to(self.root):
            with self._lock:
                self._begin("read_file", path, changes=False)
        return super().read_file(path)

    # --- internals

    def _begin(self, operation: Operation, path: Path, *, changes: bool) -> None:
        """Counts a call. Raises the error that was planned for it."""
        if changes and self._off_at is not None and self.changes >= self._off_at:
            self.off = True
        self._require_power(True)
        self.calls[operation] += 1
        self.changes += changes
        for plan in self._plans:
            if plan.operation == operation and fnmatch(path.name, plan.name) and plan.times != 0:
                if plan.skip:
                    plan.skip -= 1
                    continue
                plan.times = None if plan.times is None else plan.times - 1
                raise OSError(plan.error, os.strerror(plan.error), str(path))

    def _require_power(self, here: bool) -> None:
        if self.off and here:
            raise OSError(errno.EIO, "the power is off")

    def _known(self, operation: Operation, fd: int) -> tuple[_Node, Path, bool] | None:
        open_file = self._fds.get(fd)
        if open_file is not None:
            self._begin(operation, open_file[1], changes=operation in _CHANGES)
        return open_file

    def _sync(self, operation: Literal["fdatasync", "fsync"], fd: int) -> None:
        with self._lock:
            open_file = self._fds.get(fd)
            try:
                self._known(operation, fd)
            except OSError:
                if open_file is not None and not self.off:
                    open_file[0].pending.clear()
                raise
            if open_file is not None:
                open_file[0].sync()

    def _take(self, data: bytes) -> bytes:
        """Returns the part of ``data`` that can be written. Raises ENOSPC if it is empty."""
        if self._short is not None:
            data = data[: self._short]
        if self._space is not None:
            if data and self._space <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: self._space]
            self._space -= len(data)
        return data

    def _rename(self, change: dict[Path, _Node | None], *, durable: bool = False) -> None:
        for path, node in change.items():
            if node is None:
                self._names.pop(path, None)
            else:
                self._names[path] = node
        if durable:
            self._settle(change)
        else:
            self._pending_names.append(change)

    def _settle(self, change: dict[Path, _Node | None]) -> None:
        for path, node in change.items():
            if node is None:
                self._durable_names.pop(path, None)
            else:
                self._durable_names[path] = node

    def _nodes(self) -> list[_Node]:
        nodes = {id(node): node for names in (self._names, self._durable_names) for node in names.values()}
        return list(nodes.values())

    def _lay_out(self) -> None:
        """Writes the durable state as new files, so that descriptors that are still open do no harm."""
        for path in sorted(self._names.keys() | self._durable_names.keys()):
            node = self._durable_names.get(path)
            if node is not None and node.folder:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            if node is not None and path.parent.is_dir():
                path.write_bytes(bytes(node.durable))
