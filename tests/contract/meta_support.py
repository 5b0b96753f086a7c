"""Helpers of the tests of metas over ZooKeeper."""

from __future__ import annotations

import functools
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kazoo.client import KazooClient

from cdc.meta.zookeeper import ZooKeeperMeta
from cdc.testing.servers import HOST, Server


def maker(server: Server, session_timeout_s: float = 2.0, wait_s: float = 30.0) -> functools.partial[ZooKeeperMeta]:
    """Returns a picklable function that opens a meta below a root of its own."""
    return functools.partial(
        ZooKeeperMeta,
        server.url,
        "shop",
        root=f"/otter/{secrets.token_hex(4)}",
        source_address=("db.example", 3306),
        session_timeout_s=session_timeout_s,
        wait_s=wait_s,
    )


def base(make: functools.partial[ZooKeeperMeta]) -> str:
    """Returns the path of the destination's node."""
    return f"{make.keywords['root']}/destinations/shop"


@contextmanager
def client(server: Server) -> Iterator[Any]:
    """Yields a client of the test's own."""
    client = KazooClient(server.url)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


class Proxy:
    """A proxy between client and server that loses the answer to a request, once.

    With ``lose_answers`` the connection is lost with the answer; with ``say_nothing`` the connection stays.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server((HOST, 0))
        self.url = f"{HOST}:{self._listening.getsockname()[1]}"
        self.lose_answers = threading.Event()
        self.say_nothing = threading.Event()
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection((HOST, self._target))
                for args in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._copy, args=args, daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):  # closed from the other side
            while data := source.recv(1 << 16):
                if answers and self.lose_answers.is_set():
                    self.lose_answers.clear()
                    self.lost += 1
                    break
                if answers and self.say_nothing.is_set():
                    self.say_nothing.clear()
                    self.lost += 1
                    continue
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
