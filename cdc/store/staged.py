"""Byte ranges that were copied to a staging URI, for machines that do not see the store's disk.

A staged range is a small segment of its own: the segment's head, then whole transactions; its index lies beside it. A
file's name carries the SHA-256 of its content (``000000-<sha256>.binlog``), so whoever has the path can verify what it
fetched. :mod:`cdc.batches.stage` writes them. fsspec is imported only where a path is a URI.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from cdc.binlog.entry import Entries
from cdc.errors import ConfigError, DamagedError, StorageError
from cdc.store.layout import INDEX_SUFFIX, index_path
from cdc.store.relaylog.index import read_entries

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.")
_NAME = re.compile(r"[0-9]+-([0-9a-f]{64})\.[a-z]+")
_PIECE = 1 << 20
_REMEDY = "Roll the batch back: its transactions are staged anew."


def is_uri(path: Path | str) -> bool:
    """Is this a staged file, and not one on this machine's disks?"""
    return isinstance(path, str) and _URI.match(path) is not None


def filesystem(uri: str) -> tuple[Any, str]:
    """fsspec's file system for a URI, and the URI's path in it. Raises ConfigError where nothing speaks its
    protocol."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ConfigError(
            "needs the package fsspec, which is not installed", place=uri, remedy="Install towpath[stage]."
        ) from None
    try:
        fs, path = url_to_fs(uri)
    except ImportError as error:
        raise ConfigError(f"cannot be used: {error}", place=uri, remedy="Install it on every machine.") from None
    except ValueError as error:
        raise ConfigError(f"cannot be used: {error}", place=uri) from None
    return fs, cast(str, path)


@contextmanager
def refused(uri: str) -> Iterator[None]:
    """What the file system raises, as a StorageError; a missing file as a DamagedError."""
    try:
        yield
    except FileNotFoundError:
        raise DamagedError("this staged file is missing", place=uri, remedy=_REMEDY) from None
    except OSError as error:
        raise StorageError(f"cannot be read or written: {error.strerror or error}", place=uri) from error


@contextmanager
def local_copy(path: Path | str, *, with_index: bool = False) -> Iterator[Path]:
    """The file on this machine: itself, or a verified copy that is gone after the block (what was mapped meanwhile
    stays). ``with_index``: the index beside it, too. Raises DamagedError where a checksum does not fit or a file is
    missing, StorageError, ConfigError."""
    if not is_uri(path):
        yield Path(path)
        return
    uri = str(path)
    name = uri.rpartition("/")[2]
    with tempfile.TemporaryDirectory(prefix="towpath-staged-") as folder:
        copy = Path(folder) / name
        _fetch(uri, copy, _sha256_of(uri))
        if with_index:
            _fetch(uri + INDEX_SUFFIX, index_path(copy), None)
        yield copy


def staged_entries(path: Path | str, offset: int, length: int) -> Entries:
    """The verified index entries of a byte range, staged or not; of a staged one only the index is fetched."""
    if not is_uri(path):
        return read_entries(Path(path), offset, length)
    uri = str(path)
    with tempfile.TemporaryDirectory(prefix="towpath-staged-") as folder:
        segment = Path(folder) / uri.rpartition("/")[2]
        # The index needs no checksum in its name: each entry has one, and together they must cover the range.
        _fetch(uri + INDEX_SUFFIX, index_path(segment), None)
        try:
            return read_entries(segment, offset, length)
        except DamagedError as error:
            raise DamagedError(error.message, place=uri + INDEX_SUFFIX, remedy=_REMEDY) from None


def _sha256_of(uri: str) -> str:
    match = _NAME.fullmatch(uri.rpartition("/")[2])
    if match is None:
        raise DamagedError("is not a staged file: its name holds no SHA-256", place=uri, remedy=_REMEDY)
    return match[1]


def _fetch(uri: str, target: Path, sha256: str | None) -> None:
    fs, path = filesystem(uri)
    digest = hashlib.sha256()
    with refused(uri), cast(IO[bytes], fs.open(path, "rb")) as source, target.open("wb") as copy:
        while piece := source.read(_PIECE):
            digest.update(piece)
            copy.write(piece)
    if sha256 is not None and digest.hexdigest() != sha256:
        raise DamagedError("this staged file fails its checksum (SHA-256)", place=uri, remedy=_REMEDY)
