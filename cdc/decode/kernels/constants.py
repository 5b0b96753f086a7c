"""Numbers that kernels and their callers share, which kernels see as constants at compile time; and the arrays that
describe a table's columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# How a kernel decodes a column's bytes.
SKIP = 0
"""The column is not wanted, and its bytes are only stepped over."""
I8, U8, I16, U16, I24, U24, I32, U32, I64, U64 = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
F32, F64 = 11, 12
BIT, BIT64 = 13, 14
"""A big-endian number of 1 to 8 bytes; BIT64 becomes a decimal of 20 digits, because it may exceed 63 bits."""
YEAR = 15
DECIMAL = 16
DATE = 17
DATETIME = 18
TIMESTAMP = 19
TIME = 20
"""Microseconds, with their sign."""
BYTES = 21
"""Copied: text in a subset of UTF-8, bytes, or raw values for a conversion."""
LATIN1 = 22
PADDED = 23
"""BINARY(n): copied, and filled up with zero bytes."""
ENUM = 24

# Fields of a column's row in the array that describes the columns to the kernels.
SPEC_KIND = 0
SPEC_WIDTH = 1
"""Bytes of a value in the row, 0 if a length precedes it."""
SPEC_PREFIX = 2
"""Bytes of that length."""
SPEC_A = 3
"""DECIMAL: precision; DATETIME, TIMESTAMP, TIME: bytes of the fraction; PADDED: n; ENUM: number of members."""
SPEC_B = 4
"""DECIMAL: scale; ENUM: index of the column's first member in the table of all members; DATE, DATETIME, TIMESTAMP: 1
if a zero or impossible date is a fault rather than null."""
SPEC_KEY = 5
"""1 for a column of the primary key."""
SPEC_OUT = 6
"""Bytes of a value in the Arrow buffer, 0 for texts."""
SPEC_SIZE = 7

# Offsets of a column's parts in the output buffer, in bytes.
OUT_VALIDITY = 0
OUT_VALUES = 1
OUT_OFFSETS = 2
OUT_LIMIT = 3
"""End of the room for the bytes of a column of texts."""
OUT_SIZE = 4

# Rooms of the scan.
MAX_IDS = 16
MAX_LAYOUTS = 256

# What a kernel returns or notes.
OK = 0
FULL = 1
"""The scan stopped because its output is full."""
BAD_FRAME = 2
BAD_EVENT = 3
"""An event type that cannot be decoded."""
TOO_MANY_LAYOUTS = 4
BAD_HEADER = 5
WRONG_COLUMNS = 6
PART_IMAGE = 7
CUT = 8
BAD_VALUE = 9
BAD_MEMBER = 10
NO_ROOM = 11
BAD_CRC = 12
ZERO_DATE = 13
"""A zero or impossible date in a column in which such dates must not become null."""

# A kernel's report of the first fault.
ERR_CODE, ERR_EVENT, ERR_COLUMN, ERR_POS = 0, 1, 2, 3
ERR_SIZE = 4

OP_DELETE, OP_INSERT, OP_UPDATE = 0, 1, 2

NO_DATE = -(1 << 62)
"""A zero or impossible date."""
DAMAGED_DATE = NO_DATE - 1
"""Fields that no server writes."""

JSON_DIFFS = 0xFF
"""The first byte of a JSON value that is a document and the diffs to apply to it; no document begins with it."""


class ColumnArrays(NamedTuple):
    """A table's columns."""

    spec: npt.NDArray[np.int64]
    """(columns, SPEC_SIZE)"""
    member_at: npt.NDArray[np.int64]
    """Offset of each member of all ENUM columns in ``members``, and the end of each column's last member."""
    members: npt.NDArray[np.uint8]
    """The members in UTF-8."""
    latin1: npt.NDArray[np.uint8]
    """(256, 4): the UTF-8 bytes of each latin1 byte, and their number in the last place."""
