"""Servers of a cluster as processes, with a real source and ZooKeeper, under load with clients that ack: a leader that is
killed, paused, stopped or cut off, and a ZooKeeper that restarts, at random moments."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from cdc.store.formats.state import read_capture_state
from cdc.testing.servers import Server
from tests.support.cluster import Cluster, ClusterServer, seeds, until

Database = Callable[[Server], str]

TAKEOVER_S = 10.0


@dataclass(frozen=True)
class Takeover:
    """The consequences of a fault."""

    what: str
    at: float
    leader: str
    """The address of the server that led."""
    seconds: float
    """How long nobody answered."""

    def first_event_s(self, cluster: Cluster) -> float | None:
        """Returns how long it took until a reader had changes from another server; None if that one was disturbed, too,
        before it had any."""
        got = [
            answer.got for answer in cluster.canal.answers if answer.asked > self.at and answer.address != self.leader
        ]
        return None if not got else round(min(got) - self.at, 2)


def disturb(cluster: Cluster, what: str, pick: random.Random) -> Takeover | None:
    """Does something to the leader, waits until another server answers, and lets the leader come back. Returns None if
    no other server has to take over."""
    leader = cluster.leader()
    assert leader is not None
    at = time.monotonic()
    if what == "restart zookeeper":
        assert isinstance(cluster.zookeeper, Server)
        cluster.zookeeper.kill()
        time.sleep(pick.uniform(0.1, 3.0))
        cluster.zookeeper.restart()
        until(lambda: cluster.answered_after(at) is not None, 60, cluster.describe)
        return None
    if what == "cut for a moment":
        leader.proxy.freeze()
        time.sleep(pick.uniform(0.1, 1.5))
        leader.proxy.cut()
        leader.proxy.thaw()
        time.sleep(1)
        return None
    {"kill": leader.kill, "pause": leader.pause, "cut": leader.proxy.freeze, "stop": leader.stop}[what]()
    until(lambda: cluster.answered_after(at, leader) is not None, 60, cluster.describe)
    answered = cluster.answered_after(at, leader)
    assert answered is not None
    time.sleep(pick.uniform(0.0, 2.0))
    come_back(leader, what)
    return Takeover(what, at, leader.address, answered - at)


def come_back(server: ClusterServer, what: str) -> None:
    if what in ("kill", "stop"):
        server.start()
    elif what == "pause":
        server.resume()
    else:
        server.proxy.cut()
        server.proxy.thaw()


def run(
    folder: Path, source: Server, database: str, zookeeper: Server, seed: int, faults: list[str]
) -> list[tuple[str, float, float | None]]:
    """Runs a cluster through these faults, and checks what its clients saw. Returns of each takeover how long nobody
    answered, and how long a reader had no changes."""
    pick = random.Random(seed)
    times: list[Takeover] = []
    with Cluster(folder, source, database, zookeeper, f"/otter/{secrets.token_hex(4)}", seed) as cluster, cluster.load:
        for what in faults:
            time.sleep(pick.uniform(0.2, 2.0))
            took = disturb(cluster, what, pick)
            if took is not None:
                times.append(took)
        cluster.level()
        cluster.check()
        assert cluster.load.transactions > 20 and cluster.batches.acked
        assert cluster.discovery.epoch() > len(times)
        return [(takeover.what, round(takeover.seconds, 2), takeover.first_event_s(cluster)) for takeover in times]


def ready_capture(server: ClusterServer) -> int | None:
    """Returns the process that waits in a server until it takes over."""
    assert server.process is not None
    children = psutil.Process(server.process.pid).children()
    return next((child.pid for child in children if "cdc.cli.ready" in child.cmdline()), None)


@pytest.mark.long
def test_another_server_takes_over_from_a_killed_leader(
    mysql9: Server, zookeeper: Server, database: Database, tmp_path: Path
) -> None:
    root = f"/otter/{secrets.token_hex(4)}"
    with Cluster(tmp_path, mysql9, database(mysql9), zookeeper, root, 1) as cluster, cluster.load:
        other = next(server for server in cluster.servers if server is not cluster.leader())
        until(lambda: ready_capture(other) is not None)
        ready = ready_capture(other)
        took = disturb(cluster, "kill", random.Random(1))
        cluster.level()
        cluster.check()
        assert cluster.load.transactions > 20 and cluster.batches.acked
        assert took is not None and took.seconds < TAKEOVER_S
        state = read_capture_state(other.folder / "data" / "store")
        assert state is not None and state.pid == ready, "the capture that was ready was not used"
        until(lambda: any(ready_capture(server) for server in cluster.servers))
        waits = next(pid for server in cluster.servers if (pid := ready_capture(server)) is not None)
    until(lambda: not psutil.pid_exists(waits), 10)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(20))
def test_faults_at_random_moments(
    seed: int, mysql9: Server, database: Database, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pick = random.Random(seed)
    kinds = ["kill", "pause", "cut", "stop", "cut for a moment", "restart zookeeper"]
    faults = [pick.choice(kinds) for _ in range(3)]
    with Server("zookeeper", folder=tmp_path / "zookeeper") as own:
        times = run(tmp_path, mysql9, database(mysql9), own, seed, faults)
    print(f"seed {seed}: {faults}: takeovers, and first events after them: {times}")
    record_property("takeovers", times)
    assert all(took < TAKEOVER_S for _, took, _ in times), times
