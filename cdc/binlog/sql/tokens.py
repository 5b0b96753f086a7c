"""Splits MySQL's and MariaDB's SQL into tokens, as far as classifying statements needs them.

Grammar is not checked: the server has already executed every text that is read. Executable comments (``/*! … */``,
``/*!80013 … */``, ``/*M! … */``) count as executed, whatever version they name. Only the server knows whether it
executed one, and a statement that is taken for more than it did is refused, not lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

MODE_REAL_AS_FLOAT = 1 << 0
"""Bits of ``sql_mode`` (in a QUERY event's status variables), the same on MySQL and MariaDB."""
MODE_ANSI_QUOTES = 1 << 2
MODE_ORACLE = 1 << 9
MODE_NO_BACKSLASH_ESCAPES = 1 << 20
MODE_STRICT = 1 << 21 | 1 << 22
"""STRICT_TRANS_TABLES, STRICT_ALL_TABLES: one of them is enough for the tables of a transactional engine."""

UNREADABLE = "\ufffd"
"""The character that stands for bytes of a statement that are no text in its character set."""

TokenKind = Literal["word", "quoted", "string", "punct"]

_WORD = re.compile(r"[0-9A-Za-z_$\u0080-\U0010ffff]+")
_EXECUTABLE = re.compile(r"/\*M?!(?:\d{5,6})?")
_EXECUTABLE_ON_MYSQL = re.compile(r"/\*!(?:\d{5,6})?")
_LINE_COMMENT = re.compile(r"(?:#|--(?=[\s\x00-\x1f]|$))[^\n]*")


@dataclass(frozen=True, slots=True)
class Token:
    """A token. ``word``: bare identifier, keyword or number; ``quoted``: in backticks, or in double quotes (an
    identifier under ANSI_QUOTES, else a string, depending on its position); ``string``: in single quotes; ``punct``:
    one character."""

    kind: TokenKind
    text: str
    quote: str = ""
    """The quote of ``quoted`` and ``string``: a backtick, ``"`` or ``'``."""
    begin: int = field(default=0, compare=False)
    """The offset of the first character in the text, with the quote."""
    end: int = field(default=0, compare=False)
    """The offset behind the last character, with the quote."""

    @property
    def is_text(self) -> bool:
        """Whether the token may be a text: in single or double quotes."""
        return self.quote in ("'", '"')

    def is_word(self, *words: str) -> bool:
        """Whether the token is one of these keywords, unquoted. ``words`` are in capitals."""
        return self.kind == "word" and self.text.upper() in words


def tokenize(sql: str, sql_mode: int = 0, *, mysql: bool = False) -> list[Token]:
    """All tokens of a text, without plain comments and the delimiters of executable ones.

    ``mysql`` says that the server is known to be MySQL, for which ``/*M! … */`` is a plain comment.
    """
    executable = _EXECUTABLE_ON_MYSQL if mysql else _EXECUTABLE
    tokens: list[Token] = []
    at, end = 0, len(sql)
    while at < end:
        char = sql[at]
        if char.isspace() or char == "\x00":
            at += 1
        elif match := _LINE_COMMENT.match(sql, at) or executable.match(sql, at):
            at = match.end()
        elif sql.startswith("/*", at):
            close = sql.find("*/", at + 2)
            at = end if close < 0 else close + 2
        elif sql.startswith("*/", at):  # the end of an executable comment
            at += 2
        elif char == "`":
            begin = at
            text, at = _quoted(sql, at, escapes=False)
            tokens.append(Token("quoted", text, char, begin, at))
        elif char in "'\"":
            name = char == '"' and bool(sql_mode & MODE_ANSI_QUOTES)
            begin = at
            text, at = _quoted(sql, at, escapes=not name and not sql_mode & MODE_NO_BACKSLASH_ESCAPES)
            kind: TokenKind = "string" if char == "'" else "quoted"
            tokens.append(Token(kind, text, "`" if name else char, begin, at))
        elif match := _WORD.match(sql, at):
            tokens.append(Token("word", match[0], "", at, match.end()))
            at = match.end()
        else:
            tokens.append(Token("punct", char, "", at, at + 1))
            at += 1
    return tokens


_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def _quoted(sql: str, at: int, *, escapes: bool) -> tuple[str, int]:
    """The content of the quotes that open at ``at``, and the offset behind them. A doubled quote is one quote."""
    quote, end = sql[at], len(sql)
    out: list[str] = []
    at += 1
    while at < end:
        char = sql[at]
        if escapes and char == "\\" and at + 1 < end:
            out.append(_ESCAPES.get(sql[at + 1], sql[at + 1]))
            at += 2
        elif char != quote:
            out.append(char)
            at += 1
        elif sql.startswith(quote, at + 1):
            out.append(quote)
            at += 2
        else:
            return "".join(out), at + 1
    return "".join(out), end


class Cursor:
    """Reads a list of tokens in their order."""

    def __init__(self, tokens: list[Token], default_db: str) -> None:
        self.tokens = tokens
        self.default_db = default_db
        self.at = 0

    def peek(self, ahead: int = 0) -> Token | None:
        """The next token, or the one ``ahead`` tokens behind it; None behind the end."""
        index = self.at + ahead
        return self.tokens[index] if index < len(self.tokens) else None

    def at_words(self, *words: str) -> bool:
        """Whether exactly these keywords come next, in this order."""
        return all((token := self.peek(i)) is not None and token.is_word(word) for i, word in enumerate(words))

    def take_words(self, *words: str) -> bool:
        """Skips these keywords if they come next, in this order. Returns whether they did."""
        if not self.at_words(*words):
            return False
        self.at += len(words)
        return True

    def take_any(self, *words: str) -> str | None:
        """Skips the next token if it is one of these keywords. Returns it in capitals, or None."""
        token = self.peek()
        if token is None or not token.is_word(*words):
            return None
        self.at += 1
        return token.text.upper()

    def take_punct(self, char: str) -> bool:
        """Skips this character if it comes next. Returns whether it did."""
        token = self.peek()
        if token is None or token.kind != "punct" or token.text != char:
            return False
        self.at += 1
        return True

    def take_name(self) -> str | None:
        """Takes an identifier, bare or quoted; None if the next token is not one."""
        token = self.peek()
        if token is None or token.kind not in ("word", "quoted"):
            return None
        self.at += 1
        return token.text

    def take_table(self) -> tuple[str, str] | None:
        """Takes ``t``, ``db.t`` or ``.t`` as (database, table); None if the next token is no name."""
        self.take_punct(".")
        first = self.take_name()
        if first is None:
            return None
        if self.take_punct("."):
            second = self.take_name()
            if second is not None:
                return first, second
        return self.default_db, first

    @property
    def rest(self) -> list[Token]:
        """The tokens that are left."""
        return self.tokens[self.at :]

    def at_end(self) -> bool:
        """Whether no token is left."""
        return self.at >= len(self.tokens)

    def take_number(self) -> int | None:
        """Takes an unsigned integer; None if the next token is not one."""
        token = self.peek()
        if token is None or token.kind != "word" or not token.text.isascii() or not token.text.isdigit():
            return None
        self.at += 1
        return int(token.text)

    def take_group(self) -> list[Token] | None:
        """Takes a parenthesis. Returns its content, None if none opens here or it does not end."""
        start = self.at
        self.skip_group()
        group = self.tokens[start : self.at]
        if len(group) >= 2 and group[-1].kind == "punct" and group[-1].text == ")" and _is_closed(group):
            return group[1:-1]
        self.at = start
        return None

    def skip_group(self) -> None:
        """Skips a parenthesis with its content, if one opens here."""
        if not self.take_punct("("):
            return
        depth = 1
        while depth and (token := self.peek()) is not None:
            self.at += 1
            if token.kind == "punct":
                depth += {"(": 1, ")": -1}.get(token.text, 0)


def _is_closed(group: list[Token]) -> bool:
    """Whether as many parentheses close as open."""
    return sum({"(": 1, ")": -1}.get(token.text, 0) for token in group if token.kind == "punct") == 0


def shown(tokens: list[Token]) -> str:
    """Tokens as text for messages, cut at 80 characters."""
    out = ""
    for token in tokens:
        text = {"quoted": f"`{token.text}`", "string": f"'{token.text}'"}.get(token.kind, token.text)
        tight = (token.kind == "punct" and token.text in "(),.") or out.endswith(("(", "."))
        out += text if tight or not out else " " + text
        if len(out) > 80:
            return out[:79] + "…"
    return out


def split_commas(tokens: list[Token]) -> list[list[Token]]:
    """The parts between the commas outside parentheses."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.kind == "punct":
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if token.text == "," and depth == 0:
                parts.append([])
                continue
        parts[-1].append(token)
    return [part for part in parts if part]


def word_set(text: str) -> frozenset[str]:
    """The set of the keywords in a text."""
    return frozenset(text.split())


def outer_words(tokens: list[Token]) -> list[str]:
    """The bare words outside parentheses, in capitals."""
    words: list[str] = []
    depth = 0
    for token in tokens:
        if token.kind == "punct":
            depth += {"(": 1, ")": -1}.get(token.text, 0)
        elif token.kind == "word" and depth == 0:
            words.append(token.text.upper())
    return words
