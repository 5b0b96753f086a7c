"""The contract of event stores for the store on disk with a live standby: every put waits for both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.event_store.contract import EventStore
from cdc.event_store.file_store import RelayLogStore
from cdc.testing.store_contract import MakeStore, StoreContract
from tests.support.standby import Standby, digests, open_master


class TestSyncMaster(StoreContract):
    """PUT_OK is the only status that a put may return, as in the other stores: the standby has the transactions then. After
    each test the two stores are equal."""

    limited = False
    durable = True

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[MakeStore]:
        self.folder = tmp_path
        with ExitStack() as self.stack:

            def make(events: int | None = None) -> EventStore:
                return self.open()

            yield make

    def open(self) -> RelayLogStore:
        store = RelayLogStore.open(self.folder / "store", destination="shop", segment_bytes=65536)
        # A closed log is copied on: what a test looks at last is compared, too.
        self.stack.callback(store.close)
        master = open_master(store.log)
        self.stack.callback(master.close)
        standby = Standby(self.folder / "standby", master.address)
        self.running = ExitStack()
        self.running.callback(standby.close)
        self.stack.callback(self.compare)
        self.stack.callback(self.running.close)
        deadline = time.monotonic() + 10
        while not any(standby.connected for standby in master.standbys()):
            assert time.monotonic() < deadline, standby.error
            time.sleep(0.002)
        self.stack.callback(self.settle)
        return store

    def settle(self) -> None:
        """Waits until removals have reached the standby, which no put does."""
        deadline = time.monotonic() + 3
        while digests(self.folder / "store") != digests(self.folder / "standby") and time.monotonic() < deadline:
            time.sleep(0.01)

    def compare(self) -> None:
        assert digests(self.folder / "standby") == digests(self.folder / "store")

    def reopen(self, store: EventStore) -> EventStore:
        assert isinstance(store, RelayLogStore)
        store.close()
        self.stack.close()
        return self.open()
