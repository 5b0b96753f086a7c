"""The contract of metas for a real ZooKeeper: stored at once, and stored periodically."""

from __future__ import annotations

import functools

import pytest

from cdc.event_store.periodic_meta import PeriodicMeta
from cdc.meta import Meta
from cdc.meta.zookeeper import ZooKeeperMeta
from cdc.testing.meta_contract import MakeMeta, MetaContract, SharedMetaContract
from cdc.testing.servers import Server
from tests.contract.meta_support import maker


@pytest.fixture
def make_zookeeper(zookeeper: Server) -> functools.partial[ZooKeeperMeta]:
    return maker(zookeeper)


class TestZooKeeper(SharedMetaContract):
    @pytest.fixture
    def make_meta(self, make_zookeeper: functools.partial[ZooKeeperMeta]) -> MakeMeta:
        return make_zookeeper


class TestZooKeeperPeriodic(MetaContract):
    @pytest.fixture
    def make_meta(self, make_zookeeper: functools.partial[ZooKeeperMeta]) -> MakeMeta:
        def make(*, lock_wait_s: float = 30.0) -> Meta:
            return PeriodicMeta(make_zookeeper(), period_s=0.02, lock_wait_s=lock_wait_s)

        return make
