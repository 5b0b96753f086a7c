"""A raw client of Canal's protocol, and a listener for it in a thread of the test's process."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from cdc.canal import packets as p
from cdc.canal.fields import data, number
from cdc.server.canal_listener import CanalListener
from cdc.server.destinations import ServedDestination, ServerCounters
from cdc.server.live import LiveDestinations
from tests.support.canal_proto import parsed


class CanalRefusedError(Exception):
    """An error packet: its code and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


@dataclass
class Batch:
    """An answer to a get."""

    id: int
    entries: list[Any]

    def rows(self) -> list[dict[str, str | None]]:
        """The new rows, or the old ones of deletes."""
        return [row for entry in self.entries for row in rows_of(entry)]


def rows_of(entry: Any) -> list[dict[str, str | None]]:
    if entry.entry_type != 2:
        return []
    return [
        {c.name: None if c.is_null else c.value for c in (row.after_columns or row.before_columns)}
        for row in parsed("RowChange", entry.store_value).row_datas
    ]


class RawClient:
    """One connection."""

    def __init__(
        self,
        port: int,
        destination: str = "shop",
        client_id: str = "1001",
        timeout_s: float = 30,
        receive_bytes: int | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """``receive_bytes``: size of the socket's receive buffer; None: as the system has it."""
        self.destination, self.client_id = destination, client_id
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(timeout_s)
        self.socket.connect((host, port))
        kind, body, _ = self.receive()
        if kind == p.ACK:
            ack = parsed("Ack", body)
            raise CanalRefusedError(ack.error_code, ack.error_message)
        assert kind == p.HANDSHAKE
        self.seed = parsed("Handshake", body).seeds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Ends the connection as the end of a process with unread data does, without a goodbye."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, kind: int, body: bytes, compression: int = 0) -> None:
        packet = number(2, 1) + number(3, kind) + number(4, compression) + data(5, body)
        self.socket.sendall(len(packet).to_bytes(4, "big") + packet)

    def receive(self) -> tuple[int, bytes, int]:
        """Type, body and compression of the next packet."""
        size = int.from_bytes(self._read(4), "big")
        packet = parsed("Packet", self._read(size))
        return packet.type, packet.body, packet.compression

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(min(1 << 20, size - len(data)))
            if not part:
                raise ConnectionError("closed by the server")
            data += part
        return bytes(data)

    def expect_ack(self) -> None:
        kind, body, _ = self.receive()
        assert kind == p.ACK, kind
        ack = parsed("Ack", body)
        if ack.error_code:
            raise CanalRefusedError(ack.error_code, ack.error_message)

    def login(self, user: str = "canal", password: str | None = None, **more: bytes) -> Self:
        secret = b"" if password is None else p.scramble(password, self.seed)
        self.send(p.CLIENT_AUTHENTICATION, data(1, user) + data(2, secret) + b"".join(more.values()))
        self.expect_ack()
        return self

    def _named(self) -> bytes:
        return data(1, self.destination) + data(2, self.client_id)

    def subscribe(self, expression: str = "") -> Self:
        self.send(p.SUBSCRIPTION, self._named() + data(7, expression))
        self.expect_ack()
        return self

    def unsubscribe(self) -> None:
        self.send(p.UNSUBSCRIPTION, self._named())
        self.expect_ack()

    def ask(self, fetch_size: int = 1000, timeout_ms: int | None = None, compression: int = 0) -> None:
        timeout = number(4, -1) + number(5, -1)
        if timeout_ms is not None:
            timeout = number(4, timeout_ms, always=True) + number(5, 2)
        self.send(p.GET, self._named() + number(3, fetch_size) + timeout, compression)

    def get(self, fetch_size: int = 1000, timeout_ms: int | None = None) -> Batch:
        self.ask(fetch_size, timeout_ms)
        return self.answer()

    def answer(self) -> Batch:
        kind, body, _ = self.receive()
        if kind == p.ACK:
            ack = parsed("Ack", body)
            raise CanalRefusedError(ack.error_code, ack.error_message)
        assert kind == p.MESSAGES
        message = parsed("Messages", body)
        return Batch(message.batch_id, [parsed("Entry", message) for message in message.messages])

    def ack(self, batch: int) -> None:
        self.send(p.CLIENT_ACK, self._named() + number(3, batch))

    def rollback(self, batch: int = 0) -> None:
        self.send(p.CLIENT_ROLLBACK, self._named() + number(3, batch))


@contextmanager
def listening(served: Sequence[ServedDestination], counters: ServerCounters | None = None) -> Iterator[int]:
    """Serves Canal's clients in a thread while the context lasts; yields the port."""
    listener = CanalListener(served[0].config.server, LiveDestinations(served), counters or ServerCounters(), port=0)
    loop = asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()

    async def run() -> None:
        await listener.start()
        started.set()
        await stop.wait()
        await listener.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), name="test-canal", daemon=True)
    thread.start()
    assert started.wait(180)  # kernels may have to be compiled first
    try:
        yield listener.port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        listener.close()
        loop.close()


__all__ = ["Batch", "CanalRefusedError", "RawClient", "listening", "rows_of"]
