"""Reads byte ranges that were copied to a staging URI, for machines that do not see the store's disk.

A staged range is a small segment of its own: the segment's header, then whole transactions; its index lies beside it. A
file's name carries the SHA-256 of its content (``000000-<sha256>.binlog``), so a fetched copy can be verified by its
path alone. :mod:`cdc.batches.stage` writes them. fsspec is imported only if a path is a URI.

A staged range of an encrypted store is encrypted (``000000-<sha256>.sealed``), and so is its fetched copy. It is
decrypted into memory.

A URI may also name a segment in the store of a server (:mod:`cdc.wire.files`). Of such a segment only the entries and
the bytes of the range are fetched, into memory, so that no disk gets what the server may have decrypted. Each answer of
the server is compared with its SHA-256; the entries have a CRC32 each, and the decoder compares those of the events.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from cdc.base.errors import ConfigError, DamagedError, StorageError, UsageError
from cdc.binlog.entry import Entries
from cdc.disk import files
from cdc.disk.durable import storage_errors
from cdc.disk.encryption import container, keys
from cdc.disk.encryption.keys import WrappingKey
from cdc.disk.encryption.read import MappedContent, empty_memory, header_of, map_content
from cdc.store.formats.index import make_header, read_entries
from cdc.store.formats.layout import INDEX_SUFFIX, index_path
from cdc.store.formats.segment_header import segment_header_size
from cdc.wire.files import ServedFile, is_served, served_file

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.")
_NAME = re.compile(r"[0-9]+-([0-9a-f]{64})\.[a-z]+")
_CHUNK_BYTES = 1 << 20
_AT_ONCE = 16
"""Byte ranges that are fetched together, each of 1 MiB at most."""
_GAP_BYTES = 65536
"""A gap of so many bytes is fetched rather than asking for one more range."""
_HEAD_BYTES = 4096
"""A segment's header is shorter."""
SEALED_SUFFIX = ".sealed"
"""Suffix of an encrypted staged range."""
_REMEDY = "Roll the batch back: its transactions are staged anew."


def is_uri(path: Path | str) -> bool:
    """Returns whether a path is a staged file's URI, and not a file of this machine."""
    return isinstance(path, str) and _URI.match(path) is not None


def filesystem(uri: str) -> tuple[Any, str]:
    """Returns fsspec's file system for a URI, and the URI's path in it. Raises ConfigError if no installed package
    supports the protocol."""
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
def fetch_errors(uri: str) -> Iterator[None]:
    """Turns the file system's errors into StorageError, and a missing file into DamagedError."""
    try:
        yield
    except FileNotFoundError:
        raise DamagedError("this staged file is missing", place=uri, remedy=_REMEDY) from None
    except OSError as error:
        raise StorageError(f"cannot be read or written: {error.strerror or error}", place=uri) from error


@contextmanager
def local_copy(path: Path | str) -> Iterator[Path]:
    """Yields the file on this machine: itself, or a verified copy that is removed after the block (memory maps of it
    stay valid). Raises DamagedError if a checksum is wrong or the file is missing, StorageError, ConfigError."""
    if not is_uri(path):
        yield Path(path)
        return
    uri = str(path)
    name = uri.rpartition("/")[2]
    if is_served(path):
        with tempfile.TemporaryDirectory(prefix="towpath-served-") as folder:
            copy = Path(folder) / name
            with _new_file(copy) as target:
                target.write(served_file(uri).read())
            yield copy
        return
    with tempfile.TemporaryDirectory(prefix="towpath-staged-") as folder:
        copy = Path(folder) / name
        _fetch(uri, copy, _sha256_of(uri))
        yield copy


@contextmanager
def local_transactions(
    path: Path | str,
    offset: int | None,
    length: int | None,
    table_mask: int,
    only: Sequence[tuple[int, int]] | None = None,
) -> Iterator[tuple[MappedContent, Entries]]:
    """Yields the content of a segment, and its verified entries in a byte range. Only the header and the transactions
    that have one of the bits of ``table_mask``, or only the byte ranges of ``only``, are certain to be there; others
    may be zeros. The content may be used after the block.

    A whole file is compared with the SHA-256 in its name. In a part of a file each event has its own CRC32, which the
    decoder compares. Raises DamagedError, StorageError, ConfigError.
    """
    if not is_uri(path):
        with storage_errors(Path(path)):
            mapped = map_content(Path(path))
            entries = read_entries(Path(path), offset, length)
            if mapped.is_encrypted:
                _load_wanted(mapped, segment_header_size(Path(path)), entries, table_mask, only)
        yield mapped, entries
        return
    uri = str(path)
    if is_served(path):
        yield _served_transactions(served_file(uri), offset, length, table_mask, only)
        return
    with tempfile.TemporaryDirectory(prefix="towpath-staged-") as folder:
        copy = Path(folder) / uri.rpartition("/")[2]
        _fetch(uri + INDEX_SUFFIX, index_path(copy), None)
        try:
            everything = read_entries(copy)
            entries = everything if offset is None else read_entries(copy, offset, length)
        except DamagedError as error:
            raise DamagedError(error.message, place=uri + INDEX_SUFFIX, remedy=_REMEDY) from None
        runs = _wanted_runs(int(everything["offset"][0]), entries, table_mask, only) if len(everything) else []
        if 2 * sum(stop - start for start, stop in runs) < _end(everything):
            _fetch_runs(uri, copy, runs, _end(everything))
        else:
            _fetch(uri, copy, _sha256_of(uri))
        with storage_errors(copy):
            mapped = map_content(copy)
            _load(mapped, runs)
        yield mapped, entries


def _load_wanted(
    mapped: MappedContent, head: int, entries: Entries, table_mask: int, only: Sequence[tuple[int, int]] | None
) -> None:
    """Decrypts what is wanted of a local segment. Raises DamagedError if something of that is damaged; bytes between
    two transactions may be lost ones."""
    try:
        _load(mapped, _wanted_runs(head, entries, table_mask, only))
    except DamagedError:
        _load(mapped, _wanted_runs(head, entries, table_mask, only, gap_bytes=0))


def _load(mapped: MappedContent, runs: list[tuple[int, int]]) -> None:
    for start, stop in runs:
        mapped.load(start, stop)


def _served_transactions(
    served: ServedFile, offset: int | None, length: int | None, table_mask: int, only: Sequence[tuple[int, int]] | None
) -> tuple[MappedContent, Entries]:
    if offset is None or length is None:
        raise UsageError("only ranges of a server's segment can be read", place=served.path)
    with tempfile.TemporaryDirectory(prefix="towpath-served-") as folder:
        entries = _served_entries(served, Path(folder) / served.name, offset, length)
    runs = _wanted_runs(min(offset, _HEAD_BYTES), entries, table_mask, only)
    buf, memory = empty_memory(max(stop for _, stop in runs))
    target = memoryview(memory)
    for start, data in served.ranges(runs):
        target[start : start + len(data)] = data
    return MappedContent(buf), entries


def _served_entries(served: ServedFile, copy: Path, offset: int, length: int) -> Entries:
    """Returns the verified index entries of a byte range of a server's segment."""
    index = index_path(copy)
    with storage_errors(index):
        index.write_bytes(make_header() + b"".join(served.entries(offset, length)))
    try:
        return read_entries(copy, offset, length)
    except DamagedError as error:
        raise DamagedError(error.message, place=f"{served.connection.place}/{served.path}{INDEX_SUFFIX}") from None


def _wanted_runs(
    head: int,
    entries: Entries,
    table_mask: int,
    only: Sequence[tuple[int, int]] | None,
    *,
    gap_bytes: int | None = None,
) -> list[tuple[int, int]]:
    """Returns the byte ranges of the file's first ``head`` bytes and of the wanted transactions, or of ``only``;
    neighbours are joined."""
    gap_bytes = _GAP_BYTES if gap_bytes is None else gap_bytes
    if only is None:
        matching = entries[(entries["table_mask"] & np.uint64(table_mask)) != 0]
        starts = matching["offset"].astype(np.int64)
        ends = (matching["offset"] + matching["length"]).astype(np.int64)
    else:
        starts, ends = np.array(sorted(only), dtype=np.int64).reshape(-1, 2).T
    starts, ends = np.concatenate([[0], starts]), np.concatenate([[head], ends])
    ends = np.maximum.accumulate(ends)
    breaks = np.flatnonzero(starts[1:] - ends[:-1] > gap_bytes)
    firsts = starts[np.concatenate([[0], breaks + 1])]
    lasts = ends[np.concatenate([breaks, [len(ends) - 1]])]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _end(entries: Entries) -> int:
    return int(entries["offset"][-1]) + int(entries["length"][-1]) if len(entries) else 0


def staged_entries(path: Path | str, offset: int, length: int) -> Entries:
    """Returns the verified index entries of a byte range, staged or not; of a staged one only the index is fetched.
    Raises DamagedError, StorageError, ConfigError."""
    if not is_uri(path):
        return read_entries(Path(path), offset, length)
    uri = str(path)
    if is_served(path):
        with tempfile.TemporaryDirectory(prefix="towpath-served-") as folder:
            served = served_file(uri)
            return _served_entries(served, Path(folder) / served.name, offset, length)
    with tempfile.TemporaryDirectory(prefix="towpath-staged-") as folder:
        segment = Path(folder) / uri.rpartition("/")[2]
        # The index needs no checksum in its name: each entry has one, and together they must cover the range.
        _fetch(uri + INDEX_SUFFIX, index_path(segment), None)
        try:
            return read_entries(segment, offset, length)
        except DamagedError as error:
            raise DamagedError(error.message, place=uri + INDEX_SUFFIX, remedy=_REMEDY) from None


def keys_of(paths: Iterable[str]) -> tuple[WrappingKey, ...]:
    """Returns the keys that open these segments, staged or not, for other processes that read them. Raises ConfigError
    if a key of a local one is not known, StorageError, DamagedError."""
    keys_by_id: dict[str, WrappingKey] = {}
    for path in dict.fromkeys(paths):
        if not is_uri(path):
            with storage_errors(Path(path)):
                header = header_of(Path(path))
            if header is not None and header.key_id not in keys_by_id:
                keys_by_id[header.key_id] = keys.find(header.key_id, path)
        elif path.endswith(SEALED_SUFFIX):
            keys_by_id |= {key.id: key for key in keys.known()}
    return tuple(keys_by_id.values())


def _sha256_of(uri: str) -> str:
    match = _NAME.fullmatch(uri.rpartition("/")[2])
    if match is None:
        raise DamagedError("is not a staged file: its name holds no SHA-256", place=uri, remedy=_REMEDY)
    return match[1]


def _fetch_runs(uri: str, target: Path, runs: list[tuple[int, int]], size_bytes: int) -> None:
    """Fetches byte ranges of a file, whose content has ``size_bytes``, to the same offsets in a copy, some at a time,
    so that memory is bounded."""
    fs, path = filesystem(uri)
    size = _CHUNK_BYTES
    if uri.endswith(SEALED_SUFFIX):
        runs = container.ranges_of(runs, size_bytes)
    steps = [(start, min(start + size, stop)) for first, stop in runs for start in range(first, stop, size)]
    _sha256_of(uri)
    with fetch_errors(uri), _new_file(target) as copy:
        for at in range(0, len(steps), _AT_ONCE):
            steps_now = steps[at : at + _AT_ONCE]
            starts, stops = [start for start, _ in steps_now], [stop for _, stop in steps_now]
            chunks = fs.cat_ranges([path] * len(steps_now), starts, stops, on_error="raise")
            for (start, stop), data in zip(steps_now, chunks, strict=True):
                if len(data) != stop - start:
                    raise DamagedError("this staged file is shorter than its index says", place=uri, remedy=_REMEDY)
                copy.seek(start)
                copy.write(data)


def _new_file(path: Path) -> IO[bytes]:
    """Creates a file that only this user can read."""
    return os.fdopen(files.plain.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")


def _fetch(uri: str, target: Path, sha256: str | None) -> None:
    fs, path = filesystem(uri)
    digest = hashlib.sha256()
    with fetch_errors(uri), cast(IO[bytes], fs.open(path, "rb")) as source, _new_file(target) as copy:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
    if sha256 is not None and digest.hexdigest() != sha256:
        raise DamagedError("this staged file fails its checksum (SHA-256)", place=uri, remedy=_REMEDY)
