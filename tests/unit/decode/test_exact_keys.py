"""Values of keys must stay distinct: texts with bytes without a meaning, and dates as texts."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc.binlog.table_map import ColumnType
from cdc.decode.charsets.convert import exact_text, has_meaningless, text_conversion
from cdc.decode.conversions.base import BadValueError
from cdc.decode.conversions.temporal import date_text, old_date_text


@pytest.mark.parametrize(
    ("charset", "sound", "odd"),
    [
        ("ascii", b"a?", b"a\x80"),
        ("utf8mb4", "é?".encode(), b"?\xed\xa0\x80"),
        ("cp1256", b"?a", b"\x8a"),
        ("gbk", b"?\xc4\xe3", b"?\xff"),
        ("sjis", b"?\x83\x41", b"\x83?"),
        ("utf16", "a?😀".encode("utf-16-be"), b"\x00?\xd8\x00"),
        ("utf16le", "a?".encode("utf-16-le"), b"?\x00\x00\xdc"),
        ("utf32", "a?".encode("utf-32-be"), b"\x00\x00\xd8\x00"),
        ("ucs2", "?".encode("utf-16-be"), b"\xd8\x00"),
    ],
)
def test_bytes_that_mean_nothing_are_told_from_question_marks(charset: str, sound: bytes, odd: bytes) -> None:
    assert (has_meaningless(sound, charset), has_meaningless(odd, charset)) == (False, True)
    convert = exact_text(charset, text_conversion(charset))
    texts = convert(pa.array([sound, None], pa.binary()))
    assert "?" in texts[0].as_py()
    with pytest.raises(BadValueError) as raised:
        convert(pa.array([sound, None, odd], pa.binary()))
    assert (raised.value.row, raised.value.lost_bytes) == (2, True)


def test_dates_as_select_prints_them() -> None:
    def text_of(conversion: object, value: bytes) -> str:
        assert callable(conversion)
        text: str = conversion(pa.array([value, None], pa.binary()))[0].as_py()
        return text

    date = (2020 << 9 | 2 << 5 | 31).to_bytes(3, "little")
    assert text_of(date_text(ColumnType.DATE, 0), date) == "2020-02-31"
    assert text_of(date_text(ColumnType.DATE, 0), bytes(3)) == "0000-00-00"
    moment = ((2020 * 13 + 0 << 5 | 0) << 17 | 23 << 12 | 59 << 6 | 58) + (1 << 39)
    value = moment.to_bytes(5, "big") + (1230).to_bytes(2, "big")
    assert text_of(date_text(ColumnType.DATETIME2, 3), value) == "2020-00-00 23:59:58.123"
    assert text_of(date_text(ColumnType.TIMESTAMP2, 0), bytes(4)) == "0000-00-00 00:00:00"
    assert text_of(date_text(ColumnType.TIMESTAMP2, 1), (1).to_bytes(4, "big") + b"\x32") == "1970-01-01 00:00:01.5"
    assert text_of(old_date_text("datetime", 0), (20240001000203).to_bytes(8, "little")) == "2024-00-01 00:02:03"
    assert text_of(old_date_text("timestamp", 0), (1).to_bytes(4, "little")) == "1970-01-01 00:00:01"
    assert text_of(old_date_text("timestamp", 2), (0).to_bytes(4, "big") + b"\x05") == "1970-01-01 00:00:00.05"
    hires = (((((2024 * 13 + 2) * 32 + 29) * 24 + 1) * 60 + 2) * 60 + 3) * 100 + 4
    assert text_of(old_date_text("datetime", 2), hires.to_bytes(6, "big")) == "2024-02-29 01:02:03.04"
