"""The meta in ZooKeeper: holders that die, stop or lose their session, a server that stops, and Canal's own nodes."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import DamagedError, IdentityError, LeaseHeldError, MetaUnavailableError, UsageError, VersionError
from cdc.meta.zookeeper import ZooKeeperMeta
from cdc.testing.meta_contract import IDENTITY, add_batch, batches, entry, unsubscribe
from cdc.testing.servers import Server
from tests.contract.meta_support import Proxy, base, client, maker

Make = functools.partial[ZooKeeperMeta]
_processes = get_context("forkserver")


@pytest.fixture
def make(zookeeper: Server) -> Make:
    return maker(zookeeper)


@pytest.fixture
def meta(make: Make) -> Iterator[ZooKeeperMeta]:
    with make() as meta:
        meta.bind_source(IDENTITY)
        meta.subscribe("apply", "f")
        yield meta


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that a test may kill."""
    with Server("zookeeper", folder=tmp_path / "zookeeper") as server:
        yield server


# Holders -------------------------------------------------------------------------------------------------------------


def change_slowly(make: Make, pipe: Connection) -> None:
    """Reports that it holds the lock, makes a change when told, and reports how that ended."""
    meta = make()
    try:
        with meta.change() as state:
            pipe.send("holds")
            pipe.recv()
            state.subscription("apply").acked_seq = 111
            state.subscription("apply").add(entry(1, 111, 222))
    except MetaUnavailableError as error:
        pipe.send(str(error))
    else:
        pipe.send("changed")
    meta.close()


def test_a_holder_stopped_beyond_its_session_cannot_overwrite_its_successor(make: Make, meta: ZooKeeperMeta) -> None:
    ours, theirs = _processes.Pipe()
    worker = _processes.Process(target=change_slowly, args=(make, theirs), daemon=True)
    worker.start()
    assert ours.poll(60) and ours.recv() == "holds"
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        meta.update_cursor("apply", 7)  # waits until the session has expired
        assert time.monotonic() - began < 40
        successor = meta.read()
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    ours.send("go on")
    assert ours.poll(60)
    said = ours.recv()
    assert "Nothing was changed" in said and "/destinations/shop" in said
    worker.join(30)
    assert worker.exitcode == 0
    assert meta.read() == successor


def test_a_holder_whose_lock_was_lost_cannot_write(make: Make, meta: ZooKeeperMeta, zookeeper: Server) -> None:
    before = meta.read()
    with client(zookeeper) as zk, make() as other:

        def lose_it() -> None:
            with other.change() as state:
                state.subscription("apply").acked_seq = 9
                for node in zk.get_children(f"{base(make)}/towpath/lock"):
                    zk.delete(f"{base(make)}/towpath/lock/{node}")

        with pytest.raises(MetaUnavailableError, match=r"the lock was lost .*NoNodeError.* Nothing was changed"):
            lose_it()
    assert meta.read() == before


def test_a_change_behind_the_lock_is_noticed(make: Make, meta: ZooKeeperMeta, zookeeper: Server) -> None:
    with client(zookeeper) as zk:

        def be_overtaken() -> None:
            with meta.change() as state:
                state.subscription("apply").acked_seq = 9
                zk.set(f"{base(make)}/towpath", zk.get(f"{base(make)}/towpath")[0])

        with pytest.raises(MetaUnavailableError, match=r"another process changed it.*BadVersionError"):
            be_overtaken()
    assert meta.cursor("apply") == 0


class Overtaken(ZooKeeperMeta):
    """A meta that another process changes in the middle of the first reading."""

    other: ZooKeeperMeta | None = None

    def _get_all(self, client: Any, paths: list[str]) -> dict[str, tuple[bytes, Any]]:
        if len(paths) > 1 and self.other is not None:
            other, self.other = self.other, None
            add_batch(other, "apply", entry(1, 5, 9))
        return super()._get_all(client, paths)


def test_a_reader_reads_again_after_a_change_meanwhile(make: Make, meta: ZooKeeperMeta) -> None:
    meta.update_cursor("apply", 5)
    with Overtaken(*make.args, **make.keywords) as reader:
        reader.other = meta
        assert reader.read() == meta.read()
        assert reader.other is None


def test_the_holder_is_named(make: Make, meta: ZooKeeperMeta) -> None:
    ours, theirs = _processes.Pipe()
    worker = _processes.Process(target=change_slowly, args=(make, theirs), daemon=True)
    worker.start()
    assert ours.poll(60) and ours.recv() == "holds"
    with (
        make(lock_wait_s=0.2) as other,
        pytest.raises(LeaseHeldError, match=f"process {worker.pid} on "),
        other.change(),
    ):
        raise AssertionError("two holders at once")
    ours.send("go on")
    assert ours.poll(60) and ours.recv() == "changed"
    assert batches(meta, "apply") == [entry(1, 111, 222)]


def test_a_forked_child_makes_a_session_of_its_own(meta: ZooKeeperMeta) -> None:
    meta.update_cursor("apply", 1)
    worker = get_context("fork").Process(target=meta.update_cursor, args=("apply", 2))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    assert meta.cursor("apply") == 2
    meta.update_cursor("apply", 3)
    assert meta.cursor("apply") == 3


# The server ----------------------------------------------------------------------------------------------------------


def test_no_server_is_an_error_that_names_it(own_server: Server) -> None:
    make = maker(own_server, wait_s=1.0)
    own_server.kill()
    began = time.monotonic()
    with make() as meta:
        for use in (meta.read, lambda: meta.update_cursor("apply", 1)):
            with pytest.raises(MetaUnavailableError, match=f"zookeeper://{own_server.url}: does not answer") as caught:
                use()
            assert caught.value.exit_code == 1
    assert time.monotonic() - began < 30


def test_a_connect_request_without_an_answer_does_not_cost_the_session(zookeeper: Server) -> None:
    """A server that is starting accepts the connection and does not answer."""
    proxy = Proxy(zookeeper.port)
    proxy.say_nothing.set()
    began = time.monotonic()
    with ZooKeeperMeta(proxy.url, "shop", root=f"/otter/{os.getpid()}-silent", session_timeout_s=8.0) as meta:
        meta.subscribe("apply")
        meta.update_cursor("apply", 1)
        assert meta.cursor("apply") == 1
    assert proxy.lost == 1
    assert time.monotonic() - began < 30
    proxy.close()


def test_a_server_that_comes_back_within_the_session_is_waited_for(own_server: Server) -> None:
    with maker(own_server, 30.0)() as meta:
        meta.subscribe("apply")
        with meta.change() as state:
            state.subscription("apply").acked_seq = 4
            own_server.kill()
            own_server.restart()
        assert meta.cursor("apply") == 4


def test_a_server_that_stays_away_ends_a_change_in_time_and_changes_nothing(own_server: Server) -> None:
    with maker(own_server, wait_s=1.0)() as meta:
        wait_until_it_answers(meta)
        meta.subscribe("apply")
        before = meta.read()

        def change() -> None:
            with meta.change() as state:
                state.subscription("apply").acked_seq = 4
                own_server.kill()

        began = time.monotonic()
        with pytest.raises(MetaUnavailableError):
            change()
        with pytest.raises(MetaUnavailableError):
            meta.read()
        assert time.monotonic() - began < 40
        own_server.restart()
        wait_until_it_answers(meta)
        assert meta.read() == before
        meta.update_cursor("apply", 5)
        assert meta.cursor("apply") == 5


def wait_until_it_answers(meta: ZooKeeperMeta) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            meta.read()
        except MetaUnavailableError:
            assert time.monotonic() < deadline
        else:
            return


def test_a_change_whose_answer_is_lost_is_found_done(zookeeper: Server, make: Make) -> None:
    proxy = Proxy(zookeeper.port)
    with ZooKeeperMeta(proxy.url, "shop", root=make.keywords["root"], session_timeout_s=10.0) as meta:
        meta.subscribe("apply")
        for seq in range(1, 4):
            with meta.change() as state:
                state.subscription("apply").acked_seq = seq
                proxy.lose_answers.set()
            assert meta.cursor("apply") == seq
    assert proxy.lost == 3
    proxy.close()


# Canal's nodes -------------------------------------------------------------------------------------------------------


@pytest.mark.rule("canal-meta-16", "canal-meta-17")
def test_canal_finds_its_tree(make: Make, meta: ZooKeeperMeta, zookeeper: Server) -> None:
    meta.update_cursor("apply", 4 << 34 | 1581)
    add_batch(meta, "apply", entry(12, 4 << 34 | 1581, 4 << 34 | 2000))
    with client(zookeeper) as zk:
        assert sorted(zk.get_children(base(make))) == ["apply", "towpath"]
        assert sorted(zk.get_children(f"{base(make)}/apply")) == ["cursor", "filter", "mark", "towpath"]
        assert zk.get_children(f"{base(make)}/apply/mark") == ["0000000012"]
        assert zk.get(f"{base(make)}/apply/filter")[0] == b"f"
        cursor = json.loads(zk.get(f"{base(make)}/apply/cursor")[0])
    assert cursor.pop("towpath") == {"acked_seq": 4 << 34 | 1581}
    assert cursor == {
        "@type": "com.alibaba.otter.canal.protocol.position.LogPosition",
        "identity": {"slaveId": -1, "sourceAddress": {"address": "db.example", "port": 3306}},
        "postion": {"included": False, "journalName": "binlog.000004", "position": 1581},
    }


@pytest.mark.rule("canal-server-20")
def test_canals_own_clients_are_left_alone(make: Make, meta: ZooKeeperMeta, zookeeper: Server) -> None:
    with client(zookeeper) as zk:
        for path in ("cluster/10.0.0.1:11111", "1001/cursor", "1001/filter", "1001/running"):
            zk.create(f"{base(make)}/{path}", b"Canal's", makepath=True)
        zk.create(f"{base(make)}/running", b"{}", ephemeral=True)
        meta.update_cursor("apply", 3)
        assert list(meta.subscriptions()) == ["apply"]
        with pytest.raises(IdentityError, match=r"/1001: has cursor, filter of a client that is not Towpath's"):
            meta.subscribe("1001")
        for name in ("cluster", "running", "towpath"):
            with pytest.raises(UsageError, match=f"'{name}' cannot be the name of a subscriber"):
                meta.subscribe(name)
        assert zk.get(f"{base(make)}/1001/cursor")[0] == b"Canal's"
        assert list(meta.subscriptions()) == ["apply"]


@pytest.mark.rule("canal-meta-18")
def test_nodes_of_others_below_a_subscriber_stay(make: Make, meta: ZooKeeperMeta, zookeeper: Server) -> None:
    with client(zookeeper) as zk:
        # as Canal's high availability does for an active client
        for name, node in (("apply", "apply"), ("1001", "1001"), ("canal-1001", "1001")):
            zk.create(f"{base(make)}/{node}/running", b"{}", ephemeral=True, makepath=True)
            meta.subscribe(name)
            meta.update_cursor(name, 5)
            assert zk.exists(f"{base(make)}/{node}/cursor")
            unsubscribe(meta, name)
            assert zk.get_children(f"{base(make)}/{node}") == ["running"]
            meta.subscribe(name)
            assert meta.cursor(name) == 0
            zk.delete(f"{base(make)}/{node}/running")
            unsubscribe(meta, name)
            assert zk.exists(f"{base(make)}/{node}") is None


def test_a_client_ids_nodes_move_to_canals_path(make: Make, meta: ZooKeeperMeta, zookeeper: Server) -> None:
    meta.subscribe("canal-1001", "f")
    meta.update_cursor("canal-1001", 4 << 34 | 1581)
    with client(zookeeper) as zk:
        own, former = f"{base(make)}/1001", f"{base(make)}/canal-1001"
        zk.create(former)
        for child in ("cursor", "filter", "mark", "towpath"):  # as beside a subscriber named 1001
            content = zk.get(f"{own}/{child}")[0].replace(b'"subscriber":"canal-1001",', b"")
            zk.create(f"{former}/{child}", content)
            zk.delete(f"{own}/{child}")
        zk.delete(own)
        zk.create(f"{own}/running", b"{}", ephemeral=True, makepath=True)  # a client of Canal is there already
        with make() as other:
            assert other.cursor("canal-1001") == 4 << 34 | 1581
            other.update_cursor("canal-1001", 4 << 34 | 1600)
        assert zk.exists(former) is None
        assert sorted(zk.get_children(own)) == ["cursor", "filter", "mark", "running", "towpath"]
        assert json.loads(zk.get(f"{own}/cursor")[0])["postion"]["position"] == 1600
    assert meta.cursor("canal-1001") == 4 << 34 | 1600


def test_reading_creates_nothing(make: Make, zookeeper: Server) -> None:
    with make() as meta, client(zookeeper) as zk:
        assert meta.read().subscriptions == {}
        assert zk.exists(make.keywords["root"]) is None


def test_destinations_share_a_root(make: Make, meta: ZooKeeperMeta, zookeeper: Server) -> None:
    with ZooKeeperMeta(zookeeper.url, "crm", root=make.keywords["root"]) as other:
        assert other.read().subscriptions == {}
        other.subscribe("apply")
        other.update_cursor("apply", 9)
    assert meta.cursor("apply") == 0
    with client(zookeeper) as zk:
        node = f"{make.keywords['root']}/destinations/crm/towpath"
        zk.set(node, zk.get(f"{base(make)}/towpath")[0])
    with (
        ZooKeeperMeta(zookeeper.url, "crm", root=make.keywords["root"]) as other,
        pytest.raises(IdentityError, match="belongs to destination 'shop', not to 'crm'"),
    ):
        other.read()
    for name in ("", "a/b", ".."):
        with pytest.raises(UsageError, match="cannot be the name of a destination"):
            ZooKeeperMeta(zookeeper.url, name)


DAMAGE: list[tuple[str, Callable[[bytes], bytes], type[Exception], str]] = [
    ("towpath", lambda data: data[:-3], DamagedError, "is not whole"),
    ("towpath", lambda data: b"[]", DamagedError, "is not a meta node"),
    ("towpath", lambda data: data.replace(b"mysql", b"mariadb"), DamagedError, "checksum is wrong"),
    ("towpath", lambda data: re.sub(rb'"version":\d+', b'"version":9', data), VersionError, "format version 9; this"),
    ("apply/towpath", lambda data: b"", DamagedError, "is not whole"),
    ("apply/towpath", lambda data: data.replace(b'"next_batch":13', b'"next_batch":1'), DamagedError, "does not fit"),
    ("apply/filter", lambda data: b"\xff", DamagedError, "is not UTF-8"),
    ("apply/cursor", lambda data: data.replace(b"1581", b"1582", 1), DamagedError, "contradicts itself"),
    ("apply/cursor", lambda data: b'{"postion":{}}', DamagedError, "no towpath.acked_seq"),
    ("apply/mark/0000000012", lambda data: b"{}", DamagedError, "towpath"),
    (
        "apply/mark/0000000012",
        lambda data: data.replace(b'"batch":12', b'"batch":13'),
        DamagedError,
        "mark of batch 13",
    ),
]


@pytest.mark.parametrize(("path", "damage", "error", "words"), DAMAGE)
def test_a_damaged_node_is_named_and_nothing_is_overwritten(
    make: Make,
    meta: ZooKeeperMeta,
    zookeeper: Server,
    path: str,
    damage: Callable[[bytes], bytes],
    error: type[Exception],
    words: str,
) -> None:
    meta.update_cursor("apply", 4 << 34 | 1581)
    add_batch(meta, "apply", entry(12, 4 << 34 | 1581, 4 << 34 | 2000))
    with client(zookeeper) as zk:
        bad = damage(zk.get(f"{base(make)}/{path}")[0])
        zk.set(f"{base(make)}/{path}", bad)
        for use in (meta.read, lambda: meta.update_cursor("apply", 1)):
            with pytest.raises(error, match=words) as caught:
                use()
            assert f"{base(make)}/{path}" in str(caught.value)
        assert zk.get(f"{base(make)}/{path}")[0] == bad
