"""Edge values of bytes, JSON, geometry, vectors, addresses; compressed, generated, invisible columns; odd names."""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import replace

import pyarrow as pa

from tests.support.type_matrix.column import FLOATS, HEX, PRINTED, TEXT, Column

_MANY = 70_000
LARGE = "large"
"""Columns of this group contain values above 16 MiB."""


def _noise(size_bytes: int) -> str:
    """Returns a literal of incompressible bytes, always the same."""
    rounds = (size_bytes + 63) // 64
    return (
        "x'"
        + b"".join(hashlib.sha512(bytes([n % 256, n // 256])).digest() for n in range(rounds))[:size_bytes].hex()
        + "'"
    )


_SHORT_BYTES = (
    "''",
    "x'00'",
    "x'0000000000'",
    "x'6162000000'",
    "x'00ff00'",
    "x'fffefd'",
    "x'20'",
    "x'612020'",
    "x'80'",
)


def binaries() -> list[Column]:
    """BINARY with trailing zeros and spaces, and values shorter than the column, which pads them."""
    sized: dict[int, tuple[str, ...]] = {1: ("''", "x'00'", "x'ff'", "x'20'"), 5: _SHORT_BYTES}
    sized[16] = (*_SHORT_BYTES, _noise(16))
    sized[255] = (*_SHORT_BYTES, _noise(255), "REPEAT(x'00', 255)")
    return [Column("BINARY", f"BINARY({n})", values, pa.binary(), "bytes", size_bytes=n) for n, values in sized.items()]


def varbinaries() -> list[Column]:
    columns = []
    for length in (5, 255, 256, 2000):
        values = (*_SHORT_BYTES, _noise(length), f"REPEAT(x'00', {length})")
        columns.append(Column("VARBINARY", f"VARBINARY({length})", values, pa.binary(), "bytes", size_bytes=length))
    return columns


def blobs(name: str) -> list[Column]:
    values = [*_SHORT_BYTES, _noise(255)]
    if name != "TINYBLOB":
        values += [_noise(256), _noise(65_535)]
    columns = [Column(name, name, tuple(values), pa.binary(), "bytes", size_bytes=12)]
    if name in ("MEDIUMBLOB", "LONGBLOB"):
        columns = [replace(columns[0], values=(*values, _noise(65_536), _noise(_MANY)))]
    if name == "LONGBLOB":
        columns.append(replace(columns[0], values=("REPEAT('0123456789abcdef', 1048577)",), group=LARGE))
    return columns


def json_documents(*, casts: bool) -> list[Column]:
    """MySQL's binary JSON: every type, both container sizes, opaque values of every SQL type. ``casts`` says that the
    server can make years and floats."""
    documents = [
        "'null'", "'true'", "'false'", "'0'", "'-1'", "'32767'", "'-32768'", "'32768'", "'2147483647'", "'-2147483648'",
        "'2147483648'", "'9223372036854775807'", "'-9223372036854775808'", "'9223372036854775808'",
        "'18446744073709551615'", "'18446744073709551616'", "'1.5'", "'-0.0'", "'1e0'", "'1e308'", "'5e-324'", "'0.1'",
        "'1e22'", "'1e15'", "'123456789012345678'", "'100000000000000000000'", "'1.0'", "'1E-7'", "'\"\"'", "'\"a\"'", "'[]'",
        "'{}'", "'[1, \"a\", null, true, {\"b\": [1.5]}]'", "'{\"b\": 1, \"aa\": 2, \"a\": 3, \"\": 4}'",
        "'{\"ключ\": \"значение\", \"日本\": \"😀\"}'", "JSON_ARRAY('\"', '\\\\', '/', '\\n', '\\t', '\\b', CHAR(1 USING utf8mb4), CHAR(31 USING utf8mb4), CHAR(127 USING utf8mb4))",
        "JSON_OBJECT('a\"b', 1, 'c\\\\d', 2)", "JSON_QUOTE(REPEAT('x', 127))", "JSON_QUOTE(REPEAT('x', 128))",
        "JSON_QUOTE(REPEAT('é', 8191))", "JSON_QUOTE(REPEAT('x', 16384))", f"JSON_QUOTE(REPEAT('x', {_MANY}))",
        f"JSON_ARRAY(REPEAT('x', {_MANY}), 1, -1, 70000, 'end')", f"JSON_OBJECT('a', REPEAT('x', {_MANY}), 'b', 2, 'c', -70000)",
        f"CAST(CONCAT('[', REPEAT('0,', {_MANY}), '1]') AS JSON)", "CAST(CONCAT(REPEAT('[', 100), REPEAT(']', 100)) AS JSON)",
        "CONCAT('{\"', REPEAT('k', 60000), '\": [', REPEAT('{\"a\": 1},', 3), '[]]}')",
        "CAST(CAST('2024-02-29' AS DATE) AS JSON)", "CAST(CAST('-12:34:56.789' AS TIME(6)) AS JSON)",
        "CAST(CAST('838:59:59' AS TIME) AS JSON)", "CAST(CAST('2024-02-29 12:34:56.000007' AS DATETIME(6)) AS JSON)",
        "CAST(TIMESTAMP'2024-02-29 12:34:56' AS JSON)", "CAST(CAST(1.50 AS DECIMAL(10,2)) AS JSON)", "CAST(CAST(-0.00 AS DECIMAL(4,2)) AS JSON)",
        "CAST(CAST('-12345678901234567890123456789012345.678901234567890123456789012345' AS DECIMAL(65,30)) AS JSON)",
        "JSON_ARRAY(x'00ff10', b'101', CAST('a' AS BINARY(4)), _latin1'é')", "JSON_OBJECT('n', NULL)",
        "JSON_ARRAY(CAST('2024-02-29' AS DATE), CAST('0000-00-00' AS DATE), CAST('10:11:12' AS TIME), 1.10, 1e0, TRUE)",
        "CAST(ST_GeomFromText('POINT(1 2)') AS JSON)", "CAST(CAST(2026 AS YEAR) AS JSON)", "CAST(1.5e0 AS JSON)",
        "JSON_ARRAY(CAST(1.5 AS FLOAT), CAST(0.1 AS FLOAT), CAST(18446744073709551615 AS UNSIGNED))",
    ]  # fmt: skip
    if not casts:
        documents = [document for document in documents if " AS YEAR" not in document and " AS FLOAT" not in document]
    return [Column("JSON", "JSON", tuple(documents), pa.string(), "text", select=PRINTED, size_bytes=12)]


def json_texts() -> list[Column]:
    """MariaDB's JSON: a text that is stored unchanged, including blanks."""
    documents = ("'null'", "'{\"b\": 1,  \"a\" : [1,2.50, \"é😀\"]}'", "' [ ] '", "'1e0'", "'\"\"'", "'-0.0'",
                 f"CONCAT('[', REPEAT('0,', {_MANY}), '1]')")  # fmt: skip
    note = "a text, letter by letter as it was written"
    return [Column("JSON (MariaDB)", "JSON", documents, pa.string(), "text", select=TEXT, size_bytes=12, note=note)]


_EMPTY = "GEOMETRYCOLLECTION EMPTY"
_SHAPES = {
    "point": ("POINT(1 2)", "POINT(-1.5e300 1e-300)", "POINT(0 0)"),
    "linestring": ("LINESTRING(0 0,1 1,2 0)", "LINESTRING(1 1,-1 -1)"),
    "polygon": ("POLYGON((0 0,9 0,9 9,0 9,0 0))", "POLYGON((0 0,9 0,9 9,0 9,0 0),(1 1,2 1,2 2,1 1))"),
    "multipoint": ("MULTIPOINT(1 2,3 4)", "MULTIPOINT(0 0)"),
    "multilinestring": ("MULTILINESTRING((0 0,1 1),(2 2,3 3,4 4))",),
    "multipolygon": ("MULTIPOLYGON(((0 0,9 0,9 9,0 9,0 0)),((20 20,21 20,21 21,20 20)))",),
    "geometrycollection": (
        "GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,1 1))",
        "GEOMETRYCOLLECTION(GEOMETRYCOLLECTION(POINT(1 2)))",
        _EMPTY,
    ),
}
_SHAPES["geomcollection"] = _SHAPES["geometrycollection"]


def geometries(data_type: str, *, with_srid: bool, empty: str) -> list[Column]:
    """One subtype, or GEOMETRY with values of all, without a reference system and with 4326. ``with_srid`` says that
    the server can bind a column to a reference system, ``empty`` how it writes a collection of nothing."""
    every = [shape for name, shapes in _SHAPES.items() if name != "geomcollection" for shape in shapes]
    shapes = every if data_type == "geometry" else list(_SHAPES[data_type])
    shapes = [shape.replace(" EMPTY", empty) for shape in shapes]
    values = [f"ST_GeomFromText('{shape}')" for shape in shapes]
    values += [f"ST_GeomFromText('{shape}', 4326)" for shape in shapes if "300" not in shape]
    long = ",".join(f"{n % 80} {n % 90}" for n in range(5000))
    if data_type in ("geometry", "linestring"):
        values.append(f"ST_GeomFromText('LINESTRING({long})')")
    row = "GEOMETRYCOLLECTION" if data_type == "geomcollection" else data_type.upper()
    unbound = Column(row, data_type.upper(), tuple(values), pa.binary(), "bytes", size_bytes=12)
    bound = replace(unbound, sql=f"{unbound.sql} SRID 4326", values=tuple(v for v in values if v.endswith(", 4326)")))
    return [unbound, bound] if with_srid else [unbound]


def vectors(fixed: bool) -> list[Column]:
    """``fixed`` says that every value must have as many numbers as the column (MariaDB)."""
    columns = []
    for length in (1, 3, 500, 2000):
        # MariaDB rejects vectors whose sum of squares is not finite.
        numbers = [0.0, -0.0, 1.5, 1e15 if fixed else 3.4028234663852886e38, 1e-45, -1.0, 0.1]
        rows = [[number] * length for number in numbers]
        rows.append([math.sin(n) for n in range(length)])
        if not fixed:
            rows += [row[: max(1, length // 2)] for row in rows[-2:]]
        values = tuple(dict.fromkeys(f"x'{struct.pack(f'<{len(row)}f', *row).hex()}'" for row in rows))
        columns.append(
            Column("VECTOR", f"VECTOR({length})", values, FLOATS, "floats", select=HEX, size_bytes=4 * length)
        )
    return columns


def addresses(data_type: str) -> list[Column]:
    """UUID, INET4, INET6: all zeros, trailing zero bytes, all ones."""
    values = {
        "uuid": ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
                 "'550e8400-e29b-11d4-a716-446655440000'", "'123e4567-e89b-42d3-a456-426614174000'",
                 "'018f4d3c-7a00-7b2e-8000-000000000000'", "'6ba7b810-9dad-11d1-80b4-00c04fd430c8'",
                 "'00000000-0000-0000-8000-000000000001'", "'12345678-0000-0000-0000-000000000000'"),
        "inet4": ("'0.0.0.0'", "'255.255.255.255'", "'10.0.0.0'", "'127.0.0.1'", "'192.168.0.0'", "'1.2.3.4'"),
        "inet6": ("'::'", "'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'", "'2001:db8::'", "'::1'", "'2001:db8::ff00:42:8329'",
                  "'::ffff:192.0.2.128'", "'::192.0.2.128'", "'1:0:0:2::3'", "'fe80::'", "'1:2:3:4:5:6:7:0'", "'0:1:2:3:4:5:6:7'",
                  "'1:0:2:0:0:0:3:0'", "'::ffff:0:0'", "'::2'", "'::1:2'"),
    }[data_type]  # fmt: skip
    return [Column(data_type.upper(), data_type.upper(), values, pa.string(), "text", select=PRINTED)]


def compressed() -> list[Column]:
    """MariaDB's COMPRESSED columns: short values are stored as they are, longer ones compressed by zlib."""
    columns = []
    for sql, most in (("VARCHAR(60)", 60), ("VARCHAR(1000)", 1000), ("TINYTEXT", 250), ("TEXT", 60_000), ("MEDIUMTEXT", _MANY),
                      ("LONGTEXT", _MANY)):  # fmt: skip
        for charset in ("utf8mb4", "latin1", "ucs2"):
            count = most // (2 if charset == "ucs2" and "CHAR" not in sql else 1)
            values = ("''", "'a'", f"REPEAT('x', {count})", "'é'", f"REPEAT('0123456789', {count // 10})", "' a '")
            column = Column("COMPRESSED texts", f"{sql} COMPRESSED CHARACTER SET {charset}", values, pa.string(), "text",
                            select=TEXT, size_bytes=min(4 * most, 1000))  # fmt: skip
            columns.append(column)
    for sql, most in (("VARBINARY(60)", 60), ("VARBINARY(1000)", 999), ("TINYBLOB", 250), ("BLOB", 65_000), ("MEDIUMBLOB", _MANY),
                      ("LONGBLOB", _MANY)):  # fmt: skip
        raw = ("''", "x'00'", "x'0000'", f"REPEAT(x'00', {most})", _noise(most), "x'10ff'", "x'00616263'")
        columns.append(Column("COMPRESSED bytes", f"{sql} COMPRESSED", raw, pa.binary(), "bytes", size_bytes=1000))
    return columns


def generated() -> list[Column]:
    """STORED and VIRTUAL columns of several types. Their values depend on the row's number."""
    columns = []
    for kind in ("STORED", "VIRTUAL"):
        for sql, expression, delta, form, select in (
            ("INT", "id * 7 - 3", pa.int32(), "integer", "{}"),
            ("VARCHAR(60)", "CONCAT('é', id)", pa.string(), "text", TEXT),
            ("DECIMAL(20,5)", "id / 8", pa.decimal128(20, 5), "decimal", PRINTED),
            ("TEXT", "IF(id % 2, NULL, REPEAT('x', id))", pa.string(), "text", TEXT),
        ):
            full = f"{sql} GENERATED ALWAYS AS ({expression}) {kind}"
            column = Column(f"generated, {kind}", full, ("",) * 5, delta, form, select=select, written=False)  # type: ignore[arg-type]
            columns.append(column)
    return [*columns, Column("INT", "INT", ("1", "2", "3", "4", "5"), pa.int32(), "integer")]


def invisible() -> list[Column]:
    return [
        Column("invisible", "INT INVISIBLE", ("1", "-2", "3"), pa.int32(), "integer"),
        Column(
            "invisible", "VARCHAR(20) INVISIBLE", ("'é'", "''"), pa.string(), "text", select=TEXT, group="invisible"
        ),
        Column("INT", "INT", ("1", "2"), pa.int32(), "integer"),
    ]


_NAMES = ("with space", "semi;colon", "quote'single", 'quote"double', "back`tick", "dot.ted", "comma, (paren)", "eq=ual", "100%",
          "select", "ключ", "日本語", "é", "x" * 64, "ü" * 64, "{brace}", "a/b", "back\\slash", "#hash", "1", "tab\there",
          "line\nbreak", "UPPER", "$dollar", "@at", "-", "[0]", "a:b", "?")  # fmt: skip


def odd_names() -> list[Column]:
    """Names that must be quoted, escaped or encoded in some stage."""
    return [
        Column(
            "odd names", "VARCHAR(20)", ("'a'", "'b'", "''"), pa.string(), "text", select=TEXT, name=name, group="names"
        )
        for name in _NAMES
    ]
