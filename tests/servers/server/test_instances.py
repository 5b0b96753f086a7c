"""A server that captures and serves several destinations of real sources."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.server import EmbeddedServer
from cdc.testing.servers import Server
from tests.fault.support import wait_for
from tests.support.canal_client import CanalRefusedError, RawClient
from tests.support.instances import OPERATOR, Operator, captures, change, write

Database = Callable[[Server], str]
ROLES = {"roles": {"operator": {"env": "TOWPATH_OPERATOR"}}, "scan_s": 0.2}
CANAL = {"canal": {"enabled": True}}


def rows(client: RawClient, count: int, limit_s: float = 60) -> list[dict[str, str | None]]:
    """Gets and acks batches until there are so many rows."""
    received: list[dict[str, str | None]] = []
    deadline = time.monotonic() + limit_s
    while len(received) < count:
        assert time.monotonic() < deadline, f"{len(received)} of {count} rows"
        batch = client.get(timeout_ms=500)
        if batch.id != -1:
            received += batch.rows()
            client.ack(batch.id)
    return received


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def port_of(server: EmbeddedServer) -> int:
    assert server.canal_address is not None
    return int(server.canal_address.rpartition(":")[2])


def test_two_destinations_are_captured_and_served(
    mysql9: Server, mariadb11: Server, database: Database, tmp_path: Path
) -> None:
    conf = tmp_path / "conf"
    sources = {"first": (mysql9, database(mysql9)), "second": (mariadb11, database(mariadb11))}
    for name, (source, db) in sources.items():
        write(conf, name, source, db, capture="always", **ROLES, **CANAL)
        source.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
    with EmbeddedServer(conf, http=0, canal_port=0) as server:
        operator = Operator(server.url, OPERATOR)
        pids = {name: operator.wait(name, captures)["capture"]["pid"] for name in sources}
        clients = {}
        for name, (source, db) in sources.items():
            clients[name] = RawClient(port_of(server), name).login().subscribe()
            source.execute(f"INSERT INTO {db}.t VALUES (1), (2)")
            assert [row["id"] for row in rows(clients[name], 2)] == ["1", "2"]
        # A capture that is killed is started again, and nothing is lost; the other one does not notice.
        source, db = sources["first"]
        os.kill(pids["first"], signal.SIGKILL)
        source.execute(f"INSERT INTO {db}.t VALUES (3)")
        assert [row["id"] for row in rows(clients["first"], 1)] == ["3"]
        after = operator.wait("first", captures)
        assert after["capture"]["pid"] != pids["first"]
        assert (after["capture"]["restarts"], after["capture"]["exit_code"]) == (1, -9)
        assert operator.one("second")["capture"]["pid"] == pids["second"]
        assert operator.one("second")["subscriptions"] == ["canal-1001"]
        pids["first"] = after["capture"]["pid"]
    assert not any(map(is_alive, pids.values()))


def test_a_subscription_starts_the_first_capture(mysql9: Server, database: Database, tmp_path: Path) -> None:
    db = database(mysql9)
    mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
    write(tmp_path / "conf", "shop", mysql9, db, capture="subscribed", **ROLES, **CANAL)
    with EmbeddedServer(tmp_path / "conf", http=0, canal_port=0) as server:
        operator = Operator(server.url, OPERATOR)
        assert operator.list()["shop"]["state"] == "waiting"
        client = RawClient(port_of(server)).login().subscribe()
        operator.wait("shop", captures)
        mysql9.execute(f"INSERT INTO {db}.t VALUES (1)")
        assert len(rows(client, 1)) == 1
        # An operator's stop disconnects the client, which keeps what it has acked.
        assert operator.act("shop", "stop")["state"] == "stopped"
        with pytest.raises((EOFError, ConnectionError, AssertionError)):
            client.get()
        with pytest.raises(CanalRefusedError, match="destination:shop should start first"):
            RawClient(port_of(server)).login().subscribe()
        assert operator.act("shop", "start")["state"] in ("starting", "waiting", "running")
        client = RawClient(port_of(server)).login().subscribe()
        mysql9.execute(f"INSERT INTO {db}.t VALUES (2)")
        assert [row["id"] for row in rows(client, 1)] == ["2"]


@pytest.mark.long
def test_configurations_come_change_and_go(mysql9: Server, database: Database, tmp_path: Path) -> None:
    db, conf = database(mysql9), tmp_path / "conf"
    mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
    first = write(conf, "first", mysql9, db, capture="always", **ROLES, **CANAL)
    with EmbeddedServer(conf, http=0, canal_port=0) as server:
        operator = Operator(server.url, OPERATOR)
        pid = operator.wait("first", captures)["capture"]["pid"]
        second = write(conf, "second", mysql9, db, capture="always", **ROLES, **CANAL)
        operator.wait("second", captures)
        # What cannot be used changes nothing, and is shown.
        text = first.read_text()
        first.write_text(text[: len(text) // 2])
        broken = operator.wait("first", lambda instance: instance["config"]["problem"] is not None)
        assert (broken["state"], broken["capture"]["pid"]) == ("running", pid)
        assert "first: its configuration has changed, and cannot be used" in operator.http.get("/health").text
        assert operator.http.get("/health").status_code == 200
        first.write_text(text)
        operator.wait("first", lambda instance: instance["config"]["problem"] is None)
        # A limit of batches disconnects nobody and ends no capture.
        client = RawClient(port_of(server), "first").login().subscribe()
        digest = operator.one("first")["config"]["digest"]
        change(first, batch={"max_bytes": 1_000_000})
        assert operator.wait("first", lambda instance: instance["config"]["digest"] != digest)["capture"]["pid"] == pid
        mysql9.execute(f"INSERT INTO {db}.t VALUES (1)")
        assert len(rows(client, 1)) == 1
        # What capture reads when it starts.
        change(first, source={"heartbeat_s": 2})
        operator.wait("first", lambda instance: captures(instance) and instance["capture"]["pid"] != pid)
        mysql9.execute(f"INSERT INTO {db}.t VALUES (2)")
        assert len(rows(client, 1)) == 1
        # What concerns the whole process is refused.
        change(first, server={"host": "127.0.0.2"})
        problem = operator.wait("first", lambda instance: instance["config"]["problem"] is not None)["config"][
            "problem"
        ]
        assert "server.host differs" in problem["message"]
        change(first, server={"host": "127.0.0.1"})
        pid = operator.one("second")["capture"]["pid"]
        second.unlink()
        operator.wait("second", lambda instance: not instance)
        assert not is_alive(pid)
        assert operator.http.get("/v1/instances/second").status_code == 404
        with pytest.raises(CanalRefusedError, match="destination:second should start first"):
            RawClient(port_of(server), "second").login().subscribe()


@pytest.mark.long
def test_a_refused_source_waits_for_a_change(mysql9: Server, database: Database, tmp_path: Path) -> None:
    db = database(mysql9)
    file = write(tmp_path / "conf", "shop", mysql9, db, capture="always", **ROLES, **CANAL)
    change(file, source={"password_env": "TOWPATH_VIEWER"})  # a wrong one
    with EmbeddedServer(tmp_path / "conf", http=0, canal_port=0) as server:
        operator = Operator(server.url, OPERATOR)
        failed = operator.wait("shop", lambda instance: instance["state"] == "failed")
        assert (failed["capture"]["state"], failed["capture"]["exit_code"], failed["retry_at"]) == ("failed", 2, None)
        assert failed["error"]["message"].rpartition(": ")[2][:40] in operator.logs("shop")
        with pytest.raises(CanalRefusedError, match="capture ended with exit code 2"):
            RawClient(port_of(server)).login().subscribe()
        change(file, source={"password_env": "TOWPATH_TEST_PASSWORD"})
        operator.wait("shop", captures)
    wait_for(lambda: not is_alive(failed["capture"]["pid"] or 0), "the capture to end", 5)
