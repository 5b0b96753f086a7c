"""Staging: copies of a batch's byte ranges where executors can read them (``store.stage``).

::

    {stage}/{destination}/{subscriber}/{batch:012d}-{random}/
        000000-{sha256}.binlog          a small segment: head, then whole transactions
        000000-{sha256}.binlog.index    its index
        000000-{sha256}.sealed          the same encrypted, if a key is registered for the stage
        {seq}-{sha256}.json             the schemas in force after the batch

The copies are made before the manifest is written, without the meta's lock, because copying may take minutes. A process
that finds another one to be faster removes its own folder. The next get removes what killed processes left behind.
Executors read the copies with :mod:`cdc.store.reader.staged`.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from cdc.base.errors import CdcError, ConfigError, DamagedError, StorageError
from cdc.base.log import get_logger
from cdc.batches.manifest import BatchFiles, ByteRange
from cdc.binlog.entry import Entries
from cdc.disk import files
from cdc.disk.durable import make_folder
from cdc.disk.encryption import keys
from cdc.disk.encryption.append import WholeFile
from cdc.disk.encryption.read import open_content
from cdc.disk.permissions import READ, Permissions, secure_folder
from cdc.store.formats.index import make_header, read_entries, seal
from cdc.store.formats.layout import INDEX_SUFFIX
from cdc.store.formats.segment_header import segment_header_size
from cdc.store.reader.batch_builder import Range
from cdc.store.reader.staged import SEALED_SUFFIX, fetch_errors, filesystem

STAGED_FILE_BYTES = 24 * 1024 * 1024
"""The approximate size of a staged file. One Spark task fetches one file; larger files would be fetched repeatedly."""
_COPY_BYTES = 1 << 20
_LOCAL = "file://"
_FOLDER = re.compile(r"(\d{12})-[0-9a-f]{8}")
_log = get_logger(__name__)


class Stage:
    """The staging folder of one destination."""

    def __init__(
        self,
        uri: str,
        destination: str,
        *,
        file_bytes: int = STAGED_FILE_BYTES,
        permissions: Permissions = "private",
    ) -> None:
        self._uri = f"{uri.rstrip('/')}/{destination}"
        self._permissions: Permissions = permissions
        self._file_bytes = file_bytes

    def copy(self, subscriber: str, batch: int, ranges: Iterable[Range], schema_path: Path | None) -> BatchFiles:
        """Copies ranges and schemas into a new folder, in constant memory whatever the size of a transaction.

        Raises StorageError, ConfigError, DamagedError; then the folder is removed.
        """
        folder = f"{self._uri}/{subscriber}/{batch:012d}-{secrets.token_hex(4)}"
        if self._uri.startswith(_LOCAL):
            secure_folder(Path(filesystem(self._uri)[1]), self._permissions, READ)
        try:
            staged: list[ByteRange] = []
            for byte_range in ranges:
                for entries in _split(read_entries(*byte_range), self._file_bytes):
                    staged.append(_copy_transactions(folder, len(staged), byte_range.path, entries))
            return BatchFiles(tuple(staged), None if schema_path is None else _copy_schema(folder, schema_path))
        except BaseException:
            self._discard(folder)
            raise

    def discard(self, staged: BatchFiles) -> None:
        """Removes the folder of copies that are not needed."""
        for folder in {byte_range.path.rpartition("/")[0] for byte_range in staged.ranges}:
            self._discard(folder)

    def remove(self, subscriber: str, batches: Collection[int]) -> None:
        """Removes the copies of batches that have ended. :meth:`sweep` removes those that cannot be removed now."""
        for number, folder in self._folders(subscriber):
            if number in batches:
                self._discard(folder)

    def sweep(self, subscriber: str, below: int, keep: dict[int, str | None]) -> None:
        """Removes copies that belong to no outstanding batch.

        ``keep`` has the folder of each outstanding batch; None: it is not known, and all its folders are kept. Batches
        from id ``below`` on are left alone, because another process may be staging them.
        """
        for number, folder in self._folders(subscriber):
            kept = number >= below or (number in keep and keep[number] in (None, folder))
            if not kept:
                self._discard(folder)

    def _folders(self, subscriber: str) -> Iterator[tuple[int, str]]:
        uri = f"{self._uri}/{subscriber}"
        fs, path = filesystem(uri)
        try:
            fs.invalidate_cache(path)
            listed = fs.ls(path, detail=False)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("the staging folder could not be listed", uri=uri, reason=str(error))
            return
        for listed_path in sorted(listed):
            match = _FOLDER.fullmatch(str(listed_path).rstrip("/").rpartition("/")[2])
            if match is not None:
                yield int(match[1]), f"{uri}/{match[0]}"

    def _discard(self, folder: str) -> None:
        """Removes a folder. Failures are logged only, because the batch has ended anyway."""
        try:
            fs, path = filesystem(folder)
            fs.rm(path, recursive=True)
        except FileNotFoundError:
            return
        except (OSError, CdcError) as error:
            _log.warning("a staged batch could not be removed", uri=folder, reason=str(error))


def folder_of(ranges: Iterable[ByteRange]) -> str | None:
    """Returns the staging folder of a manifest's ranges; None if it has no ranges."""
    return next((byte_range.path.rpartition("/")[0] for byte_range in ranges), None)


def _split(entries: Entries, size_bytes: int) -> Iterator[Entries]:
    """Splits entries into runs of at most about ``size_bytes``; a larger transaction is a run of its own."""
    ends = (entries["offset"] + entries["length"]).astype(np.int64)
    starts = entries["offset"].astype(np.int64)
    first = 0
    while first < len(entries):
        following = max(first + 1, int(np.searchsorted(ends, int(starts[first]) + size_bytes, side="right")))
        yield entries[first:following]
        first = following


def _copy_transactions(folder: str, number: int, segment: Path, entries: Entries) -> ByteRange:
    offset = int(entries["offset"][0])
    length = int(entries["offset"][-1]) + int(entries["length"][-1]) - offset
    key = keys.writing_key(folder)
    sealed = None if key is None else WholeFile(key)
    try:
        with open_content(segment) as source:
            head = source.read(segment_header_size(segment))

            def content() -> Iterator[bytes]:
                whole = _chained(head, _read(source, offset, length))
                return whole if sealed is None else sealed.bytes_of(whole)

            sha256 = hashlib.sha256()
            for data in content():
                sha256.update(data)
            path = f"{folder}/{number:06d}-{sha256.hexdigest()}{'.binlog' if sealed is None else SEALED_SUFFIX}"
            _write(path, content())
    except FileNotFoundError:
        raise DamagedError("this segment is missing", place=str(segment)) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror or error}", place=str(segment)) from error
    moved = entries.copy()
    moved["offset"] = moved["offset"] - np.uint64(offset) + np.uint64(len(head))
    _write(path + INDEX_SUFFIX, iter([make_header() + seal(moved)]))
    mask = int(np.bitwise_or.reduce(entries["table_mask"]))
    bits = tuple(bit for bit in range(64) if mask >> bit & 1)
    return ByteRange(path=path, offset=len(head), length=length, sha256=sha256.hexdigest(), table_bits=bits)


def _copy_schema(folder: str, schema_path: Path) -> str:
    try:
        data = schema_path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(schema_path)) from error
    path = f"{folder}/{schema_path.stem}-{hashlib.sha256(data).hexdigest()}.json"
    _write(path, iter([data]))
    return path


def _read(source: IO[bytes], offset: int, length: int) -> Iterator[bytes]:
    source.seek(offset)
    while length:
        data = source.read(min(_COPY_BYTES, length))
        if not data:
            raise DamagedError("is shorter than its index says", place=source.name)
        length -= len(data)
        yield data


def _chained(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from rest


def _write(uri: str, data: Iterator[bytes]) -> None:
    fs, path = filesystem(uri)
    with fetch_errors(uri):
        try:
            if uri.startswith(_LOCAL):
                make_folder(Path(path).parent)
                opened: Any = os.fdopen(files.plain.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")
            else:
                opened = _open_new(fs, path)
            with opened as target:
                for chunk in data:
                    target.write(chunk)
        except FileNotFoundError as error:
            raise ConfigError(
                f"cannot be written: {error}", place=uri, remedy="Make the bucket, or correct store.stage."
            ) from None


def _open_new(fs: Any, path: str) -> Any:
    """Opens a file for writing. Object stores need no folder, and some of fsspec's packages would make a bucket that
    they cannot see."""
    try:
        return fs.open(path, "wb")
    except FileNotFoundError:
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        return fs.open(path, "wb")
