"""A hundred clients of a real server, and beside them some that do what they should not: the others are served in time,
newcomers are let in, and the server's memory is bounded."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import yaml

from benchmarks.canal import canal_server
from cdc.testing.servers import Server
from tests.support.canal_client import CanalRefusedError, RawClient
from tests.support.canal_shop import capture, write_shop

CLIENTS, SLOW, ATTACKERS = 100, 50, 6
TRANSACTIONS, ROWS, ROW_BYTES = 40, 400, 10_000
CALM_S, HOSTILE_S = 5, 12
ANSWER_BYTES = 1 << 20
GROWTH_MB = 300
"""The memory that the server may add beside hostile clients: 50 answers of 1 MiB wait, with their rows."""
LATENCY_S = 5.0
"""Less than any time-out of the server: nobody waits for a client that is slow, or does not log in."""


@dataclass
class Readers:
    """Clients that get, and ack, one after the other; and how long each answer took."""

    clients: Sequence[RawClient]
    seen: dict[str, set[str | None]] = field(default_factory=dict)

    def turn(self) -> list[float]:
        """Lets each client get and ack a batch. Returns how long each answer took."""
        times_s = []
        for client in self.clients:
            begin = time.monotonic()
            batch = client.get(1000)
            times_s.append(time.monotonic() - begin)
            self.seen.setdefault(client.client_id, set()).update(row["id"] for row in batch.rows())
            if batch.id != -1:
                client.ack(batch.id)
        return times_s

    def turns(self, seconds: float) -> list[float]:
        end = time.monotonic() + seconds
        times_s: list[float] = []
        while time.monotonic() < end:
            times_s += self.turn()
        return sorted(times_s)

    def again(self) -> None:
        """Subscribes anew, from the first transaction on."""
        for client in self.clients:
            client.unsubscribe()
            client.subscribe()
        self.seen.clear()


@pytest.mark.long
def test_a_hundred_clients_and_hostile_ones(
    mysql9: Server, database: Callable[[Server], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANAL_PASSWORD", "secret")
    file = write_rows(mysql9, database(mysql9), tmp_path)
    canal = {"enabled": True, "password_env": "CANAL_PASSWORD", "max_clients": 120, "max_answer_bytes": ANSWER_BYTES}
    file.write_text(file.read_text() + yaml.safe_dump({"server": {"canal": canal}}))
    with canal_server(file.parent, tmp_path / "server.log") as (process, port), ExitStack() as stack:
        memory = Memory(process.pid)
        clients = [
            stack.enter_context(RawClient(port, client_id=str(n), receive_bytes=4096 if n < SLOW else None))
            for n in range(CLIENTS)
        ]
        for client in clients:
            client.login(password="secret").subscribe()
        slow, readers = clients[:SLOW], Readers(clients[SLOW:])
        calm = readers.turns(CALM_S)
        before = memory.now()
        for client in slow:  # each asks for more than it takes: its socket is full, its answer waits
            for _ in range(4):
                client.ask(ANSWER_BYTES)
        readers.again()
        newcomers: list[float] = []
        with attacked(port), admitted(port, newcomers), memory:
            hostile = readers.turns(HOSTILE_S)
            while any(len(seen) < ROWS for seen in readers.seen.values()):
                readers.turn()
        assert process.poll() is None, (tmp_path / "server.log").read_text()[-4000:]
        late = [all_[int(len(all_) * 0.99)] for all_ in (calm, hostile)]
        print(
            f"calm: {len(calm)} answers, 99 % in {late[0]:.3f} s, the longest {calm[-1]:.3f} s; beside hostile clients: "
            f"{len(hostile)}, 99 % in {late[1]:.3f} s, the longest {hostile[-1]:.3f} s; {len(newcomers)} newcomers, the "
            f"longest {max(newcomers):.3f} s; memory {before:.0f} MB, then up to {memory.peak:.0f} MB"
        )
        everything = {str(number) for number in range(ROWS)}
        assert all(seen == everything for seen in readers.seen.values())
        assert late[1] < LATENCY_S
        assert memory.peak - before < GROWTH_MB
        assert len(newcomers) > HOSTILE_S / 2
        assert slow[0].answer().entries, "a slow client gets its answer once it takes it"


def write_rows(server: Server, name: str, folder: Path) -> Path:
    """Writes the configuration of a store that has some transactions with large rows."""
    file = write_shop(folder, server, name)
    capture(file)
    step = ROWS // TRANSACTIONS
    server.execute(
        f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v LONGTEXT)",
        *(
            f"INSERT INTO {name}.t WITH RECURSIVE n (id) AS (SELECT {first} UNION ALL SELECT id + 1 FROM n "
            f"WHERE id < {first + step - 1}) SELECT id, REPEAT('x', {ROW_BYTES}) FROM n"
            for first in range(0, ROWS, step)
        ),
    )
    capture(file)
    return file


class Memory:
    """The memory of a process in MB, without pages of files. As a context: notes the peak."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = 0.0

    def now(self) -> float:
        return float(self._process.memory_full_info().uss / 1e6)

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            self.peak = max(self.peak, self.now())

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)


@contextmanager
def admitted(port: int, seconds: list[float]) -> Iterator[None]:
    """Lets a new client log in, again and again, and notes how long that took. Raises if one is refused."""
    stop, failures = threading.Event(), []

    def run() -> None:
        while not stop.wait(0.5):
            begin = time.monotonic()
            try:
                with RawClient(port, timeout_s=20) as client:
                    client.login(password="secret")
                seconds.append(time.monotonic() - begin)
            except (OSError, CanalRefusedError) as error:
                failures.append(repr(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not failures, failures


@contextmanager
def attacked(port: int) -> Iterator[None]:
    """Runs attackers while the context lasts."""
    stop = threading.Event()
    threads = [threading.Thread(target=attack, args=(port, stop, n), daemon=True) for n in range(ATTACKERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def attack(port: int, stop: threading.Event, seed: int) -> None:
    """Half-open connections, frames that are too large, cut or no packets, wrong passwords, and floods of connects."""
    rng = random.Random(seed)
    kept: list[socket.socket] = []
    while not stop.is_set():
        with suppress(OSError, CanalRefusedError):
            kind = rng.randrange(6)
            if kind == 0:  # connects, and says nothing
                kept.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            elif kind == 1:  # a flood: each is gone at once, or left to be dropped
                kept += [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(20)]
            else:
                with RawClient(port, timeout_s=5) as client:
                    if kind == 2:
                        client.socket.sendall(b"\x7f\xff\xff\xff" + rng.randbytes(100))
                    elif kind == 3:
                        frame = rng.randbytes(rng.randrange(1, 60))
                        client.socket.sendall(len(frame).to_bytes(4, "big") + frame)
                        client.receive()
                    elif kind == 4:  # a frame whose rest never comes
                        client.socket.sendall((60_000).to_bytes(4, "big") + rng.randbytes(30_000))
                        kept.append(client.socket.dup())
                    else:
                        client.login(password="wrong")
            while len(kept) > 200:
                kept.pop(0).close()
        time.sleep(0.005)
    for connection in kept:
        connection.close()
