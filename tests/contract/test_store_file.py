"""The contract of event stores for the store on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cdc.event_store.contract import EventStore
from cdc.event_store.file_store import RelayLogStore
from cdc.event_store.transaction import Transaction
from cdc.store.writer.durability import FlushPolicy, PutStatus
from cdc.testing.store_contract import MakeStore, StoreContract
from tests.support.encryption import encrypted


class TestSync(StoreContract):
    limited = False
    durable = True
    policy = FlushPolicy()
    kind = RelayLogStore

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        def make(events: int | None = None) -> EventStore:
            return self.open(tmp_path / "store")

        return make

    def open(self, path: Path) -> RelayLogStore:
        return self.kind.open(path, destination="shop", segment_bytes=65536, policy=self.policy)

    def reopen(self, store: EventStore) -> EventStore:
        assert isinstance(store, RelayLogStore)
        store.close()
        return self.open(store.log.path)


class TestEncrypted(TestSync):
    """The same of an encrypted store."""

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[MakeStore]:
        with encrypted(tmp_path / "store"):
            yield lambda events=None: self.open(tmp_path / "store")


class FlushedAtOnce(RelayLogStore):
    """Flushes after each put: with asynchronous flush nothing is returned before it is flushed."""

    def put(self, transactions: Sequence[Transaction], *, timeout_s: float | None = None) -> PutStatus:
        status = super().put(transactions, timeout_s=timeout_s)
        self.log.flush()
        return status

    def try_put(self, transactions: Sequence[Transaction]) -> PutStatus:
        status = super().try_put(transactions)
        self.log.flush()
        return status


class TestAsync(TestSync):
    policy = FlushPolicy("async")
    kind = FlushedAtOnce
