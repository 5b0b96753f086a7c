"""The type of a column taken apart: what a value of it may be."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cdc.binlog.sql.schemas import ColumnSchema, quoted_members

INTEGER_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
TEXT_BYTES = {"tinytext": 255, "text": 65_535, "mediumtext": 16_777_215, "longtext": 4_294_967_295}
BLOB_BYTES = {"tinyblob": 255, "blob": 65_535, "mediumblob": 16_777_215, "longblob": 4_294_967_295}

_ARGUMENTS = re.compile(r"\w+\((\d+)(?:,(\d+))?\)")
_ALIASES = {"geometrycollection": "geomcollection"}


@dataclass(frozen=True, slots=True)
class Shape:
    """A column's type."""

    kind: str
    """The data type: ``int``, ``varchar``."""
    first: int | None = None
    """The number in parentheses: length, precision, digits of the fraction."""
    second: int | None = None
    unsigned: bool = False
    zerofill: bool = False
    members: tuple[str, ...] = ()
    charset: str | None = None

    @property
    def least(self) -> int:
        """The smallest integer."""
        return 0 if self.unsigned else -(1 << (8 * INTEGER_BYTES[self.kind] - 1))

    @property
    def largest(self) -> int:
        """The largest integer."""
        bits = 8 * INTEGER_BYTES[self.kind]
        return (1 << (bits if self.unsigned else bits - 1)) - 1


def shape_of(column: ColumnSchema) -> Shape:
    """Takes a column's type apart."""
    kind = column.data_type.lower()
    kind = _ALIASES.get(kind, kind)
    if kind in ("enum", "set"):
        return Shape(kind, members=quoted_members(column.column_type), charset=column.charset)
    text = column.column_type.lower()
    match = _ARGUMENTS.match(text)
    zerofill = " zerofill" in text
    return Shape(
        kind,
        int(match[1]) if match else None,
        int(match[2]) if match and match[2] else None,
        unsigned=" unsigned" in text or zerofill,
        zerofill=zerofill,
        charset=column.charset,
    )
