"""The reference decoder of row events: values of known bytes, and events built by the test."""

from __future__ import annotations

import struct
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from cdc.base.errors import DamagedError, UnsupportedEventError
from cdc.binlog.constants import EventType
from cdc.testing.binlog import BinlogBuilder
from tests.support.rows import ABSENT, RowChange, binary_json, charsets, decode_rows, values


def _file(tmp_path: Path, log: BinlogBuilder) -> Path:
    path = tmp_path / "binlog.000001"
    path.write_bytes(log.data)
    return path


def test_decimals_have_groups_of_nine_digits() -> None:
    """The example in the comments of MySQL's ``decimal.cc``."""
    assert values.decimal(bytes.fromhex("810dfb38d204d2"), 14, 4) == Decimal("1234567890.1234")
    assert values.decimal(bytes.fromhex("7ef204c72dfb2d"), 14, 4) == Decimal("-1234567890.1234")
    assert values.decimal_size(65, 30) == 30
    assert values.decimal_text(b"\x80" + bytes(29), 65, 30) == "0." + "0" * 30


@pytest.mark.parametrize(
    ("raw", "digits", "shown"),
    [
        ("800000", 0, "00:00:00"),
        ("7fffff", 0, "-00:00:01"),
        ("b46efb", 0, "838:59:59"),
        ("4b9105", 0, "-838:59:59"),
        ("7fffffff", 2, "-00:00:00.01"),
        ("7ffffffff0", 4, "-00:00:00.0016"),
        ("7fffffffffff", 6, "-00:00:00.000001"),
        ("80c8b807d0", 3, "12:34:56.200"),
        ("80c8b801e240", 6, "12:34:56.123456"),
    ],
)
def test_negative_times_are_negative_numbers(raw: str, digits: int, shown: str) -> None:
    assert values.time2(bytes.fromhex(raw), digits) == shown


def test_zero_and_impossible_dates_are_none() -> None:
    assert values.date3((2024 << 9 | 2 << 5 | 29).to_bytes(3, "little")) == date(2024, 2, 29)
    assert values.date3((2023 << 9 | 2 << 5 | 31).to_bytes(3, "little")) is None
    assert values.date3(bytes(3)) is None
    assert values.unix_time(0, 0) is None
    assert values.unix_time(1, 5) == datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=ZoneInfo("UTC"))
    assert values.old_datetime((20240229123456).to_bytes(8, "little")) == datetime(2024, 2, 29, 12, 34, 56)  # noqa: DTZ001
    assert values.old_datetime(bytes(8)) is None


def test_times_of_mariadb_5_3() -> None:
    second = ((2024 * 13 + 2) * 32 + 29) * 86400 + 12 * 3600 + 34 * 60 + 56
    raw = (second * 1000 + 789).to_bytes(values.hires_size("datetime", 3), "big")
    assert values.hires_datetime(raw, 3) == datetime(2024, 2, 29, 12, 34, 56, 789000)  # noqa: DTZ001
    most = 838 * 3600 + 59 * 60 + 59
    raw = (0).to_bytes(values.hires_size("time", 1), "big")
    assert values.hires_time(raw, 1) == "-839:00:00.0"
    raw = ((most + 1) * 10 + 15).to_bytes(4, "big")
    assert values.hires_time(raw, 1) == "00:00:01.5"
    assert values.old_time((-8385959).to_bytes(3, "little", signed=True)) == "-838:59:59"


@pytest.mark.parametrize(
    ("groups", "shown"),
    [
        ((0, 0, 0, 0, 0, 0, 0, 0), "::"),
        ((0, 0, 0, 0, 0, 0, 0, 1), "::1"),
        ((0, 0, 0, 0, 0, 0, 0x0102, 0x0304), "::1.2.3.4"),
        ((0, 0, 0, 0, 0, 0xFFFF, 0x0102, 0x0304), "::ffff:1.2.3.4"),
        ((0x2001, 0xDB8, 0, 1, 0, 0, 1, 0), "2001:db8:0:1::1:0"),
        ((1, 0, 2, 3, 4, 5, 6, 7), "1::2:3:4:5:6:7"),
        ((1, 2, 3, 4, 5, 6, 7, 0), "1:2:3:4:5:6:7::"),
        ((0xFFFF,) * 8, ":".join(["ffff"] * 8)),
    ],
)
def test_inet6_as_mariadb_prints_it(groups: tuple[int, ...], shown: str) -> None:
    assert values.inet6_text(struct.pack(">8H", *groups)) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (1e14, "100000000000000.0"),
        (1e15, "1e15"),
        (1e-15, "0.000000000000001"),
        (1e-16, "1e-16"),
        (1.5e300, "1.5e300"),
        (-1.2345678901234567e-14, "-0.000000000000012345678901234567"),
        (123456789012345678.0, "1.2345678901234568e17"),
        (0.30000000000000004, "0.30000000000000004"),
    ],
)
def test_doubles_in_json_as_mysql_prints_them(number: float, shown: str) -> None:
    assert binary_json.double_text(number) == shown


def _document(*items: tuple[int, int]) -> bytes:
    """A small array of inlined values."""
    entries = b"".join(bytes([kind]) + value.to_bytes(2, "little") for kind, value in items)
    return b"\x02" + struct.pack("<HH", len(items), 4 + len(entries)) + entries


def test_json_of_small_arrays_and_objects() -> None:
    assert binary_json.text(b"") == "null"
    assert binary_json.text(_document((5, 0xFFFF), (6, 0xFFFF), (4, 1))) == "[-1, 65535, true]"
    document = b"\x00" + struct.pack("<HHHHBH", 1, 15, 11, 1, 12, 12) + b"k" + b'\x03a"b'
    assert binary_json.text(document) == '{"k": "a\\"b"}'
    assert binary_json.text(b"\x0f\xfc\x03\x00\xff\x10") == '"base64:type252:AP8Q"'


def test_partial_updates_of_json() -> None:
    """Replace, insert and remove, in this order, each on the result of the one before."""

    def diff(operation: int, path: bytes, value: bytes = b"") -> bytes:
        return bytes([operation, len(path)]) + path + (bytes([len(value)]) + value if value else b"")

    number = b"\x05\x07\x00"
    before = _document((5, 1), (5, 2), (5, 3))
    diffs = diff(0, b"$[0]", number) + diff(1, b"$[1]", number) + diff(2, b"$[2]")
    assert binary_json.apply_diffs(before, diffs) == "[7, 7, 3]"
    document = b"\x00" + struct.pack("<HHHHBH", 1, 12, 11, 1, 5, 9) + b"k"
    assert binary_json.apply_diffs(document, diff(1, b'$."a b"', number)) == '{"k": 9, "a b": 7}'


def test_charsets_in_which_servers_differ_from_python() -> None:
    assert charsets.text(b"\x81\x80", "latin1") == "\x81€"
    assert charsets.text(b"\x81\x5f\x5c\xb1", "sjis") == "\\\\ｱ"
    assert charsets.text(b"[a]", "swe7") == "ÄaÅ"
    assert charsets.text(b"\x8f\xf5\xa1\xf5\xa2a", "ujis") == "\ue3ac\ue001a"
    assert charsets.text(b"\xad\xa1\x8f\xf4\xae", "eucjpms") == "①炻"
    assert charsets.text("日本".encode("utf-16-be"), "ucs2") == "日本"
    with pytest.raises(LookupError):
        charsets.text(b"a", "klingon")


def test_changes_of_one_table(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1, -2])
    log.transaction("shop", "others", [5])
    log.transaction("shop", "orders", [3])
    rows = [RowChange("insert", None, {"id": value}) for value in (1, -2, 3)]
    assert decode_rows(_file(tmp_path, log), "shop.orders") == rows


def test_columns_that_an_image_leaves_out_are_marked(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.table_map("shop", "orders")
    head = (100).to_bytes(6, "little") + struct.pack("<HH", 1, 2) + b"\x01"
    # Before: the column; after: no column, so no bitmap of nulls either.
    log.event(EventType.UPDATE_ROWS, head + b"\x01\x00" + b"\x00" + struct.pack("<i", 7))
    assert decode_rows(_file(tmp_path, log), "shop.orders") == [RowChange("update", {"id": 7}, {"id": ABSENT})]


def test_a_truncated_row_is_damage(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.table_map("shop", "orders")
    head = (100).to_bytes(6, "little") + struct.pack("<HH", 1, 2) + b"\x01\xff"
    log.event(EventType.WRITE_ROWS, head + b"\x00" + b"\x07\x00\x00")
    with pytest.raises(DamagedError, match="ends inside a value"):
        decode_rows(_file(tmp_path, log), "shop.orders")


def test_unknown_events_are_refused(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.event(EventType.TRANSACTION_PAYLOAD, b"\0")
    with pytest.raises(UnsupportedEventError, match="40"):
        decode_rows(_file(tmp_path, log), "shop.orders")
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    path = _file(tmp_path, log)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="position"):
        decode_rows(path, "shop.orders")
