"""The command ``cdc server``: TLS, a clean end, kill -9 in the middle of gets, acks and byte ranges, and a restart."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cdc.base.errors import ConfigError, PeerUnavailableError
from cdc.client import connect, open_batches, open_store
from cdc.config import DestinationConfig
from cdc.decode.transactions import open_range
from cdc.meta import open_meta
from cdc.testing.servers import free_port
from cdc.wire.files import uri_of
from tests.support.canal_client import RawClient
from tests.support.server import (
    ServerProcess,
    client_config,
    make_certificates,
    server_process,
    with_tokens,
)
from tests.support.unit_batches import IDENTITY, make_config, make_store
from tests.support.unit_store import fill

OWNER = "airflow:apply_shop"


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    """A destination whose store has 60 transactions in several segments."""
    config = with_tokens(make_config(tmp_path))
    fill(config.store.path, 60, segment_bytes=4096)
    open_meta(config).bind_source(IDENTITY)
    return config


@pytest.fixture
def server(config: DestinationConfig, tmp_path: Path) -> Iterator[ServerProcess]:
    with server_process(config, tmp_path) as process:
        yield process


def test_tls_with_a_ca_of_ones_own(config: DestinationConfig, tmp_path: Path) -> None:
    ours, alien = make_certificates(config.file.parent), make_certificates(tmp_path / "alien", "alien")
    config = with_tokens(config, certificate=ours.certificate.name, key=ours.key.name)
    with server_process(config, tmp_path) as server:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = client_config(config, tmp_path / "a", server.url, ca_file=str(ours.ca))
        lease = open_batches(trusting).get(OWNER)
        assert lease is not None
        for byte_range in lease.manifest.ranges:
            assert len(open_range(byte_range.path, byte_range.offset, byte_range.length).entries)
        by_name = client_config(
            config, tmp_path / "b", server.url.replace("127.0.0.1", "localhost"), ca_file=str(ours.ca)
        )
        assert open_store(by_name).exists()
        for number, wrong in enumerate(({"ca_file": str(alien.ca)}, {})):
            doubting = client_config(config, tmp_path / f"w{number}", server.url, **wrong)
            with pytest.raises(ConfigError, match="certificate is not trusted"):
                open_store(doubting).exists()
        plain = connect(trusting)
        with pytest.raises((PeerUnavailableError, ConfigError)):
            replace(plain, url=server.url.replace("https", "http"), retry_for_s=0.3).call("state")
        (tmp_path / "no.pem").write_text("no certificate")
        with pytest.raises(ConfigError, match="PEM"):
            open_store(client_config(config, tmp_path / "c", server.url, ca_file=str(tmp_path / "no.pem"))).exists()


def test_a_stopped_server_answers_what_it_has_begun(
    config: DestinationConfig, server: ServerProcess, tmp_path: Path
) -> None:
    client = client_config(config, tmp_path / "client", server.url)
    batches = open_batches(client)
    while (lease := batches.get(OWNER)) is not None:
        batches.ack(lease.batch, lease.token)
    answers: list[object] = []

    def wait() -> None:
        connection = replace(connect(client), retry_for_s=0.1)
        answers.append(connection.call("get", {"owner": OWNER, "token": "ab" * 16, "wait_s": 10.0}, once=True))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    assert server.stop(signal.SIGTERM) == 0
    thread.join(10)
    assert answers == [None]
    assert time.monotonic() - began < 8
    assert "Traceback" not in server.log.read_text()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kills", [2, pytest.param(15, marks=pytest.mark.long)])
def test_kills_lose_nothing_and_hand_out_nothing_twice(
    config: DestinationConfig, server: ServerProcess, tmp_path: Path, seed: int, kills: int
) -> None:
    """The server is killed at random moments while a client gets, reads and acks batch after batch."""
    rng = random.Random(seed)
    client = client_config(config, tmp_path / "client", server.url)
    batches, done = open_batches(client), threading.Event()
    errors: list[BaseException] = []

    def kill() -> None:
        try:
            for _ in range(kills):
                time.sleep(rng.uniform(0.0, 0.4))
                server.stop(signal.SIGKILL)
                server.start()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=kill)
    thread.start()
    taken: list[tuple[int, int, int]] = []
    lease = batches.get(OWNER)
    while lease is not None:
        manifest = lease.manifest
        assert lease.batch not in [batch for batch, _, _ in taken], "a batch was handed out twice"
        taken.append((lease.batch, manifest.after_seq, manifest.last_seq))
        for byte_range in manifest.ranges:
            mapped = open_range(byte_range.path, byte_range.offset, byte_range.length)
            name = byte_range.path.rpartition("/")[2]
            whole = (config.store.path / "segments" / name).read_bytes()
            assert (
                bytes(mapped.buf[byte_range.offset : byte_range.offset + byte_range.length])
                == whole[byte_range.offset : byte_range.offset + byte_range.length]
            )
        batches.check(lease.batch, lease.token)
        batches.renew(lease.batch, lease.token)
        batches.ack(lease.batch, lease.token)
        following = rng.random() < 0.5 or done.is_set()
        lease = batches.get_following(lease, OWNER) if following else batches.get(OWNER)
        assert len(batches.outstanding()) <= 1
    thread.join()
    assert not errors, errors
    assert [after for _, after, _ in taken] == [0, *(last for _, _, last in taken[:-1])]
    assert taken[-1][2] == open_store(client).last_seq()
    assert [batch for batch, _, _ in taken] == list(range(1, len(taken) + 1)), "a batch was lost"


def test_a_server_that_comes_back_finds_its_client_waiting(
    config: DestinationConfig, server: ServerProcess, tmp_path: Path
) -> None:
    client = client_config(config, tmp_path / "client", server.url)
    lease = open_batches(client).get(OWNER)
    assert lease is not None
    server.stop(signal.SIGKILL)
    started = threading.Timer(0.5, server.start)
    started.start()
    open_batches(client).check(lease.batch, lease.token)  # waits
    started.join()
    address = uri_of(connect(client), "schemas/1.json")
    assert address.startswith(f"towpath+{server.url}/v1/shop/")


def test_a_client_of_canal_goes_on_behind_what_it_acked_before_a_kill(tmp_path: Path) -> None:
    """Also inside a lease. A client may come as soon as the port listens: the destination is open when it is answered."""
    config = make_config(tmp_path)
    document = yaml.safe_load(config.file.read_text())
    document["server"], document["batch"] = {"canal": {"enabled": True}}, {}
    config.file.write_text(yaml.safe_dump(document))
    make_store(config.store.path)
    open_meta(config).bind_source(IDENTITY)
    port = free_port()
    offsets: list[int] = []
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(config.file.parent), "server", "shop"]
    for is_first in (True, False):
        server = subprocess.Popen([*command, "--http", "0", "--port", str(port)])
        try:
            with first_client(port) as client:
                client.login().subscribe()
                while not is_first or len(offsets) < 5:
                    batch = client.get(1)
                    if batch.id == -1:
                        break
                    offsets += [entry.header.logfile_offset for entry in batch.entries]
                    client.ack(batch.id)
            if is_first:
                time.sleep(2.0)
                subscription = open_meta(config).read().subscription("canal-1001")
                assert (
                    subscription.outstanding[0].after_seq
                    < subscription.acked_seq
                    < subscription.outstanding[0].last_seq
                )
        finally:
            server.kill()
            server.wait()
    assert len(offsets) == 20, "what was acked a second before the kill does not come again"
    assert offsets == sorted(offsets)


def first_client(port: int) -> RawClient:
    """Connects as soon as the port listens."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return RawClient(port, timeout_s=60)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
