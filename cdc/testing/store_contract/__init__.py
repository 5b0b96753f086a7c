"""The contract of :class:`cdc.store.contract.EventStore` as tests: subclass it for a store, and run it with pytest.

::

    class TestMyStore(StoreContract):
        limited = False

        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda events=None: MyStore(tmp_path)

        def batch_size(self, store, transactions):
            return sum(t.size_bytes for t in transactions)

What a subclass declares says what its store can do; a test that the store has no part in is not collected for it.
Random tests print their seed; ``TOWPATH_SEED`` sets another.
"""

from __future__ import annotations

from typing import Any

from cdc.testing.store_contract.base import MakeStore
from cdc.testing.store_contract.getting import Getting
from cdc.testing.store_contract.keeping import Keeping
from cdc.testing.store_contract.putting import Putting
from cdc.testing.store_contract.settling import Settling


class StoreContract(Putting, Getting, Settling, Keeping):
    """Every rule of the contract. Subclasses override the fixture ``make_store``, and declare what their store is."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in dir(cls):
            capability = getattr(getattr(cls, name), "_needs", None)
            if capability is not None and not getattr(cls, capability):
                setattr(cls, name, None)


__all__ = ["MakeStore", "StoreContract"]
