"""The event loop of a server opens no file, takes no lock and starts no process: threads do."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cdc.server import EmbeddedServer
from tests.support.canal_client import RawClient
from tests.support.instances import OPERATOR, Operator, change
from tests.unit.server.test_instances import QUICK, make, state

WAITING = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "fcntl.flock", "subprocess.Popen")
LIBRARIES = (sys.prefix, sys.base_prefix, "<frozen")
watched: int | None = None
"""The thread that must not wait."""
blocking_calls: list[str] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in WAITING and threading.get_ident() == watched:
        frame: FrameType | None = sys._getframe(1)
        calls = []
        while frame is not None:
            calls.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        if any(name in ("_find_and_load", "updatecache") for _, _, name in calls):
            return  # a module that is loaded when it is first used, or a line of it for asyncio's debug mode
        ours = [call for call in calls if not call[0].startswith(LIBRARIES)]
        blocking_calls.append(f"{event} {arguments[:1]} by {ours[:4]}")


@pytest.fixture(scope="module", autouse=True)
def _audit() -> None:
    sys.addaudithook(_hook)  # which cannot be removed


def test_the_loop_waits_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything that an operator and clients do, once."""
    file = make(tmp_path, capture="subscribed")
    other = make(tmp_path, "other")

    def use(server: EmbeddedServer) -> None:
        operator = Operator(server.url, OPERATOR)
        assert server.canal_address is not None
        client = RawClient(int(server.canal_address.rpartition(":")[2])).login().subscribe()
        batch = client.get()
        client.ack(batch.id)
        client.get(timeout_ms=50)
        operator.wait("shop", lambda instance: instance["capture"]["pid"] is not None)
        assert state(server).status_code == 200
        for path in ("/v1/instances/shop", "/v1/instances/shop/logs", "/health", "/metrics"):
            operator.http.get(path)
        digest = operator.one("shop")["config"]["digest"]
        change(file, batch={"max_transactions": 5})
        operator.wait("shop", lambda instance: instance["config"]["digest"] != digest)
        operator.act("shop", "restart")
        operator.act("shop", "stop")
        operator.act("shop", "start")
        assert operator.http.post("/v1/instances/reload").status_code == 200
        other.unlink()
        operator.wait("other", lambda instance: not instance)

    async def run() -> None:
        global watched
        watched = threading.get_ident()
        asyncio.get_running_loop().slow_callback_duration = 1.0  # the machine may be busy, too
        async with EmbeddedServer(file.parent, http=0, canal_port=0, timings=QUICK) as server:
            await asyncio.to_thread(use, server)

    with caplog.at_level(logging.WARNING, "asyncio"):
        try:
            asyncio.run(run(), debug=True)
        finally:
            _stop_watching()
    assert blocking_calls == []
    assert [record.message for record in caplog.records if "took" in record.message] == []


def _stop_watching() -> None:
    global watched
    watched = None


def test_a_file_that_is_opened_in_the_loop_is_found(tmp_path: Path) -> None:
    async def run(read: Callable[[], object]) -> None:
        global watched
        watched = threading.get_ident()
        await asyncio.to_thread(read)
        assert blocking_calls == []
        read()

    file = tmp_path / "file"
    file.write_text("")
    try:
        asyncio.run(run(lambda: _open(file)))
        assert len(blocking_calls) == 1
    finally:
        _stop_watching()
        blocking_calls.clear()


def _open(file: Path) -> None:
    file.read_bytes()
