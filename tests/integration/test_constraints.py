"""NOT NULL and primary keys of the source in Delta tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.base.errors import TargetError
from cdc.lake import pipeline
from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]


def required(loop: Loop, table: str = "t") -> set[str]:
    """Returns the columns that may not be null."""
    return {field.name for field in DeltaTable(str(loop.path(table))).schema().fields if not field.nullable}


def key(loop: Loop, table: str = "t") -> list[str]:
    columns: list[str] = json.loads(DeltaTable(str(loop.path(table))).metadata().configuration["towpath.primary_key"])
    return columns


@pytest.mark.long
def test_constraints_follow_the_source(mysql9: Server, tmp_path: Path, database: Database) -> None:
    overrides = "DB.t: {constraints: true, columns: {nick: {rename: alias}, hidden: 'null'}}"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides)
    loop.sql(
        "CREATE TABLE t (id INT, nick VARCHAR(9) NOT NULL, day DATE NOT NULL, hidden INT NOT NULL, n INT, "
        "PRIMARY KEY (id, nick))",
        "INSERT INTO t VALUES (1, 'a', '2026-01-01', 1, 1), (2, 'b', '2026-01-02', 1, NULL)",
    )
    loop.capture()
    loop.apply_all()
    assert required(loop) == {"id", "alias"}, "a date may become null on its way, and so may a hidden column"
    assert key(loop) == ["id", "alias"]
    spark = session.acquire(loop.config.spark).spark
    with pytest.raises(Exception, match="DELTA_NOT_NULL_CONSTRAINT_VIOLATED"):
        spark.sql(f"INSERT INTO delta.`{loop.path('t')}` VALUES (NULL, 'z', NULL, NULL, 1)").collect()

    # A column loses NULL with its rows' nulls, another one comes, and the key changes.
    loop.sql(
        "UPDATE t SET n = 5 WHERE n IS NULL",
        "ALTER TABLE t MODIFY n INT NOT NULL, ADD COLUMN more INT NOT NULL DEFAULT 7",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id)",
        "INSERT INTO t (id, nick, day, hidden, n) VALUES (3, 'c', '2026-01-03', 1, 4)",
        "UPDATE t SET id = 4 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    )
    loop.capture()
    loop.apply_all()
    assert required(loop) == {"id", "alias", "n", "more"}
    assert key(loop) == ["id"]

    # NULL comes back before the row that needs it.
    loop.sql("ALTER TABLE t MODIFY n INT NULL, DROP COLUMN more", "UPDATE t SET n = NULL WHERE id = 3")
    loop.capture()
    loop.apply_all()
    assert required(loop) == {"id", "alias"}
    assert [(row["id"], row["alias"], row["n"]) for row in loop.delta("t")] == [(3, "c", None), (4, "a", 1)]


@pytest.mark.long
def test_constraints_outlive_new_generations(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(
        tmp_path,
        mysql9,
        database(mysql9),
        apply="constraints: true",
        overrides="DB.log: {mode: append, constraints: false}",
    )
    loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9) NOT NULL, n INT NOT NULL)",
        "CREATE TABLE log (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)",
        "INSERT INTO log VALUES (1)",
    )
    loop.capture()
    loop.apply_all()
    loop.sql(
        "ALTER TABLE t MODIFY n VARCHAR(20) NOT NULL",  # Delta cannot widen it, so the table is written anew
        "ALTER TABLE t MODIFY id BIGINT, RENAME COLUMN v TO w",
        "INSERT INTO t VALUES (9, 'd', 'x')",
        "TRUNCATE TABLE log",
    )
    loop.capture()
    loop.apply_all()
    assert required(loop) == {"id", "w", "n"}
    assert required(loop, "log") == set()
    for job in (pipeline.snapshot, pipeline.replay):
        job(loop.config, [f"{loop.db}.t"])
        assert required(loop) == {"id", "w", "n"}
        assert key(loop) == ["id"]
    loop.sql("UPDATE t SET id = 5 WHERE id = 1", "DELETE FROM t WHERE id = 2", "RENAME TABLE t TO u")
    loop.capture()
    loop.apply_all()
    assert required(loop, "u") == {"id", "w", "n"}
    assert key(loop, "u") == ["id"]
    assert pipeline.verify(loop.config, [f"{loop.db}.u"]).exit_code == 0


@pytest.mark.long
def test_nulls_that_the_source_forbids_are_a_difference(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.t: {on_error: block}")
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL)", "INSERT INTO t VALUES (1, 1)")
    loop.capture()
    loop.apply_all()
    spark = session.acquire(loop.config.spark).spark
    spark.sql(f"INSERT INTO delta.`{loop.path('t')}` VALUES (7, NULL)").collect()
    table = loop.config.tables.overrides[f"{loop.db}.t"].model_copy(update={"constraints": True})
    tables = loop.config.tables.model_copy(update={"overrides": {f"{loop.db}.t": table}})
    loop.config = loop.config.model_copy(update={"tables": tables})
    loop.sql("INSERT INTO t VALUES (2, 2)")
    loop.capture()
    with pytest.raises(TargetError, match=r"the column n is NOT NULL at the source, and has nulls in the Delta table"):
        loop.apply_all()
    pipeline.snapshot(loop.config, [f"{loop.db}.t"])
    loop.apply_all()
    loop.require_equal("t")
    assert required(loop) == {"id", "n"}


CHECK = ("ADD CONSTRAINT low CHECK (n < 10)", "DROP CONSTRAINT low", r"CHECK constraint .*n < 10.* refuses a row")
APPEND = ("SET TBLPROPERTIES ('delta.appendOnly' = 'true')", "UNSET TBLPROPERTIES ('delta.appendOnly')", "appendOnly")
RENAMED = ("RENAME COLUMN n TO m", "RENAME COLUMN m TO n", r"has a column m, and lacks a column n: .* renamed a column")


@pytest.mark.parametrize(
    ("engine", "clause", "undo", "message"),
    [
        ("deltalake", *CHECK),
        ("spark", *RENAMED),
        *(pytest.param("spark", *case, marks=pytest.mark.long) for case in (CHECK, APPEND)),
        *(pytest.param("deltalake", *case, marks=pytest.mark.long) for case in (APPEND, RENAMED)),
    ],
)
def test_a_rule_that_another_program_has_set_is_named_with_the_way_out(
    mysql9: Server, tmp_path: Path, database: Database, engine: str, clause: str, undo: str, message: str
) -> None:
    small = "small_batches: {engine: deltalake, max_rows: 100000}" if engine == "deltalake" else ""
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=small)
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    loop.capture()
    loop.apply_all()
    spark = session.acquire(loop.config.spark).spark
    table = f"delta.`{loop.path('t')}`"
    if "RENAME" in clause:
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')").collect()
    spark.sql(f"ALTER TABLE {table} {clause}").collect()
    loop.sql("UPDATE t SET n = 11 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    loop.capture()
    with pytest.raises(TargetError, match=message) as raised:
        loop.apply_all()
    assert not raised.value.retryable and undo in str(raised.value).replace("low_", "low")
    spark.sql(f"ALTER TABLE {table} {undo}").collect()
    loop.apply_all()
    loop.require_equal("t")
