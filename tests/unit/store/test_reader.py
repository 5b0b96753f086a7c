"""The reader: batches; finding by seq and by time, and stats, against a linear model; the cost in a large store."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest

from cdc.binlog.entry import ENTRY, Entries
from cdc.binlog.positions import BinlogPosition
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile, StoreStats, make_header, seal, update_stats
from cdc.store.formats.layout import index_path, list_segments
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import remove_until
from tests.support.unit_retention import fill, rewrite
from tests.support.unit_store import all_seqs
from tests.support.unit_store import fill as fill_plain

SEED = 20_261


def entries_of(store: Path) -> Entries:
    return np.concatenate([np.array(IndexFile(segment).entries) for segment in list_segments(store)])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose commit times jump, and whose store times rise or stay equal."""
    path = tmp_path_factory.mktemp("find") / "store"
    fill(path, 80, tables=("orders", "items"))
    chance, stored = random.Random(SEED), 1_000
    for segment in list_segments(path):
        entries = np.array(IndexFile(segment).entries)
        for entry in entries:
            stored += chance.choice((0, 0, 1, 5))
            entry["store_time_us"] = stored
            entry["commit_time_us"] = max(0, stored + chance.randint(-30, 30))
        rewrite(segment, entries)
    return path


@pytest.fixture(params=["counted", "not counted"])
def reader(store: Path, request: pytest.FixtureRequest) -> StoreReader:
    if request.param == "counted":
        update_stats(store)
        assert len(StoreStats(store).by_segment) == len(list_segments(store)) - 1
    else:
        (store / "counts.json").unlink(missing_ok=True)
    return StoreReader(store)


def test_by_store_time(reader: StoreReader) -> None:
    entries = entries_of(reader.path)
    for time_us in range(990, int(entries["store_time_us"][-1]) + 3):
        model = [int(e["seq"]) for e in entries if e["store_time_us"] >= time_us]
        assert reader.find_by_store_time(time_us) == (model[0] if model else None), time_us


def test_by_commit_time_is_where_until_ends(reader: StoreReader) -> None:
    entries = entries_of(reader.path)
    for time_us in range(950, int(entries["commit_time_us"].max()) + 3, 3):
        model = [int(e["seq"]) for e in entries if e["commit_time_us"] >= time_us]
        seq = reader.find_by_commit_time(time_us)
        assert seq == (model[0] if model else None), time_us
        taken = reader.select(0, Limits(until_us=time_us))
        before = [int(e["seq"]) for e in entries if seq is None or e["seq"] < seq]
        assert (None if taken is None else taken.last_seq) == (before[-1] if before else None)


def test_backlog_and_totals(reader: StoreReader) -> None:
    entries = entries_of(reader.path)
    assert reader.totals().transactions == len(entries)
    for after in [0, *(int(seq) for seq in entries["seq"])]:
        later = entries[entries["seq"] > after]
        backlog = reader.backlog(after)
        assert (backlog.transactions, backlog.bytes) == (len(later), int(later["length"].sum()))
        expected = (int(later["commit_time_us"][0]), int(later["store_time_us"][0])) if len(later) else (None, None)
        assert (backlog.oldest_commit_time_us, backlog.oldest_store_time_us) == expected


def test_empty_segments_in_between(store: Path, tmp_path: Path) -> None:
    """A segment without transactions (after a reconnect) is skipped."""
    import shutil

    path = tmp_path / "store"
    shutil.copytree(store, path)
    segments = list_segments(path)
    expected = entries_of(path)
    for segment in segments[1:3]:
        entries = IndexFile(segment).entries
        lost = set(entries["seq"].tolist())
        expected = expected[[int(seq) not in lost for seq in expected["seq"]]]
        segment.write_bytes(segment.read_bytes()[: int(entries["offset"][0])])
        index_path(segment).write_bytes(make_header())
    reader = StoreReader(path)
    for time_us in range(990, int(expected["store_time_us"][-1]) + 2):
        model = [int(e["seq"]) for e in expected if e["store_time_us"] >= time_us]
        assert reader.find_by_store_time(time_us) == (model[0] if model else None), time_us
    assert reader.backlog(0).transactions == len(expected)


def test_a_segment_that_grew_since_is_counted_again(store: Path) -> None:
    update_stats(store)
    reader = StoreReader(store)
    before = reader.totals()
    text = (store / "counts.json").read_text()
    for bad in ("{", "{}", text.replace('"entries": ', '"entries": 1')):
        (store / "counts.json").write_text(bad)
        assert reader.totals() == before


def make_large(path: Path, segments: int, each: int) -> None:
    """Makes a store of many transactions of 300 bytes; its segments have a size and no content."""
    layout.create(path, "shop")
    (path / "tables.json").write_text('{"version": 1, "tables": ["shop.orders"]}')
    entries = np.zeros(each, dtype=ENTRY)
    entries["offset"] = 200 + 300 * np.arange(each)
    entries["length"], entries["events"], entries["row_events"], entries["table_mask"] = 300, 4, 1, 1
    for number in range(1, segments + 1):
        segment = layout.segments_folder(path) / layout.segment_name(0, number, 4)
        entries["seq"] = (number << 34) + 500 + 300 * np.arange(each)
        entries["store_time_us"] = entries["commit_time_us"] = number * each + np.arange(each)
        with segment.open("wb") as file:
            file.truncate(200 + 300 * each)
        index_path(segment).write_bytes(make_header() + seal(entries))


def best_s(call: object, times: int = 20) -> float:
    times_s = []
    for _ in range(times):
        start = time.perf_counter()
        call()  # type: ignore[operator]
        times_s.append(time.perf_counter() - start)
    return min(times_s)


def test_the_cost_does_not_grow_with_the_store(tmp_path: Path) -> None:
    """With twenty times the transactions the work grows by less than a twentieth. Both stores have 400 segments, so only
    their content differs."""
    small, large = tmp_path / "small", tmp_path / "large"
    make_large(small, 400, 100)
    make_large(large, 400, 2000)
    for path in (small, large):
        update_stats(path)
    limits = Limits(max_transactions=50)
    for name, read_store, other in (
        ("select", lambda r: r.select((200 << 34) + 800, limits), 4),
        ("first and last", lambda r: (r.first_seq(), r.last_seq()), 4),
        ("store time", lambda r: r.find_by_store_time(20_050 if r.path.name == "small" else 401_000), 4),
        ("totals", lambda r: r.totals(), 4),
    ):
        times = [
            best_s(lambda path=path, read_store=read_store: read_store(StoreReader(path))) for path in (small, large)
        ]
        assert times[1] < other * times[0] + 0.001, (name, times)


def test_finding_after_a_removal(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fill(path, 60)
    entries = entries_of(path)
    seqs = all_seqs(path)
    middle = int(IndexFile(list_segments(path)[2]).entries["seq"][-1])
    remove_until(path, middle)
    reader = StoreReader(path)
    kept = [seq for seq in seqs if seq > middle]
    assert reader.first_seq() == kept[0] and reader.totals().transactions == len(kept)
    assert reader.find_by_store_time(0) == kept[0]
    assert reader.find_by_commit_time(int(entries["commit_time_us"][-1])) == seqs[-1]


def test_select_everything(tmp_path: Path) -> None:
    log = fill_plain(tmp_path)
    selection = StoreReader(tmp_path).select(0, Limits())
    assert selection is not None
    assert (selection.transactions, selection.row_events, selection.ddl) == (10, 10, False)
    assert selection.tables == ("shop.items", "shop.orders")
    assert selection.last.position == BinlogPosition("binlog.000001", log.pos)
    assert selection.last.gtid == "01010101-0101-0101-0101-010101010101:10"
    (part,) = selection.ranges
    with open(part.path, "rb") as file:
        file.seek(part.offset)
        assert file.read(part.length) == b"".join(log.events[1:])
    assert selection.bytes == part.length


@pytest.mark.parametrize(
    "limits", [Limits(max_transactions=3), Limits(max_row_events=3), Limits(max_bytes=800), Limits(max_bytes=1)]
)
def test_batches_cover_everything_once(tmp_path: Path, limits: Limits) -> None:
    fill_plain(tmp_path, segment_bytes=65536)
    reader, after, taken = StoreReader(tmp_path), 0, 0
    while (selection := reader.select(after, limits)) is not None:
        assert selection.first_seq > after
        if limits.max_bytes == 1:
            assert selection.transactions == 1
        elif limits.max_transactions:
            assert selection.transactions <= 3
        taken += selection.transactions
        after = selection.last_seq
    assert taken == 10 and after == reader.last_seq()


@pytest.mark.parametrize("at", [0, 4, 9])
def test_a_ddl_statement_comes_alone(tmp_path: Path, at: int) -> None:
    fill_plain(tmp_path, ddl_at=at)
    reader, after, sizes = StoreReader(tmp_path), 0, []
    while (selection := reader.select(after, Limits())) is not None:
        sizes.append((selection.transactions, selection.ddl))
        after = selection.last_seq
    expected = [(at, False), (1, True), (9 - at, False)]
    assert sizes == [s for s in expected if s[0]]


def test_until_takes_what_was_committed_before(tmp_path: Path) -> None:
    log = fill_plain(tmp_path)
    selection = StoreReader(tmp_path).select(0, Limits(until_us=log.timestamp * 1_000_000 + 5))
    assert selection is not None and selection.transactions == 4
    assert StoreReader(tmp_path).select(0, Limits(until_us=log.timestamp * 1_000_000)) is None


def test_the_backlog_after_a_seq(tmp_path: Path) -> None:
    log = fill_plain(tmp_path)
    reader = StoreReader(tmp_path)
    stored = all_seqs(tmp_path)
    behind = reader.backlog(stored[5])
    assert behind.transactions == 4 and behind.oldest_commit_time_us == log.timestamp * 1_000_000 + 7
    assert reader.totals().transactions == 10
    assert reader.first_seq() == stored[0]
