"""A replica that did not log what it replicated is promoted, so that its binlog lacks the GTIDs of what its tables
hold. A new destination captures it; the destination of the former server refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.base.errors import IdentityError
from cdc.lake.jobs.snapshot import take_snapshots
from cdc.testing.servers import HOST, ReplicaPair, Server
from tests.field.case import Scenario, readable
from tests.support.apply import Loop
from tests.support.capturing import capturing

_REFUSAL = "another server answers, and it has none of the store's transactions"


def run(folder: Path, server: Server, db: str) -> None:
    with ReplicaPair(server.kind.name, ("--skip-log-slave-updates",)) as pair:
        pair.primary.execute(
            f"CREATE DATABASE {db}",
            f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v INT)",
            f"INSERT INTO {db}.t VALUES (1, 1), (2, 2)",
        )
        former = Loop(folder, pair.primary, db, start="now", name="former")
        former.capture()
        former.sql("INSERT INTO t VALUES (3, 3)")
        former.capture()
        pair.wait_level()
        pair.fail_over()
        promoted = pair.primary
        loop = Loop(folder, promoted, db, start="snapshot")
        loop.capture()
        with capturing(loop.config):
            [result] = take_snapshots(loop.config)
        assert result.rows == 3
        loop.sql("INSERT INTO t VALUES (4, 4)", "UPDATE t SET v = 10 WHERE id = 1", "DELETE FROM t WHERE id = 2")
        loop.capture()
        loop.apply_all()
        loop.require_equal("t")
        former.edit(f"{HOST}:{pair.replica.port}", f"{HOST}:{promoted.port}")
        with pytest.raises(IdentityError, match=_REFUSAL):
            former.capture()


CASE = Scenario(
    report="PeerDB-io/peerdb#4523",
    problem="Replication from a promoted replica without log_slave_updates began at a GTID that its binlog never had.",
    run=run,
    answer=f"equal; as the standby of a captured server refused: *{readable(_REFUSAL)}*",
    servers=("mariadb11",),
)
