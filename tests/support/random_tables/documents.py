"""Random JSON documents and geometries, as SQL expressions."""

from __future__ import annotations

import json
from random import Random
from typing import Any

_TEXTS = (
    "",
    "a",
    "é",
    "日本語",
    "😀",
    'quote " and \\',
    "\b\f\n\r\t",
    "\x01\x1f\x7f",
    "x" * 127,
    "y" * 128,
    "z" * 300,
    "/",
)
_NUMBERS = (
    0, -1, 1, 127, -128, 32767, -32768, 32768, 65535, 65536, -32769, 2147483647, -2147483648, 2147483648, 4294967295,
    9223372036854775807, -9223372036854775808, 9223372036854775808, 18446744073709551615,
    0.5, -0.0, 1e15, 1e14, 1e16, 1e-14, 1e-15, 1e-16, 1.5e300, -2.2250738585072014e-308, 5e-324, 0.30000000000000004,
)  # fmt: skip
_OPAQUE = (
    "CAST('2024-02-29' AS DATE)", "CAST('0000-00-00' AS DATE)", "CAST('9999-12-31 23:59:59.999999' AS DATETIME(6))",
    "CAST('1970-01-01 00:00:00' AS DATETIME)", "CAST('-838:59:59' AS TIME)", "CAST('12:34:56.789' AS TIME(3))",
    "CAST('-00:00:00.5' AS TIME(1))", "CAST(-123.450 AS DECIMAL(10,3))", "CAST(0 AS DECIMAL(65,30))",
    "CAST(99999999999999999999999999999999999.5 AS DECIMAL(65,30))", "CAST('' AS BINARY)", "CAST(0x00ff10 AS BINARY)",
    "CAST(REPEAT('q', 100) AS BINARY)", "b'1010'", "CAST(2024 AS YEAR)", "ST_GeomFromText('POINT(1 2)')", "TRUE",
    "NULL",
)  # fmt: skip


def _plain(rng: Random, depth: int) -> Any:
    choice = rng.random()
    if depth and choice < 0.25:
        return [_plain(rng, depth - 1) for _ in range(rng.choice((0, 1, 2, 5)))]
    if depth and choice < 0.5:
        names = rng.sample((*_TEXTS, "k", "key", "KEY", "0", "a.b", "$"), rng.choice((0, 1, 3, 6)))
        return {name: _plain(rng, depth - 1) for name in names}
    if choice < 0.75:
        return rng.choice((*_NUMBERS, rng.randint(-(1 << 63), (1 << 64) - 1), rng.uniform(-1e9, 1e9)))
    return rng.choice((*_TEXTS, True, False, None))


def json_document(rng: Random, *, opaque: bool, years: bool = True) -> str:
    """A document; ``opaque``: also with values that JSON itself does not have, and large ones; ``years``: of the type
    YEAR, too."""
    document = _plain(rng, rng.randint(0, 4))
    if opaque and rng.random() < 0.05:
        document = {"big": "b" * 70_000, "rest": [document, 70_000, -70_000, 1 << 40]}
    body = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    if "\\u" in body and not opaque:  # text stays letter by letter what it is: any spelling will do
        body = json.dumps(document, ensure_ascii=False)
    if rng.random() < 0.3:
        body = f" {body}\n"
    literal = f"_utf8mb4 0x{body.encode().hex()}"
    if not opaque or rng.random() < 0.5:
        return literal
    values = [value for value in _OPAQUE if years or " AS YEAR" not in value]
    some = ", ".join(rng.sample(values, rng.randint(1, 5)))
    return rng.choice(
        (
            f"JSON_ARRAY({some}, CAST({literal} AS JSON))",
            f"JSON_OBJECT('v', JSON_ARRAY({some}), 'w', {rng.choice(values)})",
        )
    )


def _point(rng: Random) -> str:
    numbers = ("0", "-1.5", "180", "-90", "0.1", "1e10", f"{rng.uniform(-180, 180)}")
    return f"{rng.choice(numbers)} {rng.choice(numbers)}"


def geometry(rng: Random, name: str, *, old: bool) -> str:
    """A geometry of the type; ``old``: by the functions of MySQL 5.6."""
    points = ", ".join(_point(rng) for _ in range(rng.randint(2, 5)))
    shapes = {
        "POINT": f"POINT({_point(rng)})",
        "LINESTRING": f"LINESTRING({points})",
        "POLYGON": "POLYGON((0 0, 0 10, 10 10, 10 0, 0 0), (2 2, 2 4, 4 4, 4 2, 2 2))",
        "MULTIPOINT": f"MULTIPOINT({points})",
        "GEOMETRYCOLLECTION": f"GEOMETRYCOLLECTION(POINT({_point(rng)}), LINESTRING({points}))",
    }
    shape = shapes[name] if name in shapes else rng.choice(list(shapes.values()))
    srid = rng.choice(("", "", ", 0", ", 3857"))
    return f"{'GeomFromText' if old else 'ST_GeomFromText'}('{shape}'{srid})"
