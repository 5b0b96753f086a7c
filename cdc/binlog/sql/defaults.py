"""The values of an added column in existing rows, from its type and its default.

A value is claimed only where every server agrees on it; everything else is :class:`~cdc.binlog.sql.changes.Unknown`.
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from cdc.binlog.sql.changes import Constant, OldRows, Unknown
from cdc.binlog.sql.literals import Literal
from cdc.binlog.sql.moment import Moment
from cdc.binlog.sql.partitions import whole_number
from cdc.binlog.sql.schemas import ColumnSchema
from cdc.binlog.sql.shapes import BLOB_BYTES, INTEGER_BYTES, TEXT_BYTES, Shape, shape_of
from cdc.binlog.sql.tokens import UNREADABLE
from cdc.binlog.sql.types import TEXTS, UNICODE

_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_DATETIME = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}:\d{2}:\d{2})(?:\.(\d+))?)?")
_TIME = re.compile(r"(-?\d{2,3}:[0-5]\d:[0-5]\d)(?:\.(\d+))?")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NOW = re.compile(
    r"\(*(?:(?:CURRENT_TIMESTAMP|NOW|LOCALTIME|LOCALTIMESTAMP)(?:\((?P<digits>\d?)\))?"
    r"|(?P<day>(?:CURRENT_DATE|CURDATE)(?:\(\))?))\)*",
    re.IGNORECASE,
)
"""The defaults that are the statement's time, or its day."""
_FIRST_TIMESTAMP, _LAST_TIMESTAMP = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2038, 1, 19, 3, tzinfo=UTC)
"""The TIMESTAMPs that every server takes, up to the last hour."""
_CODECS = {"latin1": "cp1252", "ascii": "ascii", "cp1250": "cp1250", "cp1251": "cp1251", "koi8r": "koi8_r"}
"""Character sets of one byte, with the names that Python has for them."""
_ZERO_DATE = "0000-00-00"
_ZERO_TIME = "00:00:00"


def expression(column: ColumnSchema, text: str, moment: Moment | None) -> OldRows:
    """The value of a default that is an expression: the time of the statement, or not known."""
    unknown = Unknown(f"its default is the expression {text}")
    shape, match = shape_of(column), _NOW.fullmatch(text.replace(" ", ""))
    number = whole_number(text) if shape.kind in INTEGER_BYTES else None
    if number is not None and shape.least <= number <= shape.largest:
        return Constant(str(number))
    if match is None or moment is None:
        return unknown
    if shape.kind == "date":
        time = moment.local(0)
        return unknown if time is None else Constant(f"{time:%Y-%m-%d}")
    if match["day"] is not None or shape.kind not in ("datetime", "timestamp"):
        return unknown
    digits = int(match["digits"] or 0)
    if digits != (shape.first or 0):  # MariaDB fills the column's digits, and MySQL does not
        return unknown
    time = moment.utc(digits) if shape.kind == "timestamp" else moment.local(digits)
    return unknown if time is None else Constant(_shown(time, digits))


def _shown(time: datetime, digits: int) -> str:
    """A time as SELECT shows it, with some digits of its fraction."""
    return f"{time:%Y-%m-%d %H:%M:%S}{_fraction(f'{time.microsecond:06}'[:digits], digits)}"


def constant(column: ColumnSchema, literal: Literal, moment: Moment | None = None) -> OldRows:
    """The value of a literal default in a column's type."""
    shape = shape_of(column)
    unknown = Unknown(f"the server decides what its default {literal.text!r} becomes")
    if UNREADABLE in literal.text:
        return Unknown("its default is not readable in the statement")
    value = _value(shape, literal)
    if value is None and moment is not None and shape.kind == "timestamp":
        value = _instant(shape, literal, moment)
    return unknown if value is None else Constant(value)


def in_type(column: ColumnSchema, constant: Constant) -> OldRows:
    """The constant of an added column once its character set is known: a table's default may make bytes of a text, or
    may lack its characters."""
    shape, value = shape_of(column), constant.value
    if isinstance(value, bytes):
        return constant
    if shape.kind in ("binary", "varbinary") or shape.kind in BLOB_BYTES:
        as_bytes = _bytes(shape, Literal("text", value))
        return Unknown("its default is a text, and the table's are bytes") if as_bytes is None else Constant(as_bytes)
    if value.isascii() or shape.kind not in TEXTS or _holds(shape.charset, value):
        return constant
    return Unknown(f"its default {value!r} is not certain in the character set {shape.charset or 'of the table'}")


def _holds(charset: str | None, text: str) -> bool:
    """Whether a character set has all characters of a text."""
    if charset in _CODECS:
        return text.encode(_CODECS[charset], "replace").decode(_CODECS[charset]) == text
    return charset in UNICODE or (charset in ("utf8", "utf8mb3", "ucs2") and max(text) <= "\uffff")


def implicit(column: ColumnSchema) -> OldRows:
    """The value of a NOT NULL column without a default."""
    shape = shape_of(column)
    value = _implicit(shape)
    return Unknown(f"it is NOT NULL without a default, and of type {shape.kind}") if value is None else Constant(value)


def _implicit(shape: Shape) -> str | bytes | None:
    if shape.kind in INTEGER_BYTES or shape.kind in ("float", "double"):
        return "0"
    if shape.kind == "decimal":
        return _decimal("0", shape.second or 0)
    if shape.kind in ("char", "varchar", "set") or shape.kind in TEXT_BYTES:
        return ""
    if shape.kind == "enum":
        return shape.members[0]
    if shape.kind == "json":
        return "null"
    if shape.kind == "varbinary" or shape.kind in BLOB_BYTES:
        return b""
    if shape.kind == "binary":
        return bytes(shape.first or 1)
    if shape.kind == "bit":
        return bytes(_bit_bytes(shape))
    if shape.kind == "time":
        return _ZERO_TIME + _fraction("", shape.first or 0)
    return _zero_temporal(shape)


def _zero_temporal(shape: Shape) -> str | None:
    if shape.kind == "date":
        return _ZERO_DATE
    if shape.kind in ("datetime", "timestamp"):
        return f"{_ZERO_DATE} {_ZERO_TIME}{_fraction('', shape.first or 0)}"
    if shape.kind == "year":
        return "00" if shape.first == 2 else "0000"
    return None


# --- literals


def _value(shape: Shape, literal: Literal) -> str | bytes | None:
    kind = shape.kind
    if kind in INTEGER_BYTES:
        return _integer(shape, literal)
    if kind == "decimal":
        number = _number(literal)
        return None if number is None else _in_decimal(number, shape)
    if kind in ("float", "double"):
        return _floating(shape, literal)
    if kind in ("char", "varchar") or kind in TEXT_BYTES:
        return _text(shape, literal)
    if kind in ("binary", "varbinary") or kind in BLOB_BYTES:
        return _bytes(shape, literal)
    if kind == "bit":
        return _bits(shape, literal)
    if kind == "enum":
        return literal.text if literal.kind == "text" and literal.text in shape.members else None
    if kind == "set":
        return _set(shape, literal)
    if kind in ("date", "datetime", "timestamp", "time", "year"):
        return _temporal(shape, literal)
    return _other(kind, literal)


def _number(literal: Literal) -> Decimal | None:
    """The number of a literal; None if it is none, or none in its usual form."""
    if literal.kind == "bytes":
        return Decimal(int.from_bytes(literal.raw, "big")) if len(literal.raw) <= 8 else None
    if literal.kind == "null" or not re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?", literal.text):
        return None
    try:
        return Decimal(literal.text)
    except InvalidOperation:
        return None


def _integer(shape: Shape, literal: Literal) -> str | None:
    number = _number(literal)
    if number is None:
        return None
    whole = int(number.quantize(Decimal(1), ROUND_HALF_UP)) if number != number.to_integral() else int(number)
    return str(whole) if shape.least <= whole <= shape.largest else None


def _in_decimal(number: Decimal, shape: Shape) -> str | None:
    text = _decimal(str(number), shape.second or 0)
    digits = len(text.lstrip("-").replace(".", "").lstrip("0"))
    return text if digits <= (shape.first or 10) and not (shape.unsigned and number < 0) else None


def _decimal(text: str, scale: int) -> str:
    shown = f"{Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP):f}"
    return shown.lstrip("-") if not shown.strip("-0.") else shown


def _floating(shape: Shape, literal: Literal) -> str | None:
    number = _number(literal)
    if number is None or literal.kind == "bytes" or (shape.unsigned and number < 0):
        return None
    if shape.second is not None and number != number.quantize(Decimal(1).scaleb(-shape.second)):
        return None
    value = float(number)
    if shape.kind == "double":
        return _plain(repr(value)) if abs(value) < 1e300 else None
    if abs(value) > 3e38:
        return None
    single = struct.pack("<f", value)
    shortest = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next((_plain(text) for text in shortest if struct.pack("<f", float(text)) == single), None)


def _plain(text: str) -> str:
    return "0" if float(text) == 0 else text.removesuffix(".0")


def _text(shape: Shape, literal: Literal) -> str | None:
    text = literal.text
    if literal.kind == "bytes":
        if not text.isascii() or shape.charset is None or shape.charset in UNICODE - {"utf8mb4"} | {"ucs2"}:
            return None
    elif literal.kind == "number":
        if not re.fullmatch(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", text):
            return None
    elif not text.isascii() and shape.charset is not None and not _holds(shape.charset, text):
        return None  # without a character set it is the table's, and the tracker looks again
    if shape.kind in ("char", "varchar") and len(text) > (shape.first or 1):
        return None
    if shape.kind in TEXT_BYTES and 4 * len(text) > TEXT_BYTES[shape.kind]:
        return None
    return text.rstrip(" ") if shape.kind == "char" else text


def _bytes(shape: Shape, literal: Literal) -> bytes | None:
    if literal.kind == "bytes":
        value = literal.raw
    elif literal.kind == "text" and literal.text.isascii():
        value = literal.text.encode()
    else:
        return None
    if shape.kind in BLOB_BYTES:
        return value if len(value) <= BLOB_BYTES[shape.kind] else None
    if len(value) > (shape.first or 1):
        return None
    return value.ljust(shape.first or 1, b"\0") if shape.kind == "binary" else value


def _bits(shape: Shape, literal: Literal) -> bytes | None:
    if literal.kind == "text":
        return None
    number = _number(literal)
    if number is None or number != number.to_integral() or not 0 <= number < 1 << (shape.first or 1):
        return None
    return int(number).to_bytes(_bit_bytes(shape), "big")


def _bit_bytes(shape: Shape) -> int:
    return ((shape.first or 1) + 7) // 8


def _set(shape: Shape, literal: Literal) -> str | None:
    if literal.kind != "text":
        return None
    parts = literal.text.split(",") if literal.text else []
    if not set(parts) <= set(shape.members):
        return None
    return ",".join(member for member in shape.members if member in parts)


# --- times


def _temporal(shape: Shape, literal: Literal) -> str | None:
    text = literal.text
    if literal.kind == "number" and text == "0":
        return _zero_temporal(shape) or _ZERO_TIME + _fraction("", shape.first or 0)
    if shape.kind == "year":
        return text if shape.first != 2 and re.fullmatch(r"19[1-9]\d|20\d\d|21[0-4]\d", text) else None
    if literal.kind != "text":
        return None
    digits = shape.first or 0
    if shape.kind == "date":
        return text if _is_date(text) else None
    if shape.kind == "time":
        match = _TIME.fullmatch(text)
        if match is None or len(match[2] or "") > digits or int(match[1].lstrip("-").split(":")[0]) > 838:
            return None
        hours = match[1].lstrip("-").split(":")[0]
        if text.startswith("-") and not text.strip("-0:."):
            return None
        return None if len(hours) == 3 and hours[0] == "0" else match[1] + _fraction(match[2] or "", digits)
    match = _DATETIME.fullmatch(text)
    if match is None or not _is_date(match[1]) or len(match[3] or "") > digits:
        return None
    time = match[2] or _ZERO_TIME
    if int(time[:2]) > 23 or int(time[3:5]) > 59 or int(time[6:]) > 59:
        return None
    zero = match[1] == _ZERO_DATE
    if shape.kind == "timestamp" and (not zero or time != _ZERO_TIME or (match[3] or "0").strip("0")):
        return None  # an instant that depends on the session's time zone
    return f"{match[1]} {time}{_fraction(match[3] or '', digits)}"


def _instant(shape: Shape, literal: Literal, moment: Moment) -> str | None:
    """The value of a TIMESTAMP, in UTC, that a text names in the session's time zone."""
    text = _temporal(replace(shape, kind="datetime"), literal)
    time = moment.instant(text) if isinstance(text, str) and not text.startswith("0000") else None
    is_valid = time is not None and _FIRST_TIMESTAMP <= time <= _LAST_TIMESTAMP
    return _shown(time, shape.first or 0) if time is not None and is_valid else None


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    if text == _ZERO_DATE:
        return True
    try:
        date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return False
    return int(match[1]) >= 1


def _fraction(fraction: str, digits: int) -> str:
    return "." + fraction.ljust(digits, "0") if digits else ""


# --- others


def _other(kind: str, literal: Literal) -> str | None:
    text = literal.text
    if literal.kind != "text":
        return None
    if kind == "json":
        return text if text in ("{}", "[]", "null", "true", "false", '""') else None
    if kind == "uuid":
        return text if _UUID.fullmatch(text) else None
    try:
        if kind == "inet4":
            return text if str(IPv4Address(text)) == text else None
        if kind == "inet6":
            return text if str(IPv6Address(text)) == text and "." not in text else None
    except AddressValueError:
        return None
    return None
