"""Transactions in files: what is opened and mapped, and which of it is wanted."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import CHECKSUM_SIZE, HEADER_SIZE, MAGIC
from cdc.binlog.entry import Entries, EntryFlag
from cdc.binlog.events import parse_format_description
from cdc.binlog.file import BinlogFile, map_file
from cdc.errors import DamagedError, UsageError
from cdc.store.formats.layout import index_path, list_segments
from cdc.store.reader.staged import is_uri, local_transactions

Longs = npt.NDArray[np.int64]
ALL_TABLES = (1 << 64) - 1


@dataclass(frozen=True)
class Transactions:
    """Whole transactions in an opened file: ``entries`` say where, offsets in ``buf`` (uint8). ``path`` is for
    messages: a staged file's URI is a text."""

    path: Path | str
    buf: npt.NDArray[np.uint8]
    has_checksum: bool
    entries: Entries

    @property
    def tail(self) -> int:
        """Bytes of checksum at the end of each event."""
        return CHECKSUM_SIZE if self.has_checksum else 0

    def between(self, after_seq: int, upto_seq: int | None) -> Transactions:
        """Those with a larger seq than the one and no larger one than the other, without position entries and
        prepared ones."""
        entries = self.entries
        keep = (entries["length"] > 0) & (entries["seq"] > np.uint64(after_seq))
        keep &= (entries["flags"] & int(EntryFlag.XA_PREPARED | EntryFlag.POSITION)) == 0
        if upto_seq is not None:
            keep &= entries["seq"] <= np.uint64(upto_seq)
        return Transactions(self.path, self.buf, self.has_checksum, entries if keep.all() else entries[keep])

    def of_tables(self, mask: int) -> Transactions:
        """Those with one of the bits in their table mask."""
        if mask == ALL_TABLES:
            return self
        entries = self.entries[(self.entries["table_mask"] & np.uint64(mask)) != 0]
        return Transactions(self.path, self.buf, self.has_checksum, entries)

    def bounds(self) -> tuple[Longs, Longs]:
        """Where each begins and ends."""
        begin = self.entries["offset"].astype(np.int64)
        return begin, begin + self.entries["length"].astype(np.int64)


def open_range(
    path: Path | str, offset: int | None = None, length: int | None = None, table_mask: int = ALL_TABLES
) -> Transactions:
    """Map a segment, and read its index; only transactions with one of the bits of ``table_mask`` in their entry are
    wanted. Of a staged one (a URI) these are fetched first, or all of it where that costs little more; the mapping then
    outlives the copy. Raises DamagedError, StorageError, ConfigError."""
    with local_transactions(path, offset, length, table_mask) as (copy, entries):
        buf = map_file(copy)
    at = len(MAGIC)
    size = int.from_bytes(buf[at + 9 : at + 13].tobytes(), "little")
    if size < HEADER_SIZE or at + size > len(buf):
        raise DamagedError("does not begin with a format description", place=str(path))
    event = buf[at : at + size].tobytes()
    # Our segments always have checksums; a flipped algorithm byte must not switch their verification off.
    if zlib.crc32(event[:-4]) != int.from_bytes(event[-4:], "little"):
        raise DamagedError("the checksum of its format description is wrong", place=f"{path}: byte {at}")
    place = path if is_uri(path) else Path(path)
    return Transactions(place, buf, parse_format_description(event).has_checksum, entries).of_tables(table_mask)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        segments = list_segments(path)
        if not segments:
            raise UsageError(f"{path} is a folder, but not a store with segments", remedy="Give a store or files.")
        return segments
    if not path.exists():
        raise UsageError(f"{path} is not there", remedy="Give a binlog file, a segment or a store.")
    return [path]


def open_paths(paths: Iterable[Path | str]) -> Iterator[tuple[Transactions, Path, DamagedError | None]]:
    """Each file of the paths (folders are stores), opened; its path; and the damage behind its last transaction, if
    there is any. Raises UsageError for a path that is not there, DamagedError, StorageError."""
    for path in paths:
        for one in _files(Path(path)):
            if index_path(one).exists():
                yield open_range(one), one, None
            else:
                opened = BinlogFile.open(one)
                transactions = Transactions(opened.path, opened.buf, opened.has_checksum, opened.entries)
                yield transactions, one, opened.damage
