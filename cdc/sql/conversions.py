"""The effect on the values of old rows when a column's definition changes (MODIFY, CHANGE, CONVERT TO CHARACTER SET).

The server converts every value. It keeps a value that fits. If a value does not fit, it refuses the statement in strict
mode, and cuts the value otherwise. Some values are changed in silence even in strict mode: trailing blanks that exceed
the new length, digits behind the point. tests/servers/sql tries every claim made here on real servers.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc.schemas import ColumnSchema
from cdc.sql.changes import Unknown
from cdc.sql.shapes import BLOB_BYTES, INTEGER_BYTES, TEXT_BYTES, Shape, shape_of
from cdc.sql.tokens import MODE_STRICT
from cdc.sql.types import LONGEST_CHARACTER, UNICODE


@dataclass(frozen=True, slots=True)
class Same:
    """Every old value stays, and SELECT shows the same text for it."""


@dataclass(frozen=True, slots=True)
class Widened:
    """Every old value stays as a number, a date or a time, in another type that holds it exactly: 5 as 5.00, a DATE as
    midnight of that day, a FLOAT as the DOUBLE that is the same number."""


ValueEffect = Same | Widened | Unknown

MODE_NO_AUTO_VALUE_ON_ZERO = 1 << 19
MODE_PAD_CHAR_TO_FULL_LENGTH = 1 << 31
_BASIC = frozenset({"utf8", "utf8mb3", "ucs2"})
"""Character sets that hold every character of the other ones, except those of ``UNICODE`` beyond U+FFFF."""
_UTF8 = frozenset({"utf8", "utf8mb3", "utf8mb4"})
_SHORTEST_CHARACTER = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}
_MANY_BYTES = frozenset(LONGEST_CHARACTER)
_LONGEST = max(LONGEST_CHARACTER.values())
"""Bytes of the longest character of a character set that is not known."""
_CUT = Unknown("a value that does not fit is cut")
_SPATIAL = frozenset(
    ["geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geomcollection"]
)


def value_effect(old: ColumnSchema, new: ColumnSchema, sql_mode: int = 0, ignore: bool = False) -> ValueEffect:
    """What becomes of the column's values in the rows that are there. ``sql_mode`` is the statement's; ``ignore`` says
    that it is an ALTER IGNORE TABLE, which is never strict."""
    strict = bool(sql_mode & MODE_STRICT) and not ignore
    if old.is_generated or new.is_generated:
        return Unknown("the column is or was generated")
    numbered = "auto_increment" in new.extra and "auto_increment" not in old.extra
    if numbered and (old.nullable or not sql_mode & MODE_NO_AUTO_VALUE_ON_ZERO):
        return Unknown("AUTO_INCREMENT may number rows anew")
    if old.nullable and not new.nullable and (not strict or new.data_type == "timestamp"):
        return Unknown("NULL becomes another value where NOT NULL is added")
    if sql_mode & MODE_PAD_CHAR_TO_FULL_LENGTH and old.data_type == "char" and new.data_type != "char":
        return Unknown("PAD_CHAR_TO_FULL_LENGTH gives the values of a CHAR trailing blanks")
    return _of_types(shape_of(old), shape_of(new), strict)


def computes_alike(old: ColumnSchema, new: ColumnSchema) -> bool:
    """Whether every expression has the same value over the column's old and new values, which are the same."""
    before, after = shape_of(old), shape_of(new)
    if before.kind in INTEGER_BYTES and after.kind in INTEGER_BYTES:
        return before.unsigned == after.unsigned and not before.zerofill and not after.zerofill
    if old.collation != new.collation:
        return False
    if before.kind == after.kind and before.kind in ("enum", "set"):
        return before.members == after.members[: len(before.members)]
    return before == after or (before.kind == after.kind and before.kind in ("char", "varchar", "varbinary"))


def _of_types(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    if old.kind in INTEGER_BYTES:
        return _integer(old, new, strict)
    if old.kind in ("decimal", "float", "double"):
        return _decimal(old, new, strict) if old.kind == "decimal" else _floating(old, new, strict)
    if old.kind in ("char", "varchar") or old.kind in TEXT_BYTES:
        return _text(old, new, strict)
    if old.kind in ("enum", "set"):
        return _members(old, new, strict)
    if old.kind in ("binary", "varbinary") or old.kind in BLOB_BYTES:
        return _bytes(old, new, strict)
    if old.kind in ("date", "time", "datetime", "timestamp"):
        return _temporal(old, new)
    return _other(old, new)


def _other(old: Shape, new: Shape) -> ValueEffect:
    if old.kind == new.kind:
        if (old.first, old.second) == (new.first, new.second):
            return Same()
        if old.kind == "bit" and (old.first or 1) < (new.first or 1):
            return Widened()
    if old.kind in _SPATIAL and new.kind == "geometry":
        return Same()
    if old.kind == "json" and new.kind == "longtext" and new.charset == "utf8mb4":
        return Same()
    shown = {"uuid": 36, "inet4": 15, "inet6": 39}.get(old.kind)
    if shown is not None and new.kind in ("varchar", "char") and (new.first or 1) >= shown:
        return Same()
    return _unknown(old, new)


def _unknown(old: Shape, new: Shape) -> Unknown:
    return Unknown(f"the server converts {old.kind} to {new.kind} in its own way")


# --- numbers


def _integer(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    if new.kind in INTEGER_BYTES:
        if new.least <= old.least and old.largest <= new.largest:
            return Same() if old.kind == new.kind and old.unsigned == new.unsigned else Widened()
        return Same() if strict else _CUT
    digits = len(str(old.largest))
    if new.kind == "decimal":
        fits = (new.first or 10) - (new.second or 0) >= digits and (old.unsigned or not new.unsigned)
        return Widened() if fits or strict else _CUT
    if new.kind in ("double", "float") and new.second is None and not new.unsigned:
        return Widened() if INTEGER_BYTES[old.kind] <= (4 if new.kind == "double" else 3) else _unknown(old, new)
    if new.kind in ("char", "varchar") and not old.zerofill:
        length = digits + (not old.unsigned)
        return Same() if (new.first or 1) >= length or strict else _CUT
    if new.kind in TEXT_BYTES and not old.zerofill:
        return Same()
    return _unknown(old, new)


def _decimal(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    precision, scale = old.first or 10, old.second or 0
    if new.kind == "decimal":
        if (new.second or 0) < scale:
            return Unknown("digits behind the point are rounded")
        fits = (new.first or 10) - (new.second or 0) >= precision - scale and (old.unsigned or not new.unsigned)
        if not fits and not strict:
            return _CUT
        return Same() if (new.second or 0) == scale else Widened()
    if new.kind in INTEGER_BYTES and scale == 0:
        fits = precision < len(str(new.largest)) and (old.unsigned or not new.unsigned)
        return Same() if fits or strict else _CUT
    return _unknown(old, new)


def _floating(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    if new.kind not in ("float", "double") or (old.kind, new.kind) == ("double", "float"):
        return _unknown(old, new)
    if new.second is not None and (old.first, old.second) != (new.first, new.second):
        return Unknown("digits behind the point are rounded")
    if new.unsigned and not old.unsigned and not strict:
        return _CUT
    return Same() if old.kind == new.kind else Widened() if new.second is None else _unknown(old, new)


# --- texts


def _text(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    if new.kind == "char" and old.kind != "char":
        return Unknown("CHAR drops trailing blanks")
    if new.kind not in ("char", "varchar") and new.kind not in TEXT_BYTES:
        return _unknown(old, new)
    charset = _charset(old.charset, new.charset, strict)
    if charset is not None:
        return charset
    if _fits(old, new):
        return Same()
    if not strict or new.kind in TEXT_BYTES:  # MySQL 5.6 cuts a TEXT even in strict mode
        return _CUT
    # The values of CHAR have no trailing blanks, the only thing that strict mode cuts.
    return Same() if old.kind == "char" else Unknown("trailing blanks that exceed the new length are cut")


def _charset(old: str | None, new: str | None, strict: bool) -> Unknown | None:
    """Whether texts survive a change of character set: None if they do. A text without one has the table's, which is
    that of its database as it was when the table was created; it is the same one before and behind a statement."""
    if old == new:
        return None
    if old is None or new is None:
        return Unknown("the character set is not known")
    if new in UNICODE or {old, new} <= _UTF8 - {"utf8mb4"}:
        return None
    if new in _BASIC and (old in _BASIC or old not in _MANY_BYTES):
        return None
    if strict:
        return None
    return Unknown(f"characters that {new} lacks are lost")


def _fits(old: Shape, new: Shape) -> bool:
    """Whether the longest value fits."""
    longest = LONGEST_CHARACTER.get(new.charset, 1) if new.charset is not None else _LONGEST
    if old.kind in ("char", "varchar"):
        characters = old.first or 1
        room = TEXT_BYTES[new.kind] // longest if new.kind in TEXT_BYTES else new.first or 1
        return characters <= room
    size = TEXT_BYTES[old.kind]
    if new.kind not in TEXT_BYTES:
        return size // _SHORTEST_CHARACTER.get(old.charset or "", 1) <= (new.first or 1)
    same_bytes = old.charset == new.charset or {old.charset, new.charset} <= _UTF8
    return size * (1 if same_bytes else longest) <= TEXT_BYTES[new.kind]


def _members(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    longest = max(map(len, old.members), default=0) if old.kind == "enum" else len(",".join(old.members))
    charset = _charset(old.charset, new.charset, strict)
    if new.kind == old.kind:
        if charset is not None:
            return charset
        kept = [member for member in new.members if member in old.members]
        if old.kind == "set":
            ordered = [member for member in old.members if member in new.members]
            if kept != ordered:
                return Unknown("SELECT shows members of a SET in the order of its definition")
        gone = [member for member in old.members if member not in new.members]
        if not gone:
            return Same()
        if strict and _unmistakable(gone, new.members):
            return Same()  # the server refuses the statement if one of them is in use
        return Unknown("members that are no longer there become other values")
    if new.kind in ("char", "varchar") or new.kind in TEXT_BYTES:
        if charset is not None:
            return charset
        per_new = LONGEST_CHARACTER.get(new.charset, 1) if new.charset is not None else _LONGEST
        room = TEXT_BYTES[new.kind] // per_new if new.kind in TEXT_BYTES else new.first or 1
        return Same() if longest <= room or strict else _CUT
    return _unknown(old, new)


# --- bytes and times


def _unmistakable(gone: list[str], members: tuple[str, ...]) -> bool:
    """Whether no member that is gone can be taken for another one, in another case or as a number."""
    if not all(member.isascii() for member in (*gone, *members)):
        return False
    alike = {member.lower() for member in members}
    return all(member.lower() not in alike and not any(map(str.isdigit, member)) for member in gone)


def _bytes(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    if old.kind == new.kind == "binary":
        return Same() if old.first == new.first else Unknown("BINARY pads values with zeros, or cuts them")
    if new.kind != "varbinary" and new.kind not in BLOB_BYTES:
        return _unknown(old, new)
    size = BLOB_BYTES.get(old.kind, old.first or 1)
    room = BLOB_BYTES.get(new.kind, new.first or 1)
    if size <= room:
        return Same()
    return Same() if strict and new.kind == "varbinary" else _CUT  # MySQL 5.6 cuts a BLOB even in strict mode


def _temporal(old: Shape, new: Shape) -> ValueEffect:
    if old.kind == "date" and new.kind == "datetime":
        return Widened()
    if old.kind != new.kind:
        return _unknown(old, new)
    if (new.first or 0) < (old.first or 0):
        return Unknown("digits of the fraction are rounded")
    return Same() if old.first == new.first else Widened()
