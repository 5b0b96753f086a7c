"""Low marks of servers without GTIDs: what is younger than a minute does not count as visible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cdc.base.errors import RetryableError, StoreIncompleteError
from cdc.binlog.positions import split_seq
from cdc.source.snapshot.positions import MARGIN_S, LowMark, low_seq
from cdc.store.formats.state import Beginning
from cdc.store.reader.reader import StoreReader
from tests.support.unit_store import fill

MARGIN_US = int(MARGIN_S * 1_000_000)


@pytest.fixture
def reader(tmp_path: Path) -> StoreReader:
    fill(tmp_path / "store")
    return StoreReader(tmp_path / "store")


def _low(reader: StoreReader, time_us: int, local_us: int) -> LowMark:
    entry = reader.last_entry()
    assert entry is not None
    position = reader.commit_position(entry).position
    return LowMark("margin", position.file, position.pos, (), time_us, local_us)


def test_old_transactions_count_as_visible(reader: StoreReader) -> None:
    entries = np.concatenate(list(reader.all_entries()))
    committed, stored = int(entries["commit_time_us"].max()), int(entries["store_time_us"].max())
    epoch = split_seq(int(entries["seq"][0])).epoch
    low = _low(reader, committed + MARGIN_US + 1, stored + MARGIN_US + 1)
    assert low_seq(reader, epoch, [low]) == int(entries["seq"][-1])


@pytest.mark.parametrize("clock", ["commit_time_us", "store_time_us"])
def test_young_transactions_do_not(reader: StoreReader, clock: str) -> None:
    entries = np.concatenate(list(reader.all_entries()))
    epoch = split_seq(int(entries["seq"][0])).epoch
    late = {name: int(entries[name].max()) + MARGIN_US + 1 for name in ("commit_time_us", "store_time_us")}
    for index in (3, 7):
        times = {**late, clock: int(entries[clock][index]) + MARGIN_US}
        low = low_seq(reader, epoch, [_low(reader, times["commit_time_us"], times["store_time_us"])])
        first = int(np.flatnonzero(entries[clock] >= entries[clock][index])[0])
        assert low == int(entries["seq"][first]) - 1
        assert low < int(entries["seq"][index])


def test_the_position_of_the_beginning_is_no_young_transaction(
    reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Capture stores it a second after it has begun, and a snapshot waits until a minute has passed since then."""
    entries = np.concatenate(list(reader.all_entries()))
    began_us, seq = int(entries["store_time_us"][0]) - 1_000_000, int(entries["seq"][0])
    beginning = Beginning(seq, "binlog.000001", 4, None, began_us, "first start")
    monkeypatch.setattr(reader, "beginning", lambda: beginning)
    for late_us in (0, 999_999, 1_000_000):
        low = _low(reader, int(entries["commit_time_us"].max()) + MARGIN_US + 1, began_us + MARGIN_US + late_us)
        assert low_seq(reader, split_seq(seq).epoch, [low]) == seq
    with pytest.raises(RetryableError, match="capture began less than a minute before"):
        low_seq(reader, split_seq(seq).epoch, [_low(reader, began_us, began_us + MARGIN_US - 1)])


def test_the_store_must_reach_the_position_unless_it_is_known_to_be_complete(reader: StoreReader) -> None:
    """An event outside of transactions moves the position of a server, and the store's end stays where it is."""
    entry = reader.last_entry()
    assert entry is not None
    position = reader.commit_position(entry).position
    low = LowMark("exact", position.file, position.pos + 40)
    epoch = split_seq(int(entry["seq"])).epoch
    with pytest.raises(StoreIncompleteError):
        low_seq(reader, epoch, [low])
    assert low_seq(reader, epoch, [low], is_complete=True) == int(entry["seq"]) + 40
