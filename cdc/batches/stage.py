"""Staging: a batch's byte ranges, copied to where executors can read them (``store.stage``).

::

    {stage}/{destination}/{subscriber}/{batch:012d}-{random}/
        000000-{sha256}.binlog          a small segment: head, then whole transactions
        000000-{sha256}.binlog.index    its index
        {seq}-{sha256}.json             the schemas in force after the batch

They are copied before the manifest is written, without the meta's lock: a copy may take minutes. Whoever then finds
that another was faster removes its own folder; what a killed process left is removed by the next get. See
:mod:`cdc.store.reader.staged` for the readers' side.
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

from cdc import files
from cdc.batches.manifest import ByteRange
from cdc.binlog.entry import Entries
from cdc.durable import make_folder
from cdc.errors import CdcError, DamagedError, StorageError
from cdc.log import get_logger
from cdc.permissions import READ, Permissions, secure_folder
from cdc.store.formats.index import make_header, read_entries, seal
from cdc.store.formats.layout import INDEX_SUFFIX
from cdc.store.formats.segment_header import segment_header_size
from cdc.store.reader.batch_builder import Range
from cdc.store.reader.staged import fetch_errors, filesystem

PIECE_BYTES = 24 * 1024 * 1024
"""A staged file's size, about: one Spark task fetches one file, so larger files would be fetched several times."""
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
        piece_bytes: int = PIECE_BYTES,
        permissions: Permissions = "private",
    ) -> None:
        self._uri = f"{uri.rstrip('/')}/{destination}"
        self._permissions: Permissions = permissions
        self._piece_bytes = piece_bytes

    def copy(
        self, subscriber: str, batch: int, ranges: Iterable[Range], schema_path: Path | None
    ) -> tuple[tuple[ByteRange, ...], str | None]:
        """Copy ranges and schemas into a new folder; returns what the manifest then names. A transaction of any size
        is copied in constant memory. Raises StorageError, ConfigError, DamagedError; leaves nothing behind then."""
        folder = f"{self._uri}/{subscriber}/{batch:012d}-{secrets.token_hex(4)}"
        if self._uri.startswith(_LOCAL):
            secure_folder(Path(filesystem(self._uri)[1]), self._permissions, READ)
        try:
            staged: list[ByteRange] = []
            for each in ranges:
                for piece in _cut(read_entries(*each), self._piece_bytes):
                    staged.append(_copy_piece(folder, len(staged), each.path, piece))
            return tuple(staged), None if schema_path is None else _copy_schema(folder, schema_path)
        except BaseException:
            self._discard(folder)
            raise

    def discard(self, ranges: Iterable[ByteRange]) -> None:
        """Remove the folder of ranges that were copied in vain."""
        for folder in {each.path.rpartition("/")[0] for each in ranges}:
            self._discard(folder)

    def remove(self, subscriber: str, batches: Collection[int]) -> None:
        """Remove what was staged for batches that are over. What cannot be removed now is left to :meth:`sweep`."""
        for number, folder in self._folders(subscriber):
            if number in batches:
                self._discard(folder)

    def sweep(self, subscriber: str, below: int, keep: dict[int, str | None]) -> None:
        """Remove what belongs to no outstanding batch. ``keep``: the folder of each outstanding batch (None: not
        known, all of it is kept). Ids from ``below`` on may be being staged by another process, and are left alone."""
        for number, folder in self._folders(subscriber):
            wanted = number >= below or (number in keep and keep[number] in (None, folder))
            if not wanted:
                self._discard(folder)

    def _folders(self, subscriber: str) -> Iterator[tuple[int, str]]:
        uri = f"{self._uri}/{subscriber}"
        fs, path = filesystem(uri)
        try:
            fs.invalidate_cache(path)
            found = fs.ls(path, detail=False)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("the staging folder was not looked through", uri=uri, reason=str(error))
            return
        for each in sorted(found):
            match = _FOLDER.fullmatch(str(each).rstrip("/").rpartition("/")[2])
            if match is not None:
                yield int(match[1]), f"{uri}/{match[0]}"

    def _discard(self, folder: str) -> None:
        """Never fails: the batch is over, whether its copy can be removed or not."""
        try:
            fs, path = filesystem(folder)
            fs.rm(path, recursive=True)
        except FileNotFoundError:
            return
        except (OSError, CdcError) as error:
            _log.warning("a staged batch was not removed", uri=folder, reason=str(error))


def folder_of(ranges: Iterable[ByteRange]) -> str | None:
    """The staging folder that a manifest's ranges lie in."""
    return next((each.path.rpartition("/")[0] for each in ranges), None)


def _cut(entries: Entries, size_bytes: int) -> Iterator[Entries]:
    """Runs of transactions of at most about ``size_bytes``; a larger transaction is one of its own."""
    ends = (entries["offset"] + entries["length"]).astype(np.int64)
    starts = entries["offset"].astype(np.int64)
    first = 0
    while first < len(entries):
        following = max(first + 1, int(np.searchsorted(ends, int(starts[first]) + size_bytes, side="right")))
        yield entries[first:following]
        first = following


def _copy_piece(folder: str, number: int, segment: Path, entries: Entries) -> ByteRange:
    offset = int(entries["offset"][0])
    length = int(entries["offset"][-1]) + int(entries["length"][-1]) - offset
    try:
        with segment.open("rb") as source:
            head = source.read(segment_header_size(segment))
            sha256 = hashlib.sha256(head)
            for data in _read(source, offset, length):
                sha256.update(data)
            path = f"{folder}/{number:06d}-{sha256.hexdigest()}.binlog"
            _write(path, _chained(head, _read(source, offset, length)))
    except FileNotFoundError:
        raise DamagedError("this segment is missing", place=str(segment)) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror or error}", place=str(segment)) from error
    moved = entries.copy()
    moved["offset"] = moved["offset"] - np.uint64(offset) + np.uint64(len(head))
    _write(path + INDEX_SUFFIX, iter([make_header() + seal(moved)]))
    mask = int(np.bitwise_or.reduce(entries["table_mask"]))
    bits = tuple(bit for bit in range(64) if mask >> bit & 1)
    return ByteRange(path=path, offset=len(head), length=length, sha256=path.rpartition("-")[2][:64], table_bits=bits)


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
        if uri.startswith(_LOCAL):
            make_folder(Path(path).parent)
            opened: Any = os.fdopen(files.plain.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")
        else:
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            opened = fs.open(path, "wb")
        with opened as target:
            for piece in data:
                target.write(piece)
