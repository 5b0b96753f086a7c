"""A table is added while the snapshot of another one is being read, and its own snapshot is taken beside that one;
sessions change both all the time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pymysql.cursors import Cursor

from cdc.lake.jobs.snapshot import due_tables, take_snapshots
from cdc.testing.servers import Server
from tests.fault.support import wait_for
from tests.field.case import Scenario
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.writing import BackgroundWriter

_ROWS = 600


def run(folder: Path, server: Server, db: str) -> None:
    loop = Loop(
        folder,
        server,
        db,
        start="snapshot",
        snapshot="{chunk_rows: 20, parallel: 2, max_rows_per_s: 60}",
        tables=f"exclude: ['{db}\\.added']",
    )
    rows = ", ".join(f"({key}, {key})" for key in range(_ROWS))
    loop.sql(
        "CREATE TABLE large (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO large VALUES {rows}",
        "CREATE TABLE added LIKE large",
        "INSERT INTO added SELECT * FROM large WHERE id < 100",
    )

    def write(cursor: Cursor, number: int) -> None:
        """Moves a row behind the others, changes one and deletes one, in both tables."""
        cursor.execute("BEGIN")
        for table in ("large", "added"):
            cursor.execute(f"UPDATE {db}.{table} SET id = id + {1000 * (number + 1)} WHERE id = {number * 7 % _ROWS}")
            cursor.execute(f"UPDATE {db}.{table} SET v = v + 1 WHERE id = {number * 11 % _ROWS}")
            cursor.execute(f"DELETE FROM {db}.{table} WHERE id = {number * 13 % _ROWS}")
            cursor.execute(f"REPLACE INTO {db}.{table} VALUES ({number * 17 % _ROWS}, {number})")
        cursor.execute("COMMIT")
        cursor.execute("DO SLEEP(0.02)")

    loop.capture()
    chunks = folder / "shop" / "store" / "snapshots"
    with ThreadPoolExecutor(1) as pool, BackgroundWriter(server, write) as writer, capturing(loop.config):
        large = pool.submit(take_snapshots, loop.config, [f"{db}.large"])
        wait_for(lambda: large.done() or any(chunks.glob("**/*.parquet")), "the first chunk")
        loop.edit(f"{db}\\.added", f"{db}\\.nothing")
        wait_for(lambda: f"{db}.added" in due_tables(loop.config), "capture of the added table")
        writer.wait(10)
        assert not large.done()
        [added] = take_snapshots(loop.config, [f"{db}.added"])
        [result] = large.result(300)
        writer.wait(10)
    assert (added.table, result.table) == (f"{db}.added", f"{db}.large")
    loop.capture()
    loop.apply_all()
    for table in ("large", "added"):
        loop.require_equal(table)


CASE = Scenario(
    report="FLINK-38270",
    problem="Changes of a table that was added while a snapshot ran were missed.",
    run=run,
)
