"""A TCP proxy: an address behind which the server can be exchanged, and whose bytes can be held back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from cdc.testing.servers import HOST

_POLL_S = 0.1


class Proxy:
    """Forwards connections to :attr:`target`, a port of 127.0.0.1. Use it as a context. ``host``: where it listens.

    With ``record``, :attr:`requests` has what each client has sent, connection by connection.
    """

    def __init__(self, target: int, *, record: bool = False, host: str = HOST) -> None:
        self.target = target
        self.requests: list[bytearray] = []
        self._record = record
        self._listener = socket.create_server((host, 0))
        self._listener.settimeout(_POLL_S)
        self.port: int = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._ended = threading.Event()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._mutex = threading.Lock()
        self._left: int | None = None
        """Bytes to clients before the end that :meth:`end_after` has announced."""
        self._stalls = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._open.set()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    @property
    def used(self) -> bool:
        """Whether a connection passes through it."""
        return bool(self._pairs)

    def freeze(self) -> None:
        """Forwards nothing until :meth:`thaw`."""
        self._open.clear()

    def thaw(self) -> None:
        """Forwards again."""
        self._open.set()

    def end_after(self, count: int, *, stall: bool) -> None:
        """Forwards exactly ``count`` (at least 1) more bytes to clients, then closes all connections, or (``stall``)
        forwards nothing until :meth:`thaw`. Most byte counts end inside a packet."""
        with self._mutex:
            self._left, self._stalls = count, stall

    @property
    def has_ended(self) -> bool:
        """Whether the last :meth:`end_after` has taken effect."""
        return self._left is None

    def cut(self) -> None:
        """Closes all connections, with what they hold back."""
        with self._mutex:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for connection in pair:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def move(self, target: int) -> None:
        """Leads new connections to another port, and closes the old ones."""
        self.target = target
        self.cut()
        self.thaw()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            try:
                server = socket.create_connection((HOST, self.target), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._mutex:
                self._pairs.append((client, server))
            self.requests.append(bytearray())
            for receiver, sender, copy in ((client, server, self.requests[-1]), (server, client, None)):
                thread = threading.Thread(target=self._forward, args=(receiver, sender, copy), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, destination: socket.socket, copy: bytearray | None) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if self._record and copy is not None:
                    copy += data
                self._open.wait()
                if copy is None and self._left is not None:
                    data = self._up_to_the_end(data, destination)
                    self._open.wait()
                destination.sendall(data)
        for connection in (source, destination):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._mutex:
            self._pairs = [pair for pair in self._pairs if source not in pair]

    def _up_to_the_end(self, data: bytes, client: socket.socket) -> bytes:
        """Forwards the bytes before the end that :meth:`end_after` has announced, ends if these are all, and returns
        the others."""
        with self._mutex:
            if self._left is None:
                return data
            now, rest = data[: self._left], data[self._left :]
            self._left -= len(now)
            ends = self._left == 0
            if ends:
                self._left = None
                if self._stalls:
                    self._open.clear()
        client.sendall(now)
        if ends and not self._stalls:
            self.cut()
            return b""
        return rest


class Proxies:
    """A proxy for each of several ports, with what :class:`Proxy` can do for all of them at once. Use it as a
    context."""

    def __init__(self, targets: Iterable[int], host: str = HOST) -> None:
        self._host = host
        self.each = [Proxy(target, host=host) for target in targets]

    @property
    def url(self) -> str:
        """The proxies, as ``host:port,host:port``."""
        return ",".join(f"{self._host}:{proxy.port}" for proxy in self.each)

    def __enter__(self) -> Self:
        for proxy in self.each:
            proxy.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for proxy in self.each:
            proxy.__exit__(kind, error, trace)

    def freeze(self) -> None:
        for proxy in self.each:
            proxy.freeze()

    def thaw(self) -> None:
        for proxy in self.each:
            proxy.thaw()

    def cut(self) -> None:
        for proxy in self.each:
            proxy.cut()
