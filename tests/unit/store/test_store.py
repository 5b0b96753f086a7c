"""The relay log: selection, limits, segments; and recovery after every kind of tail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cdc.errors import DamagedError, LeaseHeldError, StorageError, VersionError
from cdc.positions import BinlogPosition
from cdc.store.formats.index import IndexFile, read_entries
from cdc.store.formats.layout import index_path, list_segments
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler
from tests.support.unit_store import fill, forget_checkpoint, reopen, seqs


def test_select_everything(tmp_path: Path) -> None:
    log = fill(tmp_path)
    found = StoreReader(tmp_path).select(0, Limits())
    assert found is not None
    assert (found.transactions, found.row_events, found.ddl) == (10, 10, False)
    assert found.tables == ("shop.items", "shop.orders")
    assert found.last.position == BinlogPosition("binlog.000001", log.pos)
    assert found.last.gtid == "01010101-0101-0101-0101-010101010101:10"
    (part,) = found.ranges
    with open(part.path, "rb") as file:
        file.seek(part.offset)
        assert file.read(part.length) == b"".join(log.events[1:])
    assert found.bytes == part.length


@pytest.mark.parametrize(
    "limits", [Limits(max_transactions=3), Limits(max_row_events=3), Limits(max_bytes=800), Limits(max_bytes=1)]
)
def test_batches_cover_everything_once(tmp_path: Path, limits: Limits) -> None:
    fill(tmp_path, segment_bytes=65536)
    reader, after, got = StoreReader(tmp_path), 0, 0
    while (found := reader.select(after, limits)) is not None:
        assert found.first_seq > after
        if limits.max_bytes == 1:
            assert found.transactions == 1
        elif limits.max_transactions:
            assert found.transactions <= 3
        got += found.transactions
        after = found.last_seq
    assert got == 10 and after == reader.last_seq()


@pytest.mark.parametrize("at", [0, 4, 9])
def test_a_ddl_statement_comes_alone(tmp_path: Path, at: int) -> None:
    fill(tmp_path, ddl_at=at)
    reader, after, sizes = StoreReader(tmp_path), 0, []
    while (found := reader.select(after, Limits())) is not None:
        sizes.append((found.transactions, found.ddl))
        after = found.last_seq
    expected = [(at, False), (1, True), (9 - at, False)]
    assert sizes == [s for s in expected if s[0]]


def test_until_takes_what_was_committed_before(tmp_path: Path) -> None:
    log = fill(tmp_path)
    found = StoreReader(tmp_path).select(0, Limits(until_us=log.timestamp * 1_000_000 + 5))
    assert found is not None and found.transactions == 4
    assert StoreReader(tmp_path).select(0, Limits(until_us=log.timestamp * 1_000_000)) is None


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
    found = StoreReader(tmp_path).select(0, Limits())
    assert found is not None and found.transactions == 300 and len(found.ranges) == len(segments)


def test_go_on_in_the_same_segment(tmp_path: Path) -> None:
    log = BinlogBuilder()
    for n in range(2):
        log.transaction("shop", "orders", [n])
        filler = Filler(tmp_path)
        filler.put(log)
        filler.close()
    assert len(list_segments(tmp_path)) == 1
    assert len(seqs(tmp_path)) == 2


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
    assert len(seqs(tmp_path)) == 1


@pytest.mark.rule("canal-server-20")
def test_one_writer(tmp_path: Path) -> None:
    filler = Filler(tmp_path)
    with pytest.raises(LeaseHeldError, match="another capture"):
        Filler(tmp_path)
    filler.close()


def test_behind_and_totals(tmp_path: Path) -> None:
    log = fill(tmp_path)
    reader = StoreReader(tmp_path)
    all_seqs = seqs(tmp_path)
    behind = reader.backlog(all_seqs[5])
    assert behind.transactions == 4 and behind.oldest_commit_time_us == log.timestamp * 1_000_000 + 7
    assert reader.totals().transactions == 10
    assert reader.first_seq() == all_seqs[0]


@pytest.mark.rule("rocketmq-log-35")
def test_cut_below_what_was_acknowledged_is_named(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    (segment,) = list_segments(tmp_path)
    with open(segment, "r+b") as file:
        file.truncate(segment.stat().st_size - 1)
    with pytest.raises(DamagedError, match="acknowledged transactions"):
        reopen(tmp_path)


def test_damage_to_something_acknowledged_is_named(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    (segment,) = list_segments(tmp_path)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    forget_checkpoint(tmp_path)  # after a clean stop it is believed, and whoever reads the bytes verifies them
    with pytest.raises(DamagedError, match=r"checksum.*Move this segment"):
        reopen(tmp_path)
    assert segment.read_bytes() == bytes(data)


@pytest.mark.rule("rocketmq-log-36")
def test_index_is_made_anew_from_the_log(tmp_path: Path) -> None:
    fill(tmp_path, 5, ddl_at=2)
    (segment,) = list_segments(tmp_path)
    before = np.array(IndexFile(segment).entries)
    index_path(segment).unlink()
    reopen(tmp_path)
    after = np.array(IndexFile(segment).entries)
    for name in before.dtype.names or ():
        if name not in ("store_time_us", "crc", "table_mask"):
            assert np.array_equal(before[name], after[name]), name


def test_newer_versions_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    document = (tmp_path / "store.json").read_text()
    (tmp_path / "store.json").write_text(document.replace('"version": 2', '"version": 3'))
    with pytest.raises(VersionError, match="version 3"):
        StoreReader(tmp_path)


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
    assert seqs(tmp_path) == []
