"""The election of leaders and of clients, with a real ZooKeeper: one at a time, growing epochs, and lost sessions."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from cdc.base.errors import LeaseHeldError, MetaUnavailableError, NotLeaderError
from cdc.canal.cluster.candidacy import Candidacy
from cdc.canal.cluster.client_election import ClientElection
from cdc.canal.cluster.discovery import Discovery
from cdc.canal.cluster.member import Member
from cdc.canal.cluster.nodes import ServerNode, Tree
from cdc.meta.zookeeper import ZooKeeperMeta
from cdc.testing.meta_contract import IDENTITY
from cdc.testing.servers import Server as DatabaseServer
from tests.support.proxy import Proxy

_TIMEOUT_S = 4.0


@pytest.fixture
def tree() -> Tree:
    return Tree(f"/otter/{secrets.token_hex(4)}")


@pytest.fixture
def raw(zookeeper: DatabaseServer) -> Iterator[Any]:
    """A client of the test's own."""
    client = KazooClient(zookeeper.url)
    client.start()
    yield client
    client.stop()
    client.close()


class Servers:
    """Members of one cluster that compete for the destination ``shop``."""

    def __init__(self, hosts: str, tree: Tree) -> None:
        self.hosts, self.tree = hosts, tree
        self.members: list[Member] = []

    def start(
        self, number: int, hosts: str | None = None, *, timeout_s: float = _TIMEOUT_S, **options: Any
    ) -> tuple[Member, Candidacy, threading.Event]:
        me = ServerNode(f"10.0.0.{number}:11111", f"https://10.0.0.{number}:8040")
        member = Member(hosts or self.hosts, self.tree, me, session_timeout_s=timeout_s, **options)
        self.members.append(member)
        changed = threading.Event()
        return member, member.campaign("shop", changed.set), changed


@pytest.fixture
def servers(zookeeper: DatabaseServer, tree: Tree) -> Iterator[Servers]:
    servers = Servers(zookeeper.url, tree)
    yield servers
    for member in servers.members:
        member.close()


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> float:
    """Waits until a condition holds, and returns how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, "it did not come to that"
        time.sleep(0.01)
    return time.monotonic() - began


@pytest.mark.rule("canal-server-20")
@pytest.mark.rule("canal-server-21")
def test_one_leads_and_the_other_takes_over_when_it_leaves(
    servers: Servers, zookeeper: DatabaseServer, raw: Any, tree: Tree
) -> None:
    member, first, _ = servers.start(1)
    until(first.is_leader)
    _, second, _ = servers.start(2)
    until(lambda: second.leader is not None)
    assert first.held is not None and first.held.epoch == 1 and not second.is_leader()
    assert second.leader == ServerNode("10.0.0.1:11111", "https://10.0.0.1:8040")
    with pytest.raises(NotLeaderError) as refused:
        second.require()
    assert refused.value.leader == "https://10.0.0.1:8040" and "10.0.0.1:11111 does" in str(refused.value)

    # The nodes are those that Canal's clients read.
    data, stat = raw.get(tree.running("shop"))
    assert json.loads(data) == {"active": True, "address": "10.0.0.1:11111", "cid": 1} and stat.ephemeralOwner
    assert set(raw.get_children(tree.members("shop"))) == {"10.0.0.1:11111", "10.0.0.2:11111"}
    assert set(raw.get_children(f"{tree.root}/cluster")) == {"10.0.0.1:11111", "10.0.0.2:11111"}

    with Discovery(zookeeper.url, "shop", root=tree.root) as discovery:
        leads = discovery.leader()
        assert leads is not None and leads.address == "10.0.0.1:11111" and discovery.epoch() == 1
        assert [member.http for member in discovery.members()] == ["https://10.0.0.1:8040", "https://10.0.0.2:8040"]
        member.withdraw(first)
        assert until(second.is_leader) < 2
        assert second.held is not None and second.held.epoch == 2
        assert discovery.wait(5, other_than=leads).http == "https://10.0.0.2:8040"
        assert not first.is_leader()
    assert set(raw.get_children(tree.members("shop"))) == {"10.0.0.2:11111"}


def test_a_leader_that_is_cut_off_stops_before_another_one_begins(servers: Servers, zookeeper: DatabaseServer) -> None:
    with Proxy(zookeeper.port) as proxy:
        _, first, lost = servers.start(1, f"127.0.0.1:{proxy.port}")
        until(first.is_leader)
        _, second, _ = servers.start(2)
        until(lambda: second.leader is not None)
        lost.clear()
        proxy.freeze()
        cut_at = time.monotonic()
        stopped = [0.0]

        def watch() -> None:
            until(lambda: not first.is_leader())
            stopped[0] = time.monotonic()

        watching = threading.Thread(target=watch)
        watching.start()
        until(second.is_leader)
        took_s = time.monotonic() - cut_at
        watching.join()
        assert stopped[0] < cut_at + took_s, "the first leader answered while the second one did"
        assert took_s < 10
        assert second.held is not None and second.held.epoch == 2
        until(lambda: first.held is None)  # it notices by its own clock
        assert lost.is_set()
        proxy.cut()
        proxy.thaw()
        until(lambda: first.leader is not None and first.leader.address == "10.0.0.2:11111")
        servers.members[0].close()


def test_a_leader_that_is_cut_off_for_a_moment_goes_on_in_its_epoch(
    servers: Servers, zookeeper: DatabaseServer
) -> None:
    with Proxy(zookeeper.port) as proxy:
        # Long enough to connect again on a busy machine.
        member, first, _ = servers.start(1, f"127.0.0.1:{proxy.port}", timeout_s=5 * _TIMEOUT_S)
        until(first.is_leader)
        proxy.cut()
        until(lambda: member.client.connected)
        until(first.is_leader)
        time.sleep(_TIMEOUT_S / 2)
        assert first.is_leader() and first.held is not None and first.held.epoch == 1
        member.close()


def test_a_session_that_ends_before_its_time_is_noticed(servers: Servers, zookeeper: DatabaseServer) -> None:
    with Proxy(zookeeper.port) as proxy:
        member, first, _ = servers.start(1, f"127.0.0.1:{proxy.port}")
        until(first.is_leader)
        # Another connection to the same session ends it: as ZooKeeper does when it thinks that a server is dead. The
        # server's own connection is held meanwhile, else both would take the session from each other.
        proxy.freeze()
        other = KazooClient(zookeeper.url, client_id=member.client.client_id)
        other.start()
        other.stop()
        other.close()
        proxy.cut()
        proxy.thaw()
        until(lambda: first.held is None or first.held.epoch == 2)
        until(lambda: first.is_leader() and first.held is not None and first.held.epoch >= 2)
        member.close()


def test_a_node_that_somebody_deletes_ends_the_leadership(servers: Servers, raw: Any, tree: Tree) -> None:
    _, first, _ = servers.start(1)
    until(first.is_leader)
    raw.delete(tree.running("shop"))
    until(lambda: first.held is not None and first.held.epoch == 2)
    until(first.is_leader)


def test_a_change_of_an_earlier_leadership_is_refused_by_the_meta(
    servers: Servers, zookeeper: DatabaseServer, tree: Tree
) -> None:
    member, first, _ = servers.start(1)
    until(first.is_leader)
    with ZooKeeperMeta(zookeeper.url, "shop", root=tree.root) as plain:
        plain.bind_source(IDENTITY)
        plain.subscribe("apply")
    with ZooKeeperMeta(zookeeper.url, "shop", root=tree.root, fence=first.fence) as meta:
        meta.update_cursor("apply", 5)

        def change_slowly() -> None:
            with meta.change() as state:
                state.subscription("apply").acked_seq = 6
                # Another server is elected while this one is paused, and does not know it yet.
                held = first.held
                _, second, _ = servers.start(2)
                servers.members[0].client.delete(tree.running("shop"))
                until(lambda: second.is_leader() or (first.held not in (held, None)))

        with pytest.raises(MetaUnavailableError, match="BadVersionError"):
            change_slowly()
        assert meta.cursor("apply") == 5
    member.withdraw(first)
    with ZooKeeperMeta(zookeeper.url, "shop", root=tree.root, fence=first.fence) as meta:
        assert meta.cursor("apply") == 5  # reading is free
        with pytest.raises(NotLeaderError):
            meta.update_cursor("apply", 7)


@pytest.mark.long
def test_a_restarted_zookeeper_elects_again_and_epochs_go_on(tree: Tree) -> None:
    with DatabaseServer("zookeeper") as own:
        servers = Servers(own.url, tree)
        try:
            _, first, _ = servers.start(1)
            until(first.is_leader)
            _, second, _ = servers.start(2)
            own.kill()
            until(lambda: not first.is_leader())
            own.restart()
            until(lambda: first.is_leader() or second.is_leader(), 30)
            assert not (first.is_leader() and second.is_leader())
            leads = first if first.is_leader() else second
            assert leads.held is not None and leads.held.epoch >= 1
        finally:
            for member in servers.members:
                member.close()


@pytest.mark.rule("canal-server-22")
def test_one_client_of_an_id_works(zookeeper: DatabaseServer, tree: Tree, raw: Any) -> None:
    with (
        ClientElection(zookeeper.url, "shop", 1001, "10.0.0.9:1", root=tree.root) as first,
        ClientElection(zookeeper.url, "shop", 1001, "10.0.0.9:2", root=tree.root) as second,
        ClientElection(zookeeper.url, "shop", 1002, "10.0.0.9:3", root=tree.root) as other,
    ):
        first.acquire(5)
        first.acquire(5)
        other.acquire(5)
        data, _ = raw.get(tree.client_running("shop", 1001))
        assert json.loads(data) == {"active": True, "address": "10.0.0.9:1", "clientId": 1001}
        with pytest.raises(LeaseHeldError, match=r"works at 10\.0\.0\.9:1"):
            second.acquire(0.2)
        assert first.is_running() and not second.is_running()
        waiting = threading.Thread(target=second.acquire, args=(10,))
        waiting.start()
        first.release()
        waiting.join(10)
        assert second.is_running() and not first.is_running()
