"""Statements whose effect depends on the rows: apply looks into the Delta table, computes what the server did, and leaves
to a snapshot what it cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.apply.schema import spark_lake
from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.compare import ordered

Database = Callable[[Server], str]
MODES = {"upsert": "true", "soft_delete": "NOT _deleted", "scd2": "_current"}
CREATE = (
    "CREATE TABLE {} (id INT PRIMARY KEY, cut VARCHAR(20), trimmed VARCHAR(20), rounded DECIMAL(10,2), whole DECIMAL(10,2),"
    " exact DECIMAL(8,3), kinds SET('a','b','c'), kind ENUM('new','paid','gone'), born DATETIME, single DOUBLE, raw"
    " VARCHAR(6), small INT, word VARCHAR(9), count INT NULL) DEFAULT CHARSET = utf8mb4"
)
ROWS = (
    "INSERT INTO {} VALUES (1, 'four    ', 'x  ', 1.25, -2.50, 0.125, 'a,c', 'new', '2024-02-29 23:59:59', 0.1, 'é', 100, 'plain', 1)",
    "INSERT INTO {} VALUES (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 2)",
    "INSERT INTO {} VALUES (3, '', '   ', -1.25, 2.49, -9.875, '', 'paid', '1999-12-31 00:00:00', -3.5, '', -128, '', 3)",
    "INSERT INTO {} VALUES (4, 'gone', 'gone', 1, 1, 1, 'b', 'gone', '2000-01-01 00:00:00', 1, 'g', 4000, 'ü', NULL)",
    "DELETE FROM {} WHERE id = 4",
    "UPDATE {} SET kinds = 'c,b' WHERE id = 3",
)
CHANGES = (
    "MODIFY cut VARCHAR(4), MODIFY trimmed CHAR(20), MODIFY rounded DECIMAL(10,1), CHANGE whole entire INT, "
    "MODIFY exact DOUBLE, MODIFY kinds SET('c','b','a'), MODIFY kind ENUM('paid','new'), MODIFY born DATE, "
    "MODIFY single FLOAT, MODIFY raw VARBINARY(8), MODIFY small TINYINT, MODIFY word VARCHAR(9) CHARACTER SET latin1, "
    "MODIFY count INT NOT NULL"
)
NAMES = (
    "id", "cut", "trimmed", "rounded", "entire", "exact", "kinds", "kind", "born", "single", "raw", "small", "word", "count",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _hook() -> Iterator[None]:
    yield
    spark_lake.before_step = lambda table, step: None


def shown(loop: Loop, table: str, where: str) -> list[Any]:
    """The rows of a Delta table as texts."""
    frame = session.acquire(loop.config.spark).spark.read.format("delta").load(str(loop.path(table))).where(where)
    asked = [f"hex({name})" if name == "raw" else f"CAST({name} AS STRING)" for name in NAMES]
    asked[3] = "CAST(CAST(rounded AS DECIMAL(10,1)) AS STRING)"
    asked[4] = "CAST(CAST(entire AS INT) AS STRING)"
    asked[9] = "CAST(CAST(single AS FLOAT) AS STRING)"
    return ordered(tuple(row) for row in frame.selectExpr(*asked).collect())


def selected(loop: Loop, table: str) -> list[Any]:
    """The rows at the source as the same texts."""
    asked = [f"HEX({name})" if name == "raw" else f"CAST({name} AS CHAR)" for name in NAMES]
    with loop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(asked)} FROM `{loop.db}`.`{table}`")
        rows = [list(row) for row in cursor.fetchall()]
    for row in rows:
        for at in (5, 9):  # 1 and 1.0 are the same number
            row[at] = None if row[at] is None else str(float(row[at]))
    return ordered(tuple(row) for row in rows)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["", "STRICT_TRANS_TABLES"])
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_old_rows_get_what_the_server_made_of_them(
    kind: str, mode: str, request: pytest.FixtureRequest, database: Database, tmp_path: Path
) -> None:
    """Rows that the source has no longer do not matter: their values fit nowhere."""
    server: Server = request.getfixturevalue(kind)
    overrides = ", ".join(f"DB.{table}: {{mode: {table}}}" for table in MODES)
    loop = Loop(tmp_path, server, database(server), overrides=overrides)
    loop.sql("SET sql_mode = ''", *(sql.format(table) for table in MODES for sql in (CREATE, *ROWS)))
    loop.capture()
    loop.apply_all()
    if mode:  # the servers refuse to cut blanks then
        loop.sql(*(f"UPDATE {table} SET cut = 'four' WHERE id = 1" for table in MODES))
    loop.sql(f"SET sql_mode = '{mode}'", *(f"ALTER TABLE {table} {CHANGES}" for table in MODES))
    loop.capture()
    loop.apply_all()
    assert not BatchService(loop.config).subscription().parked
    for table, where in MODES.items():
        assert shown(loop, table, where) == selected(loop, table), table
    loop.sql(*(f"UPDATE {table} SET cut = 'late', small = 7, kinds = 'a,b' WHERE id < 3" for table in MODES))
    loop.capture()
    loop.apply_all()
    for table, where in MODES.items():
        assert shown(loop, table, where) == selected(loop, table), table


DOUBTS = {
    "exact": ("MODIFY exact DECIMAL(4,3)", "exact = 1000", "a value that does not fit is cut"),
    "born": ("MODIFY born DATETIME NOT NULL", "born = NULL", "NULL becomes another value where NOT NULL is added"),
    "kind": ("MODIFY kind ENUM('new','paid')", "kind = 'gone'", "members that are no longer there become other values"),
    "word": ("MODIFY word VARCHAR(9) CHARACTER SET ascii", "word = 'ü'", "characters that ascii lacks are lost"),
    "id": ("MODIFY id INT AUTO_INCREMENT", "id = 0", "AUTO_INCREMENT numbers such rows anew"),
}
"""By table: a statement, the value that makes its effect uncertain, and the reason."""


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_row_for_which_it_is_not_certain_parks_the_table(loop: Loop) -> None:
    loop.sql("SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'", *(sql.format(t) for t in DOUBTS for sql in (CREATE, *ROWS[:1])))
    loop.sql(
        "SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'", *(f"UPDATE {t} SET {value}" for t, (_, value, _) in DOUBTS.items())
    )
    loop.capture()
    loop.apply_all()
    loop.sql("SET sql_mode = ''", *(f"ALTER TABLE {table} {sql}" for table, (sql, _, _) in DOUBTS.items()))
    loop.capture()
    loop.apply_all()
    parked = BatchService(loop.config).subscription().parked
    for table, (sql, _, reason) in DOUBTS.items():
        entry = parked[f"{loop.db}.{table}"]
        assert entry.due == "snapshot" and sql in entry.reason and reason in entry.reason


@pytest.mark.timeout(900)
def test_a_kill_between_the_steps_loses_no_value(loop: Loop) -> None:
    """The column has its new name and type when the next driver comes, and its old rows still have the old values."""
    loop.sql(CREATE.format("t"), *(sql.format("t") for sql in ROWS))
    loop.capture()
    loop.apply_all()
    loop.sql(
        "SET sql_mode = ''",
        "ALTER TABLE t CHANGE rounded halves DECIMAL(9,1), CHANGE kinds sorts SET('c','b','a'), CHANGE cut word2 VARCHAR(4)",
    )
    loop.capture()
    lease = loop.fetch()
    results, steps = loop.merge_step_by_step(lease)
    assert len(steps) > 3
    pipeline.finalize(loop.config, lease, True, results)
    frame = session.acquire(loop.config.spark).spark.read.format("delta").load(str(loop.path("t")))
    rows = frame.selectExpr("CAST(halves AS STRING)", "sorts", "word2").collect()
    assert ordered(tuple(row) for row in rows) == ordered(
        [("1.30", "c,a", "four"), (None, None, None), ("-1.30", "c,b", "")]
    )


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Database) -> Loop:
    return Loop(tmp_path, mysql9, database(mysql9))
