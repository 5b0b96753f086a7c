"""A store in the memory of ``cdc server``: kills of the server, restarts, back-pressure, and what is refused."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import BatchError
from cdc.config import load
from cdc.config.memory import in_memory, run_folder
from cdc.connector import TcpConnector, ZooKeeper, connect, connect_cluster
from cdc.server import EmbeddedServer
from cdc.testing.servers import HOST, USER, Server, free_port
from tests.fault.support import wait_for
from tests.servers.connector.test_connector_kills import require_complete
from tests.servers.server.test_instances import port_of, rows
from tests.support.canal_client import CanalRefusedError, RawClient
from tests.support.instances import OPERATOR, Operator, captures, change, replace
from tests.support.writing import RowWriter

Database = Callable[[Server], str]


def write_memory(
    conf: Path, source: Server, db: str, *, store: dict[str, Any] | None = None, meta: dict[str, Any], **server: Any
) -> Path:
    """Writes the configuration of a destination whose store is in memory, and returns its file."""
    conf.mkdir(parents=True, exist_ok=True)
    document = {
        "source": {
            "url": f"mysql://{USER}@{HOST}:{source.port}",
            "password_env": "TOWPATH_TEST_PASSWORD",
            "server_id": secrets.randbelow(4_000_000_000) + 1,
            "start": "now",
        },
        "tables": {"include": [rf"{db}\..*"]},
        "store": {"kind": "memory", **(store or {})},
        "meta": meta,
        "server": {
            "canal": {"enabled": True},
            "capture": "always",
            "scan_s": 0.2,
            "roles": {"operator": {"env": "TOWPATH_OPERATOR"}},
            **server,
        },
    }
    return replace(conf / "shop.yaml", document)


@pytest.fixture
def db(mysql9: Server, database: Database) -> str:
    name = database(mysql9)
    mysql9.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(8000))")
    return name


@pytest.fixture(autouse=True)
def _no_leftovers(tmp_path: Path) -> Iterator[None]:
    """Removes what killed servers leave behind in memory."""
    yield
    for file in tmp_path.rglob("shop.yaml"):
        shutil.rmtree(run_folder(load(file)), ignore_errors=True)


@pytest.fixture
def root() -> str:
    return f"/otter/{secrets.token_hex(4)}"


def metas(kind: str, folder: Path, zookeeper: Callable[[], str], root: str) -> dict[str, Any]:
    """The section ``meta`` of each kind."""
    path = {"path": str(folder / "meta")}
    return {
        "memory": lambda: {"kind": "memory"},
        "file": lambda: {"kind": "file", **path},
        "mixed": lambda: {"kind": "mixed", **path},
        "zookeeper": lambda: {"kind": "zookeeper", "hosts": zookeeper(), "root": root, **path},
        "mixed-zookeeper": lambda: {"kind": "mixed", "hosts": zookeeper(), "root": root, **path},
    }[kind]()


_VALUE = "REPEAT('x', 50)"
"""The second column of the rows that are written."""


class Servers:
    """Processes ``cdc server`` at one port, one after the other."""

    def __init__(self, conf: Path, port: int) -> None:
        self.conf, self.port = conf, port
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ("server", "shop", "--http", "0", "--port", str(self.port))
        with open(self.conf.parent / "server.log", "ab") as log:
            command = [sys.executable, "-m", "cdc", "--conf-dir", str(self.conf), *words]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "NO_COLOR": "1"})

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(60)


@contextmanager
def servers(conf: Path) -> Iterator[Servers]:
    servers = Servers(conf, free_port())
    servers.start()
    try:
        yield servers
    finally:
        servers.kill()


def read(connector: TcpConnector, until: Callable[[int], bool], limit_s: float = 200) -> list[list[int]]:
    """Reads batches and acks each until the condition on the number of rows holds. Returns the ids of each batch."""
    batches: list[list[int]] = []
    count = 0
    deadline = time.monotonic() + limit_s
    while not until(count):
        assert time.monotonic() < deadline, f"{count} rows"
        batch = connector.get_without_ack(16)
        if not batch:
            time.sleep(0.01)
            continue
        ids = [int(row.new["id"] or 0) for entry in batch.entries if entry.event == "insert" for row in entry.rows]
        batches.append(ids)
        count += len(ids)
        try:
            connector.ack(batch.id)
        except BatchError:
            continue  # it comes again
    return batches


@pytest.mark.parametrize(
    "kind",
    [
        "file",
        pytest.param("zookeeper", marks=pytest.mark.long),
        pytest.param("mixed", marks=pytest.mark.long),
        pytest.param("mixed-zookeeper", marks=pytest.mark.long),
    ],
)
def test_a_killed_server_loses_nothing(
    kind: str, mysql9: Server, db: str, tmp_path: Path, request: pytest.FixtureRequest, root: str
) -> None:
    """The store is gone with the process; capture reads again from where the client has acked."""
    kills = 1 if kind == "file" else 3
    meta = metas(kind, tmp_path, lambda: str(request.getfixturevalue("zookeeper").url), root)
    file = write_memory(tmp_path / "conf", mysql9, db, meta=meta)
    with (
        servers(file.parent) as server,
        connect(f"127.0.0.1:{server.port}", "shop", retry_for_s=120) as connector,
    ):
        connector.subscribe()
        with RowWriter(mysql9, f"{db}.t", _VALUE) as writer:
            batches: list[list[int]] = []
            for _ in range(kills):
                batches += read(connector, lambda count: count >= 300)
                server.kill()
                server.start()
            batches += read(connector, lambda count: count >= 300)
            last = writer.stop()
        while not _has(batches, last):
            batches += read(connector, lambda count: count > 0)
        repeats = require_complete(batches, last)
        print(f"meta {kind}: {last} rows, {repeats} of them again after {kills} kills")
        assert server.end() == 0
    assert not list(run_folder(load(file)).glob("store*")), "a server that ends leaves nothing in memory"


@pytest.mark.long
def test_another_server_takes_over_with_an_empty_memory(
    mysql9: Server, zookeeper: Server, db: str, tmp_path: Path, root: str
) -> None:
    """Two servers, as in Canal's usual cluster: memory, and cursors in ZooKeeper. The leader is killed, then paused."""
    ha = {"ha": {"address": "127.0.0.1", "session_timeout_s": 4}}
    running: list[Servers] = []
    for name in ("a", "b"):
        meta = metas("zookeeper", tmp_path / name, lambda: zookeeper.url, root)
        (tmp_path / name).mkdir()
        file = write_memory(tmp_path / name / "conf", mysql9, db, meta=meta, **ha)
        running.append(Servers(file.parent, free_port()))
    where = ZooKeeper(zookeeper.url, root, session_timeout_s=4.0)
    batches: list[list[int]] = []
    running[0].start()
    try:
        with connect_cluster(where, "shop", retry_for_s=120) as connector:
            connector.subscribe()
            running[1].start()
            with RowWriter(mysql9, f"{db}.t", _VALUE) as writer:
                for fault in (signal.SIGKILL, signal.SIGSTOP):
                    batches += read(connector, lambda count: count >= 300)
                    leader = next(member for member in running if member.port == connector._address.port)  # type: ignore[union-attr]
                    assert leader.process is not None
                    leader.process.send_signal(fault)
                    batches += read(connector, lambda count: count >= 300)
                    if fault == signal.SIGKILL:
                        leader.process.wait()
                        leader.start()
                    else:
                        leader.process.send_signal(signal.SIGCONT)
                last = writer.stop()
            while not _has(batches, last):
                batches += read(connector, lambda count: count > 0)
        repeats = require_complete(batches, last)
        print(f"{last} rows, {repeats} of them again after a kill and a pause")
    finally:
        for member in running:
            if member.process is not None:
                member.kill()


def _has(batches: list[list[int]], last: int) -> bool:
    return any(last in batch for batch in batches)


@pytest.fixture
def embedded(mysql9: Server, db: str, tmp_path: Path) -> Iterator[Callable[..., EmbeddedServer]]:
    """Runs a server in this process, of a destination that is written as given."""
    running: list[EmbeddedServer] = []

    def run(*, meta: dict[str, Any] | None = None, **given: Any) -> EmbeddedServer:
        given.setdefault("store", {})
        write_memory(tmp_path / "conf", mysql9, db, meta=meta or {"kind": "memory"}, **given)
        return again()

    def again() -> EmbeddedServer:
        server = EmbeddedServer(tmp_path / "conf", http=0, canal_port=0)
        server.__enter__()
        running.append(server)
        return server

    run.again = again  # type: ignore[attr-defined]
    yield run
    for server in running:
        if server._thread is not None and server._thread._thread.is_alive():
            server.__exit__(None, None, None)


def client_of(server: EmbeddedServer, client_id: str = "1001", expression: str = "") -> RawClient:
    Operator(server.url, OPERATOR).wait("shop", captures)
    return RawClient(port_of(server), client_id=client_id, timeout_s=100).login().subscribe(expression)


def stop(server: EmbeddedServer) -> None:
    server.__exit__(None, None, None)


def ids(batch_rows: list[dict[str, str | None]]) -> list[int]:
    return [int(row["id"] or 0) for row in batch_rows]


def used_bytes(run: Path) -> int:
    """Returns the bytes of memory that the files of a folder take."""
    return sum(file.stat().st_blocks * 512 for file in run.rglob("*") if file.is_file())


@pytest.mark.long
def test_a_slow_client_holds_the_source_back(
    mysql9: Server, db: str, tmp_path: Path, embedded: Callable[..., EmbeddedServer]
) -> None:
    """16 MB go through a buffer of 1 MB, whose memory stays bounded; the source keeps what was not read."""
    server = embedded(store={"buffer_size": 1024})
    client, run = client_of(server), run_folder(load(tmp_path / "conf" / "shop.yaml"))
    mysql9.execute(*[f"INSERT INTO {db}.t (v) VALUES (REPEAT('x', 8000))" for _ in range(2000)])
    wait_for((run / "full").exists, "the buffer to be full")
    seen: list[int] = []
    most, deadline = used_bytes(run), time.monotonic() + 120
    assert most > 1 << 20
    while len(seen) < 2000:
        assert time.monotonic() < deadline, f"{len(seen)} rows"
        # A fetch size that the buffer can never fill, and no time limit: the server must not wait for more.
        batch = client.get(1 << 20, timeout_ms=0 if len(seen) < 1500 else 500)
        seen += ids(batch.rows())
        client.ack(batch.id)
        most = max(most, used_bytes(run))
    assert seen == list(range(1, 2001))
    print(f"at most {most:,} bytes for a buffer of {1 << 20:,}")
    assert most < 6 << 20
    wait_for(lambda: not (run / "full").exists(), "capture to go on")


@pytest.mark.long
def test_a_transaction_that_is_larger_than_the_buffer(
    mysql9: Server, db: str, tmp_path: Path, embedded: Callable[..., EmbeddedServer]
) -> None:
    """It goes through; one above the limit stops capture with its position, and is there once the limit is raised."""
    meta = {"kind": "file", "path": str(tmp_path / "meta")}
    server = embedded(store={"buffer_size": 64, "max_transaction_bytes": 4 << 20}, meta=meta)
    client, operator = client_of(server), Operator(server.url, OPERATOR)
    values = ", ".join("(REPEAT('y', 8000))" for _ in range(250))
    mysql9.execute(f"INSERT INTO {db}.t (v) VALUES {values}")
    assert ids(rows(client, 250)) == list(range(1, 251))
    mysql9.execute(
        f"INSERT INTO {db}.t (v) VALUES {values}, {values}, {values}", f"INSERT INTO {db}.t VALUES (5000, '')"
    )
    failed = operator.wait("shop", lambda instance: instance["capture"]["state"] == "failed")
    assert "a transaction has more than 4,194,304 bytes" in failed["error"]["message"]
    assert client.get().id == -1
    change(tmp_path / "conf" / "shop.yaml", store={"max_transaction_bytes": 16 << 20})
    operator.wait("shop", captures)
    client = client_of(server)
    received: list[int] = []
    while 5000 not in received:
        received += ids(rows(client, 1))
    assert received == [*range(251, 1001), 5000]


@pytest.mark.long
def test_a_restart_begins_where_the_meta_says(
    mysql9: Server, db: str, tmp_path: Path, embedded: Callable[..., EmbeddedServer]
) -> None:
    meta = {"kind": "file", "path": str(tmp_path / "meta")}
    server = embedded(meta=meta)
    client = client_of(server)
    other = client_of(server, "1002")
    mysql9.execute(*[f"INSERT INTO {db}.t VALUES ({n}, '')" for n in (1, 2, 3)])
    assert ids(rows(client, 3)) == [1, 2, 3]
    stop(server)
    mysql9.execute(f"INSERT INTO {db}.t VALUES (4, '')")
    server = embedded.again()  # type: ignore[attr-defined]
    # One that has acked nothing begins where it has subscribed, the other after what it has acked.
    assert ids(rows(client_of(server, "1002"), 4)) == [1, 2, 3, 4]
    assert ids(rows(client_of(server), 1)) == [4]
    other.socket.close()
    stop(server)
    # Nobody reads: it begins at source.start, which is now.
    for client_id in ("1001", "1002"):
        server = embedded.again()  # type: ignore[attr-defined]
        client_of(server, client_id).unsubscribe()
        stop(server)
    mysql9.execute(f"INSERT INTO {db}.t VALUES (5, '')")
    server = embedded.again()  # type: ignore[attr-defined]
    client = client_of(server)
    mysql9.execute(f"INSERT INTO {db}.t VALUES (6, '')")
    assert ids(rows(client, 1)) == [6]


@pytest.mark.long
def test_with_a_meta_in_memory_a_restart_begins_as_configured(
    mysql9: Server, db: str, tmp_path: Path, embedded: Callable[..., EmbeddedServer]
) -> None:
    server = embedded()
    client = client_of(server)
    # A capture that is killed loses nothing: the memory is the server's.
    pid = Operator(server.url, OPERATOR).wait("shop", captures)["capture"]["pid"]
    os.kill(pid, signal.SIGKILL)
    mysql9.execute(f"INSERT INTO {db}.t VALUES (1, '')")
    batch = client.get(1, timeout_ms=0)
    assert ids(batch.rows()) == [1]
    stop(server)
    mysql9.execute(f"INSERT INTO {db}.t VALUES (2, '')")
    server = embedded.again()  # type: ignore[attr-defined]
    client = client_of(server)
    mysql9.execute(f"INSERT INTO {db}.t VALUES (3, '')")
    next_batch = client.get(1, timeout_ms=2000)
    assert ids(next_batch.rows()) == [3]
    assert next_batch.id > batch.id, "an ack that comes late must not be taken for one of the new batch"


@pytest.mark.long
def test_a_filter_that_matches_nothing_holds_nothing_back(
    mysql9: Server, db: str, embedded: Callable[..., EmbeddedServer]
) -> None:
    """Also while its client waits in one long request, in a buffer that is smaller than a segment."""
    server = embedded(store={"buffer_size": 64})
    busy = client_of(server)
    mysql9.execute(f"CREATE TABLE {db}.rare (id INT PRIMARY KEY)", f"INSERT INTO {db}.rare VALUES (0)")
    assert ids(rows(busy, 1)) == [0]
    quiet = client_of(server, "1002", rf"{db}\.rare")
    while (batch := quiet.get(timeout_ms=500)).id != -1:  # what the buffer still had
        quiet.ack(batch.id)
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(quiet.get(1, timeout_ms=0)), daemon=True)
    waiting.start()
    mysql9.execute(*[f"INSERT INTO {db}.t (v) VALUES (REPEAT('x', 8000))" for _ in range(500)])
    assert ids(rows(busy, 500)) == list(range(1, 501))
    assert answers == []
    mysql9.execute(f"INSERT INTO {db}.rare VALUES {', '.join(f'({n})' for n in range(7, 37))}")
    waiting.join(60)
    assert ids(answers[0].rows()) == list(range(7, 37))


@pytest.mark.long
def test_what_needs_a_disk_is_refused(mysql9: Server, db: str, tmp_path: Path) -> None:
    file = write_memory(tmp_path / "conf", mysql9, db, meta={"kind": "memory"})

    def cdc(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "cdc", "--conf-dir", str(file.parent), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    for words in (["batch", "get", "shop"], ["apply", "shop"], ["tail", "shop"]):
        code, said = cdc(*words)
        assert (code, "`cdc server` keeps this one in its memory" in said) == (2, True), (words, said)
    code, said = cdc("capture", "shop")
    assert (code, "captured by `cdc server` alone" in said) == (2, True), said
    code, said = cdc("status", "shop")
    assert (code, "not running" in said) == (0, True), said
    code, said = cdc("check", "shop")
    assert (code, "it is in the memory of `cdc server`" in said) == (0, True), said
    with EmbeddedServer(file.parent, http=0, canal_port=0) as server:
        client_of(server)
        code, said = cdc("status", "shop")
        assert (code, "canal-1001" in said) == (0, True), said
        code, said = cdc("capture", "shop")
        assert (code, "another capture" in said) == (1, True), said
        with EmbeddedServer(file.parent, http=0, canal_port=0) as second:
            assert Operator(second.url, OPERATOR).one("shop")["state"] == "standby"
            with pytest.raises(CanalRefusedError, match="another server on this machine"):
                RawClient(port_of(second)).login().subscribe()
    assert [folder.name for folder in in_memory(load(file)).store.run_folder.iterdir() if folder.is_dir()] == ["meta"]
