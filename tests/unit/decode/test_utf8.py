"""Bytes that are no UTF-8, which some servers keep in columns of UTF-8."""

from __future__ import annotations

import pyarrow as pa

from cdc.decode.charsets.convert import sound_utf8, utf8_text

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
