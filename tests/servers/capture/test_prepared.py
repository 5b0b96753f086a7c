"""Prepared XA transactions of captured tables on real servers: their rows come at their XA COMMIT, and never without it,
whatever happens in between."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest

from cdc.capture import Capture
from cdc.config import DestinationConfig
from cdc.decode.kernels.constants import OP_DELETE, OP_INSERT
from cdc.decode.reader import read
from cdc.store.formats.prepared import pending
from cdc.testing.servers import Server
from cdc.watch.status import collect
from tests.fault.support import RestartedCommand
from tests.servers.capture.test_unsupported import (
    compression,
    configure,
    executed,
    gtids_now,
    index,
    is_mysql,
    position,
    servers_gtids,
)
from tests.support.capturing import stored_ids
from tests.support.versions import needs
from tests.support.xa import end, prepare

Database = Callable[[Server], str]


@pytest.fixture(params=["mysql9", pytest.param("mariadb10", marks=pytest.mark.long), "mariadb11"])
def server(request: pytest.FixtureRequest, database: Database) -> Iterator[Server]:
    """Rolls back what a failed test leaves prepared: it would block the removal of its databases."""
    needs(request.param, "locks of prepared transactions")
    server: Server = request.getfixturevalue(request.param)
    yield server
    with server.connect() as conn, conn.cursor() as cursor:
        cursor.execute("XA RECOVER")
        for row in cursor.fetchall():
            data = row[3].encode() if isinstance(row[3], str) else bytes(row[3])
            cursor.execute(f"XA ROLLBACK X'{data[: row[1]].hex()}',X'{data[row[1] :].hex()}',{row[0]}")


def packed(server: Server) -> str | None:
    """The statement that makes a session compress its transactions, if one session can."""
    return compression(server, True)[0] if is_mysql(server) else None


def content(config: DestinationConfig, table: str) -> dict[int, str]:
    """Applies the store's changes of a table in their order. Returns its rows."""
    rows: dict[int, str] = {}
    for batch in read(config.store.path, table=table):
        for row in batch.select(["_op", "id", "v"]).to_pylist():
            if row["_op"] == OP_DELETE:
                del rows[row["id"]]
            elif row["_op"] == OP_INSERT:
                assert row["id"] not in rows, "an insert came twice"
                rows[row["id"]] = row["v"]
            else:
                assert row["id"] in rows
                rows[row["id"]] = row["v"]
    return rows


def selected(server: Server, table: str) -> dict[int, str]:
    with server.connect() as conn, conn.cursor() as cursor:
        cursor.execute(f"SELECT id, v FROM {table}")
        return {int(row[0]): str(row[1]) for row in cursor.fetchall()}


def pending_xids(config: DestinationConfig) -> list[str]:
    return [bytes.fromhex(entry.xid.split("'")[1]).decode() for entry in pending(config.store.path)]


def test_rows_come_in_the_order_of_the_commits(server: Server, database: Database, tmp_path: Path) -> None:
    """Restarts of capture and rotations lie between; other tables, rollbacks, one phase and compression too."""
    db, other = database(server), database(server)
    start, before = position(server), gtids_now(server)
    server.execute(*[f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v TEXT)" for name in (db, other)])
    config = configure(tmp_path, server, db, start)
    insert = f"INSERT INTO {db}.t VALUES"
    prepare(server, "'a'", f"{insert} (1, 'a')", f"INSERT INTO {other}.t VALUES (1, 'x')", f"{insert} (2, 'a')")
    prepare(server, "'b','branch',7", f"{insert} (3, 'b')", before=packed(server))
    prepare(server, "'excluded'", f"INSERT INTO {other}.t VALUES (2, 'x')")
    prepare(server, "'dropped'", f"{insert} (100, 'dropped')")
    server.execute(f"{insert} (4, 'plain')")
    Capture(config).run(until_current=True)
    assert pending_xids(config) == ["a", "b", "dropped"] and stored_ids(config, f"{db}.t") == [4]
    [oldest, *_] = (prepared := collect(config)["store"]["prepared"])["transactions"]
    assert prepared["count"] == 3 and oldest["xid"] == "x'61',x'',1" and oldest["tables"] == [f"{db}.t"]
    server.execute("FLUSH BINARY LOGS", f"{insert} (5, 'rotated')")
    Capture(config).run(until_current=True)
    end(server, "'b','branch',7")
    Capture(config).run(until_current=True)  # reads the XA COMMIT again to prove the source
    server.execute(f"UPDATE {db}.t SET v = 'changed' WHERE id = 3")
    Capture(config).run(until_current=True)
    end(server, "'excluded'")
    end(server, "'dropped'", commit=False)
    server.execute("XA START 'one'", f"{insert} (6, 'one')", "XA END 'one'", "XA COMMIT 'one' ONE PHASE")
    server.execute("FLUSH BINARY LOGS")
    end(server, "'a'")
    Capture(config).run(until_current=True)
    Capture(config).run(until_current=True)
    assert stored_ids(config, f"{db}.t") == [4, 5, 3, 3, 6, 1, 2]
    assert content(config, f"{db}.t") == selected(server, f"{db}.t")
    assert executed(index(config)) == servers_gtids(server, before)
    assert not pending_xids(config)
    assert [path.name for path in (config.store.path / "prepared").glob("*.binlog")] == []


def test_one_that_was_prepared_before_the_beginning_is_found(
    server: Server, database: Database, tmp_path: Path
) -> None:
    db = database(server)
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v TEXT)")
    prepare(server, "'early'", f"INSERT INTO {db}.t VALUES (1, 'early')")
    prepare(server, "'late'", f"INSERT INTO {db}.t VALUES (2, 'late')")
    server.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    start = position(server)
    end(server, "'early'")
    server.execute(f"INSERT INTO {db}.t VALUES (3, 'plain')")
    config = configure(tmp_path, server, db, start)
    Capture(config).run(until_current=True)
    assert stored_ids(config, f"{db}.t") == [1, 3] and pending_xids(config) == ["late"]
    end(server, "'late'")
    Capture(config).run(until_current=True)
    assert content(config, f"{db}.t") == selected(server, f"{db}.t")


class XaLoad:
    """Random XA and plain transactions on a table; each value is written once."""

    def __init__(self, server: Server, table: str, other: str, rng: random.Random) -> None:
        self._server, self._tables, self._rng = server, (table, other), rng
        self._next = 0
        self._free: list[int] = []
        """Rows that plain transactions have inserted, which no pending one has locked."""
        self.pending: list[str] = []

    def step(self) -> None:
        rng, server = self._rng, self._server
        what = rng.random()
        if self.pending and what < 0.4:
            xid = self.pending.pop(rng.randrange(len(self.pending)))
            end(server, f"'{xid}'", commit=rng.random() < 0.8)
        elif what < 0.8:
            self._next += 1
            xid = f"x{self._next}"
            prepare(server, f"'{xid}'", *self._statements(), before=packed(server) if rng.random() < 0.3 else None)
            self.pending.append(xid)
        elif what < 0.85:
            server.execute("FLUSH BINARY LOGS")
        else:
            self._next += 1
            self._free.append(self._next * 100)
            server.execute(f"INSERT INTO {self._tables[0]} VALUES ({self._free[-1]}, 'plain')")

    def _statements(self) -> Iterator[str]:
        for _ in range(self._rng.choice((1, 1, 3))):
            self._next += 1
            rows = self._rng.choice((1, 1, 50))
            values = ", ".join(f"({self._next * 100 + n}, '{'v' * self._rng.randrange(30)}')" for n in range(rows))
            yield f"INSERT INTO {self._rng.choice(self._tables)} VALUES {values}"
        if self._free:
            key, how = self._free.pop(0), self._rng.choice(("DELETE FROM {}", "UPDATE {} SET v = 'changed'"))
            yield f"{how.format(self._tables[0])} WHERE id = {key}"

    def finish(self) -> None:
        for xid in self.pending[2:]:
            end(self._server, f"'{xid}'")
        del self.pending[2:]


def require_locked(server: Server, table: str) -> None:
    """Checks that no DDL can change a table between the rows of a prepared transaction and their commit."""
    timeouts = ("SET SESSION lock_wait_timeout = 1", "SET SESSION innodb_lock_wait_timeout = 1")
    with pytest.raises(pymysql.err.MySQLError, match="Lock wait timeout"):
        server.execute(*timeouts, f"ALTER TABLE {table} ADD COLUMN c INT")


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("mysql9", ["kill"]),
        pytest.param("mysql9", ["halt", "kill", "halt", "kill"], marks=pytest.mark.long),
        pytest.param("mariadb11", ["halt", "kill", "halt", "kill"], marks=pytest.mark.long),
    ],
)
def test_kills_of_capture_and_restarts_of_the_server(kind: str, ends: list[str], tmp_path: Path, seed: int) -> None:
    """kill -9 of capture at random moments, clean restarts and crashes of the server, with transactions pending."""
    needs(kind, "locks of prepared transactions")
    rng = random.Random(f"{seed} {kind}")
    with Server(kind) as server:
        server.execute("CREATE DATABASE d", "CREATE DATABASE o")
        server.execute(*[f"CREATE TABLE {name}.t (id INT PRIMARY KEY, v TEXT)" for name in ("d", "o")])
        server.execute("CREATE TABLE d.locked (id INT PRIMARY KEY, v TEXT)")
        config = configure(tmp_path, server, "d", position(server))
        prepare(server, "'locked'", "INSERT INTO d.locked VALUES (1, 'locked')")
        load = XaLoad(server, "d.t", "o.t", rng)
        capture = RestartedCommand(config, "capture")
        try:
            for how in (*ends, None):
                for _ in range(2):
                    deadline = time.monotonic() + rng.uniform(0.3, 0.9)
                    least = 12
                    while time.monotonic() < deadline or least > 0:
                        load.step()
                        least -= 1
                    capture.running().send_signal(signal.SIGKILL)
                if how is not None:
                    getattr(server, how)()
                    server.restart()
                    require_locked(server, "d.locked")
            load.finish()
        finally:
            capture.stop(terminate=True)
        Capture(config).run(until_current=True)
        assert {"locked"} <= set(pending_xids(config)) <= {"locked", *load.pending}
        assert content(config, "d.t") == selected(server, "d.t")
        assert len(selected(server, "d.t")) > 10
        for xid in (*load.pending, "locked"):
            end(server, f"'{xid}'")
        Capture(config).run(until_current=True)
        for table in ("d.t", "d.locked"):
            assert content(config, table) == selected(server, table)
        assert not pending_xids(config)


def test_a_prepared_transaction_locks_its_tables(server: Server, database: Database) -> None:
    db = database(server)
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)")
    prepare(server, "'lock'", f"INSERT INTO {db}.t VALUES (1)")
    require_locked(server, f"{db}.t")
    end(server, "'lock'")
