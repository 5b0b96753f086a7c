"""Servers of a cluster with an ensemble of three ZooKeepers, whose members are killed under load: the one that leads, the
one that the destination's leader is connected to, and two of three at once."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdc.testing.servers import Server, ZooKeeperEnsemble
from tests.support.cluster import Cluster, ClusterServer, seeds, until

Database = Callable[[Server], str]

pytestmark = pytest.mark.long
CHROOT = "/towpath"
ANSWER_S = 10.0
SESSION_S = 4.0
"""The session time-out of the servers in :class:`Cluster`."""


@pytest.fixture
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble() as started:
        yield started


@dataclass(frozen=True)
class Fault:
    """What is killed at once."""

    zookeepers: str
    """Members of the ensemble: ``none``, its ``leader``, the one that the destination's leader ``uses``, or ``two``."""
    server: bool
    """Whether the destination's leader is killed, too."""


FAULTS = (
    Fault("leader", server=False),
    Fault("uses", server=False),
    Fault("uses", server=True),
    Fault("leader", server=True),
    Fault("two", server=False),
)


def disturb(cluster: Cluster, ensemble: ZooKeeperEnsemble, fault: Fault, pick: random.Random) -> float:
    """Kills, waits until somebody answers, and starts again what was killed. Returns the longest time in which nobody
    answered while most members of the ensemble ran."""
    server = cluster.leader()
    assert server is not None
    members = chosen(server, ensemble, fault.zookeepers, pick)
    at = time.monotonic()
    for member in members:
        member.kill()
    if fault.server:
        server.kill()
    if len(members) == 2:
        time.sleep(SESSION_S + pick.uniform(0.5, 3.0))
        asked = [asked for probe in cluster.probes for asked, _, _ in list(probe.answers)]
        assert not [moment for moment in asked if moment > at + SESSION_S], (
            "a server answered while nobody could elect another"
        )
        at = time.monotonic()
        members[0].restart()
    former = server if fault.server else None
    until(lambda: cluster.answered_after(at, former) is not None, 60, cluster.describe)
    time.sleep(SESSION_S + pick.uniform(0.0, 2.0))  # a leader answers for most of its session without ZooKeeper
    pause_s = cluster.longest_pause_s(at)
    for member in members:
        if not member.alive:
            member.restart()
    if fault.server:
        server.start()
    ensemble.wait()
    return pause_s


def chosen(server: ClusterServer, ensemble: ZooKeeperEnsemble, which: str, pick: random.Random) -> list[Server]:
    """Returns the members of the ensemble that are killed."""
    if which == "leader":
        return [ensemble.wait()]
    if which == "two":
        return pick.sample(ensemble.members, 2)
    used = [member for member, proxy in zip(ensemble.members, server.proxy.each, strict=True) if proxy.used]
    assert used, "the leader is connected to no member"
    return used[:1]


@pytest.mark.parametrize("seed", seeds(4))
def test_members_of_the_ensemble_die_under_load(
    seed: int,
    mysql9: Server,
    ensemble: ZooKeeperEnsemble,
    database: Database,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """``meta.hosts`` names all members, and a node below which everything is."""
    pick = random.Random(seed)
    faults = pick.sample(FAULTS, 3)
    root = f"/otter/{secrets.token_hex(4)}"
    took = []
    with Cluster(
        tmp_path, mysql9, database(mysql9), ensemble, root, seed, chroot=CHROOT
    ) as cluster, cluster.load:  # fmt: skip
        for fault in faults:
            time.sleep(pick.uniform(0.2, 2.0))
            epoch = cluster.discovery.epoch()
            took.append((fault, round(disturb(cluster, ensemble, fault, pick), 2)))
            if fault.server:
                assert cluster.discovery.epoch() > epoch, "nobody took over"
        cluster.level()
        cluster.check()
        assert cluster.load.transactions > 20 and cluster.batches.acked
    print(f"seed {seed}: nobody answered for {took}")
    record_property("seconds", took)
    assert all(seconds < ANSWER_S for _, seconds in took), took
