"""The meta that is stored periodically: what it stores when, what a SIGKILL loses, and that one process holds it."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from cdc.base.errors import LeaseHeldError, StorageError, UsageError
from cdc.event_store.periodic_meta import RESERVED_IDS, PeriodicMeta
from cdc.meta import State
from cdc.meta.base import DurableMeta
from cdc.meta.file import FileMeta
from cdc.testing.meta_contract import IDENTITY, entry
from cdc.testing.servers import Server
from tests.contract.meta_support import maker

MakeDurable = Callable[[], DurableMeta]
_processes = get_context("forkserver")


@pytest.fixture(params=["file", "zookeeper"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> MakeDurable:
    """Opens the durable meta below."""
    if request.param == "file":
        return functools.partial(FileMeta, tmp_path / "meta", "shop")
    return maker(request.getfixturevalue("zookeeper"))


def stored(durable: MakeDurable) -> State:
    with durable() as meta:
        return meta.read()


def test_source_subscribers_and_filters_are_stored_at_once(durable: MakeDurable) -> None:
    with PeriodicMeta(durable(), period_s=600) as meta:
        meta.bind_source(IDENTITY)
        assert stored(durable).source == IDENTITY
        meta.subscribe("apply", "f")
        assert stored(durable).subscription("apply").filter == "f"
        meta.subscribe("apply", "g")
        assert stored(durable).subscription("apply").filter == "g"
        meta.update_cursor("apply", 9)
        assert stored(durable).subscription("apply").acked_seq == 0
        meta.unsubscribe("apply")
        assert stored(durable).subscriptions == {}


def test_close_stores_everything(durable: MakeDurable) -> None:
    with PeriodicMeta(durable(), period_s=600) as meta:
        meta.subscribe("apply")
        meta.update_cursor("apply", 9)
        meta.add_batch("apply", entry(1, 9, 12))
        known = meta.read()
    assert stored(durable) == known
    assert known.subscription("apply").next_batch == 2
    with pytest.raises(UsageError, match="was closed"):
        meta.update_cursor("apply", 10)


class Counting(FileMeta):
    """Counts its changes, and refuses them while a test says so."""

    changes = 0
    full = False

    @contextmanager
    def change(self) -> Iterator[State]:
        if self.full:
            raise StorageError("No space left on device", place=self.place)
        self.changes += 1
        with super().change() as state:
            yield state


@pytest.mark.rule("canal-meta-19")
def test_several_changes_are_one_write_and_no_change_is_none(tmp_path: Path) -> None:
    file = Counting(tmp_path, "shop")
    with PeriodicMeta(file, period_s=0.1) as meta:
        meta.subscribe("apply")
        before, began = file.changes, time.monotonic()
        for seq in range(1, 301):
            meta.update_cursor("apply", seq)
        wait_until(lambda: stored(lambda: FileMeta(tmp_path, "shop")).subscription("apply").acked_seq == 300)
        assert 1 <= file.changes - before <= (time.monotonic() - began) / 0.1 + 2
        before = file.changes
        time.sleep(0.35)
        assert file.changes == before


def test_a_full_disk_is_tried_again_and_changes_that_must_be_stored_are_refused(tmp_path: Path) -> None:
    file = Counting(tmp_path, "shop")
    with PeriodicMeta(file, period_s=0.02) as meta:
        meta.subscribe("apply")
        file.full = True
        meta.update_cursor("apply", 5)
        with pytest.raises(StorageError, match="No space left"):
            meta.subscribe("audit")
        time.sleep(0.1)
        assert (list(meta.subscriptions()), meta.cursor("apply")) == (["apply"], 5)
        file.full = False
        wait_until(lambda: FileMeta(tmp_path, "shop").cursor("apply") == 5)


def test_zookeeper_may_stop_and_come_back(tmp_path: Path) -> None:
    with Server("zookeeper", folder=tmp_path / "zookeeper") as server:
        make = maker(server)
        with PeriodicMeta(make(), period_s=0.05) as meta:
            meta.subscribe("apply")
            server.kill()
            for seq in range(1, 6):
                meta.update_cursor("apply", seq)
            server.restart()
            wait_until(lambda: stored(make).subscription("apply").acked_seq == 5)
            meta.subscribe("audit")


# One process ---------------------------------------------------------------------------------------------------------


def work_and_wait(make: MakeDurable, period_s: float, pipe: Connection) -> None:
    """Acks five batches, leaves one outstanding, sends the last id, and waits."""
    meta = PeriodicMeta(make(), period_s=period_s)
    if "apply" not in meta.subscriptions():
        meta.subscribe("apply")
    for _ in range(6):
        with meta.change() as state:
            known = state.subscription("apply")
            if known.outstanding:
                known.acked_seq = known.remove(known.outstanding[0].batch).last_seq
            known.add(entry(known.next_batch, known.start_seq(), known.start_seq() + 10))
            batch = known.outstanding[0].batch
        pipe.send(batch)
    time.sleep(600)


@contextmanager
def worker(make: MakeDurable, period_s: float) -> Iterator[list[int]]:
    """Yields the batches of a process that is killed at the end."""
    ours, theirs = _processes.Pipe()
    process = _processes.Process(target=work_and_wait, args=(make, period_s, theirs), daemon=True)
    process.start()
    batches = []
    for _ in range(6):
        assert ours.poll(60)
        batches.append(ours.recv())
    try:
        yield batches
    finally:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()


@pytest.mark.rule("canal-meta-19")
def test_a_sigkill_takes_the_cursor_back_but_reuses_no_id(durable: MakeDurable) -> None:
    seen: list[int] = []
    for _ in range(3):
        with worker(durable, period_s=600) as batches:
            seen += batches
    assert seen == sorted(set(seen))
    with PeriodicMeta(durable(), period_s=600) as meta:
        known = meta.subscriptions()["apply"]
        assert (
            known.acked_seq == 10
        )  # of 60: the first change of each run stores ids ahead, and the rest of the state with them
        assert known.next_batch > seen[-1]
        assert known.next_batch <= seen[-1] + RESERVED_IDS + 1


def test_a_sigkill_after_the_period_loses_nothing(durable: MakeDurable) -> None:
    with worker(durable, period_s=0.02) as batches:
        wait_until(lambda: stored(durable).subscription("apply").acked_seq == 50)
    with PeriodicMeta(durable()) as meta:
        assert meta.cursor("apply") == 50
        assert meta.batches("apply") == [entry(batches[-1], 50, 60)]


def test_more_ids_than_are_stored_ahead(durable: MakeDurable) -> None:
    with PeriodicMeta(durable(), period_s=600) as meta:
        meta.subscribe("apply")
        for batch in (1, RESERVED_IDS, RESERVED_IDS + 1, RESERVED_IDS + 2, 5 * RESERVED_IDS):
            meta.add_batch("apply", entry(batch, batch, batch + 1))
            assert stored(durable).subscription("apply").next_batch > batch


def test_a_second_process_is_refused_naming_the_first(durable: MakeDurable) -> None:
    with (
        worker(durable, period_s=600),
        PeriodicMeta(durable(), lock_wait_s=0.2) as meta,
        pytest.raises(LeaseHeldError, match=r"process \d+.*(holds this lock|keeps this meta in memory)"),
    ):
        meta.read()
    with PeriodicMeta(durable()) as meta:  # waits until the hold of the killed process is released
        assert list(meta.subscriptions()) == ["apply"]


@pytest.mark.parametrize("period_s", [0.02, 600])
def test_a_change_of_another_process_is_not_overwritten(durable: MakeDurable, period_s: float) -> None:
    meta = PeriodicMeta(durable(), period_s=period_s)
    meta.subscribe("apply")
    with durable() as other:
        other.update_cursor("apply", 77)
    meta.update_cursor("apply", 5)
    with pytest.raises(LeaseHeldError, match="was changed by another process"):
        meta.subscribe("audit")
    assert stored(durable).subscription("apply").acked_seq == 77
    with pytest.raises(LeaseHeldError, match="was changed by another process"):
        meta.close()
    assert stored(durable).subscription("apply").acked_seq == 77


@pytest.mark.rule("canal-meta-20")
def test_the_period_is_a_second_unless_given(tmp_path: Path) -> None:
    """As in Canal's period-mixed and file-mixed managers."""
    with PeriodicMeta(FileMeta(tmp_path, "shop")) as meta:
        meta.subscribe("apply")
        began = time.monotonic()
        meta.update_cursor("apply", 5)
        assert FileMeta(tmp_path, "shop").cursor("apply") == 0
        wait_until(lambda: FileMeta(tmp_path, "shop").cursor("apply") == 5)
        assert 0.9 <= time.monotonic() - began < 5


def test_the_period_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="period_s: 0 must be more than 0"):
        PeriodicMeta(FileMeta(tmp_path, "shop"), period_s=0)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
