"""Indexes of expressions and of JSON arrays are hidden columns. The binlog names no columns, because
binlog_row_metadata is MINIMAL, and the table changes its columns and its indexes."""

from __future__ import annotations

from pathlib import Path

from cdc.lake.jobs.snapshot import take_snapshots
from cdc.testing.servers import Server
from tests.field.case import Scenario
from tests.support.apply import Loop
from tests.support.capturing import capturing

_TABLE = (
    "(id INT PRIMARY KEY, phone VARCHAR(20), v INT UNSIGNED, info JSON,"
    " KEY last4 ((RIGHT(phone, 4))), KEY zips ((CAST(info->'$.zips' AS UNSIGNED ARRAY))))"
)


def run(folder: Path, server: Server, db: str) -> None:
    server.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        loop = Loop(folder, server, db, start="snapshot", apply="small_batches: {engine: deltalake, max_rows: 100000}")
        loop.sql(
            f"CREATE TABLE old {_TABLE}",
            """INSERT INTO old VALUES (1, '555-1234', 4000000000, '{"zips": [1, 2]}'), (2, NULL, NULL, NULL)""",
        )
        loop.capture()
        with capturing(loop.config):
            take_snapshots(loop.config)
        loop.sql(f"CREATE TABLE new {_TABLE}", "INSERT INTO new SELECT * FROM old")
        loop.capture()
        for number, statement in enumerate(_STATEMENTS):
            tables = ("old", "new") if number < 6 else ("old",)
            loop.sql(*[statement.replace("{t}", table) for table in tables])
            loop.capture()  # before the next statement changes the columns of these rows
        loop.sql("CREATE TABLE copied LIKE old", "INSERT INTO copied SELECT * FROM old WHERE id > 1")
        loop.sql("UPDATE copied SET last = 4000000001 WHERE id = 2")
        loop.capture()
    finally:
        server.execute("SET GLOBAL binlog_row_metadata = FULL")
    loop.sql("UPDATE old SET v = v + 1 WHERE id = 3", "ALTER TABLE old DROP KEY tags", "DELETE FROM old WHERE id = 2")
    loop.capture()
    loop.apply_all()
    for table in ("old", "new", "copied"):
        loop.require_equal(table, "id")
    right = [
        (1, 7, 4000000001, "555-0000", None, 4000000000, '{"tags": ["a", "b"], "zips": [1, 2]}'),
        (3, 8, 4000000002, "5", "third", 4, '{"zips": []}'),
        (4, 9, 4000000003, "555", "fourth", 4, "{}"),
    ]
    assert [tuple(row.values()) for row in loop.delta("old", order="id")] == right


_STATEMENTS = (
    "UPDATE {t} SET phone = '555-0000' WHERE id = 1",
    "ALTER TABLE {t} ADD COLUMN note VARCHAR(20) AFTER phone, ADD UNIQUE KEY half ((v DIV 2), id)",
    """INSERT INTO {t} VALUES (3, '5', 'third', 3, '{"zips": []}')""",
    "ALTER TABLE {t} ADD COLUMN last INT UNSIGNED DEFAULT 4000000001, DROP KEY last4",
    """UPDATE {t} SET info = JSON_SET(info, '$.tags', JSON_ARRAY('a', 'b')) WHERE id = 1""",
    """INSERT INTO {t} VALUES (4, '555', 'fourth', 4, '{}', 4000000003)""",
    "CREATE INDEX tags ON {t} ((CAST(info->'$.tags' AS CHAR(8) ARRAY)))",
    "UPDATE {t} SET last = 4000000002 WHERE id = 3",
    "ALTER TABLE {t} MODIFY last INT UNSIGNED AFTER id, ADD mid SMALLINT UNSIGNED AFTER id, ADD KEY ((last DIV 4))",
    "UPDATE {t} SET mid = id + 5 WHERE id > 2",
    "UPDATE {t} SET mid = 7 WHERE id = 1",
)


CASE = Scenario(
    report="alibaba/canal#5550",
    problem="The hidden column of a functional index made the numbers of columns differ, and parsing stopped.",
    run=run,
    servers=("mysql9",),
)
