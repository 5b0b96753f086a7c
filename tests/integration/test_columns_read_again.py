"""Statements whose values only the server knows: the key and the columns are read again, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.jobs import snapshot as snapshot_job
from cdc.lake.jobs.results import SnapshotResult
from cdc.meta import ParkedTable
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing

Database = Callable[[Server], str]
MODES = {"mirror": "upsert", "soft": "soft_delete", "versions": "scd2"}
OVERRIDES = ", ".join(f"DB.{table}: {{mode: {mode}}}" for table, mode in MODES.items())
KEPT = {"mirror": "true", "soft": "NOT _deleted", "versions": "_current"}
OWN = {"_deleted", "_commit_time", "_seq", "_valid_from", "_valid_to", "_current"}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_TEST_KEY", "0123456789abcdef" * 4)


class Tables(Loop):
    """A destination with a table for each mode, and what happens to them."""

    def __init__(self, folder: Path, server: Server, db: str, policies: str = "{}") -> None:
        apply = f"on_error: park, columns: {policies}, hash_key_env: TOWPATH_TEST_KEY"
        super().__init__(folder, server, db, overrides=OVERRIDES, apply=apply, snapshot="{chunk_rows: 4}")

    def each(self, *statements: str) -> None:
        self.sql(*(statement.format(table) for statement in statements for table in MODES))

    def fill(self) -> None:
        self.each(
            "CREATE TABLE {} (id INT PRIMARY KEY, v VARCHAR(20), d DOUBLE)",
            "INSERT INTO {} VALUES " + ", ".join(f"({i}, 'v{i}', {i}.5)" for i in range(1, 13)),
        )
        self.capture()
        self.apply_all()

    def parked(self) -> dict[str, ParkedTable]:
        parked = BatchService(self.config).subscription().parked
        return {name.partition(".")[2]: entry for name, entry in parked.items()}

    def snapshot(self, *tables: str, whole: bool = False) -> dict[str, SnapshotResult]:
        names = [f"{self.db}.{table}" for table in tables] or None
        with capturing(self.config):
            snapshot = pipeline.snapshot(self.config, names, whole=whole)
        return {result.table.partition(".")[2]: result for result in snapshot}

    def files(self) -> list[Path]:
        """Returns the files of snapshots that are not loaded, or of columns."""
        folders = [path.parent for path in (self.config.store.path / "snapshots").rglob("snapshot.json")]
        return [folder for folder in folders if not (folder / "loaded.json").exists()]

    def present(self, table: str, where: str | None = None) -> list[dict[str, Any]]:
        import pyarrow as pa
        from deltalake import QueryBuilder

        reader = QueryBuilder().register("t", DeltaTable(str(self.path(table))))
        query = f"SELECT * FROM t WHERE {where or KEPT[table]} ORDER BY id"
        rows = pa.table(reader.execute(query)).to_pylist()
        return [{name: value for name, value in row.items() if name not in OWN} for row in rows]

    def require_present(self) -> None:
        for table in MODES:
            assert self.present(table) == self.select(table), table


def changed_around(loop: Tables, statement: str) -> None:
    """Changes rows before the statement and behind it, so that the store has all of it when the columns are read."""
    loop.each("UPDATE {} SET v = 'before' WHERE id = 1", "DELETE FROM {} WHERE id = 2")
    loop.each(statement)
    loop.each(
        "UPDATE {} SET v = 'after' WHERE id IN (3, 4)",
        "DELETE FROM {} WHERE id = 5",
        "INSERT INTO {} (id, v, d) VALUES (20, 'new', 20.5), (21, 'new', 21.5)",
        "UPDATE {} SET id = 30 WHERE id = 6",
        "DELETE FROM {} WHERE id = 7",
        "INSERT INTO {} (id, v, d) VALUES (7, 'again', 7.5)",
        "DELETE FROM {} WHERE id = 21",
        "UPDATE {} SET v = 'twice' WHERE id = 4",
    )
    loop.capture()
    loop.apply_all()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_new_columns(tmp_path: Path, mariadb11: Server, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default that differs from row to row, and numbers that the server has given."""
    loop = Tables(tmp_path, mariadb11, database(mariadb11))
    loop.fill()
    monkeypatch.setattr(snapshot_job, "load_snapshot", None)  # no table is loaded as a whole
    changed_around(
        loop, "ALTER TABLE {} ADD COLUMN n INT NOT NULL AUTO_INCREMENT UNIQUE, ADD COLUMN u CHAR(36) DEFAULT (UUID())"
        ", ADD COLUMN c INT NOT NULL DEFAULT 7",
    )  # fmt: skip
    parked = loop.parked()
    assert {table: entry.columns and entry.columns.names for table, entry in parked.items()} == dict.fromkeys(
        MODES, ("n", "u")
    )
    assert all("which reads n, u and the key again" in entry.reason for entry in parked.values())
    assert all(entry.keep_seq is not None for entry in parked.values())
    versions = {table: loop.version(table) for table in MODES}
    snapshot = loop.snapshot()
    assert {table: (result.columns, result.rows) for table, result in snapshot.items()} == dict.fromkeys(
        MODES, (("n", "u"), 11)
    )
    assert all(result.chunks > 2 for result in snapshot.values())
    assert loop.parked() == {}
    loop.require_present()
    # The values right after the statement are in the versions that the later changes have closed.
    closed = {row["id"]: row for row in loop.present("versions", "NOT _current AND id IN (2, 3, 5, 6)")}
    assert (closed[2]["n"], closed[2]["u"], closed[2]["c"]) == (None, None, 7)  # it was deleted before the statement
    assert all(closed[key]["n"] is not None and len(closed[key]["u"]) == 36 for key in (3, 5, 6))
    current = {row["id"]: row for row in loop.select("versions")}
    assert (closed[3]["n"], closed[3]["u"]) == (current[3]["n"], current[3]["u"])
    assert (closed[6]["n"], closed[6]["u"]) == (current[30]["n"], current[30]["u"])
    deleted = {row["id"]: row for row in loop.present("soft", "_deleted")}
    assert deleted[2]["u"] is None and len(deleted[5]["u"]) == 36
    for table, version in versions.items():  # one record, one ALTER, one MERGE; then the changes
        operations = [entry["operation"] for entry in DeltaTable(str(loop.path(table))).history()]
        news = operations[: loop.version(table) - version]
        assert not {"CREATE OR REPLACE TABLE AS SELECT", "UPDATE"} & set(news), news
    loop.each("UPDATE {} SET v = 'last' WHERE id < 9", "DELETE FROM {} WHERE id = 9", "INSERT INTO {} (id) VALUES (40)")
    loop.capture()
    loop.apply_all()
    loop.require_present()
    assert loop.files() == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_other_values_and_types(tmp_path: Path, mysql9: Server, database: Database) -> None:
    """Generated columns, types that are written anew, renamed columns and policies, while rows are changed and read."""
    loop = Tables(tmp_path, mysql9, database(mysql9), "{g: {rename: gg}, u: hash}")
    loop.fill()
    loop.each("ALTER TABLE {} ADD COLUMN w INT NOT NULL DEFAULT 3")
    loop.capture()
    loop.apply_all()
    loop.each("ALTER TABLE {} MODIFY d VARCHAR(30), CHANGE w ww BIGINT")
    loop.each("UPDATE {} SET d = 'other' WHERE id IN (1, 2)", "UPDATE {} SET v = 'same' WHERE id = 3")
    loop.capture()
    loop.apply_all()
    assert {table: entry.columns and entry.columns.names for table, entry in loop.parked().items()} == dict.fromkeys(
        MODES, ("d",)
    )
    others = {table: loop.present(table) for table in MODES}
    snapshot = loop.snapshot(*MODES)
    assert {table: (result.columns, result.rows) for table, result in snapshot.items()} == dict.fromkeys(
        MODES, (("d",), 12)
    )
    loop.require_present()
    closed = {row["id"]: row["d"] for row in loop.present("versions", "NOT _current")}
    assert closed == {1: "1.5", 2: "2.5", 3: "3.5"}
    assert all(len(rows) == 12 for rows in others.values())

    # A column that is computed from others, and a default, both beside a column of another generation.
    loop.each("ALTER TABLE {} ADD COLUMN g INT AS (id * 2) STORED, ADD COLUMN u CHAR(36) DEFAULT (CONCAT('u', id))")
    loop.each("UPDATE {} SET id = id + 100 WHERE id < 4", "ALTER TABLE {} ADD INDEX (v)")
    loop.capture()
    loop.apply_all()
    assert all(entry.columns is not None for entry in loop.parked().values())
    loop.each("ALTER TABLE {} ADD COLUMN later INT DEFAULT 5, DROP COLUMN ww", "DELETE FROM {} WHERE id = 5")
    loop.capture()
    snapshot = loop.snapshot()
    assert all(result.columns == ("g", "u") and result.rows == 11 for result in snapshot.values())
    loop.apply_all()
    require_computed(loop)
    closed = {row["id"]: row for row in loop.present("versions", "NOT _current AND id IN (3, 5) AND gg IS NOT NULL")}
    assert {key: row["gg"] for key, row in closed.items()} == {3: 6, 5: 10}

    # Another expression for the same column: only rows whose values differ are written.
    loop.each("ALTER TABLE {} MODIFY g INT AS (IF(id = 7, 0, id * 2)) STORED")
    loop.capture()
    loop.apply_all()
    before = {table: loop.version(table) for table in MODES}
    assert all(entry.columns and entry.columns.names == ("g",) for entry in loop.parked().values())
    loop.snapshot()
    require_computed(loop)
    for table, version in before.items():
        merges = [commit for commit in DeltaTable(str(loop.path(table))).history() if commit["version"] > version]
        metrics = next(commit["operationMetrics"] for commit in merges if commit["operation"] == "MERGE")
        assert int(metrics["numTargetRowsUpdated"]) == 1, metrics


def require_computed(loop: Tables) -> None:
    """Compares tables whose column ``g`` is renamed, and whose ``u`` is hashed."""
    for table in MODES:
        rows, shown = loop.present(table), loop.select(table)
        assert all(len(row.pop("u")) == 64 and row["later"] == 5 for row in rows)
        assert rows == [{"gg" if name == "g" else name: row[name] for name in row if name != "u"} for row in shown]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_whole_table_is_read_where_columns_are_not_enough(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    loop = Tables(tmp_path, mysql9, database(mysql9))
    loop.fill()
    added = "ALTER TABLE {} ADD COLUMN u CHAR(36) DEFAULT (CONCAT('u', id))"
    loop.each(
        added, "ALTER TABLE {} DROP COLUMN u, ADD COLUMN u CHAR(36) DEFAULT (CONCAT('u', id))"
    )  # the first ones are gone
    loop.capture()
    loop.apply_all()
    assert all(entry.columns is not None for entry in loop.parked().values())
    snapshot = loop.snapshot()
    assert all((result.columns, result.rows, result.reread) == (None, 12, 1) for result in snapshot.values())
    loop.require_present()
    # A row is missing in the lake, which nobody may have noticed.
    loop.each("ALTER TABLE {} ADD COLUMN w CHAR(36) DEFAULT (CONCAT('w', id))")
    loop.capture()
    loop.apply_all()
    DeltaTable(str(loop.path("mirror"))).delete("id = 9")
    snapshot = loop.snapshot("mirror")
    assert (snapshot["mirror"].columns, snapshot["mirror"].rows) == (None, 12)
    snapshot = loop.snapshot(whole=True)
    assert {table: result.columns for table, result in snapshot.items()} == {"soft": None, "versions": None}
    loop.require_present()
    # A removed row may not have a value of the new type; and the key has other values.
    loop.each("DELETE FROM {} WHERE id = 1", "ALTER TABLE {} MODIFY d VARCHAR(30)")
    loop.capture()
    loop.apply_all()
    names = {table: entry.columns and entry.columns.names for table, entry in loop.parked().items()}
    assert names == {"mirror": ("d",), "soft": None, "versions": None}
    loop.snapshot()
    loop.require_present()
    loop.sql("ALTER TABLE mirror DROP PRIMARY KEY, ADD COLUMN n INT AUTO_INCREMENT PRIMARY KEY")
    loop.capture()
    loop.apply_all()
    assert loop.parked()["mirror"].columns is None


@pytest.mark.long
@pytest.mark.timeout(900)
def test_rows_that_change_while_they_are_read(tmp_path: Path, mariadb11: Server, database: Database) -> None:
    """Keys move between chunks, rows go and come back, and each row keeps the value that the statement gave it."""
    loop = Tables(tmp_path, mariadb11, database(mariadb11))
    loop.each("CREATE TABLE {} (id INT PRIMARY KEY, o INT, v INT)")
    for begin in range(0, 400, 100):
        loop.each(f"INSERT INTO {{}} VALUES {', '.join(f'({i}, {i}, 0)' for i in range(begin, begin + 100))}")
    loop.capture()
    loop.apply_all()
    loop.each("ALTER TABLE {} ADD COLUMN u CHAR(36) DEFAULT (UUID())")
    loop.capture()
    loop.apply_all()
    stop, turns = threading.Event(), 0

    def write() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1
            loop.each(
                f"UPDATE {{}} SET v = v + 1 WHERE id % 11 = {turns % 11}",
                f"UPDATE {{}} SET id = id + 1000 * (1 - 2 * (id >= 1000)) WHERE o = {turns * 7 % 400}",
                f"DELETE FROM {{}} WHERE o = {turns * 3 % 400}",
                f"INSERT IGNORE INTO {{}} (id, o, v) VALUES ({turns * 5 % 400}, {10_000 + turns}, 1)",
            )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        snapshot = loop.snapshot()
    finally:
        stop.set()
        writer.join()
    assert all(result.columns == ("u",) and result.chunks > 50 for result in snapshot.values()), snapshot
    loop.capture()
    loop.apply_all()
    loop.require_present()
    values: dict[int, set[str]] = {}
    for row in loop.present("versions", "true"):
        if row["u"] is not None:
            values.setdefault(row["o"], set()).add(row["u"])
    assert len(values) >= 400 and all(len(value) == 1 for value in values.values())
