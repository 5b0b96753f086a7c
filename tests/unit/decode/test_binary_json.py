"""Binary JSON without a server: documents that a server wrote, damaged documents, and the kernels uncompiled."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc.decode import scan
from cdc.decode.binary_json import convert, document_kernels, scalar_kernels
from cdc.decode.binary_json.convert import double_texts, json_text, json_text_of_mysql_5
from cdc.decode.conversions import values
from cdc.decode.conversions.base import BadValueError
from cdc.decode.conversions.values import decimal_text
from cdc.decode.kernels import constants as k
from cdc.decode.kernels import rows
from cdc.decode.kernels import values as value_kernels
from cdc.decode.kernels.rows import EventArrays
from cdc.decode.row_events import PartialFault, expand_partial
from cdc.kernels import memory

# Documents in hexadecimal from MySQL 9.7, and what SELECT shows.
GOLDEN = [
    ("0400", 'null'),
    ("0401", 'true'),
    ("050080", '-32768'),
    ("07ffff0000", '65535'),
    ("0700000080", '-2147483648'),
    ("09ffffffff00000000", '4294967295'),
    ("090000000000000080", '-9223372036854775808'),
    ("0affffffffffffffff", '18446744073709551615'),
    ("0b48afbc9af2d77a3e", '0.0000001'),
    ("0bffffffffffffef7f", '1.7976931348623157e308'),
    ("0b0000000000000080", '-0.0'),
    ("0c00", '""'),
    ("0200000400", '[]'),
    ("0000000400", '{}'),
    ("0003003e0019000000190001001a000100001b00050100022900616201000e000b0001000c0c00710178030015000401000400000b0d00000000000000f8bf", '{"": {"q": "x"}, "a": 1, "b": [true, null, -1.5]}'),
    ("0203001b000c0d000c12000c140004225c0a09010106c3a9f09f9880", '["\\"\\\\\\n\\t", "\\u0001", "é😀"]'),
    ("02020026000f0a000f1000f6040302810af614271e7fffffffe2329affffffffffffffffffffff", '[1.10, -0.500000000000000000000000000000]'),
    ("0003003b00190001001a0001001b0002000f1d000f27000f3100647464740a08000000000044b2190b08f8f5f34737ffffff0c083f420ffb7ebbb219", '{"d": "2024-01-02", "t": "-12:34:56.789000", "dt": "2024-02-29 23:59:59.999999"}'),
    ("0202004a000f0a000f0e000f0200ff0f3a61616161616161616161616161616161616161616161616161616161616161616161616161616161616161616161616161616161616161616161", '["base64:type15:AP8=", "base64:type15:YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFh\\nYQ=="]'),
    ("02040028000710000714000918000a20007011010090eefeff005ed0b200000000001a711802000000", '[70000, -70000, 3000000000, 9000000000]'),
    ("0202001e000f0a000f14000b08000000fb6e3400000b080000000040060000", '["838:59:59.000000", "100:00:00.000000"]'),
]  # fmt: skip
DOCUMENTS = [bytes.fromhex(raw) for raw, _ in GOLDEN]
TEXTS = [text for _, text in GOLDEN]

# A PARTIAL_UPDATE_ROWS event from MySQL 9.7 on a table (INT, JSON, VARCHAR(10), JSON), two rows.
EVENT = bytes.fromhex(
    "29fb016b27fe5c000068010000180300000000c500000000001100020004ffff0001000000520000000003005100190001001a0001001b000300"
    f"050100021e000c2800616270616402000a0005010005020028{'70' * 40}017808000000020100070005010001030001000000250000000003"
    "242e61030503000006242e625b315d0b0f0a08000000000044b2190103242e6302040101790000000004020000005a00000000030059001900"
    "01001a0001001b0003000f1e000224000c30006162706164f6040201810502000c000501000c0a00017a28"
    f"{'71' * 40}05000000000000040001010002000000250000000003242e61030503000006242e625b315d0b0f0a08000000000044b2190103"
    "242e630204010179030000000502006f4a9cdd"
)
TAIL = 4
NEW_ROWS = [
    [f'{{"a": 3, "b": [1, "2024-01-02"], "c": true, "pad": "{letter * 40}"}}' for letter in "pq"],
    ["[1]", "2"],
]
SPEC = np.zeros((4, k.SPEC_SIZE), dtype=np.int64)
SPEC[0, k.SPEC_WIDTH] = 4
SPEC[1:, k.SPEC_PREFIX] = (4, 1, 4)
JSON_COLUMNS = np.array([0, 1, 0, 1], dtype=np.int64)


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


@contextmanager
def uncompiled() -> Iterator[None]:
    """Runs the kernels of binary JSON as plain Python inside the block."""
    before: list[tuple[Any, str, Any]] = []
    modules = (value_kernels, rows, scalar_kernels, document_kernels, convert, scan, values, memory)
    for module in modules:
        for name, value in list(vars(module).items()):
            if hasattr(value, "py_func") and name != "copy_bytes":
                before.append((module, name, value))
                setattr(module, name, value.py_func)
    assert len(before) > 50
    try:
        with np.errstate(over="ignore"):  # 64-bit numbers without a sign wrap on purpose
            yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def test_golden_documents() -> None:
    assert json_text(binary(*DOCUMENTS)).to_pylist() == TEXTS


def test_uncompiled_documents() -> None:
    with uncompiled():
        assert json_text(binary(*DOCUMENTS, None, b"")).to_pylist() == [*TEXTS, None, "null"]


def test_whole_numbers_of_floating_point_of_mysql_5() -> None:
    numbers = [0.0, -0.0, 1.0, -10.0, 1.5, 100.25, 10.0, 1e15, 1e100, 1.5e-20, 0.1, 2024.0]
    shown = ["0", "-0", "1", "-10", "1.5", "100.25", "10", "1e15", "1e100", "1.5e-20", "0.1", "2024"]
    documents = [b"\x0b" + struct.pack("<d", number) for number in numbers]
    assert json_text_of_mysql_5(binary(*documents, b"\x0c\x031.0", None)).to_pylist() == [*shown, '"1.0"', None]
    assert json_text_of_mysql_5(binary(b"\x04\x01", b"")).to_pylist() == ["true", "null"]


def test_nulls_slices_and_nothing() -> None:
    column = binary(DOCUMENTS[0], None, b"", *DOCUMENTS, None)
    expected = ["null", None, "null", *TEXTS, None]
    for start in range(len(column) + 1):
        for size in (0, 1, 2, len(column)):
            part = json_text(column.slice(start, size))
            part.validate(full=True)
            assert part.type == pa.string()
            assert part.to_pylist() == expected[start : start + size]
    assert json_text(binary(None, None)).to_pylist() == [None, None]
    assert json_text(binary(b"")).to_pylist() == ["null"]


def test_every_byte_is_escaped_as_the_server_does() -> None:
    """Only quotation mark, backslash and control characters are escaped, by a letter if they have one."""
    letters = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
    for byte in range(128):
        shown = letters.get(byte, f"\\u{byte:04x}" if byte < 32 else chr(byte))
        for pad in (b"", b"x" * 60):  # short and long texts are copied in different ways
            text = pad + bytes([byte]) + pad
            assert json_text(binary(b"\x0c" + bytes([len(text)]) + text)).to_pylist() == [
                f'"{pad.decode()}{shown}{pad.decode()}"'
            ]


@pytest.mark.parametrize(
    "value", [0, 1, 9, 10, 10**9, 10**18 - 1, 10**18, 2**63 - 1, 2**63, 10**19 - 1, 10**19, 2**64 - 1]
)
def test_unsigned(value: int) -> None:
    assert json_text(binary(b"\x0a" + struct.pack("<Q", value))).to_pylist() == [str(value)]
    with uncompiled():
        assert json_text(binary(b"\x0a" + struct.pack("<Q", value))).to_pylist() == [str(value)]


def shown_by_server(value: float) -> str:
    """A second implementation of the layout, on Python's digits."""
    mantissa, _, exponent = f"{value!r}".partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = whole + fraction
    point = len(whole) + int(exponent or 0)
    point -= len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    sign = "-" if mantissa.startswith("-") else ""
    if not digits:
        return f"{sign}0.0"
    if point < -14 or (point > 15 and len(digits) <= point):
        return f"{sign}{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"


def test_doubles(seed: int) -> None:
    dice = np.random.default_rng(seed)
    values = np.concatenate(
        [
            dice.integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64),
            np.round(dice.random(10_000) * 10.0 ** dice.integers(-3, 18, 10_000), 2),
            -dice.random(10_000) * 10.0 ** dice.integers(-18, 18, 10_000),
            10.0 ** np.arange(-320, 309),
        ]
    )
    values = values[np.isfinite(values)]
    at, text = double_texts(values)
    raw = text.tobytes()
    assert [raw[at[i] : at[i + 1]].decode() for i in range(len(values))] == [shown_by_server(float(v)) for v in values]
    with uncompiled():
        some_at, some_text = double_texts(values[::100])
    assert [some_text[some_at[i] : some_at[i + 1]].tobytes() for i in range(len(values[::100]))] == [
        raw[at[i] : at[i + 1]] for i in range(0, len(values), 100)
    ]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_endless_doubles(value: float) -> None:
    with pytest.raises(BadValueError, match="a server never writes"):
        json_text(binary(b"\x0b" + struct.pack("<d", value)))


# ---------------------------------------------------------------- damage


def outcome(raw: bytes, around: bytes) -> str:
    """The text of a document between other bytes, or the error."""
    column = binary(around, None, raw, around)
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, column.buffers()[1], column.buffers()[2]], offset=2)
    assert whole.to_pylist() == [raw]
    try:
        text = json_text(whole)
    except BadValueError as error:
        return str(error)
    text.validate(full=True)
    return str(text.to_pylist()[0])


def damaged(seed: int, rounds: int) -> Iterator[bytes]:
    dice = random.Random(seed)
    long_ones = [raw for raw in DOCUMENTS if len(raw) > 20]
    for raw in DOCUMENTS:
        for size in range(1, len(raw)):
            yield raw[:size]
    for _ in range(rounds):
        changed = bytearray(dice.choice(long_ones))
        for _ in range(dice.choice((1, 1, 2, 5))):
            changed[dice.randrange(len(changed))] = dice.choice(
                (0, 1, 2, 3, 4, 12, 15, 127, 128, 255, dice.randrange(256))
            )
        yield bytes(changed)


def test_damage_never_reads_outside(seed: int) -> None:
    """The bytes around a document have no effect, whatever the document holds."""
    sound = wrong = 0
    for raw in damaged(seed, 3000):
        first = outcome(raw, b"\x00" * 400)
        if raw[0] != 0xFF:
            assert first == outcome(raw, b"\xff" * 400)
        refused = first.startswith("row 0: ")
        sound += not refused
        wrong += refused
    assert sound > 100
    assert wrong > 1000


def test_damage_uncompiled(seed: int) -> None:
    cases = list(damaged(seed, 150))
    compiled = [outcome(raw, b"") for raw in cases]
    with uncompiled():
        assert [outcome(raw, b"") for raw in cases] == compiled


def array_of(*values: bytes) -> bytes:
    """A small array of containers, type byte included."""
    head = 4 + 3 * len(values)
    entries, body = b"", b""
    for value in values:
        entries += value[:1] + struct.pack("<H", head + len(body))
        body += value[1:]
    return b"\x02" + struct.pack("<HH", len(values), head + len(body)) + entries + body


def test_depth() -> None:
    raw = b"\x02" + struct.pack("<HH", 0, 4)
    for depth in range(2, 103):
        raw = array_of(raw)
        if depth <= 100:
            assert json_text(binary(raw)).to_pylist() == ["[" * depth + "]" * depth]
        else:
            with pytest.raises(BadValueError, match="more than 100 deep"):
                json_text(binary(raw))


def test_no_blow_up() -> None:
    """Arrays whose elements are all the same array would have 30 ** 60 elements."""
    levels, width = 60, 30
    size = 4 + 3 * width
    raw = b"".join(
        struct.pack("<HH", width, size * (levels - i) + 4) + (b"\x02" + struct.pack("<H", size)) * width
        for i in range(levels)
    )
    begin = time.monotonic()
    with pytest.raises(BadValueError, match="same bytes"):
        json_text(binary(b"\x02" + raw + struct.pack("<HH", 0, 4)))
    assert time.monotonic() - begin < 60


def test_offsets_point_forward() -> None:
    """An array that contains itself, and one that contains its own header."""
    for where in (0, 4, 6):
        with pytest.raises(BadValueError, match="beyond the end"):
            json_text(binary(b"\x02" + struct.pack("<HH", 1, 20) + b"\x02" + struct.pack("<H", where) + bytes(13)))


def test_not_utf8() -> None:
    with pytest.raises(BadValueError, match="UTF-8") as raised:
        json_text(binary(DOCUMENTS[0], b"\x0c\x02\xc3\x28"))
    assert raised.value.row == 1


# ---------------------------------------------------------------- partial updates


def event_arrays(event: bytes) -> EventArrays:
    zero = np.zeros(1, dtype=np.int64)
    length = np.array([len(event)], dtype=np.int64)
    return EventArrays(np.frombuffer(event, dtype=np.uint8), zero, length, np.array([39]), zero, TAIL)


def expanded(event: bytes) -> list[list[bytes]]:
    """The two JSON columns of the new rows of an event like the golden one."""
    buf, offset, length = expand_partial(event_arrays(event), SPEC, JSON_COLUMNS)
    assert offset.tolist() == [0]
    new = buf[: length[0]].tobytes()
    assert new[:4] + new[5:9] == event[:4] + event[5:9]
    assert new[4] == 31 and int.from_bytes(new[9:13], "little") == len(new) and new[-TAIL:] == bytes(TAIL)
    at, values, row = 29 + 3, [], 0
    while at < len(new) - TAIL:
        nulls, at = new[at], at + 1
        pieces = []
        for column, prefix in enumerate((0, 4, 1, 4)):
            if nulls >> column & 1:
                continue
            width = int.from_bytes(new[at : at + prefix], "little") if prefix else 4
            if prefix == 4:
                pieces.append(new[at + prefix : at + prefix + width])
            at += prefix + width
        if row % 2:
            values.append(pieces)
        row += 1
    assert at == len(new) - TAIL
    return values


def columns_of(values: list[list[bytes]]) -> list[list[Any]]:
    return [json_text(binary(*column)).to_pylist() for column in zip(*values, strict=True)]


def test_partial_event() -> None:
    values = expanded(EVENT)
    assert values[0][0][0] == 0xFF
    assert columns_of(values) == NEW_ROWS
    with uncompiled():
        assert expanded(EVENT) == values
        assert columns_of(values) == NEW_ROWS
    mixed = binary(None, values[0][0], DOCUMENTS[1], b"", values[1][0])
    assert json_text(mixed).to_pylist() == [None, NEW_ROWS[0][0], "true", "null", NEW_ROWS[0][1]]


KNOWN_CODES = (k.BAD_HEADER, k.WRONG_COLUMNS, k.PART_IMAGE, k.CUT, k.BAD_VALUE)


def damage_event(seed: int, rounds: int) -> tuple[int, int]:
    """Changes random bytes of the golden event. Returns how often it was refused and how often it gave rows."""
    dice = random.Random(seed)
    refused = accepted = 0
    for _ in range(rounds):
        raw = bytearray(EVENT)
        if dice.random() < 0.3:
            del raw[dice.randrange(27, len(raw)) :]
        else:
            for _ in range(dice.choice((1, 1, 3))):
                raw[dice.randrange(29, len(raw))] = dice.choice(
                    (0, 1, 2, 3, 127, 250, 251, 252, 254, 255, dice.randrange(256))
                )
        try:
            expand_partial(event_arrays(bytes(raw)), SPEC, JSON_COLUMNS)
            values = expanded(bytes(raw))
            for value in (value for row in values for value in row):
                json_text(binary(value))
            accepted += 1
        except PartialFault as fault:
            refused += fault.code in KNOWN_CODES and 0 <= fault.pos <= len(raw)
        except BadValueError as error:
            refused += error.row == 0
    return refused, accepted


def test_damaged_partial_events(seed: int) -> None:
    refused, accepted = damage_event(seed, 1500)
    assert refused + accepted == 1500
    assert refused > 300
    assert accepted > 100


def diffs(*parts: tuple[int, str, bytes | None]) -> bytes:
    """A partial value over the golden document with all kinds of parts."""
    before = DOCUMENTS[14]
    raw = b"\xff" + struct.pack("<I", len(before)) + before
    for operation, path, value in parts:
        raw += bytes([operation, len(path)]) + path.encode()
        if value is not None:
            raw += bytes([len(value)]) + value
    return raw


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], '{"": {"q": "x"}, "a": 1, "b": [true, null, -1.5]}'),
        ([(0, "$.a", b"\x04\x01"), (2, "$.b[0]", None), (1, "$.b[9]", b"\x05\x07\x00")], '{"": {"q": "x"}, "a": true, "b": [null, -1.5, 7]}'),
        ([(1, '$."a.b[1]\\""', b"\x04\x00"), (1, "$.B", b"\x0c\x01z"), (2, '$.""', None)], '{"B": "z", "a": 1, "b": [true, null, -1.5], "a.b[1]\\"": null}'),
        ([(1, "$.b[1]", DOCUMENTS[16]), (0, "$.b[last]", b"\x0b" + struct.pack("<d", 1e20)), (1, "$.b[1][last-1]", b"\x00\x00\x00\x04\x00")], '{"": {"q": "x"}, "a": 1, "b": [true, [{}, 1.10, -0.500000000000000000000000000000], null, 1e20]}'),
    ],
)  # fmt: skip
def test_diffs(parts: list[tuple[int, str, bytes | None]], text: str) -> None:
    assert json_text(binary(diffs(*parts))).to_pylist() == [text]


@pytest.mark.parametrize(
    "part",
    [(0, "$.c", b"\x04\x01"), (2, "$.b[3]", None), (1, "$.a", b"\x04\x01"), (0, "$", b"\x04\x01"), (0, "$.a[0]", b"\x04\x01"),
     (1, "$[0]", b"\x04\x01"), (2, "$.a.b", None), (2, "$.*", None), (2, "$[*]", None), (2, "a", None), (2, "$**.a", None),
     (3, "$.a", None), (0, "$.a", b""), (0, "$.a", b"\xff\0\0\0\0"), (0, "$.a", b"\x20"), (2, "$.b[last-9]", None), (1, '$."\\ud800"', b"\x04\x00")],
)  # fmt: skip
def test_impossible_diffs(part: tuple[int, str, bytes | None]) -> None:
    with pytest.raises(BadValueError, match="JSON document") as raised:
        json_text(binary(DOCUMENTS[0], None, diffs(part)))
    assert raised.value.row == 2


def test_too_deep_after_an_update() -> None:
    deep = b"\x02" + struct.pack("<HH", 0, 4)
    for _ in range(98):
        deep = array_of(deep)
    value = b"\xfc" + struct.pack("<H", len(deep)) + deep
    raw = diffs() + b"\x00\x03$.a" + value
    assert json_text(binary(raw)).to_pylist()[0].count("[") == 100
    with pytest.raises(BadValueError, match="more than 100 deep"):
        json_text(binary(diffs() + b"\x00\x06$.b[0]" + value))


# ---------------------------------------------------------------- wide decimals


def pack_decimal(unscaled: int, precision: int, scale: int) -> bytes:
    """A decimal in MySQL's form, from its description."""
    digits = f"{abs(unscaled):0{precision}d}"
    whole, fraction = digits[: precision - scale], digits[precision - scale :]
    groups = [whole[: len(whole) % 9], *(whole[i : i + 9] for i in range(len(whole) % 9, len(whole), 9))]
    groups += [fraction[i : i + 9] for i in range(0, len(fraction), 9)]
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    raw = bytearray(b"".join(int(g).to_bytes(sizes[len(g)], "big") for g in groups if g))
    raw[0] ^= 0x80
    return bytes(b ^ 0xFF for b in raw) if unscaled < 0 else bytes(raw)


@pytest.mark.parametrize(
    ("precision", "scale"), [(39, 0), (39, 38), (45, 9), (65, 0), (65, 30), (65, 38), (30, 30), (1, 1), (1, 0)]
)
def test_wide_decimals(seed: int, precision: int, scale: int) -> None:
    dice = random.Random(f"{seed}{precision}{scale}")
    numbers = [0, 1, -1, 10**precision - 1, 1 - 10**precision]
    numbers += [dice.choice((-1, 1)) * (dice.getrandbits(217) % 10 ** dice.randint(1, precision)) for _ in range(40)]
    expected: list[str | None] = [None]
    for number in numbers:
        digits = f"{abs(number):0{scale + 1}d}"
        whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
        expected.append(f"{'-' if number < 0 else ''}{whole}{'.' if scale else ''}{fraction}")
    raw = binary(None, *(pack_decimal(number, precision, scale) for number in numbers))
    convert_it = decimal_text(precision, scale)
    assert convert_it(raw).to_pylist() == expected
    assert convert_it(raw.slice(3, 5)).to_pylist() == expected[3:8]
    with uncompiled():
        assert convert_it(raw).to_pylist() == expected


@pytest.mark.parametrize("raw", [b"", b"\x80", bytes(18), b"\xff" * 17])
def test_no_decimal(raw: bytes) -> None:
    """Values of another size than the 18 bytes of a DECIMAL(39,0), or with impossible digits, are refused."""
    with pytest.raises(BadValueError, match="not a DECIMAL") as raised:
        decimal_text(39, 0)(binary(pack_decimal(5, 39, 0), raw))
    assert raised.value.row == 1
