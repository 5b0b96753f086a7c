"""Events that few sources write: compressed statements, XA, tagged GTIDs, incidents. Damage is never a crash."""

from __future__ import annotations

import struct
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cdc.base.errors import CdcError, CorruptStreamError, DamagedError, UnsupportedEventError
from cdc.binlog import frame_kernel, framer
from cdc.binlog import frame_state as k
from cdc.binlog.constants import EventType
from cdc.binlog.entry import format_gtid
from cdc.binlog.events import parse_query
from cdc.binlog.file import rows_to_entries, scan
from cdc.binlog.framer import row_gtid
from cdc.binlog.rare_events import parse_incident, parse_tagged_gtid, parse_xa, parse_xa_prepare
from cdc.capture.session import _coalesce
from cdc.testing.binlog import BinlogBuilder
from tests.support import framing
from tests.support.framing import StatementHooks, rows_of
from tests.support.rare_events import compressed_query, inner, payload_body, tagged, xa_transaction

# As MySQL 9.7 wrote it: GTID_NEXT '1fd2de40-e638-11f1-b424-02fc00000001:foo:1'.
TAGGED = bytes.fromhex(
    "d181026b2ac24700004e000000de0e00000000026e000000023e4903790380990370"
    "22c503d1024804f10300000002040406"
    "06666f6f08340a380c7f4afd5d01d7600610f503128312"
    "0b"
)
# As MariaDB 11.8 wrote it: INSERT INTO x.t VALUES (13,'stmtstmt…'), compressed.
QUERY_COMPRESSED = bytes.fromhex(
    "d581026ba56a5a00006d00000000000000000 00b00000000000000000000 1a000000000001 01000020540000000006037374640400090009000900"
    "816e789cf3f40b760d0a51f0f40bf157a8d02b5108 73f40975 0d56d03034d6512f2ec92da126 56d70400b7e42b49".replace(" ", "")
)


class NothingStored(StatementHooks):
    """Hooks for transactions of which nothing is stored before their end."""

    def set_statement_end(self, offset: int, length: int) -> int:
        raise AssertionError("nothing was stored")


frame = partial(framing.frame, make_hooks=NothingStored)


# ---------------------------------------------------------------- MariaDB's compressed statements


def test_a_compressed_statement_of_a_real_server() -> None:
    sql = f"INSERT INTO x.t VALUES (13,'{'stmt' * 20}')"
    assert parse_query(QUERY_COMPRESSED, has_checksum=False).sql == sql


def test_compressed_statements_are_judged_as_others_are(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.gtid()
    compressed_query(log, "ALTER TABLE other.t ADD c INT")
    log.gtid()
    compressed_query(log, "ALTER TABLE shop.orders ADD c INT")
    framed = frame(log)
    assert framed.statements == ["ALTER TABLE other.t ADD c INT", "ALTER TABLE shop.orders ADD c INT"]
    assert bytes(framed.out) == b"".join(log.events[3:])
    assert int(rows_of(framed)[-1, k.R_FLAGS]) == k.FLAG_DDL
    path = tmp_path / "binlog.000001"
    path.write_bytes(log.data)
    assert [int(flags) & k.FLAG_DDL for flags in scan(path).rows[:, k.R_FLAGS]] == [k.FLAG_DDL] * 2
    log.gtid()
    compressed_query(log, "INSERT INTO shop.orders VALUES (1)")
    with pytest.raises(UnsupportedEventError, match=rf"a text: INSERT INTO shop.*pos: {log.pos}"):
        frame(log)


@pytest.mark.parametrize(
    ("packed", "says"), [(b"garbage", 5), (b"", 5), (zlib.compress(b"x" * 9), 5), (zlib.compress(b"x" * 9), 900)]
)
def test_a_damaged_compressed_statement_is_damage(packed: bytes, says: int) -> None:
    log = BinlogBuilder()
    log.gtid()
    compressed_query(log, "", packed=packed, says=says)
    if packed == b"":  # cut: what there is of it is nothing, and no statement
        assert not frame(log).out
        return
    with pytest.raises(CorruptStreamError, match=r"MARIADB_QUERY_COMPRESSED.* is invalid"):
        frame(log)


# ---------------------------------------------------------------- XA


def test_a_prepared_transaction_of_other_tables_is_passed_over() -> None:
    log = BinlogBuilder()
    xa_transaction(log, "other", one_phase=False)
    log.transaction("shop", "orders", [1])
    log.gtid()
    log.query("XA COMMIT X'6162',X'',1")
    framed = frame(log)
    assert bytes(framed.out) == b"".join(log.events[7:12]) and not framed.statements
    assert [int(n) for n in rows_of(framed)[:, k.R_GTID_NUMBER]] == [1, 2, 3]


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_one_that_was_committed_in_one_phase_is_kept(piece: int, tmp_path: Path) -> None:
    log = BinlogBuilder()
    xa_transaction(log, "shop", one_phase=True)
    xa_transaction(log, "other", one_phase=True)
    log.transaction("shop", "orders", [1])
    framed = frame(log, piece=piece)
    assert bytes(framed.out) == b"".join([*log.events[1:7], *log.events[13:]])
    rows = rows_of(framed)
    assert [int(n) for n in rows[:, k.R_ROW_EVENTS]] == [1, 0, 1]
    path = tmp_path / "binlog.000001"
    path.write_bytes(b"\xfebin" + log.events[0] + bytes(framed.out))
    scanned = scan(path)
    assert scanned.damage is None and scanned.end == scanned.size
    for column in (k.R_SEQ, k.R_LENGTH, k.R_EVENTS, k.R_ROW_EVENTS, k.R_SUM, k.R_TIME):
        kept = rows[rows[:, k.R_LENGTH] > 0]
        assert [int(n) for n in scanned.rows[:, column]] == [int(n) for n in kept[:, column]]


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_prepared_one_with_captured_rows_stops_who_cannot_follow_it(piece: int) -> None:
    log = BinlogBuilder()
    xa_transaction(log, "shop", one_phase=False)
    with pytest.raises(
        UnsupportedEventError, match=r"x'6162',x'',1 is prepared here with rows of shop\.orders"
    ) as caught:
        frame(log, piece=piece)
    assert f"pos: {log.pos}}}" in str(caught.value)


def test_xa_statements_and_events() -> None:
    statement = parse_xa("XA COMMIT X'00FF',X'',1 ONE PHASE")
    assert statement is not None and (statement.verb, statement.xid) == ("COMMIT", "x'00ff',x'',1")
    assert parse_xa("XAVIER") is None and parse_xa("INSERT") is None and parse_xa("XA RECOVER") is None
    event = bytes(19) + b"\0" + struct.pack("<iII", 7, 1, 2) + b"\xffab"
    assert parse_xa_prepare(event) == "x'ff',x'6162',7"
    for length in range(19, len(event)):
        with pytest.raises(DamagedError):
            parse_xa_prepare(event[:length])


# ---------------------------------------------------------------- tagged GTIDs


def test_a_tagged_gtid_of_a_real_server() -> None:
    tagged_gtid = parse_tagged_gtid(TAGGED)
    assert (tagged_gtid.source.hex(), tagged_gtid.tag, tagged_gtid.number) == (
        "1fd2de40e63811f1b42402fc00000001",
        b"foo",
        1,
    )
    assert tagged_gtid.time_us == 1_795_326_417_435_978


def test_a_tagged_gtid_cut_or_changed_anywhere_is_damage_or_another() -> None:
    for length in range(19, len(TAGGED) - 8):  # behind it stands what is not read
        with pytest.raises(DamagedError):
            parse_tagged_gtid(TAGGED[:length])
    for at in range(19, len(TAGGED)):
        for value in (0, 1, 0x7F, 0xFE, 0xFF):
            changed = TAGGED[:at] + bytes([value]) + TAGGED[at + 1 :]
            try:
                assert len(parse_tagged_gtid(changed).source) == 16
            except DamagedError:
                continue


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_tagged_transactions_are_like_others(piece: int, tmp_path: Path) -> None:
    log = BinlogBuilder()
    time_us = log.timestamp * 1_000_000
    for number, (tag, db) in enumerate(
        [("a", "shop"), ("a", "other"), ("a", "other"), ("b", "other"), ("z" * 32, "shop")]
    ):
        log.event(EventType.GTID_TAGGED, tagged(tag.encode(), number + 1, time_us + number))
        log.query("BEGIN")
        log.table_map(db, "orders")
        log.rows(db, "orders", [number])
        log.xid()
    log.transaction("other", "orders", [9])
    framed = frame(log, piece=piece)
    assert bytes(framed.out) == b"".join([*log.events[1:6], *log.events[21:26]])
    rows = _coalesce([rows_of(framed)])
    source = "01010101-0101-0101-0101-0101010101fe"
    texts = [
        f"{source}:a:1",
        f"{source}:a:3",
        f"{source}:b:4",
        f"{source}:{'z' * 32}:5",
        "01010101-0101-0101-0101-010101010101:1",
    ]
    assert [row_gtid(row) for row in rows] == texts
    assert [int(n) for n in rows[:, k.R_GTID_COUNT]] == [1, 2, 1, 1, 1]
    assert int(rows[0, k.R_TIME]) == time_us and int(rows[3, k.R_TIME]) == time_us + 4
    assert [format_gtid(entry) for entry in rows_to_entries(rows)] == texts
    path = tmp_path / "binlog.000001"
    path.write_bytes(b"\xfebin" + log.events[0] + bytes(framed.out))
    assert [format_gtid(entry) for entry in rows_to_entries(scan(path).rows)] == [texts[0], texts[3]]


def test_a_damaged_tagged_gtid_is_damage() -> None:
    log = BinlogBuilder()
    log.event(EventType.GTID_TAGGED, tagged(b"UPPER", 1, 1))
    with pytest.raises(CorruptStreamError, match=r"GTID_TAGGED .* holds no GTID"):
        frame(log)


# ---------------------------------------------------------------- incidents, statements


def test_an_incident_always_stops_with_the_servers_words() -> None:
    text = b"the server lost them"
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    log.event(EventType.INCIDENT, b"\1\0" + bytes([len(text)]) + text)
    with pytest.raises(UnsupportedEventError, match=rf"lost events here .*the server lost them.*pos: {log.pos}"):
        frame(log)
    assert parse_incident(bytes(19)) == "incident 0"


def test_a_refused_statement_names_the_end_of_its_transaction() -> None:
    log = BinlogBuilder()
    log.gtid()
    log.query("BEGIN")
    log.query("INSERT INTO shop.orders VALUES (1)")
    log.query("INSERT INTO shop.items VALUES (1)")
    log.xid()
    with pytest.raises(CdcError, match=rf"INSERT INTO shop\.orders .*pos: {log.pos}"):
        frame(log)


def test_kernel_uncompiled_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    log = BinlogBuilder()
    xa_transaction(log, "other", one_phase=False)
    xa_transaction(log, "shop", one_phase=True)
    log.gtid()
    log.event(EventType.TRANSACTION_PAYLOAD, payload_body(inner(db="other", table="orders")))
    log.event(EventType.GTID_TAGGED, tagged(b"a", 1, 1))
    log.query("BEGIN")
    log.table_map("other", "t")
    log.event(166, (100).to_bytes(6, "little") + b"\1\0\1\xff\x81\x05")
    log.table_map("shop", "orders")
    log.rows("shop", "orders", [1])
    log.xid()
    log.gtid()
    compressed_query(log, "ALTER TABLE shop.orders ADD c INT")
    compiled = frame(log, piece=100)
    monkeypatch.setattr(framer, "frame", frame_kernel.frame.py_func)
    monkeypatch.setattr(frame_kernel, "frame_input", frame_kernel.frame_input.py_func)
    with np.errstate(over="ignore"):
        plain = frame(log, piece=100)
    assert bytes(plain.out) == bytes(compiled.out) != b""
    assert np.array_equal(rows_of(plain), rows_of(compiled))
