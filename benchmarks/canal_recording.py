"""Answers of a server of Canal's protocol, recorded and played back: the pace at which a client reads by itself.

    python -m benchmarks.canal_recording FILE

This command prints its port, and then plays a recording back to one client after the other. It needs hardly any CPU
time, so a client reads at its own pace. Each client gets the recording from its beginning, and again and again until it
has enough.
"""

from __future__ import annotations

import mmap
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Final

from cdc.canal import packets as p
from cdc.canal.fields import data, number
from cdc.canal.messages import Messages, parsed
from cdc.testing.servers import HOST

_CLIENT_ID: Final = "1002"
_MOST_REQUEST_BYTES = 1 << 16


def record(port: int, destination: str, fetch_size: int, answers: int, file: Path) -> int:
    """Writes up to so many answers of a server at ``port`` into a file, and returns how many it had. The client's
    subscription is ended."""
    named = data(1, destination) + data(2, _CLIENT_ID)
    recorded = 0
    with socket.create_connection((HOST, port), timeout=60) as connection, file.open("wb") as out:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _receive(connection)  # the handshake
        for kind, body in ((p.CLIENT_AUTHENTICATION, data(1, "canal")), (p.SUBSCRIPTION, named + data(7, r".*\..*"))):
            connection.sendall(p.framed(kind, body))
            _receive(connection)
        while recorded < answers:
            connection.sendall(p.framed(p.GET, named + number(3, fetch_size)))
            frame = _receive(connection)
            batch = parsed(Messages, p.parse_packet(frame, len(frame)).body).batch_id
            if batch == p.NO_BATCH:
                break
            out.write(len(frame).to_bytes(4, "big") + frame)
            recorded += 1
            connection.sendall(p.framed(p.CLIENT_ACK, named + number(3, batch)))
        connection.sendall(p.framed(p.UNSUBSCRIPTION, named))
        _receive(connection)
    return recorded


@contextmanager
def played(file: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Plays a recording back in another process while the context lasts; yields it and its port."""
    command = [sys.executable, "-m", "benchmarks.canal_recording", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def _receive(connection: socket.socket) -> bytes:
    """Returns the next packet without its length. Raises ConnectionError at the end of the connection."""
    size = int.from_bytes(_read(connection, 4), "big")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # as cdc server does
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view, at = memoryview(buffer), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if not count:
            raise ConnectionError("the other side has closed the connection")
        at += count
    return bytes(buffer)


def _play(connection: socket.socket, frames: list[memoryview]) -> None:
    answers = cycle(frames)
    connection.sendall(p.handshake(bytes(p.SEED_BYTES)))
    while True:
        kind = p.parse_packet(_receive(connection), _MOST_REQUEST_BYTES).type
        if kind == p.GET:
            connection.sendall(next(answers))
        elif kind not in (p.CLIENT_ACK, p.CLIENT_ROLLBACK):
            connection.sendall(p.acknowledged())


def _frames(recording: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(recording):
        end = at + 4 + int.from_bytes(recording[at : at + 4], "big")
        yield recording[at:end]
        at = end


def main() -> None:
    with Path(sys.argv[1]).open("rb") as file, socket.create_server((HOST, 0)) as listener:
        frames = list(_frames(memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))))
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection, suppress(ConnectionError):
                _play(connection, frames)


if __name__ == "__main__":
    main()
