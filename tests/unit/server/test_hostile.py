"""Clients of HTTP that say nothing, are slow, or ask for more than their share: another client is answered beside."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx
import pytest

from cdc.server import app, connections
from tests.support.server import OTHER_TOKEN, TOKEN, in_thread, served_destination

FLOOD = 600
SLOWEST_S = 25.0
"""An honest client waits no longer, on a busy machine."""


@pytest.fixture(autouse=True)
def _files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with in_thread([served_destination(tmp_path)]) as address:
        yield address


class Flood:
    """Connections that a context holds open."""

    def __init__(self, url: str) -> None:
        address = httpx.URL(url)
        self._address = (address.host, address.port or 0)
        self._stack = ExitStack()
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def send(self, count: int, request: Callable[[int], bytes]) -> None:
        for number in range(count):
            connection = self._stack.enter_context(socket.create_connection(self._address, timeout=10))
            connection.sendall(request(number))
            self.sockets.append(connection)


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def require_answers(url: str, token: str = OTHER_TOKEN) -> None:
    """Requires that new clients are answered at once: one of health, and one of another subscriber."""
    for _ in range(5):
        began = time.monotonic()
        assert httpx.get(f"{url}/health", trust_env=False, timeout=20).status_code == 200
        answer = httpx.post(
            f"{url}/v1/shop/state",
            json={},
            headers={"authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=20,
        )
        assert answer.status_code == 200, answer.text
        assert time.monotonic() - began < SLOWEST_S


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HT",
        b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\ntoken=",
        b"POST /v1/shop/state HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["silent", "half a head", "kept", "half a second head", "half a form", "half a body"],
)
def test_a_flood_of_connections_without_a_token(url: str, request_bytes: bytes) -> None:
    with Flood(url) as flood:
        flood.send(FLOOD, lambda _: request_bytes)
        require_answers(url)


def test_the_head_of_a_request_has_a_time_limit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.5)
    with Flood(url) as flood, httpx.Client(base_url=url, trust_env=False) as kept:
        assert kept.get("/health").status_code == 200
        flood.send(1, lambda _: b"GET /health HTTP/1.1\r\nHost")
        flood.send(1, lambda _: b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        second = flood.sockets[1]
        while b"serving" not in second.recv(1 << 16):
            pass
        second.sendall(b"GET /hea")
        assert all(map(is_closed, flood.sockets))
        time.sleep(0.6)
        assert kept.get("/health").status_code == 200, "a connection that is kept says nothing for longer"


def test_requests_of_one_subscriber_leave_room_for_others(url: str) -> None:
    def waiting(number: int) -> bytes:
        body = json.dumps({"owner": "a", "token": f"{number:032x}", "ahead": True, "wait_s": 20}).encode()
        head = f"POST /v1/shop/get HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    with Flood(url) as flood:
        flood.send(FLOOD, waiting)
        time.sleep(0.5)
        require_answers(url)
        headers = {"authorization": f"Bearer {TOKEN}"}
        refused = httpx.post(f"{url}/v1/shop/state", json={}, headers=headers, trust_env=False, timeout=20)
        assert refused.status_code == 503
        assert f"has {app._MOST_OF_SUBSCRIBER} requests already" in refused.text


@pytest.mark.parametrize("pattern", ["((.+)+)+!", r"(\w|\w\w)" * 28 + "!"])
def test_an_expression_that_other_engines_match_for_hours(url: str, pattern: str) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    began = time.monotonic()
    answer = httpx.post(
        f"{url}/v1/shop/subscribe", json={"table_filter": pattern}, headers=headers, trust_env=False, timeout=60
    )
    assert answer.status_code == 200, answer.text
    body = {"owner": "a", "token": "ab" * 16, "wait_s": 0}
    httpx.post(f"{url}/v1/shop/get", json=body, headers=headers, trust_env=False, timeout=60)
    assert time.monotonic() - began < SLOWEST_S
    require_answers(url)
