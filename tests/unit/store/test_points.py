"""Transactions that a user names by a seq, a time or a GTID are found in a store of real segments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.base.errors import UsageError
from cdc.base.units import iso_time_us
from cdc.binlog.entry import ENTRY_SIZE, HEADER_SIZE
from cdc.binlog.positions import format_seq
from cdc.store.formats.layout import index_path
from cdc.store.formats.missing import Removed, write_removed
from cdc.store.formats.state import Beginning, record_beginning
from cdc.store.reader.points import find_point, reaches_back_to_us
from cdc.store.reader.reader import StoreReader
from tests.support.unit_batches import make_store


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    folder = tmp_path_factory.mktemp("points")
    make_store(folder)
    return StoreReader(folder)


def entries(reader: StoreReader) -> list[tuple[int, int, str | None]]:
    """Returns seq, commit time and GTID of all transactions."""
    points = []
    for part in reader.all_entries():
        for entry in part[part["length"] > 0]:
            position = reader.commit_position(entry)
            points.append((int(entry["seq"]), position.commit_time_us, position.gtid))
    return points


def test_a_seq_is_itself_in_both_forms(reader: StoreReader) -> None:
    seq = entries(reader)[-1][0]
    assert find_point(reader, str(seq)) == seq
    assert find_point(reader, f" {format_seq(seq)} ") == seq
    assert find_point(reader, str(seq - 1)) == seq - 1
    for text in (str(seq + 1), "0:99999:4", "7:1:4"):
        with pytest.raises(UsageError, match="lies behind the store's last transaction"):
            find_point(reader, text)


def test_each_gtid_is_its_transaction(reader: StoreReader) -> None:
    points = entries(reader)
    assert len(points) > 3
    for seq, _, gtid in points:
        assert gtid is not None
        assert find_point(reader, gtid) == seq
        assert find_point(reader, gtid.upper()) == seq


def test_a_set_is_the_last_of_its_transactions(reader: StoreReader) -> None:
    seq, _, gtid = entries(reader)[2]
    assert gtid is not None
    source, _, number = gtid.rpartition(":")
    assert find_point(reader, f"{source}:1-{number}") == seq
    assert find_point(reader, f"{source}:1-2:3-{number},\n{source}:1") == seq


def test_a_time_is_the_last_transaction_before_it(reader: StoreReader) -> None:
    times = entries(reader)
    newest = 0
    for at, (seq, time, _) in enumerate(times):
        if time <= newest:
            continue
        newest = time
        point = find_point(reader, iso_time_us(time))
        assert point < seq
        assert at == 0 or point >= times[at - 1][0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yesterday", "'yesterday' is neither a seq, nor a time, nor a GTID set"),
        ("", "'' is neither"),
        ("2026-11-21T10:00:00", "does not say in which time zone"),
        ("0-1-5", "the store has no transaction 0-1-5"),
        ("00000000-0000-0000-0000-000000000000:7", "the store has no transaction 00000000"),
        ("99999999999999999999999", "is neither a seq"),
        ("2999-01-01T00:00:00Z", "is not known to have everything up to 2999"),
        ("9999:1:1", "epoch 9999 does not fit"),
    ],
)
def test_other_points_are_refused(reader: StoreReader, text: str, message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        find_point(reader, text)
    assert isinstance(caught.value, UsageError) or "epoch" in message
    assert getattr(caught.value, "exit_code", None) == 2


@pytest.fixture
def begun(tmp_path: Path) -> Callable[[int], StoreReader]:
    """Returns a function that makes a store whose capture began at a time (µs since 1970)."""

    def make(begins_us: int) -> StoreReader:
        make_store(tmp_path)
        record_beginning(tmp_path, Beginning(1, "binlog.000007", 4, None, begins_us, "first start"))
        return StoreReader(tmp_path)

    return make


def test_a_time_before_capture_began_is_known_if_an_older_transaction_is_there(
    reader: StoreReader, begun: Callable[[int], StoreReader]
) -> None:
    """``source.start: earliest`` begins such a store: the binlog is older than the capture."""
    times = entries(reader)
    seq, time, _ = times[-1]
    assert times[0][1] < time
    later = begun(time + 3_600_000_000)
    assert find_point(later, iso_time_us(time)) == find_point(reader, iso_time_us(time)) < seq
    with pytest.raises(UsageError, match="the store begins on"):
        find_point(later, iso_time_us(times[0][1]))


def test_of_the_second_in_which_the_store_begins_only_viewers_get_what_is_there(
    reader: StoreReader, begun: Callable[[int], StoreReader]
) -> None:
    first, time, _ = entries(reader)[0]
    later, told = begun(time + 400_000), list[str]()
    with pytest.raises(UsageError, match="the store begins on"):
        find_point(later, iso_time_us(time))
    assert find_point(later, iso_time_us(time), told.append) == first - 1
    assert told == ["the store begins within that second; what was committed in it before is not there"]
    with pytest.raises(UsageError, match="the store begins on"):
        find_point(later, iso_time_us(time - 1_000_000), told.append)
    assert len(told) == 1


def test_a_time_before_a_store_without_transactions_is_refused(tmp_path: Path) -> None:
    """Such a store has nothing but positions."""
    segment = make_store(tmp_path)
    index = index_path(segment)
    index.write_bytes(index.read_bytes()[: HEADER_SIZE + ENTRY_SIZE])
    begins_us = 1_700_000_000_000_000
    record_beginning(tmp_path, Beginning(1, "binlog.000007", 4, None, begins_us, "first start"))
    store = StoreReader(tmp_path)
    with pytest.raises(UsageError, match="the store begins on"):
        find_point(store, iso_time_us(begins_us - 1))


def test_a_time_before_what_retention_has_kept_is_refused(begun: Callable[[int], StoreReader]) -> None:
    """Transactions between that time and the oldest one may be among those that were removed."""
    later = begun(0)
    first, time, _ = entries(later)[0]
    assert find_point(later, iso_time_us(time)) == find_point(later, iso_time_us(time - 5_000_000)) == first - 1
    write_removed(later.path, Removed(first - 100, time - 3_000_000))
    told = list[str]()
    for wanted in (time, time - 1, time - 5_000_000):
        with pytest.raises(UsageError, match="retention has removed the transactions before") as caught:
            find_point(later, iso_time_us(wanted))
        assert str(first - 1) in str(caught.value) and find_point(later, str(first - 1)) == first - 1
    with pytest.raises(UsageError, match="retention has removed"):
        find_point(later, iso_time_us(time - 1_000_000), told.append)
    assert told == []
    assert find_point(later, iso_time_us(time), told.append) == first - 1
    assert told == ["the store begins within that second; what was committed in it before is not there"]
    _, after, _ = next(entry for entry in entries(later) if entry[1] > time)
    assert find_point(later, iso_time_us(after)) >= first, "an older transaction is there"


def test_what_capture_has_read_again_counts_as_kept(begun: Callable[[int], StoreReader]) -> None:
    later = begun(0)
    first, time, _ = entries(later)[0]
    write_removed(later.path, Removed(first + 1, time))
    assert find_point(later, iso_time_us(time)) == first - 1


def test_a_store_goes_back_to_its_beginning_or_to_what_retention_has_kept(
    tmp_path: Path, begun: Callable[[int], StoreReader]
) -> None:
    assert reaches_back_to_us(StoreReader(tmp_path / "nowhere")) is None
    later = begun(0)
    first, time, _ = entries(later)[0]
    assert reaches_back_to_us(later) == time
    assert reaches_back_to_us(begun(time - 5_000_000)) == time - 5_000_000
    later = begun(time + 5_000_000)
    assert reaches_back_to_us(later) == time, "the binlog was read from before capture began"
    later = begun(time - 5_000_000)
    write_removed(later.path, Removed(first - 100, time - 3_000_000))
    assert reaches_back_to_us(later) == time
