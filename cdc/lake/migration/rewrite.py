"""Rewrites statements about tables so that they reach scratch schemas alone.

A statement is written anew from its tokens, without comments, so that the server gets what was looked at and nothing
else: the delimiters of executable comments are gone, and their content is a part of the statement. Each name in front
of a dot becomes that of a scratch schema, wherever it stands. Names without one belong to the session's database, or to
that of the statement's table; both are scratch schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cdc.binlog.sql.changes import CreateTable, RenameTable, TableName
from cdc.binlog.sql.server import ServerVersion
from cdc.binlog.sql.statements import Statement, classify
from cdc.binlog.sql.tokens import Cursor, Token, tokenize, word_set

VERBS = (
    "CREATE TABLE", "ALTER TABLE", "DROP TABLE", "RENAME TABLE", "TRUNCATE TABLE", "CREATE INDEX", "DROP INDEX",
)  # fmt: skip
"""The statements that are tried, as :class:`~cdc.binlog.sql.statements.Statement` names them."""
_ENGINES = word_set("INNODB MYISAM ARIA MEMORY HEAP")
"""Engines that reach nothing outside their schema."""
_OTHER_ENGINES = word_set(
    """ARCHIVE BLACKHOLE CASSANDRA COLUMNSTORE CONNECT CSV EXAMPLE FEDERATED FEDERATEDX MERGE MRG_MYISAM MROONGA NDB
    NDBCLUSTER OQGRAPH PERFORMANCE_SCHEMA ROCKSDB S3 SECONDARY SEQUENCE SPHINX SPIDER TOKUDB VIDEX"""
)
_OUTSIDE = {
    "DIRECTORY": "names a directory of the server",
    "TABLESPACE": "names a tablespace, which belongs to no schema",
    "UNION": "names tables that it shows the rows of",
    "CONNECTION": "connects to another server",
    "SECONDARY_ENGINE": "names a second engine",
    "SECONDARY_LOAD": "loads a second engine",
    "SECONDARY_UNLOAD": "unloads a second engine",
    "SELECT": "has a query",
    "OUTFILE": "writes a file of the server",
    "DUMPFILE": "writes a file of the server",
    "TRANSACTION": "begins a transaction",
}
"""Words of statements that reach something outside their schema, and what such a statement does."""


class UntriedError(Exception):
    """A statement that is not executed. The text is a clause whose subject is the statement."""


@dataclass(frozen=True)
class ScratchStatement:
    """A statement about tables of scratch schemas."""

    sql: str
    _texts: tuple[str, ...]
    """The tokens, each with the blank in front of it."""
    _options_at: int | None
    """The token before which ALGORITHM and LOCK can be written; None if the statement takes none, or has its own."""
    _is_alter: bool

    def variants(self, algorithm: str, lock: str) -> Iterator[str]:
        """Yields the texts of the statement with this algorithm and lock; an empty ``lock`` names none. Servers accept
        one of them: some clauses of ALTER TABLE want a comma in front, and others none."""
        if self._options_at is None:
            return
        at = self._options_at
        if not self._is_alter:
            yield f"{self.sql} ALGORITHM={algorithm}{f' LOCK={lock}' if lock else ''}"
            return
        options = f" ALGORITHM={algorithm}{f', LOCK={lock}' if lock else ''}"
        for comma in (",", ""):
            yield "".join((*self._texts[:at], options, comma, " ", *self._texts[at:]))


@dataclass(frozen=True)
class Rewriter:
    """Rewrites the statements of a server."""

    server: ServerVersion
    scratch_of: Callable[[str], str | None]
    """Returns the scratch schema that stands in for a database; None if there is none."""
    scratches: frozenset[str]

    def rewritten(self, sql: str, sql_mode: int, database: str) -> ScratchStatement:
        """Returns a statement with its tables in scratch schemas. ``database``: the scratch schema of names without
        one. Raises UntriedError for one that could reach anything else."""
        tokens = tokens_of(sql, sql_mode, self.server)
        require_harmless(tokens)
        texts = [sql[token.begin : token.end] for token in tokens]
        for at in _qualifiers(tokens):
            scratch = self.scratch_of(tokens[at].text)
            if scratch is None:
                raise UntriedError(
                    f"names {tokens[at].text}.{tokens[at + 2].text}, and {tokens[at].text} is no database of this plan"
                )
            texts[at] = f"`{scratch}`"
        spaced = [
            text if before is None or before.end == token.begin else f" {text}"
            for before, token, text in zip([None, *tokens], tokens, texts, strict=False)
        ]
        statement = ScratchStatement("".join(spaced), tuple(spaced), *_options(tokens))
        self._require_inside(statement.sql, sql_mode, database)
        return statement

    def _require_inside(self, sql: str, sql_mode: int, database: str) -> None:
        """Reads the new text once more, as a check of the above. Raises UntriedError if a table is elsewhere."""
        statement = classify(sql, database, sql_mode, self.server)
        outside = next((name for name in tables_of(statement) if name[0] not in self.scratches), None)
        if statement.kind != "ddl" or statement.verb not in VERBS or outside is not None:
            raise UntriedError("cannot be rewritten for a scratch schema")


def tokens_of(sql: str, sql_mode: int, server: ServerVersion) -> list[Token]:
    """Returns the tokens of a statement, without semicolons at its end."""
    tokens = tokenize(sql, sql_mode, mysql=not server.mariadb)
    while tokens and tokens[-1].kind == "punct" and tokens[-1].text == ";":
        tokens.pop()
    return tokens


def require_triable(statement: Statement) -> list[TableName]:
    """Returns the tables that a statement names. Raises UntriedError for one that no server is asked about, by what it
    is."""
    names = tables_of(statement)
    if statement.verb not in VERBS or not names:
        raise UntriedError("is no CREATE, ALTER, DROP, RENAME or TRUNCATE of a table, and no index")
    if any(isinstance(change, CreateTable) and change.selects for change in statement.changes):
        raise UntriedError("gets its columns from a query")
    return names


def require_harmless(tokens: Sequence[Token]) -> None:
    """Raises UntriedError for a statement that reaches something beside tables, by its words."""
    if not tokens or not tokens[0].is_word("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"):
        raise UntriedError("does not begin with CREATE, ALTER, DROP, RENAME or TRUNCATE")
    if any(token.kind == "punct" and token.text in ";\\@" for token in tokens):
        raise UntriedError("has a semicolon, a backslash or a variable in it")
    for at, token in enumerate(tokens):
        if token.kind != "word":
            continue
        word, following = token.text.upper(), tokens[at + 1 : at + 3]
        if word in _OUTSIDE and _is_clause(word, tokens[at - 1], following):
            raise UntriedError(_OUTSIDE[word])
        if word in ("ENGINE", "TYPE"):
            _require_engine(following)


def _is_clause(word: str, before: Token, following: Sequence[Token]) -> bool:
    """Whether a word stands for a clause, and not for a column of this name."""
    if word == "DIRECTORY":
        return before.is_word("DATA", "INDEX")
    if word == "TRANSACTION":
        return before.is_word("START")
    if word in ("CONNECTION", "SECONDARY_ENGINE"):
        return bool(following) and (following[0].text == "=" or following[0].is_text)
    return True


def _require_engine(following: Sequence[Token]) -> None:
    is_set = bool(following) and following[0].kind == "punct" and following[0].text == "="
    value = next(iter(following[1:] if is_set else following), None)
    if value is None or (value.kind == "punct" and not is_set) or value.text.upper() in _ENGINES:
        return
    # Without "=" it may be a column named ENGINE, with its type.
    if is_set or value.kind != "word" or value.text.upper() in _OTHER_ENGINES:
        raise UntriedError(f"names the engine {value.text}, which may reach beyond a schema")


def _qualifiers(tokens: Sequence[Token]) -> Iterator[int]:
    """Yields the places of names in front of a dot, but for numbers with a fraction and names behind another dot."""
    for at, (token, dot) in enumerate(pairwise(tokens)):
        if token.kind not in ("word", "quoted") or dot.kind != "punct" or dot.text != ".":
            continue
        if token.kind == "word" and token.text.isascii() and token.text.isdigit():
            continue
        if at + 2 >= len(tokens) or tokens[at + 2].kind not in ("word", "quoted"):
            raise UntriedError(f"has no name behind {token.text}.")
        is_second = at >= 2 and tokens[at - 1].text == "." and tokens[at - 2].kind in ("word", "quoted")
        if not is_second:
            yield at


def _options(tokens: list[Token]) -> tuple[int | None, bool]:
    """Returns where ALGORITHM and LOCK can be written, and whether the statement is an ALTER TABLE."""
    is_alter = tokens[0].is_word("ALTER")
    if any(token.is_word("ALGORITHM", "LOCK") for token in tokens):
        return None, is_alter
    if not is_alter:
        is_index = any(token.is_word("INDEX") for token in tokens[1:4]) and not tokens[1].is_word("TABLE")
        return (len(tokens) if is_index else None), False
    c = Cursor(tokens, "")
    c.at = 1
    while c.take_any("ONLINE", "OFFLINE", "IGNORE") is not None:
        pass
    c.take_words("TABLE")
    c.take_words("IF", "EXISTS")
    c.take_table()
    if c.take_any("WAIT") is not None:
        c.at += 1
    c.take_any("NOWAIT")
    return (None if c.at_end() else c.at), True


def tables_of(statement: Statement) -> list[TableName]:
    """Returns all tables that a statement names, but for parents of foreign keys."""
    tables = list(statement.tables)
    for change in statement.changes:
        if isinstance(change, RenameTable):
            tables.append(change.to)
        elif isinstance(change, CreateTable) and change.like is not None:
            tables.append(change.like)
    return list(dict.fromkeys(tables))


def parents_of(tokens: list[Token], database: str) -> list[TableName]:
    """Returns the tables behind REFERENCES. ``database``: that of the table with the keys."""
    c = Cursor(tokens, database)
    parents = []
    while (token := c.peek()) is not None:
        c.at += 1
        if token.is_word("REFERENCES") and (parent := c.take_table()) is not None:
            parents.append(parent)
    return parents
