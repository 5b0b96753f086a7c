"""Reads the last stored transaction again from the source and compares its bytes.

Only the tables and statements of the stored transaction are kept from the server's stream, so a change of
``tables.include`` since then makes no difference. Of a transaction above 16 MiB only the beginning is compared. Of an
XA transaction that had been prepared the source has only the XA COMMIT there, so that event is compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from cdc.base.errors import CorruptStreamError, StorageError, UnsupportedError
from cdc.binlog import events
from cdc.binlog import frame_state as k
from cdc.binlog.constants import HEADER_SIZE, ROW_EVENTS, ROWS_STMT_END, EventType
from cdc.binlog.entry import EntryFlag, format_gtid
from cdc.binlog.frame_buffers import Numbers
from cdc.binlog.framer import Decision, Framer, ServerErrorPacket, row_gtid
from cdc.binlog.positions import BinlogPosition, make_seq, split_seq
from cdc.binlog.rare_events import XaStatement
from cdc.binlog.sql.statements import classify
from cdc.capture.prepared_events import with_crc
from cdc.capture.statement_filter import transaction_decision
from cdc.config import SourceConfig
from cdc.disk.durable import storage_errors
from cdc.disk.encryption.read import open_content, read_content
from cdc.source.connection import place_of
from cdc.source.dump import short_dump
from cdc.source.dump_errors import describe_dump_error

_COMPARED_BYTES = 16 << 20
"""The number of bytes of a transaction that are compared."""
_RECEIVED_BYTES = 64 << 20
"""The number of bytes that are read from the source for the comparison. A transaction may hold more rows of other
tables than of captured ones."""
_SRC_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredTransaction:
    """A transaction in the store, and where to read it again."""

    segment: Path
    entry: np.void
    after_pos: int
    """The offset in its binlog file at which a dump has to begin."""


_STATEMENTS = (EventType.QUERY, EventType.EXECUTE_LOAD_QUERY, EventType.MARIADB_QUERY_COMPRESSED)


class _LimitReached(Exception):
    """The part of the transaction that is compared has been read."""


class Reread:
    """One transaction, read again from the source and framed for its own tables and statements.

    It implements the framer's hooks as :class:`~cdc.capture.session.CaptureSession` does, but stores nothing.
    """

    def __init__(self, source: SourceConfig, stored: StoredTransaction, position: BinlogPosition) -> None:
        self._source = source
        self._position = position
        self._entry = stored.entry
        self.file_created = 0
        """Unix time in seconds at which the server's binlog file was created."""
        self.compared = 0
        """The number of bytes that were compared."""
        self._bytes = _read(stored, _COMPARED_BYTES)
        self._tables, self._statements = _contents(self._bytes)
        self._ddl = bool(int(stored.entry["flags"]) & EntryFlag.DDL)
        self._rows: list[Numbers] = []
        self._xa_commit = b""  # the event, if it ends the transaction
        self._gtid: str | None = None
        self._stored = stored
        self._done = False
        self._src = np.empty(_SRC_BYTES, dtype=np.uint8)
        self._framer = Framer(
            self._src,
            self,
            packets=True,
            out_bytes=_COMPARED_BYTES + 2 * k.PREFIX_MAX,
            place=f"source {place_of(source)}",
            may_lack=lambda *_: True,  # it was stored
        )
        parts = split_seq(int(stored.entry["seq"]))
        self._base_seq = make_seq(parts.epoch, parts.file_number, 0)
        self._framer.start_file(position.file, position.pos, self._base_seq)

    def compare(self) -> str | None:
        """Returns how the source's transaction differs, as a clause for a message; None if it does not. Raises
        CorruptStreamError if the server's bytes are not events, and SourceUnavailableError."""
        received = 0
        with short_dump(self._source, self._position) as dump:
            while not self._finished():
                room = self._src.data[self._framer.end :]
                if not len(room) or received > _RECEIVED_BYTES:
                    return self._compare_beginning()
                n = dump.recv_into(room)
                received += n
                self._framer.fed(n)
                try:
                    ended = not self._framer.run()
                except (_LimitReached, ServerErrorPacket, CorruptStreamError, UnsupportedError) as error:
                    if not self._finished():  # the error lies within the transaction
                        return self._explain(error)
                else:
                    if ended and not self._finished():
                        return f"the server's history ends at {self._position.file}:{self._framer.seen_pos}"
                    self._framer.compact()
        return self._compare_all()

    def _explain(self, error: Exception) -> str | None:
        """Explains why the transaction could not be read to its end."""
        if isinstance(error, _LimitReached):
            return self._compare_beginning()
        if isinstance(error, ServerErrorPacket) and error.code == 1236:
            return f"where it begins ({self._position}), {describe_dump_error(error.text)}"
        if isinstance(error, UnsupportedError):
            return f"the server has an unexpected event there: {error.message}"
        raise error

    def _finished(self) -> bool:
        """Whether the stream has passed the transaction, or its position."""
        n = int(self._framer.st.n_rows)
        if n:
            rows = self._framer.take_rows()
            self._rows.append(rows)
            self._done = bool(rows[:, k.R_LENGTH].any()) or int(rows[-1, k.R_SEQ]) >= int(self._entry["seq"])
        return self._done

    def _compare_all(self) -> str | None:
        if self._xa_commit:
            return self._compare_xa_commit()
        rows = np.concatenate(self._rows)
        row = rows[np.flatnonzero(rows[:, k.R_LENGTH])[0]] if rows[:, k.R_LENGTH].any() else rows[-1]
        position = f"{self._position.file}:{split_seq(int(row[k.R_SEQ])).offset}"
        gtid = row_gtid(row)
        words = f"the server has another transaction there, which ends at {position}"
        words += f", GTID {gtid}" if gtid is not None else ""
        words += f", committed at {shown_time(int(row[k.R_TIME]))}" if int(row[k.R_TIME]) else ""
        if int(row[k.R_SEQ]) != int(self._entry["seq"]) or int(row[k.R_LENGTH]) != int(self._entry["length"]):
            return words
        at = int(row[k.R_OFFSET]) - int(self._framer.st.out_base)
        if bytes(self._framer.out.data[at : at + len(self._bytes)]) != self._bytes:
            return f"{words}, with other contents"
        self.compared = len(self._bytes)
        return None

    def _compare_xa_commit(self) -> str | None:
        size = len(self._xa_commit)
        if self._gtid != format_gtid(self._entry) or _read_end(self._stored, size) != self._xa_commit:
            return f"the server has another transaction there, an XA COMMIT with the GTID {self._gtid}"
        self.compared = size
        return None

    def _compare_beginning(self) -> str | None:
        """Compares the part of a large transaction that was read. Its last statement may continue after that part, so
        the flag STMT_END_F is ignored."""
        framed = bytes(self._framer.take_output()) or bytes(self._framer.out[: int(self._framer.st.out_pos)])
        if not self._framer.take_output():
            framed = framed[: int.from_bytes(framed[9:13], "little")]  # only the first event is certain to be kept
        # What follows a savepoint may be taken back behind the part that was read.
        size = min(len(framed), len(self._bytes), self._framer.first_savepoint)
        first, second = _without_statement_end(framed[:size]), _without_statement_end(self._bytes[:size])
        size = min(len(first), len(second))
        if not size or first[:size] != second[:size]:
            return "the server has another transaction there, which begins otherwise"
        self.compared = size
        return None

    # --- hooks of the framer

    def table(self, db: str, table: str) -> int | None:
        return 0 if (db, table) in self._tables else None

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        statement = classify(query.sql, query.db, query.sql_mode)
        if statement.kind == "transaction":
            if statement.verb == "ROLLBACK":
                self._framer.st.tx_begin = 0
            return transaction_decision(statement)
        return Decision((query.db, query.sql) in self._statements, ddl=self._ddl)

    def prepare(self, framer: Framer, event: bytes) -> None:
        """Does nothing: a transaction that is prepared here is not the stored one, which lies behind it."""

    def complete(self, framer: Framer, xa: XaStatement) -> Iterable[bytes | memoryview] | None:
        if self._base_seq | framer.event_end == int(self._entry["seq"]):
            event = framer.event()
            self._xa_commit = event if framer.st.has_crc else with_crc(event)
            self._gtid = framer.gtid
        return None

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        if not self.file_created:
            self.file_created = events.parse_header(event).timestamp
            self._framer.start_output(0, 0)

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        if rotate.file != self._position.file and artificial:
            raise CorruptStreamError(f"{self._position.file} ends before the transaction, and {rotate.file} follows")

    def flush(self, framer: Framer) -> None:
        if framer.gtid is None or framer.gtid == format_gtid(self._entry) or self._finished():
            raise _LimitReached
        framer.drop_output()  # a large transaction that was prepared before the stored one

    def roll(self, framer: Framer) -> None:
        raise AssertionError("there is no segment to roll")

    def set_statement_end(self, offset: int, length: int) -> int:
        raise _LimitReached

    def is_transactional(self, table: str) -> bool:
        return True  # capture has accepted the transaction

    def cut(self, offset: int) -> None:
        raise _LimitReached


def _read(stored: StoredTransaction, limit: int) -> bytes:
    """Reads the first ``limit`` bytes of a stored transaction. Raises StorageError."""
    offset, length = int(stored.entry["offset"]), int(stored.entry["length"])
    try:
        return read_content(stored.segment, min(length, limit), offset)
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(stored.segment)) from None


def _read_end(stored: StoredTransaction, size: int) -> bytes:
    """Reads the last ``size`` bytes of a stored transaction. Raises StorageError."""
    end = int(stored.entry["offset"]) + int(stored.entry["length"])
    with storage_errors(stored.segment), open_content(stored.segment) as file:
        file.seek(max(0, end - size))
        return file.read(size)


def _contents(data: bytes) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Returns the tables (database, table) and the statements (database, text) of stored events."""
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


def _without_statement_end(data: bytes) -> bytes:
    """Returns the events of ``data``, with STMT_END_F and the checksum of row events set to zero."""
    cleared, at = bytearray(), 0
    while at + HEADER_SIZE <= len(data):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        if length < HEADER_SIZE or at + length > len(data):
            # The last event is cut off. Its last bytes may be part of the checksum.
            length = len(data) - at
            part = bytearray(data[at : len(data) - 4])
        else:
            part = bytearray(data[at : at + length])
            if part[4] in ROW_EVENTS:
                part[-4:] = bytes(4)
        if part[4] in ROW_EVENTS and len(part) > HEADER_SIZE + 8:
            part[HEADER_SIZE + 6] &= ~ROWS_STMT_END & 0xFF
        cleared += part
        at += length
    return bytes(cleared)


def shown_time(time_us: int) -> str:
    """Formats a time in Unix microseconds for messages."""
    return datetime.fromtimestamp(time_us // 10**6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
