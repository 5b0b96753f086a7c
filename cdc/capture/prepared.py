"""Prepared XA transactions in capture: put aside at their XA PREPARE, stored at their XA COMMIT.

:mod:`cdc.store.formats.prepared` keeps them and says what holds after a kill. An XA COMMIT whose XA PREPARE the store
does not know (it lies before the store's beginning; or the store was restored, or was a standby) is looked up in the
source's binlog, see :mod:`cdc.capture.prepared_search`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cdc.base.log import get_logger
from cdc.binlog import refusals
from cdc.binlog.framer import Framer
from cdc.binlog.positions import split_seq
from cdc.binlog.rare_events import XaStatement
from cdc.binlog.xa_rows import read_rows
from cdc.capture.prepared_events import choice_of, prepared_transaction, seq_at, with_crc
from cdc.capture.prepared_search import PreparedSearch
from cdc.capture.sink import CaptureLog
from cdc.capture.statement_filter import StatementFilter
from cdc.config import DestinationConfig
from cdc.source.server import Source
from cdc.store.formats.prepared import PreparedTransaction, PreparedTransactions
from cdc.store.formats.segment_header import make_segment_header

log = get_logger(__name__)


class PreparedRecorder:
    """The framer's hooks for prepared XA transactions, for one connection to the source."""

    def __init__(
        self, config: DestinationConfig, control: Source, store: CaptureLog, tables: StatementFilter, up_to: int
    ) -> None:
        """``up_to`` is the seq after which capture goes on. Raises DamagedError, VersionError, StorageError."""
        self._config, self._control = config, control
        self._log, self._filter = store, tables
        self._prepared = PreparedTransactions(store.path, up_to)
        self._captured = choice_of(config.tables)
        self._file = ""
        self._header = b""
        self._search: PreparedSearch | None = None

    def begin_file(self, file: str, pos: int, format_description: bytes, server_id: int) -> None:
        """Notes the description of the events that follow."""
        self._file = file
        self._header = make_segment_header(format_description, file, pos, server_id)

    def prepare(self, framer: Framer, event: bytes) -> None:
        """Puts the open transaction aside, which ``event`` (XA_PREPARE without checksum) ends. See
        :meth:`cdc.binlog.framer.Hooks.prepare`."""
        transaction = prepared_transaction(framer, event, self._captured)
        if not framer.st.tx_kept:
            self._prepared.note(transaction)
            return
        start, taken = int(framer.st.tx_start), int(framer.st.out_base)

        def pieces() -> Iterator[bytes | memoryview]:
            if start < taken:
                yield from self._log.read_unfinished(start)
            yield framer.open_output()
            yield with_crc(event)

        self._prepared.put_aside(transaction, self._header, pieces())
        if start < taken:
            self._log.drop_unfinished()

    def complete(self, framer: Framer, xa: XaStatement) -> Iterable[bytes] | None:
        """Ends a prepared transaction. Returns its rows if it is committed and has any. Raises UnsupportedEventError if
        an unknown one is committed."""
        transaction = self._prepared.find(xa.xid)
        if xa.verb == "COMMIT":
            is_whole = transaction is not None and transaction.captured == self._captured
            if not is_whole and xa.xid not in self._config.source.ignore_xa:
                transaction = self._look_up(framer, xa.xid)
        if self._search is not None:
            self._search.note_end(xa.xid)
        if transaction is None:
            return None
        self._prepared.end(transaction, seq_at(framer))
        if xa.verb != "COMMIT" or not transaction.size:
            return None
        return read_rows(self._prepared.path(transaction), transaction.offset, transaction.size, transaction.xid)

    def sync(self) -> None:
        """Makes what was put aside durable. Call this before anything that follows is appended to the log."""
        self._prepared.forget(self._log.flushed.seq)
        self._prepared.sync()

    def close(self) -> None:
        self._prepared.close()

    def _look_up(self, framer: Framer, xid: str) -> PreparedTransaction:
        """Looks for a transaction that is not known, or of which only the rows of other tables are. Raises
        UnsupportedEventError."""
        if self._search is None:
            self._search = PreparedSearch(self._config, self._control, self._filter, self._prepared)
        transaction = self._search.find(xid, self._file, framer.source_pos, split_seq(seq_at(framer)).epoch)
        if transaction is None:
            raise framer.with_end(refusals.unknown_xa(xid, self._search.files, framer.where))
        if transaction.captured != self._captured:
            log.warning(
                "other tables are captured than when this XA transaction was prepared, and the source has purged its "
                "XA PREPARE: its rows of tables that were added since are not captured",
                xid=xid,
                place=framer.where,
                remedy="Load the added tables anew with `cdc snapshot`.",
            )
        return transaction
