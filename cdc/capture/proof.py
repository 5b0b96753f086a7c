"""Proves that the source still has the history that the store was captured from.

A binlog position says little: after RESET, after a restored backup or on a rebuilt server the same file name and offset
stand for other transactions. So at every connect, before anything new is stored:

1. the last GTID in the store must be in the server's executed set;
2. the binlog file of the last entry must have been created in the same second as the one that the store was captured
   from (the time in its format description), and an event must begin where capture goes on;
3. the last stored transaction is read again from the source, and must be the same bytes. Only its own tables and
   statements are kept of what the source sends, so a change of ``tables.include`` since then makes no difference.

Of a transaction above 16 MiB only its beginning is compared. What the source has purged is proved by the GTID alone.
``docs/operating/source.md`` explains this to operators.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import numpy as np

from cdc.binlog import events
from cdc.binlog import kernels as k
from cdc.binlog.constants import HEADER_SIZE, ROW_EVENTS, ROWS_STMT_END, EventType
from cdc.binlog.entry import Entries, EntryFlag, format_gtid
from cdc.binlog.framer import Framer, Judgement, Numbers, ServerErrorPacket, row_gtid
from cdc.config import DestinationConfig, SourceConfig
from cdc.errors import CorruptStreamError, IdentityError, StorageError, UnsupportedError
from cdc.log import get_logger
from cdc.positions import FILE_SHIFT, BinlogPosition, make_file_name, make_seq, split_seq
from cdc.source.connection import place_of
from cdc.source.dump import MAX_POSITION
from cdc.source.history import (
    NoBorderError,
    ShortDump,
    executed_gtids,
    file_created,
    has_executed,
    meaning,
)
from cdc.source.server import Connection, Flavor
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.formats.segment_header import source_file_created_s

log = get_logger(__name__)

_COMPARED_BYTES = 16 << 20
"""So much of a transaction is compared."""
_RECEIVED_BYTES = 64 << 20
"""So much of the source's stream is read for it: a transaction may hold more of other tables than of ours."""
_SEGMENTS_SEARCHED = 16
"""So many segments are searched for a GTID: a source without GTIDs has none in any of them."""
_SRC_BYTES = 1 << 20
WAY_OUT = (
    "The likely reasons: RESET MASTER or RESET BINARY LOGS was run, the server was restored from a backup, or another "
    "server answers at this address. Connect to the former server if it is still there; else capture this one as a new "
    "destination, with a store, a meta and a target of its own (see docs/operating/source.md)."
)


@dataclass(frozen=True)
class StoredTransaction:
    """The newest transaction that the store has bytes of, and from which offset of its file it can be read again."""

    segment: Path
    entry: np.void
    begins_behind: int


@dataclass(frozen=True)
class Stored:
    """What the store knows of the end of its history."""

    last: np.void
    """The newest entry, of a transaction or of a position."""
    gtid_entry: np.void | None
    """The newest entry that has a GTID."""
    transaction: StoredTransaction | None


@dataclass(frozen=True)
class Proof:
    """What was proved, for the log and for ``cdc check``."""

    proved: tuple[str, ...] = ()
    doubt: str | None = None
    """Why nothing could be proved; None where something was, or where nothing has been stored."""


def prove_source(
    config: DestinationConfig, conn: Connection, *, flavor: Flavor, base_name: str, files: set[str]
) -> Proof:
    """Prove that the server has what the store holds. ``files``: the binlog files that the server still has.

    Raises IdentityError with both sides where it has another history; SourceUnavailableError, SourceRefusedError,
    DamagedError and StorageError where that cannot be told.
    """
    stored = read_stored(config.store.path)
    if stored is None:
        return Proof()
    return _Prover(config, conn, flavor, base_name, files, stored).prove()


def read_stored(store: Path) -> Stored | None:
    """The end of what the store holds; None where it is empty. Raises DamagedError, StorageError."""
    last: np.void | None = None
    gtid_entry: np.void | None = None
    transaction: StoredTransaction | None = None
    searched = 0
    for segment in reversed(layout.list_segments(store)):
        index = IndexFile(segment)
        if not len(index.entries):
            continue
        entries = index.verified(max(0, len(index.entries) - 1), len(index.entries))
        if last is None:
            last = _copy(entries, -1)
        every = index.entries
        if gtid_entry is None and len(found := np.flatnonzero(every["gtid_count"])):
            gtid_entry = _copy(index.verified(int(found[-1]), int(found[-1]) + 1), 0)
        if transaction is None:
            transaction = _newest(segment, index)
        searched += 1
        if transaction is not None and (gtid_entry is not None or searched >= _SEGMENTS_SEARCHED):
            break
    return None if last is None else Stored(last, gtid_entry, transaction)


def _newest(segment: Path, index: IndexFile) -> StoredTransaction | None:
    """The newest transaction of a segment that a dump can begin with: the request's offset has 32 bits."""
    entries, start = index.entries, layout.segment_start(segment)
    assert start is not None
    for at in np.flatnonzero(entries["length"])[::-1]:
        file = split_seq(int(entries["seq"][at])).file_number
        before = [split_seq(int(entries["seq"][at - 1]))] if at else []
        # A position entry of the file before may have come into this segment's index.
        behind = next((p.offset for p in before if p.file_number == file), split_seq(start).offset)
        if behind <= MAX_POSITION:
            return StoredTransaction(segment, _copy(index.verified(int(at), int(at) + 1), 0), behind)
    return None


def _copy(entries: Entries, at: int) -> np.void:
    found: np.void = np.array(entries)[at]
    return found


class _Prover:
    def __init__(
        self,
        config: DestinationConfig,
        conn: Connection,
        flavor: Flavor,
        base_name: str,
        files: set[str],
        stored: Stored,
    ) -> None:
        self._source, self._conn, self._flavor = config.source, conn, flavor
        self._segments = layout.list_segments(config.store.path)
        self._base, self._files, self._stored = base_name, files, stored
        self._executed: str | None = None

    def prove(self) -> Proof:
        proved = [found for found in (self._gtid(), self._transaction(), self._position()) if found is not None]
        if proved:
            return Proof(tuple(proved))
        return Proof(
            doubt=f"the server has purged {self._file(self._stored.last)}, and the store has no GTID: whether this is "
            "the server that the store was captured from cannot be proved"
        )

    # --- the three proofs

    def _gtid(self) -> str | None:
        entry = self._stored.gtid_entry
        gtid = None if entry is None else format_gtid(entry)
        if entry is None or gtid is None:
            return None
        self._executed = executed_gtids(self._conn, self._flavor)
        if self._executed is None:
            return None
        if not has_executed(self._conn, self._flavor, gtid, self._executed):
            self._refuse(entry, f"the server has executed {shown_gtids(self._executed)}")
        return f"GTID {gtid} is in its executed set"

    def _transaction(self) -> str | None:
        found = self._stored.transaction
        if found is None or self._file(found.entry) not in self._files:
            return None
        file, end = self._place(found.entry)
        created = self._created(found.entry)
        for attempt in (1, 2):
            reading = _Reading(self._source, found, BinlogPosition(file, found.begins_behind))
            try:
                difference = reading.compare()
            except CorruptStreamError as error:
                if attempt == 1:  # it may have been the network
                    continue
                difference = f"what the server has there makes no sense as events: {error.message}"
            if difference is None:
                difference = other_file(file, reading.created, created)
            if difference is not None:
                self._refuse(found.entry, difference)
            return f"the transaction that ends at {file}:{end} is the same {reading.compared} bytes"
        raise AssertionError("unreachable")

    def _position(self) -> str | None:
        """The file and the position behind which capture goes on."""
        stored = self._stored
        file, pos = self._place(stored.last)
        known = stored.transaction is not None and int(stored.transaction.entry["seq"]) == int(stored.last["seq"])
        if file not in self._files or pos > MAX_POSITION or known:
            return None
        created = self._created(stored.last)
        try:
            found = file_created(self._source, BinlogPosition(file, max(4, pos)))
        except NoBorderError as error:
            self._refuse(stored.last, error.message)
        difference = other_file(file, found, created)
        if difference is not None:
            self._refuse(stored.last, difference)
        same = "" if created is None else f"{file} was created in the same second, and "
        return f"{same}an event begins at {file}:{pos}"

    def _created(self, entry: np.void) -> int | None:
        """When the file of an entry was created, by a segment that was captured from it; None where retention has
        removed all of those."""
        for segment in reversed(self._segments):
            start = layout.segment_start(segment)
            if start is not None and start >> FILE_SHIFT == int(entry["seq"]) >> FILE_SHIFT:
                return source_file_created_s(segment)
        return None

    # --- words

    def _place(self, entry: np.void) -> tuple[str, int]:
        parts = split_seq(int(entry["seq"]))
        return make_file_name(self._base, parts.file_number), parts.offset

    def _file(self, entry: np.void) -> str:
        return self._place(entry)[0]

    def _refuse(self, entry: np.void, server_has: str) -> NoReturn:
        file, pos = self._place(entry)
        gtid = format_gtid(entry)
        what = "a position" if not int(entry["length"]) else "a transaction"
        time_us = int(entry["commit_time_us"])
        facts = [f"ends at {file}:{pos}"]
        facts += [f"GTID {gtid}"] if gtid is not None else []
        facts += [f"committed at {_time(time_us)}"] if time_us > 0 else []
        executed = (
            ""
            if self._executed is None or self._executed in server_has
            else (f"; the server has executed {shown_gtids(self._executed)}")
        )
        raise IdentityError(
            f"the server's history is not the one that the store was captured from. The store holds {what} that "
            f"{', '.join(facts)}; {server_has}{executed}",
            place=f"source {place_of(self._source)}",
            remedy=WAY_OUT,
        )


_STATEMENTS = (EventType.QUERY, EventType.EXECUTE_LOAD_QUERY, EventType.MARIADB_QUERY_COMPRESSED)


class _Enough(Exception):
    """As much of the transaction has been read as is compared."""


class _Reading:
    """One transaction, read again from the source and framed with its own tables and statements.

    It answers the framer as :class:`~cdc.capture.session.Session` does, and stores nothing.
    """

    def __init__(self, source: SourceConfig, stored: StoredTransaction, position: BinlogPosition) -> None:
        self._source = source
        self._position = position
        self._entry = stored.entry
        self.created = 0
        self.compared = 0
        self._bytes = _read(stored, _COMPARED_BYTES)
        self._tables, self._statements = _contents(self._bytes)
        self._ddl = bool(int(stored.entry["flags"]) & EntryFlag.DDL)
        self._rows: list[Numbers] = []
        self._done = False
        self._src = np.empty(_SRC_BYTES, dtype=np.uint8)
        self._framer = Framer(
            self._src,
            self,
            packets=True,
            out_bytes=_COMPARED_BYTES + 2 * k.PREFIX_MAX,
            place=f"source {place_of(source)}",
        )
        parts = split_seq(int(stored.entry["seq"]))
        self._base_seq = make_seq(parts.epoch, parts.file_number, 0)
        self._framer.start_file(position.file, position.pos, self._base_seq)

    def compare(self) -> str | None:
        """How the source's transaction differs, in words for a message; None where it does not. Raises
        CorruptStreamError where the source sends no events, and SourceUnavailableError."""
        received = 0
        with ShortDump(self._source, self._position) as dump:
            while not self._finished():
                room = self._src.data[self._framer.end :]
                if not len(room) or received > _RECEIVED_BYTES:
                    return self._compare_beginning()
                n = dump.recv_into(room)
                received += n
                self._framer.fed(n)
                try:
                    ended = not self._framer.run()
                except (_Enough, ServerErrorPacket, CorruptStreamError, UnsupportedError) as error:
                    if not self._finished():  # it did not come behind the transaction
                        return self._explain(error)
                else:
                    if ended and not self._finished():
                        return f"the server's history ends at {self._position.file}:{self._framer.seen_pos}"
                    self._framer.compact()
        return self._compare_all()

    def _explain(self, error: Exception) -> str | None:
        """What it means that the transaction could not be read to its end."""
        if isinstance(error, _Enough):
            return self._compare_beginning()
        if isinstance(error, ServerErrorPacket) and error.code == 1236:
            return f"where it begins ({self._position}), {meaning(error.text)}"
        if isinstance(error, UnsupportedError):
            return f"what the server has there is another thing: {error.message}"
        raise error

    def _finished(self) -> bool:
        """Whether the transaction, or its place, has been passed."""
        n = int(self._framer.st[k.N_ROWS])
        if n:
            rows = self._framer.take_rows()
            self._rows.append(rows)
            self._done = bool(rows[:, k.R_LENGTH].any()) or int(rows[-1, k.R_SEQ]) >= int(self._entry["seq"])
        return self._done

    def _compare_all(self) -> str | None:
        rows = np.concatenate(self._rows)
        row = rows[np.flatnonzero(rows[:, k.R_LENGTH])[0]] if rows[:, k.R_LENGTH].any() else rows[-1]
        there = f"{self._position.file}:{split_seq(int(row[k.R_SEQ])).offset}"
        gtid = row_gtid(row)
        words = f"the server has another transaction there, which ends at {there}"
        words += f", GTID {gtid}" if gtid is not None else ""
        words += f", committed at {_time(int(row[k.R_TIME]))}" if int(row[k.R_TIME]) else ""
        if int(row[k.R_SEQ]) != int(self._entry["seq"]) or int(row[k.R_LENGTH]) != int(self._entry["length"]):
            return words
        at = int(row[k.R_OFFSET]) - int(self._framer.st[k.OUT_BASE])
        if bytes(self._framer.out.data[at : at + len(self._bytes)]) != self._bytes:
            return words + ", with other contents"
        self.compared = len(self._bytes)
        return None

    def _compare_beginning(self) -> str | None:
        """Compare what is there of a large transaction. The last statement may go on behind it, so whether an event is
        marked as its statement's last makes no difference here."""
        mine = bytes(self._framer.take_output()) or bytes(self._framer.out[: int(self._framer.st[k.OUT_POS])])
        if not self._framer.take_output():
            mine = mine[: int.from_bytes(mine[9:13], "little")]  # its first event is kept whatever follows
        size = min(len(mine), len(self._bytes))
        first, second = _unmarked(mine[:size]), _unmarked(self._bytes[:size])
        size = min(len(first), len(second))
        if not size or first[:size] != second[:size]:
            return "the server has another transaction there, which begins otherwise"
        self.compared = size
        return None

    # --- what the framer asks

    def table(self, db: str, table: str) -> int | None:
        return 0 if (db, table) in self._tables else None

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Judgement:
        return Judgement((query.db, query.sql) in self._statements, ddl=self._ddl)

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        if not self.created:
            self.created = events.parse_header(event).timestamp
            self._framer.start_output(0, 0)

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        if rotate.file != self._position.file and artificial:
            raise CorruptStreamError(f"the file ends before it, and {rotate.file} follows")

    def flush(self, framer: Framer) -> None:
        raise _Enough

    def roll(self, framer: Framer) -> None:
        raise AssertionError("nothing is stored here")

    def set_statement_end(self, offset: int, length: int) -> int:
        raise _Enough


def _read(stored: StoredTransaction, limit: int) -> bytes:
    """The stored bytes, or the first ``limit`` of them. Raises StorageError."""
    offset, length = int(stored.entry["offset"]), int(stored.entry["length"])
    try:
        fd = os.open(stored.segment, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, min(length, limit), offset)
        finally:
            os.close(fd)
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(stored.segment)) from None


def _contents(data: bytes) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The tables (database, table) and the statements (database, text) of stored events."""
    tables: set[tuple[str, str]] = set()
    statements: set[tuple[str, str]] = set()
    at = 0
    while at + HEADER_SIZE <= len(data):
        header = events.parse_header(memoryview(data)[at:])
        event = data[at : at + header.length]
        if len(event) < header.length:
            break
        if header.type == EventType.TABLE_MAP:
            tables.add(events.parse_table_name(event)[1:])
        elif header.type in _STATEMENTS:
            query = events.parse_query(event, True)
            statements.add((query.db, query.sql))
        at += header.length
    return tables, statements


def _unmarked(data: bytes) -> bytes:
    """The whole events of ``data``, row events without the mark of a statement's end and without checksum."""
    found, at = bytearray(), 0
    while at + HEADER_SIZE <= len(data):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        if length < HEADER_SIZE or at + length > len(data):
            # Of an event that is cut off, what is there but for what may be of its checksum.
            length = len(data) - at
            part = bytearray(data[at : len(data) - 4])
        else:
            part = bytearray(data[at : at + length])
            if part[4] in ROW_EVENTS:
                part[-4:] = bytes(4)
        if part[4] in ROW_EVENTS and len(part) > HEADER_SIZE + 8:
            part[HEADER_SIZE + 6] &= ~ROWS_STMT_END & 0xFF
        found += part
        at += length
    return bytes(found)


def other_file(
    file: str, server_s: int, known_s: int | None, which: str = "that the store was captured from"
) -> str | None:
    """The difference, in words, between two files of one name, by the seconds in which they were created. ``which``
    says where the second one is known from."""
    if known_s is None or server_s == known_s:
        return None
    server, known = _time(server_s * 10**6), _time(known_s * 10**6)
    return f"the server's {file} was created at {server}, and the one {which} at {known}"


def _time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // 10**6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def shown_gtids(gtids: str) -> str:
    return "no GTID at all" if not gtids else gtids if len(gtids) <= 300 else f"{gtids[:300]}…"
