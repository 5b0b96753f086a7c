"""The contract of metas for the one in shared memory that ``cdc server`` stores each second, and what a kill loses."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc.base.errors import LeaseHeldError, StorageError
from cdc.meta import State
from cdc.meta.base import DurableMeta
from cdc.meta.file import FileMeta
from cdc.meta.mixed import RESERVED_IDS, MixedMeta
from cdc.testing.meta_contract import IDENTITY, MakeMeta, MetaContract, add_batch, entry
from cdc.testing.servers import Server
from tests.contract.meta_support import maker

MakeDurable = Callable[[], DurableMeta]


@pytest.fixture(params=["file", pytest.param("zookeeper", marks=pytest.mark.long)])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> MakeDurable:
    """Opens the durable meta below."""
    if request.param == "file":
        return functools.partial(FileMeta, tmp_path / "disk", "shop")
    return maker(request.getfixturevalue("zookeeper"))


def begun(tmp_path: Path, durable: MakeDurable, *, lock_wait_s: float = 30.0, period_s: float = 60.0) -> MixedMeta:
    meta = MixedMeta(FileMeta(tmp_path / "memory", "shop", lock_wait_s=lock_wait_s), durable(), period_s=period_s)
    meta.begin()
    return meta


class TestMixed(MetaContract):
    @pytest.fixture
    def make_meta(self, tmp_path: Path, durable: MakeDurable) -> MakeMeta:
        def make(*, lock_wait_s: float = 30.0) -> MixedMeta:
            return begun(tmp_path, durable, lock_wait_s=lock_wait_s)

        return make


def test_subscribers_are_stored_at_once_and_cursors_each_period(tmp_path: Path, durable: MakeDurable) -> None:
    meta = begun(tmp_path, durable, period_s=0.2)
    try:
        meta.bind_source(IDENTITY)
        meta.subscribe("canal-1001", "shop")
        add_batch(meta, "canal-1001", entry(1, 0, 5))
        with durable() as other:
            subscription = other.read().subscription("canal-1001")
            assert (subscription.filter, subscription.next_batch) == ("shop", 1 + RESERVED_IDS)
            meta.update_cursor("canal-1001", 5)
            deadline = time.monotonic() + 10
            while other.read().subscription("canal-1001").acked_seq != 5:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert other.source() == IDENTITY
    finally:
        meta.close()


@pytest.mark.rule("canal-meta-19")
def test_what_a_kill_loses_comes_again_under_new_ids(tmp_path: Path, durable: MakeDurable) -> None:
    killed = begun(tmp_path, durable)
    killed.subscribe("canal-1001")
    killed.update_cursor("canal-1001", 5)
    add_batch(killed, "canal-1001", entry(7, 5, 9))
    killed._durable.close()  # as its death would release it, without a last write
    reopened = begun(tmp_path, durable)
    try:
        subscription = reopened.read().subscription("canal-1001")
        assert (subscription.acked_seq, subscription.outstanding) == (0, [])
        assert subscription.next_batch > 7
    finally:
        reopened.close()


def test_a_change_by_the_capture_is_stored_too(tmp_path: Path, durable: MakeDurable) -> None:
    meta = begun(tmp_path, durable, period_s=0.1)
    try:
        FileMeta(tmp_path / "memory", "shop").bind_source(IDENTITY)  # another process
        deadline = time.monotonic() + 10
        with durable() as other:
            while other.source() != IDENTITY:
                assert time.monotonic() < deadline
                time.sleep(0.02)
    finally:
        meta.close()


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
    file = Counting(tmp_path / "disk", "shop")
    with begun(tmp_path, lambda: file, period_s=0.1) as meta:
        meta.subscribe("apply")
        before, began = file.changes, time.monotonic()
        for seq in range(1, 301):
            meta.update_cursor("apply", seq)
        wait_until(lambda: FileMeta(tmp_path / "disk", "shop").cursor("apply") == 300)
        assert 1 <= file.changes - before <= (time.monotonic() - began) / 0.1 + 2
        before = file.changes
        time.sleep(0.35)
        assert file.changes == before


def test_a_full_disk_is_tried_again_and_changes_that_must_be_stored_are_refused(tmp_path: Path) -> None:
    file = Counting(tmp_path / "disk", "shop")
    with begun(tmp_path, lambda: file, period_s=0.02) as meta:
        meta.subscribe("apply")
        file.full = True
        meta.update_cursor("apply", 5)
        with pytest.raises(StorageError, match="No space left"):
            meta.subscribe("audit")
        time.sleep(0.1)
        assert (list(meta.subscriptions()), meta.cursor("apply")) == (["apply"], 5)
        file.full = False
        wait_until(lambda: FileMeta(tmp_path / "disk", "shop").cursor("apply") == 5)


class SlowToCommit(FileMeta):
    """Takes a while between the end of a change and its write, once a test says so."""

    pause_s = 0.0

    @contextmanager
    def change(self) -> Iterator[State]:
        with super().change() as state:
            yield state
            time.sleep(self.pause_s)


def test_a_flush_does_not_store_the_state_before_a_subscriber(tmp_path: Path) -> None:
    """The subscriber is in the durable meta while the shared one does not have it yet."""
    shared = SlowToCommit(tmp_path / "memory", "shop")
    with MixedMeta(shared, FileMeta(tmp_path / "disk", "shop"), period_s=0.01) as meta:
        meta.begin()
        shared.pause_s = 0.2
        with ThreadPoolExecutor(1) as pool:
            subscribed = pool.submit(meta.subscribe, "apply")
            stored = FileMeta(tmp_path / "disk", "shop")
            wait_until(lambda: list(stored.subscriptions()) == ["apply"])
            while not subscribed.done():
                assert list(stored.subscriptions()) == ["apply"]


def test_zookeeper_may_stop_and_come_back(tmp_path: Path) -> None:
    with Server("zookeeper", folder=tmp_path / "zookeeper") as server:
        make = maker(server)
        with begun(tmp_path, make, period_s=0.05) as meta:
            meta.subscribe("apply")
            server.kill()
            for seq in range(1, 6):
                meta.update_cursor("apply", seq)
            server.restart()
            with make() as other:
                wait_until(lambda: other.cursor("apply") == 5)
            meta.subscribe("audit")


@pytest.mark.rule("canal-meta-20")
def test_the_period_is_a_second_unless_given(tmp_path: Path) -> None:
    """The default is that of Canal's period-mixed and file-mixed managers."""
    stored = FileMeta(tmp_path / "disk", "shop")
    meta = MixedMeta(FileMeta(tmp_path / "memory", "shop"), FileMeta(tmp_path / "disk", "shop"))
    meta.begin()
    with meta:
        meta.subscribe("apply")
        began = time.monotonic()
        meta.update_cursor("apply", 5)
        assert stored.cursor("apply") == 0
        wait_until(lambda: stored.cursor("apply") == 5)
        assert time.monotonic() - began < 30


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_server_holds_what_is_stored(tmp_path: Path) -> None:
    durable = functools.partial(FileMeta, tmp_path / "disk", "shop")
    meta = begun(tmp_path, durable)
    second = MixedMeta(FileMeta(tmp_path / "elsewhere", "shop"), durable())
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("cdc.meta.mixed._HOLD_S", 0.1)
            with pytest.raises(LeaseHeldError, match="keeps this meta in memory"):
                second.begin()
    finally:
        meta.close()
    second.begin()
    second.close()


def test_a_subscription_that_cannot_be_stored_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the client would think that it is known, and a kill would lose where it begins."""
    meta = begun(tmp_path, functools.partial(FileMeta, tmp_path / "disk", "shop"))
    try:
        with monkeypatch.context() as patch:
            patch.setattr("cdc.meta.file.replace_file", _fails_below(tmp_path / "disk"))
            with pytest.raises(StorageError):
                meta.subscribe("canal-1001")
        assert meta.subscriptions() == {}
        meta.subscribe("canal-1001")
    finally:
        meta.close()


def _fails_below(folder: Path) -> Callable[[Path, bytes], None]:
    from cdc.disk.durable import replace_file

    def replace(path: Path, data: bytes) -> None:
        if path.is_relative_to(folder):
            raise StorageError("the disk is gone", place=str(path))
        replace_file(path, data)

    return replace
