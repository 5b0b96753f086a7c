"""Tables are added while capture runs, one after another and not in the order of their names, each with many chunks.
Capture is restarted between, and all tables go on."""

from __future__ import annotations

from pathlib import Path

from cdc.lake.jobs.snapshot import due_tables, take_snapshots
from cdc.testing.servers import Server
from tests.fault.support import wait_for
from tests.field.case import Scenario
from tests.support.apply import Loop
from tests.support.capturing import capturing

_TABLES = ("m", "z", "a")


def run(folder: Path, server: Server, db: str) -> None:
    loop = Loop(folder, server, db, start="snapshot", snapshot="{chunk_rows: 3}", tables=f"exclude: ['{db}\\.(z|a)']")
    rows = ", ".join(f"({key}, {key})" for key in range(20))
    for table in _TABLES:
        loop.sql(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {table} VALUES {rows}")
    loop.capture()
    with capturing(loop.config):
        assert [result.table for result in take_snapshots(loop.config)] == [f"{db}.m"]
    for before, after in (("(z|a)", "a"), ("a']", "nothing']")):  # adds z, then a
        with capturing(loop.config):
            loop.edit(before, after)
            _change(loop, 100)
            wait_for(lambda: due_tables(loop.config) != [], "capture of the added table")
            _change(loop, 200)
            [result] = take_snapshots(loop.config)
            assert result.chunks >= 7
            _change(loop, 300)
        _change(loop, 400)
        loop.capture()  # after a restart
        loop.apply_all()
        _change(loop, 500)
        loop.capture()
    loop.apply_all()
    for table in _TABLES:
        loop.require_equal(table)


def _change(loop: Loop, number: int) -> None:
    """Changes all tables, in rows of the first and the last chunk and behind them."""
    for table in _TABLES:
        loop.sql(
            f"UPDATE {table} SET v = v + {number} WHERE id IN (0, 10, 19)",
            f"REPLACE INTO {table} VALUES ({number}, {number}), (5, {number})",
            f"DELETE FROM {table} WHERE id IN (6, {number - 100})",
        )


CASE = Scenario(
    report="FLINK-38218",
    problem="Tables that were added to a running job were ignored once it read the binlog after a restart.",
    run=run,
)
