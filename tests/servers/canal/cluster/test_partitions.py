"""Two servers of a cluster, each on a machine of its own, under load with clients that ack: cables that are out, machines
that crash or stand still, a leader and a standby in trouble, and clients that die or rest, at random moments.

ZooKeeper, the source, the load and the clients are on the host.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cdc.connector.cluster import ClusterConnector, ZooKeeper
from cdc.connector.link import Login
from cdc.testing.servers import Server
from tests.support.cluster import CANAL_PASSWORD, Cluster, ClusterServer, seeds, until
from tests.support.machines import Machine, Site

Database = Callable[[Server], str]

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of their own take root"),
]
TAKEOVER_S = 10.0
SESSION_S = 4.0
"""The session time-out of the servers in :class:`Cluster`."""


@contextmanager
def separate_cluster(
    folder: Path, source: Server, database: str, zookeeper: Server, seed: int
) -> Iterator[tuple[Cluster, str]]:
    """Starts a cluster of two servers, each on a machine of its own, and the load; yields it and its root node."""
    root = f"/otter/{secrets.token_hex(4)}"
    site_folder = folder / "site"
    site_folder.mkdir()
    with Site(site_folder) as site:
        site.forward(source.port)
        machines = [site.machine(name) for name in ("one", "two")]
        with Cluster(folder, source, database, zookeeper, root, seed, machines=machines) as cluster, cluster.load:
            yield cluster, root


def machine_of(server: ClusterServer) -> Machine:
    assert server.machine is not None
    return server.machine


@dataclass
class Nemesis:
    """Disturbs servers and clients of a cluster, and waits after each fault until a server answers again."""

    cluster: Cluster
    pick: random.Random
    takeovers: list[tuple[str, float]] = field(default_factory=list)
    """The faults after which another server took over, and the seconds in which nobody answered."""

    def disturb(self, what: str) -> None:
        until(lambda: self.cluster.leader() is not None, 60, self.cluster.describe)
        until(lambda: len(self.cluster.discovery.members()) == 2, 60, self.cluster.describe)
        FAULTS[what](self)

    def leader(self) -> ClusterServer:
        leader = self.cluster.leader()
        assert leader is not None
        return leader

    def standby(self) -> ClusterServer:
        leader = self.leader()
        return next(server for server in self.cluster.servers if server is not leader)

    def wait(self, least_s: float, most_s: float) -> None:
        time.sleep(self.pick.uniform(least_s, most_s))

    def answered(self, since: float) -> None:
        """Waits until a server has answered a question that was asked after this moment."""
        until(lambda: self.cluster.answered_after(since) is not None, 60, self.cluster.describe)

    def taken_over(self, what: str, since: float, former: ClusterServer) -> None:
        """Waits until another server answers."""
        until(lambda: self.cluster.answered_after(since, former) is not None, 60, self.cluster.describe)
        answered = self.cluster.answered_after(since, former)
        assert answered is not None
        self.takeovers.append((what, round(answered - since, 2)))

    # --- the leader

    def leader_without_cable(self) -> None:
        leader, since = self.leader(), time.monotonic()
        machine_of(leader).cable("down")
        self.taken_over("the leader's cable is out", since, leader)
        self.wait(0, 3)
        machine_of(leader).cable("up")

    def leader_without_cable_for_a_moment(self) -> None:
        machine = machine_of(self.leader())
        machine.cable("down")
        self.wait(0.1, 1.5)
        machine.cable("up")
        self.answered(time.monotonic())

    def leader_crashes(self) -> None:
        leader, since = self.leader(), time.monotonic()
        leader.crash()
        self.taken_over("the leader's machine crashes", since, leader)
        self.wait(0, 2)
        machine_of(leader).cable("up")
        leader.start()

    def leader_stopped(self) -> None:
        leader, since = self.leader(), time.monotonic()
        leader.pause()
        self.taken_over("the leader is stopped", since, leader)
        self.wait(0, 3)
        leader.resume()

    def leaders_machine_stands_still(self) -> None:
        leader, since = self.leader(), time.monotonic()
        machine_of(leader).signal(signal.SIGSTOP)
        self.taken_over("the leader's machine stands still", since, leader)
        self.wait(0, 3)
        machine_of(leader).signal(signal.SIGCONT)

    # --- the standby

    def standby_without_cable_then_leader_killed(self) -> None:
        leader, standby = self.leader(), self.standby()
        machine_of(standby).cable("down")
        self.wait(1, 2 * SESSION_S)
        machine_of(standby).cable("up")
        until(lambda: len(self.cluster.discovery.members()) == 2, 60, self.cluster.describe)
        self.wait(0, 1)
        since = time.monotonic()
        leader.kill()
        self.taken_over("the leader is killed after the standby's cable was out", since, leader)
        leader.start()

    def standby_killed(self) -> None:
        standby = self.standby()
        standby.kill()
        self.wait(0, 2 * SESSION_S)
        self.answered(time.monotonic())
        standby.start()

    def standby_stopped(self) -> None:
        standby = self.standby()
        standby.pause()
        self.wait(0.5, 2 * SESSION_S)
        self.answered(time.monotonic())
        standby.resume()

    # --- the path to ZooKeeper

    def zookeeper_away(self) -> None:
        """Both lose their sessions, and the leader stops to answer before."""
        since = time.monotonic()
        for server in self.cluster.servers:
            server.proxy.freeze()
        self.wait(SESSION_S + 1.5, SESSION_S + 4)
        asked = [asked for probe in self.cluster.probes for asked, _, _ in list(probe.answers)]
        assert not [moment for moment in asked if moment > since + SESSION_S], "a server answered after its session"
        for server in self.cluster.servers:
            server.proxy.cut()
            server.proxy.thaw()
        self.answered(time.monotonic())

    def zookeeper_away_for_a_moment(self) -> None:
        for server in self.cluster.servers:
            server.proxy.freeze()
        self.wait(0.1, 1.5)
        for server in self.cluster.servers:
            server.proxy.thaw()
        self.answered(time.monotonic())

    # --- clients

    def client_dies(self) -> None:
        self.cluster.canal.dies.set()
        self.cluster.batches.dies.set()
        self.wait(0, 1)

    def client_rests(self) -> None:
        self.cluster.canal.rest_s = self.pick.uniform(1, 2 * SESSION_S)
        self.wait(0, 2)


FAULTS: dict[str, Callable[[Nemesis], None]] = {
    "leader without cable": Nemesis.leader_without_cable,
    "leader without cable for a moment": Nemesis.leader_without_cable_for_a_moment,
    "leader crashes": Nemesis.leader_crashes,
    "leader stopped": Nemesis.leader_stopped,
    "leader's machine stands still": Nemesis.leaders_machine_stands_still,
    "standby without cable, then leader killed": Nemesis.standby_without_cable_then_leader_killed,
    "standby killed": Nemesis.standby_killed,
    "standby stopped": Nemesis.standby_stopped,
    "ZooKeeper away": Nemesis.zookeeper_away,
    "ZooKeeper away for a moment": Nemesis.zookeeper_away_for_a_moment,
    "client dies": Nemesis.client_dies,
    "client rests": Nemesis.client_rests,
}


@pytest.mark.parametrize("seed", seeds(8))
def test_partitions_at_random_moments(
    seed: int,
    mysql9: Server,
    zookeeper: Server,
    database: Database,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    pick = random.Random(seed)
    faults = pick.sample(sorted(FAULTS), 5)
    with separate_cluster(tmp_path, mysql9, database(mysql9), zookeeper, seed) as (cluster, _):
        nemesis = Nemesis(cluster, pick)
        for what in faults:
            time.sleep(pick.uniform(0.2, 2.0))
            print(f"{time.monotonic():.2f} {what}", flush=True)
            nemesis.disturb(what)
        cluster.level(180)
        cluster.check()
        assert cluster.load.transactions > 20 and cluster.batches.acked
        assert cluster.discovery.epoch() > len(nemesis.takeovers)
        if "client dies" in faults:
            assert cluster.canal.deaths == 1
    print(f"seed {seed}: {faults}: takeovers {nemesis.takeovers}")
    record_property("takeovers", nemesis.takeovers)
    assert all(took < TAKEOVER_S for _, took in nemesis.takeovers), nemesis.takeovers


@pytest.mark.parametrize("fault", ["cable", "stopped"])
def test_a_connector_turns_to_the_new_leader(
    fault: str, mysql9: Server, zookeeper: Server, database: Database, tmp_path: Path
) -> None:
    """The old leader ends none of its connections: its cable is out, or its kernel confirms what its process does not
    answer, for longer than ``retry_for_s``."""
    login = Login("shop", 1002, "canal", CANAL_PASSWORD, answer_timeout_s=60 if fault == "cable" else 20)
    with separate_cluster(tmp_path, mysql9, database(mysql9), zookeeper, 1) as (cluster, root):
        where = ZooKeeper(zookeeper.url, root)
        with ClusterConnector(where, login, retry_for_s=60 if fault == "cable" else 15) as connector:
            connector.subscribe()
            until(lambda: connector.get_without_ack(10, 1.0), 60, cluster.describe)
            connector.rollback(confirm=True)
            leader = cluster.leader()
            assert leader is not None
            if fault == "cable":
                machine_of(leader).cable("down")
            else:
                leader.pause()
            began = time.monotonic()
            batch = connector.get_without_ack(10)
            print(f"{fault}: a batch from the new leader after {time.monotonic() - began:.1f} s")
            assert batch and cluster.leader() is not leader
            connector.ack(batch.id, confirm=True)
            machine_of(leader).cable("up")
            leader.resume()
