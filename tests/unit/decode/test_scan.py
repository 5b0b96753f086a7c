"""The slices of a transaction together give the rows of the whole."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.batches.manifest import ByteRange
from cdc.decode.layout import survey
from cdc.decode.scan import split_transaction
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import list_segments
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler
from tests.support.unit_decode import KINDS, batches, golden, uncompiled


@pytest.mark.parametrize("size_bytes", [1, 400, 10**9])
@pytest.mark.parametrize("kind", KINDS)
def test_slices_make_up_the_transaction(kind: str, size_bytes: int) -> None:
    whole = golden(kind)
    first = int(whole.entries["seq"][0])
    transaction = whole.between(0, first)
    assert len(transaction.entries) == 1
    parts = list(split_transaction(transaction, "shop.every", size_bytes))
    assert len(parts) == (2 if size_bytes < 10**9 else 1)  # an insert's event and an update's
    assert pickle.loads(pickle.dumps(parts)) == parts
    rows = [batch for part in parts for batch in batches(transaction, part=part)]
    assert pa.Table.from_batches(rows).equals(pa.Table.from_batches(batches(transaction)))
    assert [part.ordinal for part in parts] == list(range(len(parts)))


def test_a_table_without_rows_has_no_slices() -> None:
    whole = golden("mysql9")
    transaction = whole.between(0, int(whole.entries["seq"][0]))
    assert list(split_transaction(transaction, "shop.none", 100)) == []


def test_slices_are_of_one_transaction(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one transaction"):
        list(split_transaction(golden("mysql9"), "shop.every", 100))


def test_the_largest_row_event(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    log.transaction("shop", "items", list(range(500)))
    log.transaction("shop", "orders", [2, 3])
    filler = Filler(tmp_path)
    filler.put(log)
    filler.close()
    segment = list_segments(tmp_path)[0]
    entries = read_entries(segment)
    ranges = [
        ByteRange(path=str(segment), offset=int(entry["offset"]), length=int(entry["length"]))
        for entry in entries[entries["length"] > 0]
    ]
    tables = ("shop.orders", "shop.items")
    expected = {"shop.orders": 19 + 10 + 2 + 5 * 2 + 4, "shop.items": 19 + 10 + 2 + 5 * 500 + 4}
    assert survey(ranges, tables).largest_event_bytes == expected
    assert survey(ranges[:1], tables).largest_event_bytes == {"shop.orders": 19 + 10 + 2 + 5 + 4}
    assert survey([], tables).largest_event_bytes == {}
    with uncompiled():
        assert survey(ranges, tables).largest_event_bytes == expected
