"""Facts for a plan from the log of a Delta table: rows, bytes, speed, and whether a row can have some value."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import types as t

from cdc.binlog.sql.conversions import Doubt
from cdc.binlog.sql.server import LATEST
from cdc.config import parse
from cdc.lake.apply.schema.values import doubtful
from cdc.lake.delta.tables import MODE_PROPERTY, Target, target_of
from cdc.lake.delta.tracked import SCHEMA_PROPERTY, SchemaRecord
from cdc.lake.migration.estimates import cost_of
from cdc.lake.migration.lake_tables import LakeTable, lake_table
from cdc.lake.migration.planner import Planner, Session, TableVerdict
from cdc.lake.migration.script import statements_in
from tests.support.configurations import FILE, document
from tests.unit.lake.migration.test_planner import stored

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, n INT, s VARCHAR(20), z INT) CHARSET utf8mb4"
ROWS: dict[str, list[Any]] = {"id": [1, 2, 3], "n": [5, 100, 7], "s": ["a", None, "b"], "z": [0, 1, 2]}
FIELDS = [("id", pa.int32()), ("n", pa.int32()), ("s", pa.string()), ("z", pa.int32())]


def config_in(folder: Path, **settings: Any) -> Any:
    return parse(document(apply__target=str(folder), **settings), FILE)


def written(folder: Path, rows: dict[str, list[Any]], create: str = TABLE, **settings: Any) -> Target:
    """A Delta table of shop.t as apply leaves it at seq 7."""
    target = target_of(config_in(folder, **settings), "shop.t")
    schema = stored(create).tables["shop.t"]
    configuration = {
        "towpath.destination": "shop",
        MODE_PROPERTY: target.apply.mode,
        SCHEMA_PROPERTY: SchemaRecord(7, schema).to_json(),
    }
    write_deltalake(target.path, pa.table(rows, schema=pa.schema(FIELDS)))
    commit = Path(target.path) / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text("utf-8").splitlines()]
    for action in actions:  # the library does not take properties that it does not know
        if "metaData" in action:
            action["metaData"]["configuration"] = configuration
    commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions), "utf-8")
    return target


def in_lake(target: Target) -> LakeTable:
    table = lake_table(target)
    assert table is not None
    return table


def test_rows_and_bytes(tmp_path: Path) -> None:
    target = written(tmp_path, ROWS)
    table = in_lake(target)
    assert table.rows == 3 and table.bytes > 300
    assert table.rows_per_s is None  # too few rows to tell
    write_deltalake(target.path, pa.table({**ROWS, "id": [4, 5, 6]}, schema=pa.schema(FIELDS)), mode="append")
    assert in_lake(target).rows == 6
    assert lake_table(target_of(config_in(tmp_path / "none"), "shop.t")) is None


@pytest.mark.parametrize(
    ("doubt", "column", "kind", "answer"),
    [
        (Doubt("null", "r"), "s", t.StringType(), True),
        (Doubt("null", "r"), "n", t.IntegerType(), False),
        (Doubt("zero", "r"), "n", t.IntegerType(), False),
        (Doubt("zero", "r"), "z", t.IntegerType(), None),
        (Doubt("outside", "r", range=(Decimal(0), Decimal(100))), "n", t.IntegerType(), False),
        (Doubt("outside", "r", range=(Decimal(0), Decimal(99))), "n", t.IntegerType(), True),
        (Doubt("outside", "r", range=(Decimal(6), None)), "n", t.IntegerType(), True),
        (Doubt("longer", "r", length=3), "s", t.StringType(), None),
        (Doubt("null", "r"), "unknown", t.StringType(), None),
    ],
)
def test_what_statistics_tell_of_doubts(
    tmp_path: Path, doubt: Doubt, column: str, kind: t.DataType, answer: bool | None
) -> None:
    target = written(tmp_path, ROWS)
    condition = doubtful(doubt, f"`{column}`", kind, is_set=False)
    assert condition is not None
    assert in_lake(target).answer(target, condition) is answer


@pytest.mark.parametrize(
    ("largest", "border"),
    [
        (Decimal(10**25 - 1), "9.999999999999999e+24D"),  # as a DOUBLE it is 1e25, which no DECIMAL(25) holds
        (Decimal(2**63 - 1), "9.223372036854775e+18D"),
        (Decimal(2**53), "9007199254740992.0D"),
    ],
)
def test_a_limit_that_no_double_is_counts_as_the_one_within(largest: Decimal, border: str) -> None:
    doubt = Doubt("outside", "r", range=(-largest, largest))
    assert doubtful(doubt, "v", t.DoubleType(), is_set=False) == f"(v < -{border} OR v > {border})"


def test_rows_that_the_source_has_not_any_more_prove_nothing_but_absence(tmp_path: Path) -> None:
    table = in_lake(written(tmp_path, ROWS))
    kept = target_of(config_in(tmp_path, apply__mode="soft_delete"), "shop.t")
    assert table.answer(kept, "`s` IS NULL") is None
    assert table.answer(kept, "`n` IS NULL") is False


def planned(folder: Path, sql: str, create: str = TABLE) -> tuple[TableVerdict, Planner]:
    planner = Planner(config_in(folder), stored(create), Session(LATEST, 0, "shop"), lake_table)
    return planner.run(statements_in(sql))[-1].tables[0], planner


def test_statistics_decide_where_they_can(tmp_path: Path) -> None:
    written(tmp_path, ROWS)
    assert planned(tmp_path, "ALTER TABLE t MODIFY n INT NOT NULL AUTO_INCREMENT UNIQUE")[0].unless is None
    assert planned(tmp_path, "ALTER TABLE t MODIFY z INT NOT NULL AUTO_INCREMENT UNIQUE")[0].unless is not None
    depends = planned(tmp_path, "ALTER TABLE t MODIFY s VARCHAR(20) CHARACTER SET latin1")[0]
    assert depends.kind == "in place" and depends.unless is not None
    # The statistics are of the table before the first statement.
    assert planned(tmp_path, "ALTER TABLE t ADD c INT; ALTER TABLE t MODIFY s VARCHAR(3)")[0].unless is not None


def test_a_lake_that_is_empty_or_behind(tmp_path: Path) -> None:
    written(tmp_path / "empty", {name: [] for name in ROWS})
    assert planned(tmp_path / "empty", "ALTER TABLE t ADD u CHAR(36) DEFAULT (UUID())")[0].kind == "in place"
    written(tmp_path / "behind", ROWS)
    later = TABLE.replace("z INT", "z INT, later INT")
    verdict, planner = planned(tmp_path / "behind", "ALTER TABLE t DROP COLUMN later", later)
    assert verdict.kind == "in place"
    assert planner.lake["shop.t"].rows == 3


def test_costs(tmp_path: Path) -> None:
    written(tmp_path, ROWS)
    verdict, planner = planned(tmp_path, "ALTER TABLE t MODIFY n VARCHAR(20)")
    cost = cost_of(planner.lake["shop.t"], verdict)
    assert verdict.kind == "rewrite" and cost is not None and (cost.rows, cost.seconds) == (3, None)
    faster = replace(planner.lake["shop.t"], rows=6000, rows_per_s=100.0)
    assert "6,000 rows" in str(cost_of(faster, verdict)) and "about 1 min" in str(cost_of(faster, verdict))
    in_place, planner = planned(tmp_path, "ALTER TABLE t ADD c INT")
    assert cost_of(planner.lake["shop.t"], in_place) is None
    assert cost_of(None, verdict) is None
