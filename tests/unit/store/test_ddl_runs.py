"""Consecutive DDL statements that leave rows alone make one batch; any other DDL statement is a batch of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.sql.statements import classify
from cdc.store.reader import batch_builder
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler

CREATE = "CREATE TABLE t{} (id INT PRIMARY KEY)"


def batches(folder: Path, log: BinlogBuilder, limits: Limits, segment_bytes: int = 1 << 30) -> list[tuple[int, bool]]:
    """How many transactions each batch has, and whether they are DDL, over a store with these transactions."""
    filler = Filler(folder, segment_bytes=segment_bytes)
    filler.put(log)
    filler.close()
    reader, seq, found = StoreReader(folder), 0, []
    while (selection := reader.select(seq, limits)) is not None:
        found.append((selection.transactions, selection.ddl))
        seq = selection.last_seq
    return found


def rows(log: BinlogBuilder, count: int = 1) -> None:
    for n in range(count):
        log.transaction("shop", "orders", [n])


@pytest.mark.parametrize("segment_bytes", [1 << 30, 2000])
def test_a_run_of_harmless_statements_is_one_batch(tmp_path: Path, segment_bytes: int) -> None:
    log = BinlogBuilder()
    for n in range(97):
        log.ddl(CREATE.format(n))
    rows(log, 217)
    log.ddl("ALTER TABLE t1 COMMENT = 'a'")
    log.ddl("CREATE INDEX i ON t1 (id)")
    rows(log)
    assert batches(tmp_path, log, Limits(), segment_bytes) == [(97, True), (217, False), (2, True), (1, False)]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t1 ADD COLUMN x INT",
        "DROP TABLE t1",
        "TRUNCATE TABLE t1",
        "CREATE TABLE t3 AS SELECT * FROM t1",
        "CREATE OR REPLACE TABLE t1 (id INT)",
        "RENAME TABLE t1 TO t2",
        f"CREATE TABLE t3 (id INT) COMMENT = '{'long' * (1 << 18)}'",
    ],
)
def test_a_statement_with_an_effect_comes_alone(tmp_path: Path, statement: str) -> None:
    log = BinlogBuilder()
    for sql in (CREATE.format(1), CREATE.format(2), statement, CREATE.format(4), CREATE.format(5)):
        log.ddl(sql)
    rows(log)
    assert batches(tmp_path, log, Limits()) == [(2, True), (1, True), (2, True), (1, False)]


def test_rows_inside_a_statements_transaction_end_the_run(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.ddl(CREATE.format(1))
    log.ddl(CREATE.format(2))
    rows(log)
    log.ddl(CREATE.format(3))
    assert batches(tmp_path, log, Limits()) == [(2, True), (1, False), (1, True)]


def test_limits_hold_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = BinlogBuilder()
    for n in range(10):
        log.ddl(CREATE.format(n))
    rows(log)
    limits = Limits(max_transactions=4)
    assert batches(tmp_path / "limited", log, limits) == [(4, True), (4, True), (2, True), (1, False)]
    monkeypatch.setattr(batch_builder, "_MOST_DDL", 7)
    assert batches(tmp_path / "capped", log, Limits()) == [(7, True), (3, True), (1, False)]


def test_a_selection_reads_no_more_statements_than_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = BinlogBuilder()
    for n in range(50):
        log.ddl(CREATE.format(n))
    rows(log)
    filler = Filler(tmp_path)
    filler.put(log)
    filler.close()
    asked: list[int] = []

    def ask(segment: Path, entry: Any) -> bool:
        asked.append(int(entry["seq"]))
        return True

    monkeypatch.setattr("cdc.store.reader.reader.leaves_rows_alone", ask)
    found = StoreReader(tmp_path).select(0, Limits(max_transactions=5))
    assert found is not None and found.transactions == 5
    assert len(asked) <= 6


def test_what_leaves_rows_alone() -> None:
    for sql, expected in {
        CREATE.format(1): True,
        "CREATE TABLE a LIKE b": True,
        "ALTER TABLE a ADD INDEX (id)": True,
        "CREATE VIEW v AS SELECT 1": True,
        "CREATE DATABASE d": True,
        "DROP DATABASE d": False,
        "ALTER TABLE a ADD COLUMN b INT": False,
        "INSERT INTO a VALUES (1)": False,
        "nonsense": False,
    }.items():
        assert classify(sql, "shop").leaves_rows_alone is expected, sql
