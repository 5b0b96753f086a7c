"""Looks for the XA PREPARE of a transaction in the source's binlog, from a position backwards, file by file.

Needed for an XA COMMIT of which the store does not know the XA PREPARE: it was prepared before the store's beginning,
or the store's list was lost. A file is read once, and everything that is pending at its end is put aside, because a
source with one such transaction probably has more of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from cdc.base.errors import UnsupportedEventError
from cdc.base.log import get_logger
from cdc.binlog import events
from cdc.binlog.constants import MAGIC
from cdc.binlog.framer import Decision, Framer, ServerErrorPacket
from cdc.binlog.positions import BinlogPosition, make_seq, split_file_name
from cdc.binlog.rare_events import XaStatement
from cdc.capture.prepared_events import choice_of, prepared_transaction, with_crc
from cdc.capture.statement_filter import StatementFilter
from cdc.config import DestinationConfig, SourceConfig
from cdc.disk.encryption import keys
from cdc.disk.encryption.read import open_content
from cdc.source.connection import place_of
from cdc.source.dump import short_dump
from cdc.source.dump_errors import explain_dump_error
from cdc.source.server import Source, binlog_files
from cdc.store.formats.prepared import PreparedTransaction, PreparedTransactions
from cdc.store.formats.segment_header import make_segment_header
from cdc.store.writer.segment import SegmentWriter

log = get_logger(__name__)

_SRC_BYTES = 1 << 20
_OUT_BYTES = 3 << 19
_CHUNK_BYTES = 1 << 20


class PreparedSearch:
    """The search of one connection to the source."""

    def __init__(
        self, config: DestinationConfig, conn: Source, tables: StatementFilter, prepared: PreparedTransactions
    ) -> None:
        self._source, self._conn, self._tables = config.source, conn, tables
        self._captured = choice_of(config.tables)
        self._prepared = prepared
        self._unread: list[str] | None = None  # files, newest last
        self._ended: set[str] = set()
        self.files: list[str] = []
        """The binlog files that the source still has, up to the first searched one; oldest first."""

    def note_end(self, xid: str) -> None:
        """Notes that a transaction has ended: what older files have of its xid is not pending."""
        self._ended.add(xid)

    def find(self, xid: str, file: str, pos: int, epoch: int) -> PreparedTransaction | None:
        """Returns the transaction that is pending at a position, and adds it to the prepared ones of the store. If the
        source has no XA PREPARE of it any more, returns what the store knows of it: None, or the rows of other tables.

        Raises SourceUnavailableError, SourceRefusedError, CorruptStreamError, UnsupportedEventError.
        """
        if self._unread is None:
            number = split_file_name(file)[1]
            names = [info.name for info in binlog_files(self._conn)]
            self.files = [name for name in names if split_file_name(name)[1] <= number]
            self._unread = list(self.files)
        while self._unread:
            name = self._unread.pop()
            log.info("looking for the XA PREPARE of a transaction in the source's binlog", xid=xid, file=name)
            try:
                self._read(name, pos if name == file else None, epoch)
            except UnsupportedEventError as error:
                raise UnsupportedEventError(
                    f"the XA PREPARE of {xid} cannot be looked for: {error.message}",
                    place=error.place,
                    remedy=f"If the transaction changed no captured table: source.ignore_xa: [{xid!r}].",
                ) from None
            if self._is_whole(xid):
                break
        return self._prepared.find(xid)

    def _is_whole(self, xid: str) -> bool:
        transaction = self._prepared.find(xid)
        return transaction is not None and transaction.captured == self._captured

    def _read(self, name: str, end: int | None, epoch: int) -> None:
        """Adds the transactions that were prepared in a file, before ``end``, and are pending now."""
        with tempfile.TemporaryDirectory(prefix="towpath-prepared-") as folder:
            with ExitStack() as stack:
                stack.enter_context(keys.like(Path(folder), self._prepared.folder))
                scan = _FileScan(self._source, self._tables, self._captured, Path(folder), name, end, epoch)
                stack.callback(scan.close)
                scan.run()
            for transaction in scan.prepared.pending:
                stored = self._prepared.find(transaction.xid)
                if (
                    transaction.xid in self._ended
                    or self._is_whole(transaction.xid)
                    or (stored is not None and stored.seq > transaction.seq)
                ):
                    continue
                if transaction.size:
                    path = scan.prepared.path(transaction)
                    with open_content(path) as file:
                        self._prepared.put_aside(
                            transaction, file.read(transaction.offset), iter(lambda: file.read(_CHUNK_BYTES), b"")
                        )
                else:
                    self._prepared.note(transaction)
        self._ended |= scan.ended


class _EndReached(Exception):
    """Ends the scan of a file once its wanted part has been read."""


class _FileScan:
    """Reads one binlog file of the source for prepared XA transactions, and implements the framer's hooks. The bytes of
    an open transaction that do not fit into memory go to a file."""

    def __init__(
        self,
        source: SourceConfig,
        tables: StatementFilter,
        captured: str,
        folder: Path,
        name: str,
        end: int | None,
        epoch: int,
    ) -> None:
        self._source, self._tables, self._name, self._end = source, tables, name, end
        self._captured = captured
        self.prepared = PreparedTransactions(folder, 0)
        self.ended: set[str] = set()
        """The transactions that end in the file and were prepared before it."""
        self._header = b""
        self._spill = SegmentWriter.create(folder / "open", b"", name)
        self._shift = 0
        """The offset in the framer's output of the first byte in the file ``open``."""
        self._refused: tuple[int, UnsupportedEventError] | None = None
        self._src = np.empty(_SRC_BYTES, dtype=np.uint8)
        self._framer = Framer(
            self._src,
            self,
            packets=True,
            out_bytes=_OUT_BYTES,
            place=f"source {place_of(source)}",
            may_lack=lambda *_: True,  # it counts when the rows are framed again
        )
        self._framer.start_file(name, len(MAGIC), make_seq(epoch, split_file_name(name)[1], 0))

    def run(self) -> None:
        framer = self._framer
        try:
            with short_dump(self._source, BinlogPosition(self._name, len(MAGIC))) as dump:
                while self._end is None or framer.source_pos < self._end:
                    framer.fed(dump.recv_into(framer.room()))
                    if not framer.run():
                        return
                    self.flush(framer)
                    framer.compact()
        except _EndReached:
            return
        except ServerErrorPacket as error:
            at = BinlogPosition(self._name, framer.source_pos)
            raise explain_dump_error(error.code, error.text, self._source, at) from None

    def close(self) -> None:
        self._spill.close()
        self.prepared.close()

    # --- hooks of the framer

    def table(self, db: str, table: str) -> int | None:
        return self._tables.table(db, table, self._framer.event(), has_checksum=bool(self._framer.st.has_crc))

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        framer = self._framer
        try:
            decision, ends = self._tables.statement(query, framer.where)
        except UnsupportedEventError as error:  # counts only in a prepared transaction
            self._refused = int(framer.st.file_pos), error
            return Decision(keep=False)
        if ends:
            framer.st.tx_begin = 0
        return Decision(keep=False, savepoint=decision.savepoint, undoes=decision.undoes)

    def is_transactional(self, table: str) -> bool:
        return False  # definitions are not known here, so a rollback inside a prepared transaction is refused

    def cut(self, offset: int) -> None:
        self._spill.truncate(offset - self._shift)

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        self._header = make_segment_header(
            event, self._name, self._framer.source_pos, events.parse_header(event).server_id
        )

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        if artificial and rotate.file != self._name:
            raise _EndReached

    def flush(self, framer: Framer) -> None:
        data, base, start = framer.take_output(), int(framer.st.out_base), int(framer.st.tx_start)
        if framer.in_transaction and base + len(data) > start:
            if start >= base:
                self._spill.truncate(0)
                self._shift = start
            self._spill.append(data[max(0, start - base) :])
        framer.drop_output()
        framer.take_rows()

    def roll(self, framer: Framer) -> None:
        raise AssertionError("a search has no segments")

    def set_statement_end(self, offset: int, length: int) -> int:
        self.flush(self._framer)
        return self._spill.set_statement_end(offset - self._shift, length)

    def prepare(self, framer: Framer, event: bytes) -> None:
        if self._is_behind(framer):
            return
        if self._refused is not None and self._refused[0] == int(framer.st.file_pos):
            raise self._refused[1]
        transaction = prepared_transaction(framer, event, self._captured)
        if not framer.st.tx_kept:
            self.prepared.note(transaction)
            return

        def pieces() -> Iterator[bytes | memoryview]:
            if int(framer.st.tx_start) < int(framer.st.out_base):
                yield from self._spill.read(0)
            yield framer.open_output()
            yield with_crc(event)

        self.prepared.put_aside(transaction, self._header, pieces())
        self.prepared.close()

    def complete(self, framer: Framer, xa: XaStatement) -> Iterable[bytes | memoryview] | None:
        if self._is_behind(framer):
            return None
        transaction = self.prepared.find(xa.xid)
        if transaction is not None:
            self.prepared.drop(transaction)
        else:
            self.ended.add(xa.xid)
        return None

    def _is_behind(self, framer: Framer) -> bool:
        return self._end is not None and framer.event_end > self._end
