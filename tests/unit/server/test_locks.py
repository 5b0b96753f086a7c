"""Locks that clients hold at a server: renewed, lost with their client, and shared with processes beside the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.base.errors import LeaseHeldError, MetaUnavailableError, TokenError, UnsupportedError, UsageError
from cdc.batches import parking
from cdc.client import meta as client_meta
from cdc.client.meta import RemoteMeta
from cdc.meta import ParkedTable, open_meta
from cdc.server.destinations import ServedDestination
from cdc.server.locks import LockTable
from cdc.wire.connection import Connection
from tests.support.server import TOKEN, in_thread, with_tokens
from tests.support.unit_batches import IDENTITY, Clock, make_config, make_store

NAME, ID, OTHER = "job-shop.orders", "a" * 32, "b" * 32


@pytest.fixture
def served(tmp_path: Path) -> ServedDestination:
    config = with_tokens(make_config(tmp_path))
    make_store(config.store.path)
    open_meta(config).bind_source(IDENTITY)
    served = ServedDestination(config)
    served.batches.subscribe("apply")
    return served


@pytest.fixture
def meta(served: ServedDestination) -> Iterator[RemoteMeta]:
    with in_thread([served]) as url:
        yield RemoteMeta(Connection(url, "shop", TOKEN, retry_for_s=2))


class Seconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_lock_that_is_not_renewed_is_released(served: ServedDestination) -> None:
    clock = Seconds()
    table = LockTable(served.meta, ttl_s=30, clock=clock)
    table.acquire(ID, NAME, "a job", "apply", shared=False)
    clock.now = 29
    with pytest.raises(LeaseHeldError):
        table.acquire(OTHER, NAME, "a job", "apply", shared=False)
    assert table.renew([ID, OTHER], "apply") == [OTHER]
    clock.now = 58
    table.acquire(ID, NAME, "a job", "apply", shared=False)  # a repetition renews it, too
    clock.now = 88
    table.acquire(OTHER, NAME, "a job", "apply", shared=False)
    assert table.renew([ID], "apply") == [ID]
    assert not table.release(ID, "apply")
    assert table.release(OTHER, "apply")
    assert len(table) == 0


def test_a_lock_belongs_to_its_subscriber(served: ServedDestination) -> None:
    table = LockTable(served.meta)
    table.acquire(ID, NAME, "a job", "apply", shared=False)
    assert table.renew([ID], "audit") == [ID]
    assert not table.release(ID, "audit")
    with pytest.raises(TokenError):
        table.acquire(ID, NAME, "a job", "audit", shared=False)
    table.close()


def test_a_client_and_a_process_beside_the_server_exclude_each_other(
    meta: RemoteMeta, served: ServedDestination
) -> None:
    local_meta = open_meta(served.config)
    with (
        meta.lock(NAME, "a job"),
        pytest.raises(LeaseHeldError, match="holds this lock"),
        local_meta.lock(NAME, "a job"),
    ):
        pass
    with local_meta.lock(NAME, "a job"), pytest.raises(LeaseHeldError), meta.lock(NAME, "a job", wait_s=0.1):
        pass
    with local_meta.lock(NAME, "x", shared=True), meta.lock(NAME, "x", shared=True), meta.lock(NAME, "x", shared=True):
        assert len(served.locks) == 2
    assert len(served.locks) == 0


def test_a_waiting_client_gets_the_lock_when_it_is_free(meta: RemoteMeta, served: ServedDestination) -> None:
    held = threading.Event()

    def hold() -> None:
        with open_meta(served.config).lock(NAME, "a job"):
            held.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(5)
    with meta.lock(NAME, "a job", wait_s=10):
        assert not thread.is_alive() or len(served.locks) == 1
    thread.join()


@pytest.mark.parametrize("name", ["../meta.json", "..", "x", "commit-../../x", "commit-a/b", "job-\x00"])
def test_only_locks_of_tables_can_be_taken(meta: RemoteMeta, name: str) -> None:
    with pytest.raises(UsageError), meta.lock(name, "x"):
        pass


def test_a_restarted_server_gives_a_lock_back_unless_another_has_it(
    meta: RemoteMeta, served: ServedDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_meta, "LOCK_TTL_S", 1.5)  # renewed each 0.5 s
    with meta.lock(NAME, "a job"):
        served.locks.close()  # what a restart does
        deadline = time.monotonic() + 60
        while len(served.locks) == 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        meta.require_locks()
        lock = open_meta(served.config).lock(NAME, "another")
        served.locks.close()
        with lock:
            while True:
                assert time.monotonic() < deadline
                try:
                    meta.require_locks()
                except MetaUnavailableError as error:
                    if "another" in str(error) or "holds this lock" in str(error):
                        break
                time.sleep(0.02)
            with pytest.raises(MetaUnavailableError, match=r"the lock job-shop\.orders is lost"):
                parking.release_parked(meta, "apply", "shop.orders")
    meta.require_locks()


def test_parked_tables_are_changed_by_the_server(meta: RemoteMeta, served: ServedDestination) -> None:
    record = ParkedTable(due="retry", reason="It failed.", since=Clock().now, keep_seq=5)
    assert parking.park(meta, "apply", "shop.orders", record) is None
    assert parking.park(meta, "apply", "shop.orders", record) == record
    assert open_meta(served.config).read().subscription("apply").parked == {"shop.orders": record}
    parking.keep_from(meta, "apply", "shop.orders", 7)
    assert meta.read().subscription("apply").parked["shop.orders"].keep_seq == 7
    parking.release_parked(meta, "apply", "shop.orders")
    assert meta.read().subscription("apply").parked == {}
    with pytest.raises(UsageError, match="is not parked"):
        parking.keep_from(meta, "apply", "shop.orders", 7)
    with pytest.raises(UnsupportedError, match="changed by the server alone"):
        meta.change()
