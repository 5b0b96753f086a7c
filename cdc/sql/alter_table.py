"""The effects of an ALTER TABLE's clauses on a table's rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc.sql.tokens import Cursor, Token, outer_words, split_commas, word_set

EffectKind = Literal["none", "create", "replace", "add_column", "unsupported"]


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one clause.

    ``none``: rows and columns stay as they are. ``create``: a new table. ``replace``: a new table replaces an old one.
    ``add_column``: a new column that is null in every row; ``column`` is its name. ``unsupported``: anything else.
    """

    kind: EffectKind
    table: tuple[str, str] | None
    """Database and table; None for the effect on a whole database."""
    clause: str
    """The text of the clause for messages, such as ``DROP COLUMN note``."""
    column: str | None = None
    unsure_null: bool = False
    """Whether a server variable decides if the new column is nullable (TIMESTAMP)."""
    rows: bool = False
    """For ``create``: whether the statement may bring rows (CREATE TABLE … SELECT)."""


_INDEX_WORDS = ("INDEX", "KEY", "FULLTEXT", "SPATIAL", "UNIQUE", "CHECK", "FOREIGN")
_OPTIONS = word_set(
    """ENGINE TYPE AUTO_INCREMENT AVG_ROW_LENGTH CHARSET CHARACTER CHECKSUM TABLE_CHECKSUM COLLATE COMMENT COMPRESSION
    CONNECTION DATA DELAY_KEY_WRITE ENCRYPTION ENGINE_ATTRIBUTE SECONDARY_ENGINE SECONDARY_ENGINE_ATTRIBUTE
    INSERT_METHOD KEY_BLOCK_SIZE MAX_ROWS MIN_ROWS PACK_KEYS PASSWORD ROW_FORMAT STATS_AUTO_RECALC STATS_PERSISTENT
    STATS_SAMPLE_PAGES TABLESPACE PAGE_CHECKSUM TRANSACTIONAL PAGE_COMPRESSED PAGE_COMPRESSION_LEVEL ENCRYPTED
    ENCRYPTION_KEY_ID AUTOEXTEND_SIZE ALGORITHM LOCK FORCE ENABLE DISABLE WITH WITHOUT SECONDARY_LOAD SECONDARY_UNLOAD
    ORDER NOWAIT WAIT DEFAULT"""
)
_HARMLESS_PARTITION = ("ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR")


def alter_effects(table: tuple[str, str], tokens: list[Token]) -> tuple[list[Effect], list[tuple[str, str]]]:
    """The effects of the clauses behind ``ALTER TABLE name``, and the other tables that they name
    (``RENAME TO other``, ``EXCHANGE PARTITION … WITH TABLE other``)."""
    effects: list[Effect] = []
    others: list[tuple[str, str]] = []
    for part in split_commas(tokens):
        kind = _clause(part, table, effects, others)
        if kind is not None:
            effects.append(Effect(kind, table, _shown(part)))
    return effects or [Effect("none", table, "")], others


def _clause(
    part: list[Token], table: tuple[str, str], effects: list[Effect], others: list[tuple[str, str]]
) -> EffectKind | None:
    """The kind of one clause; None if it has added its effects itself."""
    cursor = Cursor(part, table[0])
    verb = cursor.take_any(
        "ADD", "ALTER", "DROP", "RENAME", "EXCHANGE", "CONVERT", "MODIFY", "CHANGE", *_HARMLESS_PARTITION
    )
    if verb == "ADD":
        return _add(cursor, table, effects)
    if verb == "ALTER":  # defaults, visibility of columns and indexes, enforcement of checks
        return "none"
    if verb == "DROP":
        return _drop(cursor)
    if verb == "RENAME":
        if cursor.take_any("INDEX", "KEY") is not None:
            return "none"
        if cursor.take_any("COLUMN") is None:
            _ = cursor.take_any("TO", "AS") or cursor.take_punct("=")
            other = cursor.take_table()
            if other is not None:
                others.append(other)
        return "unsupported"
    if verb in _HARMLESS_PARTITION:
        return "none" if cursor.at_words("PARTITION") else "unsupported"
    if verb is not None:
        while cursor.peek() is not None:
            if cursor.take_words("TABLE"):
                other = cursor.take_table()
                if other is not None:
                    others.append(other)
            else:
                cursor.at += 1
        return "unsupported"
    return _options(part)


def _options(part: list[Token]) -> EffectKind:
    """The kind of a clause of table options, which may follow one another without commas."""
    words = outer_words(part)
    first = part[0]
    if first.kind != "word" or first.text.upper() not in _OPTIONS:
        return "unsupported"
    # PARTITION BY may follow options without a comma; a BLACKHOLE keeps no rows; SYSTEM VERSIONING adds columns.
    if any(w in ("PARTITION", "PARTITIONING", "BLACKHOLE", "VERSIONING", "REMOVE", "UNION") for w in words):
        return "unsupported"
    if any(t.text.upper() == "BLACKHOLE" for t in part):
        return "unsupported"
    return "none"


def _drop(cursor: Cursor) -> EffectKind:
    if cursor.take_any("INDEX", "KEY", "CONSTRAINT") is not None:
        cursor.take_words("IF", "EXISTS")
        return "unsupported" if (cursor.take_name() or "").upper() == "PRIMARY" else "none"
    if cursor.at_words("FOREIGN", "KEY") or cursor.at_words("CHECK"):
        return "none"
    return "unsupported"


def _add(cursor: Cursor, table: tuple[str, str], effects: list[Effect]) -> EffectKind | None:
    if cursor.at_words("CONSTRAINT"):
        cursor.at += 1
        cursor.take_words("IF", "NOT", "EXISTS")
        if not cursor.at_words("PRIMARY") and (t := cursor.peek()) is not None and not t.is_word(*_INDEX_WORDS):
            cursor.at += 1  # its name
        return "unsupported" if cursor.at_words("PRIMARY") else "none"
    if cursor.at_words("PRIMARY", "KEY"):
        return "unsupported"
    token = cursor.peek()
    if token is not None and token.is_word(*_INDEX_WORDS):
        return "none"
    if cursor.at_words("VECTOR", "INDEX") or cursor.at_words("VECTOR", "KEY"):
        return "none"
    if cursor.at_words("PARTITION") or cursor.at_words("PERIOD", "FOR") or cursor.at_words("SYSTEM", "VERSIONING"):
        return "unsupported"
    cursor.take_words("COLUMN")
    cursor.take_words("IF", "NOT", "EXISTS")
    rest = cursor.tokens[cursor.at :]
    if rest and rest[0].kind == "punct" and rest[0].text == "(":
        inner = rest[1:-1] if rest[-1].text == ")" else rest[1:]
        for part in split_commas(inner):
            if part[0].is_word("CONSTRAINT", "PRIMARY", *_INDEX_WORDS):
                primary = "PRIMARY" in outer_words(part)[:3]
                effects.append(Effect("unsupported" if primary else "none", table, "ADD " + _shown(part)))
            else:
                effects.append(_new_column(part, table))
    else:
        effects.append(_new_column(rest, table))
    return None


def _new_column(part: list[Token], table: tuple[str, str]) -> Effect:
    """The effect of a new column, given as ``name type attributes…``; supported if it is null in every old row."""
    clause = "ADD COLUMN " + _shown(part)
    if len(part) < 2:
        return Effect("unsupported", table, clause)
    name = part[0].text
    words = outer_words(part[1:])
    explicit_null = False
    for i, word in enumerate(words):
        before = words[i - 1] if i else ""
        if word in ("AUTO_INCREMENT", "SERIAL", "PRIMARY", "GENERATED", "AS"):
            return Effect("unsupported", table, clause, name)
        if word == "KEY" and before != "UNIQUE":  # a bare KEY means PRIMARY KEY
            return Effect("unsupported", table, clause, name)
        if word == "NULL":
            if before == "NOT":
                return Effect("unsupported", table, clause, name)
            explicit_null = explicit_null or before != "DEFAULT"
    if not _default_is_null(part):
        return Effect("unsupported", table, clause, name)
    unsure = words[0] == "TIMESTAMP" and not explicit_null
    return Effect("add_column", table, clause, name, unsure_null=unsure)


def _default_is_null(part: list[Token]) -> bool:
    """Whether a column has no DEFAULT, or DEFAULT NULL."""
    for i, token in enumerate(part):
        if token.is_word("DEFAULT"):
            value = part[i + 1] if i + 1 < len(part) else None
            if value is None or not value.is_word("NULL"):
                return False
    return True


def _shown(part: list[Token]) -> str:
    """Tokens as text for messages, cut at 80 characters."""
    out = ""
    for token in part:
        text = {"quoted": f"`{token.text}`", "string": f"'{token.text}'"}.get(token.kind, token.text)
        tight = (token.kind == "punct" and token.text in "(),.") or out.endswith(("(", "."))
        out += text if tight or not out else " " + text
    return out if len(out) <= 80 else out[:79] + "…"
