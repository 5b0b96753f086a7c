"""Selects, reads and converts the columns of a snapshot, so that values and Arrow types are the stream's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.base.errors import DamagedError, UnsupportedError, UnsupportedTypeError
from cdc.binlog.sql.schemas import ColumnSchema, quoted_members
from cdc.binlog.sql.tokens import word_set
from cdc.decode.charsets.convert import exact_text, sound_utf8, text_conversion
from cdc.decode.charsets.tables import charset_by_name
from cdc.decode.column_types import ValuePolicies
from cdc.decode.conversions.base import BadValueError, Conversion
from cdc.decode.conversions.values import boolean, escaped_lines, vector_floats
from cdc.source.connection import quoted
from cdc.source.snapshot import binary_kernels as b
from cdc.source.snapshot import kernels as k
from cdc.source.snapshot.wire import WireColumn

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

Form = Literal["integer", "decimal", "float", "bits", "date", "datetime", "time", "bytes"]
"""The loop that reads a column's values."""
_BINARY: dict[Form, tuple[str, ...]] = {
    "integer": ("integer",),
    "decimal": ("integer", "bytes"),
    "float": ("double",),
    "bits": ("bytes",),
    "date": ("date",),
    "datetime": ("datetime",),
    "time": ("time",),
    "bytes": ("bytes",),
}
"""The kinds of values in binary form that each loop has a version for."""

_INSTANT = pa.timestamp("us", tz="UTC")
_U64 = pa.decimal128(20, 0)
_INTEGERS: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "tinyint": (pa.int8(), pa.int16()),
    "smallint": (pa.int16(), pa.int32()),
    "mediumint": (pa.int32(), pa.int32()),
    "int": (pa.int32(), pa.int64()),
    "bigint": (pa.int64(), _U64),
}
"""The types of signed and unsigned numbers."""
_TEXTS = word_set("char varchar tinytext text mediumtext longtext")
_BYTES = word_set(
    "binary varbinary tinyblob blob mediumblob longblob geometry point linestring polygon multipoint multilinestring "
    "multipolygon geometrycollection geomcollection"
)
_PRINTED = word_set("uuid inet4 inet6 xmltype")
"""Types whose printed text is their value."""
_NUMBERS = re.compile(r"\((\d+)(?:,(\d+))?\)")
_DIGITS = re.compile(r"(?:datetime|timestamp)\((\d)\)")
_MAX_PRECISION = 38


@dataclass(frozen=True)
class ReadColumn:
    """A column of a snapshot: the expression that selects it, the loop that reads it, and its conversion."""

    name: str
    select: str
    """SQL, with quoted names."""
    form: Form
    raw: pa.DataType
    """The Arrow type that the loop's numbers are stored as."""
    conversion: Conversion | None = None
    final: pa.DataType | None = None
    """The type after the conversion; None without one."""
    scale: int = 0
    """DECIMAL: digits behind the point."""
    strict: bool = False
    """Whether a zero or impossible date is refused."""
    is_utf8: bool = False
    """Whether the bytes are text in UTF-8, of which servers may send parts that are not."""
    digits: int = 0
    """DATETIME, TIMESTAMP: digits of the fraction."""

    @property
    def arrow(self) -> pa.DataType:
        """The type in the record batches."""
        return self.raw if self.conversion is None else self.final

    def can_read(self, wire: WireColumn) -> bool:
        """Whether values in binary form can be read that the server describes so."""
        if self.form == "decimal" and wire.kind == "integer":
            return wire.width == 8 and not self.scale
        return wire.kind in _BINARY[self.form]


class Cells(NamedTuple):
    """The located values of one column's rows, as :mod:`cdc.source.snapshot.kernels` describes them."""

    buf: npt.NDArray[np.uint8]
    at: Longs
    size: Ints
    wire: WireColumn | None = None
    """The column, if values are in binary form; None if they are printed."""

    @property
    def places(self) -> tuple[npt.NDArray[np.uint8], Longs, Ints]:
        """The arrays that a kernel reads."""
        return self.buf, self.at, self.size

    def printed(self, row: int) -> bytes | None:
        """Returns one value as the text protocol prints it; None for NULL."""
        at, size = int(self.at[row]), int(self.size[row])
        if size < 0:
            return None
        value = self.buf[at : at + size].tobytes()
        return value if self.wire is None else self.wire.printed(value)


# ---------------------------------------------------------------- the columns of a table


def read_column(
    table: str, column: ColumnSchema, values: ValuePolicies, *, has_row_metadata: bool = True
) -> ReadColumn:
    """Returns how a column is read. ``has_row_metadata``: as :class:`~cdc.source.server.ServerInfo` has it. Raises
    UnsupportedTypeError."""
    kind, full, name = column.data_type.lower(), column.column_type.lower(), column.name
    plain = partial(ReadColumn, name, quoted(name))
    if kind in _INTEGERS:
        return _integer(plain, kind, full, values)
    if kind in ("decimal", "numeric", "fixed"):
        return _decimal(plain, name, full)
    if kind in ("float", "double", "real"):
        # SELECT prints a FLOAT with six digits, and FLOAT(m,d) with d; a product is printed with all digits.
        product = partial(ReadColumn, name, f"{quoted(name)} * 1e0", "float", pa.float64())
        return product(_singles, pa.float32()) if kind == "float" else product()
    if kind == "bit":
        return _bit(plain, full, values)
    if kind == "year":
        two = full.startswith("year(2)")
        conversion = _full_years if two else None
        return plain("integer", pa.int16(), conversion, pa.int16() if two else None)
    if kind in ("date", "datetime", "timestamp"):
        return _moment(plain, column, values)
    if kind == "time":
        if values.time == "microseconds":
            return plain("time", pa.int64())
        return _printed(name)
    if kind in ("enum", "set"):
        return _members(column, has_row_metadata)
    if kind in _TEXTS:
        return _text(plain, table, column, values)
    if kind == "vector":
        return plain("bytes", pa.binary(), vector_floats, pa.list_(pa.float32()))
    if kind == "json":
        return plain("bytes", pa.string(), escaped_lines, pa.string())
    if kind in _PRINTED:
        return plain("bytes", pa.string())
    if kind in _BYTES:
        return plain("bytes", pa.binary())
    raise _unsupported(table, column)


def _members(column: ColumnSchema, has_row_metadata: bool) -> ReadColumn:
    """ENUM and SET: by number, which is short, and by the members that information_schema shows.

    It shows characters beyond U+FFFF as question marks. Servers whose table maps hold the members print the true ones.
    MySQL 5.6 prints some SETs with wrong bytes; there the members are those of the configuration, as in the stream.
    """
    name, members = column.name, quoted_members(column.column_type)
    if has_row_metadata and any("?" in member for member in members):
        return ReadColumn(name, f"CONVERT({quoted(name)} USING utf8mb4)", "bytes", pa.string(), is_utf8=True)
    number = f"CAST({quoted(name)} AS UNSIGNED)"
    if column.data_type == "enum":
        texts = pa.array(["", *members], pa.string())
        return ReadColumn(name, number, "integer", pa.int32(), partial(_enum_texts, texts), pa.string())
    return ReadColumn(name, number, "decimal", _U64, partial(_set_texts, members), pa.string())


def _integer(plain: Callable[..., ReadColumn], kind: str, full: str, values: ValuePolicies) -> ReadColumn:
    signed, unsigned = _INTEGERS[kind]
    arrow = unsigned if "unsigned" in full or "zerofill" in full else signed
    if full.startswith("tinyint(1)") and values.tinyint1 == "boolean":
        return plain("integer", arrow, boolean, pa.bool_())
    return plain("decimal" if arrow == _U64 else "integer", arrow)


def _decimal(plain: Callable[..., ReadColumn], name: str, full: str) -> ReadColumn:
    match = _NUMBERS.search(full)
    precision, scale = (int(match[1]), int(match[2] or 0)) if match is not None else (10, 0)
    if precision <= _MAX_PRECISION:
        return plain("decimal", pa.decimal128(precision, scale), scale=scale)
    if "zerofill" in full:  # printed with zeros in front, which are no part of the value
        return ReadColumn(name, f"CAST({quoted(name)} AS DECIMAL({precision},{scale}))", "bytes", pa.string())
    return plain("bytes", pa.string())


def _bit(plain: Callable[..., ReadColumn], full: str, values: ValuePolicies) -> ReadColumn:
    match = _NUMBERS.search(full)
    bits = int(match[1]) if match is not None else 1
    if bits == 64:
        return plain("bits", _U64)
    if bits == 1 and values.bit1 == "boolean":
        return plain("bits", pa.int64(), boolean, pa.bool_())
    return plain("bits", pa.int64())


def _moment(plain: Callable[..., ReadColumn], column: ColumnSchema, values: ValuePolicies) -> ReadColumn:
    name = column.name.lower()
    digits = fraction_digits(column.column_type)
    if name in values.as_text:
        return _printed(column.name, digits)
    strict = values.zero_dates == "fail" or name in values.exact
    if column.data_type == "date":
        return plain("date", pa.date32(), strict=strict)
    kind = pa.timestamp("us") if column.data_type == "datetime" else _INSTANT
    return plain("datetime", kind, strict=strict, digits=digits)


def _printed(name: str, digits: int = 0) -> ReadColumn:
    """A date or time as text, which the server prints in rows in binary form too."""
    return ReadColumn(name, f"CAST({quoted(name)} AS CHAR)", "bytes", pa.string(), digits=digits)


def fraction_digits(column_type: str) -> int:
    """Returns the digits of the fraction of a DATETIME or TIMESTAMP, 0 for other types."""
    match = _DIGITS.match(column_type.lower())
    return int(match[1]) if match is not None else 0


def _text(plain: Callable[..., ReadColumn], table: str, column: ColumnSchema, values: ValuePolicies) -> ReadColumn:
    charset = "binary" if column.charset is None else charset_by_name(column.charset)
    if charset == "binary" or column.name.lower() in values.as_bytes:
        return plain("bytes", pa.binary())
    try:
        conversion = None if charset is None else text_conversion(charset)
    except LookupError:
        charset = None
    if charset is None:
        raise _unsupported(table, column)
    if column.name.lower() in values.exact:
        return plain("bytes", pa.binary(), exact_text(charset, conversion), pa.string())
    if conversion is None:
        return plain("bytes", pa.string(), is_utf8=True)
    return plain("bytes", pa.binary(), conversion, pa.string())


def _unsupported(table: str, column: ColumnSchema) -> UnsupportedTypeError:
    shown = column.column_type + (f" in {column.charset}" if column.charset else "")
    return UnsupportedTypeError(
        f"the column {column.name} has the type {shown}, which cannot be decoded",
        place=f"table {table}",
        remedy="Exclude the table, or the column (apply.columns: {NAME: drop}).",
    )


# ---------------------------------------------------------------- conversions


def _singles(raw: pa.Array) -> pa.Array:
    return raw.cast(pa.float32(), safe=False)


def _full_years(raw: pa.Array) -> pa.Array:
    """Years from 1970 to 2069, of which YEAR(2) prints the last two digits. A year with all its digits stays."""
    shift = pc.if_else(pc.less(raw, 70), pa.scalar(2000, pa.int16()), pa.scalar(1900, pa.int16()))
    return pc.if_else(pc.less(raw, 100), pc.add(raw, shift), raw).cast(pa.int16())


def _enum_texts(members: pa.Array, raw: pa.Array) -> pa.Array:
    worst = pc.max(raw).as_py()
    if worst is not None and worst >= len(members):
        row = pc.index(raw, pa.scalar(worst, raw.type)).as_py()
        raise BadValueError(row, f"an ENUM's member {worst}, and its column has {len(members) - 1}")
    return members.take(raw)


def _set_texts(members: Sequence[str], raw: pa.Array) -> pa.Array:
    distinct = pc.dictionary_encode(raw)
    texts = []
    for number, value in enumerate(distinct.dictionary.to_pylist()):
        bits = int(value)
        if bits >> len(members):
            row = pc.index(distinct.indices, pa.scalar(number, distinct.indices.type)).as_py()
            raise BadValueError(row, "a SET with more members than its column has")
        texts.append(",".join(member for at, member in enumerate(members) if bits >> at & 1))
    return pa.array(texts, pa.string()).take(distinct.indices)


# ---------------------------------------------------------------- values


@dataclass
class ColumnStats:
    """Counts of what reading changed: zero and impossible dates that became null, by column."""

    null_dates: dict[str, int] = field(default_factory=dict)


def read_array(table: str, column: ReadColumn, cells: Cells, stats: ColumnStats) -> pa.Array:
    """Reads the located values of a column into an Arrow array. Raises DamagedError for a value that no server sends,
    SourceRefusedError for one that the policies refuse."""
    raw = _raw_array(table, column, cells, stats)
    if column.conversion is None:
        return sound_utf8(raw) if column.is_utf8 else raw
    try:
        return column.conversion(raw)
    except BadValueError as error:
        _bad_value(table, column, cells, error.row, error.why, lost_bytes=error.lost_bytes)


def _raw_array(table: str, column: ReadColumn, cells: Cells, stats: ColumnStats) -> pa.Array:
    if column.form == "bytes":
        return _bytes_array(column.raw, cells)
    if column.form in ("date", "datetime"):
        return _moments(table, column, cells, stats)
    if column.form == "float" and cells.wire is None:
        try:
            return pc.cast(_bytes_array(pa.string(), cells), pa.float64())
        except pa.ArrowInvalid as error:
            _bad_value(table, column, cells, 0, f"a number that cannot be read ({error})")
    rows = len(cells.at)
    longs = np.empty(2 * rows if pa.types.is_decimal(column.raw) else rows, dtype=np.int64)
    bad = _fill_numbers(column, cells, longs)
    if bad >= 0:
        _bad_value(table, column, cells, int(bad), "bytes that no server sends")
    if column.form == "bits" and column.raw == _U64:
        longs.reshape(rows, 2)[:, 1] = 0
    narrow = column.form == "integer" and column.raw != pa.int64()
    numbers = longs.astype(column.raw.to_pandas_dtype()) if narrow else longs
    return pa.Array.from_buffers(column.raw, rows, [_validity(cells.size), pa.py_buffer(numbers)])


def _fill_numbers(column: ReadColumn, cells: Cells, longs: Longs) -> int:
    """Reads values into 64 bits each, decimals into 128; returns what the loops return."""
    wire, places = cells.wire, cells.places
    if column.form == "bits":
        if column.raw != _U64:
            return k.fill_bits(*places, longs)
        low = np.empty(len(cells.at), dtype=np.int64)
        bad = k.fill_bits(*places, low)
        longs[::2] = low
        return bad
    if wire is None or wire.kind == "bytes":
        if column.form == "integer":
            return k.fill_integers(*places, longs)
        return k.fill_times(*places, longs) if column.form == "time" else k.fill_decimals(*places, column.scale, longs)
    if column.form == "integer":
        return b.fill_integers(*places, not wire.unsigned, longs)
    if column.form == "decimal":
        return b.fill_decimals(*places, not wire.unsigned, longs)
    return b.fill_times(*places, longs) if column.form == "time" else b.fill_doubles(*places, longs)


def _moments(table: str, column: ReadColumn, cells: Cells, stats: ColumnStats) -> pa.Array:
    rows = len(cells.at)
    valid = np.empty(rows, dtype=np.uint8)
    if column.form == "date":
        days = np.empty(rows, dtype=np.int32)
        bad = (k.fill_dates if cells.wire is None else b.fill_dates)(*cells.places, days, valid)
        buffer = pa.py_buffer(days)
    else:
        us = np.empty(rows, dtype=np.int64)
        bad = (k.fill_datetimes if cells.wire is None else b.fill_datetimes)(*cells.places, us, valid)
        buffer = pa.py_buffer(us)
    if bad >= 0:
        _bad_value(table, column, cells, int(bad), "bytes that no server sends")
    lost = (valid == 0) & (cells.size >= 0)
    count = int(np.count_nonzero(lost))
    if count and column.strict:
        raise _zero_date(table, column, _shown(cells, int(np.flatnonzero(lost)[0])))
    if count:
        stats.null_dates[column.name] = stats.null_dates.get(column.name, 0) + count
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(column.raw, rows, [bitmap, buffer])


def _validity(size: Ints) -> pa.Buffer | None:
    is_present = size >= 0
    return None if is_present.all() else pa.py_buffer(np.packbits(is_present, bitorder="little"))


def _bytes_array(kind: pa.DataType, cells: Cells) -> pa.Array:
    rows = len(cells.at)
    data = np.empty(int(k.measure_bytes(cells.size)), dtype=np.uint8)
    offsets = np.empty(rows + 1, dtype=np.int32)
    k.fill_bytes(*cells.places, offsets, data)
    return pa.Array.from_buffers(kind, rows, [_validity(cells.size), pa.py_buffer(offsets), pa.py_buffer(data)])


def _shown(cells: Cells, row: int) -> str:
    return (cells.printed(row) or b"")[:40].decode("utf-8", "backslashreplace")


def _bad_value(
    table: str, column: ReadColumn, cells: Cells, row: int, why: str, *, lost_bytes: bool = False
) -> NoReturn:
    place = f"table {table}, column {column.name}"
    if lost_bytes:
        raise UnsupportedError(
            f"a text of the key with bytes that mean nothing in its character set ({_shown(cells, row)!r}): as ? in "
            "Delta, different keys would be the same",
            place=place,
            remedy=f"Write columns: {{{column.name}: bytes}}, or mode: append.",
        )
    raise DamagedError(f"the server sent {_shown(cells, row)!r}: {why}", place=place)


def _zero_date(table: str, column: ReadColumn, value: str) -> UnsupportedError:
    return UnsupportedError(
        f"the zero or impossible date {value}, which Delta cannot hold, in a column where it must not become null",
        place=f"table {table}, column {column.name}",
        remedy=f"Correct the row on the source, or write columns: {{{column.name}: text}}.",
    )
