"""Snapshots pause while a replica is behind, and take a promoted one for a server of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from structlog.testing import capture_logs

from cdc.config import SnapshotConfig, SourceConfig
from cdc.source.snapshot.session import Throttle
from cdc.testing.servers import PASSWORD, Server
from cdc.testing.servers.replicas import ReplicaPair
from tests.support.failovers import wait_for


@contextmanager
def reader(server: Server) -> Iterator[tuple[Future[None], list[str]]]:
    """A reader that has asked the throttle whether it may go on: its answer, and the reasons why it waits."""
    source = SourceConfig(url=server.url, password_env="TEST_PASSWORD", server_id=4711, start="now")
    throttle = Throttle(source, SnapshotConfig(max_replica_lag_s=5), readers=1)
    with capture_logs() as lines, closing(throttle), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(throttle.after, 1)
        wait_for("an answer", lambda: answer.done() or bool(lines))
        yield answer, [str(line["reason"]) for line in lines]


def test_it_waits_for_a_replica_and_not_for_a_promoted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PASSWORD", PASSWORD)
    with ReplicaPair("mysql9") as pair:
        pair.replica.execute("SET GLOBAL read_only = ON")
        pair.wait_level()
        with reader(pair.replica) as (answer, reasons):
            assert (answer.result(30), reasons) == (None, [])
        pair.pause_replica()
        with reader(pair.replica) as (answer, reasons):
            assert reasons == ["the source is a replica that applies nothing, so nobody knows how far it is behind"]
            assert not answer.done()
            pair.resume_replica()
            answer.result(30)
        pair.pause_replica()
        pair.replica.execute("SET GLOBAL read_only = OFF")  # promoted; its settings of a replica are still there
        with reader(pair.replica) as (answer, reasons):
            assert (answer.result(30), reasons) == (None, [])
