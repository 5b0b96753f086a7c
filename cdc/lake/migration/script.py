"""Splits the text of a migration into statements, as the ``mysql`` client does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cdc.base.errors import UsageError
from cdc.binlog.sql.tokens import MODE_ANSI_QUOTES, MODE_NO_BACKSLASH_ESCAPES, tokenize

_PROGRAMS = ("PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "PACKAGE")
_DELIMITER = re.compile(r"[ \t]*delimiter[ \t]+(\S+)[^\n]*", re.IGNORECASE)
_COMMENT = re.compile(r"(?:#|--(?=[\s\x00-\x1f]|$))[^\n]*")
_WORD = re.compile(r"[0-9A-Za-z_$\u0080-\U0010ffff]+")
_VARIABLE = r"(?:SESSION\s+|LOCAL\s+|@@(?:SESSION\.|LOCAL\.)?)?{}\s*:?=\s*(?:'([^']*)'|\"([^\"]*)\"|[^,]+)"
_SQL_MODE, _TIME_ZONE = (re.compile(_VARIABLE.format(name), re.IGNORECASE) for name in ("SQL_MODE", "TIME_ZONE"))
_MODES = {
    "REAL_AS_FLOAT": 1, "PIPES_AS_CONCAT": 1 << 1, "ANSI_QUOTES": 1 << 2, "IGNORE_SPACE": 1 << 3,
    "NO_UNSIGNED_SUBTRACTION": 1 << 6, "ORACLE": 1 << 9, "NO_AUTO_VALUE_ON_ZERO": 1 << 19,
    "NO_BACKSLASH_ESCAPES": 1 << 20, "STRICT_TRANS_TABLES": 1 << 21, "STRICT_ALL_TABLES": 1 << 22,
    "NO_ZERO_IN_DATE": 1 << 23, "NO_ZERO_DATE": 1 << 24, "ALLOW_INVALID_DATES": 1 << 25,
    "ERROR_FOR_DIVISION_BY_ZERO": 1 << 26, "NO_ENGINE_SUBSTITUTION": 1 << 30, "PAD_CHAR_TO_FULL_LENGTH": 1 << 31,
    "TRADITIONAL": 1 << 21 | 1 << 22 | 1 << 23 | 1 << 24 | 1 << 26 | 1 << 27 | 1 << 30,
    "ANSI": 1 | 1 << 1 | 1 << 2 | 1 << 3,
}  # fmt: skip
"""The bits of ``sql_mode`` in a QUERY event. Modes that change no statement's effect are missing."""
DEFAULT_SQL_MODE = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"
"""The part of the servers' default that says what a statement does to rows."""


@dataclass(frozen=True)
class ScriptStatement:
    """A statement of a migration."""

    number: int
    """From 1."""
    line: int
    """The line on which it begins, from 1."""
    sql: str


def statements_in(text: str, sql_mode: int = 0) -> Iterator[ScriptStatement]:
    """Yields the statements of a text. Understands comments, quotes, ``DELIMITER``, ``\\G``, and the bodies of stored
    programs, whose semicolons end no statement. Raises UsageError for a quote or a comment that does not end."""
    scanner = _Scanner(text.removeprefix("\ufeff"), sql_mode)
    for number, (line, sql) in enumerate(scanner.statements(), 1):
        yield ScriptStatement(number, line, sql)


class _Scanner:
    """Reads a text from its beginning to its end."""

    def __init__(self, text: str, sql_mode: int) -> None:
        self._text = text
        self._at = 0
        self._delimiter = ";"
        self._escapes = not sql_mode & MODE_NO_BACKSLASH_ESCAPES
        self._ansi = bool(sql_mode & MODE_ANSI_QUOTES)

    def statements(self) -> Iterator[tuple[int, str]]:
        begin: int | None = None
        words: list[str] = []
        while self._at < len(self._text):
            if begin is None and (command := self._command()) is not None:
                self._delimiter = command
                continue
            ended = self._ends(words)
            if ended:
                if begin is not None:
                    yield self._line(begin), self._text[begin : self._at].strip()
                self._at, begin, words = self._at + ended, None, []
                continue
            at = self._at
            is_text = self._pass(words)
            if begin is None and is_text:
                begin = at
        if begin is not None:
            yield self._line(begin), self._text[begin:].strip()

    def _line(self, at: int) -> int:
        return self._text.count("\n", 0, at) + 1

    def _command(self) -> str | None:
        """Takes the client's command DELIMITER at the start of a line. Returns the new delimiter."""
        match = _DELIMITER.match(self._text, self._at)
        if match is None or self._text[: self._at].rpartition("\n")[2].strip():
            return None
        self._at = match.end()
        return match[1]

    def _ends(self, words: list[str]) -> int:
        """Returns the length of the delimiter that ends the statement here; 0 if none does."""
        for delimiter in (self._delimiter, "\\G", "\\g"):
            if self._text.startswith(delimiter, self._at):
                is_inside = delimiter == ";" and _depth(words) > 0
                return 0 if is_inside else len(delimiter)
        return 0

    def _pass(self, words: list[str]) -> bool:
        """Passes a blank, a comment, a quoted text, a word or a character. Returns whether it is part of a
        statement."""
        text, at = self._text, self._at
        char = text[at]
        if char.isspace():
            self._at += 1
            return False
        if match := _COMMENT.match(text, at):
            self._at = match.end()
            return False
        if text.startswith("/*", at):
            is_executable = text.startswith(("/*!", "/*M!"), at)
            close = text.find("*/", at + 2)
            if close < 0:
                raise self._endless("comment", at)
            self._at = close + 2
            if is_executable:
                words += [token.text.upper() for token in tokenize(text[at : self._at]) if token.kind == "word"]
            return is_executable
        if char in "'\"`":
            self._at = self._behind_quotes(at)
            words.append("")
        elif match := _WORD.match(text, at):
            end = text.find(self._delimiter, at, match.end())  # "$$" may be a part of a word, too
            self._at = match.end() if end < 0 else end
            words.append(text[at : self._at].upper())
        else:
            self._at += 1
        return True

    def _behind_quotes(self, at: int) -> int:
        text, quote = self._text, self._text[at]
        escapes = self._escapes and quote != "`" and not (quote == '"' and self._ansi)
        end = at + 1
        while end < len(text):
            if escapes and text[end] == "\\":
                end += 2
            elif text[end] != quote:
                end += 1
            elif text.startswith(quote, end + 1):
                end += 2
            else:
                return end + 1
        raise self._endless("quoted text", at)

    def _endless(self, what: str, at: int) -> UsageError:
        shown = " ".join(self._text[at : at + 60].split())
        return UsageError(
            f"the {what} that begins here does not end: {shown}",
            place=f"line {self._line(at)}",
            remedy="Close it.",
        )


def _depth(words: list[str]) -> int:
    """Returns how many blocks of a stored program are open."""
    if not words or words[0] not in ("CREATE", "ALTER") or not any(word in _PROGRAMS for word in words[:20]):
        return 0
    depth = 0
    for word, before, following in zip(words, ["", *words], [*words[1:], ""], strict=False):
        if word == "BEGIN" or (word == "CASE" and before != "END"):
            depth += 1
        elif word == "END" and following not in ("IF", "LOOP", "WHILE", "REPEAT", "FOR"):
            depth -= 1
    return depth


def bits_of(modes: str) -> int:
    """Returns the bits of a ``sql_mode`` as the server writes it. Modes that change no statement's effect are left
    out."""
    bits = 0
    for mode in modes.upper().split(","):
        bits |= _MODES.get(mode.strip(), 0)
    return bits


def names_of(bits: int) -> str:
    """Returns a ``sql_mode`` as the server reads it, the inverse of :func:`bits_of`."""
    return ",".join(name for name, bit in _MODES.items() if bit & bits == bit and bit.bit_count() == 1)


def sql_mode_set_by(sql: str, before: int, initial: int) -> int:
    """Returns the session's ``sql_mode`` after a statement. ``before``: the one before it; ``initial``: the one at the
    beginning, to which a value that is no text goes back (``SET sql_mode = @OLD_SQL_MODE``)."""
    is_set, text = _value_set_by(sql, _SQL_MODE)
    if not is_set:
        return before
    return initial if text is None else bits_of(text)


def time_zone_set_by(sql: str, before: str, initial: str) -> str:
    """Returns the session's ``time_zone`` after a statement, as :func:`sql_mode_set_by`."""
    is_set, text = _value_set_by(sql, _TIME_ZONE)
    if not is_set:
        return before
    return initial if text is None else text


def _value_set_by(sql: str, variable: re.Pattern[str]) -> tuple[bool, str | None]:
    """Returns whether a statement sets a variable of the session, and its value if that is a text."""
    text = re.sub(r"/\*M?!\d*|\*/", " ", sql).strip()
    if re.match(r"SET\s", text, re.IGNORECASE) is None:
        return False, None
    match = next((match for match in variable.finditer(text) if not _is_global(text, match.start())), None)
    return (False, None) if match is None else (True, match[1] if match[1] is not None else match[2])


def _is_global(text: str, at: int) -> bool:
    head = text[:at].rstrip().upper()
    return head.endswith(("GLOBAL", "GLOBAL.", "PERSIST", "PERSIST.", "_", "@", ".")) or text[at - 1 : at].isalnum()
