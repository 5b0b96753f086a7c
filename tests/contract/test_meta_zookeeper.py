"""The contract of metas for a real ZooKeeper."""

from __future__ import annotations

import functools

import pytest

from cdc.meta.zookeeper import ZooKeeperMeta
from cdc.testing.meta_contract import MakeMeta, SharedMetaContract
from cdc.testing.servers import Server
from tests.contract.meta_support import maker


@pytest.fixture
def make_zookeeper(zookeeper: Server) -> functools.partial[ZooKeeperMeta]:
    return maker(zookeeper)


class TestZooKeeper(SharedMetaContract):
    @pytest.fixture
    def make_meta(self, make_zookeeper: functools.partial[ZooKeeperMeta]) -> MakeMeta:
        return make_zookeeper
