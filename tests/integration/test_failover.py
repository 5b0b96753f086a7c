"""Failovers of the source through to Delta: nothing is lost that the new master has, and nothing is there twice.

``TOWPATH_FAILOVERS`` sets how often the master is killed (3; 20 in ``make test-soak``).
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from pymysql.cursors import Cursor

from cdc.base.errors import LostTransactionsError
from cdc.capture import Capture
from cdc.capture.accept_loss import accept_loss
from cdc.lake import pipeline
from cdc.lake.jobs.snapshot import take_snapshots
from cdc.meta import open_meta
from cdc.store.formats.state import read_capture_state
from cdc.testing.servers import HOST, USER, ReplicaPair, Server
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.proxy import Proxy
from tests.support.writing import BackgroundWriter

DB = "shop"
ROUNDS = int(os.environ.get("TOWPATH_FAILOVERS") or 3)


def changing(server: Server, seed: int) -> BackgroundWriter:
    """Returns a load that changes a mirror and fills a changelog."""
    rng = random.Random(seed)

    def write(cursor: Cursor, number: int) -> None:
        key = rng.randrange(200)
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO {DB}.journal (word) VALUES ('{key}')")
        if rng.random() < 0.3:
            cursor.execute(f"DELETE FROM {DB}.accounts WHERE id = {key}")
        else:
            cursor.execute(f"REPLACE INTO {DB}.accounts VALUES ({key}, {rng.randrange(10**6)})")
        cursor.execute("COMMIT")

    return BackgroundWriter(server, write)


def make(folder: Path, pair: ReplicaPair, proxy: Proxy) -> Loop:
    pair.primary.execute(
        f"CREATE DATABASE {DB}",
        f"CREATE TABLE {DB}.accounts (id INT PRIMARY KEY, n INT)",
        f"CREATE TABLE {DB}.journal (id INT AUTO_INCREMENT PRIMARY KEY, word VARCHAR(20))",
    )
    pair.wait_level()
    loop = Loop(folder, pair.primary, DB, overrides="DB.journal: {mode: append}", start="now")
    flavor = loop.config.source.flavor
    url = f"{flavor}://{USER}@{HOST}:{proxy.port}"
    source = loop.config.source.model_copy(update={"url": url, "heartbeat_s": 1.0})
    loop.config = loop.config.model_copy(update={"source": source})
    loop.capture()
    return loop


def wait_connected(loop: Loop) -> None:
    """Waits for capture, which ends with an error if its first connection fails."""
    deadline = time.monotonic() + 30
    while (state := read_capture_state(loop.config.store.path)) is None or not state.connected:
        assert time.monotonic() < deadline, "capture does not connect"
        time.sleep(0.05)


def require_equal(loop: Loop) -> None:
    loop.require_equal("accounts")
    assert [key for _, key in loop.changelog("journal")] == [row["id"] for row in loop.select("journal")]


@pytest.mark.long
@pytest.mark.parametrize("family", ["mysql9", "mariadb11"])
def test_the_lake_equals_the_new_master(tmp_path: Path, family: str) -> None:
    with ReplicaPair(family) as pair, Proxy(pair.primary.port) as proxy:
        loop = make(tmp_path, pair, proxy)
        for number in range(ROUNDS):
            with capturing(loop.config):
                wait_connected(loop)
                with changing(pair.primary, number) as writer:
                    writer.wait(100)
                    proxy.freeze()
                    writer.wait(30)
                    pair.fail_over()
                proxy.move(pair.primary.port)
                loop.server = pair.primary
                with changing(pair.primary, 100 + number) as writer:
                    loop.apply(100)  # a batch that ends before the failover
                    writer.wait(50)
                pair.renew_replica()
            loop.capture()
            loop.apply_all()
            require_equal(loop)
        source = open_meta(loop.config).source()
        assert source is not None and source.epoch == ROUNDS
        with capturing(loop.config):
            assert pipeline.verify(loop.config, None, wait_s=10).ok


@pytest.mark.long
@pytest.mark.parametrize("family", ["mysql9", "mariadb11"])
def test_a_snapshot_repairs_what_a_failover_has_lost(tmp_path: Path, family: str) -> None:
    with ReplicaPair(family) as pair, Proxy(pair.primary.port) as proxy:
        loop = make(tmp_path, pair, proxy)
        loop.server = pair.primary
        loop.sql("INSERT INTO accounts VALUES (1, 1), (2, 2)", "INSERT INTO journal VALUES (1, 'a')")
        pair.wait_level()
        loop.capture()
        pair.pause_replica()
        loop.sql("UPDATE accounts SET n = 77 WHERE id = 1", "INSERT INTO accounts VALUES (3, 3)")
        loop.capture()
        loop.apply_all()
        pair.fail_over()
        proxy.move(pair.primary.port)
        loop.server = pair.primary
        loop.sql("INSERT INTO accounts VALUES (4, 4)", "INSERT INTO journal VALUES (2, 'b')")
        with pytest.raises(LostTransactionsError):
            loop.capture()
        assert accept_loss(loop.config).tables == (f"{DB}.accounts",)
        with capturing(loop.config):
            time.sleep(1)
            loop.apply_all()
            [result] = take_snapshots(loop.config)
            assert result.table == f"{DB}.accounts"
        loop.sql("INSERT INTO accounts VALUES (5, 5)")
        Capture(loop.config).run(until_current=True)
        loop.apply_all()
        require_equal(loop)
