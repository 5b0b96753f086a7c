"""Statements that the binlog has as text, and that change captured tables through another object than they name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.base.errors import UnsupportedEventError
from cdc.capture import Capture
from cdc.testing.servers import HOST, PASSWORD, Server
from tests.servers.capture.test_unsupported import configure, position
from tests.support.capturing import stored_ids

Database = Callable[[Server], str]
_TEXT = "SET SESSION binlog_format = STATEMENT"


@pytest.fixture(params=["mysql9", "mariadb11", "mysql56"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.mark.parametrize(
    ("made", "changed", "reason"),
    [
        (
            ["CREATE TRIGGER {o}.audit AFTER INSERT ON {o}.log FOR EACH ROW INSERT INTO {d}.t VALUES (NEW.id)"],
            "INSERT INTO {o}.log VALUES (5)",
            "{o}.log has the trigger audit",
        ),
        (["CREATE VIEW {o}.v AS SELECT * FROM {d}.t"], "UPDATE {o}.v SET id = id + 10", "{o}.v is a view"),
        (
            [
                "CREATE TABLE {o}.p (id INT PRIMARY KEY)",
                "CREATE TABLE {o}.m (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES {o}.p (id) ON DELETE CASCADE)",
                "CREATE TABLE {d}.c (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES {o}.m (id) ON DELETE CASCADE)",
                "INSERT INTO {o}.p VALUES (1)",
                "INSERT INTO {o}.m VALUES (1)",
                "INSERT INTO {d}.c VALUES (1)",
            ],
            "DELETE FROM {o}.p",
            "{o}.p is referenced by a foreign key of {d}.c, which is captured",
        ),
    ],
    ids=["trigger", "view", "foreign key"],
)
def test_a_statement_on_an_object_that_leads_to_captured_tables_stops_capture(
    server: Server, database: Database, tmp_path: Path, made: list[str], changed: str, reason: str
) -> None:
    db, other = database(server), database(server)
    names = {"d": db, "o": other}
    server.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY)", f"CREATE TABLE {other}.log (id INT PRIMARY KEY)")
    start = position(server)
    config = configure(tmp_path, server, db, start)
    server.execute(f"INSERT INTO {db}.t VALUES (1)", *[statement.format(**names) for statement in made])
    server.execute(_TEXT, changed.format(**names))
    with pytest.raises(UnsupportedEventError, match=re.escape(reason.format(**names))) as refused:
        Capture(config).run(until_current=True)
    assert changed.split("{", maxsplit=1)[0] in str(refused.value) and "source.start" in str(refused.value)
    assert stored_ids(config, f"{db}.t") == [1]


def test_a_statement_on_a_plain_table_stops_nothing(server: Server, database: Database, tmp_path: Path) -> None:
    db, other = database(server), database(server)
    server.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY)",
        f"CREATE TABLE {other}.log (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE {other}.two (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES {other}.log (id))",
    )
    config = configure(tmp_path, server, db, position(server))
    server.execute(
        f"USE {other}",
        _TEXT,
        f"INSERT INTO {other}.log VALUES (1, 1), (2, 2)",
        f"REPLACE INTO {other}.log VALUES (1, 3)",
        f"UPDATE {other}.log AS a JOIN {other}.two AS b ON a.id = b.id SET a.v = 4",
        f"DELETE a FROM {other}.log AS a JOIN {other}.two AS b ON a.id = b.id",
        f"DELETE FROM {other}.log WHERE id = 2",
    )
    server.execute(f"INSERT INTO {db}.t VALUES (2)")
    Capture(config).run(until_current=True)
    assert stored_ids(config, f"{db}.t") == [2]


def test_a_user_who_may_not_see_triggers_is_told_which_privilege_is_missing(
    server: Server, database: Database, tmp_path: Path
) -> None:
    db, other = database(server), database(server)
    user = f"'u{db[-8:]}'@'{HOST}'"
    server.execute(
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY)",
        f"CREATE TABLE {other}.log (id INT PRIMARY KEY)",
        f"CREATE USER {user} IDENTIFIED BY '{PASSWORD}'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT, PROCESS ON *.* TO {user}",
        f"GRANT SELECT ON {db}.* TO {user}",
    )
    config = configure(tmp_path, server, db, position(server))
    url = re.sub("//[^@]+@", f"//u{db[-8:]}@", config.source.url)
    config = config.model_copy(update={"source": config.source.model_copy(update={"url": url})})
    server.execute(_TEXT, f"INSERT INTO {other}.log VALUES (1)")
    server.execute(f"INSERT INTO {db}.t VALUES (2)")
    if server.kind.name != "mysql56":  # it shows the names of all tables
        with pytest.raises(UnsupportedEventError, match=rf"not exist any more.*GRANT SELECT, TRIGGER ON `{other}`"):
            Capture(config).run(until_current=True)
    server.execute(f"GRANT SELECT ON {other}.* TO {user}")
    with pytest.raises(UnsupportedEventError, match=rf"may have triggers.*GRANT TRIGGER ON `{other}`"):
        Capture(config).run(until_current=True)
    server.execute(f"GRANT TRIGGER ON {other}.* TO {user}")
    Capture(config).run(until_current=True)
    assert stored_ids(config, f"{db}.t") == [2]
    server.execute(f"DROP USER {user}")
