"""MySQL's binary JSON as the text that SELECT prints, and its partial updates.

Source: the format's description at the head of MySQL's ``json_binary.h``, that of ``json_diff.h``, and what MySQL 9.7
prints. A document becomes dicts, lists and :class:`Leaf` s, whose text is what SELECT prints for the value.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any, TypeAlias, Union

from tests.support.rows import values

Document: TypeAlias = Union[dict[str, "Document"], list["Document"], "Leaf"]

_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q"}
_ESCAPES = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
_ESCAPES |= {code: f"\\u{code:04x}" for code in range(32) if code not in _ESCAPES}
_DECIMAL, _DATE, _TIME, _DATETIME, _TIMESTAMP = 246, 10, 11, 12, 7
_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL, _DOUBLE, _STRING, _OPAQUE = (
    0,
    1,
    2,
    3,
    4,
    11,
    12,
    15,
)


class Leaf(str):
    """A scalar, as SELECT prints it."""

    __slots__ = ()


class Real(Leaf):
    """A number of floating point."""

    __slots__ = ()


def text(raw: bytes, *, of_mysql_5: bool = False) -> str:
    """The text that SELECT prints for the document; ``null`` for a document without bytes. MySQL 5.7 prints whole
    numbers of floating point without ``.0``."""
    return render(document(raw), of_mysql_5=of_mysql_5)


def document(raw: bytes) -> Document:
    """The document as a tree."""
    return _value(raw[0], raw[1:]) if raw else Leaf("null")


def render(tree: Document, *, of_mysql_5: bool = False) -> str:
    if isinstance(tree, dict):
        keys = sorted(tree, key=_key_order)
        return "{" + ", ".join(f"{quoted(key)}: {render(tree[key], of_mysql_5=of_mysql_5)}" for key in keys) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(render(item, of_mysql_5=of_mysql_5) for item in tree) + "]"
    return str(tree).removesuffix(".0") if of_mysql_5 and isinstance(tree, Real) else str(tree)


def quoted(plain: str) -> str:
    return f'"{plain.translate(_ESCAPES)}"'


def double_text(number: float) -> str:
    """The shortest digits that read back as the number; positional from 1e-15 to below 1e15."""
    digits, _, exponent = repr(number).partition("e")
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    whole, _, fraction = digits.partition(".")
    significant = (whole + fraction).lstrip("0")
    if not significant.strip("0"):
        return f"{sign}0.0"
    # The number is 0.DIGITS × 10**point.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(significant))
    significant = significant.rstrip("0")
    if -14 <= point <= 15:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{significant}"
        head, tail = significant[:point].ljust(point, "0"), significant[point:]
        return f"{sign}{head}.{tail or '0'}"
    mantissa = significant[0] + (f".{significant[1:]}" if significant[1:] else "")
    return f"{sign}{mantissa}e{point - 1}"


def _key_order(key: str) -> tuple[int, bytes]:
    return len(key.encode()), key.encode()


def _value(kind: int, raw: bytes) -> Document:
    if kind in (_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY):
        return _container(kind, raw)
    if kind == _LITERAL:
        return Leaf(_LITERALS[raw[0]])
    if kind in _NUMBERS:
        size = struct.calcsize(_NUMBERS[kind])
        return Leaf(struct.unpack(_NUMBERS[kind], raw[:size])[0])
    if kind == _DOUBLE:
        return Real(double_text(values.float64(raw[:8])))
    if kind == _STRING:
        size, at = _length(raw, 0)
        return Leaf(quoted(raw[at : at + size].decode()))
    if kind == _OPAQUE:
        size, at = _length(raw, 1)
        return Leaf(_opaque(raw[0], raw[at : at + size]))
    raise ValueError(f"type {kind} in binary JSON")


def _container(kind: int, raw: bytes) -> Document:
    """Counts and offsets have two bytes in small ones, four in large ones; offsets count from the count of elements.
    Key entries: offset, two bytes of length; value entries: type, then the value if it is short, else its offset."""
    wide = 4 if kind in (_LARGE_OBJECT, _LARGE_ARRAY) else 2

    def number(at: int, size: int = wide) -> int:
        return int.from_bytes(raw[at : at + size], "little")

    count = number(0)
    at = 2 * wide
    keys: list[str] = []
    if kind in (_SMALL_OBJECT, _LARGE_OBJECT):
        for n in range(count):
            entry = at + n * (wide + 2)
            start = number(entry)
            keys.append(raw[start : start + number(entry + wide, 2)].decode())
        at += count * (wide + 2)
    inlined = {_LITERAL, 5, 6} | ({7, 8} if wide == 4 else set())
    items: list[Document] = []
    for n in range(count):
        entry = at + n * (1 + wide)
        inside = raw[entry + 1 : entry + 1 + wide] if raw[entry] in inlined else raw[number(entry + 1) :]
        items.append(_value(raw[entry], inside))
    return dict(zip(keys, items, strict=True)) if kind in (_SMALL_OBJECT, _LARGE_OBJECT) else items


def _length(raw: bytes, at: int) -> tuple[int, int]:
    """Reads a length of seven bits a byte, lowest first, with the highest bit set if more follow; also the offset behind."""
    size = shift = 0
    while True:
        size |= (raw[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not raw[at - 1] & 0x80:
            return size, at


def _opaque(kind: int, raw: bytes) -> str:
    if kind == _DECIMAL:
        return values.decimal_text(raw[2:], raw[0], raw[1])
    if kind in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        number = int.from_bytes(raw, "little", signed=True)
        whole, us = abs(number) >> 24, abs(number) & 0xFFFFFF
        clock = values.time_text(
            False, whole >> 12 & (31 if kind != _TIME else 0x3FF), whole >> 6 & 63, whole & 63, us, 6
        )
        if kind == _TIME:
            return f'"{"-" if number < 0 else ""}{clock}"'
        day, months = whole >> 17 & 31, whole >> 22
        calendar = f"{months // 13:04d}-{months % 13:02d}-{day:02d}"
        return f'"{calendar}"' if kind == _DATE else f'"{calendar} {clock}"'
    lines = base64.b64encode(raw).decode()
    body = "\\n".join(lines[i : i + 76] for i in range(0, len(lines), 76))
    return f'"base64:type{kind}:{body}"'


# ---------------------------------------------------------------- partial updates


def apply_diffs(before: bytes, diffs: bytes) -> str:
    """The text that SELECT prints after the diffs of a partial update; each is an operation (0 replace, 1 insert, 2 remove), a
    path, and for the first two a document."""
    tree = document(before)
    at = 0

    def packed() -> bytes:
        nonlocal at
        first = diffs[at]
        width = {252: 2, 253: 3, 254: 8}.get(first, 0)
        size = int.from_bytes(diffs[at + 1 : at + 1 + width], "little") if width else first
        at += 1 + width + size
        return diffs[at - size : at]

    while at < len(diffs):
        operation = diffs[at]
        at += 1
        path = list(_steps(packed().decode()))
        new = document(packed()) if operation != 2 else Leaf("null")
        if not path:
            tree = new
            continue
        parent: Any = tree
        for step in path[:-1]:
            parent = parent[step]
        if operation == 2:
            del parent[path[-1]]
        elif operation == 1 and isinstance(parent, list):
            parent.insert(int(path[-1]), new)
        else:
            parent[path[-1]] = new
    return render(tree)


def _steps(path: str) -> Iterator[str | int]:
    """``$.a."b c"[3]`` → a, b c, 3."""
    at = 1
    while at < len(path):
        if path[at] == "[":
            end = path.index("]", at)
            yield int(path[at + 1 : end])
            at = end + 1
        elif path[at + 1] == '"':
            name, end = _quoted_name(path, at + 2)
            yield name
            at = end
        else:
            end = min((i for i in (path.find(".", at + 1), path.find("[", at + 1)) if i > 0), default=len(path))
            yield path[at + 1 : end]
            at = end


def _quoted_name(path: str, at: int) -> tuple[str, int]:
    plain = {short[1]: chr(code) for code, short in _ESCAPES.items() if len(short) == 2} | {"/": "/"}
    name = ""
    while path[at] != '"':
        if path[at] != "\\":
            name += path[at]
            at += 1
        elif path[at + 1] == "u":
            name += chr(int(path[at + 2 : at + 6], 16))
            at += 6
        else:
            name += plain[path[at + 1]]
            at += 2
    return name, at + 1
