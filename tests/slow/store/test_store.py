"""Recovery of a store that is cut, or has a flipped bit, at every byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.base.errors import DamagedError, VersionError
from cdc.disk import files
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import index_path, list_segments
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.testing.faults import UnflushedFiles
from tests.support.unit_store import all_seqs, copy, fill, forget_checkpoint, reopen


@pytest.fixture
def unflushed() -> Iterator[None]:
    """Syncs nothing: the tests open a store hundreds of times, and no power cut follows."""
    with files.use(UnflushedFiles()):
        yield


def test_cut_at_every_byte(tmp_path: Path, unflushed: None) -> None:
    """Without an index nothing is acknowledged. A prefix of whole transactions is left, and the store can be written to."""
    whole = tmp_path / "whole"
    fill(whole, 3)
    (segment,) = list_segments(whole)
    size, first = segment.stat().st_size, int(read_entries(segment)["offset"][0])
    expected = all_seqs(whole)
    ends = [int(e["offset"] + e["length"]) for e in read_entries(segment)]
    for at in range(first, size):
        store = copy(whole, tmp_path / "cut")
        torn = list_segments(store)[0]
        with open(torn, "r+b") as file:
            file.truncate(at)
        index_path(torn).unlink()
        forget_checkpoint(store)
        reopen(store)
        assert all_seqs(store) == expected[: sum(end <= at for end in ends)], f"cut at {at}"


def test_every_flipped_byte_of_the_tail(tmp_path: Path, unflushed: None) -> None:
    """A damaged tail is copied and cut off; everything before it is there, and nothing wrong is."""
    whole = tmp_path / "whole"
    fill(whole, 2)
    (segment,) = list_segments(whole)
    expected = all_seqs(whole)
    start = int(read_entries(segment)["offset"][1])
    for at in range(start, segment.stat().st_size):
        store = copy(whole, tmp_path / "flip")
        torn = list_segments(store)[0]
        data = bytearray(torn.read_bytes())
        data[at] ^= 0x10
        torn.write_bytes(data)
        index_path(torn).unlink()
        forget_checkpoint(store)
        reopen(store)
        assert all_seqs(store) == expected[:1], f"flipped {at}"


def test_every_flipped_byte_of_the_index_is_noticed(tmp_path: Path, unflushed: None) -> None:
    whole = tmp_path / "whole"
    fill(whole, 2)
    (segment,) = list_segments(whole)
    expected = all_seqs(whole)
    size = index_path(segment).stat().st_size
    for at in range(size):
        store = copy(whole, tmp_path / "flip")
        index = index_path(list_segments(store)[0])
        data = bytearray(index.read_bytes())
        data[at] ^= 4
        index.write_bytes(data)
        reader = StoreReader(store)
        if at >= size - 128:  # the newest entry: taken for one that is being written
            selection = reader.select(0, Limits())
            assert selection is not None and selection.transactions == 1
            reopen(store)
            assert all_seqs(store) == expected
        else:
            with pytest.raises((DamagedError, VersionError)):
                reader.select(0, Limits())
