"""Small tables whose rows change in this process: against SELECT and Spark, beside other writers, and where it is not
done."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from cdc.lake import pipeline
from cdc.lake.apply import merge
from cdc.lake.delta import local_tables
from cdc.lake.delta.local_tables import LocalTable
from cdc.lake.runtime.session import acquire
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.compare import delta_rows, mirror_faults

Database = Callable[[Server], str]
COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "tiny": ("TINYINT", [-128, 127, None]),
    "utiny": ("TINYINT UNSIGNED", [0, 255]),
    "small": ("SMALLINT UNSIGNED", [0, 65535]),
    "medium": ("MEDIUMINT", [-8388608, 8388607]),
    "whole": ("INT UNSIGNED", [0, 4294967295, None]),
    "big": ("BIGINT", [-(2**63), 2**63 - 1]),
    "ubig": ("BIGINT UNSIGNED", [0, 2**64 - 1]),
    "short": ("DECIMAL(9, 2)", ["-9999999.99", "0.01"]),
    "middle": ("DECIMAL(18, 3)", ["-123456789012345.678", None]),
    "long_": ("DECIMAL(38, 10)", ["9999999999999999999999999999.9999999999", "-0.0000000001"]),
    "ratio": ("FLOAT", [1.5, -0.25]),
    "score": ("DOUBLE", [1e300, -0.1, None]),
    "day": ("DATE", ["'0101-01-01'", "'9999-12-31'", None]),
    "moment": ("DATETIME(6)", ["'1000-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'", None]),
    "stamp": ("TIMESTAMP(6) NULL", ["'1970-01-02 00:00:01.000001'", "'2037-12-31 23:59:59.999999'", None]),
    "lasting": ("TIME(3)", ["'-838:59:59.000'", "'838:59:58.999'"]),
    "vintage": ("YEAR", [1901, 2155]),
    "code": ("CHAR(12)", ["'é'", "''"]),
    "name": ("VARCHAR(100)", ["'zoë'", "REPEAT('ä', 40)", "'\U0010ffff'", None]),
    "note": ("TEXT", ["REPEAT('text', 2000)", "''"]),
    "status": ("ENUM('new', 'paid', 'sent')", ["'new'", "'sent'", None]),
    "flags": ("SET('a', 'b', 'c')", ["'a,c'", "''"]),
    "bits": ("BIT(12)", ["b'101'", "b'111111111111'"]),
    "digest": ("BINARY(4)", ["x'00ff00ff'", "x'61626364'"]),
    "content": ("BLOB", ["REPEAT('b', 50)", "x'ff'", None]),
    "tree": ("JSON", ["'{\"a\": [1, null]}'", None]),
}
"""The type of each column beside the key, and some of its values as SQL."""
TABLE = "CREATE TABLE {name} (a INT, b VARCHAR(20), v INT, {columns}, PRIMARY KEY (a, b))"
SIMPLE = "CREATE TABLE t (a INT, b VARCHAR(20), v VARCHAR(40), n DECIMAL(12, 3), d DATETIME(3), PRIMARY KEY (a, b))"


def create(name: str) -> str:
    return TABLE.format(name=name, columns=", ".join(f"{column} {kind}" for column, (kind, _) in COLUMNS.items()))


def row(chance: random.Random, a: int, b: str) -> str:
    values = (chance.choice(some) for _, some in COLUMNS.values())
    return f"({a}, '{b}', 0, {', '.join('NULL' if value is None else str(value) for value in values)})"


def simple(rows: range, text: str) -> str:
    return f"INSERT INTO t VALUES {', '.join(f'''({i % 7}, 'k{i}', '{text}', {i}.125, '2026-01-02 03:04:05.678')''' for i in rows)}"


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the way in which each table was changed: ``here``, or the reason why Spark had to do it."""
    ways: list[str] = []
    change, left_to_spark = local_tables.change, local_tables.LeftToSparkError

    def seen(*given: Any) -> Any:
        replaced = change(*given)
        if replaced is not None:
            ways.append("here")
        return replaced

    def tell(self: Exception, reason: str) -> None:
        ways.append(reason)

    monkeypatch.setattr(local_tables, "change", seen)
    monkeypatch.setattr(left_to_spark, "__init__", tell)
    return ways


@contextmanager
def by_spark() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "may_change", lambda *_: False)
        yield


def run(loop: Loop, *statements: str) -> None:
    loop.sql(*statements)
    loop.capture()
    loop.apply_all()
    loop.require_equal("t", "1, 2")


def metrics_of(loop: Loop, table: str = "t") -> dict[str, int]:
    """Returns the metrics of the table's last commit."""
    last = DeltaTable(str(loop.path(table))).history(1)[0]
    assert last["operation"] == "MERGE"
    return {name: int(value) for name, value in last["operationMetrics"].items()}


def require_statistics(loop: Loop, table: str) -> None:
    """Checks what the log says about each file against its rows."""
    delta = DeltaTable(str(loop.path(table)))
    for path, stats in statistics(delta).items():
        rows = pq.read_table(loop.path(table) / path, coerce_int96_timestamp_unit="us")
        assert stats["numRecords"] == len(rows)
        for name, nulls in stats["nullCount"].items():
            assert nulls == rows.column(name).null_count, name
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if name not in stats["minValues"] or not pa.types.is_string(column.type):
                continue
            # Spark and Arrow order texts by their bytes.
            low, high = (stats[f"{which}Values"][name].encode() for which in ("min", "max"))
            least, greatest = (extreme(column.cast(pa.binary())).as_py() for extreme in (pc.min, pc.max))
            assert low <= least and greatest <= high, name


def statistics(delta: DeltaTable) -> dict[str, dict[str, Any]]:
    """Returns the statistics in the log of each file that the table has, by its path."""
    stats_by_path: dict[str, dict[str, Any]] = {}
    for commit in sorted(Path(delta.table_uri.removeprefix("file://"), "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            if "add" in (action := json.loads(line)):
                stats_by_path[action["add"]["path"]] = json.loads(action["add"]["stats"], parse_float=Decimal)
    return {
        path: stats for path, stats in stats_by_path.items() if path in {Path(uri).name for uri in delta.file_uris()}
    }


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_random_batches_change_rows_and_versions_as_by_spark(
    mysql9: Server,
    tmp_path: Path,
    database: Database,
    ways: list[str],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Merges the same batches into two destinations, here and by Spark. Their rows must be equal, and SELECT's."""
    batches = 8
    chance = random.Random(f"{seed} small tables")
    db, overrides = database(mysql9), "DB.h: {mode: scd2}, DB.s: {mode: soft_delete}"
    native = Loop(tmp_path, mysql9, db, overrides=overrides)
    spark = Loop(tmp_path, mysql9, db, overrides=overrides, name="other", target="other-lake")
    native.sql(*(create(name) for name in ("t", "h", "s")))
    for number in range(batches + 1):
        statements = []
        for name in ("t", "h", "s"):
            rows = [row(chance, i % 7, f"k{i}") for i in range(100 * number, 100 * number + chance.randrange(1, 30))]
            some, other = (f"b LIKE '%{chance.randrange(10)}'" for _ in range(2))
            steps = [
                f"UPDATE {name} SET v = v + 1, name = NULL WHERE {some}",
                f"UPDATE {name} SET v = v + 1 WHERE {some}",  # twice in one batch
                f"DELETE FROM {name} WHERE {other}",
                f"UPDATE {name} SET a = a + 7 WHERE b LIKE '%{chance.randrange(10)}{chance.randrange(10)}'",
                f"INSERT INTO {name} VALUES {row(chance, 99, f'x{number}')}",
                f"DELETE FROM {name} WHERE b = 'x{number}'",
            ]
            statements += [f"INSERT INTO {name} VALUES {', '.join(rows)}", *(steps if number else [])]
        if number == batches:
            statements.append("DELETE FROM t")
        native.sql(*statements)
        monkeypatch.setattr(local_tables, "TINY_BYTES", chance.choice([0, 1 << 20]))
        native.capture()
        native.apply_all()
        with by_spark():
            spark.capture()
            spark.apply_all()
        assert (
            mirror_faults(
                mysql9, native.config.apply.target, db, "t", {"bits": "bits + 0", "lasting": "CAST(lasting AS CHAR)"}
            )
            == []
        )
        for name in ("t", "h", "s"):
            columns = DeltaTable(str(native.path(name))).schema().to_arrow().names
            lake_rows, expected = (delta_rows(loop.config.apply.target, db, name, columns) for loop in (native, spark))
            assert lake_rows == expected
        assert all(
            metrics_of(native, name)[f"numTargetRows{what}"] == metrics_of(spark, name)[f"numTargetRows{what}"]
            for name in ("t", "h", "s")
            for what in ("Inserted", "Updated", "Deleted")
        )
        for name in ("t", "h", "s"):
            require_statistics(native, name)
    assert set(ways) == {"here"}, ways
    assert len(ways) >= 3 * batches
    session = acquire(native.config.spark).spark
    by_name = {
        name: session.read.format("delta").load(str(loop.path("h"))) for name, loop in (("h", native), ("o", spark))
    }
    assert by_name["h"].exceptAll(by_name["o"]).count() == by_name["o"].exceptAll(by_name["h"]).count() == 0
    assert (
        by_name["h"].where("_current AND day IS NULL").count() == by_name["o"].where("_current AND day IS NULL").count()
    )


def test_files_and_columns_of_others_are_told(
    mysql9: Server, tmp_path: Path, database: Database, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only files with rows that go are written anew, and what Spark alone knows is left to it."""
    monkeypatch.setattr(local_tables, "TINY_BYTES", 0)
    loop = Loop(tmp_path, mysql9, database(mysql9))
    run(loop, SIMPLE, simple(range(100), "a"))
    run(loop, simple(range(100, 150), "b"))
    run(loop, "UPDATE t SET v = CONCAT(v, '!') WHERE v = 'b'", "DELETE FROM t WHERE b = 'k149'")
    metrics = metrics_of(loop)
    assert (metrics["numTargetRowsCopied"], metrics["numTargetFilesRemoved"]) == (0, 1)
    # A column that is added later is null in the files before.
    run(loop, "ALTER TABLE t ADD COLUMN more INT")
    ways.clear()
    run(loop, "UPDATE t SET more = 3 WHERE b = 'k7'")
    assert ways == ["here"]
    spark, path = acquire(loop.config.spark).spark, loop.path("t")
    for clause in (
        "ADD CONSTRAINT few CHECK (a < 1000)",
        "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    ):
        spark.sql(f"ALTER TABLE delta.`{path}` {clause}")
        ways.clear()
        run(loop, "UPDATE t SET more = more + 1 WHERE b = 'k7'")
        assert ways == []


def during(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[str]:
    """Lets something happen once, after the new rows were written and before their commit. Returns the number of times
    that rows were written, as a list that grows."""
    write = LocalTable.write
    writes: list[str] = []

    def acting(self: LocalTable, rows: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
        added = write(self, rows)
        writes.append("written")
        if len(writes) == 1:
            act()
        return added

    monkeypatch.setattr(LocalTable, "write", acting)
    return writes


@pytest.mark.long
@pytest.mark.parametrize("mode", ["upsert", "soft_delete", "scd2"])
@pytest.mark.parametrize("other", ["delete", "optimize", "insert", "orphan"])
def test_another_writer_commits_between_reading_and_commit(
    mysql9: Server,
    tmp_path: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    other: str,
) -> None:
    """The commit is refused by Delta, and the table is merged again on top of the other one's."""
    monkeypatch.setattr(local_tables, "TINY_BYTES", 0)  # two files, which OPTIMIZE joins
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=f"DB.t: {{mode: {mode}}}")
    loop.sql(SIMPLE, simple(range(50), "a"), simple(range(50, 60), "a"))
    loop.capture()
    loop.apply_all(1)
    loop.sql("UPDATE t SET v = 'x' WHERE b IN ('k3', 'k55')", "DELETE FROM t WHERE b = 'k4'")
    loop.capture()
    lease = loop.fetch()

    def act() -> None:
        table = DeltaTable(str(loop.path("t")))
        if other == "delete":
            table.delete("b = 'k7'")
        elif other == "optimize":
            table.optimize.compact()
        elif other == "insert":
            rows = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t WHERE b = 'k9'"))
            write_deltalake(table, rows.set_column(1, "b", pa.array(["new"])), mode="append")
        else:
            pipeline.merge(loop.config, lease)

    writes = during(monkeypatch, act)
    version = loop.version("t")
    pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))
    assert loop.version("t") == version + (1 if other == "orphan" else 2)
    assert writes
    where = {"upsert": "true", "soft_delete": "NOT _deleted", "scd2": "_current"}[mode]
    rows = QueryBuilder().register("t", DeltaTable(str(loop.path("t"))))
    rows_in_lake = {(r["b"], r["v"]) for r in pa.table(rows.execute(f"SELECT b, v FROM t WHERE {where}")).to_pylist()}
    expected = {(r["b"], r["v"]) for r in loop.select("t")}
    difference = {"delete": {("k7", "a")}, "insert": {("new", "a")}}.get(other, set())
    assert rows_in_lake ^ expected == difference
