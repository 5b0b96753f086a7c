"""Texts in the servers' character sets: compiled and uncompiled, in columns and by themselves.

What the characters are is asked from the servers in ``tests/servers/decode/test_charsets.py``.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc.base.errors import UnsupportedError
from cdc.decode.charsets import convert, kernels
from cdc.decode.charsets.convert import decode_text, single_entries, sound_utf8, text_conversion, utf8_text
from cdc.decode.charsets.tables import MULTI_BYTE, SINGLE_BYTE, characters, charset_by_name, tables

WIDE = {"ucs2": kernels.UCS2, "utf16": kernels.UTF16, "utf16le": kernels.UTF16LE, "utf32": kernels.UTF32}
CHARSETS = sorted(SINGLE_BYTE | MULTI_BYTE | WIDE.keys())
UNTOUCHED = 0xAA
DIGESTS = {
    "armscii8": 0x5D747105,
    "ascii": 0x595BAB8D,
    "cp1250": 0xFF79F064,
    "cp1251": 0xB65226FB,
    "cp1256": 0x2B463039,
    "cp1257": 0x9AAFE8AA,
    "cp850": 0x3C57DB7E,
    "cp852": 0xE98B5CDE,
    "cp866": 0x61149CE1,
    "dec8": 0x2453A83F,
    "geostd8": 0xD6F6304D,
    "greek": 0x29732872,
    "hebrew": 0x45161F41,
    "hp8": 0x30781C16,
    "keybcs2": 0xB2CD760F,
    "koi8r": 0x4C6B86EB,
    "koi8u": 0x5A38B755,
    "latin1": 0x040EC49F,
    "latin2": 0xEC22F3A0,
    "latin5": 0xC188A953,
    "latin7": 0xFE9A6B74,
    "macce": 0x4778E750,
    "macroman": 0xE21E6838,
    "swe7": 0xB60E6A1E,
    "tis620": 0x022A3D12,
    "big5": 0x71FB510A,
    "cp932": 0x9513D902,
    "eucjpms": 0x603D1D99,
    "euckr": 0xAAF977B1,
    "gb18030": 0xE6223310,
    "gb2312": 0x201DD2B2,
    "gbk": 0xA977F2D1,
    "sjis": 0xD20D3F5A,
    "ujis": 0x7644F5C5,
}


def texts(seed: int, count: int = 300) -> list[bytes]:
    """Random texts, mostly of high bytes; the ends of texts cut sequences, which the next text would complete."""
    rng = random.Random(seed)
    some = (0x00, 0x30, 0x39, 0x41, 0x81, 0x84, 0x8E, 0x8F, 0x90, 0xA1, 0xD8, 0xDC, 0xE3, 0xFE)
    made = []
    for _ in range(count):
        size = rng.randrange(12)
        low = rng.choice((0, 0x80, 0xA1))
        made.append(bytes(rng.choice(some) if rng.random() < 0.5 else rng.randrange(low, 256) for _ in range(size)))
    return made


def run(charset: str, data: bytes, offsets: list[int], compiled: bool) -> tuple[bytes, list[int]]:
    """Calls the charset's kernel with exactly the room that it needs, and checks that it writes only the slack behind."""
    size = offsets[-1] - offsets[0]
    out = np.full(kernels.GROWTH * size + kernels.SLACK, UNTOUCHED, dtype=np.uint8)
    starts = np.zeros(len(offsets), dtype=np.int32)
    kernel: Any
    middle: tuple[Any, ...]
    kernel, middle = kernels.convert_wide, (WIDE.get(charset),)
    if charset in SINGLE_BYTE:
        kernel, middle = kernels.convert_single, (single_entries(charset),)
    elif charset in MULTI_BYTE:
        made = tables(charset)
        kernel, middle = kernels.convert_multi, (made.pairs, made.triples, made.quads)
    call: Callable[..., int] = kernel if compiled else kernel.py_func
    total = int(call(np.frombuffer(data, dtype=np.uint8), np.array(offsets, dtype=np.int32), *middle, starts, out))
    assert (out[total + kernels.SLACK :] == UNTOUCHED).all()
    return out[:total].tobytes(), starts.tolist()


@pytest.mark.parametrize("charset", CHARSETS)
def test_compiled_uncompiled_and_by_themselves(charset: str, seed: int) -> None:
    made = texts(seed)
    data = b"\x81\x41" + b"".join(made) + b"\xa1\xa1\xa1"
    offsets = [2]
    for text in made:
        offsets.append(offsets[-1] + len(text))
    compiled, starts = run(charset, data, offsets, compiled=True)
    assert (compiled, starts) == run(charset, data, offsets, compiled=False)
    assert [compiled[a:b].decode() for a, b in pairwise(starts)] == [decode_text(text, charset) for text in made]
    # Bytes at the very end of an array: nothing is there to be read beyond.
    assert run(charset, data[: offsets[-1]], offsets, compiled=False)[0] == compiled


@pytest.mark.parametrize("charset", CHARSETS)
def test_columns(charset: str, seed: int) -> None:
    rng = random.Random(seed)
    values = [None if rng.random() < 0.2 else text for text in texts(seed, 100)]
    array = pa.array(values, pa.binary())
    conversion = text_conversion(charset)
    assert conversion is not None
    for first, last in ((0, 100), (3, 90), (8, 100), (17, 18), (50, 50), (99, 100)):
        made = conversion(array[first:last])
        made.validate(full=True)
        expected = [None if value is None else decode_text(value, charset) for value in values[first:last]]
        assert made.type == pa.string() and made.to_pylist() == expected
        assert made.null_count == expected.count(None)
    assert conversion(pa.array([], pa.binary())).to_pylist() == []
    assert conversion(pa.nulls(9, pa.binary())).to_pylist() == [None] * 9
    assert conversion(pa.array([b"", None, b""], pa.binary())).to_pylist() == ["", None, ""]
    assert conversion(pa.array([b"\xff"] * 20, pa.binary())[5:5]).to_pylist() == []


@pytest.mark.parametrize("charset", CHARSETS)
def test_ascii(charset: str) -> None:
    """Texts in ASCII are copied unchanged in the character sets that contain it."""
    array = pa.array([b"@AZ~", None, b"`{}", b"", b"0123"], pa.binary())
    conversion = text_conversion(charset)
    assert conversion is not None
    expected = [None if value is None else decode_text(value, charset) for value in array.to_pylist()]
    assert conversion(array).to_pylist() == expected
    assert conversion(array[2:]).to_pylist() == expected[2:]
    assert (expected == ["@AZ~", None, "`{}", "", "0123"]) == (charset not in {"swe7", *WIDE})


@pytest.mark.parametrize(
    ("charset", "raw", "text"),
    [
        ("ascii", "418042", "A?B"),
        ("latin1", "80819de9", "€\x81\x9dé"),
        ("swe7", "40415b7f", "ÉAÄ?"),
        ("gbk", "8141fea0ff41c4e3ba", "丄??A你?"),
        ("big5", "a15af9d6f9fe80", "\ufffd碁??"),
        ("sjis", "815f5cb183", "\\\\ｱ?"),
        ("cp932", "815ffa40f040", "＼ⅰ\ue000"),
        ("ujis", "a1c08fa1a18fa1418ea1fefe8ff5a18f", "\\???A｡\ue3ab\ue3ac?"),
        ("eucjpms", "a1c1ada18ff3f38ff5a0", "～①ⅰ???"),
        ("euckr", "8141b0a1c9a1", "갂가?"),
        ("gb2312", "b0a1aaa1", "啊?"),
        ("gb18030", "a8bc8135f4378431a4398431a53090308130e3329a35e3329a36813081", "ḿ\ue7c7\uffff?\U00010000\U0010ffff??0?"),
        ("ucs2", "0041d83dde0000", "A???"),
        ("utf16", "0041d83dde000042d8000041dc00d8", "A😀B?\0䇜Ø"),
        ("utf16le", "41003dd800de00d84100", "A😀?䇘?"),
        ("utf32", "000000410001f6000000d800001100000000", "A😀???\0"),
        ("utf8mb4", "f09f9880", "😀"),
        ("binary", "c3a9", "é"),
    ],
)  # fmt: skip
def test_as_the_servers_show_it(charset: str, raw: str, text: str) -> None:
    assert decode_text(bytes.fromhex(raw), charset) == text
    conversion = text_conversion(charset) if charset != "binary" else None
    if conversion is not None:
        assert conversion(pa.array([bytes.fromhex(raw)], pa.binary())).to_pylist() == [text]


def test_tables_are_those_compared_with_the_servers() -> None:
    """Most tables are made from Python's codecs, which may change with the Python version."""
    multi = {name: tables(name) for name in sorted(MULTI_BYTE)}
    digests = {name: zlib.crc32("".join(characters(name)).encode()) for name in sorted(SINGLE_BYTE)}
    for name, made in multi.items():
        digests[name] = zlib.crc32(
            b"".join(part.astype("<u4").tobytes() for part in (made.pairs, made.triples, made.quads))
        )
    assert digests == DIGESTS


def test_no_character_grows_more_than_it_may() -> None:
    for charset in MULTI_BYTE:
        made = tables(charset)
        entries = np.concatenate((made.pairs, made.triples))
        entries = entries[entries != 0]
        assert (entries >> 24 & 15 <= kernels.GROWTH * (entries >> 28)).all()
    assert all(len(character.encode()) <= kernels.GROWTH for name in SINGLE_BYTE for character in characters(name))


@pytest.mark.parametrize("charset", ["latin1", "gbk", "utf16"])
def test_more_than_an_array_holds(charset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "MAX_TEXT_BYTES", 5)
    conversion = text_conversion(charset)
    assert conversion is not None
    fits = {"latin1": b"\xe9\xe9a", "gbk": b"\xc4\xe3ab", "utf16": "éab".encode("utf-16-be")}[charset]
    conversion(pa.array([fits], pa.binary()))
    with pytest.raises(UnsupportedError, match=rf"{charset} have [6-9] bytes"):
        conversion(pa.array([fits, fits[:2]], pa.binary()))


def test_which_are_converted() -> None:
    assert text_conversion("utf8mb4") is None and text_conversion("utf8mb3") is None
    for wrong in ("utf8", "ebcdic", "binary", "UTF16"):
        with pytest.raises(LookupError):
            text_conversion(wrong)
    for unknown in ("ebcdic", None):
        with pytest.raises(LookupError):
            decode_text(b"a", unknown)
    conversion = text_conversion("latin1")
    assert conversion is not None
    with pytest.raises(TypeError, match="large_binary"):
        conversion(pa.array([b"a"], pa.large_binary()))


def test_names() -> None:
    assert charset_by_name("utf8") == charset_by_name("UTF8MB3") == "utf8mb3"
    assert {charset_by_name(name.upper()) for name in CHARSETS} == set(CHARSETS)
    assert charset_by_name("ebcdic") is None


def test_warm_up() -> None:
    convert.warm_up()
    for kernel in (kernels.convert_single, kernels.convert_multi, kernels.convert_wide):
        compiled: Any = kernel
        assert compiled.signatures


# ---------------------------------------------------------------- bytes that are not UTF-8, which some servers store in columns of UTF-8

STORED = [b"abc", None, b"a\xed\xa0\x80b", "é😀".encode(), b"\xff", b""]
SHOWN = ["abc", None, "a???b", "é😀", "?", ""]


def test_stray_bytes_become_question_marks() -> None:
    raw = pa.array(STORED, pa.binary())
    assert utf8_text(raw).to_pylist() == SHOWN
    as_it_came = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    assert sound_utf8(as_it_came).to_pylist() == SHOWN
    assert utf8_text(raw.slice(2, 2)).to_pylist() == SHOWN[2:4]


def test_sound_texts_are_not_copied() -> None:
    texts = pa.array(["abc", None, "é"])
    assert sound_utf8(texts) is texts
    assert utf8_text(pa.array([b"abc", None], pa.binary())).to_pylist() == ["abc", None]
