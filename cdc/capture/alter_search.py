"""Looks in the source's binlog for a statement that alters a table after rows of it.

Needed where rows name no columns, and the definition of a table was read while the source was ahead of the position
from which it is used. The definition holds for all rows up to the position at which it was read if no statement has
altered the table behind rows of it. The binlog is read twice then: here, where nothing is stored, and by capture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from cdc.base.errors import UnsupportedEventError
from cdc.binlog import events
from cdc.binlog.constants import MAGIC
from cdc.binlog.framer import Decision, Framer, ServerErrorPacket
from cdc.binlog.positions import BinlogPosition, make_seq
from cdc.binlog.rare_events import XaStatement
from cdc.binlog.table_map import names_columns
from cdc.capture.statement_filter import StatementFilter
from cdc.config import DestinationConfig
from cdc.source.connection import place_of
from cdc.source.dump import MAX_POSITION, short_dump
from cdc.source.dump_errors import explain_dump_error

_SRC_BYTES = 1 << 20
_OUT_BYTES = 3 << 19


@dataclass(frozen=True)
class Alteration:
    """A statement that alters a table, or drops or renames it, and has rows of the table before it that name no
    columns."""

    table: str
    rows_at: BinlogPosition
    """A position before the first of these rows."""
    at: BinlogPosition
    """A position before the statement."""


class UnstoredNumbers:
    """Numbers of tables that no store keeps."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]


class AlterSearch:
    """One search. It implements the framer's hooks."""

    def __init__(self, config: DestinationConfig, epoch: int, tables: Mapping[str, int | None]) -> None:
        """``tables`` are those with a definition, each with the seq up to which alterations count; None: they do not
        count. Of other tables they always count."""
        self._source = config.source
        self._filter = StatementFilter(config.tables, UnstoredNumbers())
        self._epoch = epoch
        self._tables = tables
        self._file = ""
        self._rows: dict[str, BinlogPosition] = {}
        self._alteration: Alteration | None = None
        self._framer = Framer(
            np.empty(_SRC_BYTES, dtype=np.uint8),
            self,
            packets=True,
            out_bytes=_OUT_BYTES,
            place=f"source {place_of(config.source)}",
            may_lack=lambda *_: True,  # capture judges the rows when it reads them
        )

    def run(self, begin: BinlogPosition, end: BinlogPosition) -> Alteration | None:
        """Returns the first alteration between two positions; None if there is none. Raises SourceUnavailableError,
        SourceRefusedError, CorruptStreamError, UnsupportedEventError."""
        framer = self._framer
        self._start_file(begin if begin.pos <= MAX_POSITION else BinlogPosition(begin.file, len(MAGIC)))
        last = end.file_number, end.pos
        try:
            with short_dump(self._source, BinlogPosition(self._file, framer.source_pos)) as dump:
                while self._alteration is None and (BinlogPosition(self._file, 4).file_number, framer.seen_pos) < last:
                    framer.fed(dump.recv_into(framer.room()))
                    if not framer.run():
                        break
                    self.flush(framer)
                    framer.compact()
        except ServerErrorPacket as error:
            at = BinlogPosition(self._file, framer.source_pos)
            raise explain_dump_error(error.code, error.text, self._source, at) from None
        return self._alteration

    def _start_file(self, position: BinlogPosition) -> None:
        self._file = position.file
        self._framer.start_file(position.file, position.pos, 0)

    @property
    def _here(self) -> BinlogPosition:
        return BinlogPosition(self._file, self._framer.event_pos)

    # --- hooks of the framer

    def table(self, db: str, table: str) -> int | None:
        event, has_checksum = self._framer.event(), bool(self._framer.st.has_crc)
        number = self._filter.table(db, table, event, has_checksum=has_checksum)
        if number is not None and not names_columns(event, has_checksum):
            self._rows.setdefault(f"{db}.{table}", self._here)
        return None  # nothing of the rows is wanted

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        framer = self._framer
        try:
            decision, ends = self._filter.statement(query, framer.where)
        except UnsupportedEventError:  # capture says what is wrong with it when it gets there
            return Decision(keep=False)
        if ends:
            framer.st.tx_begin = 0
        for table in sorted(decision.altered & self._rows.keys()):
            if self._counts(table) and self._alteration is None:
                self._alteration = Alteration(table, self._rows[table], self._here)
        return Decision(keep=False)

    def _counts(self, table: str) -> bool:
        if table not in self._tables:
            return True
        until = self._tables[table]
        return until is not None and make_seq(self._epoch, self._here.file_number, self._here.pos) <= until

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        if description.server_started:
            self._filter.server_started()

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        if artificial and rotate.file != self._file:
            self._start_file(BinlogPosition(rotate.file, rotate.pos))

    def flush(self, framer: Framer) -> None:
        framer.drop_output()
        framer.take_rows()

    def roll(self, framer: Framer) -> None:
        raise AssertionError("a search has no segments")

    def is_transactional(self, table: str) -> bool:
        return True

    def cut(self, offset: int) -> None:
        raise AssertionError("a search keeps no rows")

    def set_statement_end(self, offset: int, length: int) -> int:
        raise AssertionError("a search keeps no rows")

    def prepare(self, framer: Framer, event: bytes) -> None:
        pass

    def complete(self, framer: Framer, xa: XaStatement) -> Iterable[bytes | memoryview] | None:
        return None
