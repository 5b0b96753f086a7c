"""Kernels for single values, against Python's arithmetic and against themselves uncompiled."""

from __future__ import annotations

import itertools
from datetime import date, timedelta
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.decode.kernels import constants as k
from cdc.decode.kernels.fill import put_bits, put_latin1, put_number, signed
from cdc.decode.kernels.rows import all_present
from cdc.decode.kernels.scan import find_layout, has_name, recall, remember, sound
from cdc.decode.kernels.values import (
    datetime_us,
    days_of,
    decimal_size,
    measure_points,
    measure_times,
    put_decimal,
    time_us,
    timestamp_us,
    write_points,
    write_times,
)
from cdc.decode.layout import LATIN1_TABLE
from cdc.kernels.memory import i64, prefix_value, same_bytes, u16, u24, u32, u48


def array(raw: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(raw + b"\0", dtype=np.uint8)


def both(kernel: Any, *args: Any) -> Any:
    """Runs a kernel compiled and uncompiled, and checks that both agree."""
    compiled, plain = kernel(*args), kernel.py_func(*args)
    assert compiled == plain
    return compiled


def pack_decimal(value: Decimal, precision: int, scale: int) -> bytes:
    """A decimal in MySQL's form, from its description."""
    digits = f"{abs(int(value.scaleb(scale))):0{precision}d}"
    whole, fraction = digits[: precision - scale], digits[precision - scale :]
    groups = [whole[: len(whole) % 9], *(whole[i : i + 9] for i in range(len(whole) % 9, len(whole), 9))]
    groups += [fraction[i : i + 9] for i in range(0, len(fraction), 9)]
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    raw = bytearray(b"".join(int(g).to_bytes(sizes[len(g)], "big") for g in groups if g))
    raw[0] ^= 0x80
    return bytes(b ^ 0xFF for b in raw) if value < 0 else bytes(raw)


@st.composite
def decimals(draw: st.DrawFn) -> tuple[int, int, Decimal]:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, min(30, precision)))
    unscaled = draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    return precision, scale, Decimal(unscaled)


@given(decimals())
def test_decimal(case: tuple[int, int, Decimal]) -> None:
    precision, scale, unscaled = case
    raw = (
        pack_decimal(Decimal(f"{unscaled}E-{scale}") if scale else unscaled, precision, scale)
        if precision < 29
        else pack_exact(unscaled, precision, scale)
    )
    assert both(decimal_size, precision, scale) == len(raw)
    for kernel in (put_decimal, put_decimal.py_func):
        out = np.zeros(2, dtype=np.int64)
        assert kernel(array(raw), 0, precision, scale, out, 0)
        assert int.from_bytes(out.tobytes(), "little", signed=True) == int(unscaled)


def pack_exact(unscaled: Decimal, precision: int, scale: int) -> bytes:
    """The same for more digits than Python's decimal context keeps."""

    class Scaled:
        def __init__(self, number: int) -> None:
            self.number = number

        def scaleb(self, _: int) -> int:
            return self.number

        def __lt__(self, other: int) -> bool:
            return self.number < other

        def __abs__(self) -> int:
            return abs(self.number)

    return pack_decimal(Scaled(int(unscaled)), precision, scale)  # type: ignore[arg-type]


def test_impossible_digits() -> None:
    out = np.zeros(2, dtype=np.int64)
    assert not put_decimal(array(b"\xff\xff\xff\xff"), 0, 9, 0, out, 0)
    assert not put_decimal.py_func(array(b"\xff\xff\xff\xff"), 0, 9, 0, out, 0)


def test_every_day() -> None:
    first, epoch = date(1, 1, 1), date(1970, 1, 1)
    for n in range(0, (date(9999, 12, 31) - first).days + 1, 7):
        day = first + timedelta(days=n)
        assert days_of(day.year, day.month, day.day) == (day - epoch).days


@pytest.mark.parametrize(
    ("parts", "days"),
    [((1970, 1, 1), 0), ((2000, 2, 29), 11016), ((1900, 2, 29), k.NO_DATE), ((2023, 2, 31), k.NO_DATE), ((0, 1, 1), k.NO_DATE),
     ((2023, 0, 1), k.NO_DATE), ((2023, 4, 31), k.NO_DATE), ((10000, 1, 1), k.DAMAGED_DATE), ((2023, 13, 1), k.DAMAGED_DATE)],
)  # fmt: skip
def test_days(parts: tuple[int, int, int], days: int) -> None:
    assert both(days_of, *parts) == days


@given(st.binary(min_size=8, max_size=8), st.integers(0, 3))
def test_times_agree(raw: bytes, fraction: int) -> None:
    for kernel in (datetime_us, timestamp_us):
        value = both(kernel, array(raw), 0, fraction)
        assert value >= -62135596800_000_000 or value in (k.NO_DATE, k.DAMAGED_DATE)


@given(st.binary(min_size=8, max_size=8))
def test_integers(raw: bytes) -> None:
    buf = array(raw)
    for kernel, size in ((u16, 2), (u24, 3), (u32, 4), (u48, 6)):
        assert both(kernel, buf, 0) == int.from_bytes(raw[:size], "little")
    assert both(i64, buf, 0) == int.from_bytes(raw, "little", signed=True)
    for size in (1, 2, 3, 4):
        assert both(prefix_value, buf, 0, size) == int.from_bytes(raw[:size], "little")
    assert both(signed, int.from_bytes(raw[:3], "little"), 24) == int.from_bytes(raw[:3], "little", signed=True)


@given(st.binary(min_size=8, max_size=8), st.integers(k.I8, k.F64), st.integers(0, 3))
def test_numbers_agree(raw: bytes, kind: int, row: int) -> None:
    outs = []
    for kernel in (put_number, put_number.py_func):
        out = np.zeros(64, dtype=np.uint8)
        kernel(array(raw), 0, kind, 0, row, out, out.view(np.int16), out.view(np.int32), out.view(np.int64))
        outs.append(out.tobytes())
    assert outs[0] == outs[1]


LAST_TIME_US = ((838 * 60 + 59) * 60 + 59) * 1_000_000


def pack_time(us: int, fraction_size: int) -> bytes:
    """A time in MySQL's form, from its description: sign and fields as one number, plus a constant."""
    in_a_second = int(100**fraction_size)
    seconds, fraction = divmod(abs(us) // (1_000_000 // in_a_second), in_a_second)
    whole = (seconds // 3600) << 12 | seconds // 60 % 60 << 6 | seconds % 60
    number = whole << 8 * fraction_size | fraction
    stored: int = (0x800000 << 8 * fraction_size) + (-number if us < 0 else number)
    return stored.to_bytes(3 + fraction_size, "big")


@given(st.integers(-LAST_TIME_US, LAST_TIME_US), st.integers(0, 3))
def test_time(us: int, fraction: int) -> None:
    unit = 1_000_000 // 100**fraction
    us = us // unit * unit
    assert both(time_us, array(pack_time(us, fraction)), 0, fraction) == us


@given(st.binary(min_size=6, max_size=6), st.integers(0, 3))
def test_damaged_times_agree(raw: bytes, fraction: int) -> None:
    us = both(time_us, array(raw), 0, fraction)
    assert us == k.DAMAGED_DATE or abs(us) < LAST_TIME_US + 1_000_000


@pytest.mark.parametrize("seconds", [(839 << 12), 1 | 60 << 6, 60])
def test_impossible_times(seconds: int) -> None:
    raw = (0x800000 + seconds).to_bytes(3, "big")
    assert both(time_us, array(raw), 0, 0) == k.DAMAGED_DATE


@given(st.binary(min_size=1, max_size=8), st.booleans(), st.integers(0, 2))
def test_bits(raw: bytes, wide: bool, row: int) -> None:
    outs = []
    for kernel in (put_bits, put_bits.py_func):
        out = np.full(8, -1, dtype=np.int64)
        kernel(array(raw), 0, len(raw), wide, 8, row, out)
        outs.append(out.tolist())
    assert outs[0] == outs[1]
    number = int.from_bytes(raw, "big")
    if wide:
        assert np.array(outs[0][1 + 2 * row : 3 + 2 * row]).tobytes() == number.to_bytes(16, "little")
    elif number < 1 << 63:
        assert outs[0][1 + row] == number


@pytest.mark.parametrize(("byte", "year"), [(0, 0), (1, 1901), (70, 1970), (255, 2155)])
def test_years(byte: int, year: int) -> None:
    for kernel in (put_number, put_number.py_func):
        out = np.zeros(64, dtype=np.uint8)
        views = out.view(np.int16), out.view(np.int32), out.view(np.int64)
        kernel(array(bytes([byte])), 0, k.YEAR, 8, 3, out, *views)
        assert out.view(np.int16)[4 + 3] == year
        assert not out[:14].any() and not out[16:].any()


@given(st.lists(st.none() | st.integers(-LAST_TIME_US, LAST_TIME_US), max_size=6), st.integers(0, 6))
def test_time_texts(times: list[int | None], digits: int) -> None:
    us = np.array([0 if value is None else value for value in times], dtype=np.int64)
    valid = np.array([value is not None for value in times], dtype=np.uint8)
    texts = []
    for measure, write in ((measure_times, write_times), (measure_times.py_func, write_times.py_func)):
        offsets = np.full(len(times) + 1, -1, dtype=np.int32)
        out = np.zeros(measure(us, valid, digits, offsets), dtype=np.uint8)
        write(us, valid, digits, offsets, out)
        assert int(offsets[-1]) == len(out)
        texts.append([out[a:b].tobytes().decode() for a, b in itertools.pairwise(offsets.tolist())])
    assert texts[0] == texts[1] == [time_as_text(value, digits) for value in times]


def time_as_text(us: int | None, digits: int) -> str:
    if us is None:
        return ""
    seconds, fraction = divmod(abs(us), 1_000_000)
    text = f"{'-' if us < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:06}"[: len(text) + 1 + digits] if digits else text


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-99, 99), max_size=5), st.integers(1, 38))
def test_points(numbers: list[int], scale: int) -> None:
    texts = [str(number).encode() for number in numbers]
    at = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    data = np.frombuffer(b"".join(texts) + b"\0", dtype=np.uint8)
    printed = []
    for measure, write in ((measure_points, write_points), (measure_points.py_func, write_points.py_func)):
        offsets = np.full(len(texts) + 1, -1, dtype=np.int32)
        out = np.zeros(measure(at, data, scale, offsets), dtype=np.uint8)
        write(at, data, scale, offsets, out)
        printed.append([out[a:b].tobytes().decode() for a, b in itertools.pairwise(offsets.tolist())])
    with localcontext(prec=100):
        assert printed[0] == printed[1] == [format(Decimal(number).scaleb(-scale), "f") for number in numbers]


@given(st.binary(max_size=40))
def test_latin1(raw: bytes) -> None:
    outs = []
    for kernel in (put_latin1, put_latin1.py_func):
        out = np.zeros(3 * len(raw) + 1, dtype=np.uint8)
        outs.append(out[: kernel(array(raw), 0, len(raw), LATIN1_TABLE, out, 0)].tobytes())
    assert outs[0] == outs[1]
    holes = {0x81, 0x8D, 0x8F, 0x90, 0x9D}
    assert outs[0].decode() == "".join(chr(b) if b in holes else bytes([b]).decode("cp1252") for b in raw)


@given(st.integers(1, 40), st.data())
def test_bitmaps(columns: int, data: st.DataObject) -> None:
    bits = data.draw(st.lists(st.sampled_from([True, True, True, False]), min_size=columns, max_size=columns))
    raw = sum(bit << i for i, bit in enumerate(bits)).to_bytes((columns + 7) // 8, "little")
    assert bool(both(all_present, array(raw), 0, columns)) == all(bits)


def test_names_and_layouts() -> None:
    buf = array(b"\1d\0\1t\0restrest")
    name = np.frombuffer(b"\1d\0\1t\0", dtype=np.uint8)
    assert both(has_name, buf, 0, 14, name)
    assert not both(has_name, buf, 0, 5, name)
    assert not both(has_name, buf, 1, 14, name)
    assert both(same_bytes, buf, 6, 10, 4)
    assert not both(same_bytes, buf, 5, 9, 4)
    names = np.array([[0, 4], [6, 10]], dtype=np.int64)
    assert both(find_layout, buf, 10, 14, names, 2) == 1
    assert both(find_layout, buf, 10, 14, names, 1) == -1
    scratch = np.zeros(16, dtype=np.uint8)
    assert both(sound, buf, 0, 10, 0, scratch)
    assert not both(sound, buf, 0, 10, 4, scratch)


def test_table_ids_are_remembered_and_the_oldest_forgotten() -> None:
    ids = np.zeros((3, 2), dtype=np.int64)
    count = 0
    for table_id, what in ((10, 1), (20, 2), (10, 3), (30, 4)):
        count = remember(ids, count, table_id, what)
    assert [recall(ids, count, table_id) for table_id in (10, 20, 30, 40)] == [3, 2, 4, -1]
    count = remember(ids, count, 40, 5)
    assert count == 3
    assert [recall(ids, count, table_id) for table_id in (10, 20, 30, 40)] == [-1, 2, 4, 5]
