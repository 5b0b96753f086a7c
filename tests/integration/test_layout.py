"""Partitions, clustering and properties of Delta tables, and their maintenance beside merges."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaOptimizeBuilder
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable

from cdc.base.errors import ConfigError, TargetError
from cdc.config import delta
from cdc.lake import pipeline
from cdc.lake.jobs import maintain_tables
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]
KEEPS_NOTHING = "DB.t: {properties: {delta.deletedFileRetentionDuration: interval 0 hours}}"
"""Override of a table whose files may go as soon as they are replaced."""
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, day DATE NOT NULL, region VARCHAR(9) NOT NULL, n INT)"
ROWS = "INSERT INTO t VALUES " + ", ".join(
    f"({i}, '2026-01-0{1 + i % 3}', '{('', 'eu', 'us')[i % 3]}', {i})" for i in range(30)
)


@pytest.fixture
def delta_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records which methods of Delta's interface for Python are called; they do their work."""
    calls: list[str] = []

    def record(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def recorded(*arguments: Any) -> Any:
            calls.append(name)
            return method(*arguments)

        monkeypatch.setattr(owner, name, recorded)

    record(DeltaOptimizeBuilder, "executeCompaction")
    record(SparkDeltaTable, "vacuum")
    return calls


def partitions(loop: Loop) -> list[str]:
    return DeltaTable(str(loop.path("t"))).metadata().partition_columns


def clustering(loop: Loop) -> list[list[str]]:
    """Returns the clustering that Delta itself has recorded last."""
    columns: list[list[str]] = []
    for file in sorted((loop.path("t") / "_delta_log").glob("*.json")):
        for line in file.read_text(encoding="utf-8").splitlines():
            domain = json.loads(line).get("domainMetadata") or {}
            if domain.get("domain") == "delta.clustering":
                columns = json.loads(domain["configuration"])["clusteringColumns"]
    return columns


def properties(loop: Loop) -> dict[str, str]:
    return dict(DeltaTable(str(loop.path("t"))).metadata().configuration)


def test_a_partitioned_table_follows_its_source(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.t: {partition_by: [DAY]}")
    loop.sql(TABLE, ROWS)
    loop.capture()
    loop.apply_all()
    loop.sql(
        "UPDATE t SET day = '2026-02-01' WHERE id % 5 = 0",  # rows go to another partition
        "DELETE FROM t WHERE day = '2026-01-02'",
        "INSERT INTO t VALUES (100, '2026-03-01', '', NULL)",
        "ALTER TABLE t ADD COLUMN more INT DEFAULT 7",
        "ALTER TABLE t MODIFY n VARCHAR(20)",  # Delta cannot widen it, so the table is written anew
        "UPDATE t SET region = 'asia' WHERE id < 9",
    )
    loop.capture()
    loop.apply_all()
    loop.require_equal("t")
    assert partitions(loop) == ["day"]
    assert (loop.path("t") / "day=2026-02-01").is_dir()

    loop.sql("ALTER TABLE t DROP COLUMN day")
    loop.capture()
    with pytest.raises(ConfigError, match=r"takes the column day, which the Delta table has in partition_by"):
        loop.apply_all()


@pytest.mark.long
def test_other_partitions_need_a_new_table(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.t: {properties: {towpath_test: 1}}")
    loop.sql(TABLE, ROWS)
    loop.capture()
    loop.apply_all()
    loop.edit("{properties: {towpath_test: 1}}", "{partition_by: [day, n]}")
    loop.sql("INSERT INTO t VALUES (100, '2026-03-01', 'eu', 3)")
    loop.capture()
    with pytest.raises(TargetError, match=r"is partitioned by nothing, and the configuration says day, n"):
        loop.apply_all()
    pipeline.replay(loop.config, [f"{loop.db}.t"])
    assert partitions(loop) == ["day", "n"]
    loop.apply_all()
    loop.require_equal("t")
    assert properties(loop)["towpath_test"] == "1", "properties of the former generation stay"

    # A table whose partitions are not configured any more keeps them.
    loop.edit("{partition_by: [day, n]}", "{on_error: block}")
    pipeline.replay(loop.config, [f"{loop.db}.t"])
    assert partitions(loop) == ["day", "n"]
    loop.require_equal("t")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("partition_by: [region]", r"partition_by names region of the type string; .* empty text in a partition"),
        pytest.param(
            "cluster_by: [nothing]",
            r"cluster_by names nothing, which the Delta table does not have \(it has id, day,",
            marks=pytest.mark.long,
        ),
        pytest.param("partition_by: [id, day, region, n]", "partition_by names", marks=pytest.mark.long),
    ],
)
def test_columns_that_cannot_serve_are_refused(
    key: str, message: str, mysql9: Server, tmp_path: Path, database: Database
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=f"DB.t: {{{key}}}")
    loop.sql(TABLE, ROWS)
    loop.capture()
    with pytest.raises(ConfigError, match=message):
        loop.apply_all()
    assert not (loop.path("t") / "_delta_log").exists()


@pytest.mark.long
def test_clustering_and_properties_follow_the_configuration(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(
        tmp_path, mysql9, database(mysql9), overrides="DB.t: {cluster_by: [region, n]}", apply="deletion_vectors: true"
    )
    loop.sql(TABLE, ROWS)
    loop.capture()
    loop.apply_all()
    assert clustering(loop) == [["region"], ["n"]]
    loop.edit("cluster_by: [region, n]", "cluster_by: [day], properties: {delta.enableChangeDataFeed: true}")
    loop.sql("UPDATE t SET n = n + 1", "ALTER TABLE t RENAME COLUMN n TO m", "ALTER TABLE t DROP COLUMN m")
    loop.capture()
    loop.apply_all()
    loop.require_equal("t")
    assert clustering(loop) == [["day"]]
    assert properties(loop)["delta.enableChangeDataFeed"] == "true"

    loop.edit("cluster_by: [day]", "cluster_by: []")
    loop.sql("ALTER TABLE t DROP COLUMN day", "DELETE FROM t WHERE id = 1")
    loop.capture()
    loop.apply_all()
    loop.require_equal("t")
    assert clustering(loop) == []


def test_maintenance_compacts_what_changed_and_keeps_what_is_readable(
    mysql9: Server, tmp_path: Path, database: Database, delta_calls: list[str]
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=KEEPS_NOTHING)
    loop.sql(TABLE, "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    for i in range(4):
        loop.sql(f"INSERT INTO t VALUES ({i}, '2026-01-01', 'eu', {i})")
        loop.capture()
        loop.apply_all()
    files = len(DeltaTable(str(loop.path("t"))).file_uris())
    assert files > 1
    first, second = pipeline.maintain_tables(loop.config)
    assert (first.table, first.note) == (f"{loop.db}.other", None)
    assert (first.files_removed, first.files_added) == (0, 0), "one file is not rewritten"
    assert (second.files_removed, second.files_added) == (files, 1)
    assert second.files_deleted == 0, "the store's transactions need the old versions"
    assert second.kept_for_h == 2
    assert delta_calls == ["executeCompaction"]
    loop.require_equal("t")
    version = loop.version("t")
    assert [table.files_removed for table in pipeline.maintain_tables(loop.config, vacuum=False)] == [0, 0]
    assert loop.version("t") == version, "nothing changed, so nothing is committed"

    loop.sql("DELETE FROM t WHERE id = 2")
    loop.capture()
    loop.apply_all()
    loop.require_equal("t")


@pytest.mark.long
def test_vacuum_deletes_what_no_transaction_needs(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, delta_calls: list[str]
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=KEEPS_NOTHING)
    loop.sql(TABLE, ROWS)
    loop.capture()
    loop.apply_all()
    loop.sql("UPDATE t SET n = 0")
    loop.capture()
    loop.apply_all()
    before = set(loop.path("t").glob("*.parquet"))
    monkeypatch.setattr(maintain_tables, "kept_for_h", lambda _: 0.0)
    (done,) = pipeline.maintain_tables(loop.config)
    assert done.files_deleted is not None
    assert done.files_deleted > 0
    assert delta_calls[-1] == "vacuum"
    assert len(before - set(loop.path("t").glob("*.parquet"))) > 0
    loop.require_equal("t")


VALUES = {
    "delta.autoOptimize.autoCompact": "true",
    "delta.autoOptimize.optimizeWrite": "true",
    "delta.checkpoint.writeStatsAsJson": "false",
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.checkpointInterval": "2",
    "delta.checkpointPolicy": "v2",
    "delta.deletedFileRetentionDuration": "interval 0 hours",
    "delta.enableChangeDataFeed": "true",
    "delta.enableExpiredLogCleanup": "false",
    "delta.enableInCommitTimestamps": "true",
    "delta.isolationLevel": "Serializable",
    "delta.logRetentionDuration": "interval 60 days",
    "delta.randomizeFilePrefixes": "true",
    "delta.randomPrefixLength": "3",
}
"""Values of all properties that a user may set."""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(VALUES))
def test_each_allowed_property_on_a_table(name: str, mysql9: Server, tmp_path: Path, database: Database) -> None:
    """A batch into a table with the property, one after it was added to a table, an ALTER, a snapshot and a maintenance
    leave a table that equals its source."""
    db = database(mysql9)
    given = f"{{properties: {{{name}: '{VALUES[name]}'}}}}"
    loop = Loop(tmp_path, mysql9, db, overrides=f"DB.t: {given}, DB.later: {{on_error: block}}")
    loop.sql(TABLE, ROWS, "CREATE TABLE later (id INT PRIMARY KEY, n INT)", "INSERT INTO later VALUES (1, 1), (2, 2)")
    loop.capture()
    loop.apply_all()
    loop.edit(f"{db}.later: {{on_error: block}}", f"{db}.later: {given}")
    for table in ("t", "later"):
        loop.sql(
            f"UPDATE {table} SET n = n + 1 WHERE id % 2 = 0",
            f"ALTER TABLE {table} ADD COLUMN more INT DEFAULT 7",
            f"ALTER TABLE {table} MODIFY n VARCHAR(20)",  # written anew; delta-rs cannot read widened types
            f"ALTER TABLE {table} RENAME COLUMN n TO m",
            f"DELETE FROM {table} WHERE id = 2",
            f"ALTER TABLE {table} DROP COLUMN more",
        )
        loop.capture()
        loop.apply_all()
    for last in ("INSERT INTO later VALUES (9, 9)", "DELETE FROM later"):
        for table in ("t", "later"):
            assert properties_of(loop, table)[name] == VALUES[name]
            loop.require_equal(table)
        pipeline.maintain_tables(loop.config)
        pipeline.snapshot(loop.config, [f"{db}.t", f"{db}.later"])
        loop.sql(last)
        loop.capture()
        loop.apply_all()
    assert pipeline.verify(loop.config).exit_code == 0


def test_values_of_all_properties_are_tried() -> None:
    assert set(VALUES) == delta._OF_USERS


def properties_of(loop: Loop, table: str) -> dict[str, str]:
    return dict(DeltaTable(str(loop.path(table))).metadata().configuration)
