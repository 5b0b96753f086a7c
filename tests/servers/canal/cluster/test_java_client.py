"""Canal's own cluster client for Java: it finds the leader in ZooKeeper, and goes on with another one after a kill."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from benchmarks.canal import java_cluster_client
from cdc.canal.cluster.discovery import Discovery
from cdc.testing.servers import Server
from tests.support.cluster import ClusterServer, Load, until

ROOT = "/otter/canal"
"""Canal's Java client knows no other one."""


@pytest.mark.long
def test_the_java_cluster_client_follows_the_leader(
    mysql9: Server, database: Callable[[Server], str], tmp_path: Path
) -> None:
    client = java_cluster_client()
    if client.missing:
        pytest.skip(client.missing)
    name, out = database(mysql9), tmp_path / "client.txt"
    with ExitStack() as stack:
        zookeeper = stack.enter_context(Server("zookeeper", folder=tmp_path / "zookeeper"))
        servers = [
            stack.enter_context(ClusterServer(number, tmp_path, mysql9, name, zookeeper, ROOT)) for number in (1, 2)
        ]
        for server in servers:
            server.start()
        discovery = Discovery(zookeeper.url, "shop", root=ROOT)
        stack.callback(discovery.close)
        raw = KazooClient(zookeeper.url)
        raw.start()
        stack.callback(raw.stop)
        file = stack.enter_context(out.open("wb"))
        reader = subprocess.Popen(
            [*client.command, zookeeper.url, "shop", r".*\..*"], stdout=file, stderr=subprocess.DEVNULL
        )
        stack.callback(reader.kill)

        def seen() -> set[int]:
            rows = [line.split() for line in out.read_text().splitlines() if line.startswith("ROW orders ")]
            return {int(row[2]) for row in rows}

        def describe() -> str:
            return out.read_text()[-3000:] + "".join(server.log.read_text()[-3000:] for server in servers)

        node = f"{ROOT}/destinations/shop/1001"
        until(lambda: raw.exists(f"{node}/towpath"), 90, describe)  # it has subscribed, before anything is written
        load = Load(mysql9, name, 1)
        with load:
            until(lambda: len(seen()) > 50, 90, describe)
            leader = discovery.leader()
            assert leader is not None
            old = next(server for server in servers if server.address == leader.address)
            before, at = max(load.committed), time.monotonic()
            old.kill()
            took = until(lambda: max(seen()) > before, 90, describe)
            print(f"the client had the first change after the kill within {took:.1f} s")
            successor = discovery.leader()
            assert successor is not None and successor.address != leader.address and time.monotonic() > at
        mysql9.execute(f"CREATE TABLE {name}.last (id INT PRIMARY KEY)", f"INSERT INTO {name}.last VALUES (1)")
        assert reader.wait(120) == 0, describe()
        assert seen() == load.committed
        # Canal's tools look for the position of the client here.
        cursor = json.loads(raw.get(f"{node}/cursor")[0])
        assert cursor["@type"].endswith("LogPosition") and cursor["postion"]["position"] > 4
