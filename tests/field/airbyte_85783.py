"""Behind the address another server takes over, which has replicated the former one, and whose binlog files have
smaller numbers than those that were read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.base.errors import IdentityError
from cdc.testing.servers import HOST, PASSWORD, USER, ReplicaPair, Server
from tests.field.case import Scenario, readable
from tests.support.apply import Loop
from tests.support.proxy import Proxy

_WITHOUT_GTIDS = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
_REFUSAL = "another server answers .* the GTIDs of the store are not known"


def run(folder: Path, server: Server, db: str) -> None:
    kind = server.kind.name
    with ReplicaPair(kind) as pair, Proxy(pair.primary.port) as proxy:
        loop = _begin(folder, pair.primary, db, proxy)
        loop.apply_all()
        loop.sql(
            "UPDATE accounts SET v = 30 WHERE id = 3", "INSERT INTO journal VALUES (3)"
        )  # read on the green server
        pair.wait_level()
        pair.primary.execute(f"SET GLOBAL {'super_' if kind == 'mysql9' else ''}read_only = 1")
        pair.promote()
        loop.server = pair.replica
        proxy.move(pair.replica.port)
        loop.sql("DELETE FROM accounts WHERE id = 1", "INSERT INTO journal VALUES (4)")
        loop.capture()
        loop.apply_all()
        loop.require_equal("accounts")
        assert [key for _, key in loop.changelog("journal")] == [1, 2, 3, 4]
        loop.sql("INSERT INTO accounts VALUES (5, 5)", "INSERT INTO journal VALUES (5)")
        loop.capture()
        loop.apply_all()
        loop.require_equal("accounts")
        assert [key for _, key in loop.changelog("journal")] == [1, 2, 3, 4, 5]
    if kind != "mysql9":
        return
    with (
        Server(kind, options=_WITHOUT_GTIDS) as blue,
        Server(kind, options=_WITHOUT_GTIDS) as green,
        Proxy(blue.port) as proxy,
    ):
        loop = _begin(folder / "without", blue, db, proxy)
        green.execute(*["FLUSH BINARY LOGS"] * 20)  # so that it has a file of each name
        _copy(blue, green)
        proxy.move(green.port)
        green.execute(f"INSERT INTO {db}.accounts VALUES (4, 4)")
        with pytest.raises(IdentityError, match=_REFUSAL):
            loop.capture()


def _begin(folder: Path, blue: Server, db: str, proxy: Proxy) -> Loop:
    """Captures two transactions of a server with many binlog files, through the proxy."""
    folder.mkdir(exist_ok=True)
    blue.execute(*["FLUSH BINARY LOGS"] * 10)
    blue.execute(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.accounts (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE {db}.journal (id INT PRIMARY KEY)",
    )
    loop = Loop(folder, blue, db, overrides="DB.journal: {mode: append}", start="now")
    loop.edit(f"{HOST}:{blue.port}", f"{HOST}:{proxy.port}")
    loop.capture()
    loop.sql("INSERT INTO accounts VALUES (1, 1), (2, 2), (3, 3)", "INSERT INTO journal VALUES (1), (2)")
    loop.capture()
    return loop


def _copy(blue: Server, green: Server) -> None:
    """Lets a server replicate another one by positions, from its first file on, until it has all of it."""
    green.execute(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{HOST}', SOURCE_PORT={blue.port}, SOURCE_USER='{USER}', "
        f"SOURCE_PASSWORD='{PASSWORD}', SOURCE_LOG_FILE='binlog.000001', SOURCE_LOG_POS=4, GET_SOURCE_PUBLIC_KEY=1",
        "START REPLICA",
    )
    with blue.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        status = cursor.fetchone()
    assert status is not None
    with green.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT SOURCE_POS_WAIT('{status[0]}', {status[1]}, 30)")
    green.execute("STOP REPLICA", "RESET REPLICA ALL")


CASE = Scenario(
    report="airbytehq/airbyte#85783",
    problem="After a Blue/Green promotion no rows came, because the new server's files have smaller numbers.",
    run=run,
    answer=f"equal; refused without GTIDs: *{readable(_REFUSAL)}*",
)
