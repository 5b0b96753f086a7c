"""The files of cursors: their format, torn writes, and what a program finds after a kill."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from cdc.base.errors import DamagedError, StoreClosedError, UsageError, VersionError
from cdc.event_store.memory_meta import MemoryMeta
from cdc.meta import HistoryMark
from cdc.meta.file import FileMeta
from cdc.streaming.cursors import RECORD_SIZE, Cursors, decode, encode

GOLDEN = bytes.fromhex("54504355010000000700000000000000d202964900000000000000000065dfb1")


def test_the_format() -> None:
    assert encode(7, 1234567890) == GOLDEN
    record = encode(7, 1234567890)
    assert len(record) == RECORD_SIZE
    assert decode(record, "here") == (7, 1234567890)
    assert decode(encode(8, 20) + encode(7, 10), "here") == (8, 20)
    assert decode(bytes(RECORD_SIZE) + encode(1, 10), "here") == (1, 10)
    assert decode(b"", "here") == (0, 0)


@pytest.mark.parametrize("at", range(RECORD_SIZE))
def test_a_torn_write_leaves_the_one_before(at: int) -> None:
    older, newer = encode(7, 10), encode(8, 20)
    torn = newer[:at] + encode(6, 5)[at:]
    assert decode(torn + older, "here") in ((7, 10), (8, 20))
    assert decode(newer[:at] + bytes(RECORD_SIZE - at) + older, "here") in ((7, 10), (8, 20))


def test_damage_and_newer_versions_are_refused() -> None:
    with pytest.raises(DamagedError, match=r"here: has no whole record\. Remove it"):
        decode(b"x" * 64, "here")
    newer = bytearray(encode(1, 1))
    newer[4] = 2
    newer[28:] = zlib.crc32(newer[:28]).to_bytes(4, "little")
    with pytest.raises(VersionError, match="version 2"):
        decode(bytes(newer), "here")


def test_a_cursor_is_there_for_the_next_program_at_once(tmp_path: Path) -> None:
    meta = MemoryMeta("stream")
    killed = Cursors(tmp_path, meta, ("a", "b"))
    for seq in range(1, 6):
        killed.update_cursor("a", seq * 10)
    reopened = Cursors(tmp_path, MemoryMeta("stream"), ("a", "b", "c"))
    assert [reopened.cursor(name) for name in "abc"] == [50, 0, 0]
    reopened.close()
    reopened.close()
    with pytest.raises(StoreClosedError, match="reader 'a': the stream is closed"):
        reopened.update_cursor("a", 60)
    killed.close()


def test_the_meta_gets_cursors_and_marks_and_is_asked_for_them(tmp_path: Path) -> None:
    meta = FileMeta(tmp_path / "meta", "stream")
    cursors = Cursors(tmp_path / "cursors", meta, ("a",))
    cursors.update_cursor("a", 10)
    cursors.note("a", HistoryMark(seq=10, gtid="0-1-1"))
    assert meta.cursor("a") == 0
    cursors.close()
    subscription = FileMeta(tmp_path / "meta", "stream").read().subscription("a")
    assert subscription.acked_seq == 10 and subscription.mark == HistoryMark(seq=10, gtid="0-1-1")
    (tmp_path / "cursors" / "a.cursor").unlink()
    cursors = Cursors(tmp_path / "cursors", meta, ("a",))
    assert cursors.cursor("a") == 10
    cursors.remove("a")
    assert not (tmp_path / "cursors" / "a.cursor").exists()
    cursors.close()


def test_a_name_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'\.\./a' cannot be the name"):
        Cursors(tmp_path, MemoryMeta("stream"), ("../a",))
