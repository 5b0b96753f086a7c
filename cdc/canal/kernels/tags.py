"""The tags of ``canal.proto``'s fields that kernels write and read: the number of the field, and how it is encoded.

They are called after their message and field. All of them have one byte, since no number is larger than 15.
"""

from __future__ import annotations


def _number(field: int) -> int:
    return field << 3


def _bytes(field: int) -> int:
    return field << 3 | 2


MESSAGES = _bytes(2)

ENTRY_HEADER, ENTRY_TYPE, ENTRY_VALUE = _bytes(1), _number(2), _bytes(3)

HEADER_FILE, HEADER_OFFSET, HEADER_SERVER = _bytes(2), _number(3), _number(4)
HEADER_ENCODING, HEADER_TIME, HEADER_SOURCE = _bytes(5), _number(6), _number(7)
HEADER_SCHEMA, HEADER_TABLE, HEADER_LENGTH = _bytes(8), _bytes(9), _number(10)
HEADER_CHANGE, HEADER_PROPS, HEADER_GTID = _number(11), _bytes(12), _bytes(13)

PAIR_KEY, PAIR_VALUE = _bytes(1), _bytes(2)

BEGIN_THREAD = _number(4)
END_TRANSACTION = _bytes(2)

CHANGE_TABLE_ID, CHANGE_TYPE, CHANGE_IS_DDL, CHANGE_ROW = _number(1), _number(2), _number(10), _bytes(12)

ROW_BEFORE, ROW_AFTER = _bytes(1), _bytes(2)

COLUMN_INDEX, COLUMN_TYPE, COLUMN_NAME, COLUMN_IS_KEY = _number(1), _number(2), _bytes(3), _number(4)
COLUMN_UPDATED, COLUMN_IS_NULL, COLUMN_VALUE, COLUMN_MYSQL_TYPE = _number(5), _number(6), _bytes(8), _bytes(10)
