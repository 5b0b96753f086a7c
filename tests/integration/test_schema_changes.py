"""DDL of the source reaches Delta: columns, types, truncates, drops and renames, by every policy, exactly once."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import CdcError, UnsupportedDdlError
from cdc.base.targets import table_path
from cdc.batches.lease import Lease
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.apply.batch import merge_tables
from cdc.lake.apply.prepare import prepare
from cdc.lake.apply.schema import spark_lake
from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.compare import ordered
from tests.support.versions import needs

Database = Callable[[Server], str]
CREATE = (
    "CREATE TABLE {} (id INT PRIMARY KEY, a INT, b VARCHAR(20), c DECIMAL(10,2), d DATE, e TINYINT)"
    " DEFAULT CHARSET = utf8mb4"
)
ROWS = "INSERT INTO {} VALUES (1, 10, 'one', 1.25, '2024-02-03', 5), (2, NULL, NULL, NULL, NULL, NULL)"
OWN = {"_op", "_seq", "_row", "_commit_time", "_gtid", "_before", "_deleted", "_valid_from", "_valid_to", "_current"}


@pytest.fixture(autouse=True)
def _hook() -> Iterator[None]:
    yield
    spark_lake.before_step = lambda table, step: None


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Database) -> Loop:
    return Loop(tmp_path, mysql9, database(mysql9))


def rows(loop: Loop, table: str, where: str = "true") -> tuple[list[str], list[Any]]:
    """Returns the source's columns and their rows as Spark shows them."""
    frame = session.acquire(loop.config.spark).spark.read.format("delta").load(str(loop.path(table))).where(where)
    names = [name for name in frame.columns if name not in OWN]
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    return names, ordered(tuple(row) for row in frame.select(*quoted).collect())


def require_equal(loop: Loop, table: str, where: str = "true") -> None:
    names, lake_rows = rows(loop, table, where)
    selected = loop.select(table)
    assert lake_rows == ordered(tuple(row.values()) for row in selected)
    assert not selected or names == list(selected[0])


@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_a_generated_key_stays_first(loop: Loop, metadata: str) -> None:
    """MySQL puts columns that are to be FIRST behind the key that it generated, until the key is made visible."""
    needs(loop.server, "invisible keys")
    loop.server.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        loop.sql(
            "SET SESSION sql_generate_invisible_primary_key = ON",
            "CREATE TABLE g (a INT, b INT)",
            "CREATE TABLE filled SELECT 1 AS a, 2 AS b",
            "CREATE TABLE alike LIKE g",
        )
        tables = ("g", "filled", "alike")
        loop.sql(*(f"INSERT INTO {table} VALUES (1, 2), (3, 4)" for table in tables))
        loop.capture()
        loop.apply_all()
        loop.sql(*(f"ALTER TABLE {table} ADD c INT FIRST, MODIFY b INT FIRST" for table in tables))
        loop.sql(*(f"INSERT INTO {table} (a, b, c) VALUES (5, 6, 7)" for table in tables))
        loop.capture()
        loop.apply_all()
        assert list(loop.delta("g")[0]) == ["my_row_id", "b", "c", "a"]
        loop.sql("ALTER TABLE g ALTER my_row_id SET VISIBLE", "ALTER TABLE g ADD d INT FIRST")
        loop.sql("INSERT INTO g (a, b, c, d) VALUES (8, 9, 10, 11)")
        loop.sql("ALTER TABLE alike DROP my_row_id, ADD PRIMARY KEY (a), ADD d INT FIRST")
        loop.sql("INSERT INTO alike VALUES (8, 9, 10, 11)", "ALTER TABLE filled ALTER my_row_id SET VISIBLE")
        loop.capture()
        loop.apply_all()
    finally:
        loop.server.execute("SET GLOBAL binlog_row_metadata = FULL")
    for table in tables:
        require_equal(loop, table)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def test_mirrors_equal_select(kind: str, request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> None:
    server = request.getfixturevalue(kind)
    loop = Loop(tmp_path, server, database(server))
    names = ["added", "altered", "dated", "emptied", "gone", "one", "two"]
    loop.sql(*(CREATE.format(name) for name in names), *(ROWS.format(name) for name in names))
    loop.sql(
        "ALTER TABLE added ADD z INT NOT NULL DEFAULT 7 FIRST, ADD y VARCHAR(9) DEFAULT 'it''s' AFTER a, ADD x DATE, "
        "ADD w DATETIME",
        "ALTER TABLE added ADD made DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), "
        "ADD seen TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), ADD v TIMESTAMP NULL DEFAULT NOW()",
        "ALTER TABLE altered DROP c, CHANGE a b BIGINT, CHANGE b a TEXT AFTER d, MODIFY e INT, ADD c INT DEFAULT 3",
        "ALTER TABLE dated MODIFY d DATETIME",
        "TRUNCATE TABLE emptied",
        "ALTER TABLE emptied ADD w DATETIME",
        "DROP TABLE gone",
        "CREATE TABLE gone (id INT PRIMARY KEY, n VARCHAR(5))",
        "UPDATE one SET a = 1 WHERE id = 1",
        "RENAME TABLE one TO tmp, two TO one, tmp TO two",
        "INSERT INTO added (id, a, w) VALUES (9, 9, '2024-05-06 07:08:09')",
        "UPDATE altered SET a = 'x', e = 70000 WHERE id = 2",
        "INSERT INTO gone VALUES (1, 'new')",
        "INSERT INTO emptied (id) VALUES (4)",
        "DELETE FROM one WHERE id = 2",
    )
    loop.capture()
    loop.apply_all()
    for name in names:
        require_equal(loop, name)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_other_modes(tmp_path: Path, mysql9: Server, database: Database) -> None:
    modes = {"soft": "soft_delete", "log": "append", "versions": "scd2"}
    overrides = ", ".join(f"DB.{name}: {{mode: {mode}}}" for name, mode in modes.items())
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides)
    loop.sql(*(CREATE.format(name) for name in modes), *(ROWS.format(name) for name in modes))
    renamed = "ALTER TABLE {} DROP c, RENAME COLUMN a TO aa, MODIFY e INT"
    change = f"{renamed}, ADD w DATETIME AFTER e, ADD z INT NOT NULL DEFAULT 7"
    loop.sql(*(change.format(name) for name in modes))
    loop.sql(*(f"UPDATE {name} SET aa = 11, w = '2024-05-06 07:08:09', z = 8 WHERE id = 1" for name in modes))
    loop.capture()
    loop.apply_all()
    require_equal(loop, "soft", "NOT _deleted")
    require_equal(loop, "versions", "_current")
    assert {row[-1] for row in rows(loop, "versions", "NOT _current")[1]} == {7}  # closed rows as SELECT showed them
    names, log_rows = rows(loop, "log")
    assert names == ["id", "aa", "b", "d", "e", "w", "z"]
    assert sorted(repr(row[-1]) for row in log_rows) == ["8", "None", "None"]  # old rows stay as they were
    loop.sql(*(f"TRUNCATE TABLE {name}" for name in modes), *(f"INSERT INTO {name} (id) VALUES (5)" for name in modes))
    loop.capture()
    loop.apply_all()
    require_equal(loop, "soft", "NOT _deleted")
    require_equal(loop, "versions", "_current")
    frame = session.acquire(loop.config.spark).spark.read.format("delta").load(str(loop.path("log")))
    assert [row["_op"] for row in frame.orderBy("_seq", "_row").collect()] == [
        "insert", "insert", "update", "truncate", "insert",
    ]  # fmt: skip


STEPS = "DROP c, CHANGE a b BIGINT, CHANGE b a TEXT AFTER d, MODIFY e INT FIRST, ADD c INT DEFAULT 3 AFTER id"


@pytest.mark.timeout(900)
def test_a_kill_between_each_two_steps(loop: Loop) -> None:
    """Each driver does one step of the statement, and dies before its second."""
    loop.sql(CREATE.format("t"), ROWS.format("t"))
    loop.capture()
    loop.apply_all()
    loop.sql(f"ALTER TABLE t {STEPS}", "UPDATE t SET a = 'new' WHERE id = 1")
    loop.capture()
    lease = loop.fetch()
    results, steps = loop.merge_step_by_step(lease)
    assert len(steps) > 6
    assert len(set(steps)) == len(steps)  # none is done twice
    spark_lake.before_step = lambda table, step: None
    pipeline.finalize(loop.config, lease, True, results)
    loop.apply_all()
    require_equal(loop, "t")


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_an_orphan_goes_on_after_another_driver_has_finished(loop: Loop) -> None:
    """At each step another driver does the whole batch; then the step is run all the same."""
    positions = (0, 1, 4, 8)
    tables = [f"t{number}" for number in positions]
    loop.sql(*(CREATE.format(name) for name in tables), *(ROWS.format(name) for name in tables))
    loop.capture()
    loop.apply_all()
    for number, name in zip(positions, tables, strict=True):
        loop.sql(f"ALTER TABLE {name} {STEPS}")
        loop.capture()
        lease = loop.fetch()
        seen: list[str] = []

        def overtake(table: str, step: str, at: int = number, lease: Lease = lease, seen: list[str] = seen) -> None:
            seen.append(step)
            if len(seen) == at + 1:
                spark_lake.before_step = lambda table, step: None
                run_beside(loop, lease)

        spark_lake.before_step = overtake
        try:
            pipeline.merge(loop.config, lease)
        except CdcError:
            assert len(seen) > number  # the outdated step has failed
        spark_lake.before_step = lambda table, step: None
        results = pipeline.merge(loop.config, lease)
        pipeline.finalize(loop.config, lease, True, results)
        loop.sql(f"UPDATE {name} SET a = 'new', c = 4 WHERE id = 1")
        loop.capture()
        loop.apply_all()
        require_equal(loop, name)


def run_beside(loop: Loop, lease: Lease) -> None:
    """Applies a batch as another process would, without the lock that this process holds."""
    subscription = BatchService(loop.config).subscription("apply")
    batch = prepare(lease.manifest, loop.config, lambda: None, subscription)
    merge_tables(batch, session.acquire(loop.config.spark).tables)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_gh_ost_and_pt_online_schema_change(tmp_path: Path, mysql9: Server, database: Database) -> None:
    db = database(mysql9)
    loop = Loop(tmp_path, mysql9, db)
    loop.sql(CREATE.format("seen"), ROWS.format("seen"))
    loop.sql(
        # gh-ost: the copy, rows in chunks and from the binlog, the exchange
        "CREATE TABLE _seen_ghc (id BIGINT AUTO_INCREMENT PRIMARY KEY, hint VARCHAR(64) UNIQUE, value VARCHAR(4096))",
        "CREATE TABLE _seen_gho LIKE seen",
        "ALTER TABLE _seen_gho ADD z INT NOT NULL DEFAULT 7, DROP c",
        "INSERT IGNORE INTO _seen_gho (id, a, b, d, e) SELECT id, a, b, d, e FROM seen WHERE id <= 1",
        "UPDATE seen SET b = 'two' WHERE id = 2",
        "INSERT IGNORE INTO _seen_gho (id, a, b, d, e) SELECT id, a, b, d, e FROM seen WHERE id > 1",
        "REPLACE INTO _seen_gho (id, a, b, d, e) VALUES (2, NULL, 'two', NULL, NULL)",
        "RENAME TABLE seen TO _seen_del, _seen_gho TO seen",
        "DROP TABLE _seen_ghc",
        "DROP TABLE _seen_del",
        "UPDATE seen SET z = 8 WHERE id = 1",
        # pt-online-schema-change
        "CREATE TABLE _seen_new LIKE seen",
        "ALTER TABLE _seen_new MODIFY a BIGINT",
        "INSERT LOW_PRIORITY IGNORE INTO _seen_new SELECT * FROM seen LOCK IN SHARE MODE",
        "RENAME TABLE seen TO _seen_old, _seen_new TO seen",
        "DROP TABLE IF EXISTS _seen_old",
        "INSERT INTO seen (id, a) VALUES (3, 5000000000)",
    )
    loop.capture()
    loop.apply_all()
    require_equal(loop, "seen")


@pytest.mark.timeout(900)
def test_policies_refuse_with_statement_and_way_out(tmp_path: Path, mysql9: Server, database: Database) -> None:
    settings = "schema_changes: fail, on_truncate: fail, on_drop: fail, on_unknown_effect: fail, on_error: park"
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=settings, overrides="DB.t4: {schema_changes: evolve}")
    statements = {
        "t1": ("ALTER TABLE t1 ADD z INT", "schema_changes: fail"),
        "t2": ("TRUNCATE TABLE t2", "on_truncate: fail"),
        "t3": ("DROP TABLE `t3`", "on_drop: fail"),
        "t4": ("ALTER TABLE t4 MODIFY b INT", "on_unknown_effect: fail"),
    }
    loop.sql(*(CREATE.format(name) for name in statements))
    loop.sql("SET sql_mode = ''", *(f"INSERT INTO {name} (id, b) VALUES (1, '5')" for name in statements))
    loop.sql(*(sql for sql, _ in statements.values()))
    loop.capture()
    loop.apply_all()
    parked = BatchService(loop.config).subscription("apply").parked
    for name, (sql, policy) in statements.items():
        reason = parked[f"{loop.db}.{name}"].reason
        assert sql in reason
        assert "cdc snapshot" in reason
        assert policy in reason
        assert len(rows(loop, name)[1]) == 1


@pytest.mark.long
@pytest.mark.timeout(900)
def test_additive_and_ignore_keep_columns_and_drop_deletes_rows(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    overrides = "DB.more: {schema_changes: additive}, DB.same: {schema_changes: ignore}, DB.gone: {on_drop: drop}"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides, apply="on_error: park")
    names = ("more", "same", "gone", "kept")
    loop.sql(*(CREATE.format(name) for name in names), *(ROWS.format(name) for name in names))
    change = "ALTER TABLE {} DROP c, RENAME COLUMN a TO aa, MODIFY e INT, ADD z INT NOT NULL DEFAULT 7 FIRST"
    loop.sql(change.format("more"), change.format("same").replace("MODIFY e INT, ", ""))
    loop.sql(*(f"UPDATE {name} SET aa = 11, z = 8 WHERE id = 1" for name in ("more", "same")))
    loop.sql("UPDATE more SET e = 70000 WHERE id = 2", "DROP TABLE gone", "DROP TABLE kept")
    loop.capture()
    loop.apply_all()
    assert BatchService(loop.config).subscription("apply").parked == {}
    day, price = datetime.date(2024, 2, 3), Decimal("1.25")  # columns that are gone keep their values
    shown, lake_rows = rows(loop, "more")
    assert shown == ["z", "id", "aa", "a", "b", "c", "d", "e"]
    assert lake_rows == ordered([(8, 1, 11, 10, "one", price, day, 5), (7, 2, None, None, None, None, None, 70000)])
    shown, lake_rows = rows(loop, "same")
    assert shown == ["id", "a", "b", "c", "d", "e"]
    assert lake_rows == ordered([(1, 10, "one", price, day, 5), (2, None, None, None, None, None)])
    assert (len(rows(loop, "gone")[1]), len(rows(loop, "kept")[1])) == (0, 2)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_shadow_table_that_is_not_captured(tmp_path: Path, mysql9: Server, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply="on_error: park")
    loop.exclude(rf"{loop.db}\._.*_(gho|ghc|del|new|old)")
    for name in ("known", "unsure"):
        loop.sql(CREATE.format(name), ROWS.format(name))
    for name, change in (("known", "MODIFY a BIGINT, ADD z INT"), ("unsure", "ADD z INT DEFAULT 7")):
        copied = "id, a, b, c, d, e"
        loop.sql(
            f"CREATE TABLE _{name}_gho LIKE {name}",
            f"ALTER TABLE _{name}_gho {change}",
            f"INSERT INTO _{name}_gho ({copied}) SELECT {copied} FROM {name}",
            f"RENAME TABLE {name} TO _{name}_del, _{name}_gho TO {name}",
            f"DROP TABLE _{name}_del",
            f"UPDATE {name} SET z = 8, a = 5000000 WHERE id = 1",
        )
    loop.capture()
    loop.apply_all()
    require_equal(loop, "known")
    [(table, record)] = BatchService(loop.config).subscription("apply").parked.items()
    assert (table, record.due) == (f"{loop.db}.unsure", "snapshot")
    assert "RENAME TABLE unsure TO _unsure_del" in record.reason


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "policy", ["keep", *(pytest.param(policy, marks=pytest.mark.long) for policy in ("drop", "fail"))]
)
def test_drop_database(policy: str, tmp_path: Path, mysql9: Server) -> None:
    prefix = f"dropped{random.SystemRandom().randrange(2**32):08x}"
    loop = Loop(tmp_path, mysql9, f"{prefix}_.*", apply=f"on_drop: {policy}, on_error: park")
    first, second = f"{prefix}_1", f"{prefix}_2"
    try:
        for db in (first, second):
            made = [CREATE.format(f"{db}.{name}") for name in ("one", "two")]
            mysql9.execute(f"CREATE DATABASE {db}", *made, ROWS.format(f"{db}.one"))
        mysql9.execute(f"DROP DATABASE {first}", f"INSERT INTO {second}.one (id) VALUES (3)")
        loop.capture()
        loop.apply_all()
    finally:
        mysql9.execute(f"DROP DATABASE IF EXISTS {first}", f"DROP DATABASE IF EXISTS {second}")
    counts = {}
    for db in (first, second):
        path = table_path(loop.config.apply.target, db, "one")
        counts[db] = session.acquire(loop.config.spark).spark.read.format("delta").load(path).count()
    assert counts == {first: 0 if policy == "drop" else 2, second: 3}
    parked = BatchService(loop.config).subscription("apply").parked
    assert set(parked) == ({f"{first}.one", f"{first}.two"} if policy == "fail" else set())


def test_rows_that_disagree_stop_with_both(loop: Loop) -> None:
    loop.sql(CREATE.format("t"), ROWS.format("t"))
    loop.capture()
    loop.apply_all()
    loop.sql("SET sql_log_bin = 0", "ALTER TABLE t ADD hidden INT", "SET sql_log_bin = 1", "UPDATE t SET a = 1")
    loop.capture()
    with pytest.raises(UnsupportedDdlError, match=r"hidden int.*the statements so far lead to.*cdc snapshot"):
        loop.apply_all()
