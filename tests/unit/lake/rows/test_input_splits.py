"""Byte ranges are cut for Spark's tasks: the splits have all rows of the table, and none twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cdc.batches.manifest import ByteRange
from cdc.decode import DecodeOptions, decode_range
from cdc.decode.transactions import ALL_TABLES
from cdc.lake.rows.input_splits import InputSplit, input_splits
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import index_path, list_segments
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler

TABLES = ("shop.orders", "shop.items")


def filled(folder: Path, log: BinlogBuilder) -> list[ByteRange]:
    """Fills a store with these transactions, and returns its segments as ranges."""
    filler = Filler(folder)
    filler.put(log)
    filler.close()
    ranges = []
    for segment in list_segments(folder):
        entries = read_entries(segment)
        entries = entries[entries["length"] > 0]
        begin = int(entries["offset"][0])
        length = int(entries["offset"][-1] + entries["length"][-1]) - begin
        ranges.append(ByteRange(path=str(segment), offset=begin, length=length))
    return ranges


def rows(splits: Sequence[InputSplit], table: str) -> list[tuple[int, int, int]]:
    """Returns seq, row and value of all rows of the splits."""
    triples = []
    for input_split in splits:
        batches = decode_range(
            input_split.path,
            input_split.offset,
            input_split.length,
            table=table,
            part=input_split.part,
            options=DecodeOptions(table_mask=input_split.table_mask),
        )
        triples += [(r["_seq"], r["_row"], r["id"]) for batch in batches for r in batch.to_pylist()]
    return triples


def many(log: BinlogBuilder, count: int = 40) -> None:
    """Small transactions, three of ``orders`` and then one of ``items``, over and over."""
    for n in range(count):
        log.transaction("shop", "items" if n % 4 == 3 else "orders", [n, n + 1000])


def large(log: BinlogBuilder, events: int = 50) -> None:
    """One transaction: a statement on ``orders`` with many row events, then one on both tables."""
    log.gtid()
    log.query("BEGIN")
    log.table_map("shop", "orders")
    for n in range(events):
        log.rows("shop", "orders", list(range(n * 100, n * 100 + 100)), end=n == events - 1)
    log.table_map("shop", "items")
    log.table_map("shop", "orders")
    for n in range(10):
        log.rows("shop", "items", [n])
        log.rows("shop", "orders", [10_000 + n], end=n == 9)
    log.xid()


@pytest.mark.parametrize("size_bytes", [1, 700, 3000, 1 << 30])
@pytest.mark.parametrize("table", TABLES)
def test_splits_make_up_the_whole(tmp_path: Path, size_bytes: int, table: str) -> None:
    log = BinlogBuilder()
    many(log)
    large(log)
    many(log)
    ranges = filled(tmp_path, log)
    whole = [InputSplit(byte_range.path, byte_range.offset, byte_range.length) for byte_range in ranges]
    expected = rows(whole, table)
    assert len(expected) == {"shop.orders": 2 * 60 + 5010, "shop.items": 2 * 20 + 10}[table]
    assert len(set(expected)) == len(expected)
    splits = input_splits(ranges, 0, size_bytes, table)
    assert rows(splits, table) == expected
    assert len(splits) > 20 if size_bytes < 1000 else len(splits) >= 1
    slices = [split for split in splits if split.part is not None]
    assert bool(slices) == (size_bytes < 10_000)


def test_splits_begin_after_the_applied_position(tmp_path: Path) -> None:
    log = BinlogBuilder()
    many(log)
    ranges = filled(tmp_path, log)
    whole = rows(
        [InputSplit(byte_range.path, byte_range.offset, byte_range.length) for byte_range in ranges], "shop.orders"
    )
    applied = whole[30][0]
    assert rows(input_splits(ranges, applied, 700, "shop.orders"), "shop.orders") == [
        row for row in whole if row[0] > applied
    ]


def test_transactions_without_the_table_are_left_out(tmp_path: Path) -> None:
    log = BinlogBuilder()
    for n in range(100):
        log.transaction("shop", "orders", [n])
    log.transaction("shop", "items", [7])
    ranges = filled(tmp_path, log)
    (input_split,) = input_splits(ranges, 0, 1 << 20, "shop.items")
    assert input_split.table_mask == 2
    assert input_split.length < ranges[0].length // 50
    assert input_splits(ranges, 0, 1 << 20, "shop.none") == []


def test_a_copy_outside_of_a_store_has_no_mask(tmp_path: Path) -> None:
    log = BinlogBuilder()
    many(log)
    (byte_range,) = filled(tmp_path / "store", log)
    copy = tmp_path / Path(byte_range.path).name
    copy.write_bytes(Path(byte_range.path).read_bytes())
    index_path(copy).write_bytes(index_path(Path(byte_range.path)).read_bytes())
    splits = input_splits([byte_range.model_copy(update={"path": str(copy)})], 0, 1 << 20, "shop.items")
    assert [split.table_mask for split in splits] == [ALL_TABLES]
    assert len(rows(splits, "shop.items")) == 20
