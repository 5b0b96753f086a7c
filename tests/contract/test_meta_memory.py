"""The contract of metas for the meta in memory."""

from __future__ import annotations

import pytest

from cdc.event_store.memory_meta import MemoryMeta
from cdc.meta import Meta
from cdc.testing.meta_contract import MakeMeta, MetaContract


class TestMemory(MetaContract):
    @pytest.fixture
    def make_meta(self) -> MakeMeta:
        metas: list[MemoryMeta] = []

        def make(*, lock_wait_s: float = 30.0) -> Meta:
            if not metas:  # it lives only as long as the object
                metas.append(MemoryMeta("shop", lock_wait_s=lock_wait_s))
            return metas[0]

        return make
