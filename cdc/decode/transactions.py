"""Opens and maps files of transactions, selects among the transactions, and finds the table schemas stored with
them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.base.errors import DamagedError, UsageError
from cdc.binlog.constants import CHECKSUM_SIZE, HEADER_SIZE, MAGIC, EventType
from cdc.binlog.entry import Entries, EntryFlag, format_gtid
from cdc.binlog.events import FormatDescription, QueryEvent, parse_format_description, parse_header, parse_query
from cdc.binlog.file import BinlogFile, require_binlog
from cdc.binlog.sql.schemas import Schemas, TableSchema
from cdc.decode.kernels.scan import TransactionBytes
from cdc.store.formats.layout import index_path, list_segments, schema_files, schemas_folder, segments_folder
from cdc.store.reader.staged import is_uri, local_transactions

Longs = npt.NDArray[np.int64]
ALL_TABLES = (1 << 64) - 1
_QUERIES = (EventType.QUERY, EventType.EXECUTE_LOAD_QUERY, EventType.MARIADB_QUERY_COMPRESSED)


@dataclass(frozen=True)
class Transactions:
    """Whole transactions in an opened file. ``entries`` hold their offsets in ``buf`` (uint8); ``path`` is for
    messages, and a string if it is the URI of a staged file."""

    path: Path | str
    buf: npt.NDArray[np.uint8]
    has_checksum: bool
    entries: Entries
    verified: bool = False
    """Whether this process has just verified the checksums of all events, so that it need not do it again."""
    writer: FormatDescription | None = None
    """The file's format description, which tells the server that wrote the events; None if it is not known."""

    @property
    def tail(self) -> int:
        """Bytes of checksum at the end of each event."""
        return CHECKSUM_SIZE if self.has_checksum else 0

    def between(self, after_seq: int, upto_seq: int | None) -> Transactions:
        """The transactions with ``after_seq`` < seq ≤ ``upto_seq``, without position entries and prepared ones."""
        entries = self.entries
        keep = (entries["length"] > 0) & (entries["seq"] > np.uint64(after_seq))
        keep &= (entries["flags"] & int(EntryFlag.XA_PREPARED | EntryFlag.POSITION)) == 0
        if upto_seq is not None:
            keep &= entries["seq"] <= np.uint64(upto_seq)
        return self if keep.all() else replace(self, entries=entries[keep])

    def of_tables(self, mask: int) -> Transactions:
        """The transactions with at least one of the bits in their table mask."""
        if mask == ALL_TABLES:
            return self
        return replace(self, entries=self.entries[(self.entries["table_mask"] & np.uint64(mask)) != 0])

    def bounds(self) -> tuple[Longs, Longs]:
        """The offsets of each transaction's first byte, and behind its last."""
        begin = self.entries["offset"].astype(np.int64)
        return begin, begin + self.entries["length"].astype(np.int64)

    def queries(self, begin: int, end: int) -> Iterator[tuple[int, QueryEvent]]:
        """Yields the statements between two offsets, each with the offset of its event. Raises DamagedError."""
        at = begin
        while at < end:
            header = parse_header(self.buf[at : at + HEADER_SIZE].tobytes())
            if header.length < HEADER_SIZE or at + header.length > end:
                raise DamagedError("an event's length is impossible", place=f"{self.path}, byte {at}")
            if header.type in _QUERIES:
                yield at, parse_query(self.buf[at : at + header.length].tobytes(), self.has_checksum)
            at += header.length

    def for_kernels(self, stop: int | None = None) -> TransactionBytes:
        """The transactions for the scan kernels, up to the offset ``stop``."""
        begin, end = self.bounds()
        return TransactionBytes(self.buf, begin, end if stop is None else np.minimum(end, stop), self.tail)


# ---------------------------------------------------------------- opening files


def open_range(
    path: Path | str,
    offset: int | None = None,
    length: int | None = None,
    table_mask: int = ALL_TABLES,
    only: Sequence[tuple[int, int]] | None = None,
) -> Transactions:
    """Maps a segment and reads the part of its index that describes the byte range, or all of it.

    Only transactions with one of the bits of ``table_mask`` in their index entry are returned. For a staged segment (a
    URI) only their bytes are fetched, or the whole range if that costs little more; the mapping outlives the local
    copy. Of an encrypted segment only their bytes are decrypted, into memory. ``only`` restricts both to some byte
    ranges. Raises DamagedError, StorageError, ConfigError.
    """
    with local_transactions(path, offset, length, table_mask, only) as (mapped, entries):
        require_binlog(mapped, path)
        buf = mapped.buf
    at = len(MAGIC)
    size = int.from_bytes(buf[at + 9 : at + 13].tobytes(), "little")
    if size < HEADER_SIZE or at + size > len(buf):
        raise DamagedError("does not begin with a format description", place=str(path))
    event = buf[at : at + size].tobytes()
    # Segments always have checksums: a flipped algorithm byte must not switch their verification off.
    if zlib.crc32(event[:-4]) != int.from_bytes(event[-4:], "little"):
        raise DamagedError("the checksum of its format description is wrong", place=f"{path}: byte {at}")
    place = path if is_uri(path) else Path(path)
    description = parse_format_description(event)
    transactions = Transactions(place, buf, description.has_checksum, entries, writer=description)
    return transactions.of_tables(table_mask)


def open_paths(paths: Iterable[Path | str]) -> Iterator[tuple[Transactions, Path, DamagedError | None]]:
    """Opens the files of the paths (folders are stores) one after another. Yields each file's transactions, its path,
    and the damage behind its last whole transaction, if there is any. Raises UsageError for a path that does not exist,
    DamagedError, StorageError."""
    for path in paths:
        for file in _files(Path(path)):
            if index_path(file).exists():
                yield open_range(file), file, None
            else:
                opened = BinlogFile.open(file)
                transactions = Transactions(
                    opened.path,
                    opened.buf,
                    opened.has_checksum,
                    opened.entries,
                    verified=True,
                    writer=opened.description,
                )
                yield transactions, file, opened.damage


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        segments = list_segments(path)
        if not segments:
            raise UsageError(f"{path} is a folder, but not a store with segments", remedy="Give a store or files.")
        return segments
    if not path.exists():
        raise UsageError(f"{path} does not exist", remedy="Give a binlog file, a segment or a store.")
    return [path]


# ---------------------------------------------------------------- stored table schemas


@dataclass(frozen=True)
class TableHistory:
    """The descriptions of one table in ``information_schema`` that capture stored. Each is in force after the seq in
    ``since`` (ascending); the first one also before it."""

    since: tuple[int, ...] = ()
    schema: Callable[[int], TableSchema | None] = lambda _: None
    """Returns a description by its number. Its file is read only when rows need it."""

    @classmethod
    def always(cls, schema: TableSchema | None) -> TableHistory:
        """The history of a table with one description, or with none."""
        return cls((0,), lambda _: schema)

    def at(self, seqs: npt.NDArray[np.uint64]) -> Longs:
        """The numbers of the descriptions in force at these seqs."""
        if len(self.since) < 2:
            return np.zeros(len(seqs), dtype=np.int64)
        numbers = np.searchsorted(np.array(self.since, dtype=np.uint64), seqs, side="right") - 1
        return np.maximum(numbers, 0).astype(np.int64)


NO_HISTORY = TableHistory()


def history_of(path: Path, table: str) -> TableHistory:
    """The history of a table in the store of a segment; NO_HISTORY for a file that is not in a store."""
    store = path.parent.parent
    files = schema_files(schemas_folder(store)) if path.parent == segments_folder(store) else []
    if not files:
        return NO_HISTORY
    return TableHistory(tuple(seq for seq, _ in files), lambda number: Schemas.load(files[number][1]).tables.get(table))


# ---------------------------------------------------------------- GTIDs


def gtid_strings(entries: Entries) -> pa.Array:
    """The (last) GTID of each index entry as the server prints it; null for entries without one.

    Most transactions differ only in the number, so the rest is formatted once for each distinct source.
    """
    if len(entries) == 0:
        return pa.array([], pa.string())
    key = np.zeros((len(entries), 50), dtype=np.uint8)
    key[:, :16] = np.ascontiguousarray(entries["gtid_source"]).view(np.uint8).reshape(-1, 16)
    key[:, 16:48] = np.ascontiguousarray(entries["gtid_tag"]).view(np.uint8).reshape(-1, 32)
    key[:, 48] = (entries["flags"] & int(EntryFlag.GTID_MARIADB)) != 0
    key[:, 49] = entries["gtid_count"] != 0
    if (key == key[0]).all():
        first, inverse = np.zeros(1, dtype=np.int64), np.zeros(len(entries), dtype=np.int64)
    else:
        _, first, inverse = np.unique(key.view("V50").ravel(), return_index=True, return_inverse=True)
    prefixes = []
    for at in first:
        text = format_gtid(entries[at])
        prefixes.append(None if text is None else text[: -len(str(int(entries["gtid_number"][at])))])
    numbers = pc.cast(pa.array(np.ascontiguousarray(entries["gtid_number"])), pa.string())
    return pc.binary_join_element_wise(pa.array(prefixes, pa.string()).take(pa.array(inverse)), numbers, "")
