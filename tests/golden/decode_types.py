"""The columns of the golden tables that ``make_decode.py`` fills: every type of each server, with its values.

The form of a column says how its value is selected and written in JSON lines: ``number``, ``float`` and ``single`` (the
stored bits), ``digits`` (a DECIMAL's text), ``text``, ``hex`` (bytes), ``day``, ``moment`` (DATETIME), ``instant``
(TIMESTAMP), ``floats`` (a VECTOR).
"""

from __future__ import annotations

from dataclasses import dataclass

ALL = frozenset({"mysql9", "mysql56", "mariadb10", "mariadb11"})
MARIADB = frozenset({"mariadb10", "mariadb11"})
MYSQL9 = frozenset({"mysql9"})
NOT_56 = ALL - {"mysql56"}


@dataclass(frozen=True)
class Typed:
    """A column. ``values`` are the SQL expressions of its first two rows; the third row is NULL."""

    name: str
    sql: str
    form: str
    values: tuple[str, str]
    kinds: frozenset[str] = ALL


def _text(name: str, charset: str, sample: str, kinds: frozenset[str] = ALL, sql: str = "VARCHAR(20)") -> Typed:
    return Typed(name, f"{sql} CHARACTER SET {charset}", "text", (f"'{sample}'", "'ASCII'"), kinds)


TYPED = (
    Typed("i8", "TINYINT", "number", ("-128", "127")),
    Typed("u8", "TINYINT UNSIGNED", "number", ("255", "0")),
    Typed("flag", "TINYINT(1)", "number", ("1", "0")),
    Typed("i16", "SMALLINT", "number", ("-32768", "32767")),
    Typed("u16", "SMALLINT UNSIGNED", "number", ("65535", "0")),
    Typed("i24", "MEDIUMINT", "number", ("-8388608", "8388607")),
    Typed("u24", "MEDIUMINT UNSIGNED", "number", ("16777215", "0")),
    Typed("i32", "INT", "number", ("-2147483648", "2147483647")),
    Typed("u32", "INT UNSIGNED", "number", ("4294967295", "0")),
    Typed("i64", "BIGINT", "number", ("-9223372036854775808", "9223372036854775807")),
    Typed("u64", "BIGINT UNSIGNED", "digits", ("18446744073709551615", "0")),
    Typed("f", "FLOAT", "single", ("1.5", "-3.25e-20")),
    Typed("d", "DOUBLE", "float", ("-2.25e300", "0.1")),
    Typed("small", "DECIMAL(12,2)", "digits", ("-1234567890.12", "0.01")),
    Typed("large", "DECIMAL(38,10)", "digits", ("1234567890123456789012345678.0123456789", "-0.0000000001")),
    Typed("widest", "DECIMAL(65,30)", "digits", ("-99999999999999999999999999999999999.999999999999999999999999999999", "0.5")),
    Typed("b1", "BIT(1)", "number", ("1", "0")),
    Typed("b9", "BIT(9)", "number", ("257", "0")),
    Typed("b64", "BIT(64)", "digits", ("18446744073709551615", "1")),
    Typed("y", "YEAR", "number", ("2155", "'0000'")),
    Typed("day", "DATE", "day", ("'2024-02-29'", "'0000-00-00'")),
    Typed("dt", "DATETIME", "moment", ("'1969-12-31 23:59:59'", "'2023-02-31 01:02:03'")),
    Typed("dt6", "DATETIME(6)", "moment", ("'9999-12-31 23:59:59.999999'", "'0001-01-01'")),
    Typed("ts", "TIMESTAMP NULL", "instant", ("'2024-02-29 12:34:56'", "'1970-01-01 00:00:01'")),
    Typed("ts3", "TIMESTAMP(3) NULL", "instant", ("'2024-02-29 12:34:56.789'", "'2038-01-19 03:14:07.999'")),
    Typed("t", "TIME", "text", ("'-838:59:59'", "'00:00:00'")),
    Typed("t1", "TIME(1)", "text", ("'-12:34:56.7'", "'100:00:00.1'")),
    Typed("t6", "TIME(6)", "text", ("'-00:00:00.000001'", "'23:59:59.999999'")),
    Typed("txt", "VARCHAR(300) CHARACTER SET utf8mb4", "text", ("'Straße 😀 \"quoted\" back\\\\slash'", "REPEAT('x', 299)")),
    _text("chr", "utf8mb4", "ab", sql="CHAR(10)"),
    _text("lat", "latin1", "Grüße €", sql="TEXT"),
    _text("mb3", "utf8", "Straße €"),
    _text("asci", "ascii", "plain", sql="TINYTEXT"),
    _text("c2", "ucs2", "ü€", sql="CHAR(4)"),
    _text("u16b", "utf16", "ü€😀"),
    _text("u16l", "utf16le", "ü€😀", sql="MEDIUMTEXT"),
    _text("u32t", "utf32", "ü€😀", sql="LONGTEXT"),
    _text("sj", "sjis", "表示ｱ"),
    _text("c932", "cp932", "表示①"),
    _text("gbt", "gbk", "汉字"),
    _text("gb18", "gb18030", "汉字😀", frozenset({"mysql9"})),
    _text("b5", "big5", "漢字"),
    _text("uj", "ujis", "表示丂"),
    _text("kr", "euckr", "한글"),
    _text("k8", "koi8r", "Привет"),
    _text("c1251", "cp1251", "Привет"),
    _text("sw", "swe7", "ÅÄÖ"),
    Typed("bin", "BINARY(6)", "hex", ("'ab'", "''")),
    Typed("vb", "VARBINARY(20)", "hex", ("0x00ff5c22", "''")),
    Typed("tb", "TINYBLOB", "hex", ("0xfffefd", "''")),
    Typed("lb", "LONGBLOB", "hex", ("REPEAT(0x0a, 300)", "''")),
    Typed("en", "ENUM('one','zwei,drei','it''s €') CHARACTER SET utf8mb4", "text", ("'it''s €'", "'one'")),
    Typed("ensj", "ENUM('表','示') CHARACTER SET sjis", "text", ("'示'", "'表'")),
    Typed("st", "SET('a','b \"c\"','ü') CHARACTER SET utf8mb4", "text", ("'ü,a'", "''")),
    Typed(
        "st64",
        f"SET({','.join(f'{chr(39)}m{n}{chr(39)}' for n in range(64))}) CHARACTER SET latin1",
        "text",
        ("'m63,m0'", "'m7,m8,m31,m32'"),
    ),
    Typed("geo", "GEOMETRY", "hex", ("ST_GeomFromText('LINESTRING(1 2,3 4.5)')", "ST_GeomFromText('POINT(-1 0)')")),
    Typed("pt", "POINT", "hex", ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(0 0)')")),
    Typed(
        "js",
        "JSON",
        "text",
        (
            """'{"a": [1, -2.5, true, null, "ü\\\\n😀", {"deep": {"er": []}}], "big": 18446744073709551615, "long key": 1e100}'""",
            "'[]'",
        ),
        MYSQL9,
    ),
    Typed(
        "jo",
        "JSON",
        "text",
        (
            ("JSON_OBJECT('d', CAST('2024-02-29' AS DATE), 't', CAST('-12:34:56.7' AS TIME(1)), 'n', CAST(1.10 AS DECIMAL(5,2)), "
            "'m', CAST('2024-02-29 01:02:03.000004' AS DATETIME(6)), 'b', CAST('ab' AS BINARY))"),
            "JSON_ARRAY(65536, -32769, 4294967296, 1.5e-10, REPEAT('x', 200))",
        ),
        MYSQL9,
    ),
    Typed("jt", "JSON", "text", ("""'{"b": 1.50,  "a":"ü"}'""", "'[]'"), MARIADB),
    Typed("vec", "VECTOR(3)", "floats", ("TO_VECTOR('[1.5,-2,0.1]')", "TO_VECTOR('[0]')"), MYSQL9),
    Typed("vec", "VECTOR(3)", "floats", ("VEC_FromText('[1.5,-2,0.1]')", "VEC_FromText('[0,0,1]')"), frozenset({"mariadb11"})),
    Typed("uid", "UUID", "text", ("'6ccd780c-baba-1026-9564-5b8c656024db'", "'00000000-0000-0000-0000-000000000000'"), MARIADB),
    Typed("ip4", "INET4", "text", ("'192.0.2.1'", "'0.0.0.0'"), MARIADB),
    Typed("ip6", "INET6", "text", ("'2001:db8::ff00:42:8329'", "'::ffff:192.0.2.1'"), MARIADB),
    Typed("cv", "VARCHAR(900) COMPRESSED CHARACTER SET latin1", "text", ("REPEAT('Grüße ', 100)", "'short'"), MARIADB),
    Typed("ct", "TEXT COMPRESSED CHARACTER SET utf8mb4", "text", ("REPEAT('€uro ', 100)", "''"), MARIADB),
    Typed("cb", "BLOB COMPRESSED", "hex", ("REPEAT(0x00ff, 200)", "0x01"), MARIADB),
)  # fmt: skip

OLD = (
    Typed("ots", "TIMESTAMP NULL", "instant", ("'2024-02-29 12:34:56'", "'1970-01-01 00:00:01'")),
    Typed("ots3", "TIMESTAMP(3) NULL", "instant", ("'2024-02-29 12:34:56.789'", "'2038-01-19 03:14:07.999'")),
    Typed("odt", "DATETIME", "moment", ("'1969-12-31 23:59:59'", "'2023-02-31 01:02:03'")),
    Typed("odt6", "DATETIME(6)", "moment", ("'9999-12-31 23:59:59.999999'", "'0001-01-01'")),
    Typed("ot", "TIME", "text", ("'-838:59:59'", "'00:00:00'")),
    Typed("ot1", "TIME(1)", "text", ("'-12:34:56.7'", "'100:00:00.1'")),
    Typed("ot6", "TIME(6)", "text", ("'-00:00:00.000001'", "'23:59:59.999999'")),
)
"""Times in the storage formats before MySQL 5.6, which MariaDB can still write."""


def columns_of(kind: str, table: str) -> tuple[Typed, ...]:
    """Returns the columns of ``shop.kinds`` or ``shop.old`` on a server."""
    return tuple(column for column in (TYPED if table == "kinds" else OLD) if kind in column.kinds)


def tables_of(kind: str) -> tuple[str, ...]:
    return ("kinds", "old") if kind in MARIADB else ("kinds",)
