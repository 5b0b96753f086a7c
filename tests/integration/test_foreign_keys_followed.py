"""Apply executes the actions of foreign keys on the Delta tables, in all modes; jobs on one table do so as well."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc import read_as_of
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.pipeline import snapshot
from cdc.lake.runtime import session
from cdc.source.preflight import check_source
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.foreign_keys import MODES, RandomRows, present_rows, selected_rows

Database = Callable[[Server], str]
SERVERS = ("mariadb11", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mariadb10", "mysql56")))
KEYS = {
    "p": ["id"],
    "s": ["id"],
    **{f"c_{mode}": ["id"] for mode in MODES},
    **{f"g_{mode}": ["a", "b"] for mode in MODES},
}
PARENT = (
    "CREATE TABLE p (id INT PRIMARY KEY, code VARCHAR(10) UNIQUE, v INT)",
    "CREATE TABLE s (id INT PRIMARY KEY, up INT, v TEXT, FOREIGN KEY (up) REFERENCES s (id) ON DELETE SET NULL)",
    "INSERT INTO p VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3), (4, 'd', 4)",
    "INSERT INTO s VALUES (1, NULL, 'x'), (2, 1, 'y'), (3, 2, REPEAT('z', 300)), (4, 3, NULL)",
)


def children(mode: str) -> tuple[str, ...]:
    """A child with a key to the parent's primary key, and its child with a key of two columns, one of them a key."""
    c, g = f"c_{mode}", f"g_{mode}"
    return (
        (
            f"CREATE TABLE {c} (id INT PRIMARY KEY, p INT, d DATETIME(3), t TEXT, CONSTRAINT {c}_p FOREIGN KEY (p) "
            "REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE)"
        ),
        (
            f"CREATE TABLE {g} (a INT, b INT, x VARCHAR(10), t TEXT, PRIMARY KEY (a, b), CONSTRAINT {g}_c FOREIGN KEY (a) "
            f"REFERENCES {c} (id) ON DELETE CASCADE ON UPDATE CASCADE, CONSTRAINT {g}_p FOREIGN KEY (x) "
            "REFERENCES p (code) ON DELETE SET NULL ON UPDATE CASCADE)"
        ),
        (
            f"INSERT INTO {c} VALUES (1, 1, '2020-01-01 00:00:00.5', 'x'), (2, 2, NULL, 'y'), (3, 3, NOW(3), NULL), "
            "(4, 4, NOW(3), REPEAT('z', 100))"
        ),
        (
            f"INSERT INTO {g} VALUES (1, 1, 'c', 'k'), (1, 2, 'b', 'l'), (2, 1, 'a', NULL), (3, 3, NULL, 'm'), "
            "(4, 1, 'D', 'n')"
        ),
    )


def made(folder: Path, server: Server, db: str, apply: str = "") -> Loop:
    overrides = ", ".join(f"DB.{table}_{mode}: {{mode: {mode}}}" for mode in MODES for table in "cg")
    loop = Loop(folder, server, db, overrides=overrides, apply=f"on_error: park{apply}", start="now")
    loop.capture()
    statements = [*PARENT, *(statement for mode in MODES for statement in children(mode))]
    loop.sql(*sorted(statements, key=lambda statement: statement.startswith("INSERT")))  # the tables are one batch
    loop.capture()
    loop.apply_all()
    return loop


def require_equal(loop: Loop) -> None:
    """Checks that nothing is parked, and that all tables have the rows of the source."""
    parked = BatchService(loop.config).subscription().parked
    assert parked == {}, [entry.reason for entry in parked.values()]
    for table, keys in KEYS.items():
        shown = selected_rows(loop.server, loop.db, table)
        assert present_rows(loop.config, loop.db, table, keys) == shown, table


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_tables_equal_select_in_every_mode(tmp_path: Path, server: Server, database: Database) -> None:
    loop = made(tmp_path, server, database(server))
    require_equal(loop)
    assert [f.level for f in check_source(loop.config) if "foreign key" in f.message] == ["ok"] * 13
    # Rows of the lake: a delete through two levels, a changed key through two levels, a self-reference.
    loop.sql(
        "DELETE FROM p WHERE id = 1", "UPDATE p SET code = 'BB', id = 20 WHERE id = 2", "DELETE FROM s WHERE id = 2"
    )
    loop.capture()
    loop.apply_all()
    require_equal(loop)
    deleted = [row for row in loop.delta("c_append") if row["_op"] == "cascade_delete"]
    assert [(row["id"], row["t"], row["_before"]["t"]) for row in deleted] == [(1, "x", "x")]
    updated = [row for row in loop.delta("g_append", order="1, 2") if row["_op"] == "cascade_update"]
    assert [(row["a"], row["x"], row["_before"]["x"]) for row in updated] == [(2, None, "a")]
    # Rows of the batch: they are made, changed by their parents, changed by themselves, and deleted with a parent.
    loop.sql(
        "INSERT INTO p VALUES (7, 'q', 1)",
        *(f"INSERT INTO c_{mode} VALUES (70, 7, NOW(3), 'new'), (71, 7, NULL, 'stays')" for mode in MODES),
        *(f"INSERT INTO g_{mode} VALUES (70, 1, 'q', 'new'), (71, 1, 'q', 'too')" for mode in MODES),
        "UPDATE p SET id = 72, code = 'r' WHERE id = 7",
        *(f"UPDATE c_{mode} SET t = 'changed' WHERE id = 70" for mode in MODES),
        *(f"UPDATE c_{mode} SET id = 73, p = 3 WHERE id = 71" for mode in MODES),
        "DELETE FROM p WHERE id = 72",
        "SET foreign_key_checks = 0",
        "DELETE FROM s",
    )
    loop.capture()
    loop.apply_all()
    require_equal(loop)
    closed = [row for row in loop.delta("c_scd2", order="1, _seq") if row["id"] == 71 and row["_valid_to"] is not None]
    assert len(closed) == 2, "with the parent's old key and with its new one"


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_jobs_and_views_execute_the_actions(tmp_path: Path, mariadb11: Server, database: Database) -> None:
    loop = made(tmp_path, mariadb11, database(mariadb11))
    table = f"{loop.db}.c_upsert"
    before = BatchService(loop.config).subscription().acked_seq
    loop.sql("DELETE FROM p WHERE id = 1")
    loop.capture()
    middle = BatchService(loop.config).last_seq()
    loop.sql("UPDATE p SET id = 30 WHERE id = 3", "INSERT INTO c_upsert VALUES (9, 4, NULL, 'own')")
    loop.capture()
    last = BatchService(loop.config).last_seq()
    assert middle is not None
    assert last is not None
    with session.acquire(loop.config.spark, 0).tables.one() as opened:
        spark = opened.spark
        for seq, rows in (
            (before, {1: 1, 2: 2, 3: 3, 4: 4}),
            (middle, {2: 2, 3: 3, 4: 4}),
            (last, {2: 2, 3: 30, 4: 4, 9: 4}),
        ):
            frame = read_as_of(spark, loop.config, seq=seq, tables=[table])[table]
            assert {row["id"]: row["p"] for row in frame.collect()} == rows
    [report] = pipeline.verify(loop.config, tables=[table]).tables
    assert "foreign keys may have changed its rows" in " ".join(report.unknown)
    loop.apply_all()
    require_equal(loop)
    [report] = pipeline.verify(loop.config, tables=[table]).tables
    assert report.state == "proved"
    pipeline.replay(loop.config, [f"{loop.db}.{name}" for name in ("c_upsert", "c_append", "g_scd2")])
    snapshot(loop.config, [f"{loop.db}.c_soft_delete"])
    loop.apply_all()
    require_equal(loop)


def test_a_table_without_foreign_keys_needs_no_key_in_the_lake(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    overrides = "DB.t: {mode: append, columns: {id: null}}"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides)
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    loop.capture()
    loop.apply_all()
    loop.sql("INSERT INTO t VALUES (2, 2)")
    loop.capture()
    last = BatchService(loop.config).last_seq()
    assert last is not None
    with session.acquire(loop.config.spark, 0).tables.one() as opened:
        frame = read_as_of(opened.spark, loop.config, seq=last)[f"{loop.db}.t"]
        assert sorted((row["id"], row["v"]) for row in frame.collect()) == [(None, 1), (None, 2)]
    pipeline.replay(loop.config, [f"{loop.db}.t"])
    loop.apply_all()
    assert [row["v"] for row in loop.delta("t", order="2")] == [1, 2]


@pytest.mark.long
def test_rows_from_before_a_snapshot_without_rows_do_not_count(
    tmp_path: Path, mariadb11: Server, database: Database
) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11), overrides="DB.c: {mode: append}", start="now")
    loop.capture()
    loop.sql(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
        "INSERT INTO p VALUES (1)",
        "INSERT INTO c VALUES (1, 1)",
    )
    loop.capture()
    loop.apply_all()
    loop.sql("SET sql_log_bin = 0", "DELETE FROM c")
    with capturing(loop.config):
        [loaded] = snapshot(loop.config, [f"{loop.db}.c"])
    assert loaded.rows == 0
    loop.sql("DELETE FROM p")
    loop.capture()
    loop.apply_all()
    assert loop.changelog("c") == [("insert", 1)]
    loop.require_equal("p")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", range(3))
def test_random_keys_and_changes(tmp_path: Path, server: Server, database: Database, seed: int, number: int) -> None:
    """Some rows are in the lake when they are changed, and others in the batch; batches begin anywhere."""
    rng = random.Random(seed * 100 + number)
    overrides = ", ".join(f"DB.t{table}: {{mode: {rng.choice(MODES)}}}" for table in range(5))
    loop = Loop(tmp_path, server, database(server), overrides=overrides, apply="on_error: park", start="now")
    loop.capture()
    rows = RandomRows(server, loop.db, rng)
    rows.create()
    for _ in range(3):
        rows.change(60)
        loop.capture()
        loop.apply_all(transactions=rng.randint(5, 60))
        parked = BatchService(loop.config).subscription().parked
        assert parked == {}, [entry.reason for entry in parked.values()]
        for table in rows.tables:
            shown = selected_rows(server, loop.db, table.name)
            assert present_rows(loop.config, loop.db, table.name, table.primary_key) == shown, table.name
