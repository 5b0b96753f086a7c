"""The objects of an archive: in a folder, or in an object store that fsspec reaches.

An object is written whole or not at all, and never changed. :meth:`Objects.create` is the one operation on which two
writers meet: of two that create the same name, one is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from cdc.base.errors import CdcError, ConfigError, DamagedError, RetryableError
from cdc.disk import files, object_stores
from cdc.disk.durable import make_folder, storage_errors, sync_folder
from cdc.disk.permissions import READ, Permissions, secure_folder

_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 16 << 20
"""Bytes of an object that are sent or asked for together."""
_MOST_BLOCKS = 9000
"""S3 takes 10,000 parts of an object."""
_LOCAL = "file://"
_HOST = re.sub(r"[^A-Za-z0-9_]", "_", socket.gethostname())
_DAMAGED = (
    "Restore the object from a version or a copy that the object store has kept. Without it, `cdc archive verify` "
    "says what else is missing."
)


class Objects(ABC):
    """The objects below a URI. Names have slashes between folders.

    Errors of the object store are RetryableErrors: it may be away, or be out of reach for this machine.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    def place(self, name: str) -> str:
        """Returns the URI of an object."""
        return f"{self.uri}/{name}"

    def prepare(self, permissions: Permissions) -> None:  # noqa: B027 - an object store has rights of its own
        """Makes the folder, with the rights that the store has."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Returns the names of the objects in a folder, without it, sorted. A folder that is missing has none."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Returns the content of a small object; None if there is none."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Writes a small object that must be new. Returns False if another one has the name; True also if it is this
        one, from a try whose answer was lost."""

    @abstractmethod
    def require_create(self) -> None:
        """Raises ConfigError if :meth:`create` would replace an object. Leaves nothing behind."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes an object; it may be gone already."""

    @abstractmethod
    def _write(self, name: str, chunks: Iterator[bytes], size: int) -> None: ...

    @abstractmethod
    def _size(self, name: str) -> int | None: ...

    @abstractmethod
    def _open(self, name: str) -> IO[bytes]:
        """Raises FileNotFoundError if there is no such object."""

    @abstractmethod
    def _errors(self, name: str) -> contextlib.AbstractContextManager[None]: ...

    # --- with checksums

    def upload(self, name: str, source: Path, size: int, sha256: str) -> None:
        """Copies a file, and verifies the bytes that were sent and the size that the object store has.

        Raises DamagedError if the file is not the one with this size and SHA-256, RetryableError, StorageError.
        """
        digest = hashlib.sha256()
        sent = 0

        def chunks() -> Iterator[bytes]:
            nonlocal sent
            with storage_errors(source), source.open("rb") as file:
                while sent < size and (chunk := file.read(min(_CHUNK_BYTES, size - sent))):
                    sent += len(chunk)
                    digest.update(chunk)
                    yield chunk

        self._write(name, chunks(), size)
        if sent != size or digest.hexdigest() != sha256:
            self.remove(name)
            raise DamagedError("changed while it was copied to the archive", place=str(source))
        self._require_size(name, size)

    def put(self, name: str, data: bytes) -> None:
        """Writes a small object; the same object may be there already."""
        self._write(name, iter([data]), len(data))
        self._require_size(name, len(data))

    def _require_size(self, name: str, size: int) -> None:
        with self._errors(name):
            copied = self._size(name)
        if copied != size:
            what = "is missing" if copied is None else f"has {copied} bytes"
            raise RetryableError(f"{what} after {size} bytes were copied", place=self.place(name))

    def verify(self, name: str, size: int, sha256: str, sink: Callable[[bytes], object] = len) -> None:
        """Reads an object, and hands its bytes to ``sink``. Raises DamagedError if it is missing, or if its size or
        its SHA-256 is not this one; RetryableError."""
        digest, size_read = hashlib.sha256(), 0
        with self._errors(name):
            try:
                with self._open(name) as source:
                    while chunk := source.read(_CHUNK_BYTES):
                        size_read += len(chunk)
                        digest.update(chunk)
                        sink(chunk)
            except FileNotFoundError:
                raise DamagedError(
                    "this object of the archive is missing", place=self.place(name), remedy=_DAMAGED
                ) from None
        if size_read != size:
            raise DamagedError(
                f"this object of the archive has {size_read} bytes, and it was copied with {size}",
                place=self.place(name),
                remedy=_DAMAGED,
            )
        if digest.hexdigest() != sha256:
            raise DamagedError(
                "this object of the archive fails its checksum (SHA-256)", place=self.place(name), remedy=_DAMAGED
            )

    def get(self, name: str, size: int, sha256: str) -> bytes:
        """Returns the verified content of a small object. Raises what :meth:`verify` raises."""
        content = bytearray()
        self.verify(name, size, sha256, content.extend)
        return bytes(content)

    def download(self, name: str, target: Path, size: int, sha256: str) -> None:
        """Copies an object to a file, durably; the file is there only when it is whole and verified. Raises what
        :meth:`verify` raises, StorageError."""
        temporary = target.with_name(f".{target.name}.new")
        with storage_errors(target):
            fd = files.layer.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            try:
                self.verify(name, size, sha256, lambda chunk: _write_all(target, fd, chunk))
                with storage_errors(target):
                    files.layer.fsync(fd)
            finally:
                files.layer.close(fd)
            with storage_errors(target):
                files.layer.replace(temporary, target)
                sync_folder(target.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _write_all(target: Path, fd: int, chunk: bytes) -> None:
    with storage_errors(target):
        files.write_all(fd, chunk)


def open_objects(uri: str) -> Objects:
    """Returns the objects below a URI. Nothing is asked yet."""
    return LocalObjects(uri) if uri.startswith(_LOCAL) else RemoteObjects(uri)


class LocalObjects(Objects):
    """Objects that are files of this machine, or of a disk that it has mounted."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._folder = Path(self.uri.removeprefix(_LOCAL))

    def prepare(self, permissions: Permissions) -> None:
        secure_folder(self._folder, permissions, READ)

    def names(self, folder: str) -> list[str]:
        with self._errors(folder):
            try:
                listed = os.listdir(self._folder / folder)
            except FileNotFoundError:
                return []
        return sorted(name for name in listed if not name.startswith("."))

    def read(self, name: str) -> bytes | None:
        with self._errors(name):
            try:
                return (self._folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def create(self, name: str, data: bytes) -> bool:
        path = self._folder / name
        with self._errors(name):
            temporary = self._written(path, iter([data]))
            try:
                os.link(temporary, path)  # refused if the name is taken
            except FileExistsError:
                return path.read_bytes() == data
            finally:
                temporary.unlink()
            sync_folder(path.parent)
        return True

    def require_create(self) -> None:
        name = f".towpath-check-{os.getpid()}"
        try:
            self.create(name, b"")  # a link to a name that is taken is always refused, where there are links
        except RetryableError as error:
            raise ConfigError(
                f"nothing guards the archive there against a second store: {error.message}",
                place=self.uri,
                remedy="Name a folder that can be written, on a file system with hard links.",
            ) from None
        finally:
            self.remove(name)

    def remove(self, name: str) -> None:
        with self._errors(name):
            (self._folder / name).unlink(missing_ok=True)

    def _write(self, name: str, chunks: Iterator[bytes], size: int) -> None:
        path = self._folder / name
        with self._errors(name):
            os.replace(self._written(path, chunks), path)
            sync_folder(path.parent)

    def _written(self, path: Path, chunks: Iterator[bytes]) -> Path:
        """Writes a file under a temporary name of this process, durably."""
        make_folder(path.parent)
        self._remove_left(path)
        temporary = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}.new")
        fd = files.plain.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            for chunk in chunks:
                files.write_all(fd, chunk)
            os.fsync(fd)
        finally:
            os.close(fd)
        return temporary

    def _remove_left(self, path: Path) -> None:
        """Removes what killed processes of this machine have left of the same object."""
        for left in path.parent.glob(f".{path.name}.{_HOST}-*.new"):
            pid = left.name.removesuffix(".new").rpartition("-")[2]
            if pid.isdigit() and int(pid) != os.getpid() and not _is_running(int(pid)):
                left.unlink(missing_ok=True)

    def _size(self, name: str) -> int | None:
        try:
            return (self._folder / name).stat().st_size
        except FileNotFoundError:
            return None

    def _open(self, name: str) -> IO[bytes]:
        return (self._folder / name).open("rb")

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RetryableError(
                f"the archive cannot be read or written: {error.strerror or error}", place=self.place(name)
            ) from error


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class RemoteObjects(Objects):
    """Objects in an object store."""

    def names(self, folder: str) -> list[str]:
        with self._errors(folder):
            store, path = self._store(folder)
            store.invalidate_cache()
            try:
                listed = store.ls(path, detail=False)
            except FileNotFoundError:
                return []
        return sorted(str(entry).rstrip("/").rpartition("/")[2] for entry in listed)

    def read(self, name: str) -> bytes | None:
        with self._errors(name):
            store, path = self._store(name)
            try:
                return bytes(store.cat_file(path))
            except FileNotFoundError:
                return None

    def create(self, name: str, data: bytes) -> bool:
        with self._errors(name):
            store, path = self._store(name)
            try:
                store.pipe_file(path, data, mode="create")
                return True
            except Exception:
                # Each package has its own error for a name that is taken; and a try whose answer was lost is repeated.
                present = self.read(name)
                if present is None:
                    raise
                return present == data

    def require_create(self) -> None:
        try:
            refuses = object_stores.can_put_if_absent(self.uri)
        except FileNotFoundError as error:
            raise ConfigError(
                f"the archive cannot be written: {error}",
                place=self.uri,
                remedy="Make the bucket, or correct store.archive.",
            ) from None
        if not refuses:
            raise ConfigError(
                "this object store has no conditional puts, so two stores could replace each other's archive",
                place=self.uri,
                remedy="Update the object store, or choose another one for store.archive.",
            )

    def remove(self, name: str) -> None:
        with self._errors(name):
            store, path = self._store(name)
            with contextlib.suppress(FileNotFoundError):
                store.rm_file(path)

    def _write(self, name: str, chunks: Iterator[bytes], size: int) -> None:
        with self._errors(name):
            store, path = self._store(name)
            if size <= _CHUNK_BYTES:
                store.pipe_file(path, b"".join(chunks))
                return
            block = max(_BLOCK_BYTES, -(-size // _MOST_BLOCKS))
            with store.open(path, "wb", block_size=block) as target:
                for chunk in chunks:
                    target.write(chunk)

    def _size(self, name: str) -> int | None:
        store, path = self._store(name)
        store.invalidate_cache()
        try:
            return int(store.info(path)["size"])
        except FileNotFoundError:
            return None

    def _open(self, name: str) -> IO[bytes]:
        store, path = self._store(name)
        opened: IO[bytes] = store.open(path, "rb", block_size=_BLOCK_BYTES)
        return opened

    def _store(self, name: str) -> tuple[Any, str]:
        return object_stores.filesystem(self.place(name))

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except CdcError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise RetryableError(f"the archive cannot be read or written: {reason}", place=self.place(name)) from error
