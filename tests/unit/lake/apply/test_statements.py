"""The SQL of a table's statement, and the user metadata of its commit."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import types as t

from cdc.base.run_identity import RunIdentity, working_for
from cdc.batches.manifest import Manifest, Position, Positions
from cdc.config import ApplyConfig
from cdc.lake.apply.statements import (
    append_statement,
    empty_statement,
    key_literal,
    scd2_statement,
    soft_delete_statement,
    upsert_statement,
    user_metadata,
)
from cdc.lake.delta.log import DeltaState
from cdc.lake.delta.tables import Target
from cdc.lake.rows.columns import TablePolicies


def make_target(mode: str = "upsert") -> Target:
    apply = ApplyConfig.model_validate({"target": "/lake", "mode": mode})
    return Target("shop.orders", "/lake/shop/or`ders", apply, "shop", TablePolicies("shop.orders"))


def test_upsert_statement_quotes_names_and_prunes() -> None:
    statement = upsert_statement(make_target(), "v", ["k`x"], ["k`x", "a b"], ["t.`k``x` >= 1L"], null_keys=False)
    assert statement == (
        "MERGE INTO delta.`/lake/shop/or``ders` t USING v s ON t.`k``x` = s.`k``x` AND t.`k``x` >= 1L "
        "WHEN MATCHED AND s._op = 0 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET t.`k``x` = s.`k``x`, t.`a b` = s.`a b` "
        "WHEN NOT MATCHED AND s._op <> 0 THEN INSERT (`k``x`, `a b`) VALUES (s.`k``x`, s.`a b`)"
    )
    assert " <=> " in upsert_statement(make_target(), "v", ["k"], ["k"], [], null_keys=True)


def test_append_statement_only_inserts_after_the_applied_position() -> None:
    schema = t.StructType([t.StructField("a", t.IntegerType()), t.StructField("_seq", t.LongType())])
    state = DeltaState("/lake/x", 3, {}, schema.json(), applied_seq=77)
    statement = append_statement(make_target("append"), "v", state)
    assert "ON t._seq = s._seq AND t._row = s._row AND t._seq > 77L WHEN NOT MATCHED THEN INSERT" in statement
    assert "WHEN MATCHED" not in statement
    assert "WHERE false" in empty_statement(make_target())


def test_soft_delete_statement_marks_and_revives() -> None:
    statement = soft_delete_statement(make_target("soft_delete"), "v", ["k`x"], ["k`x"], ["t.`k``x` >= 1L"], False)
    assert statement == (
        "MERGE INTO delta.`/lake/shop/or``ders` t USING v s ON t.`k``x` = s.`k``x` AND t.`k``x` >= 1L "
        "WHEN MATCHED THEN UPDATE SET t.`k``x` = s.`k``x`, t.`_commit_time` = s.`_commit_time`, t.`_seq` = s.`_seq`, "
        "t._deleted = (s._op = 0) "
        "WHEN NOT MATCHED AND s._towpath_seen THEN INSERT (`k``x`, `_commit_time`, `_seq`, _deleted) "
        "VALUES (s.`k``x`, s.`_commit_time`, s.`_seq`, (s._op = 0))"
    )


def test_scd2_statement_finds_a_version_by_key_and_seq() -> None:
    statement = scd2_statement(make_target("scd2"), "v", ["k"], ["k", "a b"], ["t.`k` >= 1L"], True)
    assert "ON t.`k` <=> s.`k` AND t._seq = s._seq AND t.`k` >= 1L WHEN MATCHED THEN UPDATE SET" in statement
    assert (
        "SET t._valid_to = s._valid_to, t._current = s._current WHEN NOT MATCHED AND NOT s._towpath_closes" in statement
    )
    assert "(`k`, `a b`, `_valid_from`, `_valid_to`, `_current`, `_seq`)" in statement


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("-5", t.ByteType(), "-5Y"),
        ("7", t.LongType(), "7L"),
        ("it's \\${a}", t.StringType(), "CAST(X'69742773205c247b617d' AS STRING)"),
        ("x" * 300, t.StringType(), None),
        ("2026-01-02", t.DateType(), "DATE'2026-01-02'"),
        ("-1600000", t.TimestampType(), "timestamp_micros(-1600000L)"),
        ("2026-01-02 03:04:05", t.TimestampNTZType(), "TIMESTAMP_NTZ'2026-01-02 03:04:05'"),
        ("1.50", t.DecimalType(5, 2), "CAST('1.50' AS decimal(5,2))"),
        ("true", t.BooleanType(), None),
    ],
)
def test_literals_have_the_columns_type(text: str, kind: t.DataType, expected: str | None) -> None:
    assert key_literal(text, kind) == expected


def test_the_ledger_entry() -> None:
    end = Position(file="binlog.000001", pos=9, gtid="u:1")
    manifest = Manifest(
        destination="shop",
        subscriber="apply",
        batch=4,
        epoch=1,
        server_uuid="u",
        after_seq=5,
        first_seq=6,
        last_seq=9,
        transactions=1,
        row_events=1,
        bytes=1,
        ddl=False,
        tables=("shop.orders",),
        schema_path=None,
        ranges=(),
        positions=Positions(first=end, last=end),
    )
    with working_for(RunIdentity(dag_id="apply_shop", run_id="r", task_id="merge", try_number=2)):
        entry = json.loads(user_metadata(manifest, make_target(), 3))
    assert entry == {
        "destination": "shop",
        "batch": 4,
        "epoch": 1,
        "server_uuid": "u",
        "first_seq": 3,
        "after_seq": 5,
        "last_seq": 9,
        "store_begins": None,
        "generation": 0,
        "gtid": "u:1",
        "table": "shop.orders",
        "mode": "upsert",
        "run": {"dag_id": "apply_shop", "run_id": "r", "task_id": "merge", "try": 2},
    }
