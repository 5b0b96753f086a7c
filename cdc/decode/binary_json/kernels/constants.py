"""Numbers of the binary form of JSON (MySQL's ``json_binary.h``), and what its kernels say."""

from __future__ import annotations

SMALL_OBJECT, LARGE_OBJECT, SMALL_ARRAY, LARGE_ARRAY = 0, 1, 2, 3
LITERAL, INT16, UINT16, INT32, UINT32, INT64, UINT64, DOUBLE, STRING = 4, 5, 6, 7, 8, 9, 10, 11, 12
OPAQUE = 15
PARTIAL = 0xFF
"""No type of a value: what follows is a document and the diffs to apply to it."""

MAX_DEPTH = 100
"""Arrays and objects inside one another; the server neither stores nor prints more."""

# Types of opaque values that are printed in a form of their own.
TYPE_TIMESTAMP, TYPE_DATE, TYPE_TIME, TYPE_DATETIME, TYPE_DECIMAL = 7, 10, 11, 12, 246

DIFF_REPLACE, DIFF_INSERT, DIFF_REMOVE = 0, 1, 2

# What is wrong with a document.
CUT, BAD_TYPE, BAD_SCALAR, TOO_DEEP, OVERLAP = 1, 2, 3, 4, 5

ERR_CODE, ERR_ROW, ERR_POS = 0, 1, 2
ERR_SIZE = 3
