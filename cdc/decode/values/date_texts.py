"""DATE, DATETIME and TIMESTAMP as SELECT prints them, zero, half-zero and impossible dates included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from cdc.binlog.table_map import ColumnType
from cdc.decode.conversion import Conversion, by_distinct

DATE_BYTES: dict[int, int] = {
    ColumnType.DATE: 3,
    ColumnType.NEWDATE: 3,
    ColumnType.DATETIME2: 5,
    ColumnType.TIMESTAMP2: 4,
}
"""Bytes of a value without its fraction."""
_DATETIME2_ZERO = 1 << 39
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def date_text(kind: int, digits: int) -> Conversion:
    """The conversion of a value's bytes to ``string``; a TIMESTAMP is printed in UTC. ``digits``: of the fraction."""
    one = {ColumnType.DATETIME2: _datetime2, ColumnType.TIMESTAMP2: _timestamp2}.get(ColumnType(kind))
    if one is None:
        return lambda raw: by_distinct(raw, _date, pa.string())
    return lambda raw: by_distinct(raw, lambda value: one(value, digits), pa.string())


def old_date_text(kind: str, digits: int) -> Conversion:
    """The same for the storage before MySQL 5.6 and MariaDB 10.1; ``kind`` is ``datetime`` or ``timestamp``."""
    one = _old_timestamp if kind == "timestamp" else _old_datetime if digits == 0 else _hires_datetime
    return lambda raw: by_distinct(raw, lambda value: one(value, digits), pa.string())


def _date(value: bytes) -> str:
    number = int.from_bytes(value, "little")
    return _day(number >> 9, number >> 5 & 15, number & 31)


def _datetime2(value: bytes, digits: int) -> str:
    number = int.from_bytes(value[:5], "big") - _DATETIME2_ZERO
    clock, date = number & 0x1FFFF, number >> 17
    months, day = date >> 5, date & 31
    parts = (months // 13, months % 13, day, clock >> 12, clock >> 6 & 63, clock & 63)
    return _moment(*parts, _stored_fraction(value[5:], digits))


def _timestamp2(value: bytes, digits: int) -> str:
    return _instant(int.from_bytes(value[:4], "big"), _stored_fraction(value[4:], digits))


def _stored_fraction(value: bytes, digits: int) -> str:
    """The digits of a fraction, which is stored with an even number of them."""
    return str(int.from_bytes(value, "big")).zfill(2 * len(value))[:digits] if digits else ""


def _old_timestamp(value: bytes, digits: int) -> str:
    seconds = int.from_bytes(value[:4], "big" if digits else "little")
    return _instant(seconds, str(int.from_bytes(value[4:], "big")).zfill(digits) if digits else "")


def _old_datetime(value: bytes, digits: int) -> str:
    number = int.from_bytes(value, "little")
    day, clock = divmod(number, 1_000_000)
    return _moment(day // 10_000, day // 100 % 100, day % 100, clock // 10_000, clock // 100 % 100, clock % 100, "")


def _hires_datetime(value: bytes, digits: int) -> str:
    rest, fraction = divmod(int.from_bytes(value, "big"), 10**digits)
    rest, second = divmod(rest, 60)
    rest, minute = divmod(rest, 60)
    rest, hour = divmod(rest, 24)
    months, day = divmod(rest, 32)
    return _moment(months // 13, months % 13, day, hour, minute, second, str(fraction).zfill(digits))


def _instant(seconds: int, fraction: str) -> str:
    if seconds == 0 and not fraction.strip("0"):
        return _moment(0, 0, 0, 0, 0, 0, fraction)
    at = _EPOCH + timedelta(seconds=seconds)
    return _moment(at.year, at.month, at.day, at.hour, at.minute, at.second, fraction)


def _day(year: int, month: int, day: int) -> str:
    if year > 9999 or month > 12:
        raise ValueError("fields that no server writes")
    return f"{year:04}-{month:02}-{day:02}"


def _moment(year: int, month: int, day: int, hour: int, minute: int, second: int, fraction: str) -> str:
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("fields that no server writes")
    text = f"{_day(year, month, day)} {hour:02}:{minute:02}:{second:02}"
    return f"{text}.{fraction}" if fraction else text
