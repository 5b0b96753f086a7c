"""While capture is stopped, a table that was there before is included and another one is created; both are changed
before capture reads on, and again after further restarts."""

from __future__ import annotations

from pathlib import Path

from cdc.lake import pipeline
from cdc.lake.jobs.snapshot import take_snapshots
from cdc.testing.servers import Server
from tests.field.case import Scenario
from tests.support.apply import Loop
from tests.support.capturing import capturing


def run(folder: Path, server: Server, db: str) -> None:
    loop = Loop(folder, server, db, start="snapshot", tables=f"exclude: ['{db}\\.(accounts|journal)']")
    loop.sql(
        "CREATE TABLE orders (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE accounts (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE journal (id INT PRIMARY KEY, v INT)",
        *[f"INSERT INTO {table} VALUES (1, 1), (2, 2), (3, 3)" for table in ("orders", "accounts", "journal")],
    )
    loop.capture()
    with capturing(loop.config):
        assert [result.table for result in take_snapshots(loop.config)] == [f"{db}.orders"]
    loop.sql("UPDATE accounts SET v = 20 WHERE id = 2", "UPDATE orders SET v = 20 WHERE id = 2")
    loop.capture()

    loop.sql(
        "INSERT INTO accounts VALUES (4, 4)",
        "ALTER TABLE accounts ADD COLUMN owner VARCHAR(20) DEFAULT 'nobody' AFTER id",
        "INSERT INTO accounts VALUES (5, 'Ann', 5)",
        "DELETE FROM accounts WHERE id = 1",
        "INSERT INTO journal VALUES (4, 4)",
        "CREATE TABLE invoices (id INT PRIMARY KEY, v INT)",
        "INSERT INTO invoices VALUES (1, 1), (2, 2)",
        "INSERT INTO orders VALUES (4, 4)",
    )
    loop.edit("(accounts|journal)", "nothing")
    loop.edit("overrides: {}", f"overrides: {{{db}.journal: {{mode: append}}}}")
    loop.sql(
        "UPDATE accounts SET owner = 'Bob' WHERE id = 4",
        "ALTER TABLE accounts MODIFY v BIGINT",
        "INSERT INTO journal VALUES (5, 5)",
        "UPDATE invoices SET v = 10 WHERE id = 1",
    )
    loop.capture()
    loop.apply_all()
    loop.sql("DELETE FROM accounts WHERE id = 3", "INSERT INTO journal VALUES (6, 6)")
    loop.capture()
    with capturing(loop.config):
        loaded = take_snapshots(loop.config)
    assert [result.table for result in loaded] == [f"{db}.accounts", f"{db}.journal"]

    for number in (7, 8):  # each with a restart of capture
        loop.sql(
            f"INSERT INTO accounts VALUES ({number}, 'new', {number})",
            f"UPDATE accounts SET v = {2**40} + {number} WHERE id = 5",
            f"INSERT INTO journal VALUES ({number}, {number})",
            f"INSERT INTO invoices VALUES ({number}, {number})",
            f"DELETE FROM orders WHERE id = {number - 6}",
        )
        loop.capture()
        loop.apply_all()
    for table in ("orders", "accounts", "invoices"):
        loop.require_equal(table)
    assert sorted(key for _, key in loop.changelog("journal")) == list(range(1, 9))
    assert pipeline.verify(loop.config, None, wait_s=10).ok


CASE = Scenario(
    report="apache/seatunnel#12348",
    problem="A table that was added while the job was stopped got no snapshot, and its first change stopped the job.",
    run=run,
)
