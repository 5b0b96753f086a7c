"""Fills a store without a server: binlogs made by hand go through the real framer and relay log."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from cdc.binlog import events
from cdc.binlog.file import rows_to_entries
from cdc.binlog.framer import Decision, Framer, StopsAtPrepared
from cdc.binlog.positions import make_seq, split_seq
from cdc.store.writer.log import RelayLog
from cdc.testing.binlog import BinlogBuilder


class Filler(StopsAtPrepared):
    """Appends the transactions of a :class:`BinlogBuilder` to a store; every table is captured."""

    def __init__(self, path: Path, *, segment_bytes: int = 1 << 30, destination: str = "shop") -> None:
        self.store = RelayLog(path, destination=destination, segment_bytes=segment_bytes)
        self._segment_bytes = segment_bytes
        self._framer: Framer | None = None

    def put(self, log: BinlogBuilder) -> None:
        """Appends everything in ``log`` that is not in the store yet. It is visible and durable when this returns."""
        stream = np.frombuffer(log.packets, dtype=np.uint8).copy()
        self._framer = Framer(stream, self, packets=True, out_bytes=3 << 20)
        self._framer.fed(len(stream))
        self._framer.run()
        self.flush(self._framer)
        self.store.flush()

    def close(self) -> None:
        self.store.close()

    def table(self, db: str, table: str) -> int | None:
        return self.store.tables.number(f"{db}.{table}")

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        return Decision(True, ddl=True, table_mask=1)

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        assert self._framer is not None
        offset = self.store.begin(0, "binlog.000001", self._framer.source_pos, event, 1)
        self._framer.start_output(offset, self._segment_bytes)

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        assert self._framer is not None
        stored = split_seq(self.store.last_seq or 0).offset
        self._framer.start_file(rotate.file, rotate.pos, make_seq(0, 1, 0), skip_until=stored)

    def flush(self, framer: Framer) -> None:
        self.store.append(framer.take_output())
        framer.drop_output()
        self.store.publish(rows_to_entries(framer.take_rows(), store_time_us=time.time_ns() // 1000))

    def roll(self, framer: Framer) -> None:
        self.flush(framer)
        framer.start_output(self.store.roll(0, framer.source_pos), self._segment_bytes)

    def set_statement_end(self, offset: int, length: int) -> int:
        return self.store.set_statement_end(offset, length)
