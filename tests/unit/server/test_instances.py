"""Instances: orders of operators, roles, configurations that change, captures that fail, and one server at a time."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cdc.base.errors import ConfigError, DamagedError, UsageError, VersionError
from cdc.config import load
from cdc.meta import open_meta
from cdc.server import EmbeddedServer
from cdc.server.folder import ConfigFolder
from cdc.server.instance import Timings
from cdc.server.stops import FILE_NAME, read_stop
from cdc.server.supervisor import Pauses
from cdc.store.formats.state import CaptureState, StoreLock, write_capture_state
from cdc.testing.servers import free_port
from tests.support.canal_client import CanalRefusedError, RawClient
from tests.support.instances import OPERATOR, VIEWER, Operator, change
from tests.support.server import OTHER_TOKEN, TOKEN
from tests.support.unit_batches import IDENTITY, make_config, make_store

GOLDEN = Path(__file__).parents[2] / "golden" / "instance-v1.json"
SERVER: dict[str, Any] = {
    "tokens": {"apply": {"file": "apply.token"}},
    "roles": {"viewer": {"file": "viewer.token"}, "operator": {"file": "operator.token"}},
    "scan_s": 0.05,
    "canal": {"enabled": True},
}
QUICK = Timings(look_s=0.05, linger_s=0.3, begin_s=60, processes=Pauses(first_s=0.2, longest_s=0.2))


def make(folder: Path, name: str = "shop", *, store: bool = True, **server: Any) -> Path:
    """Writes the configuration of a destination, with a store unless said otherwise, and returns its file."""
    config = make_config(folder, name)
    for file, token in (("apply", TOKEN), ("viewer", VIEWER), ("operator", OPERATOR)):
        (config.file.parent / f"{file}.token").write_text(f"{token}\n")
    change(config.file, server={**SERVER, **server})
    if store:
        make_store(config.store.path)
        open_meta(config).bind_source(IDENTITY)
    return config.file


def running(file: Path, **given: Any) -> EmbeddedServer:
    return EmbeddedServer(file.parent, **{"http": 0, "canal_port": 0, "timings": QUICK, **given})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make(tmp_path)


@pytest.fixture
def server(file: Path) -> Iterator[EmbeddedServer]:
    with running(file) as running_server:
        yield running_server


def canal(server: EmbeddedServer, name: str = "shop") -> RawClient:
    assert server.canal_address is not None
    return RawClient(int(server.canal_address.rpartition(":")[2]), name).login().subscribe()


def state(server: EmbeddedServer, token: str = TOKEN) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.post(f"{server.url}/v1/shop/state", json={}, headers=headers, trust_env=False)


# --- the folder


@pytest.mark.rule("canal-server-23")
def test_changes_of_a_folder_are_told_once(tmp_path: Path) -> None:
    folder = ConfigFolder(tmp_path / "conf")
    with pytest.raises(ConfigError, match="does not exist"):
        folder.scan()
    file = make(tmp_path, store=False)
    assert [entry.name for entry in folder.scan(at_once=True)] == ["shop"]
    assert folder.scan() == []
    make(tmp_path, "later", store=False)
    assert folder.scan() == []
    changes = folder.scan()
    assert [(entry.name, entry.config is not None) for entry in changes] == [("later", True)]
    file.write_text("source: {")
    folder.scan()
    changes = folder.scan()
    assert [(entry.name, type(entry.error)) for entry in changes] == [("shop", ConfigError)]
    file.unlink()
    folder.scan()
    changes = folder.scan()
    assert [(entry.name, entry.config, entry.error) for entry in changes] == [("shop", None, None)]
    assert folder.scan() == []
    (tmp_path / "conf" / "brief.yaml").write_text("")
    folder.scan()
    (tmp_path / "conf" / "brief.yaml").unlink()
    assert [folder.scan() for _ in range(3)] == [[], [], []]


def test_named_destinations_are_followed_alone(tmp_path: Path) -> None:
    make(tmp_path, store=False)
    make(tmp_path, "other", store=False)
    assert [entry.name for entry in ConfigFolder(tmp_path / "conf", ["other"]).scan(at_once=True)] == ["other"]


# --- operators


def test_a_push_is_started_again_and_ends_with_its_instance(file: Path) -> None:
    change(file, server={"push": "always"}, mq={"servers": ["127.0.0.1:1"], "topic": "shop"})
    with running(file) as server:
        operator = Operator(server.url, OPERATOR)

        def pushes(document: dict[str, Any]) -> bool:
            return bool(document) and document["push"]["state"] == "running"

        first = operator.wait("shop", pushes)["push"]["pid"]
        os.kill(first, signal.SIGKILL)
        restarted = operator.wait("shop", lambda document: pushes(document) and document["push"]["pid"] != first)
        assert restarted["push"]["restarts"] == 1
        assert operator.act("shop", "stop")["push"]["state"] == "off"
        with pytest.raises(ProcessLookupError):
            os.kill(restarted["push"]["pid"], 0)
        operator.act("shop", "start")
        pid = operator.wait("shop", pushes)["push"]["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_operators_stop_lasts(file: Path) -> None:
    with running(file) as server:
        operator, client = Operator(server.url, OPERATOR), canal(server)
        first = client.get()
        client.ack(first.id)
        assert state(server).status_code == 200
        assert operator.act("shop", "stop")["state"] == "stopped"
        answer = state(server)
        assert answer.status_code == 503
        assert "an operator has stopped this destination" in answer.json()["error"]["message"]
        assert state(server, OTHER_TOKEN).status_code == 401
        with pytest.raises(CanalRefusedError, match="should start first"):
            canal(server)
        assert operator.act("shop", "stop")["state"] == "stopped"
        assert operator.act("shop", "restart")["state"] == "stopped"
        assert operator.http.get("/health").status_code == 200
    with running(file) as server:
        operator = Operator(server.url, OPERATOR)
        assert operator.one("shop")["state"] == "stopped"
        assert operator.act("shop", "start")["state"] == "running"
        assert canal(server).get().entries[0].header.logfile_offset > first.entries[0].header.logfile_offset
    with running(file) as server:
        assert server.documents()[0]["state"] == "running"


def test_the_record_of_a_stop(tmp_path: Path) -> None:
    meta = load(make(tmp_path, store=False)).meta
    assert read_stop(meta) is None
    meta.path.mkdir(parents=True)
    path = meta.path / FILE_NAME
    path.write_bytes(GOLDEN.read_bytes())
    stop = read_stop(meta)
    assert stop is not None
    assert stop.at.isoformat() == "2026-11-24T15:00:00+00:00"
    path.write_text(json.dumps({**json.loads(GOLDEN.read_text()), "version": 2}))
    with pytest.raises(VersionError, match="version 2"):
        read_stop(meta)
    for damaged in (
        "",
        "[]",
        "{}",
        '{"format": "other", "version": 1}',
        '{"format": "towpath-instance", "version": 1}',
    ):
        path.write_text(damaged)
        with pytest.raises(DamagedError, match=r"instance\.json"):
            read_stop(meta)


def test_a_record_that_cannot_be_read_keeps_the_instance_from_running(file: Path) -> None:
    path = load(file).meta.path / FILE_NAME
    path.write_text("{")
    with running(file) as server:
        operator = Operator(server.url, OPERATOR)
        failed = operator.one("shop")
        assert (failed["state"], failed["error"]["type"]) == ("failed", "DamagedError")
        health = operator.http.get("/health")
        assert (health.status_code, "instance.json" in health.text) == (503, True)
        assert operator.act("shop", "start")["state"] == "running"  # which removes it


# --- roles


def test_a_viewer_sees_and_an_operator_acts(server: EmbeddedServer) -> None:
    reads = ["/v1/instances", "/v1/instances/shop", "/v1/instances/shop/logs"]
    acts = ["/v1/instances/shop/start", "/v1/instances/shop/restart", "/v1/instances/reload"]
    for token, may_read, may_act in (
        (None, 401, 401),
        ("wrong" * 8, 401, 401),
        (TOKEN, 401, 401),  # a subscriber's
        (VIEWER, 200, 403),
        (OPERATOR, 200, 200),
    ):
        operator = Operator(server.url, token)
        assert [operator.http.get(path).status_code for path in reads] == [may_read] * 3
        assert [operator.http.post(path).status_code for path in acts] == [may_act] * 3
    assert operator.http.get("/v1/instances/shop/logs?lines=0").status_code == 422
    for path in ("/v1/instances/no", "/v1/instances/no/logs"):
        assert operator.http.get(path).json()["error"]["type"] == "UsageError"
        assert operator.http.get(path).status_code == 404
    assert operator.http.post("/v1/instances/no/stop").status_code == 404


def test_without_roles_this_machine_sees_and_nobody_acts(tmp_path: Path) -> None:
    with running(make(tmp_path, roles={})) as server:
        http = httpx.Client(base_url=server.url, trust_env=False)
        assert http.get("/v1/instances").json()["instances"][0]["destination"] == "shop"
        for header in ({"host": "evil.example"}, {"x-forwarded-for": "192.0.2.1"}, {"authorization": "Bearer x"}):
            assert http.get("/v1/instances", headers=header).status_code == 404
        refused = http.post("/v1/instances/shop/stop")
        assert (refused.status_code, "no token for an operator" in refused.text) == (403, True)


@pytest.mark.parametrize("token", [VIEWER, "short"])
def test_tokens_of_roles_are_checked_at_the_start(file: Path, token: str) -> None:
    (file.parent / "operator.token").write_text(token)
    with pytest.raises(ConfigError, match=r"same token|at least 16"), running(file):
        pass


# --- configurations


def test_tokens_change_while_clients_stay_connected(file: Path, server: EmbeddedServer) -> None:
    client, operator = canal(server), Operator(server.url, OPERATOR)
    digest = operator.one("shop")["config"]["digest"]
    change(file, server={"tokens": {"apply": {"file": "apply.token"}, "audit": {"file": "audit.token"}}})
    problem = operator.wait("shop", lambda instance: instance["config"]["problem"] is not None)["config"]["problem"]
    assert "audit.token cannot be read" in problem["message"]
    assert state(server).status_code == 200
    (file.parent / "audit.token").write_text(OTHER_TOKEN)
    assert state(server, OTHER_TOKEN).status_code == 401
    assert operator.http.post("/v1/instances/reload").status_code == 200
    assert operator.one("shop")["config"]["digest"] != digest
    assert state(server, OTHER_TOKEN).status_code == 200
    # A token whose file has another content, under the same configuration.
    (file.parent / "audit.token").write_text("another-token-of-many-characters")
    operator.http.post("/v1/instances/reload")
    assert state(server, OTHER_TOKEN).status_code == 401
    assert client.get().id != -1


def test_a_first_destination_for_canals_clients_opens_the_port(tmp_path: Path) -> None:
    file = make(tmp_path, canal={})
    with EmbeddedServer(file.parent, http=0, timings=QUICK) as server:
        assert server.canal_address is None
        with httpx.Client(base_url=server.url, trust_env=False) as http:
            assert "canal" not in http.get("/metrics").text
        make(tmp_path, "later", canal={"enabled": True, "port": free_port()})
        Operator(server.url, OPERATOR).wait("later", lambda instance: bool(instance) and instance["state"] == "running")
        assert canal(server, "later").get().id != -1
        with pytest.raises(CanalRefusedError, match="destination:shop should start first"):
            canal(server, "shop")


def test_what_belongs_to_the_process_is_refused_for_one_destination(tmp_path: Path, server: EmbeddedServer) -> None:
    make(tmp_path, "later", scan_s=7)
    failed = Operator(server.url, OPERATOR).wait("later", lambda instance: bool(instance))
    assert failed["state"] == "failed"
    assert "server.scan_s differs" in failed["error"]["message"]
    assert failed["capture"] is None


def test_a_wrong_file_among_others_does_not_keep_the_server_from_starting(tmp_path: Path, file: Path) -> None:
    (file.parent / "broken.yaml").write_text("source: {")
    with running(file) as server:
        instances = Operator(server.url, OPERATOR).list()
        assert (instances["shop"]["state"], instances["broken"]["state"]) == ("running", "failed")
    with pytest.raises(ConfigError, match=r"broken\.yaml"), running(file, names=["broken", "shop"]):
        pass
    with pytest.raises(ConfigError, match="no destination is called 'missing'"), running(file, names=["missing"]):
        pass
    file.unlink()
    with pytest.raises(ConfigError, match=r"broken\.yaml"), running(file):
        pass


def test_a_port_that_is_taken_ends_the_start(file: Path, server: EmbeddedServer) -> None:
    assert server.canal_address is not None
    taken = int(server.canal_address.rpartition(":")[2])
    for given in ({"http": int(server.url.rpartition(":")[2])}, {"canal_port": taken}):
        with pytest.raises(ConfigError, match="cannot listen"), running(file, **given):
            pass


def test_a_port_for_clients_that_nobody_serves(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no destination has enabled"), running(make(tmp_path, canal={})):
        pass


# --- one server at a time


def test_a_second_server_stands_by(file: Path) -> None:
    with running(file, timings=replace(QUICK, look_s=3)) as first:
        client = canal(first)
        batch = client.get()
        with running(file) as second:
            operator = Operator(second.url, OPERATOR)
            waiting = operator.one("shop")
            assert waiting["state"] == "standby"
            assert "holds this lock" in waiting["leader"]["holder"]
            answer = state(second)
            assert (answer.status_code, answer.json()["error"]["type"]) == (421, "NotLeaderError")
            with pytest.raises(CanalRefusedError, match="another server on this machine has this destination"):
                canal(second)
            refused = operator.http.post("/v1/instances/shop/stop")
            assert (refused.status_code, refused.json()["error"]["type"]) == (421, "NotLeaderError")
            client.ack(batch.id)
            client.socket.close()
            # A stop holds for both, and the one that starts it again has it; then the other one stands by.
            Operator(first.url, OPERATOR).act("shop", "stop")
            operator.wait("shop", lambda instance: instance["state"] == "stopped")
            assert operator.act("shop", "start")["leader"]["leads"] is True
            assert canal(second).get().entries[0].header.logfile_offset > batch.entries[0].header.logfile_offset
            Operator(first.url, OPERATOR).wait("shop", lambda instance: instance["state"] == "standby")
        Operator(first.url, OPERATOR).wait("shop", lambda instance: instance["state"] == "running")


# --- captures


def test_a_capture_that_cannot_reach_its_source_is_tried_again(tmp_path: Path) -> None:
    with running(make(tmp_path, capture="always")) as server:
        operator = Operator(server.url, VIEWER)
        failed = operator.wait("shop", lambda instance: instance["capture"]["restarts"] >= 2)
        failed = operator.wait("shop", lambda instance: instance["state"] == "failed")
        assert (failed["capture"]["state"], failed["capture"]["exit_code"]) == ("retrying", 1)
        assert failed["retry_at"] > failed["since"]
        assert "exit code 1: source 127.0.0.1:1" in failed["error"]["message"]
        assert "cdc: source 127.0.0.1:1" in operator.logs("shop")
        # The store is served all the same, and others would be, too.
        assert state(server).status_code == 200
        health = operator.http.get("/health")
        assert (health.status_code, "shop: capture ended" in health.text) == (503, True)
        metrics = operator.http.get("/metrics").text
        assert 'towpath_server_instance_state{destination="shop",state="failed"} 1.0' in metrics
        assert 'towpath_server_instance_state{destination="shop",state="running"} 0.0' in metrics
        assert 'towpath_server_capture_restarts_total{destination="shop"}' in metrics


@pytest.mark.long
def test_a_capture_outside_the_server_is_left_alone(tmp_path: Path) -> None:
    file = make(tmp_path, capture="always")
    store = load(file).store.path
    lock = StoreLock(store)
    write_capture_state(store, CaptureState(4711, True, "binlog.000007", 4, None, 0, 0))
    with running(file) as server:
        operator = Operator(server.url, VIEWER)
        outside = operator.wait("shop", lambda instance: instance["capture"]["state"] == "outside")
        assert (outside["state"], outside["capture"]["pid"]) == ("running", 4711)
        lock.release()
        operator.wait("shop", lambda instance: instance["capture"]["restarts"] >= 1)


def test_the_first_subscription_is_told_why_there_is_no_store(tmp_path: Path) -> None:
    with running(make(tmp_path, store=False, capture="subscribed")) as server:
        operator = Operator(server.url, VIEWER)
        assert operator.one("shop")["state"] == "waiting"
        with pytest.raises(CanalRefusedError, match=r"capture ended with exit code 1: source 127\.0\.0\.1:1"):
            canal(server)
        answer = httpx.post(
            f"{server.url}/v1/shop/subscribe",
            json={},
            headers={"authorization": f"Bearer {TOKEN}"},
            trust_env=False,
            timeout=30,
        )
        assert "capture ended with exit code 1" in answer.json()["error"]["message"]
        assert not (load(make_config_path(server)).meta.path / "meta.json").exists()


def make_config_path(server: EmbeddedServer) -> Path:
    return Path(server.documents()[0]["config"]["file"])


@pytest.mark.rule("canal-server-24")
def test_a_capture_runs_while_somebody_subscribes(tmp_path: Path) -> None:
    with running(make(tmp_path, capture="subscribed")) as server:
        operator = Operator(server.url, VIEWER)
        assert operator.one("shop")["state"] == "waiting"
        client = canal(server)
        operator.wait("shop", lambda instance: instance["capture"]["state"] != "off")
        client.unsubscribe()
        # A subscription that no look has seen lets capture run for twice begin_s.
        is_off = ("waiting", "off")
        operator.wait("shop", lambda instance: (instance["state"], instance["capture"]["state"]) == is_off, limit_s=180)
        time.sleep(0.5)
        assert operator.one("shop")["capture"]["state"] == "off"


def test_the_configuration_of_no_server(tmp_path: Path) -> None:
    document = yaml.safe_load(make(tmp_path, store=False).read_text())
    document["server"] = {"capture": "sometimes"}
    (tmp_path / "conf" / "shop.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=r"server\.capture"):
        load(tmp_path / "conf" / "shop.yaml")
