"""Servers of a cluster as processes, each with a proxy before ZooKeeper; clients that follow the leader; a load."""

from __future__ import annotations

import bisect
import itertools
import os
import random
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from cdc.base.errors import BatchError, CdcError, RetryableError
from cdc.canal.cluster.discovery import Discovery
from cdc.canal.cluster.nodes import address_of
from cdc.testing.servers import HOST, USER, Server, ZooKeeperEnsemble
from cdc.testing.servers.server import free_port
from cdc.wire.connection import Connection
from tests.support.canal_client import CanalRefusedError, RawClient
from tests.support.machines import Machine
from tests.support.proxy import Proxies
from tests.support.server import OTHER_TOKEN, TOKEN, make_certificates

ZooKeepers = Server | ZooKeeperEnsemble
CANAL_PASSWORD = "towpath-canal"
"""The password of Canal's clients where servers are on machines of their own."""


class ClusterServer:
    """One ``cdc server`` of a destination ``shop``, with a store of its own. Use it as a context."""

    def __init__(
        self,
        number: int,
        folder: Path,
        source: Server,
        database: str,
        zookeeper: ZooKeepers,
        root: str,
        *,
        chroot: str = "",
        session_timeout_s: float = 4.0,
        machine: Machine | None = None,
        **more: Any,
    ) -> None:
        """``chroot``: a node behind the servers in ``meta.hosts``. ``machine``: where the server runs and has its disk,
        with a certificate and a password; it reaches the host's ``source.port`` by :meth:`Site.forward`."""
        self.number, self.machine = number, machine
        self.folder = (folder if machine is None else machine.path("")) / f"server-{number}"
        self.host = HOST if machine is None else machine.address
        near = HOST if machine is None else machine.host
        self.canal_port, self.http_port = free_port(), free_port()
        members = [zookeeper] if isinstance(zookeeper, Server) else zookeeper.members
        self.proxy = Proxies((member.port for member in members), near)
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False
        conf = self.folder / "conf"
        conf.mkdir(parents=True)
        for name, token in (("apply", TOKEN), ("audit", OTHER_TOKEN)):
            (conf / f"{name}.token").write_text(f"{token}\n")
        document: dict[str, Any] = {
            "source": {
                "url": f"mysql://{USER}@{near}:{source.port}",
                "password_env": "TOWPATH_TEST_PASSWORD",
                "server_id": 71300 + number + random.SystemRandom().randrange(1000) * 100,
                "start": "now",
            },
            "tables": {"include": [rf"{database}\..*"]},
            "store": {"path": "data/store"},
            "meta": {"kind": "zookeeper", "hosts": f"{self.proxy.url}{chroot}", "root": root, "path": "data/meta"},
            "batch": {"max_wait_s": 0.5, "max_transactions": 2000},
            "apply": {"target": "./lake"},
            "server": {
                "http": self.http_port,
                "tokens": {"apply": {"file": "apply.token"}, "audit": {"file": "audit.token"}},
                "canal": {"enabled": True, "port": self.canal_port},
                "capture": "always",
                "ha": {"address": self.host, "session_timeout_s": session_timeout_s},
            },
            **more,
        }
        self.ca: str | None = None
        """The certificate (PEM) by which clients verify the server's own; None: it has none."""
        self._verify: ssl.SSLContext | bool = True
        if machine is not None:
            tls = make_certificates(conf, f"ca-{number}", machine.address)
            self.ca = tls.ca.read_text()
            self._verify = ssl.create_default_context(cadata=self.ca)
            (conf / "canal.password").write_text(f"{CANAL_PASSWORD}\n")
            document["server"] |= {"host": self.host, "certificate": tls.certificate.name, "key": tls.key.name}
            document["server"]["canal"] |= {"host": self.host, "password_file": "canal.password"}
        self.file = conf / "shop.yaml"
        self.file.write_text(yaml.safe_dump(document))
        self.log = self.folder / "server.log" if machine is None else machine.folder / f"{machine.name}-server.log"
        self._conf = conf if machine is None else machine.folder / self.folder.name / "conf"

    @property
    def url(self) -> str:
        return f"{'http' if self.ca is None else 'https'}://{self.host}:{self.http_port}"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.canal_port}"

    def client(self, timeout_s: float) -> httpx.Client:
        """Returns a client for questions to this server alone."""
        return httpx.Client(
            timeout=timeout_s, headers={"authorization": f"Bearer {OTHER_TOKEN}"}, verify=self._verify, trust_env=False
        )

    def __enter__(self) -> Self:
        self.proxy.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.proxy.__exit__(kind, error, trace)

    def start(self, wait_s: float = 60.0) -> None:
        """Starts the process, and waits until it answers."""
        command = [sys.executable, "-m", "cdc", "--conf-dir", str(self._conf), "server"]
        if self.machine is not None:
            self.process = self.machine.popen(command, "server", self.machine.environment(NO_COLOR="1"))
        else:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "NO_COLOR": "1"})
        deadline = time.monotonic() + wait_s
        while not self.answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def answers(self) -> bool:
        try:
            with self.client(2) as client:
                client.get(f"{self.url}/health")
        except httpx.TransportError:
            return False
        return True

    def _send(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self._send(signal.SIGKILL)
            self.process.wait(20)
            self.process, self.paused = None, False

    def stop(self) -> None:
        assert self.process is not None
        self._send(signal.SIGTERM)
        self.process.wait(60)
        self.process = None

    def crash(self) -> None:
        """Cuts the power of the server's machine: nobody gets an end of its connections. Its cable stays out."""
        assert self.machine is not None
        self.machine.cable("down")
        self.machine.crash()
        self.process, self.paused = None, False

    def pause(self) -> None:
        self._send(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self._send(signal.SIGCONT)
        self.paused = False


class Load:
    """Inserts transactions of one to five rows into ``orders`` until it is stopped. Use it as a context."""

    def __init__(self, source: Server, database: str, seed: int, pause_s: float = 0.03) -> None:
        self._source, self._database, self._random, self._pause_s = source, database, random.Random(seed), pause_s
        self.committed: set[int] = set()
        self.transactions = 0
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        source.execute(f"CREATE TABLE `{database}`.orders (id INT PRIMARY KEY, note VARCHAR(200))")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with self._source.connect() as connection, connection.cursor() as cursor:
                connection.autocommit(False)
                number = 0
                while not self._stop.wait(self._pause_s):
                    ids = list(range(number, number + self._random.randint(1, 5)))
                    number += len(ids)
                    for order_id in ids:
                        cursor.execute(f"INSERT INTO `{self._database}`.orders VALUES ({order_id}, 'note {order_id}')")
                    connection.commit()
                    self.committed.update(ids)
                    self.transactions += 1
        except BaseException as error:  # noqa: BLE001 - raised by stop
            self._error = error


@dataclass
class Answered:
    """A batch that a client of Canal got."""

    address: str
    asked: float
    got: float
    ids: list[int]


class CanalFollower:
    """A client of Canal that looks for the leader in ZooKeeper, gets and acks until it is stopped."""

    def __init__(
        self,
        zookeeper: ZooKeepers,
        root: str,
        client_id: str = "1001",
        timeout_s: float = 20,
        password: str | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.dies = threading.Event()
        """Set, the client dies once with a batch that it has got, and neither uses nor acks it; another takes its
        place, and rolls it back, as Canal's clients do when they connect."""
        self.rest_s = 0.0
        """The seconds for which the client leaves its next answer unread."""
        self.deaths = 0
        self._password = password
        self.seen: set[int] = set()
        self.received = 0
        self.answers: list[Answered] = []
        self.errors: list[str] = []
        self._discovery = Discovery(zookeeper.url, "shop", root=root)
        self._client_id = client_id
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._discovery.close()

    def _run(self) -> None:
        has_died = False
        while not self._stop.is_set():
            try:
                leader = self._discovery.wait(2.0)
                address = address_of(leader.address)
                with RawClient(
                    address.port, client_id=self._client_id, timeout_s=self.timeout_s, host=address.host
                ) as client:
                    client.login(password=self._password)
                    client.subscribe()
                    if has_died:
                        client.rollback()
                        has_died = False
                    while not self._stop.is_set():
                        asked = time.monotonic()
                        client.ask(200, timeout_ms=300)
                        rest_s, self.rest_s = self.rest_s, 0.0
                        self._stop.wait(rest_s)
                        batch = client.answer()
                        if batch.id < 0:
                            continue
                        if self.dies.is_set():
                            self.dies.clear()
                            self.deaths += 1
                            has_died = True
                            client.reset()
                            break
                        ids = [int(row["id"] or -1) for row in batch.rows()]
                        self.answers.append(Answered(leader.address, asked, time.monotonic(), ids))
                        self.seen.update(ids)
                        self.received += len(ids)
                        client.ack(batch.id)
            except (CanalRefusedError, OSError, CdcError) as error:
                self.errors.append(f"{time.monotonic():.2f} {type(error).__name__}: {error}")
                self._stop.wait(0.05)


@dataclass
class Acked:
    """A batch whose ack was answered."""

    batch: int
    after_seq: int
    last_seq: int
    row_events: int
    transactions: int


class BatchFollower:
    """A subscriber over HTTP that takes batches and acks them until it is stopped, as Airflow's tasks do."""

    def __init__(self, servers: list[ClusterServer]) -> None:
        ca = "".join(server.ca or "" for server in servers) or None
        self._connection = Connection(
            ",".join(server.url for server in servers), "shop", OTHER_TOKEN, ca, retry_for_s=1.0
        )
        self.dies = threading.Event()
        """Set, the subscriber dies once with a batch that it has got, and does not ack it; another takes its place."""
        self.acked: list[Acked] = []
        self.unsure: list[Acked] = []
        """Acks whose answer was lost."""
        self.refused = 0
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            token = f"{number:032x}"
            try:
                lease = self._connection.call("get", {"owner": "audit", "token": token, "wait_s": 0.5})
                if lease is None:
                    continue
                if self.dies.is_set():
                    self.dies.clear()
                    continue
                manifest = lease["manifest"]
                acked = Acked(
                    manifest["batch"],
                    manifest["after_seq"],
                    manifest["last_seq"],
                    manifest["row_events"],
                    manifest["transactions"],
                )
                self._ack(acked, lease["token"])
            except RetryableError as error:
                self.errors.append(f"{time.monotonic():.2f} {type(error).__name__}: {error}")
                self._stop.wait(0.05)

    def _ack(self, batch: Acked, token: str) -> None:
        try:
            self._connection.call("ack", {"batch": batch.batch, "token": token})
        except BatchError as error:  # another leader has rolled it back
            self.refused += 1
            self.errors.append(f"{time.monotonic():.2f} {type(error).__name__}: {error}")
        except RetryableError:
            self.unsure.append(batch)
            raise
        else:
            self.acked.append(batch)


@dataclass
class Probe:
    """Asks one server again and again something that only a leader answers."""

    server: ClusterServer
    timeout_s: float = 30.0
    answers: list[tuple[float, float, int]] = field(default_factory=list)
    """When the question was asked, when the answer came, and the epoch of the leadership in it."""

    def run(self, stop: threading.Event) -> None:
        with self.server.client(self.timeout_s) as client:
            while not stop.wait(0.01):
                asked = time.monotonic()
                with suppress(httpx.TransportError):
                    answer = client.post(f"{self.server.url}/v1/shop/whoami", content=b"{}")
                    if answer.status_code == 200:
                        self.answers.append((asked, time.monotonic(), int(answer.headers["towpath-epoch"])))


class Cluster:
    """Servers, a load and clients, with what they saw. Use it as a context."""

    def __init__(
        self,
        folder: Path,
        source: Server,
        database: str,
        zookeeper: ZooKeepers,
        root: str,
        seed: int,
        count: int = 2,
        chroot: str = "",
        machines: Sequence[Machine] = (),
    ) -> None:
        """``machines``: where servers run, one on each, in place of ``count`` servers on the host."""
        self.servers = [
            ClusterServer(number, folder, source, database, zookeeper, root, chroot=chroot, machine=machine)
            for number, machine in enumerate(machines or [None] * count, 1)
        ]
        root = chroot + root
        self.zookeeper, self.root = zookeeper, root
        self.load = Load(source, database, seed)
        self.discovery = Discovery(zookeeper.url, "shop", root=root)
        self.canal = CanalFollower(zookeeper, root, password=CANAL_PASSWORD if machines else None)
        self.batches = BatchFollower(self.servers)
        # A connection over a cable that was out is used again only after seconds: a new one tells more.
        self.probes = [Probe(server, 3.0 if machines else 30.0) for server in self.servers]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=probe.run, args=(self._stop,), daemon=True) for probe in self.probes]

    def __enter__(self) -> Self:
        for server in self.servers:
            server.__enter__()
        try:
            for server in self.servers:
                server.start()
            until(lambda: self.leader() is not None)
            self.subscribe()
        except BaseException:
            self.close()
            raise
        for thread in self._threads:
            thread.start()
        return self

    def subscribe(self) -> None:
        """Subscribes both clients before anything is written, so that they get everything."""
        self.canal.__enter__()
        self.batches.__enter__()
        until(lambda: {"canal-1001", "audit"} <= set(self.subscriptions()))

    def subscriptions(self) -> dict[str, int]:
        """Returns the cursor of each subscriber."""
        from cdc.meta.zookeeper import ZooKeeperMeta

        with ZooKeeperMeta(self.zookeeper.url, "shop", root=self.root) as meta:
            return {name: subscription.acked_seq for name, subscription in meta.subscriptions().items()}

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(30)
        for part in (self.canal, self.batches):
            if part._thread.ident is not None:
                part.__exit__()
        self.load._stop.set()
        self.discovery.close()
        for server in self.servers:
            server.__exit__(None, None, None)

    def leader(self) -> ClusterServer | None:
        leader = self.discovery.leader()
        return None if leader is None else next((s for s in self.servers if s.address == leader.address), None)

    def answered_after(self, moment: float, other_than: ClusterServer | None = None) -> float | None:
        """Returns when a server, ``other_than`` this one, answered for the first time a question that was asked after
        this moment."""
        answered = [
            got
            for probe in self.probes
            if probe.server is not other_than
            for asked, got, _ in list(probe.answers)
            if asked > moment
        ]
        return min(answered, default=None)

    def longest_pause_s(self, moment: float) -> float:
        """Returns the longest time since this moment in which nobody answered."""
        came = sorted(got for probe in self.probes for _, got, _ in list(probe.answers) if got > moment)
        times = [moment, *came, time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(times))

    def level(self, timeout_s: float = 60.0) -> None:
        """Ends the load, and waits until both clients have everything."""
        self.load.stop()
        until(lambda: self.canal.seen >= self.load.committed, timeout_s, self.describe)
        until(
            lambda: sum(acked.row_events for acked in self._chain()) >= self.load.transactions, timeout_s, self.describe
        )

    def describe(self) -> str:
        missing = sorted(self.load.committed - self.canal.seen)
        return (
            f"{len(missing)} of {len(self.load.committed)} rows are missing: {missing[:10]}; "
            f"acked {sum(acked.transactions for acked in self._chain())} of {self.load.transactions}; "
            f"{self.canal.errors[-3:]} {self.batches.errors[-3:]}\n"
            + "\n".join(f"--- server {server.number}\n{server.log.read_text()[-6000:]}" for server in self.servers)
        )

    def _chain(self) -> list[Acked]:
        """The batches that were acked, as the acks' answers and the next batches tell."""
        return sorted([*self.batches.acked, *self.batches.unsure], key=lambda acked: (acked.last_seq, acked.batch))

    def check(self) -> None:
        """Checks that nothing is missing, that no transaction was acked twice, and that no two servers led at once."""
        assert self.canal.seen >= self.load.committed, self.describe()
        acked = self.batches.acked
        assert [batch.last_seq for batch in acked] == sorted({batch.last_seq for batch in acked}), "acked twice"
        unsure = {batch.last_seq: batch for batch in self.batches.unsure}
        for before, after in itertools.pairwise(acked):
            reached = before.last_seq
            while reached != after.after_seq:  # acks whose answer was lost fill the rest
                nexts = [batch for batch in unsure.values() if batch.after_seq == reached]
                assert nexts, f"{before} and {after} leave a gap or overlap"
                reached = nexts[0].last_seq
        # Each epoch is one server's, and once an answer of an epoch has come, no later question is answered in a lower
        # one: so two servers never led at the same time.
        leaders: dict[int, set[int]] = {}
        for probe in self.probes:
            for _, _, epoch in probe.answers:
                leaders.setdefault(epoch, set()).add(probe.server.number)
        assert leaders, "nobody answered"
        assert all(len(servers) == 1 for servers in leaders.values()), leaders
        answers = sorted((got, epoch) for probe in self.probes for _, got, epoch in probe.answers)
        came = [got for got, _ in answers]
        highest = list(itertools.accumulate((epoch for _, epoch in answers), max))
        for probe in self.probes:
            for asked, got, epoch in probe.answers:
                earlier = bisect.bisect_left(came, asked)
                assert not earlier or epoch >= highest[earlier - 1], (
                    f"server {probe.server.number} answered at {got} in epoch {epoch} what was asked at {asked}, when "
                    f"epoch {highest[earlier - 1]} had begun"
                )


def seeds(count: int) -> Sequence[int]:
    """Returns the seeds of a test with faults: the first ``count``, or the one in ``TOWPATH_NEMESIS_SEED``."""
    return [int(os.environ["TOWPATH_NEMESIS_SEED"])] if "TOWPATH_NEMESIS_SEED" in os.environ else range(count)


def until(
    condition: Callable[[], object], timeout_s: float = 60.0, describe: Callable[[], str] = lambda: "it did not happen"
) -> float:
    """Waits until a condition holds; returns how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, describe()
        time.sleep(0.02)
    return time.monotonic() - began
