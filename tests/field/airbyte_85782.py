"""The server that takes over wrote transactions of its own while it was a replica, in a table that is not captured. One
destination has read nothing behind them and goes on. Another one has, and refuses the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.base.errors import SourceRefusedError
from cdc.testing.servers import HOST, ReplicaPair, Server
from tests.field.case import Scenario, readable
from tests.support.apply import Loop

_REFUSAL = "the server has .* errant transactions: it wrote them on its own while it was a standby"
_HEARTBEAT = "INSERT INTO hearts.beats VALUES (1, 1) ON DUPLICATE KEY UPDATE beat = beat + 1"


def run(folder: Path, server: Server, db: str) -> None:
    with ReplicaPair(server.kind.name) as pair:
        pair.primary.execute(
            "CREATE DATABASE hearts",
            "CREATE TABLE hearts.beats (id INT PRIMARY KEY, beat INT)",
            f"CREATE DATABASE {db}",
            f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v INT)",
        )
        loops = [Loop(folder, pair.primary, db, start="now", name=name) for name in ("behind", "before")]
        for loop in loops:
            loop.capture()
        loops[0].sql("INSERT INTO t VALUES (1, 1)")
        for loop in loops:
            loop.capture()
        pair.wait_level()
        pair.replica.execute(_HEARTBEAT, _HEARTBEAT)
        loops[0].sql("INSERT INTO t VALUES (2, 2)")
        loops[1].capture()
        pair.wait_level()
        pair.promote()
        for loop in loops:
            loop.edit(f"{HOST}:{pair.primary.port}", f"{HOST}:{pair.replica.port}")
            loop.server = pair.replica
        loops[0].sql("INSERT INTO t VALUES (3, 3)")
        loops[0].capture()
        loops[0].apply_all()
        loops[0].require_equal("t")
        with pytest.raises(SourceRefusedError, match=_REFUSAL):
            loops[1].capture()


CASE = Scenario(
    report="airbytehq/airbyte#85782",
    problem="GTIDs of servers that were never read, as a Blue/Green promotion brings, ended each run with an error.",
    run=run,
    answer=f"equal; refused if they lie before transactions that were read: *{readable(_REFUSAL)}*",
    servers=("mysql9",),
)
