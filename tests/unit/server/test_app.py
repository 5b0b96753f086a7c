"""A server's answers to wrong requests: tokens, versions, paths, ranges, sizes, and its own failures."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cdc.base.errors import ConfigError
from cdc.server import answers, app
from cdc.server.destinations import ServedDestination
from cdc.server.operations import OPERATIONS
from cdc.wire.protocol import MOST_BODY_BYTES, MOST_BYTES
from tests.support.server import OTHER_TOKEN, TOKEN, in_thread, served_destination, with_tokens
from tests.support.unit_batches import make_config


@pytest.fixture
def served(tmp_path: Path) -> ServedDestination:
    return served_destination(tmp_path)


@pytest.fixture
def client(served: ServedDestination) -> Iterator[httpx.Client]:
    with (
        in_thread([served]) as url,
        httpx.Client(base_url=url, headers={"authorization": f"Bearer {TOKEN}"}, trust_env=False) as http_client,
    ):
        yield http_client


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN]
)
def test_a_wrong_token_gets_the_answer_of_an_unknown_destination(client: httpx.Client, header: str | None) -> None:
    client.headers.pop("authorization")
    headers = {} if header is None else {"authorization": header}
    answers = [client.post(f"/v1/{name}/state", json={}, headers=headers) for name in ("shop", "shed")]
    for answer in answers:
        assert answer.status_code == 401
        assert error_of(answer)["type"] == "ConfigError"
        assert error_of(answer)["retryable"] is False
    assert answers[0].text.replace("shop", "shed") == answers[1].text


def test_a_token_is_never_logged(client: httpx.Client, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    caplog.set_level(logging.DEBUG)
    lease = client.post("/v1/shop/get", json={"owner": "a", "token": "ab" * 16}).json()["result"]
    client.post("/v1/shop/ack", json={"batch": "x", "token": lease["token"]})
    client.post("/v1/shop/ack", json={"batch": 1, "token": {"of": lease["token"]}})
    said = caplog.text + "".join(capsys.readouterr())
    for token in (TOKEN, OTHER_TOKEN, lease["token"]):
        assert token not in said


def test_an_invalid_argument_is_named_without_its_value(client: httpx.Client) -> None:
    answer = client.post("/v1/shop/ack", json={"batch": "x", "token": "SECRET"})
    assert answer.status_code == 422
    assert error_of(answer) == {
        "type": "UsageError",
        "retryable": False,
        "message": "batch: input should be a valid integer, unable to parse string as an integer",
        "place": "ack",
        "remedy": None,
    }
    answer = client.post("/v1/shop/state", json={"newer": 1})
    assert "newer: extra inputs are not permitted" in error_of(answer)["message"]
    assert "JSON" in client.post("/v1/shop/state", content=b"{").json()["error"]["message"].upper()


@pytest.mark.parametrize("version", [0, 2, 99])
def test_another_version_of_the_protocol_is_refused(client: httpx.Client, version: int) -> None:
    answer = client.post(f"/v{version}/shop/state", json={})
    assert answer.status_code == 404
    assert error_of(answer)["type"] == "VersionError"
    assert (
        f"the client speaks version {version} of the protocol, and this server version 1" in error_of(answer)["message"]
    )


def test_an_unknown_operation_is_refused(client: httpx.Client) -> None:
    answer = client.post("/v1/shop/drop", json={})
    assert (answer.status_code, error_of(answer)["type"]) == (404, "VersionError")


@pytest.mark.parametrize(
    "path",
    [
        "store.json",
        "../meta/meta.json",
        "segments/../store.json",
        "segments/..%2f..%2fmeta%2fmeta.json",
        "%2e%2e/meta/meta.json",
        "segments/%2e%2e/%2e%2e/meta/meta.json",
        "/etc/passwd",
        "segments//etc/passwd",
        "segments/",
        "schemas/..%2fstore.json",
        "schemas/1.json%00",
        "segments/000-0000007-00000000198.binlog/../../store.json",
        "segments/000-0000007-00000000198.binlog.index",
        "lock",
    ],
)
def test_no_other_file_is_served(client: httpx.Client, path: str) -> None:
    # httpx would take `..` out of the path before it is sent.
    host, port = client.base_url.host, client.base_url.port
    with socket.create_connection((host, port or 0), timeout=10) as connection:
        request = f"GET /v1/shop/bytes/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    status = int(answer.split()[1])
    assert status in (404, 422), answer
    assert b"towpath-sha256" not in answer.lower()


def test_a_link_in_the_place_of_a_segment_is_not_followed(client: httpx.Client, served: ServedDestination) -> None:
    secret = served.config.file.parent / "apply.token"
    (served.config.store.path / "segments" / "000-0000009-00000000004.binlog").symlink_to(secret)
    answer = client.get("/v1/shop/bytes/segments/000-0000009-00000000004.binlog")
    assert answer.status_code in (422, 503)
    assert TOKEN not in answer.text


def test_ranges(client: httpx.Client, served: ServedDestination) -> None:
    [segment] = (served.config.store.path / "segments").glob("*.binlog")
    data, path = segment.read_bytes(), f"/v1/shop/bytes/segments/{segment.name}"
    answer = client.get(path, headers={"range": "bytes=4-103"})
    assert (answer.status_code, answer.content) == (206, data[4:104])
    assert answer.headers["towpath-sha256"] == hashlib.sha256(data[4:104]).hexdigest()
    assert client.get(path).content == data
    for wrong in ("bytes=9-3", "bytes=-5", "bytes=5-", "bytes=0-1,4-5", "lines=0-4", f"bytes=0-{MOST_BYTES}"):
        answer = client.get(path, headers={"range": wrong})
        assert (answer.status_code, error_of(answer)["type"]) == (422, "UsageError"), wrong
    answer = client.get(path, headers={"range": f"bytes=0-{len(data)}"})
    assert (answer.status_code, error_of(answer)["type"]) == (422, "DamagedError")
    assert error_of(client.get(f"{path[:-8]}9.binlog"))["type"] == "DamagedError"


def test_an_oversize_body_is_refused(client: httpx.Client) -> None:
    for content in (b"x" * (MOST_BODY_BYTES + 1), (b"x" * 1_000_000 for _ in range(17))):
        try:
            answer = client.post("/v1/shop/state", content=content)
        except (httpx.WriteError, httpx.ReadError):  # it closes the connection rather than reading all of it
            continue
        assert answer.status_code == 413
    assert client.post("/v1/shop/state", json={}).status_code == 200


def test_a_request_that_does_not_end_is_given_up(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_BODY_S", 0.1)
    with socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=10) as connection:
        connection.sendall(
            f"POST /v1/shop/state HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 100\r\n\r\n{{".encode()
        )
        assert b" 408 " in connection.recv(65536)


def test_a_client_that_takes_nothing_is_given_up(
    client: httpx.Client, served: ServedDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_SEND_S", 0.2)
    name = "000-0000009-00000000004.binlog"
    (served.config.store.path / "segments" / name).write_bytes(bytes(MOST_BYTES))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect((client.base_url.host, client.base_url.port or 0))
        connection.sendall(
            f"GET /v1/shop/bytes/segments/{name} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
        )
        time.sleep(0.8)
        size = 0
        try:
            while data := connection.recv(1 << 20):
                size += len(data)
        except ConnectionResetError:
            pass
    assert size < MOST_BYTES
    assert client.get("/health").status_code == 200


def test_a_failure_of_the_server_tells_the_client_nothing_of_it(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: Any) -> Any:
        raise ZeroDivisionError("inner secret")

    monkeypatch.setitem(OPERATIONS, "state", type(OPERATIONS["state"])(OPERATIONS["state"].arguments, fail))
    answer = client.post("/v1/shop/state", json={})
    assert answer.status_code == 500
    assert error_of(answer)["retryable"] is True
    assert "secret" not in answer.text


def test_health_and_metrics(client: httpx.Client, served: ServedDestination) -> None:
    assert client.get("/health").text == "serving shop\n"
    client.post("/v1/shop/state", json={})
    client.post("/v1/shop/ack", json={"batch": 1, "token": "t"})
    text = client.get("/metrics").text
    assert 'towpath_server_requests_total{destination="shop",operation="state",outcome="ok"} 1.0' in text
    assert 'towpath_server_requests_total{destination="shop",operation="ack",outcome="UsageError"} 1.0' in text
    assert 'towpath_server_sent_bytes_total{destination="shop"} 0.0' in text
    assert 'towpath_server_locks{destination="shop"} 0.0' in text
    (served.config.store.path / "store.json").unlink()
    time.sleep(2 * app._HEALTH_S)  # an answer serves for a moment
    answer = client.get("/health")
    assert answer.status_code == 503
    assert answer.text.startswith("shop: ")


def test_many_waiting_gets_do_not_keep_others_from_an_answer(client: httpx.Client, served: ServedDestination) -> None:
    lease = client.post("/v1/shop/get", json={"owner": "a", "token": "ab" * 16}).json()["result"]
    sockets = []
    for number in range(60):
        body = json.dumps({"owner": "a", "token": f"{number:032x}", "ahead": True, "wait_s": 5}).encode()
        connection = socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=10)
        connection.sendall(
            f"POST /v1/shop/get HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        sockets.append(connection)
    time.sleep(0.2)
    began = time.monotonic()
    answer = client.post("/v1/shop/renew", json={"batch": 1, "token": lease["token"]})
    assert answer.status_code == 200
    assert time.monotonic() - began < 20
    for connection in sockets:
        connection.close()


def test_changes_of_several_destinations(client: httpx.Client, served: ServedDestination) -> None:
    def asked(wait_s: float = 0.0, **destinations: dict[str, Any]) -> httpx.Response:
        return client.post("/v1/changes", json={"destinations": destinations, "wait_s": wait_s})

    last_seq = served.reader().last_seq()
    right, wrong = {"token": TOKEN}, {"token": "wrong"}
    result = asked(shop=right, web=right, wait_s=10).json()["result"]
    assert result["waiting"] == {"shop": last_seq}
    assert list(result["faults"]) == ["web"]
    assert "does not serve this destination to the token" in result["faults"]["web"]["error"]["message"]
    assert list(asked(shop=wrong, wait_s=10).json()["result"]["faults"]) == ["shop"]
    assert asked(shop={**right, "after_seq": last_seq}).json()["result"] == {"waiting": {}, "faults": {}}
    wrong_ones: list[dict[str, Any]] = [
        {"destinations": {}},
        {"destinations": {"shop": {}}},
        {"destinations": {"shop": right}, "more": 1},
    ]
    for content in wrong_ones:
        answer = client.post("/v1/changes", json=content)
        assert (answer.status_code, answer.json()["error"]["type"]) == (422, "UsageError")
    assert client.post("/v2/changes", json={"destinations": {"shop": right}}).status_code == 404
    assert client.get("/v1/changes").status_code == 405


def test_what_cannot_be_served_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path)
    with pytest.raises(ConfigError, match="no subscriber has a token"):
        ServedDestination(config)
    tokens = {"apply": {"env": "CDC_TEST_ONE"}, "audit": {"env": "CDC_TEST_TWO"}}
    config = with_tokens(config, tokens=tokens)
    with pytest.raises(ConfigError, match="CDC_TEST_ONE is not set"):
        ServedDestination(config)
    monkeypatch.setenv("CDC_TEST_ONE", TOKEN)
    monkeypatch.setenv("CDC_TEST_TWO", TOKEN)
    with pytest.raises(ConfigError, match="two subscribers have the same token"):
        ServedDestination(config)
    monkeypatch.setenv("CDC_TEST_TWO", "short")
    with pytest.raises(ConfigError, match="at least 16 are needed"):
        ServedDestination(config)
