# ruff: noqa: DTZ001  (DATETIME has no time zone)
"""The conversions of ``cdc.decode.conversions``: values, nulls, slices, empty arrays, damage."""

from __future__ import annotations

import ipaddress
import uuid
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.decode.conversions.base import BadValueError, Conversion
from cdc.decode.conversions.temporal import (
    hires_datetime,
    hires_time,
    hires_timestamp,
    old_datetime,
    old_time,
    old_timestamp,
    time_text,
)
from cdc.decode.conversions.values import (
    boolean,
    inet4_text,
    inet6_text,
    set_text,
    uncompressed,
    uuid_text,
    vector_floats,
)

UUID = uuid.UUID("6ccd780c-baba-1026-9564-5b8c656024db")


def packed(text: bytes, *, raw: bool = False, method: int = 8) -> bytes:
    """A COMPRESSED value as MariaDB stores it."""
    deflated = zlib.compress(text)
    size = max(1, (len(text).bit_length() + 7) // 8)
    head = bytes([method << 4 | (8 if raw else 0) | size]) + len(text).to_bytes(size, "big")
    return head + (deflated[2:-4] if raw else deflated)


# A conversion, values of the row image, and what they are.
CASES: dict[str, tuple[Conversion, list[Any], list[Any], pa.DataType]] = {
    "set": (partial(set_text, ("a", 'b "c"', "ü")), [b"\x00", b"\x05", b"\x02"], ["", "a,ü", 'b "c"'], pa.string()),
    "set of 64": (partial(set_text, tuple(f"m{n}" for n in range(64))), [b"\x01" + bytes(6) + b"\x80"], ["m0,m63"], pa.string()),
    "uuid": (uuid_text, [UUID.bytes, bytes(16)], [str(UUID), str(uuid.UUID(int=0))], pa.string()),
    "inet4": (inet4_text, [b"\xc0\0\2\1", bytes(4), b"\xff" * 4], ["192.0.2.1", "0.0.0.0", "255.255.255.255"], pa.string()),
    "inet6": (
        inet6_text,
        [ipaddress.ip_address(address).packed
         for address in ("2001:db8::ff00:42:8329", "::", "::ffff:192.0.2.1", "::1", "1:0:2:3:4:5:6:7")],
        ["2001:db8::ff00:42:8329", "::", "::ffff:192.0.2.1", "::1", "1::2:3:4:5:6:7"],
        pa.string(),
    ),
    "vector": (vector_floats, [b"\0\0\xc0\x3f\0\0\0\xc0", b""], [[1.5, -2.0], []], pa.list_(pa.float32())),
    "compressed": (
        uncompressed,
        [packed(b"text " * 99), packed(b"text " * 99, raw=True), b"\0plain", b"", packed(b"")],
        [b"text " * 99, b"text " * 99, b"plain", b"", b""],
        pa.binary(),
    ),
    "old timestamp": (
        old_timestamp(False), [(1709210096).to_bytes(4, "little"), bytes(4)], [datetime(2024, 2, 29, 12, 34, 56, 0, UTC), None],
        pa.timestamp("us", tz="UTC"),
    ),
    "hires timestamp": (
        hires_timestamp(3, False), [(1709210096).to_bytes(4, "big") + (789).to_bytes(2, "big"), bytes(6)],
        [datetime(2024, 2, 29, 12, 34, 56, 789000, UTC), None], pa.timestamp("us", tz="UTC"),
    ),
    "old datetime": (
        old_datetime(False), [number.to_bytes(8, "little")
         for number in (99991231235959, 10101000000, 0, 20230231010203)],
        [datetime(9999, 12, 31, 23, 59, 59), datetime(1, 1, 1), None, None], pa.timestamp("us"),
    ),
    "hires datetime": (
        hires_datetime(6, False),
        [(((((((2024 * 13 + 2) * 32 + 29) * 24 + 12) * 60 + 34) * 60 + 56) * 10**6) + 7).to_bytes(8, "big"), bytes(8)],
        [datetime(2024, 2, 29, 12, 34, 56, 7), None], pa.timestamp("us"),
    ),
    "old time": (
        old_time, [number.to_bytes(3, "little", signed=True) for number in (8385959, -8385959, 0, 101)],
        [3020399_000000, -3020399_000000, 0, 61_000000], pa.int64(),
    ),
    "hires time": (
        hires_time(1), [(tenths + 3020400 * 10).to_bytes(4, "big")
         for tenths in (-452967, 0, 30203999)], [-45296_700000, 0, 3020399_900000],
        pa.int64(),
    ),
}  # fmt: skip

# A conversion, a sound value, a damaged one, and what is said of it.
DAMAGED: dict[str, tuple[Conversion, bytes, bytes, str]] = {
    "set": (partial(set_text, ("a", "b")), b"\1", b"\4", "more members"),
    "vector": (vector_floats, bytes(4), bytes(5), "multiple of four"),
    "method": (uncompressed, packed(b"x"), packed(b"x", method=9), "an unknown method"),
    "no length": (uncompressed, packed(b"x"), b"\x80", "an unknown method"),
    "stream": (uncompressed, packed(b"x"), b"\x81\x01garbage", "cannot be inflated"),
    "too short": (uncompressed, packed(b"x"), b"\x81\x09" + zlib.compress(b"x"), "shorter than its stated"),
    "too long": (uncompressed, packed(b"x"), b"\x81\x01" + zlib.compress(b"xyz"), "longer than its stated"),
    "cut": (uncompressed, packed(b"x"), packed(b"x" * 50)[:-2], "cut"),
    "checksum": (uncompressed, packed(b"x"), packed(b"x" * 50)[:-1] + b"\0", "cannot be inflated"),
    "hires timestamp": (hires_timestamp(3, False), bytes(6), b"\1\1\1\1" + (1000).to_bytes(2, "big"), "no server writes"),
    "old datetime": (old_datetime(False), bytes(8), (20240229250000).to_bytes(8, "little"), "no server writes"),
    "old datetime's sign": (old_datetime(False), bytes(8), b"\xff" * 8, "no server writes"),
    "hires datetime": (hires_datetime(1, False), bytes(6), b"\xff" * 6, "no server writes"),
    "old time": (old_time, bytes(3), (6000).to_bytes(3, "little"), "no server writes"),
    "hires time": (hires_time(6), (3020400 * 10**6).to_bytes(6, "big"), b"\xff" * 6, "no server writes"),
    "old timestamp, strict": (old_timestamp(True), b"\1\1\1\1", bytes(4), "zero or impossible"),
    "hires timestamp, strict": (hires_timestamp(1, True), b"\1\1\1\1\0", bytes(5), "zero or impossible"),
    "old datetime, strict": (old_datetime(True), (20240229000000).to_bytes(8, "little"), (20230229000000).to_bytes(8, "little"), "zero or"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_nulls(name: str) -> None:
    convert, raw, expected, kind = CASES[name]
    converted = convert(pa.array([None, *raw, None], pa.binary()))
    converted.validate(full=True)
    assert converted.type == kind
    assert converted.to_pylist() == [None, *expected, None]


@pytest.mark.parametrize("name", CASES)
def test_slices(name: str) -> None:
    """Every slice of a longer array converts like the array, without nulls and with one in front."""
    convert, raw, expected, _ = CASES[name]
    for nulls in ([], [None]):
        long = pa.array([*raw, *nulls, *raw, *raw], pa.binary())
        values = [*expected, *nulls, *expected, *expected]
        for start in range(len(long) + 1):
            for stop in range(start, len(long) + 1):
                converted = convert(long.slice(start, stop - start))
                converted.validate(full=True)
                assert converted.to_pylist() == values[start:stop]


@pytest.mark.parametrize("name", CASES)
def test_nothing_and_nulls_alone(name: str) -> None:
    convert, _, _, kind = CASES[name]
    empty, nulls = convert(pa.array([], pa.binary())), convert(pa.array([None, None], pa.binary()))
    assert (empty.type, len(empty)) == (kind, 0)
    assert (nulls.type, nulls.to_pylist()) == (kind, [None, None])


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_names_its_row(name: str) -> None:
    convert, sound, damaged, why = DAMAGED[name]
    with pytest.raises(BadValueError, match=why) as caught:
        convert(pa.array([sound, None, sound, damaged, sound], pa.binary()))
    assert caught.value.row == 3
    assert caught.value.zero_date == ("strict" in name)
    with pytest.raises(BadValueError) as caught:
        convert(pa.array([damaged, sound, None, damaged], pa.binary()).slice(1))
    assert caught.value.row == 2


def test_a_compressed_value_unfolds_into_no_more_than_it_says() -> None:
    bomb = b"\x81\x0a" + zlib.compress(bytes(200 << 20))
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(BadValueError, match="longer than its stated"):
        uncompressed(pa.array([bomb], pa.binary()))
    assert pa.default_memory_pool().max_memory() - before < 10 << 20


@given(st.lists(st.none() | st.integers(-3020399_999999, 3020399_999999), max_size=8), st.integers(0, 8))
def test_time_texts(times: list[int | None], start: int) -> None:
    raw = pa.array(times, pa.int64())
    converted = time_text(6)(raw.slice(start))
    converted.validate(full=True)
    for us, text in zip(times[start:], converted.to_pylist(), strict=True):
        if us is None:
            assert text is None
            continue
        hours, minutes, seconds = text.lstrip("-").split(":")
        whole, fraction = seconds.split(".")
        size = ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(fraction)
        assert us == (-size if text.startswith("-") else size)


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.int16()])
def test_boolean(kind: pa.DataType) -> None:
    assert boolean(pa.array([0, 1, None, -1, 2], kind).slice(1)).to_pylist() == [True, None, True, True]


@given(st.binary(min_size=16, max_size=16))
def test_addresses_are_read_back(raw: bytes) -> None:
    shown: Callable[[Conversion], str] = lambda convert: convert(pa.array([raw], pa.binary()))[0].as_py()  # noqa: E731
    assert uuid.UUID(shown(uuid_text)).bytes == raw
    assert ipaddress.ip_address(shown(inet6_text)).packed == raw
