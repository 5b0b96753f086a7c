"""Scans a binlog file on disk: a server's, one that ``mysqlbinlog --raw`` wrote, or a segment of a store."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from cdc.base.errors import DamagedError, StorageError, UsageError
from cdc.binlog import events
from cdc.binlog import frame_state as k
from cdc.binlog.constants import MAGIC
from cdc.binlog.entry import ENTRY, Entries
from cdc.binlog.frame_buffers import Numbers
from cdc.binlog.framer import Decision, Framer, PackedTransactionError, StopsAtPrepared
from cdc.binlog.positions import make_seq, split_file_name
from cdc.binlog.unpacked_file import copy_unpacked
from cdc.disk.encryption.read import MappedContent, map_content

TableNumber = Callable[[str, str], int | None]


@dataclass(frozen=True)
class Scan:
    """The result of a scan. ``rows`` (n, ROW_WIDTH) hold offsets in the file; ``end`` is the end of the last whole
    transaction; ``size`` is the file's; ``damage`` is the reason why the scan ended before ``size``, None if the file
    merely ends inside a transaction."""

    rows: Numbers
    end: int
    size: int
    source_file: str
    description: events.FormatDescription
    damage: DamagedError | None


def map_file(path: Path) -> MappedContent:
    """Maps a file's bytes read-only; those of an encrypted segment are loaded when they are needed. Raises DamagedError
    if it is not a binlog file, StorageError, ConfigError if the key of an encrypted segment is not known."""
    try:
        mapped = map_content(path)
        mapped.load(0, len(MAGIC))
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from None
    require_binlog(mapped, path)
    return mapped


def require_binlog(mapped: MappedContent, path: Path | str) -> None:
    """Raises DamagedError unless the first bytes, which are loaded, are those of a binlog file."""
    if len(mapped.buf) < len(MAGIC):
        raise DamagedError("is too short for a binlog file", place=str(path))
    if mapped.buf[: len(MAGIC)].tobytes() != MAGIC:
        raise DamagedError(
            "is not a binlog file: it does not begin with fe 62 69 6e",
            place=str(path),
            remedy="Files that a server has encrypted can only be read through the server.",
        )


class _ScanHooks(StopsAtPrepared):
    def __init__(self, path: Path, epoch: int, number: TableNumber | None) -> None:
        self.path, self.epoch, self.number = path, epoch, number
        self.framer: Framer | None = None
        self.description: events.FormatDescription | None = None
        self.source_file = ""
        self.rows: list[Numbers] = []

    def table(self, db: str, table: str) -> int | None:
        return 0 if self.number is None else self.number(db, table)

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        from cdc.binlog.sql.statements import classify  # slow to import, and many files have rows alone

        classified = classify(query.sql, query.db, query.sql_mode)
        mask = 0
        for db, table in classified.tables:
            number = self.table(db, table)
            mask |= 0 if number is None else 1 << (number & 63)
        return Decision(True, ddl=classified.kind == "ddl", table_mask=mask)

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        self.description = description
        self._head_ends()

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        # At the head of a segment the event names the source's file; at the end of a server's file, the next file.
        if artificial:
            self.start(rotate.file, rotate.pos)
            self._head_ends()

    def _head_ends(self) -> None:
        """Counts the events before the first transaction among those that are whole."""
        assert self.framer is not None
        if not self.framer.in_transaction:
            self.framer.st.last_tx_end = self.framer.st.event_in + self.framer.st.event_length

    def start(self, file: str, pos: int) -> None:
        assert self.framer is not None
        self.source_file = file
        self.framer.start_file(file, pos, make_seq(self.epoch, split_file_name(file)[1], 0))

    def flush(self, framer: Framer) -> None:
        self.rows.append(framer.take_rows())

    def roll(self, framer: Framer) -> None:
        raise AssertionError("a scan writes nothing")

    def set_statement_end(self, offset: int, length: int) -> int:
        raise AssertionError("a scan changes nothing")


def scan(
    path: Path,
    *,
    epoch: int = 0,
    number: TableNumber | None = None,
    verify: bool = True,
    mapped: MappedContent | None = None,
) -> Scan:
    """Frames a whole file and verifies its checksums. Damage in it ends the scan and is returned, not raised.

    ``mapped`` is the file's content if it is mapped already; all of it is loaded afterwards, up to the damage. Raises
    DamagedError for a file that is not a binlog file, PackedTransactionError, UnsupportedEventError.
    """
    keeps = mapped is not None
    mapped = map_file(path) if mapped is None else mapped
    buf = mapped.buf
    hooks = _ScanHooks(path, epoch, number)
    framer = Framer(buf, hooks, packets=False, scan=True, verify=verify, place=str(path))
    hooks.framer = framer
    try:
        hooks.start(path.name, len(MAGIC))
    except UsageError:  # a name without a number; a rotate event may give a name with one
        hooks.source_file = path.name
        framer.start_file(path.name, len(MAGIC), make_seq(epoch, 0, 0))
    framer.st.in_pos = len(MAGIC)
    framer.st.last_tx_end = len(MAGIC)
    damage: DamagedError | None = None
    try:
        _run(framer, mapped, keeps=keeps)
    except DamagedError as error:
        damage = error
    damage = mapped.fault or damage
    hooks.flush(framer)
    if hooks.description is None:
        raise damage or DamagedError("holds no format description", place=str(path))
    return Scan(
        rows=np.concatenate(hooks.rows),
        end=int(framer.st.last_tx_end),
        size=len(buf),
        source_file=hooks.source_file,
        description=hooks.description,
        damage=damage,
    )


def _run(framer: Framer, mapped: MappedContent, *, keeps: bool) -> None:
    """Frames the content, of which no more than a window at a time is decrypted; with ``keeps`` it stays in memory."""
    size = len(mapped.buf)
    window, released = _WINDOW_BYTES if mapped.is_encrypted else size, 0
    for start in range(0, size, window):
        stop = min(start + window, size)
        mapped.load(start, stop, lenient=True)
        framer.fed(stop - start)
        framer.run()
        if not keeps:
            done = int(min(framer.st.in_pos, framer.st.event_in))
            mapped.release(released, done)
            released = done


_WINDOW_BYTES = 8 << 20
_ROWS_IN_CACHE = 2048
_COLUMNS = (
    ("seq", k.R_SEQ),
    ("offset", k.R_OFFSET),
    ("length", k.R_LENGTH),
    ("commit_time_us", k.R_TIME),
    ("store_time_us", k.R_TIME),
    ("events", k.R_EVENTS),
    ("row_events", k.R_ROW_EVENTS),
    ("flags", k.R_FLAGS),
    ("checksum", k.R_SUM),
    ("gtid_number", k.R_GTID_NUMBER),
    ("table_mask", k.R_MASK),
    ("gtid_count", k.R_GTID_COUNT),
)


def rows_to_entries(rows: Numbers, *, store_time_us: int | None = None) -> Entries:
    """The index entries for the rows of the framing kernel; their CRCs are still zero."""
    entries = np.zeros(len(rows), dtype=ENTRY)
    for start in range(0, len(rows), _ROWS_IN_CACHE):
        stop = start + _ROWS_IN_CACHE
        _fill_entries(entries[start:stop], rows[start:stop])
    if store_time_us is not None:
        entries["store_time_us"] = store_time_us
    return entries


def _fill_entries(entries: Entries, rows: Numbers) -> None:
    for name, column in _COLUMNS:
        entries[name] = rows[:, column]
    sources = np.ascontiguousarray(rows[:, k.R_GTID_A : k.R_GTID_B + 1])
    tags = np.ascontiguousarray(rows[:, k.R_GTID_TAG : k.R_GTID_TAG + 4])
    entries["gtid_tag"] = tags.view("S32").reshape(-1)
    entries["gtid_source"] = sources.view("V16").reshape(-1)


@dataclass(frozen=True)
class BinlogFile:
    """An opened binlog file. ``buf`` (n,) uint8 is mapped, or decrypted; ``entries`` has one entry for each whole
    transaction, with offsets in ``buf``. If the file has compressed transactions, ``buf`` is an unpacked copy."""

    path: Path
    buf: npt.NDArray[np.uint8]
    has_checksum: bool
    source_file: str
    entries: Entries
    description: events.FormatDescription
    damage: DamagedError | None

    @classmethod
    def open(cls, path: Path | str, *, epoch: int = 0) -> Self:
        """Maps and scans a file. ``damage`` is the reason if the scan ended early; the transactions before it are
        usable."""
        path = Path(path)
        mapped, damage = map_file(path), None
        try:
            scanned = scan(path, epoch=epoch, mapped=mapped)
        except PackedTransactionError:
            with tempfile.TemporaryFile(prefix="towpath-unpacked-") as copy:
                damage = copy_unpacked(path, mapped.load_all(lenient=True), copy)
                mapped = MappedContent(np.memmap(copy, dtype=np.uint8, mode="r"))
            scanned = scan(path, epoch=epoch, mapped=mapped)
        return cls(
            path=path,
            buf=mapped.buf,
            has_checksum=scanned.description.has_checksum,
            source_file=scanned.source_file,
            entries=rows_to_entries(scanned.rows),
            description=scanned.description,
            damage=damage or scanned.damage,
        )
