"""The compiled loops over the rows of a result set in MySQL's protocol, and those that read printed values.

:func:`locate_rows` finds the values of rows in a buffer of packets; then one loop for each column reads the values into
an Arrow buffer. ``at`` (columns, rows) has the offset of each value and ``size`` (columns, rows) its length in bytes,
-1 for NULL. A loop returns the number of the first row whose value no server sends, or -1. The loops for values in
binary form are in :mod:`cdc.source.snapshot.binary_kernels`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import FULL_PACKET
from cdc.decode.kernels.constants import NO_DATE
from cdc.decode.kernels.values import days_of
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import u24
from cdc.kernels.records import Record
from cdc.kernels.texts import COLON, MINUS, POINT, SPACE, ZERO

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

# The reasons for which locate_rows stops.
FULL = 0
"""There is no room for another row."""
MORE = 1
"""The buffer ends before the next row does; ``needed`` has the bytes of this row's packet."""
SPLIT = 2
"""The next row takes more than one packet, because it has 16 MiB or more."""
END = 3
"""The result set ends."""
ERROR = 4
"""The server sends an error instead of a row."""
BAD = 5
"""The bytes are not a row."""

_HEADER_BYTES = 4
_MASK = 0xFFFFFFFF
_DAY_US = 86_400_000_000


class RowSearch(Record):
    """The state of a search for rows."""

    pos: int  # offset of the next packet
    status: int  # why it stopped
    needed: int  # bytes of the next packet, if the status asks for them


# ---------------------------------------------------------------- rows


@inlined
def prefix_width(first: int) -> int:
    """The bytes of a length behind its first byte, which is above 250; 0 if that begins none (251 is NULL)."""
    return 2 if first == 252 else 3 if first == 253 else 8 if first == 254 else 0


@inlined
def long_length(buf: Bytes, p: int, width: int) -> int:
    """The length in ``width`` bytes at ``p``; negative above 63 bits."""
    length = np.int64(0)
    for i in range(width):
        length |= np.int64(buf[p + i]) << 8 * i
    return length


@inlined
def locate_values(buf: Bytes, p: int, stop: int, at: Longs, size: Ints, row: int) -> int:
    """Finds the values of a row between ``p`` and ``stop``. Returns the offset behind the last one, or -1."""
    for column in range(at.shape[0]):
        if p >= stop:
            return -1
        length = np.int64(buf[p])
        p += 1
        if length == 251:
            at[column, row] = p
            size[column, row] = -1
            continue
        if length > 251:
            width = prefix_width(length)
            if width == 0 or p + width > stop:
                return -1
            length = long_length(buf, p, width)
            p += width
        if length < 0 or length > 0x7FFFFFFF or length > stop - p:
            return -1
        at[column, row] = p
        size[column, row] = length
        p += length
    return p


@inlined
def locate_binary_values(buf: Bytes, p: int, stop: int, widths: Longs, at: Longs, size: Ints, row: int) -> int:
    """Does the same as :func:`locate_values` for a row in binary form: a zero, a bitmap of NULLs, and the values.
    ``widths`` has the bytes of each column's values; 0 for values that begin with their length."""
    columns = at.shape[0]
    nulls = p + 1
    if buf[p] != 0 or nulls + (columns + 9) // 8 > stop:
        return -1
    p = nulls + (columns + 9) // 8
    for column in range(columns):
        bit = column + 2
        if buf[nulls + (bit >> 3)] >> (bit & 7) & 1:
            at[column, row] = p
            size[column, row] = -1
            continue
        length = widths[column]
        if length == 0:
            if p >= stop:
                return -1
            length = np.int64(buf[p])
            p += 1
            if length > 250:
                width = prefix_width(length)
                if width == 0 or p + width > stop:
                    return -1
                length = long_length(buf, p, width)
                p += width
        if length < 0 or length > 0x7FFFFFFF or length > stop - p:
            return -1
        at[column, row] = p
        size[column, row] = length
        p += length
    return p


@njit
def locate_rows(buf: Bytes, end: int, row: int, widths: Longs, at: Longs, size: Ints, state: RowSearch) -> int:
    """Finds the values of the rows in the packets between ``state.pos`` and ``end``; the first is row ``row``. Returns
    the number of rows that are located now, the earlier ones included. ``widths``: as :func:`locate_binary_values` has
    it; empty for rows of the text protocol."""
    binary = widths.shape[0] > 0
    pos = state.pos
    status = FULL
    while row < at.shape[1]:
        if end - pos < _HEADER_BYTES:
            status = MORE
            state.needed = _HEADER_BYTES
            break
        length = u24(buf, pos)
        if length == FULL_PACKET:
            status = SPLIT
            break
        begin = pos + _HEADER_BYTES
        stop = begin + length
        if stop > end:
            status = MORE
            state.needed = _HEADER_BYTES + length
            break
        if length == 0:
            status = BAD
            break
        if buf[begin] == 0xFE and length < 9:
            status = END
            break
        if buf[begin] == 0xFF:
            status = ERROR
            state.needed = _HEADER_BYTES + length
            break
        if binary:
            row_end = locate_binary_values(buf, begin, stop, widths, at, size, row)
        else:
            row_end = locate_values(buf, begin, stop, at, size, row)
        if row_end != stop:
            status = BAD
            break
        row += 1
        pos = stop
    state.pos = pos
    state.status = status
    return row


@njit
def locate_whole(buf: Bytes, widths: Longs, at: Longs, size: Ints) -> bool:
    """Finds the values of the one row that the buffer holds without packet headers. Returns False if it is no row."""
    if widths.shape[0] > 0:
        return locate_binary_values(buf, 0, buf.shape[0], widths, at, size, 0) == buf.shape[0]
    return locate_values(buf, 0, buf.shape[0], at, size, 0) == buf.shape[0]


# ---------------------------------------------------------------- numbers


@njit
def fill_integers(buf: Bytes, at: Longs, size: Ints, out: Longs) -> int:
    """Reads whole numbers, padded with zeros or not."""
    for row in range(at.shape[0]):
        length = size[row]
        if length < 0:
            out[row] = 0
            continue
        p = at[row]
        stop = p + length
        negative = length > 0 and buf[p] == MINUS
        if negative:
            p += 1
        if p == stop:
            return row
        value = np.int64(0)
        while p < stop:
            digit = np.int64(buf[p]) - ZERO
            if digit < 0 or digit > 9:
                return row
            value = value * 10 + digit
            p += 1
        out[row] = -value if negative else value
    return -1


@njit
def fill_decimals(buf: Bytes, at: Longs, size: Ints, scale: int, out: Longs) -> int:
    """Reads decimals of at most 38 digits, ``scale`` of them behind the point, as decimal128."""
    for row in range(at.shape[0]):
        length = size[row]
        out[2 * row] = 0
        out[2 * row + 1] = 0
        if length < 0:
            continue
        p = at[row]
        stop = p + length
        negative = length > 0 and buf[p] == MINUS
        if negative:
            p += 1
        if p == stop:
            return row
        # Four limbs of 32 bits, of which numbers below 2**63 need none but the first.
        a0 = np.int64(0)
        a1 = np.int64(0)
        a2 = np.int64(0)
        a3 = np.int64(0)
        digits = 0
        fraction = -1
        wide = False
        while p < stop or fraction < scale:
            digit = np.int64(0)
            if p < stop:
                if buf[p] == POINT and fraction < 0:
                    fraction = 0
                    p += 1
                    continue
                digit = np.int64(buf[p]) - ZERO
                if digit < 0 or digit > 9:
                    return row
                p += 1
            elif fraction < 0:
                fraction = 0
                continue
            if fraction >= 0:
                fraction += 1
            digits += 1
            if digits == 19:
                wide = True
                a1 = a0 >> 32
                a0 &= _MASK
            if wide:
                a0 = a0 * 10 + digit
                a1 = a1 * 10 + (a0 >> 32)
                a0 &= _MASK
                a2 = a2 * 10 + (a1 >> 32)
                a1 &= _MASK
                a3 = a3 * 10 + (a2 >> 32)
                a2 &= _MASK
            else:
                a0 = a0 * 10 + digit
        if fraction > scale or a3 > 0x7FFFFFFF:
            return row
        if not wide:
            value = -a0 if negative else a0
            out[2 * row] = value
            out[2 * row + 1] = value >> 63
            continue
        if negative:
            a0 = (a0 ^ _MASK) + 1
            a1 = (a1 ^ _MASK) + (a0 >> 32)
            a2 = (a2 ^ _MASK) + (a1 >> 32)
            a3 = (a3 ^ _MASK) + (a2 >> 32)
        out[2 * row] = (a0 & _MASK) | (a1 & _MASK) << 32
        out[2 * row + 1] = (a2 & _MASK) | (a3 & _MASK) << 32
    return -1


@njit
def fill_bits(buf: Bytes, at: Longs, size: Ints, out: Longs) -> int:
    """Reads big-endian numbers of at most 8 bytes."""
    for row in range(at.shape[0]):
        value = np.int64(0)
        if size[row] > 8:
            return row
        for i in range(max(size[row], 0)):
            value = value << 8 | np.int64(buf[at[row] + i])
        out[row] = value
    return -1


# ---------------------------------------------------------------- dates and times


@inlined
def number(buf: Bytes, p: int, count: int) -> int:
    """The decimal number of ``count`` digits at ``p``; a large negative number if one of them is no digit."""
    value = np.int64(0)
    for i in range(count):
        digit = np.int64(buf[p + i]) - ZERO
        if digit < 0 or digit > 9:
            return -1_000_000_000
        value = value * 10 + digit
    return value


@inlined
def date_at(buf: Bytes, p: int) -> int:
    """The date ``YYYY-MM-DD`` at ``p`` in days since 1970; NO_DATE, or less for bytes that are no date."""
    year = number(buf, p, 4)
    month = number(buf, p + 5, 2)
    day = number(buf, p + 8, 2)
    if year < 0 or month < 0 or day < 0 or buf[p + 4] != MINUS or buf[p + 7] != MINUS:
        return NO_DATE - 1
    return days_of(year, month, day)


@inlined
def clock_at(buf: Bytes, p: int, stop: int) -> int:
    """The microseconds of ``MM:SS`` and an optional fraction between ``p`` and ``stop``; negative for other bytes."""
    if stop - p < 5 or buf[p + 2] != COLON:
        return -1
    minute = number(buf, p, 2)
    second = number(buf, p + 3, 2)
    us = np.int64(0)
    if stop - p > 5:
        digits = stop - p - 6
        if buf[p + 5] != POINT or digits < 1 or digits > 6:
            return -1
        us = number(buf, p + 6, digits)
        for _ in range(6 - digits):
            us *= 10
    if minute < 0 or minute > 59 or second < 0 or second > 59 or us < 0:
        return -1
    return (minute * 60 + second) * 1_000_000 + us


@njit
def fill_dates(buf: Bytes, at: Longs, size: Ints, out: Ints, valid: Bytes) -> int:
    """Reads dates as days since 1970. ``valid`` becomes 0 for NULL and for zero and impossible dates."""
    for row in range(at.shape[0]):
        out[row] = 0
        valid[row] = 0
        if size[row] < 0:
            continue
        if size[row] != 10:
            return row
        days = date_at(buf, at[row])
        if days < NO_DATE:
            return row
        if days != NO_DATE:
            out[row] = days
            valid[row] = 1
    return -1


@njit
def fill_datetimes(buf: Bytes, at: Longs, size: Ints, out: Longs, valid: Bytes) -> int:
    """Reads dates with times as microseconds since 1970; otherwise as :func:`fill_dates`."""
    for row in range(at.shape[0]):
        out[row] = 0
        valid[row] = 0
        if size[row] < 0:
            continue
        p = at[row]
        if size[row] < 19 or buf[p + 10] != SPACE or buf[p + 13] != COLON:
            return row
        days = date_at(buf, p)
        hour = number(buf, p + 11, 2)
        us = clock_at(buf, p + 14, p + size[row])
        if days < NO_DATE or us < 0 or hour < 0 or hour > 23:
            return row
        if days != NO_DATE:
            out[row] = days * _DAY_US + hour * 3_600_000_000 + us
            valid[row] = 1
    return -1


@njit
def fill_times(buf: Bytes, at: Longs, size: Ints, out: Longs) -> int:
    """Reads times such as ``-838:59:59.000000`` as microseconds."""
    for row in range(at.shape[0]):
        out[row] = 0
        if size[row] < 0:
            continue
        p = at[row]
        stop = p + size[row]
        negative = size[row] > 0 and buf[p] == MINUS
        if negative:
            p += 1
        digits = 0
        while p + digits < stop and buf[p + digits] != COLON:
            digits += 1
        if digits < 2 or digits > 3 or p + digits == stop:
            return row
        hour = number(buf, p, digits)
        us = clock_at(buf, p + digits + 1, stop)
        if hour < 0 or us < 0:
            return row
        us += hour * 3_600_000_000
        out[row] = -us if negative else us
    return -1


# ---------------------------------------------------------------- texts and bytes


@njit
def measure_bytes(size: Ints) -> int:
    """The bytes of all values together."""
    total = np.int64(0)
    for row in range(size.shape[0]):
        if size[row] > 0:
            total += size[row]
    return total


@njit
def fill_bytes(buf: Bytes, at: Longs, size: Ints, offsets: Ints, out: Bytes) -> None:
    """Copies values to ``out``, and writes their offsets to ``offsets`` (rows + 1)."""
    to = np.int64(0)
    offsets[0] = 0
    for row in range(at.shape[0]):
        p = at[row]
        for i in range(size[row]):
            out[to + i] = buf[p + i]
        if size[row] > 0:
            to += size[row]
        offsets[row + 1] = to
