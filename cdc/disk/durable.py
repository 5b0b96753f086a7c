"""Small files that survive a kill and a power cut: replaced whole, fsynced, guarded by flock.

Meta, manifests and schemas are written this way. Errors of the operating system become
:class:`~cdc.base.errors.StorageError`, or :class:`~cdc.base.errors.ConfigError` if the path itself is unusable.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from cdc.base.errors import CdcError, ConfigError, LeaseHeldError, StorageError
from cdc.disk import files

_UNUSABLE = {errno.EACCES, errno.EEXIST, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces the content of ``path`` by ``data``. A reader sees the old or the new content, never a mixture.

    With ``durable`` the new content is on disk when this returns; otherwise a power cut may lose it. The folder must
    exist. Two writers of one path need a lock. After an error the old content is still there, unless syncing the
    folder failed: then it is either one. Raises StorageError, ConfigError.
    """
    temporary = path.with_name(f".{path.name}.new")
    with storage_errors(path):
        try:
            fd = files.layer.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                files.write_all(fd, data)
                if durable:
                    files.layer.fsync(fd)
            finally:
                files.layer.close(fd)
            files.layer.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):  # the first error counts; the next call overwrites the file
                files.layer.unlink(temporary)
            raise
        if durable:
            sync_folder(path.parent)


def remove_file(path: Path) -> None:
    """Removes a file durably; it may be gone already. Raises StorageError, ConfigError."""
    with storage_errors(path):
        try:
            files.layer.unlink(path)
        except FileNotFoundError:
            return
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable. Raises OSError."""
    files.layer.sync_folder(folder)


def make_folder(folder: Path) -> None:
    """Creates a folder and its parents durably; it may exist already. Raises StorageError, ConfigError."""
    with storage_errors(folder):
        missing = [folder, *folder.parents]
        missing = missing[: next((i for i, f in enumerate(missing) if f.is_dir()), len(missing))]
        for each in reversed(missing):
            try:
                files.layer.mkdir(each)
            except FileNotFoundError:  # the parent exists and takes no folders, like /proc
                raise PermissionError(errno.EPERM, "no folder can be made there", str(each)) from None
            sync_folder(each.parent)


@contextlib.contextmanager
def locked(path: Path, what: str, *, wait_s: float = 0.0, shared: bool = False) -> Iterator[None]:
    """Holds the flock of ``path``, which is created if it is missing: exclusively, or ``shared`` with others that share
    it. The operating system releases the lock when the process dies. Works between threads, too.

    Waits up to ``wait_s``, then raises LeaseHeldError, which names the holder: its process id is in the file, and
    ``what`` says what it may be, such as ``another command``.
    """
    with storage_errors(path):
        fd = files.plain.open(path, os.O_RDWR | os.O_CREAT)
    try:
        _wait_for(fd, path, what, wait_s, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        with storage_errors(path):
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(fd)  # closing releases the lock


def find_holder(path: Path) -> int | None:
    """Returns the process that holds the flock of a file exclusively: 0 if the file does not say which; None if nobody
    does, or there is no file. Takes the lock for a moment, so those who want it have to wait a little. Raises
    StorageError."""
    try:
        fd = files.plain.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot be opened: {error.strerror}", place=str(path)) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdecimal() else 0
    finally:
        os.close(fd)
    return None


@contextlib.contextmanager
def locked_as_it_is(path: Path, what: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Holds the flock of a file that exists, and that this process may only read, exclusively. Its content stays, so
    the error does not name the holder. See :func:`locked`."""
    with storage_errors(path):
        fd = files.plain.open(path, os.O_RDONLY)
    try:
        _wait_for(fd, path, what, wait_s, fcntl.LOCK_EX, names_holder=False)
        yield
    finally:
        os.close(fd)


def _wait_for(fd: int, path: Path, what: str, wait_s: float, kind: int, *, names_holder: bool = True) -> None:
    deadline, pause_s = time.monotonic() + wait_s, 0.001
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() if names_holder else ""
                raise LeaseHeldError(
                    f"{what} (process {pid or 'unknown'}) holds this lock",
                    place=str(path),
                    remedy="Wait until it ends, or end it; the lock is released with its process.",
                ) from None
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, 0.02)
        except OSError as error:
            raise StorageError(
                f"cannot be locked: {error.strerror}", place=str(path), remedy="Put the folder on a local disk."
            ) from error


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns OSError into :func:`explain`'s error."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error


def explain(error: OSError, path: Path) -> CdcError:
    """Returns a ConfigError that names the file if its path is unusable, else a StorageError."""
    where = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path
    reason = error.strerror or str(error)
    if error.errno in _UNUSABLE:
        return ConfigError(
            f"cannot be used: {reason}",
            place=str(where),
            remedy="Make the folder writable for this user, or name another one in the configuration.",
        )
    remedy = "Free some space and try again." if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
    return StorageError(f"cannot be written or read: {reason}", place=str(where), remedy=remedy)
