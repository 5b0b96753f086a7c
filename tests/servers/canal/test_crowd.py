"""A hundred clients of a real server, and beside them some that do what they should not: the others are served in time,
and the server's memory is bounded."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
import yaml

from benchmarks.canal import canal_server
from cdc.testing.servers import PASSWORD, Server
from tests.support.canal_client import CanalRefusedError, RawClient
from tests.support.canal_shop import capture, write_shop

CLIENTS, ROWS, ROW_BYTES, SECONDS = 100, 400, 60_000, 10
MOST_MB = 700
"""Of the server's memory: 100 clients whose answers of 1 MiB are under way, the program, and what Python keeps."""
LATENCY_S = 3.0


@pytest.mark.long
def test_a_hundred_clients_and_hostile_ones(
    mysql9: Server, database: Callable[[Server], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWPATH_TEST_PASSWORD", PASSWORD)
    monkeypatch.setenv("CANAL_PASSWORD", "secret")
    name = database(mysql9)
    file = write_shop(tmp_path, mysql9, name)
    capture(file)
    mysql9.execute(
        f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v LONGTEXT)",
        *(f"INSERT INTO {name}.t VALUES ({number}, REPEAT('x', {ROW_BYTES}))" for number in range(ROWS)),
    )
    capture(file)
    canal = {"enabled": True, "password_env": "CANAL_PASSWORD", "max_clients": 150, "max_answer_bytes": 1 << 20}
    file.write_text(file.read_text() + yaml.safe_dump({"server": {"canal": canal}}))
    with canal_server(file.parent, tmp_path / "server.log") as (process, port), ExitStack() as stack:
        watched = psutil.Process(process.pid)
        clients = [stack.enter_context(RawClient(port, client_id=str(n))) for n in range(CLIENTS)]
        for client in clients:
            client.login(password="secret").subscribe()
        stop = threading.Event()
        attacks = [threading.Thread(target=attack, args=(port, stop, n), daemon=True) for n in range(4)]
        slow = clients[50:]
        for client in slow:  # each asks for more than it takes: its socket is full, its answer waits
            for _ in range(8):
                client.ask(1 << 20)
        for thread in attacks:
            thread.start()
        peak, latencies, read = 0.0, [], dict.fromkeys(range(50), 0)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for number, client in enumerate(clients[:50]):
                begin = time.monotonic()
                batch = client.get(200)
                latencies.append(time.monotonic() - begin)
                read[number] += len(batch.rows())
                if batch.id != -1:
                    client.ack(batch.id)
            peak = max(peak, watched.memory_info().rss / 1e6)
        for number, client in enumerate(clients[:50]):  # nobody is left behind
            while read[number] < ROWS:
                batch = client.get(1000)
                read[number] += len(batch.rows())
                client.ack(batch.id)
            peak = max(peak, watched.memory_info().rss / 1e6)
        stop.set()
        for thread in attacks:
            thread.join(30)
        assert process.poll() is None
        latencies.sort()
        late = latencies[int(len(latencies) * 0.99)]
        print(f"{len(latencies)} answers, 99 % in {late:.3f} s, the longest {latencies[-1]:.3f} s; {peak:.0f} MB")
        assert set(read.values()) == {ROWS}
        assert late < LATENCY_S
        assert peak < MOST_MB
        answered = [client.answer() for client in slow[0:1]]
        assert answered[0].entries, "a slow client gets its answer once it takes it"


def attack(port: int, stop: threading.Event, seed: int) -> None:
    """Half-open connections, frames that are too large or are no packets, wrong passwords, and connects without end."""
    rng = random.Random(seed)
    kept: list[socket.socket] = []
    while not stop.is_set():
        with suppress(OSError, CanalRefusedError):
            kind = rng.randrange(4)
            if kind == 0:
                kept.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                if len(kept) > 10:
                    kept.pop(0).close()
                continue
            with RawClient(port, timeout_s=5) as client:
                if kind == 1:
                    client.socket.sendall(b"\x7f\xff\xff\xff" + rng.randbytes(100))
                elif kind == 2:
                    frame = rng.randbytes(rng.randrange(1, 60))
                    client.socket.sendall(len(frame).to_bytes(4, "big") + frame)
                elif kind == 3:
                    client.login(password="wrong")
        time.sleep(0.005)
    for one in kept:
        one.close()
