"""`cdc plan --server` with real servers: what they say, that real tables stay as they are, and that nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cdc.binlog.sql.schemas import KnownPartitions
from cdc.cli.main import main
from cdc.config import SCRATCH_PREFIX, SourceConfig, TablesConfig
from cdc.source.connection import connect
from cdc.source.schemas import read_partitions, read_schemas
from cdc.testing.servers import PASSWORD, Server
from tests.support.configurations import document

SERVERS = ("mysql9", "mariadb11", "mysql56", "mariadb10")
TABLES = """
CREATE TABLE {db}.customers (id INT PRIMARY KEY, name VARCHAR(40) NOT NULL, note TEXT) DEFAULT CHARSET utf8mb4;
CREATE TABLE {db}.orders (id INT PRIMARY KEY, customer INT, n SMALLINT NOT NULL,
    day DATE, state ENUM('a;b', 'it''s') NOT NULL DEFAULT 'it''s',
    CONSTRAINT to_customer FOREIGN KEY (customer) REFERENCES {db}.customers (id)) DEFAULT CHARSET utf8mb4;
CREATE TABLE {db}.parts (id INT NOT NULL PRIMARY KEY, v INT) DEFAULT CHARSET utf8mb4
    PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE);
INSERT INTO {db}.customers VALUES (1, 'Ada', NULL);
INSERT INTO {db}.orders VALUES (1, 1, 2, NULL, 'a;b');
INSERT INTO {db}.parts VALUES (1, 1), (20, 2);
"""


@dataclass
class Case:
    """A server with tables, and a destination whose schemas are stored."""

    server: Server
    db: str
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()]

    def scratches(self) -> list[str]:
        return [str(name) for (name,) in self.rows("SHOW DATABASES") if str(name).startswith(SCRATCH_PREFIX)]

    def words(self, text: str, *options: str, server: str = "source") -> list[str]:
        (self.folder / "m.sql").write_text(text.format(db=self.db), "utf-8")
        stored = ["--schemas", str(self.folder / "schemas.json"), "--database", self.db]
        conf = ["--conf-dir", str(self.folder / "conf")]
        return [*conf, "plan", *stored, "--server", server, *options, str(self.folder / "m.sql")]

    def plan(self, text: str, *options: str, server: str = "source") -> tuple[int, dict[str, Any]]:
        self.capsys.readouterr()
        code = main(self.words(text, "--json", *options, server=server))
        printed = self.capsys.readouterr()
        content: dict[str, Any] = json.loads(printed.out) if printed.out else {"error": printed.err}
        return code, content

    def answers(self, text: str) -> list[dict[str, Any]]:
        _, content = self.plan(text)
        return [statement["server"] for statement in content["statements"]]


def definitions(server: Server, db: str, folder: Path) -> None:
    settings = SourceConfig(url=server.url, password_env="TOWPATH_TEST_PASSWORD", server_id=78)
    included = TablesConfig(include=(re.escape(db) + r"\..*",))
    with connect(settings) as source:
        schemas, partitions = read_schemas(source, included), read_partitions(source, included)
    clauses = {name: KnownPartitions(clause=clause) for name, clause in partitions.items()}
    schemas.model_copy(update={"partitions": clauses}).save(folder / "schemas.json")


@pytest.fixture
def case(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Case]:
    server: Server = request.getfixturevalue(request.param)
    db = f"plan_{uuid4().hex[:8]}"
    server.execute(f"CREATE DATABASE {db} DEFAULT CHARACTER SET utf8mb4")
    server.execute(*TABLES.format(db=db).strip().rstrip(";").split(";\n"))
    definitions(server, db, tmp_path)
    source = {"source__url": server.url, "source__password_env": "TOWPATH_TEST_PASSWORD"}
    text = document(**source, tables__include=[rf"{db}\..*"], apply__target=str(tmp_path / "lake"))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "shop.yaml").write_text(text, "utf-8")
    yield Case(server, db, tmp_path, capsys)
    server.execute(f"DROP DATABASE {db}")


both = pytest.mark.parametrize("case", ["mysql9", "mariadb11"], indirect=True)
each = pytest.mark.parametrize("case", SERVERS, indirect=True)


@each
def test_the_server_answers_and_nothing_else_changes(case: Case) -> None:
    """Whatever the server, and wherever its binlog stands."""
    tables = ("customers", "orders", "parts")
    before = [case.rows(f"SHOW CREATE TABLE {case.db}.{table}") for table in tables]
    position = case.rows("SHOW BINARY LOGS")
    code, content = case.plan(
        """
        ALTER TABLE orders ADD COLUMN c INT NOT NULL DEFAULT 5;
        ALTER TABLE {db}.customers MODIFY id BIGINT;
        ALTER TABLE orders ADD COLUMN c INT;
        CREATE INDEX by_day ON orders (day);
        CREATE TABLE tags (id INT PRIMARY KEY, n INT, FOREIGN KEY (n) REFERENCES orders (id)) DEFAULT CHARSET=utf8mb4;
        RENAME TABLE tags TO {db}.labels;
        ALTER TABLE parts DROP PARTITION p0;
        INSERT INTO orders VALUES (2, 1, 1, NULL, 'a;b', 1);
        TRUNCATE TABLE parts;
        DROP TABLE labels
        """
    )
    answers = [statement["server"] for statement in content["statements"]]
    assert [answer["outcome"] for answer in answers] == [
        "executed", "rejected", "rejected", "executed", "executed", "executed", "executed", "not tried", "executed",
        "executed",
    ]  # fmt: skip
    assert code == 2 and content["exit_code"] == 2
    has_instant = case.server.kind.name != "mysql56"
    assert answers[0]["algorithm"] == ("INSTANT" if has_instant else "INPLACE")
    assert "Duplicate column name 'c'" in answers[2]["reason"]
    assert SCRATCH_PREFIX not in json.dumps(answers) and not any(answer["differences"] for answer in answers)
    assert (answers[3]["algorithm"], answers[3]["lock"]) in (("INPLACE", "NONE"), ("NOCOPY", "NONE"))
    assert (answers[6]["algorithm"] is not None) == (case.server.kind.name == "mysql9")  # the others take none there
    assert case.scratches() == []
    assert [case.rows(f"SHOW CREATE TABLE {case.db}.{table}") for table in tables] == before
    assert case.rows(f"SELECT COUNT(*) FROM {case.db}.parts") == [(2,)]
    assert case.rows("SHOW BINARY LOGS") == position


@both
def test_the_algorithm_is_the_one_that_the_server_takes(case: Case) -> None:
    """The same statements on real tables accept it, and no lighter one."""
    sqls = [
        "ALTER TABLE orders ADD COLUMN c INT",
        "ALTER TABLE orders MODIFY n BIGINT NOT NULL",
        "ALTER TABLE orders ADD KEY (n)",
        "ALTER TABLE orders ENGINE=InnoDB",
        "ALTER TABLE parts PARTITION BY HASH (id) PARTITIONS 2",
        "ALTER TABLE parts REMOVE PARTITIONING",
        "ALTER TABLE customers CONVERT TO CHARACTER SET utf8mb3",
    ]
    answers = case.answers("; ".join(sqls))
    assert [answer["outcome"] for answer in answers] == ["executed"] * len(sqls), answers
    light = {"INSTANT": 0, "NOCOPY": 1, "INPLACE": 2, "COPY": 3}
    assert [answer["algorithm"] for answer in answers][:2] == ["INSTANT", "COPY"]
    with case.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE {case.db}")
        for sql, answer in zip(sqls, answers, strict=True):
            comma = " " if "PARTITION" in sql else ", "
            head, rest = sql[: sql.index(" ", 12)], sql[sql.index(" ", 12) + 1 :]
            for algorithm in (name for name in light if light[name] < light[answer["algorithm"]]):
                with pytest.raises(Exception, match=r"\((1800|1845|1846|1064),"):
                    cursor.execute(f"{head} ALGORITHM={algorithm}{comma}{rest}")
            cursor.execute(f"{head} ALGORITHM={answer['algorithm']}{comma}{rest}")


@both
def test_a_statement_with_its_own_algorithm_is_executed_as_it_is(case: Case) -> None:
    answers = case.answers(
        "ALTER TABLE orders MODIFY n BIGINT NOT NULL, ALGORITHM=INPLACE; ALTER TABLE orders ADD x INT, ALGORITHM=COPY"
    )
    assert [answer["outcome"] for answer in answers] == ["rejected", "executed"]
    assert "ALGORITHM=INPLACE is not supported" in answers[0]["reason"] and answers[1]["algorithm"] is None


@each
def test_hostile_statements_reach_no_real_table(case: Case) -> None:
    """None of them is executed anywhere else, whether it is refused or lands in a scratch schema."""
    other = f"other_{case.db}"
    case.server.execute(f"CREATE DATABASE {other}", f"CREATE TABLE {other}.t (id INT PRIMARY KEY, v INT)")
    case.server.execute(f"INSERT INTO {other}.t VALUES (1, 1)")
    sqls = [
        "ALTER TABLE orders RENAME TO {other}.stolen",
        "RENAME TABLE {other}.t TO {db}.gone",
        "DROP TABLE {other}.t",
        "DROP TABLE orders, {other}.t",
        "DROP TABLE `{other}` . `t`",
        "DROP TABLE /*! {other}. */ t",
        "DROP TABLE /*!99999 IF EXISTS orders, */ {other}.t",
        "ALTER TABLE /*!99999 orders ADD x1 INT, COMMENT= */ {other}.t DROP v",
        "TRUNCATE {other}.t",
        "ALTER TABLE parts EXCHANGE PARTITION p0 WITH TABLE {other}.t",
        "CREATE TABLE copied SELECT * FROM {other}.t",
        "CREATE TABLE copied TABLE {other}.t",
        "CREATE TABLE copied (SELECT 1 AS a)",
        "CREATE TABLE linked (id INT PRIMARY KEY) DATA DIRECTORY = '/tmp'",
        "CREATE TABLE linked (id INT) ENGINE=FEDERATED CONNECTION='mysql://t:pw@127.0.0.1/{other}/t'",
        "CREATE TABLE linked (id INT) ENGINE MERGE UNION=({other}.t)",
        "CREATE TABLE linked (id INT) ENGINE=CONNECT TABLE_TYPE=DIR FILE_NAME='*'",
        "CREATE TRIGGER x BEFORE INSERT ON {other}.t FOR EACH ROW SET NEW.v = 1",
        "DROP DATABASE {other}",
        "CREATE USER evil",
        "GRANT ALL ON *.* TO evil",
        "SET GLOBAL read_only = 1",
        "ALTER TABLE orders ADD y INT COMMENT 'a\\\\'; DROP TABLE {other}.t; -- '",
        "ALTER TABLE mysql.user ADD x INT",
        "CREATE TABLE kin (id INT, FOREIGN KEY (id) REFERENCES mysql.user (id))",
        "ALTER TABLE {other}.t DISCARD TABLESPACE",
        "SET STATEMENT max_statement_time=1 FOR DROP TABLE {other}.t",
    ]
    users = case.rows("SELECT user, host FROM mysql.user ORDER BY 1, 2")
    databases = case.rows("SHOW DATABASES")
    text = ";\n".join(sqls).replace("{other}", other)
    try:
        _, content = case.plan(text)
        answers = [statement["server"] for statement in content["statements"]]
        assert len(answers) >= len(sqls)
        assert case.rows(f"SELECT * FROM {other}.t") == [(1, 1)]
        assert case.rows(f"SHOW TABLES FROM {other}") == [("t",)]
        assert [len(row) for row in case.rows(f"SHOW COLUMNS FROM {other}.t")] == [6, 6]
        assert case.rows("SHOW DATABASES") == databases
        assert case.rows("SELECT user, host FROM mysql.user ORDER BY 1, 2") == users
        assert sorted(case.rows(f"SHOW TABLES FROM {case.db}")) == [("customers",), ("orders",), ("parts",)]
        quoted = 'ALTER TABLE orders ADD "a\\\\" INT, RENAME TO ' + other + '.stolen, COMMENT="b"'
        for modes in ("ORACLE", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", ""):
            case.plan(quoted, "--sql-mode", modes)
            assert case.rows(f"SHOW TABLES FROM {other}") == [("t",)]
        tried = [s["sql"] for s in content["statements"] if s["server"]["outcome"] == "executed"]
        assert not any(word in sql for sql in tried for word in ("TRIGGER", "SELECT", "ENGINE", "GRANT", "DIRECTORY"))
    finally:
        case.server.execute(f"DROP DATABASE {other}")


@both
def test_a_definition_that_the_plan_does_not_expect(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    code, content = case.plan("ALTER TABLE orders ADD c INT; ALTER TABLE orders ADD d INT")
    assert code == 0, content
    monkeypatch.setattr("cdc.lake.migration.planner.apply_changes", lambda schema, changes: schema)
    code, content = case.plan("ALTER TABLE orders ADD c INT; ALTER TABLE orders ADD d INT")
    assert code == 5
    (difference,) = content["statements"][0]["server"]["differences"]
    assert difference.startswith(f"{case.db}.orders: columns id, customer, n, day, state, and the server has id, ")


@both
def test_stored_definitions_that_are_old_are_named(case: Case) -> None:
    case.server.execute(f"ALTER TABLE {case.db}.orders ADD late INT")
    code, content = case.plan("ALTER TABLE orders ADD c INT")
    assert code == 0 and content["statements"][0]["server"]["outcome"] == "executed"
    assert any(f"stored definition of {case.db}.orders is not the server's" in remark for remark in content["remarks"])


@both
def test_the_table_for_people(case: Case) -> None:
    assert (
        main(
            case.words(
                "ALTER TABLE orders ADD c INT;\nALTER TABLE orders ADD c INT;\nINSERT INTO orders (id) VALUES (3)"
            )
        )
        == 2
    )
    lines = case.capsys.readouterr().out.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("server "))
    assert lines[begin + 1 : begin + 2] == ["line 1: executed, ALGORITHM=INSTANT"]
    assert lines[begin + 2].startswith("line 2: rejected: Duplicate column name 'c' (error 1060)")
    assert lines[begin + 3].startswith("line 3: not tried: it is no CREATE, ALTER, DROP, RENAME or TRUNCATE")


@each
def test_a_user_that_may_make_scratch_schemas_alone(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the privilege the message has the GRANT, and with it the user can write nowhere else."""
    user = f"u{case.db[-8:]}"
    case.server.execute(f"CREATE USER {user} IDENTIFIED BY 'pw'", f"GRANT SELECT ON {case.db}.* TO {user}")
    monkeypatch.setenv("CDC_PLAN_PASSWORD", "pw")
    url = re.sub(r"//[^@]*@", f"//{user}@", case.server.url)
    try:
        code, content = case.plan("ALTER TABLE orders ADD c INT", server=url)
        assert code == 2
        match = re.search(r"GRANT .+? ON `towpath\\_plan\\_%`\.\* TO '\w+'@'%'", " ".join(content["error"].split()))
        assert match is not None, content
        case.server.execute(match[0])
        code, content = case.plan("ALTER TABLE orders ADD c INT; CREATE INDEX i ON orders (n)", server=url)
        assert code == 0, content
        assert [s["server"]["outcome"] for s in content["statements"]] == ["executed", "executed"]
        assert any("sql_log_bin" in remark for remark in content["remarks"])
    finally:
        case.server.execute(f"DROP USER {user}")
    assert case.scratches() == []


@both
def test_another_server_gets_the_definitions_of_the_source(
    case: Case, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDC_PLAN_PASSWORD", PASSWORD)
    kind = "mysql56" if case.server.kind.name == "mysql9" else "mariadb10"
    other: Server = request.getfixturevalue(kind)
    code, content = case.plan("ALTER TABLE customers ADD c INT", server=other.url)
    if kind == "mariadb10":
        assert code == 0 and content["statements"][0]["server"]["outcome"] == "executed", content
        assert content["server"]["version"].startswith("10.")
    else:  # the database has a collation of MySQL 9
        assert code == 2 and "Name a server of the source's version." in " ".join(content["error"].split())
    strange: Server = request.getfixturevalue("mariadb10" if kind == "mysql56" else "mysql56")
    code, content = case.plan("ALTER TABLE customers ADD c INT", server=strange.url)
    assert code == 2 and "is MariaDB, and the other is MySQL" in " ".join(content["error"].split())


def wait_for(what: Callable[[], bool], timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.long_on("mysql56", "mariadb10")
@each
def test_what_a_kill_and_an_interrupt_leave(case: Case) -> None:
    """A killed run leaves schemas, which the next one drops; one that is alive keeps its own; SIGTERM leaves none."""
    text = "ALTER TABLE orders ENGINE=InnoDB;" * 300
    command = [sys.executable, "-m", "cdc", *case.words(text)]

    def running() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
        before = set(case.scratches())
        wait_for(lambda: bool(set(case.scratches()) - before) or process.poll() is not None)
        assert process.poll() is None
        return process

    process = running()
    process.send_signal(signal.SIGSTOP)
    (own,) = case.scratches()
    code, content = case.plan("ALTER TABLE orders ADD c INT")  # that one is alive
    assert code == 0 and case.scratches() == [own] and process.poll() is None
    process.kill()
    process.wait()
    wait_for(lambda: not case.rows("SELECT 1 FROM information_schema.PROCESSLIST WHERE DB LIKE 'towpath%'"))
    assert case.scratches() == [own]
    code, content = case.plan("ALTER TABLE orders ADD c INT")
    assert code == 0 and case.scratches() == []
    assert f"{own}, which a plan that was killed had left, is dropped." in content["remarks"]
    command[-1] = str(case.folder / "long.sql")
    (case.folder / "long.sql").write_text(text, "utf-8")
    process = running()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) != 0
    assert case.scratches() == []
