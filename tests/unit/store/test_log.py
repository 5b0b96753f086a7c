"""The relay log of capture: segments, the lock, and a failed flush."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.base.errors import LeaseHeldError, StorageError
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import list_segments
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler
from tests.support.unit_store import all_seqs


@pytest.mark.rule("rocketmq-log-3")
def test_segments_roll_at_transaction_ends(tmp_path: Path) -> None:
    log = BinlogBuilder()
    for _ in range(300):
        log.transaction("shop", "orders", list(range(200)))
    filler = Filler(tmp_path, segment_bytes=65536)
    filler.put(log)
    filler.close()
    segments = list_segments(tmp_path)
    assert len(segments) > 3
    assert sum(len(read_entries(s)) for s in segments) == 300
    assert all(s.stat().st_size < 65536 + 2000 for s in segments)
    selection = StoreReader(tmp_path).select(0, Limits())
    assert selection is not None and selection.transactions == 300 and len(selection.ranges) == len(segments)


def test_go_on_in_the_same_segment(tmp_path: Path) -> None:
    log = BinlogBuilder()
    for n in range(2):
        log.transaction("shop", "orders", [n])
        filler = Filler(tmp_path)
        filler.put(log)
        filler.close()
    assert len(list_segments(tmp_path)) == 1
    assert len(all_seqs(tmp_path)) == 2


def test_an_empty_segment_is_gone_on_with(tmp_path: Path) -> None:
    log = BinlogBuilder()
    filler = Filler(tmp_path)
    filler.put(log)
    filler.close()
    (segment,) = list_segments(tmp_path)
    size = segment.stat().st_size
    filler = Filler(tmp_path)
    assert segment.stat().st_size == size
    log.transaction("shop", "orders", [1])
    filler.put(log)
    filler.close()
    assert len(all_seqs(tmp_path)) == 1


@pytest.mark.rule("canal-server-20")
def test_one_writer(tmp_path: Path) -> None:
    filler = Filler(tmp_path)
    with pytest.raises(LeaseHeldError, match="another capture"):
        Filler(tmp_path)
    filler.close()


def test_a_failed_flush_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    filler = Filler(tmp_path)
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(StorageError, match="Input/output error"):
        filler.put(log)
    monkeypatch.undo()
    with pytest.raises(StorageError):
        filler.store.flush()
    filler.close()
    assert all_seqs(tmp_path) == []
