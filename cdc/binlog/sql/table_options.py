"""Options of CREATE TABLE and ALTER TABLE: engine, character set, comment, partitions…"""

from __future__ import annotations

from dataclasses import replace

from cdc.binlog.sql.changes import Change, NoEffect, SetTableCharset, TableName, UnknownEffect, Unsupported
from cdc.binlog.sql.columns import Dialect
from cdc.binlog.sql.literals import take_literal
from cdc.binlog.sql.schemas import charset_of_collation
from cdc.binlog.sql.tokens import Cursor, Token, shown, tokenize, word_set
from cdc.binlog.sql.types import take_charset, take_collation

_ENGINES = word_set("INNODB INNOBASE MYISAM ARIA MARIA ROCKSDB TOKUDB NDB NDBCLUSTER ARCHIVE MEMORY HEAP CSV XTRADB")
"""Engines that keep the rows that they are given."""
_OPTIONS = word_set(
    """AUTO_INCREMENT AVG_ROW_LENGTH CHECKSUM TABLE_CHECKSUM COMMENT COMPRESSION CONNECTION DELAY_KEY_WRITE ENCRYPTION
    ENGINE_ATTRIBUTE SECONDARY_ENGINE SECONDARY_ENGINE_ATTRIBUTE INSERT_METHOD KEY_BLOCK_SIZE MAX_ROWS MIN_ROWS
    PACK_KEYS PASSWORD ROW_FORMAT STATS_AUTO_RECALC STATS_PERSISTENT STATS_SAMPLE_PAGES TABLESPACE PAGE_CHECKSUM
    TRANSACTIONAL PAGE_COMPRESSED PAGE_COMPRESSION_LEVEL ENCRYPTED ENCRYPTION_KEY_ID AUTOEXTEND_SIZE ALGORITHM LOCK
    ITEF_QUOTES IETF_QUOTES STORAGE"""
)
"""Options with one value and without an effect on rows and columns."""
_ALONE = (
    ("FORCE",), ("ENABLE", "KEYS"), ("DISABLE", "KEYS"), ("WITH", "VALIDATION"), ("WITHOUT", "VALIDATION"),
    ("SECONDARY_LOAD",), ("SECONDARY_UNLOAD",), ("NOWAIT",), ("UPGRADE", "PARTITIONING"),
)  # fmt: skip
VERSIONING = "system versioning keeps old rows in the table"


def take_option(c: Cursor, table: TableName, dialect: Dialect) -> list[Change] | None:
    """Takes one option. Returns what it changes (nothing for most), None without moving if it is not understood."""
    start = c.at
    changes = _option(c, table, dialect)
    if changes is None:
        c.at = start
        return None
    clause = shown(c.tokens[start : c.at])
    return [_with_clause(change, clause) for change in changes]


def _with_clause(change: Change, clause: str) -> Change:
    match change:
        case UnknownEffect():
            return replace(change, clause=clause)
        case Unsupported(table=table, reason=reason):
            return Unsupported(table, reason, clause=clause)
        case SetTableCharset(table=table, charset=charset, collation=collation):
            return SetTableCharset(table, charset, collation, clause=clause)
    return change


def _option(c: Cursor, table: TableName, dialect: Dialect) -> list[Change] | None:
    if any(c.take_words(*words) for words in _ALONE):
        return []
    if c.take_words("WAIT"):
        return [] if c.take_number() is not None else None
    if c.take_any("ENGINE", "TYPE") is not None:
        return _engine(c, table)
    start = c.at
    c.take_words("DEFAULT")
    charset, collation = take_charset(c, dialect.server), take_collation(c, dialect.server)
    if charset is not None or collation is not None:
        return [SetTableCharset(table, charset or charset_of_collation(collation), collation)]
    c.at = start
    if c.at_words("WITH", "SYSTEM", "VERSIONING"):
        c.at += 3
        return [Unsupported(table, VERSIONING)]
    if c.take_words("UNION"):
        c.take_punct("=")
        return [UnknownEffect(table, "the table shows the rows of others")] if c.take_group() is not None else None
    _ = c.take_words("DATA", "DIRECTORY") or c.take_words("INDEX", "DIRECTORY") or c.take_any(*_OPTIONS)
    if c.at == start:
        return None
    c.take_punct("=")
    return [] if _take_value(c) else None


def _take_value(c: Cursor) -> bool:
    return c.take_group() is not None or take_literal(c) is not None or c.take_name() is not None


def _engine(c: Cursor, table: TableName) -> list[Change] | None:
    c.take_punct("=")
    token = c.peek()
    if token is None or token.kind == "punct":
        return None
    c.at += 1
    if token.text.upper() in _ENGINES:
        return []
    return [UnknownEffect(table, f"the engine {token.text} decides which rows the table has")]


def union_of(sql: str, db: str) -> list[TableName]:
    """Returns the tables below a MERGE table, from its CREATE TABLE as the server prints it."""
    c = Cursor(tokenize(sql), db)
    while c.peek() is not None:
        if c.take_any("UNION") is not None:
            c.take_punct("=")
            group = Cursor(c.take_group() or [], db)
            tables = []
            while (table := group.take_table()) is not None:
                tables.append(table)
                group.take_punct(",")
            return tables
        if c.take_group() is None:
            c.at += 1
    return []


def take_partitioning(c: Cursor) -> list[Token] | None:
    """Takes ``PARTITION BY …`` up to the end, or up to a SELECT. Returns the tokens behind BY; None, without moving, if
    no such clause comes next."""
    if not c.take_words("PARTITION", "BY") and not c.take_words("PARTITIONED", "BY"):
        return None
    start = c.at
    while (token := c.peek()) is not None and not token.is_word("SELECT", "AS", "IGNORE", "REPLACE", "WITH", "START"):
        if c.take_group() is None:
            c.at += 1
    return c.tokens[start : c.at]


def merged(changes: list[Change], table: TableName) -> list[Change]:
    """The changes of all options: one character set and one collation, given in either order."""
    charsets = [change for change in changes if isinstance(change, SetTableCharset)]
    others: list[Change] = [change for change in changes if not isinstance(change, SetTableCharset | NoEffect)]
    if not charsets:
        return others
    charset = next((change.charset for change in reversed(charsets) if change.charset is not None), None)
    collation = next((change.collation for change in reversed(charsets) if change.collation is not None), None)
    return [*others, SetTableCharset(table, charset, collation, clause=charsets[0].clause)]
