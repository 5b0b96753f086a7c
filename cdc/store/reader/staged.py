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

import numpy as np

from cdc.binlog.entry import Entries
from cdc.errors import ConfigError, DamagedError, StorageError
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import INDEX_SUFFIX, index_path

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.")
_NAME = re.compile(r"[0-9]+-([0-9a-f]{64})\.[a-z]+")
_PIECE = 1 << 20
_STEPS = 16
"""Byte ranges that are asked for together, each of 1 MiB at most."""
_GAP_BYTES = 65536
"""So many bytes of others are fetched rather than asking for one more range."""
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


@contextmanager
def local_transactions(
    path: Path | str, offset: int | None, length: int | None, table_mask: int
) -> Iterator[tuple[Path, Entries]]:
    """The segment on this machine, and its verified entries in a byte range. Of a staged file the head is there, and at
    least the transactions that have one of the bits; where others are left out, their bytes are zeros.

    A whole file is compared with the SHA-256 in its name. Of parts, each event has its own CRC32, which whoever decodes
    them compares. Raises DamagedError, StorageError, ConfigError.
    """
    if not is_uri(path):
        yield Path(path), read_entries(Path(path), offset, length)
        return
    uri = str(path)
    with tempfile.TemporaryDirectory(prefix="towpath-staged-") as folder:
        copy = Path(folder) / uri.rpartition("/")[2]
        _fetch(uri + INDEX_SUFFIX, index_path(copy), None)
        try:
            everything = read_entries(copy)
            entries = everything if offset is None else read_entries(copy, offset, length)
        except DamagedError as error:
            raise DamagedError(error.message, place=uri + INDEX_SUFFIX, remedy=_REMEDY) from None
        wanted = entries[(entries["table_mask"] & np.uint64(table_mask)) != 0]
        runs = _runs(everything, wanted)
        if 2 * sum(stop - start for start, stop in runs) < _end(everything):
            _fetch_runs(uri, copy, runs)
        else:
            _fetch(uri, copy, _sha256_of(uri))
        yield copy, entries


def _runs(everything: Entries, wanted: Entries) -> list[tuple[int, int]]:
    """The file's head and the wanted transactions as byte ranges, those that lie close together as one."""
    if not len(everything):
        return []
    starts = np.concatenate([[0], wanted["offset"].astype(np.int64)])
    ends = np.concatenate([[int(everything["offset"][0])], (wanted["offset"] + wanted["length"]).astype(np.int64)])
    breaks = np.flatnonzero(starts[1:] - ends[:-1] > _GAP_BYTES)
    firsts = starts[np.concatenate([[0], breaks + 1])]
    lasts = ends[np.concatenate([breaks, [len(ends) - 1]])]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _end(entries: Entries) -> int:
    return int(entries["offset"][-1]) + int(entries["length"][-1]) if len(entries) else 0


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


def _fetch_runs(uri: str, target: Path, runs: list[tuple[int, int]]) -> None:
    """Fetch byte ranges of a file, each to where it lies in it; in steps, so that the memory is bounded."""
    fs, path = filesystem(uri)
    steps = [(start, min(start + _PIECE, stop)) for first, stop in runs for start in range(first, stop, _PIECE)]
    _sha256_of(uri)
    with refused(uri), target.open("wb") as copy:
        for at in range(0, len(steps), _STEPS):
            some = steps[at : at + _STEPS]
            starts, stops = [start for start, _ in some], [stop for _, stop in some]
            found = fs.cat_ranges([path] * len(some), starts, stops, on_error="raise")
            for (start, stop), data in zip(some, found, strict=True):
                if len(data) != stop - start:
                    raise DamagedError("this staged file is shorter than its index says", place=uri, remedy=_REMEDY)
                copy.seek(start)
                copy.write(data)


def _fetch(uri: str, target: Path, sha256: str | None) -> None:
    fs, path = filesystem(uri)
    digest = hashlib.sha256()
    with refused(uri), cast(IO[bytes], fs.open(path, "rb")) as source, target.open("wb") as copy:
        while piece := source.read(_PIECE):
            digest.update(piece)
            copy.write(piece)
    if sha256 is not None and digest.hexdigest() != sha256:
        raise DamagedError("this staged file fails its checksum (SHA-256)", place=uri, remedy=_REMEDY)
