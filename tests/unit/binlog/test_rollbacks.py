"""Rows that a ROLLBACK takes back are not kept, wherever the stream is cut, and whether they were taken already."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from cdc.base.errors import UnsupportedEventError
from cdc.binlog import events
from cdc.binlog import frame_state as k
from cdc.binlog.constants import EventType
from cdc.binlog.framer import Decision, Framer
from cdc.capture.statement_filter import StatementFilter
from cdc.config import TablesConfig
from cdc.store.formats.state import TableNumbers
from cdc.testing.binlog import BinlogBuilder
from tests.support.framing import feed, rows_of
from tests.unit.binlog.test_framer import Hooks as FramerHooks


class Hooks(FramerHooks):
    """Decides as capture does, about the tables of the database ``shop``."""

    def __init__(self, folder: Path, *, transactional: bool = True) -> None:
        super().__init__()
        self._filter = StatementFilter(TablesConfig(include=(r"shop\..*",)), TableNumbers(folder))
        self._transactional = transactional

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        assert self.framer is not None
        decision, ends = self._filter.statement(query, self.framer.where)
        if ends:
            self.framer.st.tx_begin = 0
        return decision

    def is_transactional(self, table: str) -> bool:
        return self._transactional

    def cut(self, offset: int) -> None:
        del self.out[offset:]


def frame(log: BinlogBuilder, hooks: Hooks, *, piece: int = 1 << 20, flush_always: bool = True) -> Hooks:
    src = np.zeros(4 << 20, dtype=np.uint8)
    framer = hooks.framer = Framer(src, hooks, packets=True, out_bytes=3 << 20)
    feed(framer, src, hooks, log.packets, piece=piece, flush_always=flush_always)
    return hooks


def rows(log: BinlogBuilder, table: str, numbers: list[int], *, db: str = "shop") -> None:
    log.table_map(db, table)
    log.rows(db, table, numbers)


@pytest.mark.parametrize("flush_always", [True, False])
@pytest.mark.parametrize("piece", [7, 64, 1 << 20])
def test_random_savepoints(tmp_path: Path, seed: int, piece: int, flush_always: bool) -> None:
    """Each stream has the output of one in which the rows that were taken back never were."""
    rng = random.Random(seed)
    for _ in range(20):
        log, expected = BinlogBuilder(), BinlogBuilder()
        for _ in range(rng.randrange(1, 6)):
            log.gtid()
            log.query("BEGIN")
            kept: list[tuple[str, int]] = []
            marks: list[tuple[str, int]] = []
            number = 0
            for _ in range(rng.randrange(12)):
                step = rng.choice(["rows", "rows", "other", "savepoint", "rollback"])
                if step == "savepoint":
                    name = rng.choice("ab")
                    marks = [(other, at) for other, at in marks if other != name] + [(name, len(kept))]
                    log.query(f"SAVEPOINT `{name.upper() if rng.random() < 0.5 else name}`")
                elif step == "rollback" and marks:
                    at = rng.randrange(len(marks))
                    del kept[marks[at][1] :]
                    del marks[at + 1 :]
                    log.query(f"ROLLBACK TO {marks[at][0]}")
                else:
                    number += 1
                    table = rng.choice(["orders", "items"])
                    db = "shop" if step == "rows" else "elsewhere"
                    rows(log, table, [number], db=db)
                    if db == "shop":
                        kept.append((table, number))
            ends = rng.choice(["xid", "rollback"])
            if ends == "rollback":
                log.query("ROLLBACK")
                kept = []
            else:
                log.xid()
            expected.gtid()
            if kept:
                expected.query("BEGIN")
                for table, value in kept:
                    rows(expected, table, [value])
                expected.xid()
            else:
                expected.query("DROP VIEW v")
        hooks = frame(log, Hooks(tmp_path), piece=piece, flush_always=flush_always)
        same = frame(expected, Hooks(tmp_path))
        got, wanted = (
            stored_rows[stored_rows[:, k.R_ROW_EVENTS] > 0] for stored_rows in (rows_of(hooks), rows_of(same))
        )
        for column in (k.R_ROW_EVENTS, k.R_MASK):
            assert got[:, column].tolist() == wanted[:, column].tolist()
        assert row_events(bytes(hooks.out)) == row_events(bytes(same.out))
        lengths = [int(row[k.R_LENGTH]) for row in rows_of(hooks)]
        assert sum(lengths) == len(hooks.out), "every byte of the output belongs to a transaction"


def row_events(data: bytes) -> list[bytes]:
    """The bodies of all row events, without the ids of their tables."""
    bodies, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        if data[at + 4] in (23, 24, 25, 30, 31, 32):
            bodies.append(data[at + 25 : at + length - 4])
        at += length
    return bodies


@pytest.mark.parametrize("statement", ["ROLLBACK", "ROLLBACK TO SAVEPOINT a"])
def test_rows_of_an_unknown_engine_stop_capture(tmp_path: Path, statement: str) -> None:
    log = BinlogBuilder()
    log.gtid()
    log.query("BEGIN")
    log.query("SAVEPOINT a")
    rows(log, "orders", [1])
    log.query(statement)
    log.xid()
    with pytest.raises(UnsupportedEventError, match=r"follows rows of shop.orders, whose engine is not known"):
        frame(log, Hooks(tmp_path, transactional=False))


def test_an_unknown_savepoint_stops_capture(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.gtid()
    log.query("BEGIN")
    rows(log, "orders", [1])
    log.query("ROLLBACK TO a")
    log.xid()
    with pytest.raises(UnsupportedEventError, match="names a savepoint that the binlog does not have"):
        frame(log, Hooks(tmp_path))


@pytest.mark.parametrize(("extra_flags", "kept"), [(b"", True), (b"\x02", False), (b"\x04", True), (b"\x08", False)])
def test_ddl_of_a_group_commit_is_kept_unless_its_gtid_event_says_start_or_rollback(
    tmp_path: Path, extra_flags: bytes, kept: bool
) -> None:
    """A GTID event of MariaDB with the id of a group commit and without extra flags ends where others have them."""
    log = BinlogBuilder()
    for number in range(1, 33):  # checksums of many values follow
        log.event(EventType.MARIADB_GTID, struct.pack("<QIBQ", number, 0, 0x03, number) + extra_flags)
        log.query("TRUNCATE TABLE orders")
    hooks = frame(log, Hooks(tmp_path))
    assert bytes(hooks.out).count(b"TRUNCATE TABLE orders") == (32 if kept else 0)
