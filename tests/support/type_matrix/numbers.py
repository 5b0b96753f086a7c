"""Edge values of numbers: integers, decimals, floats, bits, years."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from tests.support.type_matrix.column import DOUBLE, NUMBER, PRINTED, Column

MAX_PRECISION = 38
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_SIGNED = {8: pa.int8(), 16: pa.int16(), 24: pa.int32(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.int16(), 16: pa.int32(), 24: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}
_NEAR = (-65537, -65536, -32769, -257, -256, -129, -128, -127, -2, -1, 0, 1, 2, 127, 128, 255, 256, 32768, 65535, 65536)


def integers(name: str) -> list[Column]:
    """Signed and unsigned integers, with both limits and values near the limits of narrower types."""
    bits, upper = _BITS[name], name.upper()
    half = 1 << (bits - 1)
    limits = (-half, -half + 1, half - 1, half, 2 * half - 2, 2 * half - 1)

    def within(low: int, high: int) -> tuple[str, ...]:
        return tuple(str(n) for n in sorted({*_NEAR, *limits}) if low <= n <= high)

    unsigned = Column(f"{upper} UNSIGNED", f"{upper} UNSIGNED", within(0, 2 * half - 1), _UNSIGNED[bits], "integer")
    return [
        Column(upper, upper, within(-half, half - 1), _SIGNED[bits], "integer"),
        replace(unsigned, select=NUMBER),
        replace(unsigned, row=f"{upper} ZEROFILL", sql=f"{upper} ZEROFILL", select=NUMBER),
        *([Column("TINYINT(1)", "TINYINT(1)", within(-128, 127), pa.int8(), "integer")] if bits == 8 else []),
    ]


def decimals(max_scale: int) -> list[Column]:
    """Decimals with every remainder of digits modulo nine (the size of a stored group) on both sides of the point; and
    the limits: 38 digits (Delta's maximum), 65 digits, and the server's maximal scale."""
    sizes = [(whole + fraction, fraction) for whole in range(10) for fraction in range(10) if whole + fraction]
    sizes += [(18, 9), (19, 9), (20, 0), (27, 18), (28, 28), (28, 10), (30, 30), (31, 30), (36, 18), (37, 19)]
    sizes += [(38, 0), (38, 10), (38, 30), (39, 0), (39, 1), (39, 30), (40, 10), (48, 30), (54, 27), (63, 27), (64, 29)]
    sizes += [(65, 0), (65, 1), (65, 10), (65, 30), (65, 38), (38, 38)]
    columns = [_decimal(precision, scale) for precision, scale in sizes if scale <= max_scale]
    decimal = _decimal(12, 4)
    positive = tuple(value for value in decimal.values if not value.startswith("-"))
    unsigned = replace(decimal, row="DECIMAL UNSIGNED", sql="DECIMAL(12,4) UNSIGNED", values=positive)
    return [*columns, unsigned, replace(unsigned, row="DECIMAL ZEROFILL", sql="DECIMAL(12,4) ZEROFILL")]


def _decimal(precision: int, scale: int) -> Column:
    whole = precision - scale

    def number(digits: str) -> str:
        return f"{digits[:whole] or '0'}.{digits[whole:] or '0'}"

    mixed = ("1234567890" * 7)[:precision]
    positive = [number("9" * precision), number(mixed), number("0" * (precision - 1) + "1")]
    positive += [
        number("1" + "0" * (precision - 1)),
        number("0" * (precision // 2) + "9" * (precision - precision // 2)),
    ]
    values = tuple(dict.fromkeys(["0", *positive, *(f"-{value}" for value in positive)]))
    fits = precision <= MAX_PRECISION
    return Column(
        "DECIMAL, up to 38 digits" if fits else "DECIMAL, 39 to 65 digits",
        f"DECIMAL({precision},{scale})",
        values,
        pa.decimal128(precision, scale) if fits else pa.string(),
        "decimal" if fits else "text",
        select=PRINTED,
    )


def floats() -> list[Column]:
    values = ("0", "-0e0", "1.5", "-1.5", "3.4028234e38", "-3.4028234e38", "1.17549435e-38", "1e-45", "-1e-45", "0.1",
              "16777217", "1e0 / 3", "123456.789")  # fmt: skip
    float_column = Column("FLOAT", "FLOAT", values, pa.float32(), "float", select=DOUBLE)
    positive = tuple(value for value in values if not value.startswith("-"))
    small = ("0", "-0e0", "1.5", "-9999.999", "9999.999", "0.001", "0.1", "1e0 / 3")
    return [
        float_column,
        replace(float_column, row="FLOAT UNSIGNED", sql="FLOAT UNSIGNED", values=positive),
        replace(float_column, row="FLOAT(M,D)", sql="FLOAT(7,3)", values=small),
        replace(float_column, sql="FLOAT(24)"),
    ]


def doubles() -> list[Column]:
    values = ("0", "-0e0", "1.5", "-1.5", "1.7976931348623157e308", "-1.7976931348623157e308", "2.2250738585072014e-308",
              "5e-324", "-5e-324", "0.1", "9007199254740993", "1e0 / 3", "123456.789e-30")  # fmt: skip
    double_column = Column("DOUBLE", "DOUBLE", values, pa.float64(), "double", select=DOUBLE)
    positive = tuple(value for value in values if not value.startswith("-"))
    small = ("0", "-0e0", "1.5", "-99999999999.9999", "99999999999.9999", "0.0001", "0.1", "1e0 / 3")
    return [
        double_column,
        replace(double_column, row="DOUBLE UNSIGNED", sql="DOUBLE UNSIGNED", values=positive),
        replace(double_column, row="DOUBLE(M,D)", sql="DOUBLE(15,4)", values=small),
        replace(double_column, sql="FLOAT(53)"),
    ]


def bits() -> list[Column]:
    columns = []
    for width in range(1, 65):
        most = (1 << width) - 1
        numbers = {0, 1, most, most >> 1, 1 << (width - 1), most & 0xAAAAAAAAAAAAAAAA, most & 0x0123456789ABCDEF}
        kind = pa.decimal128(20, 0) if width == 64 else pa.int64()
        values = tuple(str(number) for number in sorted(numbers))
        row = "BIT(64)" if width == 64 else "BIT(1) to BIT(63)"
        columns.append(Column(row, f"BIT({width})", values, kind, "integer", select=NUMBER))
    return columns


def years(two_digits: bool) -> list[Column]:
    """``two_digits`` says that the server has YEAR(2)."""
    values = ("'0000'", "1901", "1902", "1969", "1970", "1999", "2000", "2001", "2026", "2154", "2155")
    columns = [Column("YEAR", "YEAR", values, pa.int16(), "integer")]
    if two_digits:
        note = "SELECT prints two digits of the year that is stored; Delta has all four"
        short = ("1970", "1999", "2000", "2001", "2069")
        columns.append(Column("YEAR(2)", "YEAR(2)", short, pa.int16(), "short year", select=NUMBER, note=note))
    return columns
