"""The effect on the values of old rows when a column's definition changes (MODIFY, CHANGE, CONVERT TO CHARACTER SET).

The server converts every value. It keeps a value that fits. If a value does not fit, it refuses the statement in strict
mode, and cuts the value otherwise. Some values are changed in silence even in strict mode: trailing blanks that exceed
the new length, digits behind the point. tests/servers/sql and tests/integration/test_conversions_in_delta.py try every
claim made here on real servers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from cdc.binlog.sql.changes import Unknown
from cdc.binlog.sql.schemas import ColumnSchema
from cdc.binlog.sql.shapes import BLOB_BYTES, INTEGER_BYTES, TEXT_BYTES, Shape, shape_of
from cdc.binlog.sql.tokens import MODE_STRICT
from cdc.binlog.sql.types import LONGEST_CHARACTER, UNICODE


@dataclass(frozen=True, slots=True)
class Doubt:
    """Old values for which an effect is not certain. Whoever has the rows looks whether there are any."""

    kind: Literal["null", "zero date", "zero", "outside", "longer", "more bytes", "uses", "not ascii"]
    """``null``, ``zero`` (or NULL): this value. ``zero date``: an impossible date, which the lake may have as NULL.
    ``outside``: a number beyond ``range``. ``longer``: more characters than ``length``; ``more bytes``: the same in
    bytes. ``uses``: one of ``members``, in a SET perhaps among others. ``not ascii``: a text with other characters."""
    reason: str
    """Why such a value makes it uncertain, as a clause for messages."""
    length: int = 0
    range: tuple[Decimal | None, Decimal | None] = (None, None)
    """The least and the largest number, inclusive; None without a limit."""
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Same:
    """Every old value stays, and SELECT shows the same text for it."""

    unless: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True)
class Widened:
    """Every old value stays as a number, a date or a time, in another type that holds it exactly: 5 as 5.00, a DATE as
    midnight of that day, a FLOAT as the DOUBLE that is the same number."""

    unless: tuple[Doubt, ...] = ()


@dataclass(frozen=True, slots=True)
class Converted:
    """Every old value becomes another one, which can be computed."""

    to: Literal[
        "rounded", "cut", "trimmed", "ordered", "bytes", "padded", "day", "digits", "text", "single", "double",
        "clamped", "filled", "local", "instant",
    ]  # fmt: skip
    """``rounded``: to ``number`` digits behind the point, half away from zero. ``cut``: to ``number`` characters;
    ``trimmed``: then without trailing blanks. ``ordered``: the members of a SET in the order of ``members``, without
    others. ``bytes``: the text in UTF-8; ``padded``: with zero bytes up to ``number`` bytes. ``day``: the day of a
    time; ``digits``: a day as the number 20260131. ``text``: as SELECT shows it. ``single``, ``double``: the nearest
    floating-point number of that precision. ``clamped``: a number beyond ``range`` becomes its end; ``filled``: NULL
    becomes 0 or, in a column of texts or bytes, the empty one. ``local``: the time of an instant in a zone ``number``
    seconds east of UTC; ``instant``: the instant of such a time."""
    number: int = 0
    members: tuple[str, ...] = ()
    range: tuple[int, int] = (0, 0)
    unless: tuple[Doubt, ...] = ()


ValueEffect = Same | Widened | Converted | Unknown

MODE_NO_AUTO_VALUE_ON_ZERO = 1 << 19
MODE_PAD_CHAR_TO_FULL_LENGTH = 1 << 31
_BASIC = frozenset({"utf8", "utf8mb3", "ucs2"})
"""Character sets that hold every character of the other ones, except those of ``UNICODE`` beyond U+FFFF."""
_UTF8 = frozenset({"utf8", "utf8mb3", "utf8mb4"})
_SHORTEST_CHARACTER = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}
_MANY_BYTES = frozenset(LONGEST_CHARACTER)
_LONGEST = max(LONGEST_CHARACTER.values())
"""Bytes of the longest character of a character set that is not known."""
_CUT = "a value that does not fit is cut"
_IMPOSSIBLE = "a date that is NULL in the lake may be an impossible one"
_SPATIAL = frozenset(
    ["geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geomcollection"]
)


def value_effect(
    old: ColumnSchema, new: ColumnSchema, sql_mode: int = 0, zone_offset_s: int | None = None
) -> ValueEffect:
    """Returns the effect on the column's values in existing rows. ``sql_mode`` and ``zone_offset_s``
    (:attr:`cdc.binlog.sql.moment.Moment.zone_offset_s`) are the statement's."""
    strict = bool(sql_mode & MODE_STRICT)
    if new.is_generated or (old.is_generated and "STORED" not in old.extra.upper()):
        return Unknown("the column is or was generated")
    if sql_mode & MODE_PAD_CHAR_TO_FULL_LENGTH and old.data_type == "char" and new.data_type != "char":
        return Unknown("PAD_CHAR_TO_FULL_LENGTH gives the values of a CHAR trailing blanks")
    effect = _of_types(shape_of(old), shape_of(new), strict, zone_offset_s)
    if "auto_increment" in new.extra and "auto_increment" not in old.extra:
        is_kept = bool(sql_mode & MODE_NO_AUTO_VALUE_ON_ZERO)
        effect = _unless(effect, Doubt("null" if is_kept else "zero", "AUTO_INCREMENT numbers such rows anew"))
    elif old.nullable and not new.nullable and (not strict or new.data_type == "timestamp"):
        if effect in (Same(), Widened()) and _family(old) is not None and _family(old) == _family(new):
            return Converted("filled")
        effect = _unless(effect, Doubt("null", "NULL becomes another value where NOT NULL is added"))
    return effect


def _family(column: ColumnSchema) -> str | None:
    """Returns the kind of a column whose NULLs become 0, or the empty text, where NOT NULL is added; else None."""
    kind = column.data_type
    if kind in INTEGER_BYTES or kind in ("decimal", "float", "double"):
        return "number"
    if kind in ("char", "varchar") or kind in TEXT_BYTES:
        return "text"
    return "bytes" if kind == "varbinary" or kind in BLOB_BYTES else None


def _unless(effect: ValueEffect, *doubts: Doubt) -> ValueEffect:
    """Returns the effect, which is not certain for some values more."""
    return effect if isinstance(effect, Unknown) else replace(effect, unless=(*effect.unless, *doubts))


def _if_fits(effect: ValueEffect, is_sure: bool, doubt: Doubt) -> ValueEffect:
    return effect if is_sure else _unless(effect, doubt)


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


def _of_types(old: Shape, new: Shape, strict: bool, zone_offset_s: int | None) -> ValueEffect:
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
        return _temporal(old, new, strict, zone_offset_s)
    return _other(old, new, strict)


def _other(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    if old.kind == new.kind:
        if (old.first, old.second) == (new.first, new.second):
            return Same()
        if old.kind == "bit" and (old.first or 1) < (new.first or 1):
            return Widened()
    if old.kind == "bit" and new.kind in INTEGER_BYTES and not new.zerofill:
        largest = (1 << (old.first or 1)) - 1
        return _if_fits(Widened(), strict or largest <= new.largest, _outside(new.least, new.largest))
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


def _outside(least: int | Decimal, largest: int | Decimal | None, reason: str = _CUT) -> Doubt:
    return Doubt("outside", reason, range=(Decimal(least), None if largest is None else Decimal(largest)))


def _beyond_decimal(shape: Shape) -> Doubt:
    """Numbers that a DECIMAL does not have room for."""
    scale = shape.second or 0
    largest = Decimal(10 ** (shape.first or 10) - 1).scaleb(-scale)
    return _outside(0 if shape.unsigned else -largest, largest)


def _longer(shape: Shape) -> Doubt:
    return Doubt("longer", _CUT, length=shape.first or 1)


def _integer(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    if new.kind in INTEGER_BYTES:
        if new.least <= old.least and old.largest <= new.largest:
            return Same() if old.kind == new.kind and old.unsigned == new.unsigned else Widened()
        return Same() if strict else Converted("clamped", range=(new.least, new.largest))
    digits = len(str(old.largest))
    if new.kind == "decimal":
        fits = (new.first or 10) - (new.second or 0) >= digits and (old.unsigned or not new.unsigned)
        return _if_fits(Widened(), fits or strict, _beyond_decimal(new))
    if new.kind in ("double", "float") and new.second is None and not new.unsigned:
        exact = 53 if new.kind == "double" else 24
        doubt = _outside(-(1 << exact), 1 << exact, f"a {new.kind.upper()} does not have all digits of such a number")
        return _if_fits(Widened(), 8 * INTEGER_BYTES[old.kind] <= exact, doubt)
    if new.kind in ("char", "varchar") and not old.zerofill:
        length = digits + (not old.unsigned)
        return _if_fits(Same(), (new.first or 1) >= length or strict, _longer(new))
    if new.kind in TEXT_BYTES and not old.zerofill:
        return Same()
    return _unknown(old, new)


def _decimal(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    precision, scale = old.first or 10, old.second or 0
    if new.kind == "decimal":
        new_scale = new.second or 0
        effect: ValueEffect = Same() if new_scale == scale else Widened()
        if new_scale < scale:
            effect = Converted("rounded", new_scale)
        fits = (new.first or 10) - new_scale >= precision - scale + (new_scale < scale)
        return _if_fits(effect, (fits and (old.unsigned or not new.unsigned)) or strict, _beyond_decimal(new))
    if new.kind in INTEGER_BYTES:
        fits = precision - scale + (scale > 0) < len(str(new.largest)) and (old.unsigned or not new.unsigned)
        effect = Converted("rounded", 0) if scale else Same()
        return _if_fits(effect, fits or strict, _outside(new.least, new.largest))
    if new.kind in ("float", "double") and new.second is None:
        effect = Converted("single" if new.kind == "float" else "double")
        return _if_fits(effect, old.unsigned or not new.unsigned or strict, _outside(0, None))
    if (new.kind in ("char", "varchar") or new.kind in TEXT_BYTES) and not old.zerofill:
        length = precision + 3  # a sign, a point, and the zero before it
        return _if_fits(Converted("text"), new.kind in TEXT_BYTES or (new.first or 1) >= length or strict, _longer(new))
    return _unknown(old, new)


def _floating(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    if new.kind not in ("float", "double"):
        return _unknown(old, new)
    if new.second is not None and (old.first, old.second) != (new.first, new.second):
        return Unknown("digits behind the point are rounded")
    if (old.kind, new.kind) == ("double", "float"):
        if new.second is not None:
            return _unknown(old, new)
        largest = Decimal(2**128 - 2**104)
        doubt = _outside(0 if new.unsigned else -largest, largest)
        return _if_fits(Converted("single"), strict, doubt)
    effect: ValueEffect = Same() if old.kind == new.kind else Widened() if new.second is None else _unknown(old, new)
    return _if_fits(effect, strict or old.unsigned or not new.unsigned, _outside(0, None))


# --- texts


def _text(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    if new.kind in ("binary", "varbinary") or new.kind in BLOB_BYTES:
        return _encoded(old, new)
    if new.kind not in ("char", "varchar") and new.kind not in TEXT_BYTES:
        return _unknown(old, new)
    effect: ValueEffect = Same()
    if new.kind == "char" and old.kind != "char":
        effect = Converted("trimmed", new.first or 1)
    elif not _fits(old, new):
        # Strict mode takes the statement if nothing but blanks is cut, of which the values of CHAR have none.
        if new.kind in TEXT_BYTES:  # MySQL 5.6 cuts a TEXT even in strict mode
            effect = Same((Doubt("longer", _CUT, length=TEXT_BYTES[new.kind] // _longest(new.charset)),))
        elif not strict or old.kind != "char":
            effect = Converted("cut", new.first or 1)
    return _in_charset(effect, old.charset, new.charset, strict)


def _encoded(old: Shape, new: Shape) -> ValueEffect:
    """A text becomes bytes of its character set."""
    if old.charset is None or old.charset in _SHORTEST_CHARACTER:
        return _unknown(old, new)
    room = BLOB_BYTES.get(new.kind, new.first or 1)
    effect: ValueEffect = Converted("padded", room) if new.kind == "binary" else Converted("bytes")
    longest = TEXT_BYTES.get(old.kind, (old.first or 1) * _longest(old.charset))
    effect = _if_fits(effect, longest <= room, Doubt("more bytes", _CUT, length=room))
    other = Doubt("not ascii", f"its bytes in {old.charset} are not known")
    return _if_fits(effect, old.charset in _UTF8, other)


def _in_charset(effect: ValueEffect, old: str | None, new: str | None, strict: bool) -> ValueEffect:
    """Returns an effect on texts, together with a change of their character set. A text without a character set has
    that of the table, or else of the database at the time of CREATE TABLE; a statement does not change it."""
    if old == new:
        return effect
    if old is None or new is None:
        return Unknown("the character set is not known")
    if new in UNICODE or {old, new} <= _UTF8 - {"utf8mb4"}:
        return effect
    if new in _BASIC and (old in _BASIC or old not in _MANY_BYTES):
        return effect
    if strict:
        return effect
    if "swe7" in (old, new):  # it has no brackets
        return Unknown(f"characters that {new} lacks are lost")
    return _unless(effect, Doubt("not ascii", f"characters that {new} lacks are lost"))


def _longest(charset: str | None) -> int:
    """Returns the bytes of the longest character."""
    return LONGEST_CHARACTER.get(charset, 1) if charset is not None else _LONGEST


def _fits(old: Shape, new: Shape) -> bool:
    """Whether the longest value fits."""
    longest = _longest(new.charset)
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
    if new.kind in ("enum", "set") and (old.kind, new.kind) != ("set", "enum"):
        return _in_charset(_chosen(old, new, strict), old.charset, new.charset, strict)
    if new.kind in ("char", "varchar") or new.kind in TEXT_BYTES:
        longest = max(map(len, old.members), default=0) if old.kind == "enum" else len(",".join(old.members))
        per_new = _longest(new.charset)
        room = TEXT_BYTES[new.kind] // per_new if new.kind in TEXT_BYTES else new.first or 1
        doubt = Doubt("longer", _CUT, length=room)
        return _in_charset(_if_fits(Same(), longest <= room or strict, doubt), old.charset, new.charset, strict)
    return _unknown(old, new)


def _chosen(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    """An ENUM or a SET gets other members, or an ENUM becomes a SET."""
    effect: ValueEffect = Same()
    kept = [member for member in new.members if member in old.members]
    if old.kind == "set" and kept != [member for member in old.members if member in new.members]:
        effect = Converted("ordered", members=new.members)  # SELECT shows them in the order of the definition
    gone = tuple(member for member in old.members if member not in new.members)
    # Otherwise the server refuses the statement if one of them is in use.
    is_sure = not gone or (strict and _unmistakable(gone, new.members))
    doubt = Doubt("uses", "members that are no longer there become other values", members=gone)
    return _if_fits(effect, is_sure, doubt)


# --- bytes and times


def _unmistakable(gone: tuple[str, ...], members: tuple[str, ...]) -> bool:
    """Whether no member that is gone can be taken for another one, in another case or as a number."""
    if not all(member.isascii() for member in (*gone, *members)):
        return False
    alike = {member.lower() for member in members}
    return all(member.lower() not in alike and not any(map(str.isdigit, member)) for member in gone)


def _bytes(old: Shape, new: Shape, strict: bool) -> ValueEffect:
    size = BLOB_BYTES.get(old.kind, old.first or 1)
    room = BLOB_BYTES.get(new.kind, new.first or 1)
    if new.kind == "binary":
        if old.kind == "binary" and size == room:
            return Same()
        return _if_fits(Converted("padded", room), size <= room, Doubt("more bytes", _CUT, length=room))
    if new.kind != "varbinary" and new.kind not in BLOB_BYTES:
        return _unknown(old, new)
    is_sure = size <= room or (strict and new.kind == "varbinary")  # MySQL 5.6 cuts a BLOB even in strict mode
    return _if_fits(Same(), is_sure, Doubt("more bytes", _CUT, length=room))


def _temporal(old: Shape, new: Shape, strict: bool, zone_offset_s: int | None) -> ValueEffect:
    digits, impossible = old.first or 0, Doubt("zero date", _IMPOSSIBLE)
    if old.kind == "date" and new.kind == "datetime":
        return Widened()
    if old.kind in ("date", "datetime") and new.kind in ("char", "varchar"):
        shown = 10 if old.kind == "date" else 19 + (digits + 1 if digits else 0)
        return Converted("text", digits, unless=(impossible,)) if shown <= (new.first or 1) else _unknown(old, new)
    if old.kind == "date" and new.kind in ("int", "bigint") and not new.zerofill:
        return Converted("digits", unless=(impossible,))
    if old.kind == "datetime" and new.kind == "date" and not digits:  # servers do not agree about a fraction
        return Converted("day")
    if old.kind != new.kind:
        return _shifted(old, new, strict, zone_offset_s)
    if (new.first or 0) < digits:
        return Unknown("digits of the fraction are rounded")
    return Same() if old.first == new.first else Widened()


def _shifted(old: Shape, new: Shape, strict: bool, zone_offset_s: int | None) -> ValueEffect:
    """An instant becomes a time of the session's clock, or the reverse. Where the mode is not strict, a time beyond the
    instants that the server has becomes another one."""
    if zone_offset_s is None or (new.first or 0) < (old.first or 0):
        return _unknown(old, new)
    if (old.kind, new.kind) == ("timestamp", "datetime"):
        return Converted("local", zone_offset_s)
    if (old.kind, new.kind) == ("datetime", "timestamp") and strict:
        return Converted("instant", zone_offset_s)
    return _unknown(old, new)
