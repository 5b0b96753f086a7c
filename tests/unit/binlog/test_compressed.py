"""Compressed transactions (MySQL) and compressed rows (MariaDB) in framing: they end up as uncompressed ones do."""

from __future__ import annotations

import random
import re
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import zstandard

from cdc.base.errors import CorruptStreamError, DamagedError, UnsupportedEventError
from cdc.binlog import frame_kernel, framer
from cdc.binlog import frame_state as k
from cdc.binlog.constants import EventType
from cdc.binlog.file import BinlogFile, scan
from cdc.binlog.framer import Framer, PackedTransactionError
from cdc.binlog.payload import PayloadReader
from cdc.binlog.positions import make_seq
from cdc.decode.reader import read
from cdc.testing.binlog import BinlogBuilder
from tests.support.framing import StatementHooks, feed, frame, rows_of
from tests.support.rare_events import compressed_rows, inner, packed_log, payload_body, split_events, xa_transaction


def without_positions(data: bytes | bytearray) -> list[bytes]:
    """The events without end_log_pos and checksum, after verifying the latter."""
    events = []
    for event in split_events(data):
        assert zlib.crc32(event[:-4]).to_bytes(4, "little") == event[-4:]
        events.append(event[:13] + event[17:-4])
    return events


def workload(seed: int) -> BinlogBuilder:
    """Transactions of captured and other tables, mixed in every way."""
    rng = random.Random(seed)
    log = BinlogBuilder()
    for _ in range(rng.randint(1, 30)):
        log.gtid()
        log.query("BEGIN")
        for _ in range(rng.randint(1, 4)):
            tables = [
                (rng.choice(("shop", "other")), rng.choice(("orders", "items"))) for _ in range(rng.randint(1, 3))
            ]
            for db, table in tables:
                log.table_map(db, table)
            changed = [rng.choice(tables) for _ in range(rng.randint(1, 5))]
            for number, (db, table) in enumerate(changed):
                if rng.random() < 0.1:
                    log.event(EventType.ROWS_QUERY, b"\5text ")
                values = [rng.randrange(1 << 31) for _ in range(rng.choice((1, 3, 2000)))]
                log.rows(db, table, values, end=number == len(changed) - 1)
        log.xid()
    return log


@pytest.mark.parametrize("flush_always", [False, True])
@pytest.mark.parametrize(("piece", "src_bytes"), [(97, 1 << 12), (5000, 1 << 14), (1 << 20, 4 << 20)])
def test_the_result_is_that_of_the_uncompressed_stream(
    seed: int, piece: int, src_bytes: int, flush_always: bool, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    plain = workload(seed)
    packed = packed_log(plain, lambda: rng.choice(("zstd", "frames", "unsized", "none", "plain")))
    expected = frame(plain)
    framed = frame(packed, piece=piece, src_bytes=src_bytes, flush_always=flush_always)
    assert without_positions(framed.out) == without_positions(expected.out)
    rows, others = rows_of(framed), rows_of(expected)
    kept, others_kept = rows[rows[:, k.R_LENGTH] > 0], others[others[:, k.R_LENGTH] > 0]
    for column in (k.R_LENGTH, k.R_OFFSET, k.R_TIME, k.R_EVENTS, k.R_ROW_EVENTS, k.R_FLAGS, k.R_MASK, k.R_GTID_NUMBER):
        assert np.array_equal(kept[:, column], others_kept[:, column]), column
    assert int(rows[:, k.R_GTID_COUNT].sum()) == plain.gno
    assert int(rows[-1, k.R_SEQ]) == make_seq(0, 1, packed.pos)
    # A scan of the segment, which recovery makes, finds the same index.
    segment = tmp_path / "binlog.000001"
    segment.write_bytes(b"\xfebin" + packed.events[0] + bytes(framed.out))
    scanned = scan(segment, number=lambda db, table: framed.table(db, table))
    assert scanned.damage is None and scanned.end == scanned.size
    for column in (k.R_SEQ, k.R_LENGTH, k.R_EVENTS, k.R_ROW_EVENTS, k.R_SUM, k.R_TIME, k.R_MASK):
        assert np.array_equal(scanned.rows[:, column], kept[:, column]), column


def test_small_ones_are_unpacked_by_the_kernel(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python unpacks the first one, and gives the kernel the address of zstd's function with it."""
    rng = random.Random(seed)
    plain = BinlogBuilder()
    for n in range(40):
        plain.transaction(rng.choice(("shop", "other")), rng.choice(("orders", "items")), [n] * rng.choice((1, 3, 300)))
    log = packed_log(plain, lambda: "zstd")
    fed: list[int] = []
    feed_payload = PayloadReader.feed

    def counted(self: PayloadReader, piece: memoryview) -> None:
        fed.append(len(piece))
        feed_payload(self, piece)

    monkeypatch.setattr(PayloadReader, "feed", counted)
    framed = frame(log)
    assert len(fed) == 1
    monkeypatch.setattr(framer, "unpacker", lambda: None)
    by_python = frame(log)
    assert len(fed) == 41
    assert bytes(framed.out) == bytes(by_python.out) and without_positions(framed.out)
    assert np.array_equal(rows_of(framed), rows_of(by_python))


def test_positions_are_those_of_the_payload() -> None:
    log = BinlogBuilder()
    log.gtid()
    begin = log.pos
    log.event(EventType.TRANSACTION_PAYLOAD, payload_body(inner(db="shop", table="orders")))
    ends = [int.from_bytes(event[13:17], "little") for event in split_events(frame(log).out)]
    assert ends == [begin, *[log.pos] * (len(ends) - 1)] and len(ends) == 5


def test_positions_beyond_four_gigabytes(tmp_path: Path) -> None:
    """A recovered index has the same seqs, although the events of a transaction are larger than it was."""
    plain = BinlogBuilder()
    for n in range(16):
        plain.transaction("shop", "orders", [n] * 20_000 if n % 2 else [n])
    forms = iter(["plain", "zstd"] * 8)
    log = packed_log(plain, lambda: next(forms), pos=0xFFFFFE00)
    hooks = StatementHooks(pos=0xFFFFFE00)
    src = np.zeros(1 << 20, dtype=np.uint8)
    framed = hooks.framer = Framer(src, hooks, packets=True)
    feed(framed, src, hooks, log.packets, piece=1 << 20, flush_always=False)
    rows = rows_of(hooks)
    assert int(rows[-1, k.R_SEQ]) == make_seq(0, 1, log.pos) and log.pos > 1 << 32
    segment = tmp_path / "binlog.000001"
    rotate = struct.pack("<IBIIIHQ", 0, 4, 1, 19 + 8 + 13 + 4, 0, 0x20, 0xFFFFFE00) + b"binlog.000001"
    rotate += zlib.crc32(rotate).to_bytes(4, "little")
    segment.write_bytes(b"\xfebin" + log.events[0] + rotate + bytes(hooks.out))
    assert np.array_equal(scan(segment).rows[:, k.R_SEQ], rows[:, k.R_SEQ])


@pytest.mark.parametrize("piece", [1, 50, 1 << 20])
def test_one_of_other_tables_leaves_only_its_position(piece: int) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    for method in (0, 255, 0):
        log.gtid()
        log.event(EventType.TRANSACTION_PAYLOAD, payload_body(inner(db="other", table="orders"), method=method))
    log.transaction("shop", "orders", [2])
    framed = frame(log, piece=piece)
    assert bytes(framed.out) == b"".join([*log.events[1:6], *log.events[12:]])
    rows = rows_of(framed)
    passed = rows[rows[:, k.R_FLAGS] == k.FLAG_POSITION]
    assert int(passed[-1, k.R_GTID_NUMBER]) == 4 and int(passed[-1, k.R_TIME]) == log.timestamp * 1_000_000 + 4


def test_what_is_stored_already_is_not_unpacked() -> None:
    log = BinlogBuilder()
    log.gtid()
    log.event(EventType.TRANSACTION_PAYLOAD, b"not even a payload")
    stored = log.pos
    log.gtid()
    log.event(EventType.TRANSACTION_PAYLOAD, payload_body(inner(db="shop", table="orders")))
    hooks = StatementHooks(stored=stored)
    src = np.zeros(1 << 16, dtype=np.uint8)
    framed = hooks.framer = Framer(src, hooks, packets=True)
    feed(framed, src, hooks, log.packets, piece=1 << 16, flush_always=False)
    assert [int(n) for n in rows_of(hooks)[:, k.R_GTID_NUMBER]] == [2]


@pytest.mark.parametrize("src_bytes", [1 << 10, 1 << 20])
def test_statements_in_it_are_judged_and_stop_at_its_end(src_bytes: int) -> None:
    log = BinlogBuilder()
    log.gtid()
    body = inner(db="other", table="t", sql="INSERT INTO other.t VALUES (1)")
    log.event(EventType.TRANSACTION_PAYLOAD, payload_body(body))
    assert frame(log, src_bytes=src_bytes).statements == ["INSERT INTO other.t VALUES (1)"]
    log.gtid()
    log.event(EventType.TRANSACTION_PAYLOAD, payload_body(inner(db="shop", table="orders", sql="INSERT INTO shop.t …")))
    with pytest.raises(UnsupportedEventError, match=rf"a text: INSERT INTO shop\.t .*Use rows.*pos: {log.pos}"):
        frame(log, src_bytes=src_bytes)


@pytest.mark.parametrize("src_bytes", [1 << 10, 1 << 20])
def test_an_event_that_stops_capture_stops_it_at_the_end_of_the_payload(src_bytes: int) -> None:
    log = BinlogBuilder()
    log.gtid()
    data = inner(db="shop", table="orders", end=lambda inside: inside.event(172, bytes(9)) and inside.xid())
    log.event(EventType.TRANSACTION_PAYLOAD, payload_body(data))
    with pytest.raises(UnsupportedEventError, match=rf"PARTIAL_ROW_DATA.*12\.3 is not supported yet.*pos: {log.pos}"):
        frame(log, src_bytes=src_bytes)


def test_xa_transactions_in_it() -> None:
    """One that is committed in one phase is stored; a prepared one with captured rows stops who cannot follow it."""
    for one_phase in (True, False):
        plain = BinlogBuilder()
        xa_transaction(plain, "other", one_phase=one_phase)
        xa_transaction(plain, "shop", one_phase=True)
        log = packed_log(plain, lambda: "zstd")
        assert without_positions(frame(log).out) == without_positions(frame(plain).out)
    xa_transaction(plain, "shop", one_phase=False)
    log = packed_log(plain, lambda: "zstd")
    with pytest.raises(UnsupportedEventError, match=rf"is prepared here with rows of shop\.orders.*pos: {log.pos}"):
        frame(log)


GOOD = inner(db="shop", table="orders")
DAMAGED = [
    (b"", "it is empty"),
    (b"\2\1\0", "fields have no end"),
    (bytes([9, 250]) * 300, "fields have no end"),
    (b"\2\1\7\0abc", "method of compression (7)"),
    (b"\0abc", "method of compression (None)"),
    (b"\2\2\0\0\0", "length of its field 2"),
    (b"\xff", "number in its fields"),
    (b"\2\1\0\3\1\5\0not zstd", "cannot be unpacked"),
    (payload_body(b"", packed=zstandard.compress(GOOD)[:-5]), "says that it is empty"),
    (payload_body(b"", packed=zstandard.compress(GOOD)[:-5], says=len(GOOD)), "and has"),
    (b"\2\1\0\0" + zstandard.compress(GOOD), "does not say how long it is"),
    (payload_body(GOOD, says=10), "bytes unpacked, and has more"),
    (payload_body(GOOD, says=10**6), "bytes unpacked, and has"),
    (payload_body(GOOD, says=10**12), "bytes unpacked, and has"),
    (payload_body(GOOD) + b"x", "cannot be unpacked|bytes packed"),
    (payload_body(GOOD[:-3]), "the last event in it is cut"),
    (payload_body(GOOD[:-30]), "the last event in it is cut|no event in it ends"),
    (payload_body(GOOD + GOOD), "does not fit the transaction"),
    (payload_body(GOOD[: GOOD.index(b"shop\0\6orders") - 8 - 19 - 1]), "no event in it ends|is cut"),
    (payload_body(bytes(40)), "the length of an event"),
    (payload_body(GOOD[70:]), "is damaged"),
    (payload_body(inner(db="shop", table="orders", end=lambda log: log.gtid())), "does not fit the transaction"),
    (
        payload_body(inner(db="shop", table="orders", end=lambda log: log.format_description())),
        "does not fit the trans",
    ),
    (payload_body(inner(db="shop", table="orders", end=lambda log: log.event(4, bytes(20)))), "does not fit the trans"),
    (
        payload_body(inner(db="shop", table="orders", end=lambda log: log.event(40, payload_body(GOOD)))),
        "does not fit the transaction",
    ),
]


@pytest.mark.parametrize("src_bytes", [1 << 9, 1 << 20])
@pytest.mark.parametrize(("body", "words"), DAMAGED)
def test_a_damaged_one_is_damage_with_its_place(
    body: bytes, words: str, src_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    log.gtid()
    log.event(
        EventType.TRANSACTION_PAYLOAD, payload_body(inner(db="shop", table="orders"))
    )  # the kernel takes the next
    behind = log.pos
    log.gtid()
    log.event(EventType.TRANSACTION_PAYLOAD, body)
    with pytest.raises(CorruptStreamError, match=words if "|" in words else re.escape(words)) as caught:
        frame(log, src_bytes=src_bytes)
    assert f"binlog.000001, behind {behind}" in str(caught.value)
    assert "compressed transaction (TRANSACTION_PAYLOAD) is damaged" in str(caught.value)
    monkeypatch.setattr(framer, "unpacker", lambda: None)
    with pytest.raises(CorruptStreamError) as by_python:
        frame(log, src_bytes=src_bytes)
    assert str(by_python.value) == str(caught.value)


def test_random_damage_gives_an_error_or_nothing_wrong(seed: int) -> None:
    """Without checksums, damage that unpacks to events in order cannot be seen; it must never crash."""
    rng = random.Random(seed)
    for _ in range(300):
        body = bytearray(payload_body(GOOD, method=rng.choice((0, 255))))
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        if rng.random() < 0.2:
            del body[rng.randrange(len(body)) :]
        log = BinlogBuilder()
        for each in (payload_body(GOOD), bytes(body)):
            log.gtid()
            log.event(EventType.TRANSACTION_PAYLOAD, each)
        try:
            frame(log, piece=rng.choice((7, 1 << 20)), src_bytes=1 << 12)
        except (CorruptStreamError, UnsupportedEventError):
            continue


@pytest.mark.parametrize("src_bytes", [1 << 9, 1 << 20])
def test_the_checksum_decides(src_bytes: int) -> None:
    """With a wrong checksum nothing of the transaction is kept, however much of it was unpacked before."""
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    whole = b"".join(log.events[1:])
    log.gtid()
    data = inner(db="shop", table="orders", values=list(range(200)))
    event = log.event(EventType.TRANSACTION_PAYLOAD, payload_body(data, method=255))
    log.events[-1] = event.replace(struct.pack("<i", 7), struct.pack("<i", 8))
    hooks = StatementHooks()
    src = np.zeros(src_bytes, dtype=np.uint8)
    framed = hooks.framer = Framer(src, hooks, packets=True)
    with pytest.raises(CorruptStreamError, match=r"checksum of an event \(TRANSACTION_PAYLOAD"):
        feed(framed, src, hooks, log.packets, piece=1 << 20, flush_always=False)
    end = framed.abandon_transaction()
    hooks.flush(framed)
    assert bytes(hooks.out)[:end] == whole and len(rows_of(hooks)) == 1


def test_a_failed_payload_leaves_a_framer_that_goes_on() -> None:
    log = BinlogBuilder()
    log.gtid()
    log.event(EventType.TRANSACTION_PAYLOAD, payload_body(GOOD[:-3]))
    hooks = StatementHooks()
    src = np.zeros(1 << 20, dtype=np.uint8)
    framed = hooks.framer = Framer(src, hooks, packets=True)
    with pytest.raises(CorruptStreamError):
        feed(framed, src, hooks, log.packets, piece=1 << 20, flush_always=False)
    framed.abandon_transaction()
    later_log = BinlogBuilder()
    later_log.gtid()
    later_log.event(EventType.TRANSACTION_PAYLOAD, payload_body(GOOD))
    framed.st.in_pos = framed.st.in_end = 0
    feed(framed, src, hooks, later_log.packets, piece=1 << 20, flush_always=False)
    assert without_positions(hooks.out) == without_positions(frame(later_log).out) != []


def test_a_large_one_is_unpacked_in_little_memory() -> None:
    """One row event of a captured table; all of it passes through the output."""
    size = 1 << 28
    head = inner(db="shop", table="orders")
    maps_end = head.index(struct.pack("<B", EventType.WRITE_ROWS), 19 * 3) - 4
    while (
        head[maps_end + 4] != EventType.WRITE_ROWS or int.from_bytes(head[maps_end + 9 : maps_end + 13], "little") > 99
    ):
        maps_end += 1
    packing = zstandard.ZstdCompressor(level=1).compressobj()
    rows = head[maps_end + 19 : maps_end + 31]
    data = packing.compress(head[:maps_end])
    data += packing.compress(struct.pack("<IBIIIH", 0, EventType.WRITE_ROWS, 1, size, 0, 0) + rows)
    for _ in range((size >> 20) - 1):
        data += packing.compress(bytes(1 << 20))
    data += packing.compress(bytes((1 << 20) - 19 - len(rows)))
    data += packing.compress(head[-27:]) + packing.flush()
    log = BinlogBuilder()
    log.gtid()
    log.event(EventType.TRANSACTION_PAYLOAD, payload_body(b"", says=maps_end + size + 27, packed=data))

    class Counting(StatementHooks):
        def flush(self, framer: Framer) -> None:
            self.count = getattr(self, "count", 0) + len(framer.take_output())
            framer.drop_output()
            self.rows.append(framer.take_rows())

    hooks = Counting()
    src = np.zeros(1 << 18, dtype=np.uint8)
    tracemalloc.start()
    framed = hooks.framer = Framer(src, hooks, packets=True, out_bytes=1 << 20)
    feed(framed, src, hooks, log.packets, piece=1 << 16, flush_always=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows_of(hooks)[:, k.R_LENGTH].tolist() == [hooks.count] and hooks.count > size
    assert peak < 32 << 20  # the rows of transactions are 9 MB of it


def test_binlog_files_are_read_from_an_unpacked_copy(tmp_path: Path) -> None:
    plain = BinlogBuilder()
    for n in range(5):
        plain.transaction("shop", "orders", [n, n + 100])
    packed = packed_log(plain, lambda: "zstd")
    path = tmp_path / "binlog.000003"
    path.write_bytes(packed.data)
    with pytest.raises(PackedTransactionError):
        scan(path)
    opened = BinlogFile.open(path)
    assert opened.damage is None and opened.source_file == "binlog.000003" and opened.has_checksum
    ends = [split_events(packed.data[4:])[n] for n in range(2, 12, 2)]
    assert [int(seq) for seq in opened.entries["seq"]] == [
        make_seq(0, 3, int.from_bytes(event[13:17], "little")) for event in ends
    ]
    rows = [n for batch in read(path, table="shop.orders") for n in batch.column("id").to_pylist()]
    assert rows == [0, 100, 1, 101, 2, 102, 3, 103, 4, 104]
    path.write_bytes(packed.data[:-40] + b"\0" + packed.data[-39:])
    damaged = BinlogFile.open(path)
    assert len(damaged.entries) == 4 and isinstance(damaged.damage, DamagedError)


# ---------------------------------------------------------------- MariaDB's compressed rows


@pytest.mark.parametrize("kind", range(166, 172))
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_compressed_rows_are_kept_as_they_are(kind: int, piece: int) -> None:
    log = BinlogBuilder()
    for db in ("other", "shop"):
        log.gtid()
        log.table_map(db, "orders")
        compressed_rows(log, kind, db, "orders", [5])
        log.xid()
    framed = frame(log, piece=piece)
    assert bytes(framed.out) == b"".join(log.events[5:])
    assert [int(n) for n in rows_of(framed)[:, k.R_ROW_EVENTS]] == [0, 1]


@pytest.mark.parametrize("kind", range(166, 172))
def test_compressed_rows_without_all_columns_stop(kind: int) -> None:
    log = BinlogBuilder()
    log.gtid()
    log.table_map("shop", "orders")
    extra = b"\2\0" if kind >= 169 else b""
    masks = b"\xff\xfe" if kind in (167, 170) else b"\xfe"
    log.event(kind, (100).to_bytes(6, "little") + b"\1\0" + extra + b"\1" + masks + b"\x81\5" + zlib.compress(bytes(5)))
    log.xid()
    with pytest.raises(
        UnsupportedEventError, match=rf"rows of shop\.orders .*only some of its columns.*pos: {log.pos}"
    ):
        frame(log)


def test_kernel_uncompiled_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = workload(1)
    log = packed_log(plain, lambda: "zstd")
    log.gtid()
    log.table_map("shop", "orders")
    compressed_rows(log, 167, "shop", "orders", [1])
    log.xid()
    compiled = frame(log, piece=5000)
    monkeypatch.setattr(framer, "frame", frame_kernel.frame.py_func)
    monkeypatch.setattr(frame_kernel, "frame_input", frame_kernel.frame_input.py_func)
    with np.errstate(over="ignore"):
        uncompiled = frame(log, piece=5000)
    assert bytes(uncompiled.out) == bytes(compiled.out) != b""
    assert np.array_equal(rows_of(uncompiled), rows_of(compiled))
