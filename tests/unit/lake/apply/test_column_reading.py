"""The columns that a snapshot must read after a statement, and their new definitions, decided without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from cdc.base.errors import NeedsSnapshotError
from cdc.binlog.sql.changes import CreateTable
from cdc.binlog.sql.schemas import TableSchema
from cdc.binlog.sql.server import ServerVersion
from cdc.binlog.sql.statements import classify
from cdc.config import ApplyConfig
from cdc.lake.apply.schema.column_reading import ColumnReading, columns_to_read
from cdc.lake.apply.schema.columns import columns_of
from cdc.lake.apply.schema.lineage import follow
from cdc.lake.apply.schema.plan import TableEvolution, plan
from cdc.lake.apply.schema.refusals import unknown
from cdc.lake.apply.schema.statements import DdlStatement
from cdc.lake.delta.log import DeltaState
from cdc.lake.delta.tables import Target
from cdc.lake.jobs.read_columns import require_untouched
from cdc.lake.rows.columns import TablePolicies, columns_of_schema

STRICT = 1 << 21
MARIADB = ServerVersion.parse("11.4.2-MariaDB")
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET utf8mb4, d DOUBLE, n INT)"


def target(mode: str = "upsert", **settings: object) -> Target:
    apply = ApplyConfig.model_validate({"target": "lake", "mode": mode, **settings})
    return Target("shop.t", "lake/shop/t", apply, "shop", TablePolicies.of("shop.t", apply))


def statement(sql: str) -> DdlStatement:
    return DdlStatement(7, sql, STRICT, classify(sql, "shop", STRICT, MARIADB), datetime(2026, 1, 1, tzinfo=UTC), None)


def schema_of(sql: str) -> TableSchema:
    [create] = statement(sql).statement.changes
    assert isinstance(create, CreateTable) and create.schema is not None
    return create.schema


def state_of(on: Target, schema: TableSchema) -> DeltaState:
    fields = [
        {"name": f.name, "type": f.dataType.jsonValue(), "nullable": True, "metadata": {}}
        for f in columns_of_schema(schema, on.policies).fields
    ]
    return DeltaState("lake", 3, {"towpath.mode": on.apply.mode}, json.dumps({"type": "struct", "fields": fields}), 10)


def planned(alter: str, on: Target, create: str = TABLE) -> tuple[DeltaState, TableEvolution, TableSchema, TableSchema]:
    before = schema_of(create)
    state = state_of(on, before)
    after, followed = follow(before, statement(f"ALTER TABLE t {alter}").statement.changes, STRICT, None)
    return state, plan(on, columns_of(state), followed, before, after), before, after


def to_read(alter: str, on: Target, create: str = TABLE) -> tuple[str, ...]:
    return columns_to_read(cast(Any, None), on, *planned(alter, on, create))  # no session is asked for these


@pytest.mark.parametrize(
    ("alter", "names"),
    [
        ("ADD u CHAR(36) DEFAULT (UUID()), ADD c INT DEFAULT 3", ("u",)),
        ("ADD s INT AUTO_INCREMENT UNIQUE, ADD g INT AS (n + 1) STORED", ("s", "g")),
        ("MODIFY d VARCHAR(30)", ("d",)),
        ("CHANGE d dd VARCHAR(30), DROP v", ("dd",)),
        ("MODIFY id BIGINT, ADD u CHAR(36) DEFAULT (UUID())", ("u",)),
        # the key: another one, another name, other values
        ("DROP PRIMARY KEY, ADD s INT AUTO_INCREMENT PRIMARY KEY", ()),
        ("CHANGE id i INT, ADD u CHAR(36) DEFAULT (UUID())", ()),
        ("MODIFY id VARCHAR(20), ADD u CHAR(36) DEFAULT (UUID())", ()),
        ("ADD c INT DEFAULT 3", ()),
    ],
)
def test_the_columns_of_a_statement(alter: str, names: tuple[str, ...]) -> None:
    assert to_read(alter, target()) == names


@pytest.mark.parametrize(
    "on",
    [
        target("append"),
        target(schema_changes="additive"),
        target(keys=["n"]),
        target(columns={"id": "null"}),
    ],
)
def test_tables_that_are_read_as_a_whole(on: Target) -> None:
    assert to_read("ADD u CHAR(36) DEFAULT (UUID())", on) == ()
    assert to_read("ADD u CHAR(36) DEFAULT (UUID())", target(), "CREATE TABLE t (id INT, n INT)") == ()


@pytest.mark.parametrize("mode", ["soft_delete", "scd2"])
def test_rows_that_only_the_lake_has_keep_their_values(mode: str) -> None:
    assert to_read("ADD u CHAR(36) DEFAULT (UUID())", target(mode)) == ("u",)
    with pytest.raises(AttributeError):  # Spark is asked whether there are such rows, which no text holds the values of
        to_read("MODIFY d VARCHAR(30)", target(mode))


def reading(on: Target, create: str, names: tuple[str, ...], keys: tuple[str, ...] = ("id",)) -> ColumnReading:
    columns = columns_of_schema(schema_of(create), on.policies).only([*keys, *names])
    return ColumnReading(7, names, keys, columns, ())


def test_columns_are_altered_in_place_or_joined() -> None:
    on = target()
    _, evolution, _, after = planned("ADD u CHAR(36) DEFAULT (UUID()), ADD c INT DEFAULT 3", on)
    read = ColumnReading(7, ("u",), ("id",), columns_of_schema(after, on.policies).only(["id", "u"]), ())
    assert read.planned(evolution.columns) == evolution.columns
    state = state_of(on, after)
    assert read.fill_statement(on, "view", state, evolution.updates) == (
        f"MERGE INTO {on.sql} t USING view s ON `id` <=> _towpath_key_0 "
        "WHEN MATCHED THEN UPDATE SET t.`u` = CAST(_towpath_value_0 AS string), t.`c` = CAST('3' AS int) "
        "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET t.`c` = CAST('3' AS int)"
    )
    assert read.fill_statement(on, "view", state, {}).endswith(
        "WHEN MATCHED AND (NOT (t.`u` <=> CAST(_towpath_value_0 AS string))) THEN "
        "UPDATE SET t.`u` = CAST(_towpath_value_0 AS string)"
    )
    assert "AND NOT _deleted WHEN MATCHED" in read.fill_statement(target("soft_delete"), "view", state, {})
    _, evolution, _, after = planned("MODIFY d VARCHAR(30)", on)
    read = ColumnReading(7, ("d",), ("id",), columns_of_schema(after, on.policies).only(["id", "d"]), ())
    assert read.planned(evolution.columns) is None
    [value] = [column.value("`d`") for column in read.joined(evolution.columns) if column.value is not None]
    assert value == "CASE WHEN _towpath_is_read THEN CAST(_towpath_value_0 AS string) ELSE CAST(NULL AS string) END"


def test_later_statements_that_leave_the_columns_alone() -> None:
    now = schema_of("CREATE TABLE t (id INT PRIMARY KEY, u CHAR(36), n INT, g INT AS (n + 1) STORED)")
    harmless = ["ADD c INT", "DROP c", "RENAME COLUMN v TO w", "MODIFY n BIGINT", "ALTER u SET DEFAULT 'x'"]
    statements = [statement(f"ALTER TABLE t {clause}") for clause in harmless]
    assert require_untouched("shop.t", now, statements, {"id", "u"})
    assert not require_untouched("shop.t", now, [statement("CREATE INDEX i ON t (n)")], {"id", "u"})
    assert not require_untouched("shop.t", now, [statement("ALTER TABLE other DROP u")], {"id", "u"})


@pytest.mark.parametrize(
    "sql",
    [
        "ALTER TABLE t DROP u",
        "ALTER TABLE t MODIFY u CHAR(40)",
        "ALTER TABLE t RENAME COLUMN u TO x, RENAME COLUMN x TO u",
        "ALTER TABLE t MODIFY id BIGINT",
        "ALTER TABLE t DROP PRIMARY KEY",
        "ALTER TABLE t CONVERT TO CHARACTER SET latin1",
        "ALTER TABLE t DROP PARTITION p",
        "ALTER TABLE t MODIFY n BIGINT",  # g is computed from it
        "TRUNCATE TABLE t",
        "DROP TABLE t",
        "RENAME TABLE t TO x, y TO t",
    ],
)
def test_later_statements_after_which_the_whole_table_is_read(sql: str) -> None:
    now = schema_of("CREATE TABLE t (id INT PRIMARY KEY, u CHAR(36), n INT, g INT AS (n + 1) STORED)")
    with pytest.raises(NeedsSnapshotError) as raised:
        require_untouched("shop.t", now, [statement(sql)], {"id", "u", "g"})
    assert raised.value.columns == ()


def test_the_error_says_what_is_read() -> None:
    error = unknown(target(), statement("ALTER TABLE t ADD u INT"), "why", ("u", "n"))
    assert isinstance(error, NeedsSnapshotError) and (error.seq, error.columns) == (7, ("u", "n"))
    assert "which reads u, n and the key again" in str(error)
    assert "again" not in str(unknown(target(), statement("ALTER TABLE t ADD u INT"), "why"))
