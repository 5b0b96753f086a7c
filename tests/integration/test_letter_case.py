"""A server with ``lower_case_table_names`` 1: statements that spell the names of tables in any letters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cdc.base.errors import SourceRefusedError
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.jobs.snapshot import take_snapshots
from cdc.store.formats.index import IndexFile
from cdc.store.formats.layout import index_path, list_segments
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.support.apply import Loop


def _masks(segment: Path) -> np.ndarray:
    entries = np.array(IndexFile(segment).entries)
    return entries["table_mask"][entries["length"] > 0]


@pytest.fixture(params=["mysql9", "mariadb11"], scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param, options=["--lower-case-table-names=1"]) as server:
        yield server


@pytest.mark.long
def test_names_in_any_letters(server: Server, tmp_path: Path) -> None:
    server.execute("DROP DATABASE IF EXISTS Shop", "CREATE DATABASE Shop", "CREATE DATABASE IF NOT EXISTS Other")
    loop = Loop(
        tmp_path,
        server,
        "SHOP",
        apply="on_error: park",
        tables="lower_case_table_names: 1, exclude: ['.*\\.SECRET']",
    )
    loop.db = "shop"
    loop.sql(
        "CREATE TABLE Tr (Id INT PRIMARY KEY, v INT)",
        "INSERT INTO TR VALUES (1, 1), (2, 2)",
        "CREATE TABLE Swap (Id INT PRIMARY KEY, v INT)",
        "INSERT INTO sWAP VALUES (9, 9)",
        "CREATE TABLE Secret (Id INT PRIMARY KEY)",
        "INSERT INTO SECRET VALUES (1)",
        "CREATE TABLE Gone (Id INT PRIMARY KEY)",
        "INSERT INTO GONE VALUES (1)",
        "CREATE TABLE Parts (Id INT PRIMARY KEY) PARTITION BY RANGE (Id)"
        " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
        "INSERT INTO PARTS VALUES (1), (11)",
        "CREATE TABLE Kept (Id INT PRIMARY KEY)",
        "INSERT INTO KEPT VALUES (1)",
    )
    loop.capture()
    loop.apply_all()
    for table in ("tr", "swap", "gone", "parts", "kept"):
        loop.require_equal(table)
    loop.sql(
        "TRUNCATE TABLE SHOP.TR",
        "INSERT INTO tR VALUES (3, 3)",
        "ALTER TABLE sHop.tR ADD COLUMN w INT DEFAULT 7",
        "RENAME TABLE TR TO Held, SWAP TO Tr, HELD TO Swap",
        "ALTER TABLE swap RENAME TO SWAP",
        "UPDATE tr SET v = v + 1",
        "CREATE TABLE Copy LIKE SWAP",
        "INSERT INTO COPY VALUES (4, 4, 4)",
        "CREATE INDEX i ON COPY (v)",
        "DROP TABLE GONE",
        "ALTER TABLE PARTS DROP PARTITION p0",
        "ALTER TABLE Kept RENAME TO OTHER.Kept",
        "ALTER TABLE SECRET ADD COLUMN w INT",
        "CREATE VIEW Seen AS SELECT * FROM COPY",
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("USE SHOP")
        cursor.execute("CREATE TEMPORARY TABLE SWAP (a INT)")
        cursor.execute("ALTER TABLE Swap ADD COLUMN b INT")
        cursor.execute("TRUNCATE TABLE swap")
        cursor.execute("DROP TEMPORARY TABLE sWaP")
    loop.capture()
    loop.apply_all()
    take_snapshots(loop.config)  # nobody but the server knows the rows of a partition
    loop.apply_all()
    for table in ("tr", "swap", "copy", "parts"):
        loop.require_equal(table)
    assert not (tmp_path / "lake" / "shop" / "secret").exists()
    report = pipeline.verify(loop.config, None, wait_s=10)
    assert report.exit_code == 0, [(t.table, t.unknown, t.ledger, t.checksums) for t in report.tables]

    # An index that is made anew from its segment names the same tables, beside others that are not captured.
    for segment in list_segments(loop.config.store.path):
        masks = _masks(segment)
        index_path(segment).unlink()
        (loop.config.store.path / "checkpoint").unlink(missing_ok=True)
        loop.capture()
        anew = _masks(segment)
        assert len(anew) == len(masks) > 0 and np.array_equal(anew & masks, masks)

    # A subscriber's filter ignores case, too.
    service = BatchService(loop.config)
    service.subscribe("other", r"SHOP\.Copy")
    lease = service.get("test", subscriber="other", wait_s=0)
    assert lease is not None and lease.manifest.wants("shop.copy") and not lease.manifest.wants("shop.tr")


def test_another_value_than_the_servers_is_refused(server: Server, tmp_path: Path) -> None:
    server.execute("CREATE DATABASE IF NOT EXISTS case_two")
    loop = Loop(tmp_path, server, "case_two")
    with pytest.raises(
        SourceRefusedError, match=r"lower_case_table_names is 1, and tables.lower_case_table_names is 0"
    ):
        loop.capture()
    # Nothing was captured, so the setting can still be corrected.
    right = Loop(tmp_path, server, "case_two", tables="lower_case_table_names: 1")
    right.sql("CREATE TABLE T (Id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    right.capture()
    newest = StoreReader(right.config.store.path).newest_schemas()
    assert newest is not None and list(newest[1].tables) == ["case_two.t"]
