"""The contract of event stores for the memory store in both batch modes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cdc.event_store.contract import EventStore
from cdc.event_store.memory_store import MemoryStore
from cdc.event_store.transaction import Transaction
from cdc.testing.store_contract import MakeStore, StoreContract


class TestItemsize(StoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        def make(events: int | None = None) -> EventStore:
            return MemoryStore(buffer_size=events or 16384, batch_mode="itemsize")

        return make


class TestMemsize(StoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        def make(events: int | None = None) -> EventStore:
            # A unit of one byte lets a batch size name exact bytes. In the small store it is the slots that are short.
            return MemoryStore(buffer_size=events or 1 << 18, buffer_unit_bytes=64 if events else 1)

        return make

    def batch_size(self, store: EventStore, transactions: Sequence[Transaction]) -> int:
        assert isinstance(store, MemoryStore)
        return -(-sum(t.size_bytes for t in transactions) // store.buffer_unit_bytes)
