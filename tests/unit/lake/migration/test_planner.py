"""The verdicts of a plan: each by the code of apply, one statement after the other, without Spark and without a lake."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.binlog.sql.changes import CreateTable
from cdc.binlog.sql.schemas import Schemas, TableSchema
from cdc.binlog.sql.server import LATEST
from cdc.binlog.sql.statements import classify
from cdc.config import parse
from cdc.lake.migration.effects import column_changes, new_features
from cdc.lake.migration.planner import Planner, Session, StatementVerdict, TableVerdict
from cdc.lake.migration.script import DEFAULT_SQL_MODE, bits_of, statements_in
from tests.support.configurations import FILE, document

ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, n SMALLINT, note VARCHAR(50), d DOUBLE) CHARSET utf8mb4"
LOG = "CREATE TABLE log (a INT) CHARSET utf8mb4"


def stored(*creates: str) -> Schemas:
    tables: dict[str, TableSchema] = {}
    for sql in creates:
        (change,) = classify(sql, "shop").changes
        assert isinstance(change, CreateTable) and change.schema is not None
        tables[".".join(change.table)] = change.schema
    return Schemas(tables=tables)


def planned(text: str, *creates: str, **settings: Any) -> list[StatementVerdict]:
    config = parse(document(**settings), FILE)
    session = Session(LATEST, bits_of(DEFAULT_SQL_MODE), "shop")
    return Planner(config, stored(*(creates or (ORDERS, LOG))), session).run(statements_in(text))


def only(text: str, *creates: str, **settings: Any) -> TableVerdict:
    verdict = planned(text, *creates, **settings)[-1]
    assert not verdict.error, verdict.error
    (table,) = verdict.tables
    return table


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("ALTER TABLE orders ADD c INT", "in place"),
        ("ALTER TABLE orders ADD c INT NOT NULL DEFAULT 5", "rewrite"),
        ("ALTER TABLE orders MODIFY n INT", "in place"),
        ("ALTER TABLE orders RENAME COLUMN n TO m", "in place"),
        ("ALTER TABLE orders DROP COLUMN n", "in place"),
        ("ALTER TABLE orders MODIFY n VARCHAR(10)", "rewrite"),
        ("ALTER TABLE orders ADD INDEX (n)", "none"),
        ("ALTER TABLE orders ADD u CHAR(36) DEFAULT (UUID())", "snapshot"),
        ("ALTER TABLE orders DROP PRIMARY KEY", "refused"),
        ("ALTER TABLE orders ADD SYSTEM VERSIONING", "refused"),
        ("TRUNCATE TABLE orders", "in place"),
        ("DROP TABLE orders", "in place"),
        ("DROP TABLE IF EXISTS nothing", "none"),
        ("INSERT INTO orders (id) VALUES (1)", "rows"),
        ("CREATE TABLE t (a INT PRIMARY KEY)", "in place"),
        ("CREATE TABLE t (a INT)", "refused"),
        ("CREATE TABLE t AS SELECT * FROM orders", "in place"),
        ("ALTER TABLE nothing ADD a INT", "wrong"),
        ("ALTER TABLE IF EXISTS nothing ADD a INT", "none"),
    ],
)
def test_kinds_of_verdicts(sql: str, kind: str) -> None:
    assert only(sql).kind == kind


def test_a_snapshot_of_columns_is_named_with_them() -> None:
    verdict = only("ALTER TABLE orders ADD u CHAR(36) DEFAULT (UUID()), ADD c INT")
    assert verdict.columns == ("u",)
    assert "its default is the expression" in verdict.reason
    assert "cdc snapshot shop shop.orders" in verdict.remedy


def test_the_policies_of_the_table_decide() -> None:
    assert only("ALTER TABLE orders DROP COLUMN n", apply__schema_changes="fail").kind == "refused"
    assert only("TRUNCATE TABLE orders", apply__on_truncate="fail").kind == "refused"
    assert only("DROP TABLE orders", apply__on_drop="drop").steps[-1] == "empty"
    assert only("ALTER TABLE orders ADD c INT NOT NULL DEFAULT 5", apply__mode="append").kind == "in place"
    unknown = only("ALTER TABLE orders ADD u INT AUTO_INCREMENT UNIQUE", apply__on_unknown_effect="fail")
    assert unknown.kind == "refused" and "on_unknown_effect: fail" in unknown.reason


def test_statements_act_one_after_the_other() -> None:
    text = """
        ALTER TABLE orders ADD c INT;
        ALTER TABLE orders RENAME COLUMN c TO k;
        ALTER TABLE orders MODIFY k BIGINT;
        ALTER TABLE orders DROP COLUMN c;
        RENAME TABLE orders TO sales;
        ALTER TABLE sales DROP COLUMN k;
        ALTER TABLE orders ADD x INT;
    """
    verdicts = planned(text)
    assert [verdict.kind for verdict in verdicts] == [
        "in place", "in place", "in place", "refused", "rewrite", "in place", "wrong",
    ]  # fmt: skip
    assert column_changes(verdicts[2].tables[0].before, verdicts[2].tables[0].after).retyped == (
        ("k", "int", "bigint"),
    )
    renamed = {table.table: table for table in verdicts[4].tables}
    assert renamed["shop.sales"].steps == ("rewrite",)
    assert "the source's table has another name now" in renamed["shop.orders"].reason


def test_after_a_snapshot_the_plan_goes_on_with_the_new_definition() -> None:
    verdicts = planned("ALTER TABLE orders ADD u CHAR(36) DEFAULT (UUID()); ALTER TABLE orders CHANGE u v CHAR(36)")
    assert [verdict.kind for verdict in verdicts] == ["snapshot", "in place"]


def test_a_table_without_rows_follows_everything() -> None:
    verdicts = planned(
        "TRUNCATE orders; ALTER TABLE orders ADD s INT AUTO_INCREMENT UNIQUE; INSERT INTO orders (id) VALUES (1); ALTER TABLE orders ADD u CHAR(36) DEFAULT (UUID())"
    )
    assert [verdict.kind for verdict in verdicts] == ["in place", "in place", "rows", "snapshot"]


def test_the_primary_key_may_come_later_in_the_migration() -> None:
    verdicts = planned("CREATE TABLE t (a INT NOT NULL); ALTER TABLE t ADD PRIMARY KEY (a)")
    assert [verdict.kind for verdict in verdicts] == ["in place", "in place"]


def test_verdicts_that_depend_on_rows() -> None:
    verdict = only("SET sql_mode = ''; ALTER TABLE orders MODIFY note VARCHAR(100) CHARACTER SET ascii")
    assert verdict.kind == "in place"
    assert verdict.unless is not None and verdict.unless.kind == "snapshot"
    assert verdict.gravest == "snapshot"
    assert verdict.conditions == ("length(`note`) <> octet_length(`note`)",)


def test_the_session_of_the_migration_decides() -> None:
    alter = "ALTER TABLE orders MODIFY note VARCHAR(50) CHARACTER SET latin1"
    assert only(alter).unless is None
    assert only(f"SET sql_mode = ''; {alter}").unless is not None
    assert planned("USE other; ALTER TABLE orders ADD c INT")[-1].tables[0].mode is None


def test_tables_that_wait_for_their_first_snapshot() -> None:
    planner = Planner(parse(document(), FILE), stored(ORDERS, LOG), Session(LATEST, 0, "shop"), waiting={"shop.orders"})
    text = (
        "ALTER TABLE orders ADD u CHAR(36) DEFAULT (UUID()); DROP TABLE orders; CREATE TABLE orders (a INT PRIMARY KEY)"
    )
    verdicts = planner.run(statements_in(text))
    assert [verdict.kind for verdict in verdicts] == ["none", "none", "in place"]
    assert "waits for its first snapshot" in verdicts[0].tables[0].reason


def test_tables_that_are_not_captured() -> None:
    verdict = only("ALTER TABLE other.orders ADD u CHAR(36) DEFAULT (UUID())")
    assert (verdict.kind, verdict.reason) == ("none", "the table is not captured")


def test_statements_that_are_none() -> None:
    verdicts = planned(
        "ALTR TABLE orders ADD c INT; SET NAMES utf8mb4; COMMIT; CREATE VIEW v AS SELECT 1; GRANT ALL ON *.* TO a"
    )
    assert [verdict.kind for verdict in verdicts] == ["wrong", "none", "none", "none", "none"]
    config = parse(document(), FILE)
    without = Planner(config, stored(ORDERS), Session(LATEST, 0)).run(statements_in("ALTER TABLE orders ADD c INT"))
    assert "--database" in without[0].error


def test_what_capture_refuses_is_refused() -> None:
    verdict = only("CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MERGE UNION=(orders)")
    assert verdict.kind == "refused" and "MERGE table" in verdict.reason


def test_a_shadow_table_that_is_not_captured() -> None:
    text = """
        CREATE TABLE _orders_gho LIKE orders;
        ALTER TABLE _orders_gho ADD c INT, MODIFY n INT;
        RENAME TABLE orders TO _orders_del, _orders_gho TO orders;
    """
    verdicts = planned(text, tables__exclude=[r".*\._.*"])
    last = {table.table: table for table in verdicts[-1].tables}["shop.orders"]
    assert last.kind == "in place"
    assert column_changes(last.before, last.after).added == ("c",)


def test_dropped_partitions() -> None:
    parts = (
        "CREATE TABLE parts (id INT, y INT, PRIMARY KEY (id, y)) PARTITION BY RANGE (y) "
        "(PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN MAXVALUE)"
    )
    verdicts = planned(f"{parts}; INSERT INTO parts VALUES (1, 1); ALTER TABLE parts DROP PARTITION a")
    assert verdicts[-1].tables[0].steps == ("remove",)
    unknown = only("ALTER TABLE orders DROP PARTITION a")  # its partitions are not stored
    assert unknown.kind == "snapshot" and "partitions" in unknown.reason


def test_a_shared_table_keeps_its_columns() -> None:
    shared = {"apply__shared": True, "apply__schema_changes": "additive"}
    assert only("ALTER TABLE orders ADD c INT", **shared).kind == "in place"
    dropped = only("ALTER TABLE orders DROP COLUMN n", **shared)
    assert column_changes(dropped.before, dropped.after).dropped == ()
    assert only("ALTER TABLE orders MODIFY n INT", **shared).kind == "in place"
    assert only("ALTER TABLE orders MODIFY n VARCHAR(9)", **shared).kind in ("snapshot", "refused")


def test_features_that_readers_need() -> None:
    def features(sql: str, **settings: Any) -> tuple[str, ...]:
        verdict = only(sql, **settings)
        return new_features(verdict.before, verdict.after)

    assert features("ALTER TABLE orders ADD c INT") == ()
    assert features("ALTER TABLE orders DROP COLUMN n") == ("column mapping",)
    assert features("ALTER TABLE orders MODIFY n INT") == ("type widening",)
    assert features("ALTER TABLE orders ADD j JSON", apply__types={"json": "variant"}) == ("VARIANT",)
    twice = planned("ALTER TABLE orders DROP COLUMN n; ALTER TABLE orders DROP COLUMN d")[-1].tables[0]
    assert new_features(twice.before, twice.after) == ()
