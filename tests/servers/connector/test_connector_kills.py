"""Connectors against real processes: kill -9 of the server under a client, and a cluster whose leader is killed."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kazoo.client import KazooClient

from cdc.base.errors import BatchError, LeaseHeldError
from cdc.canal.cluster.nodes import Tree, render_running
from cdc.connector import Connector, ZooKeeper, connect, connect_cluster
from cdc.testing.servers import Server, free_port
from tests.support.apply import Loop
from tests.support.writing import RowWriter

Database = Callable[[Server], str]


@contextmanager
def processes(loop: Loop, ports: list[int]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Runs capture and, at each port, ``cdc server``; a port that is started again gets a new process in the list."""
    conf = loop.config.file.parent
    document = yaml.safe_load(loop.config.file.read_text())
    document["server"] = {"canal": {"enabled": True}}
    loop.config.file.write_text(yaml.safe_dump(document))
    running: list[subprocess.Popen[bytes]] = []
    try:
        running.append(_start(conf, "capture", "shop"))
        running += [start_server(conf, port) for port in ports]
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def _start(conf: Path, *words: str) -> subprocess.Popen[bytes]:
    with open(conf / f"{words[0]}.log", "ab") as log:
        return subprocess.Popen([sys.executable, "-m", "cdc", "--conf-dir", str(conf), *words], stdout=log, stderr=log)


def start_server(conf: Path, port: int) -> subprocess.Popen[bytes]:
    return _start(conf, "server", "shop", "--http", "0", "--port", str(port))


def read_until(connector: Connector, last: Callable[[], int | None], after: Callable[[int], Any]) -> list[list[int]]:
    """Reads batches and acks each, until the row ``last()`` has come. ``after`` is called with the number of rows after
    each batch. Returns the ids of each batch that was acked or handed out."""
    batches: list[list[int]] = []
    seen = rows = 0
    deadline = time.monotonic() + 240
    while True:
        assert time.monotonic() < deadline, f"{rows} rows, up to {seen}, of {last()}"
        batch = connector.get_without_ack(64)
        if not batch:
            if last() is not None and seen >= (last() or 0):
                return batches
            time.sleep(0.02)
            continue
        ids = [int(row.new["id"] or 0) for entry in batch.entries if entry.event == "insert" for row in entry.rows]
        batches.append(ids)
        rows += len(ids)
        seen = max([seen, *ids])
        after(rows)
        try:
            connector.ack(batch.id)
        except BatchError:
            continue  # it comes again


def require_complete(batches: list[list[int]], last: int) -> int:
    """Every row came, each for the first time in the order of the source, and what came again did so in order, too.
    Returns the number of rows that came again."""
    ids = [row_id for batch in batches for row_id in batch]
    firsts = list(dict.fromkeys(ids))
    assert firsts == list(range(1, last + 1))
    for before, after in itertools.pairwise(ids):
        assert after <= before + 1, "a gap after a repetition"
    return len(ids) - len(firsts)


@pytest.mark.long
def test_a_server_is_killed_under_a_client(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    loop.capture()
    port = free_port()
    kills: list[int] = []
    end: list[int] = []
    with (
        processes(loop, [port]) as running,
        connect(f"127.0.0.1:{port}", "shop", retry_for_s=240) as connector,
        RowWriter(loop.server, f"{loop.db}.t") as writer,
    ):
        connector.subscribe()

        def kill(rows: int) -> None:
            if len(kills) < 3 and rows >= 300 * (len(kills) + 1):
                kills.append(rows)
                running[-1].send_signal(signal.SIGKILL)
                running[-1].wait()
                running.append(start_server(loop.config.file.parent, port))
            if len(kills) == 3 and rows >= 1500 and not end:
                writer.stop()
                end.append(writer.last)

        batches = read_until(connector, lambda: end[0] if end else None, kill)
    assert len(kills) == 3
    print(f"{end[0]} rows, {require_complete(batches, end[0])} of them again after kills at {kills}")


@pytest.mark.long
def test_a_cluster_client_goes_on_with_the_next_server_and_only_one_works(
    mysql9: Server, zookeeper: Server, tmp_path: Path, database: Database
) -> None:
    """Two servers of one store, of which the second stands by. Their nodes are written as each server would."""
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    loop.capture()
    tree = Tree(f"/otter/{secrets.token_hex(4)}")
    ports = [free_port(), free_port()]
    nodes = KazooClient(zookeeper.url)
    nodes.start()

    def lead(port: int) -> None:
        nodes.create(tree.running("shop"), render_running(f"127.0.0.1:{port}", 1), ephemeral=True, makepath=True)

    where = ZooKeeper(zookeeper.url, tree.root, session_timeout_s=4.0)
    options: dict[str, Any] = {"retry_for_s": 240}
    end: list[int] = []
    killed: list[int] = []
    with processes(loop, [ports[0]]) as running, RowWriter(loop.server, f"{loop.db}.t") as writer:
        lead(ports[0])
        try:
            with connect_cluster(where, "shop", **options) as connector:
                connector.subscribe()
                with pytest.raises(LeaseHeldError, match=f"works at .*:{os.getpid()}"):
                    connect_cluster(where, "shop", elect_for_s=0.2, **options)
                with connect_cluster(where, "shop", client_id=7, **options) as other:
                    other.subscribe(r"nothing\..*")  # another id works beside it

                def move(rows: int) -> None:
                    if rows >= 300 and not killed:
                        killed.append(rows)
                        running[-1].send_signal(signal.SIGKILL)
                        running[-1].wait()
                        nodes.delete(tree.running("shop"))
                        running.append(start_server(loop.config.file.parent, ports[1]))
                        threading.Timer(1.0, lead, (ports[1],)).start()
                    if killed and rows >= 900 and not end:
                        writer.stop()
                        end.append(writer.last)

                batches = read_until(connector, lambda: end[0] if end else None, move)
                # The session of this client ends: another one may work, and its acks are refused.
                batch_free = connect_cluster(where, "shop", client_id=8, **options)
                batch_free.subscribe()
                batch = batch_free.get_without_ack()
                nodes.delete(tree.client_running("shop", 8))
                with pytest.raises(BatchError, match="another client with this id may work"):
                    batch_free.ack(batch.id)
                repeated = batch_free.get_without_ack()
                assert repeated.messages == batch.messages
                batch_free.close()
        finally:
            nodes.stop()
            nodes.close()
    print(f"{end[0]} rows, {require_complete(batches, end[0])} of them again after the kill at {killed}")
