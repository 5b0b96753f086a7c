"""Conversions of dates and times: TIME as text, the storage before MySQL 5.6 and MariaDB 10.1, and dates as text.

Tables made before those versions keep their storage until they are rebuilt. Without fractions both servers store the
same; MariaDB's fractions of the versions 5.3 to 10.0 (``/* mariadb-5.3 */``) are one big-endian number in units of the
last digit. Sources: MySQL's ``Field_timestamp``, ``Field_datetime``, ``Field_time``, MariaDB's
``Field_timestamp_hires`` and its siblings.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.binlog.table_map import ColumnType
from cdc.decode.conversions.base import BadValueError, Conversion, by_distinct, fixed_width
from cdc.decode.kernels.values import measure_times, write_times

Longs = npt.NDArray[np.int64]

HIRES_BYTES = {
    "timestamp": (4, 5, 5, 6, 6, 7, 7),
    "datetime": (8, 6, 6, 7, 7, 7, 8),
    "time": (3, 4, 4, 5, 5, 5, 6),
}
"""Size of a value by the number of digits of its fraction, in bytes."""
_TIME_ZERO_S = 838 * 3600 + 59 * 60 + 59 + 1
"""MariaDB stores a TIME with a fraction as the distance from one second below its range."""

DATE_BYTES: dict[int, int] = {
    ColumnType.DATE: 3,
    ColumnType.NEWDATE: 3,
    ColumnType.DATETIME2: 5,
    ColumnType.TIMESTAMP2: 4,
}
"""Size of a value without its fraction, in bytes."""
_DATETIME2_ZERO = 1 << 39
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_text(digits: int) -> Conversion:
    """The conversion of a TIME with ``digits`` digits of the fraction: microseconds (``int64``) to ``string``."""

    def convert(raw: pa.Array) -> pa.Array:
        us = np.ascontiguousarray(raw.fill_null(0).to_numpy(zero_copy_only=False))
        valid = np.ones(len(raw), dtype=np.uint8)
        if raw.null_count:
            valid = raw.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False)
        offsets = np.empty(len(raw) + 1, dtype=np.int32)
        text = np.empty(int(measure_times(us, valid, digits, offsets)), dtype=np.uint8)
        write_times(us, valid, digits, offsets, text)
        validity = raw.is_valid() if raw.null_count else None
        buffers = [None if validity is None else validity.buffers()[1], pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(raw), buffers)

    return convert


# ---------------------------------------------------------------- old storage


def _numbers(raw: pa.Array, width: int, order: str, signed: bool = False) -> tuple[Longs, npt.NDArray[np.bool_]]:
    """The values of a ``binary`` array of one width as integers (0 for null), and which of them are not null."""
    valid = np.asarray(raw.is_valid().to_numpy(zero_copy_only=False), dtype=bool)
    number = np.zeros(len(raw), dtype=np.int64)
    columns = fixed_width(raw, width).T
    for column in columns if order == "big" else columns[::-1]:
        number = number << 8 | column
    if signed:
        number = np.where(number >> (8 * width - 1), number - (1 << 8 * width), number)
    return number, valid


def _zero_dates(zero: npt.NDArray[np.bool_], valid: npt.NDArray[np.bool_], strict: bool) -> npt.NDArray[np.bool_]:
    """Returns a mask of the values that become null. Raises BadValueError for a zero date that must not."""
    zero_dates = zero & valid
    if strict and zero_dates.any():
        raise BadValueError(int(np.flatnonzero(zero_dates)[0]), "a zero or impossible date", zero_date=True)
    return ~valid | zero


def _refuse(bad: npt.NDArray[np.bool_], valid: npt.NDArray[np.bool_]) -> None:
    refused = bad & valid
    if refused.any():
        raise BadValueError(int(np.flatnonzero(refused)[0]), "fields that no server writes")


def old_timestamp(strict: bool) -> Conversion:
    """The conversion of seconds in 4 bytes to ``timestamp`` (UTC)."""

    def convert(raw: pa.Array) -> pa.Array:
        seconds, valid = _numbers(raw, 4, "little")
        null = _zero_dates(seconds == 0, valid, strict)
        return pa.array(seconds * 1_000_000, mask=null).cast(pa.timestamp("us", tz="UTC"))

    return convert


def hires_timestamp(digits: int, strict: bool) -> Conversion:
    """The conversion of seconds in 4 bytes, then the fraction, both big-endian, to ``timestamp`` (UTC)."""
    width = HIRES_BYTES["timestamp"][digits]

    def convert(raw: pa.Array) -> pa.Array:
        number, valid = _numbers(raw, width, "big")
        bits = 8 * (width - 4)
        fraction = number & ((1 << bits) - 1)
        _refuse(fraction >= 10**digits, valid)
        null = _zero_dates(number == 0, valid, strict)
        us = (number >> bits) * 1_000_000 + fraction * 10 ** (6 - digits)
        return pa.array(us, mask=null).cast(pa.timestamp("us", tz="UTC"))

    return convert


def old_datetime(strict: bool) -> Conversion:
    """The conversion of the digits YYYYMMDDhhmmss as one number of 8 bytes to ``timestamp`` without a zone."""

    def convert(raw: pa.Array) -> pa.Array:
        number, valid = _numbers(raw, 8, "little")
        day, clock = number // 1_000_000, number % 1_000_000
        date = _Dates(day // 10_000, day // 100 % 100, day % 100)
        return _datetimes(date, _Clocks(clock // 10_000, clock // 100 % 100, clock % 100), valid, strict)

    return convert


def hires_datetime(digits: int, strict: bool) -> Conversion:
    """The conversion of one big-endian number, with 13 months to a year and 32 days to a month, to ``timestamp``
    without a zone."""
    width = HIRES_BYTES["datetime"][digits]

    def convert(raw: pa.Array) -> pa.Array:
        number, valid = _numbers(raw, width, "big")
        rest, fraction = number // 10**digits, number % 10**digits * 10 ** (6 - digits)
        rest, second = rest // 60, rest % 60
        rest, minute = rest // 60, rest % 60
        rest, hour = rest // 24, rest % 24
        rest, day = rest // 32, rest % 32
        return _datetimes(_Dates(rest // 13, rest % 13, day), _Clocks(hour, minute, second, fraction), valid, strict)

    return convert


class _Dates(NamedTuple):
    year: Longs
    month: Longs
    day: Longs


class _Clocks(NamedTuple):
    hour: Longs
    minute: Longs
    second: Longs
    us: Longs | int = 0


def _datetimes(date: _Dates, clock: _Clocks, valid: npt.NDArray[np.bool_], strict: bool) -> pa.Array:
    (year, month, day), (hour, minute, second, us) = date, clock
    bad = (year < 0) | (year > 9999) | (month > 12) | (day > 31) | (hour > 23) | (minute > 59) | (second > 59)
    _refuse(bad, valid)
    zero = (year < 1) | (month < 1) | (day < 1) | bad
    months = np.where(zero, 0, (year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = months.astype("datetime64[D]").astype(np.int64) + np.where(zero, 0, day - 1)
    last = (months + 1).astype("datetime64[D]").astype(np.int64)
    null = _zero_dates(zero | (days >= last), valid, strict)
    value = ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + us
    return pa.array(value, mask=null).cast(pa.timestamp("us"))


def old_time(raw: pa.Array) -> pa.Array:
    """Converts the digits hhmmss as one signed number of 3 bytes to microseconds (``int64``)."""
    number, valid = _numbers(raw, 3, "little", signed=True)
    size = np.abs(number)
    _refuse((size // 100 % 100 > 59) | (size % 100 > 59), valid)
    seconds = size // 10_000 * 3600 + size // 100 % 100 * 60 + size % 100
    return pa.array(np.sign(number) * seconds * 1_000_000, mask=~valid)


def hires_time(digits: int) -> Conversion:
    """The conversion of one big-endian number to microseconds (``int64``)."""
    width = HIRES_BYTES["time"][digits]

    def convert(raw: pa.Array) -> pa.Array:
        number, valid = _numbers(raw, width, "big")
        number = number - _TIME_ZERO_S * 10**digits
        _refuse(np.abs(number) >= _TIME_ZERO_S * 10**digits, valid)
        return pa.array(number * 10 ** (6 - digits), mask=~valid)

    return convert


# ---------------------------------------------------------------- dates as text, zero and impossible ones included


def date_text(kind: int, digits: int) -> Conversion:
    """The conversion of a DATE, DATETIME or TIMESTAMP, with ``digits`` digits of the fraction, to ``string`` as SELECT
    prints it; a TIMESTAMP in UTC."""
    parse = {ColumnType.DATETIME2: _datetime2, ColumnType.TIMESTAMP2: _timestamp2}.get(ColumnType(kind))
    if parse is None:
        return lambda raw: by_distinct(raw, _date, pa.string())
    return lambda raw: by_distinct(raw, lambda value: parse(value, digits), pa.string())


def old_date_text(kind: str, digits: int) -> Conversion:
    """Returns what :func:`date_text` returns, for the old storage; ``kind`` is ``datetime`` or ``timestamp``."""
    parse = _old_timestamp if kind == "timestamp" else _old_datetime if digits == 0 else _hires_datetime
    return lambda raw: by_distinct(raw, lambda value: parse(value, digits), pa.string())


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
    """The digits of a fraction, which is stored with an even number of digits."""
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
