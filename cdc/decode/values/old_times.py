"""TIMESTAMP, DATETIME and TIME in the storage before MySQL 5.6, and in MariaDB's own of the versions 5.3 to 10.0.

Tables made then keep it until they are rebuilt. Without fractions both servers store the same; MariaDB's fractions
(``/* mariadb-5.3 */``) are one big-endian number in units of the last digit. Sources: MySQL's ``Field_timestamp``,
``Field_datetime``, ``Field_time``, MariaDB's ``Field_timestamp_hires`` and its like.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.decode.arrow_text import fixed_width
from cdc.decode.conversion import BadValueError, Conversion

HIRES_BYTES = {
    "timestamp": (4, 5, 5, 6, 6, 7, 7),
    "datetime": (8, 6, 6, 7, 7, 7, 8),
    "time": (3, 4, 4, 5, 5, 5, 6),
}
"""Bytes of a value by digits of the fraction; the first without one."""

Longs = npt.NDArray[np.int64]
_TIME_ZERO_S = 838 * 3600 + 59 * 60 + 59 + 1
"""MariaDB stores a TIME with a fraction as the distance from one second below its range."""


def _numbers(raw: pa.Array, width: int, order: str, signed: bool = False) -> tuple[Longs, npt.NDArray[np.bool_]]:
    """The values of a ``binary`` array of one width as integers, and which are not null (0 in the others' place)."""
    valid = np.asarray(raw.is_valid().to_numpy(zero_copy_only=False), dtype=bool)
    number = np.zeros(len(raw), dtype=np.int64)
    columns = fixed_width(raw, width).T
    for column in columns if order == "big" else columns[::-1]:
        number = number << 8 | column
    if signed:
        number = np.where(number >> (8 * width - 1), number - (1 << 8 * width), number)
    return number, valid


def _zero_dates(zero: npt.NDArray[np.bool_], valid: npt.NDArray[np.bool_], strict: bool) -> npt.NDArray[np.bool_]:
    """Which values are null in the end. Raises BadValueError where a zero date must not become null."""
    found = zero & valid
    if strict and found.any():
        raise BadValueError(int(np.flatnonzero(found)[0]), "a zero or impossible date", zero_date=True)
    return ~valid | zero


def _refuse(bad: npt.NDArray[np.bool_], valid: npt.NDArray[np.bool_]) -> None:
    found = bad & valid
    if found.any():
        raise BadValueError(int(np.flatnonzero(found)[0]), "fields that no server writes")


def old_timestamp(strict: bool) -> Conversion:
    """Seconds in 4 bytes to ``timestamp`` (UTC)."""

    def convert(raw: pa.Array) -> pa.Array:
        seconds, valid = _numbers(raw, 4, "little")
        null = _zero_dates(seconds == 0, valid, strict)
        return pa.array(seconds * 1_000_000, mask=null).cast(pa.timestamp("us", tz="UTC"))

    return convert


def hires_timestamp(digits: int, strict: bool) -> Conversion:
    """Seconds in 4 bytes, then the fraction, both big-endian, to ``timestamp`` (UTC)."""
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
    """The digits YYYYMMDDhhmmss as one number of 8 bytes to ``timestamp`` without a zone."""

    def convert(raw: pa.Array) -> pa.Array:
        number, valid = _numbers(raw, 8, "little")
        day, clock = number // 1_000_000, number % 1_000_000
        parts = (day // 10_000, day // 100 % 100, day % 100, clock // 10_000, clock // 100 % 100, clock % 100)
        return _datetimes(*parts, np.zeros_like(number), valid, strict)

    return convert


def hires_datetime(digits: int, strict: bool) -> Conversion:
    """One big-endian number, 13 months to a year and 32 days to a month, to ``timestamp`` without a zone."""
    width = HIRES_BYTES["datetime"][digits]

    def convert(raw: pa.Array) -> pa.Array:
        number, valid = _numbers(raw, width, "big")
        rest, fraction = number // 10**digits, number % 10**digits * 10 ** (6 - digits)
        rest, second = rest // 60, rest % 60
        rest, minute = rest // 60, rest % 60
        rest, hour = rest // 24, rest % 24
        rest, day = rest // 32, rest % 32
        return _datetimes(rest // 13, rest % 13, day, hour, minute, second, fraction, valid, strict)

    return convert


def _datetimes(
    year: Longs, month: Longs, day: Longs, hour: Longs, minute: Longs, second: Longs, us: Longs,
    valid: npt.NDArray[np.bool_], strict: bool,
) -> pa.Array:  # fmt: skip
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
    """The digits hhmmss as one number of 3 bytes with a sign to microseconds (``int64``)."""
    number, valid = _numbers(raw, 3, "little", signed=True)
    size = np.abs(number)
    _refuse((size // 100 % 100 > 59) | (size % 100 > 59), valid)
    seconds = size // 10_000 * 3600 + size // 100 % 100 * 60 + size % 100
    return pa.array(np.sign(number) * seconds * 1_000_000, mask=~valid)


def hires_time(digits: int) -> Conversion:
    """One big-endian number to microseconds (``int64``)."""
    width = HIRES_BYTES["time"][digits]

    def convert(raw: pa.Array) -> pa.Array:
        number, valid = _numbers(raw, width, "big")
        number = number - _TIME_ZERO_S * 10**digits
        _refuse(np.abs(number) >= _TIME_ZERO_S * 10**digits, valid)
        return pa.array(number * 10 ** (6 - digits), mask=~valid)

    return convert
