"""``until``: exactly the transactions committed before a time; and the other limits of a batch, against a small model."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdc.base.errors import DamagedError, StoreIncompleteError, VersionError
from cdc.base.units import iso_time_us, time_us
from cdc.batches.lease import Lease
from cdc.batches.service import BatchService
from cdc.binlog.entry import EntryFlag
from cdc.binlog.positions import make_seq
from cdc.cli.main import main
from cdc.config import DestinationConfig
from cdc.disk.durable import replace_file
from cdc.meta import open_meta
from cdc.store.formats import layout
from cdc.store.formats.layout import index_path, list_segments
from cdc.store.formats.state import StoreLock
from cdc.store.formats.time_index import (
    HEADER_SIZE,
    MARGIN_US,
    RECORD_SIZE,
    CommitTimeLimit,
    TimeIndexWriter,
    complete_until_us,
    make_header,
    read_time_index,
    time_index_path,
)
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from tests.support.commit_times import SECOND, T0, entries_of, fill, say_complete, seqs_of
from tests.support.unit_batches import IDENTITY, NumberStore, make_config, make_service

GOLDEN = Path(__file__).parents[2] / "golden" / "clock-v1.log"
OWNER = "airflow:apply_shop"


def taken(path: Path, until_s: float, after_seq: int = 0, **limits: Any) -> list[int]:
    """Returns the number of transactions in each batch up to a time."""
    reader, counts = StoreReader(path), []
    while (
        picked := reader.select(after_seq, replace(Limits(until_us=T0 + int(until_s * SECOND)), **limits))
    ) is not None:
        counts.append(picked.transactions)
        after_seq = picked.last_seq
    return counts


# --- which transactions ----------------------------------------------------------------------------------------------


def test_the_running_maximum_ends_the_prefix(tmp_path: Path) -> None:
    fill(tmp_path, [1, 5, 3, 6])
    assert taken(tmp_path, 1) == []
    assert taken(tmp_path, 4) == [1], "3 s lies behind 5 s, and order is kept"
    assert taken(tmp_path, 5.5) == [3]
    assert taken(tmp_path, 5) == [1], "the end itself is the next interval's"


def test_the_running_maximum_includes_acked_transactions(tmp_path: Path) -> None:
    fill(tmp_path, [1, 5, 3, 6])
    second = seqs_of(tmp_path)[1]
    assert taken(tmp_path, 4, after_seq=second) == [], "the interval of 4 s was over before this transaction"
    assert taken(tmp_path, 5.5, after_seq=second) == [1]


@pytest.mark.parametrize("clock", [False, True])
def test_batch_boundaries_change_nothing(tmp_path: Path, clock: bool) -> None:
    choose = random.Random(20261121)
    print("seed 20261121")
    times = [n / 4 + choose.uniform(-1.5, 0) for n in range(400)]
    fill(tmp_path, times, sizes=[choose.randrange(1, 200) for _ in times])
    assert len(list_segments(tmp_path)) > 2
    seqs = seqs_of(tmp_path)
    if clock:  # a probe each second, so that no recorded commit time is later than the probe behind it
        log = TimeIndexWriter(tmp_path)
        for n in range(0, 400, 4):
            log.add(seqs[n], T0 + (n // 4) * SECOND - MARGIN_US)
        log.close()
    for until_s in (0.5, 10, 33.3, 99, 200):
        whole = sum(taken(tmp_path, until_s))
        assert (
            whole == sum(taken(tmp_path, until_s, max_transactions=7)) == sum(taken(tmp_path, until_s, max_bytes=2000))
        )
        if not clock:
            newest = np.maximum.accumulate(times)
            assert whole == int((newest < until_s).sum())


def test_a_probe_of_the_clock_ends_the_prefix_too(tmp_path: Path) -> None:
    """A statement of ten minutes has the time at which it began, but was committed after the interval."""
    fill(tmp_path, [1, 2, 2.5])
    first, second, _ = seqs_of(tmp_path)
    assert taken(tmp_path, 10) == [3]
    log = TimeIndexWriter(tmp_path)
    log.add(second, T0 + 20 * SECOND)
    log.close()
    assert taken(tmp_path, 10) == [2]
    assert taken(tmp_path, 10, after_seq=first) == [1]
    assert taken(tmp_path, 21) == [3]


def test_a_time_in_the_future_blocks_nothing(tmp_path: Path) -> None:
    """MariaDB writes the timestamp that a session sets; the time index corrects it."""
    fill(tmp_path, [1, 9e8, 2, 3])
    assert taken(tmp_path, 100) == [1]
    seqs = seqs_of(tmp_path)
    log = TimeIndexWriter(tmp_path)
    log.add(seqs[2], T0 + 3 * SECOND)
    log.add(seqs[3], T0 + 50 * SECOND)
    log.close()
    assert CommitTimeLimit(tmp_path, T0 + 100 * SECOND).certain_seq == seqs[2]
    assert taken(tmp_path, 100) == [4]


# --- the other limits ------------------------------------------------------------------------------------------------


@dataclass
class Tx:
    rows: int
    size: int
    ddl: bool


def model(transactions: list[Tx], limits: Limits) -> list[int]:
    """Returns the number of transactions in each batch."""
    batches: list[list[Tx]] = []
    for tx in transactions:
        batch = [*batches[-1], tx] if batches else [tx]
        fits = (
            not any(t.ddl for t in batch)
            and sum(t.size for t in batch) <= limits.max_bytes
            and (limits.max_transactions is None or len(batch) <= limits.max_transactions)
            and (limits.max_row_events is None or sum(t.rows for t in batch) <= limits.max_row_events)
        )
        if batches and fits:
            batches[-1] = batch
        else:
            batches.append([tx])
    return [len(batch) for batch in batches]


def test_every_limit_against_a_model(tmp_path: Path) -> None:
    choose = random.Random(20261122)
    print("seed 20261122")
    count = 200
    ddl = frozenset(n for n in range(count) if choose.random() < 0.05)
    sizes = [choose.choice([1, 2, 30, 500]) for _ in range(count)]
    fill(tmp_path, [float(n) for n in range(count)], ddl=ddl, sizes=sizes)
    entries = entries_of(tmp_path)
    made = [Tx(int(e["row_events"]), int(e["length"]), bool(int(e["flags"]) & EntryFlag.DDL)) for e in entries]
    assert sum(t.ddl for t in made) == len(ddl)
    for _ in range(30):
        limits = Limits(
            max_bytes=choose.choice([1, 700, 3000, 50_000, 1 << 40]),
            max_transactions=choose.choice([None, 1, 3, 50]),
            max_row_events=choose.choice([None, 1, 4, 100]),
        )
        reader, after, counts = StoreReader(tmp_path), 0, []
        while (picked := reader.select(after, limits)) is not None:
            counts.append(picked.transactions)
            after = picked.last_seq
        assert counts == model(made, limits), limits


# --- get -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    config = make_config(tmp_path)
    open_meta(config).bind_source(IDENTITY)
    return config


def at(until_s: float) -> datetime:
    return datetime.fromtimestamp(T0 // SECOND, UTC) + timedelta(seconds=until_s)


def drain(service: BatchService, until: datetime) -> int:
    transactions = 0
    while (lease := service.get(OWNER, until=until, wait_s=0)) is not None:
        transactions += lease.manifest.transactions
        service.ack(lease.batch, lease.token)
    return transactions


def test_run_after_run_takes_exactly_its_interval(config: DestinationConfig) -> None:
    fill(config.store.path, [1, 2, 3, 11, 12, 21], ddl=frozenset({1}))
    say_complete(config.store.path, 30)
    assert [drain(BatchService(config), at(end)) for end in (10, 20, 10, 30)] == [3, 2, 0, 1]


def test_an_incomplete_store_is_reported(config: DestinationConfig) -> None:
    fill(config.store.path, [1, 2])
    service = BatchService(config)
    lease = service.get(OWNER, until=at(10), wait_s=0)
    assert lease is not None, "what is there from before is handed out while the rest is waited for"
    service.ack(lease.batch, lease.token)
    with pytest.raises(StoreIncompleteError, match="not known to be complete at all") as caught:
        service.get(OWNER, until=at(10), wait_s=0)
    assert caught.value.exit_code == 1
    assert "start `cdc capture shop`" in str(caught.value)
    say_complete(config.store.path, 7)
    with pytest.raises(StoreIncompleteError, match=f"complete up to {iso_time_us(T0 + 7 * SECOND)}"):
        service.get(OWNER, until=at(10), wait_s=0)
    assert service.get(OWNER, until=at(7), wait_s=0) is None, "exactly up to then it is complete"


def test_the_remedy_depends_on_capture(config: DestinationConfig) -> None:
    fill(config.store.path, [1])
    lock = StoreLock(config.store.path)
    service = BatchService(config)
    for connected, remedy in ((True, "Capture is behind, or the source"), (False, "has no connection to the source")):
        say_complete(config.store.path, 5, connected=connected)
        while (lease := service.get(OWNER, until=at(5), wait_s=0)) is not None:
            service.ack(lease.batch, lease.token)
        with pytest.raises(StoreIncompleteError, match=remedy):
            service.get(OWNER, until=at(6), wait_s=0)
    lock.release()


def test_get_waits_for_the_store_to_be_complete(config: DestinationConfig) -> None:
    class Later(NumberStore):
        asked_times = 0

        def complete_until_us(self) -> int:
            self.asked_times += 1
            if self.asked_times == 3:
                self.last = 5  # the store becomes complete together with more transactions
                return 9 * SECOND
            return self.complete_us

    store = Later(last=0)
    lease = make_service(config, store).get(OWNER, until=datetime.fromtimestamp(4, UTC), wait_s=30)
    assert lease is not None
    assert (lease.manifest.first_seq, lease.manifest.last_seq) == (1, 3)


def test_an_outstanding_batch_beyond_the_limit_is_rolled_back(config: DestinationConfig) -> None:
    fill(config.store.path, [1, 2, 11])
    say_complete(config.store.path, 30)
    service = BatchService(config)
    long = service.get(OWNER)
    assert long is not None and long.manifest.transactions == 3
    short = service.get(OWNER, until=at(10), wait_s=0)
    assert short is not None
    assert (short.batch, short.manifest.transactions) == (2, 2)
    assert [entry.batch for entry in service.outstanding()] == [2]
    repeated = service.get(OWNER, until=at(10), wait_s=0)
    assert repeated is not None and repeated.manifest == short.manifest, "one within the limit comes again unchanged"


def test_a_rolled_back_batch_comes_again_with_the_same_transactions(config: DestinationConfig) -> None:
    """Get after a rollback hands out the same transactions; here under a new id, so that no token or
    manifest is mistaken."""
    fill(config.store.path, [float(n) for n in range(9)], ddl=frozenset({4}))
    say_complete(config.store.path, 30)
    service, choose = BatchService(config), random.Random(20261123)
    print("seed 20261123")
    ids: list[int] = []
    acked: list[tuple[int, int]] = []
    rolled_back: Lease | None = None
    while (lease := service.get(OWNER, until=at(20), wait_s=0)) is not None:
        ids.append(lease.batch)
        if rolled_back is not None:
            same = {"batch"}
            assert lease.manifest.model_dump(exclude=same) == rolled_back.manifest.model_dump(exclude=same)
        if choose.random() < 0.5:
            assert service.rollback(lease.batch, lease.token) == [lease.batch]
            rolled_back = lease
            continue
        service.ack(lease.batch, lease.token)
        acked.append((lease.manifest.after_seq, lease.manifest.last_seq))
        rolled_back = None
    assert ids == list(range(1, len(ids) + 1)), "ids grow, and none comes twice"
    assert len(ids) > len(acked), "this seed rolls back"
    assert [after for after, _ in acked] == [0, *(last for _, last in acked[:-1])]


def test_release_rolls_back_an_owners_batches_and_no_others(config: DestinationConfig) -> None:
    service = make_service(config, NumberStore(last=9))
    assert service.release(OWNER) == []
    service.get(OWNER)
    service.get(OWNER, ahead=True)
    assert service.release("cli:elsewhere") == []
    assert service.release(OWNER) == [1, 2]
    assert service.outstanding() == []


# --- up to when the store is complete --------------------------------------------------------------------------------


def test_after_a_power_cut_the_state_file_proves_nothing(config: DestinationConfig) -> None:
    store = config.store.path
    fill(store, [1, 2, 3])
    say_complete(store, 30)
    assert complete_until_us(store) == T0 + 30 * SECOND
    index = index_path(list_segments(store)[-1])
    index.write_bytes(index.read_bytes()[:-128])
    assert complete_until_us(store) == 0, "the index, which is not synced, has lost a transaction"
    lock = StoreLock(store)
    assert complete_until_us(store) == 0, "another capture has begun; the state file is the former one's"
    lock.release()


def test_a_store_that_was_never_captured_is_not_complete(tmp_path: Path) -> None:
    assert complete_until_us(tmp_path) == 0


# --- the clock log ---------------------------------------------------------------------------------------------------


def test_the_log_grows_only_where_something_was_committed(tmp_path: Path) -> None:
    log = TimeIndexWriter(tmp_path)
    for seq, time in ((10, 100), (10, 200), (20, 300), (20, 400), (15, 500), (30, 350)):
        log.add(seq, time)
    log.close()
    assert read_time_index(tmp_path)[["seq", "time_us"]].tolist() == [(10, 200), (20, 400)]
    log = TimeIndexWriter(tmp_path)
    log.add(20, 450)
    log.add(21, 460)
    log.close()
    assert read_time_index(tmp_path)[["seq", "time_us"]].tolist() == [(10, 200), (20, 450), (21, 460)]


def test_a_log_cut_or_torn_at_any_byte_keeps_its_whole_records(tmp_path: Path) -> None:
    log = TimeIndexWriter(tmp_path)
    for n in range(1, 5):
        log.add(10 * n, 100 * n)
    log.close()
    whole = time_index_path(tmp_path).read_bytes()
    wanted = [(10 * n, 100 * n) for n in range(1, 5)]
    for size in range(len(whole)):
        time_index_path(tmp_path).write_bytes(whole[:size])
        count = max(0, size - HEADER_SIZE) // RECORD_SIZE
        assert read_time_index(tmp_path)[["seq", "time_us"]].tolist() == wanted[:count]
        log = TimeIndexWriter(tmp_path)
        log.add(999, 9999)
        log.close()
        assert read_time_index(tmp_path)[["seq", "time_us"]].tolist() == [*wanted[:count], (999, 9999)]
    for at_byte in range(len(whole) - RECORD_SIZE, len(whole)):
        torn = bytearray(whole)
        torn[at_byte] ^= 1
        time_index_path(tmp_path).write_bytes(torn)
        assert read_time_index(tmp_path)["seq"].tolist() == [10, 20, 30]


def test_damage_and_newer_versions_are_named(tmp_path: Path) -> None:
    log = TimeIndexWriter(tmp_path)
    for n in range(1, 5):
        log.add(10 * n, 100 * n)
    log.close()
    path = time_index_path(tmp_path)
    whole = bytearray(path.read_bytes())
    whole[HEADER_SIZE + RECORD_SIZE] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DamagedError, match=r"clock.log: record 1 \(byte 64\)"):
        CommitTimeLimit(tmp_path, 150)
    path.write_bytes(b"x" + bytes(whole[1:]))
    with pytest.raises(DamagedError, match="not a time index"):
        CommitTimeLimit(tmp_path, 150)
    head = struct.pack("<4sHH20s", b"TPCK", 2, 32, b"")
    path.write_bytes(head + zlib.crc32(head).to_bytes(4, "little"))
    for opened in (lambda: TimeIndexWriter(tmp_path), lambda: CommitTimeLimit(tmp_path, 150)):
        with pytest.raises(VersionError, match="format version 2"):
            opened()


def test_version_1_is_read_for_ever(tmp_path: Path) -> None:
    time_index_path(tmp_path).write_bytes(GOLDEN.read_bytes())
    assert read_time_index(tmp_path)[["seq", "time_us"]].tolist() == [
        (make_seq(0, 1, 500), T0),
        (make_seq(0, 1, 900), T0 + 2 * SECOND),
        (make_seq(1, 1, 120), T0 + 5 * SECOND),
    ]


def test_what_retention_removed_leaves_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, [float(n) for n in range(300)], sizes=[100] * 300)
    seqs = seqs_of(tmp_path)
    log = TimeIndexWriter(tmp_path)
    for n, seq in enumerate(seqs):
        log.add(seq, T0 + n * SECOND)
    log.close()
    for segment in list_segments(tmp_path)[:-1]:
        segment.unlink()
        index_path(segment).unlink()
    monkeypatch.setattr("cdc.store.formats.time_index._MANY_RECORDS", 100)
    TimeIndexWriter(tmp_path).close()
    kept = read_time_index(tmp_path)["seq"].tolist()
    assert kept == seqs[-len(kept) :]
    assert len(kept) < 150
    assert kept[0] < seqs_of(tmp_path)[0], "one record from before says when the first segment left begins"


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("2026-11-21T10:00:00", "does not say in which time zone it is. Add its offset: Z for UTC"),
        ("2026-11-21", "does not say in which time zone"),
        ("noon", "is not a time. Write it like 2026-11-21T10:00:00Z."),
    ],
)
def test_a_time_without_an_offset_is_refused(
    config: DestinationConfig, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    assert main(["--conf-dir", str(config.file.parent), "apply", "shop", "--until", text]) == 2
    assert sentence in capsys.readouterr().err


def test_apply_up_to_a_time_that_is_not_complete_ends_with_1(
    config: DestinationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--conf-dir", str(config.file.parent), "apply", "shop", "--until", "2023-11-14T23:13:20+01:00"]
    layout.create(config.store.path, "shop")
    assert main([*arguments, "--wait", "0"]) == 1
    said = capsys.readouterr().err
    assert "committed before 2023-11-14T22:13:20Z may be missing" in said
    assert said.count("\n") == 1
    say_complete(config.store.path, 1)
    assert main([*arguments, "--wait", "0"]) == 0


def test_times_are_exact_to_the_microsecond() -> None:
    time = datetime(2026, 11, 21, 9, 59, 59, 999_999, UTC)
    assert iso_time_us(time_us(time)) == "2026-11-21T09:59:59.999999Z"


def make_golden() -> None:
    """``python -c 'from tests.unit.batches.test_service_until import *; make_golden()'``; once for each version."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        log = TimeIndexWriter(Path(folder))
        for seq, time in ((make_seq(0, 1, 500), 0), (make_seq(0, 1, 900), 2), (make_seq(1, 1, 120), 5)):
            log.add(seq, T0 + time * SECOND)
        log.close()
        replace_file(GOLDEN, time_index_path(Path(folder)).read_bytes())
    assert GOLDEN.read_bytes().startswith(make_header())
