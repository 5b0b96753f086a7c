"""Numbers, dates and times as the row image holds them.

Sources: MySQL's ``binlog_row_image`` page of "MySQL Internals" and the comments of ``decimal.cc`` and ``my_time.cc``;
MariaDB's ``field.cc`` for the times of MariaDB 5.3.
"""

from __future__ import annotations

import ipaddress
import struct
import uuid
from datetime import date, datetime, timedelta
from decimal import Decimal, localcontext
from zoneinfo import ZoneInfo

_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes of 0 to 9 decimal digits."""
_EPOCH = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))  # as Arrow gives it
_HIRES_DATETIME = (8, 6, 6, 7, 7, 7, 8)
_HIRES_TIME = (3, 4, 4, 5, 5, 5, 6)
_HIRES_FRACTION = (0, 1, 1, 2, 2, 3, 3)
_TIME_LIMIT_S = 838 * 3600 + 59 * 60 + 59


def integer(raw: bytes, unsigned: bool) -> int:
    """Little-endian, of any width."""
    return int.from_bytes(raw, "little", signed=not unsigned)


def float32(raw: bytes) -> float:
    return float(struct.unpack("<f", raw)[0])


def float64(raw: bytes) -> float:
    return float(struct.unpack("<d", raw)[0])


def decimal_size(precision: int, scale: int) -> int:
    whole = precision - scale
    return whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + scale // 9 * 4 + _DIGIT_BYTES[scale % 9]


def decimal_text(raw: bytes, precision: int, scale: int) -> str:
    """Returns a DECIMAL as SELECT prints it. Its bytes are groups of nine digits in four big-endian bytes, the odd ones
    outermost; the highest bit is inverted, and a negative number has every bit inverted."""
    negative = not raw[0] & 0x80
    bits = bytes([raw[0] ^ 0x80, *raw[1:]])
    if negative:
        bits = bytes(byte ^ 0xFF for byte in bits)
    whole = precision - scale
    at = 0
    digits = ""
    groups = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    for count in groups:
        size = _DIGIT_BYTES[count]
        if count:
            digits += f"{int.from_bytes(bits[at : at + size], 'big'):0{count}d}"
        at += size
    head = digits[:whole].lstrip("0") or "0"
    text = f"{head}.{digits[whole:]}" if scale else head
    return f"-{text}" if negative else text


def decimal(raw: bytes, precision: int, scale: int) -> Decimal:
    with localcontext() as context:
        context.prec = 80
        return Decimal(decimal_text(raw, precision, scale))


def calendar_date(year: int, month: int, day: int) -> date | None:
    """None for zero and impossible dates."""
    try:
        return date(year, month, day)
    except ValueError:
        return None


def calendar_datetime(year: int, month: int, day: int, hour: int, minute: int, second: int, us: int) -> datetime | None:
    try:
        return datetime(year, month, day, hour, minute, second, us)  # noqa: DTZ001 - DATETIME has no zone
    except ValueError:
        return None


def date3(raw: bytes) -> date | None:
    """Three bytes: 15 bits of year, 4 of month, 5 of day."""
    bits = int.from_bytes(raw, "little")
    return calendar_date(bits >> 9, bits >> 5 & 15, bits & 31)


def _fraction_us(raw: bytes, digits: int) -> int:
    """One to three big-endian bytes hold an even number of digits."""
    even = (digits + 1) // 2 * 2
    return int(int.from_bytes(raw, "big") * 10 ** (6 - even))


def packed_datetime(bits: int, us: int) -> datetime | None:
    """17 bits of year × 13 + month, then 5 of day, 5 of hour, 6 of minute, 6 of second."""
    months = bits >> 22
    return calendar_datetime(months // 13, months % 13, bits >> 17 & 31, bits >> 12 & 31, bits >> 6 & 63, bits & 63, us)


def datetime2(raw: bytes, digits: int) -> datetime | None:
    return packed_datetime(int.from_bytes(raw[:5], "big") - (1 << 39), _fraction_us(raw[5:], digits))


def timestamp2(raw: bytes, digits: int) -> datetime | None:
    return unix_time(int.from_bytes(raw[:4], "big"), _fraction_us(raw[4:], digits))


def unix_time(seconds: int, us: int) -> datetime | None:
    """Second 0 is the zero date."""
    return _EPOCH + timedelta(seconds=seconds, microseconds=us) if seconds or us else None


def time_text(negative: bool, hour: int, minute: int, second: int, us: int, digits: int) -> str:
    fraction = f".{us:06d}"[: digits + 1] if digits else ""
    return f"{'-' if negative else ''}{hour:02d}:{minute:02d}:{second:02d}{fraction}"


def time2(raw: bytes, digits: int) -> str:
    """10 bits of hour, 6 of minute, 6 of second and the fraction are one big-endian number with an offset; a negative
    time is the negative number."""
    shift = 8 * (len(raw) - 3)
    number = int.from_bytes(raw, "big") - (0x800000 << shift)
    size = abs(number)
    fraction = _fraction_us((size & (1 << shift) - 1).to_bytes(len(raw) - 3, "big"), digits)
    whole = size >> shift
    return time_text(number < 0, whole >> 12, whole >> 6 & 63, whole & 63, fraction, digits)


def old_time(raw: bytes) -> str:
    """MySQL 5.5: three bytes, the number HHMMSS."""
    number = int.from_bytes(raw, "little", signed=True)
    size = abs(number)
    return time_text(number < 0, size // 10000, size // 100 % 100, size % 100, 0, 0)


def old_datetime(raw: bytes) -> datetime | None:
    """MySQL 5.5: eight bytes, the number YYYYMMDDhhmmss."""
    day, clock = divmod(int.from_bytes(raw, "little"), 1_000_000)
    return calendar_datetime(
        day // 10000, day // 100 % 100, day % 100, clock // 10000, clock // 100 % 100, clock % 100, 0
    )


def hires_size(kind: str, digits: int) -> int:
    """Bytes of MariaDB 5.3's DATETIME, TIME and TIMESTAMP; those without a fraction are MySQL 5.5's."""
    if kind == "timestamp":
        return 4 + _HIRES_FRACTION[digits]
    return (_HIRES_DATETIME if kind == "datetime" else _HIRES_TIME)[digits]


def hires_datetime(raw: bytes, digits: int) -> datetime | None:
    """MariaDB 5.3: microseconds in mixed radix (13 months, 32 days), cut to the digits, big-endian."""
    if not digits:
        return old_datetime(raw)
    units, us = divmod(int.from_bytes(raw, "big") * 10 ** (6 - digits), 1_000_000)
    units, second = divmod(units, 60)
    units, minute = divmod(units, 60)
    units, hour = divmod(units, 24)
    units, day = divmod(units, 32)
    year, month = divmod(units, 13)
    return calendar_datetime(year, month, day, hour, minute, second, us)


def hires_time(raw: bytes, digits: int) -> str:
    if not digits:
        return old_time(raw)
    number = int.from_bytes(raw, "big") - (_TIME_LIMIT_S + 1) * 10**digits
    seconds, fraction = divmod(abs(number), 10**digits)
    return time_text(
        number < 0, seconds // 3600, seconds // 60 % 60, seconds % 60, fraction * 10 ** (6 - digits), digits
    )


def hires_timestamp(raw: bytes, digits: int) -> datetime | None:
    if not digits:
        return unix_time(int.from_bytes(raw, "little"), 0)
    fraction = int.from_bytes(raw[4:], "big") * 10 ** (6 - digits)
    return unix_time(int.from_bytes(raw[:4], "big"), fraction)


def uuid_text(raw: bytes) -> str:
    return str(uuid.UUID(bytes=raw))


def inet4_text(raw: bytes) -> str:
    return str(ipaddress.IPv4Address(raw))


def inet6_text(raw: bytes) -> str:
    """Returns an INET6 as MariaDB prints it: the first longest run of zero groups, even one alone, becomes ``::``, and
    an address that holds an IPv4 address ends with that."""
    groups = struct.unpack(">8H", raw)
    gap_at, gap = -1, 0
    for start in range(8):
        length = 0
        while start + length < 8 and groups[start + length] == 0:
            length += 1
        if length > gap and (start == 0 or groups[start - 1] != 0):
            gap_at, gap = start, length
    if gap_at == 0 and (gap == 6 or (gap == 5 and groups[5] == 0xFFFF)):
        return ("::" if gap == 6 else "::ffff:") + inet4_text(raw[12:])
    words = [f"{group:x}" for group in groups]
    if not gap:
        return ":".join(words)
    return ":".join(words[:gap_at]) + "::" + ":".join(words[gap_at + gap :])
