"""Random column types, each with random values over its whole domain, as SQL literals; edges more often than not."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from tests.support.random_tables.documents import geometry, json_document
from tests.support.random_tables.facts import Facts
from tests.support.versions import lacks

Literal = Callable[[Random], str]


@dataclass(frozen=True)
class RandomType:
    """A type in SQL, and a maker of its values."""

    sql: str
    literal: Literal
    row_bytes: int
    """Bytes that it counts towards a row's limit of 65,535."""
    page_bytes: int
    """Bytes of it that lie at least in InnoDB's page."""
    in_key: bool = False
    """Whether it can be part of a primary key."""
    name: str = ""
    """See :data:`tests.support.random_tables.facts.CANDIDATES`."""


_INTEGER_BITS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}
_TEXT_LENGTHS = {"TINYTEXT": 255, "TEXT": 65535, "MEDIUMTEXT": 1 << 24, "LONGTEXT": 1 << 30}
_BLOB_LENGTHS = {"TINYBLOB": 255, "BLOB": 65535, "MEDIUMBLOB": 1 << 24, "LONGBLOB": 1 << 30}
_DATES = (
    "0000-00-00", "0001-01-01", "1000-01-01", "1582-10-15", "1969-12-31", "1970-01-01", "1900-02-29", "2000-02-29",
    "2023-02-31", "2024-00-10", "2024-05-00", "0000-01-01", "9999-12-31", "9999-01-00", "2024-02-29", "1899-12-31",
)  # fmt: skip
_CLOCKS = ("00:00:00", "23:59:59", "00:00:01", "12:34:56", "01:00:00", "00:59:00")
_FRACTIONS = ("000000", "999999", "000001", "100000", "500000", "123456", "789000", "010000")
_MOMENTS = (
    "1970-01-01 00:00:01",
    "2038-01-19 03:14:07",
    "0000-00-00 00:00:00",
    "2001-09-09 01:46:40",
    "2024-02-29 12:00:00",
)
_TIMES = (
    "838:59:59",
    "-838:59:59",
    "00:00:00",
    "-00:00:00",
    "-00:00:01",
    "00:00:01",
    "-12:34:56",
    "99:59:59",
    "100:00:00",
)


def text(raw: str) -> str:
    """A text literal without escapes."""
    return f"_utf8mb4 0x{raw.encode().hex()}" if raw else "''"


def binary(raw: bytes) -> str:
    return f"0x{raw.hex()}" if raw else "''"


def random_type(rng: Random, facts: Facts) -> RandomType:
    """A random type that the server supports."""
    name = rng.choice(facts.types)
    return replace(_of_name(rng, facts, name), name=name)


def _of_name(rng: Random, facts: Facts, name: str) -> RandomType:
    if name in _INTEGER_BITS:
        return _integer(rng, name)
    if name == "DECIMAL":
        return _decimal(rng, facts)
    if name in ("FLOAT", "DOUBLE"):
        return _floating(rng, name)
    if name == "BIT":
        bits = rng.choice((1, 7, 8, 9, 63, 64, rng.randint(1, 64)))
        return RandomType(f"BIT({bits})", lambda r: str(_number(r, 0, (1 << bits) - 1)), 8, 8, True)
    if name == "YEAR":
        years = ("0", "1901", "2155", "1970", "2000")
        return RandomType("YEAR", lambda r: r.choice((*years, str(r.randint(1901, 2155)))), 1, 1, True)
    if name in ("DATE", "TIME", "DATETIME", "TIMESTAMP"):
        return _time(rng, name)
    if name in ("ENUM", "SET"):
        return _members(rng, facts, name)
    if name in ("BINARY", "VARBINARY", *_BLOB_LENGTHS, "BLOB COMPRESSED"):
        return _bytes(rng, name)
    if name == "JSON":
        with_years = not lacks(facts.kind, "CAST AS YEAR")
        return RandomType("JSON", lambda r: json_document(r, opaque=not facts.is_mariadb, years=with_years), 12, 40)
    if name == "VECTOR":
        return _vector(rng, facts)
    if name in ("UUID", "INET4", "INET6"):
        return _address(name)
    if name in ("GEOMETRY", "POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "GEOMETRYCOLLECTION"):
        return RandomType(name, lambda r: geometry(r, name, old=facts.kind == "mysql56"), 12, 40)
    return _text(rng, facts, name)


def _number(rng: Random, low: int, high: int) -> int:
    edges = (low, high, 0, 1, -1, low + 1, high - 1, high // 2, high // 2 + 1)
    number = rng.choice(edges) if rng.random() < 0.6 else rng.randint(low, high) >> rng.randrange(64)
    return min(max(number, low), high)


def _integer(rng: Random, name: str) -> RandomType:
    bits = _INTEGER_BITS[name]
    attribute = rng.choice(("", "", " UNSIGNED", " UNSIGNED", " ZEROFILL"))
    low, high = (0, (1 << bits) - 1) if attribute else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return RandomType(name + attribute, lambda r: str(_number(r, low, high)), bits // 8, bits // 8, True)


def _decimal(rng: Random, facts: Facts) -> RandomType:
    precision = rng.choice((1, 9, 10, 18, 19, 38, 39, 65, rng.randint(1, 65)))
    scale = min(precision, rng.choice((0, 0, 1, 2, 9, 10, 30, rng.randint(0, 38 if facts.is_mariadb else 30))))
    unsigned = rng.random() < 0.15

    def literal(r: Random) -> str:
        digits = r.choice(("9" * precision, "0" * precision, "0" * (precision - 1) + "1", "1" + "0" * (precision - 1)))
        if r.random() < 0.5:
            digits = "".join(r.choice("0123456789") for _ in range(precision))
        if r.random() < 0.3:
            digits = digits[-r.randint(1, precision) :].rjust(precision, "0")
        number = f"{digits[: precision - scale] or '0'}.{digits[precision - scale :] or '0'}"
        return number if unsigned or r.random() < 0.5 else f"-{number}"

    sql = f"DECIMAL({precision},{scale})" + (" UNSIGNED" if unsigned else "")
    return RandomType(sql, literal, 30, 30, True)


def _floating(rng: Random, name: str) -> RandomType:
    form = rng.choice(("", "", "", " UNSIGNED", "(7,3)", "(20,10)"))
    single = name == "FLOAT"
    edges: tuple[str, ...] = (
        "0",
        "1",
        "-1.5",
        "0.1",
        "1e-45",
        "1.17549435e-38",
        "3.4028234e38",
        "-3.4028234e38",
        "16777217",
    )
    if not single:
        edges += ("5e-324", "2.2250738585072014e-308", "1.7976931348623157e308", "0.30000000000000004", "1e15", "1e16")

    def literal(r: Random) -> str:
        if form.startswith("("):
            return f"{r.uniform(-9999, 9999):.12f}"
        number = struct.unpack("<f", r.randbytes(4))[0] if single else struct.unpack("<d", r.randbytes(8))[0]
        return repr(number) if r.random() < 0.5 and number - number == 0 else r.choice(edges)

    return RandomType(name + form, literal, 8, 8)


def _time(rng: Random, name: str) -> RandomType:
    digits = rng.choice((0, 0, 1, 2, 3, 4, 5, 6))
    form = f"({digits})" if digits and name != "DATE" else ""

    def literal(r: Random) -> str:
        random_date = f"{r.randint(1, 9999):04d}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
        random_clock = f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}"
        fraction = r.choice((*_FRACTIONS, f"{r.randrange(1_000_000):06d}"))[:digits] if form else ""
        fraction = f".{fraction}" if fraction else ""
        if name == "DATE":
            return f"'{r.choice((*_DATES, random_date))}'"
        if name == "TIME":
            hours = f"{r.choice(('', '-'))}{r.randint(0, 837):02d}{random_clock[2:]}"
            clock = r.choice((*_TIMES, hours, hours))
            return f"'{clock}'" if clock.lstrip("-") == "838:59:59" else f"'{clock}{fraction}'"
        if name == "TIMESTAMP":
            moment = f"{r.randint(1970, 2037)}{random_date[4:]} {random_clock}"
            return f"'{r.choice((*_MOMENTS, moment, moment))}{fraction}'"
        return f"'{r.choice((*_DATES, random_date, random_date))} {r.choice((*_CLOCKS, random_clock))}{fraction}'"

    return RandomType(f"{name}{form}", literal, 8, 8, name != "TIMESTAMP")


def _string(rng: Random, characters: str, most: int) -> str:
    if not most:
        return ""
    length = rng.choice((0, 1, 1, 2, 3, 5, 10, min(most, rng.choice((60, 127, 255, 256, 300))), most))
    length = min(length, most, 700 if rng.random() < 0.02 else 300)
    if rng.random() < 0.15:
        return rng.choice(characters) * length
    some = rng.choices(characters, k=length)
    if rng.random() < 0.2 and some:
        some[-1] = " "
    return "".join(some)


def _text(rng: Random, facts: Facts, name: str) -> RandomType:
    charset = rng.choice((rng.choice(sorted(facts.charsets)), "utf8mb4", "latin1"))
    characters, size = facts.charsets[charset]
    compressed = name.endswith("COMPRESSED")
    plain = name.split()[0]
    attribute = " COMPRESSED" if compressed else ""
    if plain in ("CHAR", "VARCHAR"):
        longest = 255 if plain == "CHAR" else rng.choice((255, 256, 1000, 64)) // (1 if size < 3 else 2)
        length = rng.choice((1, 10, 63, 64, longest, rng.randint(0, longest))) if not compressed else longest
        most, sql = length, f"{plain}({length})"
        fixed = plain == "CHAR" and size == 1
        row, page = length * size + 2, length * size if fixed else min(40, length * size)
    else:
        most, sql, row, page = _TEXT_LENGTHS[plain] // size, plain, 12, 40
    collation = rng.choice(("", f" COLLATE {charset}_bin"))
    sql = f"{sql}{attribute} CHARACTER SET {charset}{collation}"

    def literal(r: Random) -> str:
        if size == 1 and charset != "ascii" and r.random() < 0.15:  # any byte, even one without a meaning
            return f"_{charset} 0x{r.randbytes(min(most, r.randint(1, 40))).hex()}" if most else "''"
        return text(_string(r, characters, most))

    return RandomType(sql, literal, row, page)


def _bytes(rng: Random, name: str) -> RandomType:
    plain = name.split()[0]
    attribute = " COMPRESSED" if name.endswith("COMPRESSED") else ""
    if plain in ("BINARY", "VARBINARY"):
        most = rng.choice((1, 16, 255, rng.randint(1, 255))) if plain == "BINARY" else rng.choice((0, 1, 255, 256, 700))
        sql, row, page = f"{plain}({most})", most + 2, most if plain == "BINARY" else min(most, 40)
    else:
        most, sql, row, page = _BLOB_LENGTHS[plain], plain, 12, 40

    def literal(r: Random) -> str:
        length = min(most, r.choice((0, 1, 2, 16, 255, 256, r.randint(0, 700))))
        raw = r.randbytes(length) if r.random() < 0.6 else r.choice((b"\0", b"\xff", b" ", b"ab\0\0")) * length
        return binary(raw[: r.choice((length, length // 2))] + b"\0" * min(r.choice((0, 0, 3)), most - length))

    return RandomType(sql + attribute, literal, row, page)


def _members(rng: Random, facts: Facts, name: str) -> RandomType:
    charset = rng.choice((rng.choice(sorted(facts.charsets)), "utf8mb4", "latin1"))
    # MySQL 5.6 has no metadata for them, and its information_schema has no characters beyond the BMP.
    usable = [
        c for c in facts.charsets[charset][0] if c not in "\0," and not (facts.kind == "mysql56" and c > "\uffff")
    ]
    count = rng.choice((1, 2, 5, 63, 64) if name == "SET" else (1, 2, 5, 255, 256, 300))
    stems = ["".join(rng.choices(usable, k=rng.randint(0, 4))) for _ in range(min(count, 12))]
    members = [f"{stems[n % len(stems)]}{n}" for n in range(count)]
    quoted = ",".join("'" + m.replace("\\", "\\\\").replace("'", "''") + "'" for m in members)
    most = (1 << count) - 1 if name == "SET" else count
    return RandomType(f"{name}({quoted}) CHARACTER SET {charset}", lambda r: str(_number(r, 0, most)), 8, 8)


def _vector(rng: Random, facts: Facts) -> RandomType:
    length = rng.choice((1, 3, 100, rng.randint(1, 300)))

    def literal(r: Random) -> str:
        count = length if facts.is_mariadb else r.choice((length, r.randint(1, length)))
        edges = (0.0, 1.0, -1.5, 3.4028234e38, 1e-45, 0.1)
        numbers = [r.choice((*edges, r.uniform(-1e6, 1e6))) for _ in range(count)]
        return f"0x{struct.pack(f'<{count}f', *numbers).hex()}"

    return RandomType(f"VECTOR({length})", literal, length * 4 + 2, min(40, length * 4))


def _address(name: str) -> RandomType:
    size = 4 if name == "INET4" else 16

    def raw(r: Random) -> bytes:
        bits = r.choice((bytes(size), b"\xff" * size, r.randbytes(size)))
        keep = r.randint(0, size)
        return r.choice((bits, bits[:keep] + bytes(size - keep), bytes(size - keep) + bits[size - keep :]))

    def literal(r: Random) -> str:
        bits = raw(r)
        if name == "INET4":
            return f"'{'.'.join(str(byte) for byte in bits)}'"
        if name == "INET6":
            if r.random() < 0.2:
                bits = bytes(10) + r.choice((b"\xff\xff", b"\0\0")) + bits[:4]
            return f"'{':'.join(bits[i : i + 2].hex() for i in range(0, 16, 2))}'"
        digits = bits.hex()
        return f"'{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}'"

    return RandomType(name, literal, size, size, True)
