"""ZooKeeper's servers in ``meta.hosts``, and the node that may follow them."""

from __future__ import annotations

import pytest

from cdc.config.meta import MetaConfig


@pytest.mark.parametrize(
    ("hosts", "servers", "base"),
    [
        ("h1:2181", "h1:2181", "/otter/canal"),
        ("h1:2181,[fd00::7]:2182/app", "h1:2181,[fd00::7]:2182", "/app/otter/canal"),
        ("h1:2181,h2:2181/team/app", "h1:2181,h2:2181", "/team/app/otter/canal"),
    ],
)
def test_a_node_behind_the_servers_precedes_the_root(hosts: str, servers: str, base: str) -> None:
    meta = MetaConfig.model_validate({"kind": "zookeeper", "hosts": hosts, "path": "/srv/meta"})
    assert (meta.zookeepers, meta.base) == (servers, base)
