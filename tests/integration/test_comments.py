"""Comments of tables and columns on their way from the source to Delta."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.lake import pipeline
from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]
ODD = "it's \\\\ `a` ${env:HOME} ü\nß"


def comments(loop: Loop, table: str = "t") -> dict[str, str]:
    """Returns the comments of a Delta table as ``deltalake`` shows them; the table's own under an empty name."""
    delta = DeltaTable(str(loop.path(table)))
    by_column = {field.name: field.metadata.get("comment", "") for field in delta.schema().fields}
    return {name: text for name, text in ({"": delta.metadata().description or ""} | by_column).items() if text}


@pytest.mark.long
def test_comments_follow_the_source(mysql9: Server, tmp_path: Path, database: Database) -> None:
    overrides = "DB.t: {columns: {secret: drop, nick: {rename: alias}}}, DB.plain: {comments: false}"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides)
    with mysql9.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE `{loop.db}`")
        cursor.execute(
            "CREATE TABLE t (id INT PRIMARY KEY COMMENT %s, nick VARCHAR(9) COMMENT 'the name', "
            "secret INT COMMENT 'gone', n INT) COMMENT 'customers'",
            (ODD,),
        )
    loop.sql("CREATE TABLE plain (id INT PRIMARY KEY COMMENT 'x')", "INSERT INTO t VALUES (1, 'a', 2, 3)")
    loop.capture()
    loop.apply_all()
    assert comments(loop) == {"": "customers", "id": ODD, "alias": "the name"}
    assert comments(loop, "plain") == {}

    # A statement that changes nothing but comments; a comment that somebody gave the Delta table stays.
    spark = session.acquire(loop.config.spark).spark
    spark.sql(f"ALTER TABLE delta.`{loop.path('t')}` ALTER COLUMN n COMMENT 'of the lake'")
    rows = loop.version("t")
    loop.sql("ALTER TABLE t MODIFY nick VARCHAR(9) COMMENT 'now this', COMMENT ''")
    loop.capture()
    loop.apply_all()
    assert comments(loop) == {"id": ODD, "alias": "now this", "n": "of the lake"}
    assert loop.version("t") <= rows + 4

    # Without changes nothing is committed; with a new column, and after a rewrite, they are there.
    loop.sql("ALTER TABLE t ADD INDEX (n)")
    loop.capture()
    version = loop.version("t")
    loop.apply_all()
    assert loop.version("t") == version
    loop.sql(
        "ALTER TABLE t ADD COLUMN born DATE COMMENT 'a day', MODIFY n VARCHAR(20) COMMENT 'text now'",
        "UPDATE t SET n = 'x'",
    )
    loop.capture()
    loop.apply_all()
    expected = {"id": ODD, "alias": "now this", "n": "text now", "born": "a day"}
    assert comments(loop) == expected
    pipeline.snapshot(loop.config, [f"{loop.db}.t"])
    assert comments(loop) == expected
    pipeline.replay(loop.config, [f"{loop.db}.t"])
    assert comments(loop) == expected
    loop.sql("DELETE FROM t", "DROP TABLE t")
    loop.capture()
    loop.apply_all()
    assert loop.delta("t") == []
    assert comments(loop) == expected, "a table that the source has dropped keeps them"
