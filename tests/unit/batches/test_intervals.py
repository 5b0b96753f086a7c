"""An interval is a range of seqs that the source's clock gives: each transaction is in one, and it does not change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdc.base.errors import CutOffError, LakeBehindError, StoreIncompleteError
from cdc.batches.manifest import Parking, TableResult
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.lake.intervals import Interval, SeqRange, begins_before_capture, content_of, range_of
from cdc.meta import Gap
from cdc.store.formats.state import Beginning, StoreLock, record_beginning
from cdc.store.formats.time_index import MARGIN_US, TimeIndexWriter, time_index_path
from cdc.store.reader.reader import StoreReader
from tests.support.commit_times import SECOND, T0, fill, say_complete, seqs_of
from tests.support.unit_batches import IDENTITY, make_config

START = datetime.fromtimestamp(T0 / SECOND, UTC)
HOUR = 3600


def hour(number: int) -> Interval:
    """The hour that begins this many hours after T0."""
    return Interval(START + timedelta(hours=number), START + timedelta(hours=number + 1))


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    return make_config(tmp_path)


def made(
    config: DestinationConfig, times_s: list[float], *, begins_s: float = -HOUR, sizes: list[int] | None = None
) -> None:
    """Makes a store that began long before T0 and is complete for ever; its meta knows the source."""
    fill(config.store.path, times_s, sizes=sizes)
    begins = Beginning(0, "binlog.000001", 4, None, T0 + int(begins_s * SECOND), "first start")
    record_beginning(config.store.path, begins)
    say_complete(config.store.path, 1000 * HOUR)
    BatchService(config).meta.bind_source(IDENTITY)


def clock(config: DestinationConfig, *records: tuple[int, float]) -> None:
    """Writes the time index: (seq, seconds after T0 by the source's clock)."""
    log = TimeIndexWriter(config.store.path)
    for seq, time_s in records:
        log.add(seq, T0 + int(time_s * SECOND) - MARGIN_US)
    log.close()


def apply_all(config: DestinationConfig, parked: str = "", version: int = 7) -> list[int]:
    """Acks all batches, as a merge into one Delta table would. Returns their ids."""
    service, batches = BatchService(config), []
    while (lease := service.get("test", wait_s=0)) is not None:
        out = Parking(due="retry", reason="it failed", keep_seq=0) if parked else None
        result = TableResult(
            table="shop.orders",
            delta_version=version,
            delta_id="x",
            applied_seq=None if parked else lease.manifest.last_seq,
            parked=out,
        )
        service.ack(lease.batch, lease.token, results=[result])
        batches.append(lease.batch)
    return batches


def test_each_transaction_is_in_one_interval(config: DestinationConfig) -> None:
    made(config, [1, 2, HOUR - 1, HOUR, HOUR + 5, 2 * HOUR + 1], sizes=[1, 2, 3, 4, 5, 6])
    batches = apply_all(config)
    seqs = seqs_of(config.store.path)
    ranges = [range_of(config, hour(number)) for number in range(4)]
    assert [byte_range.last_seq for byte_range in ranges[:3]] == [seqs[2], seqs[4], seqs[5]]
    assert [interval.after_seq for interval in ranges[1:]] == [interval.last_seq for interval in ranges[:-1]]
    contents = [content_of(config, byte_range) for byte_range in ranges]
    assert [[table.rows for table in content.tables] for content in contents] == [[6], [9], [6], [0]]
    assert [content.tables[0].transactions for content in contents] == [3, 2, 1, 0]
    assert contents[0].tables[0].delta_version == 7
    assert contents[0].batches == batches[:1], "three transactions make a batch"
    assert contents[1].batches == batches[1:], "a batch may belong to two intervals"
    assert contents[0].left_out == {}


def test_the_source_s_clock_decides_and_not_the_commit_time(config: DestinationConfig) -> None:
    """A statement that began before the hour's end and was committed after it; a session that sets its clock; and a
    clock that was set back: the transactions after that are in the interval in which they were committed."""
    made(config, [1, HOUR - 600, 9e6, HOUR - 500, HOUR + 700])
    seqs = seqs_of(config.store.path)
    clock(
        config,
        (seqs[0], HOUR - 10),
        (seqs[0], HOUR + 10),
        (seqs[2], HOUR + 20),
        (seqs[3], HOUR + 600),
        (seqs[4], 2 * HOUR + 5),
    )
    apply_all(config)
    assert range_of(config, hour(0)).last_seq == seqs[0]
    assert range_of(config, hour(1)) == SeqRange(seqs[0], seqs[4])
    assert content_of(config, range_of(config, hour(1))).tables[0].transactions == 4


def test_an_interval_waits_for_the_clock_and_for_apply(config: DestinationConfig) -> None:
    made(config, [1, 2, HOUR + 5])
    lock = StoreLock(config.store.path)
    say_complete(config.store.path, HOUR - 1)
    with pytest.raises(StoreIncompleteError, match="may be missing: the store is complete up to"):
        range_of(config, hour(0))
    say_complete(config.store.path, HOUR)
    with pytest.raises(LakeBehindError, match="are not in the lake yet"):
        range_of(config, hour(0))
    apply_all(config)
    assert range_of(config, hour(0)).last_seq == seqs_of(config.store.path)[1]
    with pytest.raises(StoreIncompleteError):
        range_of(config, hour(1))
    lock.release()


def test_an_idle_source_completes_its_hours(config: DestinationConfig) -> None:
    made(config, [1])
    apply_all(config)
    interval = range_of(config, hour(5))
    assert interval.after_seq == interval.last_seq == seqs_of(config.store.path)[0]
    assert [table.rows for table in content_of(config, interval).tables] == [0]


def test_neighbours_that_were_published_set_the_limits(config: DestinationConfig) -> None:
    """Without the time index commit times alone decide, and would move the limits."""
    made(config, [1, HOUR - 600, HOUR + 5])
    seqs = seqs_of(config.store.path)
    clock(config, (seqs[0], HOUR - 10), (seqs[0], HOUR + 10), (seqs[2], 2 * HOUR + 1))
    apply_all(config)
    before = range_of(config, hour(0))
    time_index_path(config.store.path).unlink()
    assert range_of(config, hour(0)) != before
    assert range_of(config, hour(0), after_seq=before.after_seq, last_seq=before.last_seq) == before
    assert range_of(config, hour(1), after_seq=before.last_seq).after_seq == before.last_seq


def lose(config: DestinationConfig, gap: Gap) -> None:
    with BatchService(config).meta.change() as state:
        subscription = state.subscription("apply")
        subscription.gaps = [*subscription.gaps, gap]


@pytest.mark.parametrize(
    ("begins_s", "message"),
    [(-600, "capture began on .* an interval has to begin 15 minutes after"), (5000, "began on")],
)
def test_an_interval_from_before_the_store_is_refused(config: DestinationConfig, begins_s: float, message: str) -> None:
    made(config, [1, 2], begins_s=begins_s)
    apply_all(config)
    assert begins_before_capture(config, hour(0))
    with pytest.raises(CutOffError, match=message):
        range_of(config, hour(0))
    assert not begins_before_capture(config, hour(3))
    range_of(config, hour(3))


def test_lost_transactions_are_named(config: DestinationConfig) -> None:
    made(config, [1, 2, HOUR + 5, 2 * HOUR + 1])
    apply_all(config)
    seqs = seqs_of(config.store.path)
    for table in ("shop.orders", None):
        gap = Gap(after_seq=seqs[1], until_seq=seqs[2], table=table, reason="disk lost", accepted=START)
        lose(config, gap)
        if table is None:
            with pytest.raises(CutOffError, match="transactions of it are lost \\(disk lost, accepted on"):
                range_of(config, hour(1))
        else:
            content = content_of(config, range_of(config, hour(1)))
            assert content.tables == []
            assert "it lacks transactions (disk lost" in content.left_out["shop.orders"]
    range_of(config, hour(0))
    range_of(config, hour(2))


def test_what_retention_removed_cannot_be_read_again(
    config: DestinationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(config, [1, 2, HOUR + 5])
    apply_all(config)

    def removed(self: StoreReader, after_seq: int) -> None:
        raise CutOffError("retention has removed them")

    monkeypatch.setattr(StoreReader, "require_kept", removed)
    with pytest.raises(CutOffError, match="retention"):
        range_of(config, hour(0))


def test_a_parked_table_is_left_out_with_its_reason(config: DestinationConfig) -> None:
    made(config, [1, 2])
    apply_all(config, parked="yes")
    content = content_of(config, range_of(config, hour(0)))
    assert content.tables == []
    assert content.left_out["shop.orders"].endswith("it failed")


def test_a_destination_without_a_store_is_not_complete(config: DestinationConfig) -> None:
    with pytest.raises(StoreIncompleteError, match="not known to be complete at all"):
        range_of(config, hour(0))
    assert not begins_before_capture(config, hour(0))


def test_damage_in_the_interval_is_an_error(config: DestinationConfig, flip: Callable[[Path], None]) -> None:
    from cdc.base.errors import DamagedError
    from cdc.store.formats.layout import list_segments

    made(config, [1, 2], sizes=[1, 50])
    apply_all(config)
    interval = range_of(config, hour(0))
    flip(list_segments(config.store.path)[0])
    with pytest.raises(DamagedError):
        content_of(config, interval)


@pytest.fixture
def flip() -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[-40] ^= 1
        path.write_bytes(data)

    return change
