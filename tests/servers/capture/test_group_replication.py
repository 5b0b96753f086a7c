"""Capture of a group of MySQL servers (group replication): views change, the primary changes, members are killed.

MySQL 9 writes no VIEW_CHANGE events any more; those of older versions are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.source.server import read_uuid
from cdc.testing.servers import HOST, USER, ReplicationGroup, Server
from tests.support.capturing import capturing
from tests.support.failovers import executed, inserting, source_of, stored_gtids, transactions, wait_until_level

pytestmark = pytest.mark.long


@pytest.fixture
def group() -> Iterator[ReplicationGroup]:
    with ReplicationGroup() as running:
        running.primary.execute(
            "CREATE DATABASE shop",
            "CREATE DATABASE other",
            *(f"CREATE TABLE {db}.t (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(1000))" for db in ("shop", "other")),
        )
        yield running


def configure(folder: Path, server_id: int, *ports: int, start: str = "now") -> DestinationConfig:
    folder.mkdir()
    file = folder / "shop.yaml"
    standbys = ", ".join(f"'{HOST}:{port}'" for port in ports[1:])
    file.write_text(
        f"source: {{url: 'mysql://{USER}@{HOST}:{ports[0]}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: {server_id}, start: {start}, heartbeat_s: 1,"
        f" standbys: [{standbys}], standby_after_s: 1}}\n"
        "tables: {include: ['shop\\..*']}\n"
        "store: {path: data/store}\nmeta: {path: data/meta}\napply: {target: ./lake}\n"
    )
    return load(file)


def uuid_of(server: Server) -> str:
    with server.connect() as connection:
        return read_uuid(connection)


def test_views_primaries_and_members_change(group: ReplicationGroup, tmp_path: Path) -> None:
    first, second, third = group.members
    by_uuid = {uuid_of(server): server for server in group.members}
    config = configure(tmp_path / "shop", 4711, first.port, second.port, third.port)
    Capture(config).run(until_current=True)
    first.execute("INSERT INTO shop.t (v) VALUES ('first')")
    with capturing(config):
        wait_until_level(config, first)
        with inserting(first) as writer:  # the views change: a member leaves and comes back
            writer.wait(30)
            group.leave(third)
            writer.wait(30)
            group.join(third)
            writer.wait(30)
        wait_until_level(config, first)
        assert source_of(config).epoch == 0

        group.switch_to(second)  # the captured server goes on as a secondary
        assert group.primary is second
        with inserting(second) as writer:
            writer.wait(60)
        wait_until_level(config, second)
        assert by_uuid[source_of(config).server_uuid] is first and source_of(config).epoch == 0

        with inserting(second) as writer:  # the captured server dies: capture moves to another member
            writer.wait(20)
            first.kill()
            writer.wait(60)
        wait_until_level(config, second)
        assert source_of(config).epoch == 1
        group.renew(first)

        captured = by_uuid[source_of(config).server_uuid]
        if captured is not second:
            group.switch_to(captured)
        with inserting(group.primary) as writer:  # the primary, which is captured, dies: the group elects another one
            writer.wait(40)
            captured.kill()
        elected = group.primary
        assert elected is not captured
        with inserting(elected) as writer:
            writer.wait(60)
        wait_until_level(config, elected)
        assert source_of(config).epoch == 2
    blocks = executed(elected)
    assert stored_gtids(config, elected) == blocks
    assert len(blocks.intervals(group.name)) > 1, "each primary takes its GTIDs from a block of its own"
    fresh = configure(tmp_path / "fresh", 4712, elected.port, start="earliest")
    Capture(fresh).run(until_current=True)
    stored, wanted = transactions(config), transactions(fresh)
    assert len(set(stored)) == len(stored), "a transaction is there twice"
    later = wanted[wanted.index(stored[0]) :]
    assert sorted(stored) == sorted(later) and len(stored) > 200
