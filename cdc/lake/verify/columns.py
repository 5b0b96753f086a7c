"""The canonical text of each column, in which source and lake are compared.

The server computes it in SQL, Spark computes it from the Delta column (:mod:`cdc.lake.verify.lake`); both must agree to
the byte for every type of ``docs/types.md``. A row's text is the pieces of its columns, each followed by a comma:

============  ========================================================================================
kind          piece; an empty text stands for null
============  ========================================================================================
``number``    integers and decimals in digits, without padding
``truth``     1 or 0
``word``      a text that has no comma: TIME, UUID, INET, decimals of more than 38 digits
``real``      ``x``, then the 64 bits of a FLOAT or DOUBLE in hexadecimal digits, without leading zeros
``reals``     a VECTOR: ``v``, then eight hexadecimal digits for the bytes of each element, as they are stored
``day``       days since the year 0, as TO_DAYS counts them
``instant``   DATETIME, and TIMESTAMP in UTC: microseconds since the year 0, as TO_SECONDS counts
``text``      length in bytes of UTF-8, a colon, the text
``long``      length in bytes, a colon, CRC32 of the bytes: TEXT, BLOB, BINARY, GEOMETRY
``json``      CRC32 of the document's text
``nothing``   the policy ``null``: always empty
============  ========================================================================================

The lengths make the pieces unambiguous, so that no two different keys have the same text. The bits of a DOUBLE come
from a POINT, which holds them unchanged: texts of floating-point numbers differ between servers and Java.

A row's checksum is not made of its text, but of a number for each column, its word, because both sides multiply for a
tenth of what they need to print numbers and to join texts. A word is a product with the weight of the column, which
depends on its position:

============  ========================================================================================
form          word
============  ========================================================================================
``small``     the integer, times the weight: integers of up to 32 bits
``big``       the lower 31 bits of a BIGINT times the weight, plus the upper 33 bits times a smaller one
``day``       the piece's number, times the weight
``instant``   seconds since the year 0 times a smaller weight, plus the microseconds times the weight
``bytes``     CRC32 of the value, times the weight: texts, bytes, JSON
``piece``     CRC32 of the piece, times the weight: all others
============  ========================================================================================

Null is 1, which is no multiple of a weight; in ``piece`` it is the CRC32 of an empty text, 0. The words are joined by
XOR, without the highest bit. The checksum is the CRC32 of the decimal text of that number.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
    from cdc.config import ApplyConfig, ColumnPolicy

T = TypeVar("T")

Kind = Literal[
    "number", "truth", "word", "real", "reals", "day", "instant", "text", "long", "json", "nothing"
]  # fmt: skip
Form = Literal["small", "big", "day", "instant", "bytes", "piece"]

WORD_BITS = (1 << 63) - 1
"""The bits of the words that count: signed and unsigned numbers have the same text."""
NULL_WORD = 1
LOW_BITS = (1 << 31) - 1
"""The lower bits of a BIGINT, which make the first term of its word."""
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "integer", "bigint"})
_DECIMALS = frozenset({"decimal", "numeric", "fixed"})
_TEXTS = frozenset({"char", "varchar", "enum", "set"})
_LONG_TEXTS = frozenset({"tinytext", "text", "mediumtext", "longtext"})
_GEOMETRIES = frozenset(
    {
        "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
        "geometrycollection", "geomcollection",
    }
)  # fmt: skip
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}) | _GEOMETRIES
_WIDE_CHARSETS = frozenset({"ucs2", "utf16", "utf16le", "utf32"})
_UTF8 = frozenset({"utf8mb4", "utf8mb3", "utf8"})
"""Not ascii: some servers store bytes above 127 in it, which SELECT shows as question marks."""
_DIGITS = re.compile(r"\((\d)\)")
_PRECISION = re.compile(r"\((\d+)(?:,(\d+))?\)")
_MAX_PRECISION = 38


class Weights(NamedTuple):
    """The weights of a column: odd numbers that have nothing in common, so small that no word exceeds 63 bits."""

    large: int
    """31 bits."""
    middle: int
    """29 bits."""
    small: int
    """24 bits."""

    @classmethod
    def of(cls, at: int) -> Self:
        """Returns the weights of the column at this position."""
        numbers = [(zlib.crc32(b"%d of %d" % (at, bits)), bits) for bits in (31, 29, 24)]
        return cls(*((number >> (32 - bits)) | (1 << (bits - 1)) | 1 for number, bits in numbers))


class Term(NamedTuple):
    """A number that is multiplied by a weight."""

    number: str
    """SQL of the number."""
    weight: Literal["large", "middle", "small"] = "large"
    is_unsigned: bool = False
    nullable: bool = False


@dataclass(frozen=True)
class ComparedColumn:
    """A column that both sides can turn into canonical text."""

    source: str
    lake: str
    """Its name in Delta."""
    kind: Kind
    value: str
    """SQL of the value that the piece is made of; null stays null."""
    piece: str
    """SQL of the piece, which is never null."""
    shown: str
    """SQL of the value as people read it, as text; null stays null."""
    form: Form = "piece"
    terms: tuple[Term, ...] = ()
    """The numbers that add up to the word; empty for ``piece``."""
    is_integer: bool = False
    """Whether the source's column is a TINYINT to BIGINT that is printed without padding."""
    scale: int = 0
    """The digits of a number's fraction at the source. Delta may have kept more, of an earlier type."""
    is_counted: str | None = None
    """SQL that is true if the terms make the word, else it is that of null. None: if they are not null."""

    def word(self, at: int) -> str:
        """SQL of the word of the column at this position, which is never null."""
        weights = Weights.of(at)
        if not self.terms:
            return f"(CRC32({self.piece}) * {weights.large})"
        word = " + ".join(f"{term.number} * {getattr(weights, term.weight)}" for term in self.terms)
        if self.is_counted is not None:
            return f"IF({self.is_counted}, {word}, {NULL_WORD})"
        if not any(term.nullable for term in self.terms):
            return f"({word})"
        # A null of another sign would make servers compute with decimals.
        is_unsigned = any(term.is_unsigned for term in self.terms)
        return f"IFNULL({word}, {f'CAST({NULL_WORD} AS UNSIGNED)' if is_unsigned else NULL_WORD})"


@dataclass(frozen=True)
class UncomparedColumn:
    """A column that the server cannot bring into the lake's form."""

    source: str
    lake: str
    reason: str


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table, and those that identify a row."""

    compared: tuple[ComparedColumn, ...]
    left_out: tuple[UncomparedColumn, ...]
    keys: tuple[ComparedColumn, ...]
    """Empty for a table without a key: its rows are compared as a multiset."""
    read: tuple[ComparedColumn, ...] = ()
    """Columns whose pieces a client computes, see :mod:`cdc.lake.verify.client_columns`."""

    @property
    def key(self) -> str:
        """SQL of the canonical text that identifies a row."""
        return text_of(self.keys or self.compared)

    @property
    def checksum(self) -> str:
        """SQL of a row's checksum, for a table of which the server can compute all columns.

        The columns' numbers alone are sums of products: two rows that exchange values could keep their sum.
        """
        words = joined_in_pairs(
            [column.word(at) for at, column in enumerate(self.compared)], lambda left, right: f"({left} ^ {right})"
        )
        return f"CRC32({words} & {WORD_BITS})"

    @property
    def all(self) -> tuple[ComparedColumn, ...]:
        """All columns that are compared."""
        return (*self.compared, *self.read)


def is_plain_key(keys: Sequence[ComparedColumn]) -> bool:
    """Whether the key is one integer, which has ranges and remainders; other keys are hashed."""
    return len(keys) == 1 and keys[0].is_integer


def joined_in_pairs(parts: Sequence[T], join: Callable[[T, T], T]) -> T:
    """Joins the parts by an associative operation, as a balanced tree: servers and Spark walk an expression by
    recursion, and a chain over thousands of columns exceeds their stacks."""
    while len(parts) > 1:
        pairs = [join(*parts[at : at + 2]) for at in range(0, len(parts) - 1, 2)]
        parts = [*pairs, *parts[len(pairs) * 2 :]]
    return parts[0]


def text_of(columns: Iterable[ComparedColumn]) -> str:
    """Returns the SQL of the canonical text of these columns."""
    return "CONCAT(" + ", ".join(f"{column.piece}, ','" for column in columns) + ")"


def table_columns(schema: TableSchema, apply: ApplyConfig, *, is_old_mysql: bool = False) -> TableColumns:
    """Returns how the columns of a table are compared, given the policies of the configuration. Dropped columns are
    missing. ``is_old_mysql``: a MySQL before 8.0."""
    compared: list[ComparedColumn] = []
    left_out: list[UncomparedColumn] = []
    read: list[ComparedColumn] = []
    for column in schema.columns:
        policy = apply.columns.get(column.name.lower())
        kind = "keep" if policy is None else policy.kind
        if kind == "drop":
            continue
        lake = policy.name if policy is not None and policy.kind == "rename" else column.name
        if _is_for_clients(column, kind, is_old_mysql):
            read.append(ComparedColumn(column.name, lake, "text", "NULL", "''", "NULL"))
            continue
        reason = _why_not(column, kind, apply)
        if reason is not None:
            left_out.append(UncomparedColumn(column.name, lake, reason))
            continue
        compared.append(_compared(column, lake, policy, apply))
    names = [] if apply.mode == "append" and not schema.primary_key else list(apply.keys or schema.primary_key)
    by_source = {column.source.lower(): column for column in compared}
    keys = tuple(by_source[name.lower()] for name in names if name.lower() in by_source)
    return TableColumns(tuple(compared), tuple(left_out), keys if len(keys) == len(names) else (), tuple(read))


def _is_for_clients(column: ColumnSchema, policy: str, is_old_mysql: bool) -> bool:
    """Whether a client has to bring a column into the lake's form: the key of ``hash`` must not be shown to the server,
    and MySQL before 8.0 prints SETs in wide character sets wrongly."""
    if policy == "hash":
        return True
    is_printed_wrongly = is_old_mysql and column.data_type == "set" and column.charset in _WIDE_CHARSETS
    return is_printed_wrongly and policy in ("keep", "rename")


def _why_not(column: ColumnSchema, policy: str, apply: ApplyConfig) -> str | None:
    """Returns why a column cannot be compared; None if it can."""
    if column.data_type == "json" and apply.types.get("json") == "variant" and policy in ("keep", "rename"):
        return "a variant has no text that the server could compute"
    return None


def quoted(name: str) -> str:
    """Returns an identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"


def _compared(column: ColumnSchema, lake: str, policy: ColumnPolicy | None, apply: ApplyConfig) -> ComparedColumn:
    kind = "keep" if policy is None else policy.kind
    if kind == "null":
        return ComparedColumn(column.name, lake, "nothing", "NULL", "''", "NULL")
    c = quoted(column.name)
    if kind == "mask" and policy is not None:
        return _of(column, lake, "text", _masked(_text(column, c), policy.last))
    data_type = column.data_type.lower()
    if kind == "text" and data_type in ("date", "datetime", "timestamp"):
        return _of(column, lake, "word", f"CAST({c} AS CHAR)")
    if kind == "bytes":
        return _of(column, lake, "long", f"CAST({c} AS BINARY)", f"HEX({c})")
    if data_type in _TEXTS | _LONG_TEXTS | {"json"}:
        return _textual(column, lake, c)
    if data_type in _BYTES:
        return _of(column, lake, "long", c, f"HEX({c})")
    return _scalar(column, lake, c, apply)


def _of(column: ColumnSchema, lake: str, kind: Kind, value: str, shown: str | None = None) -> ComparedColumn:
    if kind == "text":
        parts = [f"LENGTH({value})", "':'", value]
    elif kind == "long":
        parts = [f"LENGTH({value})", "':'", f"CRC32({value})"]
    elif kind == "json":
        parts = [f"CRC32({value})"]
    else:
        parts = [value]
    joined = parts[0] if len(parts) == 1 else f"CONCAT({', '.join(parts)})"
    is_null = column.nullable or value != quoted(column.name)  # what is computed may fail
    piece = f"IFNULL({joined}, '')" if is_null else joined
    compared = ComparedColumn(column.name, lake, kind, value, piece, shown or f"CAST({value} AS CHAR)")
    if kind in ("text", "long", "json"):
        return replace(compared, form="bytes", terms=(Term(f"CRC32({value})", is_unsigned=True, nullable=is_null),))
    return compared


def _text(column: ColumnSchema, c: str) -> str:
    """SQL of a value as UTF-8 text."""
    if column.charset in _UTF8 and column.data_type not in ("enum", "set"):
        return c
    return f"CONVERT({c} USING utf8mb4)"


def _textual(column: ColumnSchema, lake: str, c: str) -> ComparedColumn:
    if column.data_type == "json":
        # MySQL 5.7 and early versions of 8.0 print base64 with line ends, which JSON does not allow in a text.
        return _of(column, lake, "json", f"REPLACE(CAST({c} AS CHAR), '\\n', '\\\\n')")
    kind: Kind = "text" if column.data_type in _TEXTS else "long"
    value = _text(column, c)
    return _of(column, lake, kind, value, value)


def _masked(text: str, last: int) -> str:
    hidden = f"REPEAT('*', GREATEST(CAST(CHAR_LENGTH({text}) AS SIGNED) - {last}, 0))"
    return f"CONCAT({hidden}, RIGHT({text}, {last}))" if last else hidden


def _scalar(column: ColumnSchema, lake: str, c: str, apply: ApplyConfig) -> ComparedColumn:
    """Numbers, times and the types that are printed as short words."""
    name, data_type, full = column.name, column.data_type.lower(), column.column_type.lower()
    if full.startswith("tinyint(1)") and apply.types.get("tinyint(1)") == "boolean":
        return _of(column, lake, "truth", f"({c} <> 0)")
    if data_type in _INTEGERS:
        if "zerofill" in full:
            return _weighted(column, _of(column, lake, "number", f"CAST({c} AS UNSIGNED)"), c)
        return _weighted(column, replace(_of(column, lake, "number", c), is_integer=True), c)
    if data_type in _DECIMALS:
        match = _PRECISION.search(full)
        precision, scale = (int(match[1]), int(match[2] or 0)) if match else (10, 0)
        value = f"CAST({c} AS DECIMAL({precision},{scale}))" if "zerofill" in full else c
        compared = _of(column, lake, "number" if precision <= _MAX_PRECISION else "word", value)
        return replace(compared, scale=scale)
    if data_type in ("float", "double", "real"):
        return _of(column, lake, "real", _bits(c), f"CAST({c} AS CHAR)")
    if data_type == "vector":
        return _of(column, lake, "reals", f"CONCAT('v', HEX({c}))")
    if data_type == "bit":
        if full == "bit(1)" and apply.types.get("bit(1)") == "boolean":
            return _of(column, lake, "truth", f"({c} <> 0)")
        return _of(column, lake, "number", f"CAST({c} AS UNSIGNED)")
    if data_type == "year":
        number = f"CAST({c} AS UNSIGNED)"
        if full == "year(2)":
            number = f"({number} + IF({number} < 70, 2000, 1900))"
        return _of(column, lake, "number", number)
    if data_type == "date":
        days = f"TO_DAYS({c})"
        compared = _moment(name, lake, "day", days, c, _is_a_day(c))
        return replace(compared, form="day", terms=(Term(days),))
    if data_type in ("datetime", "timestamp"):
        valid = _is_a_day(c) if data_type == "datetime" else f"YEAR({c}) > 0"
        seconds, fraction = f"TO_SECONDS({c})", f"MICROSECOND({c})" if _DIGITS.search(full) else ""
        count = f"{seconds} * 1000000" + (f" + {fraction}" if fraction else "")
        compared = _moment(name, lake, "instant", count, c, valid)
        return replace(
            compared, form="instant", terms=(Term(seconds, "small"), *([Term(fraction)] if fraction else []))
        )
    if data_type == "time" and apply.types.get("time") == "microseconds":
        whole = f"(HOUR({c}) * 3600 + MINUTE({c}) * 60 + SECOND({c})) * 1000000 + MICROSECOND({c})"
        return _of(column, lake, "number", f"(IF(LEFT(CAST({c} AS CHAR), 1) = '-', -1, 1) * ({whole}))")
    return _of(column, lake, "word", f"CAST({c} AS CHAR)")  # TIME, UUID, INET4, INET6


def _weighted(column: ColumnSchema, compared: ComparedColumn, c: str) -> ComparedColumn:
    """Adds the word of an integer. An unsigned BIGINT keeps that of its piece: Spark has a decimal for it."""
    is_unsigned = any(word in column.column_type.lower() for word in ("unsigned", "zerofill"))
    if column.data_type.lower() != "bigint":
        return replace(compared, form="small", terms=(Term(c, "large", is_unsigned, column.nullable),))
    if is_unsigned:
        return compared
    low = Term(f"({c} & {LOW_BITS})", "large", is_unsigned=True, nullable=column.nullable)
    high = Term(f"({c} >> {LOW_BITS.bit_length()})", "middle", is_unsigned=True, nullable=column.nullable)
    return replace(compared, form="big", terms=(low, high))


def _bits(c: str) -> str:
    """SQL of the bits of a floating-point number. Zeros are removed, because Spark prints none."""
    return f"CONCAT('x', TRIM(LEADING '0' FROM HEX(REVERSE(SUBSTR(POINT({c}, 0), 10, 8)))))"


def _moment(name: str, lake: str, kind: Kind, count: str, c: str, is_valid: str) -> ComparedColumn:
    value = f"IF({is_valid}, {count}, NULL)"
    piece = f"IF({is_valid}, {count}, '')"  # null is not valid
    return ComparedColumn(name, lake, kind, value, piece, f"CAST({c} AS CHAR)", is_counted=is_valid)


def _is_a_day(c: str) -> str:
    """SQL that is true for a date that the calendar has, from the year 1 on. Servers can store others."""
    return f"DAYOFMONTH({c}) BETWEEN 1 AND DAYOFMONTH(LAST_DAY({c})) AND YEAR({c}) > 0"
