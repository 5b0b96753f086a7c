"""Literals: the values that DEFAULT clauses and ENUM members are written with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal as OneOf

from cdc.binlog.sql.tokens import Cursor, Token

_HEX = re.compile(r"0x(?:[0-9a-fA-F]{2})*[0-9a-fA-F]+")
_BITS = re.compile(r"0b[01]+")
_NUMBER = re.compile(r"[+-]*(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_UTF8 = ("_UTF8", "_UTF8MB3", "_UTF8MB4")
_WIDE = ("_UCS2", "_UTF16", "_UTF16LE", "_UTF32")
_TEMPORAL = ("DATE", "TIME", "TIMESTAMP")


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal. ``text``: in quotes; ``number``: digits with sign, point and exponent as written; ``bytes``: a hex or
    bit literal, one character for each byte; ``null``."""

    kind: OneOf["text", "number", "bytes", "null"]
    text: str

    @property
    def raw(self) -> bytes:
        """The bytes of a hex or bit literal."""
        return self.text.encode("latin-1")


NULL = Literal("null", "NULL")


def take_literal(c: Cursor) -> Literal | None:
    """Takes a literal; None, without moving, if no literal comes next."""
    start = c.at
    literal = _literal(c)
    if literal is None:
        c.at = start
    return literal


def _literal(c: Cursor) -> Literal | None:
    token = c.peek()
    if token is None:
        return None
    if token.is_text:
        return Literal("text", _texts(c))
    if token.kind == "punct" and token.text in "+-.":
        return _number(c)
    if token.kind != "word":
        return None
    upper = token.text.upper()
    if upper == "NULL":
        c.at += 1
        return NULL
    if upper in ("TRUE", "FALSE"):
        c.at += 1
        return Literal("number", "1" if upper == "TRUE" else "0")
    following = c.peek(1)
    if following is not None and following.is_text:
        return _introduced(c, upper, following)
    if _HEX.fullmatch(token.text):
        c.at += 1
        return Literal("bytes", _from_hex(token.text[2:]))
    if _BITS.fullmatch(token.text):
        c.at += 1
        return Literal("bytes", _from_bits(token.text[2:]))
    if token.text[0].isdigit():
        return _number(c)
    return None


def _introduced(c: Cursor, word: str, text: Token) -> Literal | None:
    """A text after a word: ``x'41'``, ``b'1'``, ``N'a'``, ``_utf8'a'``, ``DATE '2024-01-01'``."""
    if word in ("X", "B"):
        c.at += 2
        if word == "X":
            valid = len(text.text) % 2 == 0 and re.fullmatch(r"[0-9a-fA-F]*", text.text)
            return Literal("bytes", _from_hex(text.text)) if valid else None
        return Literal("bytes", _from_bits(text.text)) if re.fullmatch(r"[01]*", text.text) else None
    of_a_charset = word in _UTF8 or (word.startswith("_") and text.text.isascii() and word not in _WIDE)
    if word == "N" or word in _TEMPORAL or of_a_charset:
        c.at += 1
        return Literal("text", _texts(c))
    return None


def _texts(c: Cursor) -> str:
    """Takes one text, or several that follow one another and count as one."""
    out = ""
    while (token := c.peek()) is not None and token.is_text:
        out += token.text
        c.at += 1
    return out


def _number(c: Cursor) -> Literal | None:
    """The longest number that the next tokens make together: ``-``, ``1``, ``.``, ``5e``, ``-``, ``3``."""
    text, longest, token_count, before = "", "", 0, ""
    for ahead in range(8):
        token = c.peek(ahead)
        if token is None or token.kind not in ("word", "punct") or before == token.kind == "word":
            break
        before = token.kind
        text += token.text
        if _NUMBER.fullmatch(text):
            longest, token_count = text, ahead + 1
    if not longest:
        return None
    c.at += token_count
    sign = "-" if longest.count("-", 0, len(longest) - len(longest.lstrip("+-"))) % 2 else ""
    return Literal("number", sign + longest.lstrip("+-"))


def _from_hex(digits: str) -> str:
    return bytes.fromhex(digits.rjust(len(digits) + len(digits) % 2, "0")).decode("latin-1")


def _from_bits(digits: str) -> str:
    return int(digits or "0", 2).to_bytes((len(digits) + 7) // 8, "big").decode("latin-1")
