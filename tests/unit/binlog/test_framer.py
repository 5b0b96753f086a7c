"""The framing kernel over built streams: kept events, rows of transactions, and errors."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from cdc.base.errors import CorruptStreamError, DamagedError, UnsupportedEventError
from cdc.binlog import events, frame_kernel
from cdc.binlog import frame_state as k
from cdc.binlog.constants import EventType
from cdc.binlog.file import scan
from cdc.binlog.frame_events import add_table, find_table, image_columns
from cdc.binlog.framer import Decision, Framer, empty_table_ids
from cdc.binlog.optional_columns import Columns, lacking_columns, let_lack
from cdc.binlog.positions import make_seq
from cdc.testing.binlog import BinlogBuilder, packets_of
from cdc.testing.source.faults import renumbered
from tests.support.framing import CollectingHooks, feed, rows_of


class Hooks(CollectingHooks):
    """Keeps ALTER statements, and marks the ends of statements in what was flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.patched: list[int] = []

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        return Decision(query.sql.startswith("ALTER"), ddl=True, table_mask=1)

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        assert self.framer is not None
        self.framer.start_output(0, 0)

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        assert self.framer is not None
        self.framer.start_file(rotate.file, rotate.pos, make_seq(0, 1, 0))

    def set_statement_end(self, offset: int, length: int) -> int:
        self.flush(self.framer)  # type: ignore[arg-type]
        event = bytearray(self.out[offset : offset + length])
        event[25] |= 1
        self.out[offset : offset + length] = events.with_checksum(bytes(event))
        self.patched.append(offset)
        return int.from_bytes(self.out[offset + length - 4 : offset + length], "little")


def frame(
    stream: bytes,
    *,
    piece: int = 1 << 20,
    flush_always: bool = True,
    src_bytes: int = 4 << 20,
    first_packet: int | None = None,
) -> Hooks:
    """Frames ``stream`` in pieces."""
    hooks = Hooks()
    src = np.zeros(src_bytes, dtype=np.uint8)
    framer = hooks.framer = Framer(src, hooks, packets=True, first_packet=first_packet, out_bytes=3 << 20)
    feed(framer, src, hooks, stream, piece=piece, flush_always=flush_always)
    return hooks


def checksum(events_kept: list[bytes]) -> int:
    return sum((2 * i + 1) * zlib.crc32(e[:-4]) for i, e in enumerate(events_kept)) & 0xFFFFFFFF


def test_keeps_a_transaction_as_it_came() -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1, 2, 3])
    hooks = frame(log.packets)
    assert bytes(hooks.out) == b"".join(log.events[1:])
    (row,) = rows_of(hooks)
    assert row[k.R_SEQ] == make_seq(0, 1, log.pos)
    assert (row[k.R_OFFSET], row[k.R_LENGTH]) == (0, len(hooks.out))
    assert (row[k.R_EVENTS], row[k.R_ROW_EVENTS], row[k.R_FLAGS]) == (5, 1, 0)
    assert row[k.R_TIME] == log.timestamp * 1_000_000 + 1
    assert row[k.R_MASK] == 1
    assert row[k.R_SUM] == checksum(log.events[1:])
    assert (row[k.R_GTID_NUMBER], row[k.R_GTID_COUNT]) == (1, 1)


@pytest.mark.parametrize("piece", [1, 3, 64, 1000])
def test_pieces_of_any_size_give_the_same(piece: int) -> None:
    log = BinlogBuilder()
    for n in range(20):
        log.transaction("shop" if n % 3 else "other", "orders", list(range(n)))
        log.query("ALTER TABLE orders ADD c INT") if n == 7 else None
    whole, pieces = frame(log.packets), frame(log.packets, piece=piece)
    assert bytes(whole.out) == bytes(pieces.out)
    real = [rows_of(x)[rows_of(x)[:, k.R_LENGTH] > 0] for x in (whole, pieces)]
    assert np.array_equal(real[0], real[1])


def test_leaves_out_what_is_not_ours_but_moves_on() -> None:
    log = BinlogBuilder()
    for n in range(5):
        log.transaction("other", "orders", [n])
    hooks = frame(log.packets)
    assert not hooks.out
    (row,) = rows_of(hooks)
    assert row[k.R_FLAGS] == k.FLAG_POSITION
    assert row[k.R_SEQ] == make_seq(0, 1, log.pos)
    assert (row[k.R_GTID_NUMBER], row[k.R_GTID_COUNT]) == (5, 5)


@pytest.mark.parametrize("flush_first", [False, True])
def test_statement_end_moves_to_the_last_kept_row_event(flush_first: bool) -> None:
    log = BinlogBuilder()
    log.gtid()
    log.query("BEGIN")
    log.table_map("shop", "orders")
    log.table_map("other", "audit")
    log.rows("shop", "orders", [1], end=False)
    kept = len(log.events)
    log.rows("other", "audit", [9], end=True)
    log.xid()
    cut = len(b"".join(packets_of(e) for e in log.events[:kept]))
    stream = log.packets
    head = len(stream) - len(b"".join(packets_of(e) for e in log.events))
    hooks = frame(stream, piece=head + cut if flush_first else len(stream))
    events_kept = [log.events[1], log.events[2], log.events[3], log.events[5], log.events[7]]
    patched = bytearray(log.events[5])
    patched[25] |= 1
    events_kept[3] = events.with_checksum(bytes(patched))
    assert bytes(hooks.out) == b"".join(events_kept)
    assert rows_of(hooks)[0, k.R_SUM] == checksum(events_kept)
    assert bool(hooks.patched) == flush_first


def test_table_maps_of_a_statement_without_rows_of_ours_are_left_out() -> None:
    log = BinlogBuilder()
    log.gtid()
    log.query("BEGIN")
    log.table_map("shop", "orders")
    log.rows("shop", "orders", [1])
    log.table_map("shop", "items")
    log.table_map("other", "audit")
    log.rows("other", "audit", [9])
    log.xid()
    hooks = frame(log.packets)
    assert bytes(hooks.out) == b"".join(log.events[i] for i in (1, 2, 3, 4, 8))
    assert rows_of(hooks)[0, k.R_SUM] == checksum([log.events[i] for i in (1, 2, 3, 4, 8)])


def test_an_event_larger_than_every_buffer_passes_through() -> None:
    log = BinlogBuilder()
    log.gtid()
    log.query("BEGIN")
    log.table_map("shop", "orders")
    log.rows("shop", "orders", list(range(8_000_000)))  # 40 MB: three packets
    log.xid()
    hooks = frame(log.packets)
    assert bytes(hooks.out) == b"".join(log.events[1:])
    assert rows_of(hooks)[0, k.R_SUM] == checksum(log.events[1:])


def test_an_event_of_exactly_one_full_packet() -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [0])
    fixed = len(log.events[4]) - 5
    size = 0xFFFFFF - 1
    log = BinlogBuilder()
    log.gtid()
    log.query("BEGIN")
    log.table_map("shop", "orders")
    assert (size - fixed) % 5 in range(5)
    body_rows = [0] * ((size - fixed) // 5)
    event = log.rows("shop", "orders", body_rows)
    pad = size - len(event)
    log.events.pop()
    log.pos -= len(event)
    raw = event[19:-4] + bytes(pad)
    log.event(event[4], raw)
    log.xid()
    assert len(log.events[4]) == size
    hooks = frame(log.packets)
    assert bytes(hooks.out) == b"".join(log.events[1:])


def test_a_wrong_checksum_stops_the_stream() -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    stream = bytearray(log.packets)
    stream[-40] ^= 1
    with pytest.raises(CorruptStreamError, match="checksum"):
        frame(bytes(stream))


@pytest.mark.parametrize(
    ("kind", "words"), [(20, "PRE_GA_WRITE_ROWS"), (26, "INCIDENT"), (43, "event type 43"), (99, "event type 99")]
)
def test_refused_events_are_named(kind: int, words: str) -> None:
    log = BinlogBuilder()
    log.gtid()
    log.event(kind, bytes(30))
    with pytest.raises(UnsupportedEventError, match=re.escape(words)):
        frame(log.packets)


def rows_event(kind: int, columns: int, bitmaps: bytes, *, extra: bytes = b"", rows: bytes = bytes(40)) -> bytes:
    """The body of a row event for table 100."""
    count = bytes([columns]) if columns < 251 else b"\xfc" + columns.to_bytes(2, "little")
    head = (100).to_bytes(6, "little") + b"\1\0"
    return head + ((len(extra) + 2).to_bytes(2, "little") + extra if kind >= 30 else b"") + count + bitmaps + rows


@pytest.mark.parametrize(
    ("kind", "columns", "bitmaps", "whole"),
    [
        (23, 1, b"\1", True),
        (23, 1, b"\xfe", False),
        (30, 11, b"\xff\x07", True),
        (30, 11, b"\xff\xf7", True),  # the last of the eleven is there, what is behind it means nothing
        (30, 11, b"\xff\xfb", False),
        (30, 11, b"\x7f\xff", False),
        (25, 8, b"\xff", True),
        (31, 11, b"\xff\x07\xff\x07", True),
        (31, 11, b"\x01\x00\xff\x07", False),
        (31, 11, b"\xff\x07\x02\x00", False),
        (24, 9, b"\xff\x01\xff\x00", False),
        (39, 3, b"\x07\x07", True),
        (39, 3, b"\x07\x03", False),
        (32, 3, b"\x07\x00", True),  # a delete has one bitmap
        (30, 4096, b"\xff" * 512, True),
        (31, 4096, b"\xff" * 1023 + b"\x7f", False),
    ],
)
@pytest.mark.parametrize("extra", [b"", b"partition"])
@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_rows_with_columns_missing_stop_it(
    kind: int, columns: int, bitmaps: bytes, whole: bool, extra: bytes, piece: int
) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    log.gtid()
    log.table_map("shop", "orders")
    log.event(kind, rows_event(kind, columns, bitmaps, extra=extra))
    log.xid()
    if whole:
        hooks = frame(log.packets, piece=piece)
        assert bytes(hooks.out) == b"".join(log.events[1:])
        assert rows_of(hooks)[-1, k.R_ROW_EVENTS] == 1
        return
    with pytest.raises(UnsupportedEventError, match=r"rows of shop\.orders \(.* hold only some of its columns"):
        frame(log.packets, piece=piece)
    others = BinlogBuilder()  # of a table that is not captured it does not matter
    others.gtid()
    others.table_map("other", "orders")
    others.event(kind, rows_event(kind, columns, bitmaps, extra=extra))
    others.xid()
    assert not frame(others.packets, piece=piece).out


@pytest.mark.parametrize("piece", [1, 1 << 20])
@pytest.mark.parametrize("allowed", [True, False])
def test_rows_may_lack_the_columns_that_the_caller_allows(allowed: bool, piece: int) -> None:
    """It is asked once for each table id, by the names in the table map, and again in another file."""
    log = BinlogBuilder()
    log.transaction("shop", "items", [1])
    for _ in range(3):
        log.gtid()
        log.table_map("shop", "orders")
        log.event(
            31, rows_event(31, 1, b"\0\0", rows=b"").replace((100).to_bytes(6, "little"), (101).to_bytes(6, "little"))
        )
        log.xid()
    asked: list[tuple[str, str, Columns]] = []

    def may_lack(db: str, table: str, columns: Columns) -> bool:
        asked.append((db, table, columns))
        return allowed

    hooks = Hooks()
    src = np.zeros(4 << 20, dtype=np.uint8)
    framer = hooks.framer = Framer(src, hooks, packets=True, out_bytes=3 << 20, may_lack=may_lack)
    if not allowed:
        with pytest.raises(UnsupportedEventError, match=r"rows of shop\.orders \(.* hold only some of its columns"):
            feed(framer, src, hooks, log.packets, piece=piece, flush_always=False)
    else:
        feed(framer, src, hooks, log.packets, piece=piece, flush_always=False)
        assert bytes(hooks.out) == b"".join(log.events[1:])
        assert rows_of(hooks)[:, k.R_ROW_EVENTS].tolist() == [1] * 4
        feed(framer, src, hooks, log.packets, piece=piece, flush_always=False)  # begins with another file
    assert asked == [("shop", "orders", frozenset({"id"}))] * (2 if allowed else 1)


def test_rows_with_other_columns_than_their_table_map_are_refused() -> None:
    log = BinlogBuilder()
    log.gtid()
    log.table_map("shop", "orders")
    log.event(23, rows_event(23, 11, b"\xff\x03"))
    log.xid()
    hooks = Hooks()
    src = np.zeros(1 << 20, dtype=np.uint8)
    framer = hooks.framer = Framer(src, hooks, packets=True, may_lack=lambda *_: True)
    with pytest.raises(UnsupportedEventError, match="hold only some of its columns"):
        feed(framer, src, hooks, log.packets, piece=1 << 20, flush_always=False)


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_table_map_of_another_length_is_looked_at_again(piece: int) -> None:
    """With or without metadata, a table keeps its id. Other tables are not asked about again."""
    log = BinlogBuilder()
    for padding in (0, 0, 9, 9, 0):
        log.gtid()
        log.query("BEGIN")
        for table in ("orders", "customers"):
            log.table_map("shop", table, padding=padding if table == "orders" else 0)
            log.rows("shop", table, [1])
        log.xid()
    asked: list[str] = []

    class Asked(Hooks):
        def table(self, db: str, table: str) -> int | None:
            asked.append(table)
            return super().table(db, table)

    hooks = Asked()
    src = np.zeros(1 << 20, dtype=np.uint8)
    framer = hooks.framer = Framer(src, hooks, packets=True)
    feed(framer, src, hooks, log.packets, piece=piece, flush_always=False)
    assert asked == ["orders", "customers", "orders", "orders"]
    assert [int(row[k.R_ROW_EVENTS]) for row in rows_of(hooks)] == [1] * 5, "customers is not captured"


def test_columns_that_may_be_missing_stay_known_while_tables_are_added() -> None:
    tables = empty_table_ids(64)
    for table_id in (100, 101):
        add_table(tables, table_id, 0, 0, -1)
    tables = let_lack(tables, 101, 300, frozenset({3}))
    tables = let_lack(tables, 100, 9, frozenset({8}))
    tables = let_lack(tables, 101, 300, frozenset({3, 299}))
    for table_id, columns, lacking in ((101, 300, frozenset({3, 299})), (100, 9, frozenset({8}))):
        bitmap = sum(1 << c for c in range(columns) if c not in lacking).to_bytes((columns + 7) // 8, "little")
        event = bytes(4) + b"\x17" + bytes(14) + rows_event(23, columns, bitmap, rows=b"")
        src = np.frombuffer(event + b"\0", dtype=np.uint8)
        at = int(tables.optional_at[find_table(tables.keys, table_id)])
        assert lacking_columns(event) == (columns, lacking)
        for kernel in (image_columns, image_columns.py_func):
            assert kernel(src, 0, len(event), len(event), tables.optional, at) == -1
            assert kernel(src, 0, len(event), len(event), tables.optional, -1) == k.PART_IMAGE
        src = src.copy()
        src[len(event) - len(bitmap)] &= 0xFE  # the first column, too
        assert image_columns(src, 0, len(event), len(event), tables.optional, at) == k.PART_IMAGE


@pytest.mark.parametrize("kind", [23, 24, 30, 31, 39])
def test_the_start_of_a_row_event_cut_anywhere(kind: int) -> None:
    """Nothing behind the arrived bytes is read, and the compiled kernel agrees with the uncompiled one."""
    maps = 2 if kind in (24, 31, 39) else 1
    body = rows_event(kind, 300, b"\xff" * 38 * maps, extra=b"xy", rows=b"")
    event = bytes(4) + bytes([kind]) + bytes(14) + body
    for length in range(27, len(event) + 1):
        src = np.frombuffer(event[:length] + b"\0" * 64, dtype=np.uint8).copy()
        optional = np.empty(0, dtype=np.uint8), -1
        columns = image_columns(src, 0, length, len(event), *optional)
        assert columns == image_columns.py_func(src, 0, length, len(event), *optional)
        assert columns == (-1 if length == len(event) else k.NEED_INPUT)
        short = image_columns(src, 0, length, length, *optional)
        assert short == image_columns.py_func(src, 0, length, length, *optional)
        assert short == (-1 if length == len(event) else k.BAD_LENGTH)


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_damaged_bitmap_is_damage(piece: int) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    stream = bytearray(log.packets)
    at = bytes(stream).index(log.events[4])
    stream[at + 30] ^= 1  # the only column's bit; the checksum is not made anew
    with pytest.raises(CorruptStreamError, match="checksum"):
        frame(bytes(stream), piece=piece)


def test_a_segment_of_a_source_without_checksums() -> None:
    """Capture adds four bytes to each event, and positions remain the source's."""
    log = BinlogBuilder()
    for n in range(5):
        log.transaction("shop", "orders", [n])
    ends, pos, stored = [], 4, []
    for event in log.events:
        pos += len(event) - 4
        stored.append(events.with_checksum(event[:13] + pos.to_bytes(4, "little") + event[17:]))
        if event[4] == 16:
            ends.append(pos)
    src = np.frombuffer(b"".join(stored[1:]), dtype=np.uint8).copy()
    hooks = Hooks()
    framer = Framer(src, hooks, packets=False, scan=True)
    framer.start_file("binlog.000001", 4 + len(log.events[0]) - 4, make_seq(0, 1, 0))
    framer.fed(len(src))
    framer.run()
    assert [int(row[k.R_END_POS]) for row in framer.take_rows()] == ends


def offsets(stream: bytes) -> list[int]:
    """Returns where each packet begins."""
    starts, at = [], 0
    while at < len(stream):
        starts.append(at)
        at += 4 + int.from_bytes(stream[at : at + 3], "little")
    return starts


@pytest.mark.parametrize("piece", [1 << 20, 333])
def test_packets_come_in_the_order_of_their_numbers(piece: int) -> None:
    """Beyond 256 packets, too."""
    log = BinlogBuilder()
    for n in range(60):
        log.transaction("shop", "orders", [n])
    stream = b"".join(renumbered([log.packets]))
    hooks = frame(stream, piece=piece, first_packet=1)
    assert bytes(hooks.out) == b"".join(log.events[1:])
    places = offsets(stream)
    assert len(places) == len(log.events) + 1 > 256
    for at in (places[0], places[1], places[280], places[-3], places[-2]):
        other = bytearray(stream)
        other[at + 3] ^= 4
        with pytest.raises(CorruptStreamError, match="by its number"):
            frame(bytes(other), piece=piece, first_packet=1)
        frame(bytes(other), piece=piece)


def test_a_transaction_inside_another_is_an_error() -> None:
    log = BinlogBuilder()
    log.gtid()
    log.gtid()
    with pytest.raises(CorruptStreamError, match="does not fit"):
        frame(log.packets)


def test_rows_without_their_table_map_are_an_error() -> None:
    log = BinlogBuilder()
    log.gtid()
    log.table_map("shop", "orders")
    log.events.pop()
    log.rows("shop", "orders", [1])
    with pytest.raises(CorruptStreamError, match="has no TABLE_MAP"):
        frame(log.packets)


def test_positions_beyond_four_gibibytes() -> None:
    hooks = Hooks()
    log = BinlogBuilder()
    log.pos = 2**32 - 100
    log.transaction("shop", "orders", list(range(100)))
    log.transaction("shop", "orders", [1])
    src = np.zeros(1 << 21, dtype=np.uint8)
    framer = hooks.framer = Framer(src, hooks, packets=True, out_bytes=3 << 20)
    stream = log.packets
    src[: len(stream)] = np.frombuffer(stream, dtype=np.uint8)
    framer.fed(len(stream))
    framer.run()
    hooks.flush(framer)
    offsets = [int(r[k.R_SEQ]) & (1 << 34) - 1 for r in rows_of(hooks)]
    assert offsets[1] == log.pos
    assert 2**32 < offsets[0] < offsets[1]


def test_scan_of_a_file_finds_the_same_transactions(tmp_path: Path) -> None:
    log = BinlogBuilder()
    for n in range(9):
        log.transaction("shop", "orders", [n])
    path = tmp_path / "binlog.000001"
    path.write_bytes(log.data)
    scanned = scan(path)
    assert scanned.damage is None and scanned.end == len(log.data) and scanned.source_file == "binlog.000001"
    assert [int(r[k.R_SEQ]) for r in scanned.rows] == [int(r[k.R_SEQ]) for r in rows_of(frame(log.packets))]


def test_scan_ends_at_damage_and_names_it(tmp_path: Path) -> None:
    log = BinlogBuilder()
    for n in range(3):
        log.transaction("shop", "orders", [n])
    data = bytearray(log.data)
    data[-10] ^= 0x40
    path = tmp_path / "binlog.000001"
    path.write_bytes(data)
    scanned = scan(path)
    assert isinstance(scanned.damage, DamagedError) and "checksum" in str(scanned.damage)
    assert len(scanned.rows) == 2


def test_kernel_uncompiled_does_the_same() -> None:
    log = BinlogBuilder()
    for n in range(3):
        log.transaction("shop" if n else "other", "orders", [n])
    body = b"".join(log.events[1:])
    results = []
    for kernel in (frame_kernel.frame_input, frame_kernel.frame_input.py_func):
        st = k.FrameState.new()
        st.scan, st.has_crc, st.verify, st.hold = 1, 1, 1, -1
        src = np.frombuffer(body, dtype=np.uint8).copy()
        st.in_end = len(src)
        rows = np.zeros((16, k.ROW_WIDTH), dtype=np.int64)
        tables = empty_table_ids(64)
        for number, (db, table) in enumerate((("other", "orders"), ("shop", "orders"))):
            add_table(tables, 100 + number, number, len(BinlogBuilder().table_map(db, table)) - 4, -1)
        with np.errstate(over="ignore"):
            status = kernel(st, src, np.zeros(64, np.uint8), rows, tables, np.zeros(16, dtype=np.uint8))
        assert status == k.NEED_INPUT
        results.append((rows, st))
    assert np.array_equal(results[0][0], results[1][0])
    assert np.array_equal(results[0][1].numbers, results[1][1].numbers)
    assert results[0][1].n_rows == 3


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_transactions_whose_gtids_are_stored_only_move_the_position(piece: int) -> None:
    log = BinlogBuilder()
    ends = []
    for n in range(6):
        log.transaction("shop" if n % 3 else "other", "orders", [n])
        log.query("ALTER TABLE orders ADD c INT") if n == 2 else None
        ends.append(log.pos)
    hooks = Hooks()
    src = np.zeros(4 << 20, dtype=np.uint8)
    framer = hooks.framer = Framer(src, hooks, packets=True, out_bytes=3 << 20)
    asked: list[str] = []

    def is_stored(gtid: str) -> bool:
        asked.append(gtid)
        if len(asked) == 5:
            framer.ask_about_gtids(None)
        return gtid.endswith((":2", ":5"))

    framer.ask_about_gtids(is_stored)
    feed(framer, src, hooks, log.packets, piece=piece, flush_always=True)
    plain = frame(log.packets, piece=piece)
    kept, all_kept = rows_of(hooks), rows_of(plain)
    numbers = kept[kept[:, k.R_LENGTH] > 0][:, k.R_GTID_NUMBER].tolist()
    assert [
        number for number in all_kept[all_kept[:, k.R_LENGTH] > 0][:, k.R_GTID_NUMBER] if number not in (2, 5)
    ] == numbers
    assert len(asked) == 5
    assert kept[-1, k.R_SEQ] == all_kept[-1, k.R_SEQ]
    positions = kept[kept[:, k.R_FLAGS] == k.FLAG_POSITION]
    assert {2, 5} <= {
        number
        for row in positions
        for number in range(int(row[k.R_GTID_NUMBER] - row[k.R_GTID_COUNT]) + 1, int(row[k.R_GTID_NUMBER]) + 1)
    }


def test_a_view_change_of_group_replication_is_a_transaction_without_rows() -> None:
    """The group writes one when a member joins, with a GTID of its own between BEGIN and COMMIT."""
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    log.gtid()
    log.query("BEGIN", db="")
    log.event(EventType.VIEW_CHANGE, b"17637265:3".ljust(40, b"\0") + (3).to_bytes(8, "little") + bytes(4))
    log.query("COMMIT", db="")
    log.transaction("shop", "orders", [2])
    rows = rows_of(frame(log.packets))
    assert rows[:, k.R_GTID_NUMBER].tolist() == [1, 2, 3]
    assert rows[:, k.R_FLAGS].tolist() == [0, k.FLAG_POSITION, 0]
