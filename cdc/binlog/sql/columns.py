"""Column definitions of CREATE TABLE and ALTER TABLE: a type and attributes."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.binlog.sql import defaults
from cdc.binlog.sql.changes import Constant, Null, OldRows, Unknown
from cdc.binlog.sql.literals import Literal, take_literal
from cdc.binlog.sql.moment import Moment
from cdc.binlog.sql.schemas import ColumnSchema
from cdc.binlog.sql.server import LATEST, ServerVersion
from cdc.binlog.sql.tokens import UNREADABLE, Cursor, Token, shown
from cdc.binlog.sql.types import TEXTS, DataType, take_collation, take_type, with_charset

_EMPTY_JSON = {"JSON_OBJECT()": "{}", "JSON_ARRAY()": "[]"}
_NOW = ("CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The settings on which the meaning of a text depends."""

    server: ServerVersion = LATEST
    sql_mode: int = 0
    moment: Moment | None = None
    """When the statement was executed; None: not known."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A column definition with its place."""

    column: ColumnSchema
    old_rows: OldRows
    """The value that the column has in old rows if it is added."""
    primary: bool = False
    """Whether it is the primary key (``INT PRIMARY KEY``)."""
    first: bool = False
    after: str | None = None
    unsure_null: bool = False
    """Whether a server variable decides if it is nullable."""


@dataclass(slots=True)
class _Attributes:
    null: bool | None = None
    default: Literal | None = None
    expression: str | None = None
    """The default as text, if it is no literal."""
    on_update: bool = False
    auto_increment: bool = False
    generated: str | None = None
    primary: bool = False
    invisible: bool = False
    collation: str | None = None
    first: bool = False
    after: str | None = None


def take_definition(c: Cursor, name: str, dialect: Dialect) -> Definition | None:
    """Takes ``type attributes…`` up to the end of the tokens; None if anything in it is not understood."""
    if UNREADABLE in name:
        return None
    kind = take_type(c, dialect.server, dialect.sql_mode)
    if kind is None:
        return None
    attributes = _Attributes(auto_increment=kind.serial, null=False if kind.serial else None)
    while not c.at_end():
        if not _attribute(c, attributes, dialect.server):
            return None
    return _definition(name, kind, attributes, dialect)


# --- attributes


def _attribute(c: Cursor, attributes: _Attributes, server: ServerVersion) -> bool:
    """Takes one attribute. Returns whether it is known."""
    if c.take_words("NOT", "NULL"):
        attributes.null = False
    elif c.take_words("NULL"):
        attributes.null = True
    elif c.take_words("DEFAULT"):
        return _default(c, attributes)
    elif c.take_words("ON", "UPDATE"):
        attributes.on_update = True
        return _now(c) is not None
    elif c.take_any("AUTO_INCREMENT") is not None or c.take_words("SERIAL", "DEFAULT", "VALUE"):
        attributes.auto_increment = True
    elif c.take_words("UNIQUE"):
        c.take_words("KEY")
    elif c.take_words("PRIMARY", "KEY") or c.take_words("KEY") or c.take_words("PRIMARY"):
        attributes.primary = True
    elif (collation := take_collation(c, server)) is not None:
        attributes.collation = collation
    elif c.take_words("INVISIBLE"):
        attributes.invisible = True
    elif c.take_words("FIRST"):
        attributes.first = True
        return c.at_end()
    elif c.take_words("AFTER"):
        attributes.after = c.take_name()
        return attributes.after is not None and c.at_end()
    elif c.at_words("GENERATED") or c.at_words("AS"):
        return _generated(c, attributes)
    else:
        return _ignored(c)
    return True


def _ignored(c: Cursor) -> bool:
    """Takes an attribute without an effect on values."""
    if c.take_words("VISIBLE") or c.take_words("NOT", "SECONDARY"):
        return True
    if c.take_words("WITHOUT", "SYSTEM", "VERSIONING"):
        return True
    if c.take_words("COMMENT"):
        c.take_punct("=")
        return _take_text(c)
    if c.take_any("COLUMN_FORMAT", "STORAGE") is not None:
        return c.take_name() is not None
    if c.take_any("ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE") is not None:
        c.take_punct("=")
        return _take_text(c)
    if c.take_any("SRID", "REF_SYSTEM_ID") is not None:
        c.take_punct("=")
        return c.take_number() is not None
    if c.at_words("CONSTRAINT") or c.at_words("CHECK"):
        return _check(c)
    if c.take_words("REFERENCES"):
        return _references(c)
    return False


def _take_text(c: Cursor) -> bool:
    literal = take_literal(c)
    return literal is not None and literal.kind == "text"


def _check(c: Cursor) -> bool:
    if c.take_words("CONSTRAINT") and not c.at_words("CHECK"):
        c.take_name()
    if not c.take_words("CHECK") or c.take_group() is None:
        return False
    _ = c.take_words("NOT", "ENFORCED") or c.take_words("ENFORCED")
    return True


def _references(c: Cursor) -> bool:
    if c.take_table() is None:
        return False
    c.take_group()
    while True:
        if c.take_words("MATCH"):
            c.take_name()
        elif c.take_words("ON", "DELETE") or c.take_words("ON", "UPDATE"):
            is_action = c.take_any("RESTRICT", "CASCADE") is not None or c.take_words("SET", "NULL")
            if not is_action and not c.take_words("NO", "ACTION") and not c.take_words("SET", "DEFAULT"):
                return False
        else:
            return True


def _generated(c: Cursor, attributes: _Attributes) -> bool:
    if c.take_words("GENERATED") and not c.take_words("ALWAYS"):
        return False
    if not c.take_words("AS") or c.take_group() is None:  # AS ROW START: system versioning
        return False
    word = c.take_any("VIRTUAL", "STORED", "PERSISTENT") or "VIRTUAL"
    attributes.generated = "VIRTUAL GENERATED" if word == "VIRTUAL" else "STORED GENERATED"
    return True


# --- defaults


def _default(c: Cursor, attributes: _Attributes) -> bool:
    default = take_default(c)
    if default is not None:
        attributes.default, attributes.expression = default
    return default is not None


def take_default(c: Cursor) -> tuple[Literal | None, str | None] | None:
    """Takes what follows DEFAULT: a literal, or an expression as text. None if it is neither."""
    start = c.at
    group = c.take_group()
    if group is not None:
        return _parenthesised(group)
    literal = take_literal(c)
    if literal is not None:
        return literal, None
    if _now(c) is not None:
        return None, shown(c.tokens[start : c.at])
    if c.take_words("NEXT", "VALUE", "FOR"):
        return None if c.take_table() is None else (None, "next value")
    token = c.peek()
    if token is None or token.kind != "word":
        return None
    c.at += 1  # a function of MariaDB
    if c.take_group() is None and not token.is_word("CURRENT_DATE", "CURRENT_TIME", "CURRENT_USER", "CURRENT_ROLE"):
        return None
    return None, shown(c.tokens[start : c.at])


def _parenthesised(group: list[Token]) -> tuple[Literal | None, str | None]:
    """The default in parentheses: a literal, or an expression."""
    whole = shown(group)
    while len(group) > 2 and group[0].kind == group[-1].kind == "punct" and group[0].text + group[-1].text == "()":
        group = group[1:-1]
    inner = Cursor(group, "")
    literal = take_literal(inner)
    if literal is not None and inner.at_end():
        return literal, None
    empty = _EMPTY_JSON.get("".join(token.text for token in group).upper())
    return (Literal("text", empty), None) if empty is not None else (None, f"({whole})")


def _now(c: Cursor) -> int | None:
    """Takes CURRENT_TIMESTAMP and its synonyms. Returns the digits of the fraction."""
    if c.take_any(*_NOW) is None:
        return None
    group = c.take_group()
    return Cursor(group, "").take_number() or 0 if group else 0


# --- the whole


def _definition(name: str, kind: DataType, attributes: _Attributes, dialect: Dialect) -> Definition:
    server, moment = dialect.server, dialect.moment
    if attributes.collation is not None and kind.data_type in TEXTS:
        kind = with_charset(kind, kind.charset, attributes.collation)
    explicit = server.version >= ((10, 10, 0) if server.mariadb else (8, 0, 2))
    told = None if moment is None else moment.explicit_defaults
    explicit = explicit if told is None else told
    unsure = (
        told is not True and kind.data_type == "timestamp" and attributes.null is None and attributes.generated is None
    )
    null_default = attributes.default is not None and attributes.default.kind == "null"
    if null_default:
        unsure = False
    nullable = attributes.null if attributes.null is not None else not (unsure and not explicit)
    if attributes.primary or attributes.auto_increment:
        nullable, unsure = False, False
    column = ColumnSchema(
        name=name,
        data_type=kind.data_type,
        column_type=kind.column_type,
        nullable=nullable,
        default=None,
        extra=_extra(attributes),
        charset=kind.charset,
        collation=kind.collation,
    )
    old_rows = _old_rows(column, attributes, unsure, dialect)
    column = column.model_copy(
        update={"default": default_text(column, attributes.default, attributes.expression, server)}
    )
    return Definition(column, old_rows, attributes.primary, attributes.first, attributes.after, unsure)


def _extra(attributes: _Attributes) -> str:
    words = [
        "auto_increment" if attributes.auto_increment else "",
        "on update CURRENT_TIMESTAMP" if attributes.on_update else "",
        attributes.generated or "",
        "INVISIBLE" if attributes.invisible else "",
    ]
    return " ".join(word for word in words if word)


def _old_rows(column: ColumnSchema, attributes: _Attributes, unsure: bool, dialect: Dialect) -> OldRows:
    if attributes.generated is not None:
        return Unknown("it is generated")
    if attributes.auto_increment:
        return Unknown("the server numbers the rows")
    if attributes.expression is not None:
        return defaults.expression(column, attributes.expression, dialect.moment)
    if attributes.default is not None:
        return (
            Null()
            if attributes.default.kind == "null"
            else defaults.constant(column, attributes.default, dialect.moment)
        )
    is_told = dialect.moment is not None and dialect.moment.explicit_defaults is True
    if column.data_type == "timestamp" and not is_told and (unsure or not column.nullable):
        return Unknown("the server's explicit_defaults_for_timestamp decides about a TIMESTAMP without DEFAULT")
    return Null() if column.nullable else defaults.implicit(column)


def default_text(
    column: ColumnSchema | None, literal: Literal | None, expression: str | None, server: ServerVersion
) -> str | None:
    """A default as information_schema would show it, nearly: expressions are as in the statement, and so are literals
    if the column's type is not known."""
    if expression is not None:
        return expression
    if literal is None or literal.kind == "null":
        return "NULL" if server.mariadb and (column is None or column.nullable) else None
    value = defaults.constant(column, literal) if column is not None else None
    text = value.value if isinstance(value, Constant) and isinstance(value.value, str) else literal.text
    if server.mariadb and literal.kind == "text":
        return "'" + text.replace("'", "''") + "'"
    return text
