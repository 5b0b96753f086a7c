"""The stream of a master: order, retention and damage."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.base.errors import (
    DamagedError,
)
from cdc.binlog.entry import ENTRY_SIZE, HEADER_SIZE
from cdc.copies.standby import stream as stream_module
from cdc.copies.standby.protocol import (
    FrameKind,
    Have,
)
from cdc.copies.standby.stream import Stream
from cdc.disk.durable import replace_file
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile, make_header
from cdc.store.formats.missing import Removed, write_removed
from cdc.store.formats.segment_header import segment_header_size
from cdc.store.retention.cleaner import remove_until
from cdc.testing.transactions import make_transactions
from tests.support.standby import digests
from tests.support.unit_standby import (
    caught_up,
    follow,
    open_log,
    pair,
    same,
    serve,
)


def test_a_standby_whose_newest_segment_is_empty_continues(stack: ExitStack, tmp_path: Path) -> None:
    """The standby was killed between the head of a segment and its first entry, and reports the segment before."""
    transactions = make_transactions(600)
    log, master, standby = pair(stack, tmp_path, transactions)
    standby.close()
    before, last = layout.list_segments(tmp_path / "s")[-2:]
    size = segment_header_size(last)
    last_seq = int(IndexFile(before).entries["seq"][-1])
    have = [Have(segment=last.name, size_bytes=size, entries=0)]
    assert Stream(tmp_path / "m", lambda *_: None, have, [], {}).last_seq == last_seq
    layout.index_path(last).write_bytes(make_header())
    os.truncate(last, size)
    (tmp_path / "s" / "checkpoint").unlink()
    second_follower = follow(stack, tmp_path / "s", master.address)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    assert second_follower.error is None


def test_segments_before_a_gap_are_forgotten_first(stack: ExitStack, tmp_path: Path) -> None:
    """Otherwise a reader of the standby's store would skip the gap without an error."""
    transactions = make_transactions(1200)
    log = open_log(stack, tmp_path / "m")
    log.put(transactions[:500])
    sent: list[tuple[FrameKind, bytes]] = []

    def send(kind: FrameKind, *parts: bytes) -> None:
        sent.append((kind, b"".join(parts)))

    stream = Stream(tmp_path / "m", send, [], [], {})
    stack.callback(stream.close)
    while stream.advance():
        pass
    before = {payload for kind, payload in sent if kind is FrameKind.SEGMENT}
    log.put(transactions[500:])
    remove_until(tmp_path / "m", transactions[1100].seq)
    sent.clear()
    while stream.advance():
        pass
    kinds = [kind for kind, _ in sent]
    behind = kinds.index(FrameKind.SEGMENT)
    forgotten = {payload.rpartition(b"/")[2] for kind, payload in sent[:behind] if kind is FrameKind.FORGET}
    assert before <= forgotten
    mark = next(n for n, (kind, payload) in enumerate(sent) if kind is FrameKind.FILE and b"removed.json" in payload)
    assert mark < kinds.index(FrameKind.FORGET)


def test_files_that_vanish_one_by_one_are_not_forgotten(stack: ExitStack, tmp_path: Path) -> None:
    """A later connection of the same master does not take them for files of another store either."""
    log = open_log(stack, tmp_path / "m")
    log.put(make_transactions(10))
    replace_file(tmp_path / "m" / "schemas" / "7.json", b'{"version": 1}')
    sent: list[tuple[FrameKind, bytes]] = []
    seen: set[str] = set()

    def stream(theirs: dict[str, int]) -> Stream:
        made = Stream(
            tmp_path / "m",
            lambda kind, *parts: sent.append((kind, b"".join(parts))),
            [],
            [],
            theirs,
            seen=seen,
        )
        stack.callback(made.close)
        return made

    first = stream({"schemas/8.json": 1})
    first.tidy()
    assert (FrameKind.FORGET, b"schemas/8.json") in sent  # of another store
    sent.clear()
    (tmp_path / "m" / "schemas").rename(tmp_path / "schemas")
    first.tidy()
    (tmp_path / "m" / "tables.json").rename(tmp_path / "tables.json")
    first.tidy()
    stream({"schemas/7.json": 1}).tidy()
    assert FrameKind.FORGET not in {kind for kind, _ in sent}
    (tmp_path / "tables.json").rename(tmp_path / "m" / "tables.json")


@pytest.mark.parametrize("first", ["segments", "schemas", "store.json", "tables.json"])
def test_the_copy_survives_when_the_master_loses_its_store(stack: ExitStack, tmp_path: Path, first: str) -> None:
    """The master's disk is unmounted, or its folder is deleted, in any order."""
    transactions = make_transactions(600)
    log = open_log(stack, tmp_path / "m")
    replace_file(tmp_path / "m" / "schemas" / "7.json", b'{"version": 1}')
    master = serve(stack, log)
    standby = follow(stack, tmp_path / "s", master.address)
    log.put(transactions)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    before = digests(tmp_path / "s")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for name in (first, *(set(os.listdir(tmp_path / "m")) - {first})):
        (tmp_path / "m" / name).rename(hidden / name)
        time.sleep(0.4 if name == first else 0.0)  # some heartbeats
    time.sleep(0.4)
    assert digests(tmp_path / "s") == before
    standby.close()
    for name in os.listdir(hidden):  # so that the log can be closed
        if not (tmp_path / "m" / name).exists():
            (hidden / name).rename(tmp_path / "m" / name)
    assert digests(tmp_path / "s") == before


def test_a_forgotten_segment_is_not_continued(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention marks the segment while half of it was sent; its files are removed a moment later."""
    monkeypatch.setattr(stream_module, "ENTRIES_AT_ONCE", 2)
    log = open_log(stack, tmp_path / "m")
    log.put(make_transactions(600))
    first, second = (segment.name.encode() for segment in layout.list_segments(tmp_path / "m")[:2])
    sent: list[tuple[FrameKind, bytes]] = []
    stream = Stream(tmp_path / "m", lambda kind, *parts: sent.append((kind, b"".join(parts))), [], [], {})
    stack.callback(stream.close)
    assert stream.advance()
    assert (FrameKind.SEGMENT, first) in sent
    last_seq = int(IndexFile(layout.list_segments(tmp_path / "m")[0]).entries["seq"][-1])
    write_removed(tmp_path / "m", Removed(last_seq, 1, (first.decode(),)))
    stream.tidy()
    assert sent.pop() == (FrameKind.FORGET, b"segments/" + first)
    sent.clear()
    assert stream.advance()
    assert sent[0] == (FrameKind.SEGMENT, second)


def test_a_damaged_last_entry_is_an_error(stack: ExitStack, tmp_path: Path) -> None:
    """In the newest segment it may be an entry that is being written; in an earlier one it is damage."""
    log = open_log(stack, tmp_path / "m")
    log.put(make_transactions(900))
    index = layout.index_path(layout.list_segments(tmp_path / "m")[0])
    data = bytearray(index.read_bytes())
    data[-20] ^= 1
    index.write_bytes(data)
    stream = Stream(tmp_path / "m", lambda *_: None, [], [], {})
    stack.callback(stream.close)
    number = (len(data) - HEADER_SIZE) // ENTRY_SIZE - 1

    def send_all() -> None:
        while stream.advance():
            pass

    with pytest.raises(DamagedError, match=f"entry {number} has a wrong checksum"):
        send_all()
