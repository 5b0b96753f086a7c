"""The first snapshot of a table that was added is killed twice while it is read, and capture is restarted each time;
meanwhile the table and the others change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cdc.lake.jobs.snapshot import due_tables, take_snapshots
from cdc.testing.servers import Server
from tests.fault.support import wait_for
from tests.field.case import Scenario
from tests.support.apply import Loop
from tests.support.capturing import capturing


def run(folder: Path, server: Server, db: str) -> None:
    loop = Loop(
        folder,
        server,
        db,
        start="snapshot",
        snapshot="{chunk_rows: 10, parallel: 1, max_rows_per_s: 30}",
        tables=f"exclude: ['{db}\\.added']",
    )
    rows = ", ".join(f"({key}, {key})" for key in range(300))
    loop.sql(
        "CREATE TABLE old (id INT PRIMARY KEY, v INT)",
        "INSERT INTO old VALUES (1, 1), (2, 2)",
        "CREATE TABLE added (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO added VALUES {rows}",
    )
    loop.capture()
    with capturing(loop.config):
        take_snapshots(loop.config)
    loop.edit(f"{db}\\.added", f"{db}\\.nothing")
    for number in (1, 2):
        with capturing(loop.config):
            wait_for(lambda: due_tables(loop.config) == [f"{db}.added"], "capture of the added table")
            _kill_a_snapshot(folder)
            loop.sql(
                f"UPDATE added SET v = v + {number} WHERE id % 5 = {number}",
                f"DELETE FROM added WHERE id = {number}",
                f"INSERT INTO added VALUES ({1000 + number}, {number})",
                f"UPDATE old SET v = v + 1 WHERE id = {number}",
            )
        loop.capture()
        loop.apply_all()
        loop.require_equal("old")
    loop.edit("max_rows_per_s: 30", "max_rows_per_s: 100000")
    with capturing(loop.config):
        [result] = take_snapshots(loop.config)
    assert (result.table, result.reread) == (f"{db}.added", 0)
    loop.sql("UPDATE added SET v = -1 WHERE id < 20", "DELETE FROM added WHERE id > 290")
    loop.capture()
    loop.apply_all()
    loop.require_equal("added")
    loop.require_equal("old")


def _kill_a_snapshot(folder: Path) -> None:
    """Takes snapshots by the command, and kills it when it has read two more chunks."""

    def count() -> int:
        return len(list((folder / "shop" / "store" / "snapshots").glob("**/*.parquet")))

    before = count()
    process = subprocess.Popen([sys.executable, "-m", "cdc", "--conf-dir", str(folder / "conf"), "snapshot", "shop"])
    wait_for(lambda: process.poll() is not None or count() >= before + 2, "two more chunks")
    assert process.poll() is None
    process.kill()
    process.wait(10)


CASE = Scenario(
    report="FLINK-39478",
    problem="A table whose first snapshot was interrupted by restarts got no rows any more, and nothing said so.",
    run=run,
)
