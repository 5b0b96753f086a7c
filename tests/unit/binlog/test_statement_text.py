"""The text of a QUERY event is in the character set of its session, which the event's status variables name."""

from __future__ import annotations

import struct

import pytest

from cdc.binlog.events import parse_query

FLAGS = bytes([0, 0, 0, 0, 1])
SQL_MODE = bytes([1, 0, 0, 0x20, 0x54, 0, 0, 0, 0])
CATALOG = b"\x06\x03std"
COLLATIONS = bytes([131, 2, 0x21, 0, 0, 8, 0x2D, 0, 0, 9])


def event(text: bytes, status: bytes) -> bytes:
    body = struct.pack("<IIBHH", 7, 0, 4, 0, len(status)) + status + b"shop\0" + text
    return struct.pack("<IBIIIH", 0, 2, 1, 19 + len(body), 0, 0) + body


def charset(number: int) -> bytes:
    return b"\x04" + struct.pack("<HHH", number, number, 8)


@pytest.mark.parametrize(
    ("number", "codec", "text"),
    [(8, "cp1252", "é€"), (28, "gbk", "你好"), (51, "cp1251", "ж"), (45, "utf-8", "😀"), (255, "utf-8", "é")],
)
@pytest.mark.parametrize("before", [FLAGS + SQL_MODE + CATALOG, FLAGS + SQL_MODE + CATALOG + COLLATIONS, b""])
def test_a_text_is_decoded_by_its_session(number: int, codec: str, text: str, before: bytes) -> None:
    sql = f"ALTER TABLE t ADD `{text}` INT"
    assert parse_query(event(sql.encode(codec), before + charset(number) + b"\x05\x03UTC"), False).sql == sql


@pytest.mark.parametrize("status", [b"", FLAGS, FLAGS + b"\x63", CATALOG[:2], COLLATIONS[:3], b"\x04", b"\x83"])
def test_status_variables_that_are_short_or_unknown_are_no_error(status: bytes) -> None:
    assert parse_query(event("ADD é".encode(), status), False).sql == "ADD é"
    assert parse_query(event(b"ADD \xe9", status), False).sql == "ADD \ufffd"


def test_every_byte_of_latin1_is_a_character() -> None:
    text = parse_query(event(bytes(range(128, 256)), charset(8)), False).sql
    assert len(text) == 128 and "\ufffd" not in text


@pytest.mark.parametrize(
    ("status", "explicit"),
    [
        (b"\0\x00\x00\x00\x01", True),  # MariaDB's flag
        (b"\0\x00\x00\x00\x00", None),
        (FLAGS + b"\x10\x01", True),  # MySQL's variable
        (FLAGS + b"\x10\x00", False),
        (b"", None),
    ],
)
def test_the_session_says_what_a_timestamp_without_default_is(status: bytes, explicit: bool | None) -> None:
    assert parse_query(event(b"SELECT 1", status), False).explicit_defaults is explicit
