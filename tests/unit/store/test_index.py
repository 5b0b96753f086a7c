"""Looks at all entries of an index, which may have millions, keep few of them in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cdc.binlog.entry import ENTRY, Entries
from cdc.store.formats.index import IndexFile, make_header, seal, stats_of
from cdc.store.formats.layout import index_path

_COUNT = 300_000
_MOST_BYTES = 12_000_000
"""The index has 38 MB. The kernel maps some pages around each one that is looked at."""


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A segment whose index has many entries; the first one has a GTID, and every third one has bytes."""
    segment = tmp_path_factory.mktemp("store") / "00000000000000000001.binlog"
    entries = np.zeros(_COUNT, dtype=ENTRY)
    entries["seq"] = np.arange(1, _COUNT + 1)
    entries["length"][::3] = 100
    entries["commit_time_us"] = np.arange(_COUNT)
    entries["gtid_count"][0] = 1
    index_path(segment).write_bytes(make_header() + seal(entries))
    return segment


def mapped_bytes(path: Path) -> int:
    """Returns how much of a file's mapping is in this process's memory."""
    inside, size = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            size += int(line.split()[1]) * 1024
    return size


def parts(index: IndexFile) -> Iterator[Entries]:
    for part in index.parts():
        assert part["seq"].any()
        yield part


def test_a_whole_look_maps_the_whole_index(segment: Path) -> None:
    index = IndexFile(segment)
    assert index.entries["seq"].any() and int(index.entries["length"].sum()) == _COUNT // 3 * 100
    assert mapped_bytes(index.path) >= _COUNT * ENTRY.itemsize


@pytest.mark.parametrize("look", [parts, IndexFile.verified_parts])
def test_parts_leave_the_memory(segment: Path, look: Callable[[IndexFile], Iterator[Entries]]) -> None:
    index = IndexFile(segment)
    seqs, most = [], 0
    for part in look(index):
        seqs += [int(part["seq"][0]), int(part["seq"][-1])]
        most = max(most, mapped_bytes(index.path))
    assert (seqs[0], seqs[-1]) == (1, _COUNT)
    assert all(after == before + 1 for before, after in zip(seqs[1:-1:2], seqs[2::2], strict=True))
    assert most <= _MOST_BYTES
    assert mapped_bytes(index.path) <= _MOST_BYTES


def test_parts_of_a_range(segment: Path) -> None:
    index = IndexFile(segment)
    assert [int(part["seq"][0]) for part in index.parts(70_000, 70_010)] == [70_001]
    entries = np.concatenate(list(index.verified_parts(100_000)))
    assert (int(entries["seq"][0]), len(entries)) == (100_001, _COUNT - 100_000)
    assert list(index.parts(_COUNT)) == [] == list(index.parts(5, 5))


def test_from_the_end(segment: Path) -> None:
    index = IndexFile(segment)
    assert list(index.from_end("gtid_count")) == [0]
    assert mapped_bytes(index.path) <= _MOST_BYTES
    numbers = list(index.from_end("length"))
    assert numbers == list(range(_COUNT - 3, -1, -3))


def test_stats(segment: Path) -> None:
    stats = stats_of(IndexFile(segment))
    assert (stats.entries, stats.transactions, stats.bytes) == (_COUNT, _COUNT // 3, _COUNT // 3 * 100)
    assert stats.newest_commit_us == _COUNT - 1
    assert mapped_bytes(index_path(segment)) <= _MOST_BYTES
