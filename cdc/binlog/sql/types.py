"""Column types: reads them from a definition and writes them as ``information_schema`` would."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cdc.binlog.sql.literals import take_literal
from cdc.binlog.sql.schemas import ColumnSchema, charset_of_collation, quote_members
from cdc.binlog.sql.server import ServerVersion
from cdc.binlog.sql.tokens import MODE_ORACLE, MODE_REAL_AS_FLOAT, UNREADABLE, Cursor, word_set

BINARY = "binary"
SUFFIX = "_"
"""Begins a collation whose character set is the table's, until that is known: ``_bin`` for ``VARCHAR(10) BINARY``,
``_uca1400_ai_ci`` for ``COLLATE uca1400_ai_ci``."""

TEXTS = word_set("char varchar tinytext text mediumtext longtext enum set")
"""Types with a character set."""

_INTEGERS = {
    "TINYINT": "tinyint", "INT1": "tinyint", "SMALLINT": "smallint", "INT2": "smallint", "MEDIUMINT": "mediumint",
    "INT3": "mediumint", "MIDDLEINT": "mediumint", "INT": "int", "INTEGER": "int", "INT4": "int", "BIGINT": "bigint",
    "INT8": "bigint",
}  # fmt: skip
_WIDTHS = {"tinyint": 4, "smallint": 6, "mediumint": 9, "int": 11, "bigint": 20}
_LONG_TEXTS = {"TINYTEXT": "tinytext", "TEXT": "text", "MEDIUMTEXT": "mediumtext", "LONGTEXT": "longtext"}
_BLOBS = {"TINYBLOB": "tinyblob", "BLOB": "blob", "MEDIUMBLOB": "mediumblob", "LONGBLOB": "longblob"}
_GEOMETRIES = word_set("GEOMETRY POINT LINESTRING POLYGON MULTIPOINT MULTILINESTRING MULTIPOLYGON")
_PLAIN = word_set("DATE UUID INET4 INET6 XMLTYPE")
_SIZES = (("tiny", 1 << 8), ("", 1 << 16), ("medium", 1 << 24))
_TEXT_LIMITS = {"tinytext": 255, "text": 65_535, "mediumtext": 16_777_215, "longtext": 4_294_967_295}
_AS_BINARY = {"char": "binary", "varchar": "varbinary", "tinytext": "tinyblob", "text": "blob"} | {
    "mediumtext": "mediumblob", "longtext": "longblob"
}  # fmt: skip
LONGEST_CHARACTER = {"utf8": 3, "utf8mb3": 3, "utf8mb4": 4, "ucs2": 2, "utf16": 4, "utf16le": 4, "utf32": 4} | {
    "gbk": 2, "gb2312": 2, "gb18030": 4, "big5": 2, "sjis": 2, "cp932": 2, "ujis": 3, "eucjpms": 3, "euckr": 2
}  # fmt: skip
"""Bytes of the longest character of each character set; 1 in all others."""
UNICODE = frozenset({"utf8mb4", "utf16", "utf16le", "utf32"})
"""Character sets that hold every character."""


@dataclass(frozen=True, slots=True)
class DataType:
    """A column's type."""

    data_type: str
    column_type: str
    charset: str | None = None
    """None for a text that takes the table's, and for what is no text."""
    collation: str | None = None
    serial: bool = False
    """SERIAL: NOT NULL AUTO_INCREMENT UNIQUE."""


def take_type(c: Cursor, server: ServerVersion, sql_mode: int = 0) -> DataType | None:
    """Takes a type with its attributes (UNSIGNED, CHARACTER SET, COLLATE…); None if it is not understood."""
    token = c.peek()
    if token is None or token.kind != "word":
        return None
    c.at += 1
    return _numeric(token.text.upper(), c, server, sql_mode) or _other(token.text.upper(), c, server, sql_mode)


# --- numbers


def _numeric(word: str, c: Cursor, server: ServerVersion, sql_mode: int) -> DataType | None:
    if word in ("BOOL", "BOOLEAN"):
        return DataType("tinyint", "tinyint(1)")
    if word == "SERIAL":
        return replace(_integer("bigint", None, server, unsigned=True, zerofill=False), serial=True)
    if word in _INTEGERS:
        width = _one(c)
        unsigned, zerofill = _signs(c)
        return _integer(_INTEGERS[word], width, server, unsigned=unsigned, zerofill=zerofill)
    if word in ("DECIMAL", "DEC", "NUMERIC", "FIXED") or (word == "NUMBER" and sql_mode & MODE_ORACLE):
        precision, scale = _two(c)
        if word == "NUMBER" and precision is None:
            return DataType("double", "double")
        unsigned, zerofill = _signs(c)
        text = f"decimal({precision or 10},{scale or 0})"
        return DataType("decimal", text + _sign_words(unsigned, zerofill))
    if word in ("FLOAT", "FLOAT4", "DOUBLE", "FLOAT8", "REAL"):
        kind = "float" if word.startswith("FLOAT") and word != "FLOAT8" else "double"
        if word == "REAL" and sql_mode & MODE_REAL_AS_FLOAT:
            kind = "float"
        if word == "DOUBLE":
            c.take_words("PRECISION")
        digits, scale = _two(c)
        if digits is not None and scale is None and word in ("FLOAT", "FLOAT4"):
            kind = "double" if digits > 24 else "float"
        unsigned, zerofill = _signs(c)
        size = f"({digits},{scale})" if scale is not None else ""
        return DataType(kind, kind + size + _sign_words(unsigned, zerofill))
    if word == "BIT":
        return DataType("bit", f"bit({_one(c) or 1})")
    return None


def _integer(kind: str, width: int | None, server: ServerVersion, *, unsigned: bool, zerofill: bool) -> DataType:
    unsigned = unsigned or zerofill
    if server.shows_widths or zerofill:
        # An unsigned number needs no sign; BIGINT has 20 digits or 19 and a sign.
        shown = f"({width or _WIDTHS[kind] - (unsigned and kind != 'bigint')})"
    else:
        shown = "(1)" if kind == "tinyint" and width == 1 and not unsigned else ""
    return DataType(kind, kind + shown + _sign_words(unsigned, zerofill))


def _signs(c: Cursor) -> tuple[bool, bool]:
    unsigned = zerofill = False
    while (word := c.take_any("SIGNED", "UNSIGNED", "ZEROFILL")) is not None:
        unsigned = unsigned or word == "UNSIGNED"
        zerofill = zerofill or word == "ZEROFILL"
    return unsigned, zerofill


def _sign_words(unsigned: bool, zerofill: bool) -> str:
    return (" unsigned" if unsigned or zerofill else "") + (" zerofill" if zerofill else "")


def _one(c: Cursor) -> int | None:
    """Takes ``(n)``."""
    return _two(c)[0]


def _two(c: Cursor) -> tuple[int | None, int | None]:
    """Takes ``(n)`` or ``(n, m)``; nothing if no number stands in the parentheses."""
    start = c.at
    group = c.take_group()
    if group is not None:
        inner = Cursor(group, "")
        first = inner.take_number()
        second = inner.take_number() if inner.take_punct(",") else None
        if first is not None and inner.at_end():
            return first, second
    c.at = start
    return None, None


# --- texts, times and others


def _other(word: str, c: Cursor, server: ServerVersion, sql_mode: int) -> DataType | None:
    oracle = bool(sql_mode & MODE_ORACLE)
    if word in ("DATETIME", "TIMESTAMP", "TIME") or (word == "DATE" and oracle):
        kind = "datetime" if word == "DATE" else word.lower()
        digits = _one(c)
        return DataType(kind, f"{kind}({digits})" if digits else kind)
    if word == "YEAR":
        digits = _one(c)
        _signs(c)
        two = server.mariadb and digits == 2
        return DataType("year", ("year(2)" if two else "year(4)") if server.shows_widths else "year")
    if word in _PLAIN:
        return DataType(word.lower(), word.lower())
    if word in _GEOMETRIES:
        return DataType(word.lower(), word.lower())
    if word in ("GEOMETRYCOLLECTION", "GEOMCOLLECTION"):
        short = not server.mariadb and server.version >= (8, 0, 0)
        name = "geomcollection" if short else "geometrycollection"
        return DataType(name, name)
    if word == "VECTOR":
        return DataType("vector", f"vector({_one(c) or 2048})")
    if word == "JSON":
        return (
            DataType("longtext", "longtext", "utf8mb4", "utf8mb4_bin") if server.mariadb else DataType("json", "json")
        )
    if word in ("ENUM", "SET"):
        members = _members(c)
        kind = word.lower()
        return None if members is None else _text(DataType(kind, quote_members(kind, members)), c, server)
    return _binary(word, c, oracle) or _characters(word, c, server, oracle)


def _members(c: Cursor) -> list[str] | None:
    group = c.take_group()
    if not group:
        return None
    inner = Cursor(group, "")
    members: list[str] = []
    while True:
        literal = take_literal(inner)
        if literal is None or literal.kind not in ("text", "bytes") or UNREADABLE in literal.text:
            return None
        if not literal.text.isascii() and literal.kind == "bytes":
            return None
        members.append(literal.text.rstrip(" "))
        if inner.at_end():
            return members
        if not inner.take_punct(","):
            return None


def _binary(word: str, c: Cursor, oracle: bool) -> DataType | None:
    if word == "LONG" and c.take_words("VARBINARY"):
        return DataType("mediumblob", "mediumblob")
    if word == "BINARY":
        return DataType("binary", f"binary({_size(c, 1)})")
    if word == "VARBINARY" or (word == "RAW" and oracle):
        size = _size(c, None)
        return None if size is None else DataType("varbinary", f"varbinary({size})")
    if word in _BLOBS:
        kind = "longblob" if word == "BLOB" and oracle else _BLOBS[word]
        size = _one(c) if word == "BLOB" else None
        kind = kind if size is None else _sized("blob", size)
        return DataType(kind, kind + _compressed(c))
    return None


def _characters(word: str, c: Cursor, server: ServerVersion, oracle: bool) -> DataType | None:
    national = word in ("NATIONAL", "NCHAR", "NVARCHAR")
    varying = word in ("VARCHAR", "VARCHARACTER", "NVARCHAR") or (word == "VARCHAR2" and oracle)
    if word == "NATIONAL":
        second = c.take_any("CHAR", "CHARACTER", "VARCHAR", "VARCHARACTER")
        if second is None:
            return None
        varying = second.startswith("VAR")
    if word in ("CHAR", "CHARACTER", "NATIONAL", "NCHAR"):
        varying = varying or c.take_any("VARYING", "VARCHAR", "VARCHARACTER") is not None
    elif word == "LONG":
        c.take_any("VARCHAR", "VARCHARACTER")
        return _text(DataType("mediumtext", "mediumtext"), c, server)
    elif word == "CLOB" and oracle:
        return _text(DataType("longtext", "longtext"), c, server)
    elif word in _LONG_TEXTS:
        kind = _LONG_TEXTS[word]
        size = _one(c) if word == "TEXT" else None
        shown = kind if size is None else f"text({size})"
        return _text(DataType(kind, shown), c, server)
    elif not varying:
        return None
    size = _size(c, None if varying else 1)
    if size is None:
        return None
    kind = "varchar" if varying else "char"
    data_type = DataType(kind, f"{kind}({size})", charset=server.utf8 if national else None)
    return _text(data_type, c, server)


def _size(c: Cursor, default: int | None) -> int | None:
    """Takes a length: ``(20)``, or ``(20 CHAR)`` and ``(20 BYTE)`` in Oracle's mode."""
    start = c.at
    group = c.take_group()
    if group is None:
        return default
    inner = Cursor(group, "")
    size = inner.take_number()
    inner.take_any("CHAR", "BYTE")
    if size is None or not inner.at_end():
        c.at = start
        return default
    return size


def _compressed(c: Cursor) -> str:
    """Takes MariaDB's COMPRESSED, which is a part of the type as it is shown."""
    if not c.take_words("COMPRESSED"):
        return ""
    if c.take_punct("="):
        c.take_name()
    return " /*M!100301 COMPRESSED*/"


def _text(data_type: DataType, c: Cursor, server: ServerVersion) -> DataType:
    """Takes the attributes of a text: character set, collation, BINARY, COMPRESSED."""
    charset, collation, binary, compressed = data_type.charset, None, False, ""
    while (token := c.peek()) is not None:
        if name := take_charset(c, server):
            charset = name
        elif (attribute := take_collation(c, server)) is not None:
            collation = attribute
        elif c.take_words("BINARY"):
            binary = True
        elif c.take_words("BYTE"):
            charset = BINARY
        elif token.is_word("COMPRESSED"):
            compressed = _compressed(c)
        else:
            break
    if binary and collation is None:
        collation = "_bin"
    data_type = replace(data_type, column_type=data_type.column_type + compressed)
    return with_charset(data_type, charset, collation)


def with_charset(data_type: DataType, charset: str | None, collation: str | None) -> DataType:
    """The type with the character set and the collation of its definition."""
    if charset is None and collation is not None and not collation.startswith(SUFFIX):
        charset = charset_of_collation(collation)
    elif charset is not None and collation is not None and collation.startswith(SUFFIX):
        collation = charset + collation
    if charset is None:
        return replace(data_type, collation=collation)
    kind, shown = in_charset(data_type.data_type, data_type.column_type, charset)
    return DataType(kind, shown) if charset == BINARY else DataType(kind, shown, charset, collation)


def take_charset(c: Cursor, server: ServerVersion) -> str | None:
    """Takes ``CHARACTER SET x``, ``CHARSET x``, ``CHAR SET x``, ASCII or UNICODE. Returns the name of today."""
    start = c.at
    if c.take_words("ASCII"):
        return "latin1"
    if c.take_words("UNICODE"):
        return "ucs2"
    if c.take_words("CHARSET") or c.take_words("CHARACTER", "SET") or c.take_words("CHAR", "SET"):
        c.take_punct("=")
        name = _charset_name(c)
        if name is not None:
            return server.utf8 if name in ("utf8", "utf8mb3") else name
    c.at = start
    return None


def take_collation(c: Cursor, server: ServerVersion) -> str | None:
    """Takes ``COLLATE x``."""
    start = c.at
    if c.take_words("COLLATE"):
        c.take_punct("=")
        name = _charset_name(c)
        if name is not None and name != "default":
            head, _, tail = name.partition("_")
            if head == "uca1400":
                return SUFFIX + name
            return f"{server.utf8}_{tail}" if head in ("utf8", "utf8mb3") and tail else name
    c.at = start
    return None


def _charset_name(c: Cursor) -> str | None:
    token = c.peek()
    if token is None or token.kind == "punct":
        return None
    c.at += 1
    return token.text.lower()


# --- character sets that are known later


def in_charset(data_type: str, column_type: str, charset: str) -> tuple[str, str]:
    """The data type and column type of a text in this character set: ``text(100)`` gets the type that is long enough,
    and texts in ``binary`` are bytes."""
    if column_type.startswith("text("):
        size, _, rest = column_type[5:].partition(")")
        data_type = _sized("text", int(size) * LONGEST_CHARACTER.get(charset, 1))
        column_type = data_type + rest
    if data_type == "varchar" and charset != BINARY:
        size, _, rest = column_type[8:].partition(")")
        most = int(size) * LONGEST_CHARACTER.get(charset, 1)
        if most > 65_535:  # outside strict mode, a column that is too long becomes a text
            data_type = _sized("text", most)
            column_type = data_type + rest
    if charset == BINARY and data_type in _AS_BINARY:
        bytes_type = _AS_BINARY[data_type]
        return bytes_type, bytes_type + column_type[len(data_type) :]
    return data_type, column_type


def _sized(stem: str, size: int) -> str:
    """The shortest of TINYTEXT to LONGTEXT, or of TINYBLOB to LONGBLOB, for this many bytes."""
    return next((prefix for prefix, limit in _SIZES if size < limit), "long") + stem


def with_table_charset(column: ColumnSchema, charset: str | None, collation: str | None) -> ColumnSchema:
    """A new column of a table with this default. Only a text without a character set of its own changes."""
    if column.charset is not None or column.data_type not in TEXTS or charset is None:
        return column
    kind, shown = in_charset(column.data_type, column.column_type, charset)
    if charset == BINARY:
        return column.model_copy(update={"data_type": kind, "column_type": shown, "collation": None})
    own = column.collation
    if own is not None and own.startswith(SUFFIX):
        own = charset + own
    return column.model_copy(
        update={"data_type": kind, "column_type": shown, "charset": charset, "collation": own or collation}
    )


def converted(column: ColumnSchema, charset: str | None, collation: str | None) -> ColumnSchema:
    """A text after CONVERT TO CHARACTER SET: a TEXT gets a type in which as many characters fit."""
    if charset is None:
        return column.model_copy(update={"charset": None, "collation": None})
    kind, shown = column.data_type, column.column_type
    own = LONGEST_CHARACTER.get(column.charset or charset, 1)
    if kind in _TEXT_LIMITS and LONGEST_CHARACTER.get(charset, 1) > own:
        most = _TEXT_LIMITS[kind] // own * LONGEST_CHARACTER.get(charset, 1)
        larger = _sized("text", most)
        kind, shown = larger, larger + shown[len(kind) :]
    kind, shown = in_charset(kind, shown, charset)
    if charset == BINARY:
        return column.model_copy(update={"data_type": kind, "column_type": shown, "charset": None, "collation": None})
    return column.model_copy(
        update={"data_type": kind, "column_type": shown, "charset": charset, "collation": collation}
    )
