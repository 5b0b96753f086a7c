"""Prepared XA transactions in framing: put aside at their XA PREPARE, and framed at their XA COMMIT as its rows."""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdc.base.errors import DamagedError, UnsupportedEventError
from cdc.binlog import frame_kernel, framer
from cdc.binlog import frame_state as k
from cdc.binlog.constants import ROW_EVENTS, EventType
from cdc.binlog.file import scan
from cdc.binlog.framer import Framer
from cdc.binlog.rare_events import XaStatement, parse_xa_prepare
from cdc.binlog.xa_rows import own_table_id, read_rows
from cdc.capture.prepared_events import with_crc
from cdc.decode.reader import read
from cdc.testing.binlog import BinlogBuilder
from tests.support import framing
from tests.support.framing import StatementHooks, feed, rows_of
from tests.support.rare_events import packed_log, split_events, xa_commit, xa_transaction

XID = "x'6162',x'',1"


class Hooks(StatementHooks):
    """Puts prepared transactions into files of a folder, as capture does."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.aside: dict[str, Path | None] = {}
        """By xid the file; None without captured rows."""
        self.unknown: list[str] = []

    def prepare(self, framer: Framer, event: bytes) -> None:
        xid, start = parse_xa_prepare(event), int(framer.st.tx_start)
        self.aside[xid] = None
        if framer.st.tx_kept:
            path = self.aside[xid] = self.folder / f"{len(list(self.folder.iterdir()))}.binlog"
            taken = bytes(self.out[start:]) if start < int(framer.st.out_base) else b""
            path.write_bytes(taken + bytes(framer.open_output()) + with_crc(event))
            del self.out[min(start, len(self.out)) :]

    def complete(self, framer: Framer, xa: XaStatement) -> Iterable[bytes] | None:
        if xa.xid not in self.aside:
            self.unknown.append(xa.xid)
            return None
        path = self.aside.pop(xa.xid)
        if path is None or xa.verb == "ROLLBACK":
            return None
        return read_rows(path, 0, path.stat().st_size, xa.xid)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "aside").mkdir()
    return tmp_path / "aside"


def frame(log: BinlogBuilder, folder: Path, **how: Any) -> Hooks:
    framed = framing.frame(log, make_hooks=lambda: Hooks(folder), **how)
    assert isinstance(framed, Hooks)
    return framed


def require_same_scan(hooks: Hooks, log: BinlogBuilder, path: Path) -> None:
    """A scan of the segment, which recovery makes, finds the same index."""
    path.write_bytes(b"\xfebin" + log.events[0] + bytes(hooks.out))
    scanned = scan(path, number=lambda db, table: hooks.table(db, table))
    assert scanned.damage is None and scanned.end == scanned.size
    rows = rows_of(hooks)
    kept = rows[rows[:, k.R_LENGTH] > 0]
    for column in (k.R_SEQ, k.R_LENGTH, k.R_EVENTS, k.R_ROW_EVENTS, k.R_SUM, k.R_TIME, k.R_MASK, k.R_GTID_NUMBER):
        assert np.array_equal(scanned.rows[:, column], kept[:, column]), column


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("piece", [1, 50, 1 << 20])
def test_the_rows_come_at_the_commit(folder: Path, tmp_path: Path, piece: int, packed: bool) -> None:
    log = BinlogBuilder()
    xa_transaction(log, "shop", one_phase=False)
    if packed:
        log = packed_log(log, lambda: "zstd")
        log._table_ids["shop", "orders"] = 100
    log.transaction("shop", "items", [1])
    xa_commit(log)
    log.transaction("shop", "orders", [2])
    framed = frame(log, folder, piece=piece)
    assert not framed.aside and not framed.unknown
    stored = split_events(framed.out)
    prepared_events = 6 if not packed else 2
    begin = 1 + prepared_events
    gtid, commit = log.events[begin + 5 : begin + 7]
    assert stored[:5] == log.events[begin : begin + 5] and stored[-5:] == log.events[-5:]
    assert stored[5] == gtid and stored[8] == commit and len(stored) == 14
    table_map, rows = stored[6:8]
    assert table_map[4] == EventType.TABLE_MAP and rows[4] == EventType.WRITE_ROWS
    for event in (table_map, rows):
        assert zlib.crc32(event[:-4]).to_bytes(4, "little") == event[-4:]
        assert event[13:17] == commit[13:17], "the position is that of the XA COMMIT"
        assert event[19:25] == own_table_id(table_map[:-4]) and event[24] & 0x80
    numbers = rows_of(framed)
    assert numbers[:, k.R_GTID_NUMBER].tolist() == [1, 2, 3, 4]
    assert numbers[:, k.R_ROW_EVENTS].tolist() == [0, 1, 1, 1]
    assert numbers[:, k.R_MASK].tolist() == [0, 2, 1, 1]
    assert int(numbers[0, k.R_FLAGS]) == k.FLAG_POSITION
    assert int(numbers[2, k.R_TIME]) == log.timestamp * 1_000_000 + 3, "the time is that of the XA COMMIT"
    require_same_scan(framed, log, tmp_path / "binlog.000001")
    decoded = [n for batch in read(tmp_path / "binlog.000001", table="shop.orders") for n in batch["id"].to_pylist()]
    assert decoded == [7, 2]


def test_what_leaves_no_rows(folder: Path) -> None:
    """A rollback, one of other tables, and one that is not known."""
    log = BinlogBuilder()
    xa_transaction(log, "shop", one_phase=False)
    xa_commit(log, verb="ROLLBACK")
    xa_transaction(log, "other", one_phase=False)
    xa_commit(log)
    xa_commit(log, xid="X'7a',X'',1")
    framed = frame(log, folder)
    assert not framed.out and not framed.aside and framed.unknown == ["x'7a',x'',1"]
    assert [int(n) for n in rows_of(framed)[:, k.R_GTID_COUNT]] == [5]


def test_the_table_id_of_another_server_run_is_no_other_table(folder: Path, tmp_path: Path) -> None:
    """After a restart the server uses the same id for another table."""
    log = BinlogBuilder()
    xa_transaction(log, "shop", one_phase=False)
    first = frame(log, folder)
    other_log = BinlogBuilder()
    other_log.transaction("shop", "items", [1])  # has the id that shop.orders had
    xa_commit(other_log)
    other_log.transaction("shop", "items", [2])
    hooks = Hooks(folder)
    hooks.aside = first.aside
    src = np.zeros(1 << 20, dtype=np.uint8)
    framer = hooks.framer = Framer(src, hooks, packets=True)
    feed(framer, src, hooks, other_log.packets, piece=1 << 20, flush_always=False)
    assert rows_of(hooks)[:, k.R_MASK].tolist() == [2, 1, 2]
    require_same_scan(hooks, other_log, tmp_path / "binlog.000001")


@pytest.mark.parametrize("flush_always", [False, True])
@pytest.mark.parametrize(("piece", "src_bytes"), [(97, 1 << 12), (5000, 1 << 14), (1 << 20, 4 << 20)])
def test_a_random_history(
    seed: int, folder: Path, tmp_path: Path, piece: int, src_bytes: int, flush_always: bool
) -> None:
    rng = random.Random(seed)
    plain = BinlogBuilder()
    wanted: list[int] = []
    pending: dict[str, list[int]] = {}
    forms: list[str] = []
    for number in range(60):
        db = rng.choice(("shop", "shop", "other"))
        values = [rng.randrange(1 << 31) for _ in range(rng.choice((1, 3, 2000, 60_000 if number == 30 else 1)))]
        choice = rng.random()
        forms.append(rng.choice(("zstd", "plain", "none")))
        if pending and choice < 0.35:
            xid = rng.choice(list(pending))
            verb = rng.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            xa_commit(plain, verb=verb, xid=f"X'{xid}',X'',1")
            rows = pending.pop(xid)
            forms[-1] = "plain"  # servers do not compress it
            wanted += rows if verb == "COMMIT" else []
        elif choice < 0.75:
            xid = f"{rng.randrange(1 << 24):06x}"
            xa_transaction(plain, db, one_phase=False, xid=bytes.fromhex(xid), values=values, more="other")
            pending[xid] = values if db == "shop" else []
        else:
            plain.transaction(db, "orders", values)
            wanted += values if db == "shop" else []
    log = packed_log(plain, lambda: forms.pop(0))
    framed = frame(log, folder, piece=piece, src_bytes=src_bytes, flush_always=flush_always)
    assert sorted(framed.aside) == sorted(f"x'{xid}',x'',1" for xid in pending) and not framed.unknown
    assert int(rows_of(framed)[:, k.R_GTID_COUNT].sum()) == log.gno
    segment = tmp_path / "binlog.000001"
    require_same_scan(framed, log, segment)
    assert [n for batch in read(segment, table="shop.orders") for n in batch["id"].to_pylist()] == wanted


def test_damage_of_the_file_stops(folder: Path) -> None:
    log = BinlogBuilder()
    xa_transaction(log, "shop", one_phase=False)
    first = frame(log, folder)
    path = first.aside[XID]
    assert path is not None
    good = path.read_bytes()
    [size] = {len(b"".join(split_events(good)))}
    assert size == len(good)
    for at in range(len(good)):
        changed = bytearray(good)
        changed[at] ^= 0xFF
        path.write_bytes(changed)
        with pytest.raises(DamagedError, match=XID):
            list(read_rows(path, 0, size, XID))
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(DamagedError):
            list(read_rows(path, 0, size, XID))


@pytest.mark.parametrize("size", [1, 5000, 400_000])
def test_large_row_events_are_read_in_pieces(folder: Path, size: int) -> None:
    log = BinlogBuilder()
    table_map = log.table_map("shop", "orders")
    rows = log.rows("shop", "orders", list(range(size)))
    path = folder / "0.binlog"
    path.write_bytes(table_map + rows)
    pieces = list(read_rows(path, 0, len(table_map) + len(rows), XID))
    assert max(map(len, pieces)) <= 300 << 10
    events = split_events(b"".join(pieces))
    assert [event[4] for event in events] == [EventType.TABLE_MAP, EventType.WRITE_ROWS]
    assert all(event[4] in (*ROW_EVENTS, EventType.TABLE_MAP) for event in events)
    assert events[0][25:] == table_map[25:-4] and events[1][25:] == rows[25:-4]
    if size > 5000:
        path.write_bytes(table_map + rows[:-10] + b"\1" + rows[-9:])
        with pytest.raises(DamagedError, match="the checksum of the event at byte"):
            list(read_rows(path, 0, len(table_map) + len(rows), XID))


def test_a_file_alone_refuses_prepared_rows(tmp_path: Path) -> None:
    log = BinlogBuilder()
    xa_transaction(log, "shop", one_phase=False)
    path = tmp_path / "binlog.000001"
    path.write_bytes(b"\xfebin" + b"".join(log.events))
    with pytest.raises(UnsupportedEventError, match=re.escape(f"the XA transaction {XID} is prepared here")):
        scan(path)


def test_the_kernel_uncompiled_does_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = BinlogBuilder()
    xa_transaction(log, "shop", one_phase=False)
    xa_transaction(log, "other", one_phase=False, xid=b"cd")
    log.transaction("shop", "items", [1])
    xa_commit(log)
    xa_commit(log, xid="X'6364',X'',1")
    compiled = frame(log, folder, piece=100)
    monkeypatch.setattr(framer, "frame", frame_kernel.frame.py_func)
    monkeypatch.setattr(frame_kernel, "frame_input", frame_kernel.frame_input.py_func)
    monkeypatch.setattr(framer, "bind", lambda kernel, *arguments: lambda: kernel(*arguments))
    plain = frame(log, folder, piece=100)
    assert plain.out == compiled.out and np.array_equal(rows_of(plain), rows_of(compiled))


def test_an_xa_prepare_without_a_transaction_is_damage(folder: Path) -> None:
    log = BinlogBuilder()
    log.event(EventType.XA_PREPARE, b"\0" + struct.pack("<iII", 1, 2, 0) + b"ab")
    with pytest.raises(Exception, match="does not fit the transaction around it"):
        frame(log, folder)
