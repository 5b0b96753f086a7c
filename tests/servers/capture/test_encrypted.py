"""Capture into an encrypted store on a real server: kills lose and double nothing, and XA transactions wait encrypted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.disk.encryption import keys
from cdc.disk.encryption.container import BLOCK_BYTES, frames_of
from cdc.disk.encryption.read import file_is_encrypted
from cdc.store.formats.layout import list_segments
from cdc.testing.servers import HOST, USER, Server
from tests.support.capturing import stored_ids
from tests.support.encryption import FIRST

NAME = b"Ada-Lovelace-1815"
KILLS = 5


@pytest.fixture
def config(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> Iterator[DestinationConfig]:
    db = database(mysql9)
    mysql9.execute("FLUSH BINARY LOGS", f"CREATE TABLE `{db}`.t (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(3000))")
    with mysql9.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        newest = cursor.fetchall()[-1][0]
    file = tmp_path / "conf" / "shop.yaml"
    file.parent.mkdir()
    (file.parent / "store.key").write_text(FIRST.hex())
    file.write_text(
        f"source: {{url: 'mysql://{USER}@{HOST}:{mysql9.port}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: {random.SystemRandom().randrange(1000, 2**31)}, start: {{file: {newest}, pos: 4}}}}\n"
        f"tables: {{include: ['{db}\\..*']}}\n"
        "store: {path: store, segment_bytes: 1000000, encryption: {key_file: store.key}}\n"
        "meta: {path: meta}\napply: {target: lake}\n"
    )
    with keys.isolated():
        yield load(file)


def holds(config: DestinationConfig) -> list[Path]:
    return [p for p in config.store.path.rglob("*") if p.is_file() and NAME in p.read_bytes()]


def require_unique_nonces(config: DestinationConfig) -> None:
    for segment in list_segments(config.store.path):
        data, seen = segment.read_bytes(), []
        for at in range(0, len(data), BLOCK_BYTES):
            seen += [frame for frame in frames_of(memoryview(data)[at : at + BLOCK_BYTES], at) if frame is not None]
        assert len({(frame.opening, frame.counter) for frame in seen}) == len(seen) > 0


@pytest.mark.long
def test_kills(config: DestinationConfig, mysql9: Server, seed: int) -> None:
    db = config.tables.include[0].removesuffix("\\..*")
    choose, stop, written = random.Random(seed), threading.Event(), 0

    def fill() -> None:
        nonlocal written
        with mysql9.connect() as connection, connection.cursor() as cursor:
            value = (NAME * 170).decode()
            while not stop.is_set():
                rows = random.choice((1, 1, 1, 20, 300))
                cursor.execute(f"INSERT INTO `{db}`.t (v) VALUES " + ", ".join([f"('{value}')"] * rows))
                connection.commit()
                written += rows

    command = [sys.executable, "-m", "cdc", "--conf-dir", str(config.file.parent), "capture", "shop"]
    filler = threading.Thread(target=fill)
    filler.start()
    try:
        for _ in range(KILLS):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            index, deadline = config.store.path / "capture.json", time.monotonic() + 60
            before = index.stat().st_mtime_ns if index.exists() else 0
            while (not index.exists() or index.stat().st_mtime_ns == before) and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(choose.uniform(0.05, 0.8))
            assert process.poll() is None
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        stop.set()
        filler.join()
    Capture(config).run(until_current=True)
    assert stored_ids(config, f"{db}.t") == list(range(1, written + 1))
    assert len(list_segments(config.store.path)) > 1
    assert not holds(config)
    require_unique_nonces(config)
    print(f"{written} rows in {len(list_segments(config.store.path))} segments, {KILLS} kills")


def test_a_prepared_transaction_waits_encrypted(config: DestinationConfig, mysql9: Server) -> None:
    db = config.tables.include[0].removesuffix("\\..*")
    with mysql9.connect() as connection, connection.cursor() as cursor:
        cursor.execute("XA START 'a'")
        cursor.execute(f"INSERT INTO `{db}`.t (v) VALUES ('{NAME.decode()}')")
        cursor.execute("XA END 'a'")
        cursor.execute("XA PREPARE 'a'")
    Capture(config).run(until_current=True)
    (waiting,) = (config.store.path / "prepared").glob("*.binlog")
    assert file_is_encrypted(waiting) and not holds(config) and stored_ids(config, f"{db}.t") == []
    mysql9.execute("XA COMMIT 'a'")
    Capture(config).run(until_current=True)
    assert stored_ids(config, f"{db}.t") == [1] and not holds(config)


def test_a_large_transaction_in_constant_memory(config: DestinationConfig, mysql9: Server) -> None:
    """Its statements end in rows of a table that is not captured, so flags of rows in the log are set later; and capture
    is stopped inside it, so recovery reads it through."""
    db = config.tables.include[0].removesuffix("\\..*")
    value = (NAME * 170).decode()
    with mysql9.connect() as connection, connection.cursor() as cursor:
        for _ in range(20):
            cursor.execute(f"INSERT INTO `{db}`.t (v) VALUES " + ", ".join([f"('{value}')"] * 400))
        connection.commit()
    Capture(config).run(until_current=True)
    (config.store.path / "checkpoint").unlink()
    (config.store.path / "abort").touch()
    Capture(config).run(until_current=True)
    assert stored_ids(config, f"{db}.t") == list(range(1, 8001)) and not holds(config)
