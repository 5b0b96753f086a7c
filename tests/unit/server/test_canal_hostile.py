"""Clients of Canal's port that send what they should not, or do not take what they asked for: others are served."""

from __future__ import annotations

import random
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cdc.canal import packets as p
from cdc.canal.encoder import Taken
from cdc.canal.fields import data, number
from cdc.server import canal_clients as clients
from cdc.server import canal_connection as connection
from cdc.server import canal_listener as listener
from cdc.server.canal_cursor import ClientCursor
from tests.support.canal_client import CanalRefusedError, RawClient, listening
from tests.unit.server.test_canal import served_destination


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with listening([served_destination(tmp_path, max_clients=20)]) as listening_port:
        yield listening_port
        with RawClient(listening_port) as client:  # whatever happened, the next client is served
            assert client.login().subscribe().get().entries


def is_closed(connected: socket.socket, within_s: float = 10) -> bool:
    """Whether the server closes the connection; what it still sends is dropped."""
    connected.settimeout(within_s)
    try:
        while connected.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize("size", [0, 65_537, 0x7FFFFFFF, 0xFFFFFFFF, int.from_bytes(b"GET ", "big")])
def test_a_frame_of_an_impossible_size_ends_the_connection(port: int, size: int) -> None:
    with RawClient(port) as client:
        client.socket.sendall(size.to_bytes(4, "big"))
        with pytest.raises(CanalRefusedError, match=f"the packet has {size} bytes"):
            client.expect_ack()
        assert is_closed(client.socket)


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff" * 40,
        b"\x00",
        data(5, b"x") + b"\x2a\xff\xff\xff\xff\x0f",
        number(3, 1 << 63),
        number(3, p.GET) + number(4, 4) + data(5, b"x"),
        number(3, p.GET) + number(4, p.ZLIB) + data(5, b"no zlib"),
        number(3, p.GET) + number(4, p.ZLIB) + data(5, zlib.compress(bytes(1 << 24))),
        data(3, b"type") + data(5, b""),
    ],
)
def test_what_is_no_packet_ends_the_connection_with_an_error(port: int, frame: bytes) -> None:
    with RawClient(port) as client:
        client.socket.sendall(len(frame).to_bytes(4, "big") + frame)
        with pytest.raises(CanalRefusedError):
            client.expect_ack()
        assert is_closed(client.socket)


def test_a_field_of_another_type_counts_as_absent(port: int) -> None:
    """This is protobuf's rule. A login without a body is one of nobody, which this server admits."""
    with RawClient(port) as client:
        frame = number(3, p.CLIENT_AUTHENTICATION) + number(5, 7)
        client.socket.sendall(len(frame).to_bytes(4, "big") + frame)
        client.expect_ack()


def test_random_bytes(port: int) -> None:
    rng = random.Random(7)
    for _ in range(200):
        with RawClient(port) as client:
            client.login()
            kind = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12))
            client.send(kind, rng.randbytes(rng.randrange(60)), rng.choice((0, 0, 0, 1, 2, 3)))
            client.socket.sendall(rng.randbytes(rng.randrange(40)))


def test_who_does_not_log_in_is_disconnected(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(connection, "_LOGIN_S", 0.3)
    with RawClient(port) as silent, RawClient(port) as slow:
        slow.socket.sendall(b"\x00\x00")
        assert is_closed(silent.socket)
        assert is_closed(slow.socket)


def test_an_idle_client_is_disconnected(port: int) -> None:
    with RawClient(port) as client:
        client.login(read=number(3, 300))
        assert is_closed(client.socket)


def test_a_flood_of_connections_leaves_those_that_are_there_and_lets_new_ones_in(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_MOST_UNKNOWN", 50)
    with RawClient(port) as client:
        client.login().subscribe()
        opened = [RawClient(port) for _ in range(200)]
        with RawClient(port, client_id="7") as other:  # it takes no place that silent ones have
            other.login().subscribe()
        assert client.get().entries
        assert sum(is_closed(opened_client.socket, 0.2) for opened_client in opened[:60]) == 60, "the oldest give way"
        for opened_client in opened:
            opened_client.socket.close()


def test_subscriptions_that_nobody_uses_give_way_to_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, whoever can connect could take all places, and each would hold the store back for ever."""
    served = served_destination(tmp_path, max_clients=3)
    with listening([served]) as port:

        def subscribe(client_id: str) -> RawClient:
            return RawClient(port, client_id=client_id).login().subscribe()

        with subscribe("1") as used:
            used.ack(used.get().id)
        with subscribe("2") as connected:
            subscribe("3").socket.close()
            with pytest.raises(CanalRefusedError, match="has 3 subscriptions of Canal's clients already"):
                subscribe("4")
            monkeypatch.setattr(clients, "_PARK_S", 0.0)
            time.sleep(0.5)  # until the server has noticed that 3 is gone
            subscribe("4").socket.close()
            assert set(served.meta.read().subscriptions) == {"canal-1", "canal-2", "canal-4"}
            assert connected.get().entries


def test_no_more_clients_log_in_than_may(port: int) -> None:
    early = RawClient(port)
    logged_in = [RawClient(port).login() for _ in range(20)]
    with early, pytest.raises(CanalRefusedError, match="the server has 20 clients already"):
        early.login()
    with pytest.raises(CanalRefusedError, match="the server has 20 clients already"):
        RawClient(port)
    assert logged_in[0].subscribe().get().entries
    for client in logged_in:
        client.socket.close()
    deadline = time.monotonic() + 10
    while True:  # their places are free again
        try:
            with RawClient(port) as other:
                other.login()
            break
        except (CanalRefusedError, ConnectionError):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_many_clients_that_wait_do_not_hold_up_others(port: int) -> None:
    waiting = []
    for number_ in range(15):
        client = RawClient(port, client_id=str(number_))
        client.login().subscribe(r"no\.table")
        client.ask(timeout_ms=0)
        waiting.append(client)
    with RawClient(port) as client:
        client.login().subscribe()
        begin = time.monotonic()
        assert client.get().entries
        assert time.monotonic() - begin < 20
    for waiting_client in waiting:
        waiting_client.socket.close()


def test_a_client_that_does_not_take_its_answer_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connection, "_SEND_S", 0.5)
    size = 64 << 20  # more than the buffers of sockets hold
    large = Taken(np.zeros(size, dtype=np.uint8), size, 1, 1, size, 0)
    take = ClientCursor.take

    def taken(cursor: ClientCursor, *limits: int) -> tuple[int, list[Taken]] | None:
        return (1, [large]) if cursor.client_id == 1001 else take(cursor, *limits)

    monkeypatch.setattr(ClientCursor, "take", taken)
    with listening([served_destination(tmp_path)]) as port, RawClient(port) as slow:
        slow.login().subscribe()
        slow.ask()
        with RawClient(port, client_id="7") as other:
            assert other.login().subscribe().get().entries
        time.sleep(1.5)
        assert is_closed(slow.socket)


def test_client_ids_do_not_run_out_of_hand(port: int) -> None:
    """Each subscription holds back retention, so there are at most as many as clients."""
    for number_ in range(2, 22):
        with RawClient(port, client_id=str(number_)) as client:
            client.login().subscribe()
    with RawClient(port, client_id="22") as client:
        client.login()
        with pytest.raises(CanalRefusedError, match="subscriptions of Canal's clients already"):
            client.subscribe()
    for number_ in (2, 3):
        with RawClient(port, client_id=str(number_)) as client:
            client.login().unsubscribe()
