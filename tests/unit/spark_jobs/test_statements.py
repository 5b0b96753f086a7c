"""The statements that the Spark jobs make, and what they read without Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError
from pyspark.sql import types as t

import cdc.errors
from cdc.batches.manifest import Manifest, Position, Positions
from cdc.config import ApplyConfig, SparkConfig
from cdc.errors import CdcError, ConfigError, MergeFailedError, TargetError, UnsupportedError, UnsupportedTypeError
from cdc.schemas import ColumnSchema, TableSchema
from cdc.targets import application_id
from spark_jobs.apply.column_types import from_arrow_schema, literal, quote, spark_type
from spark_jobs.apply.reduce import require_keys
from spark_jobs.apply.source_columns import Policies, own_columns_of_schema
from spark_jobs.apply.statements import (
    append_statement,
    empty_statement,
    for_settings,
    key_literal,
    upsert_statement,
    user_metadata,
)
from spark_jobs.delta.log import DeltaState, clear_unborn, read_state
from spark_jobs.delta.tables import Target, _holds
from spark_jobs.runtime.failures import explain, is_concurrent
from spark_jobs.runtime.session import in_process, settings, worker_path
from spark_jobs.source.data_source import _marked_errors, conform, find_error
from tests.support.pause import pause


def place(mode: str = "upsert") -> Target:
    apply = ApplyConfig.model_validate({"target": "/lake", "mode": mode})
    return Target("shop.orders", "/lake/shop/or`ders", apply, "shop", Policies("shop.orders"))


def column(data_type: str, column_type: str | None = None, name: str = "c") -> ColumnSchema:
    return ColumnSchema(
        name=name,
        data_type=data_type,
        column_type=column_type or data_type,
        nullable=True,
        default=None,
        extra="",
        charset=None,
        collation=None,
    )


@pytest.mark.parametrize(
    ("data_type", "column_type", "expected"),
    [
        ("tinyint", "tinyint(4)", "tinyint"),
        ("tinyint", "tinyint(3) unsigned", "smallint"),
        ("smallint", "smallint(5) unsigned", "int"),
        ("mediumint", "mediumint unsigned", "int"),
        ("int", "int(10) unsigned", "bigint"),
        ("int", "int(10) unsigned zerofill", "bigint"),
        ("bigint", "bigint(20)", "bigint"),
        ("bigint", "bigint unsigned", "decimal(20,0)"),
        ("decimal", "decimal(12,2)", "decimal(12,2)"),
        ("decimal", "decimal(65,30)", "string"),
        ("bit", "bit(9)", "bigint"),
        ("bit", "bit(64)", "decimal(20,0)"),
        ("year", "year(4)", "smallint"),
        ("datetime", "datetime(6)", "timestamp_ntz"),
        ("timestamp", "timestamp(3)", "timestamp"),
        ("time", "time(6)", "string"),
        ("enum", "enum('unsigned')", "string"),
        ("varbinary", "varbinary(9)", "binary"),
        ("json", "json", "string"),
        ("geometry", "geometry", "binary"),
        ("vector", "vector(3)", "array<float>"),
        ("inet6", "inet6", "string"),
    ],
)
def test_types_of_information_schema(data_type: str, column_type: str, expected: str) -> None:
    assert spark_type(column(data_type, column_type), "shop.t").simpleString() == expected


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(UnsupportedTypeError, match=r"table|shop\.t: column c has the type quaternion"):
        spark_type(column("quaternion"), "shop.t")


def test_the_decoders_types_are_those_of_information_schema() -> None:
    arrow = pa.schema(
        [
            pa.field("a", pa.int8()),
            pa.field("b", pa.int64()),
            pa.field("c", pa.decimal128(20, 0)),
            pa.field("d", pa.timestamp("us")),
            pa.field("e", pa.timestamp("us", tz="UTC")),
            pa.field("f", pa.date32()),
            pa.field("g", pa.binary()),
        ]
    )
    pairs = [
        ("tinyint", "tinyint"),
        ("int", "int unsigned"),
        ("bigint", "bigint unsigned"),
        ("datetime", "datetime(6)"),
        ("timestamp", "timestamp"),
        ("date", "date"),
        ("blob", "blob"),
    ]
    assert [f.dataType for f in from_arrow_schema(arrow)] == [spark_type(column(*pair), "t") for pair in pairs]


def test_a_column_with_one_of_our_names_is_refused() -> None:
    schema = TableSchema(columns=(column("int", name="_SEQ"),), primary_key=())
    with pytest.raises(UnsupportedError, match="_SEQ has a name that Towpath uses itself"):
        own_columns_of_schema(schema, Policies("shop.t"))


def test_upsert_statement_quotes_names_and_prunes() -> None:
    statement = upsert_statement(place(), "v", ["k`x"], ["k`x", "a b"], ["t.`k``x` >= 1L"], null_keys=False)
    assert statement == (
        "MERGE INTO delta.`/lake/shop/or``ders` t USING v s ON t.`k``x` = s.`k``x` AND t.`k``x` >= 1L "
        "WHEN MATCHED AND s._op = 0 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET t.`k``x` = s.`k``x`, t.`a b` = s.`a b` "
        "WHEN NOT MATCHED AND s._op <> 0 THEN INSERT (`k``x`, `a b`) VALUES (s.`k``x`, s.`a b`)"
    )
    assert " <=> " in upsert_statement(place(), "v", ["k"], ["k"], [], null_keys=True)


def test_append_statement_only_inserts_beyond_the_cut() -> None:
    schema = t.StructType([t.StructField("a", t.IntegerType()), t.StructField("_seq", t.LongType())])
    state = DeltaState("/lake/x", 3, {}, schema.json(), applied_seq=77)
    statement = append_statement(place("append"), "v", state)
    assert "ON t._seq = s._seq AND t._row = s._row AND t._seq > 77L WHEN NOT MATCHED THEN INSERT" in statement
    assert "WHEN MATCHED" not in statement
    assert "WHERE false" in empty_statement(place())


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


def test_quoting() -> None:
    assert quote("a`b.c") == "`a``b.c`"
    assert literal("o'clock\\") == "'o\\'clock\\\\'"


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
    assert json.loads(user_metadata(manifest, place(), 3)) == {
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
    }


def test_keys_are_configured_or_primary() -> None:
    assert require_keys("t", None, ("b", "a"), ("a", "b")) == ("b", "a")
    assert require_keys("t", ("A",), ("b",), ("a", "b")) == ("a",)
    with pytest.raises(ConfigError, match="names z, which the table does not have"):
        require_keys("t", ("z",), (), ("a",))
    with pytest.raises(ConfigError, match="no primary key"):
        require_keys("t", None, (), ("a",))


def test_wider_types_hold_narrower_ones() -> None:
    assert _holds(t.LongType(), t.IntegerType())
    assert _holds(t.DecimalType(12, 2), t.DecimalType(10, 2))
    assert not _holds(t.IntegerType(), t.LongType())
    assert not _holds(t.DecimalType(12, 3), t.DecimalType(10, 2))
    assert not _holds(t.StringType(), t.IntegerType())


def test_the_version_of_a_position() -> None:
    state = DeltaState("/x", 9, {}, "{}", 50, [(8, {"last_seq": 50}), (6, {"last_seq": 40}), (5, {"last_seq": 30})])
    assert [state.version_of(seq) for seq in (30, 35, 50, 51)] == [5, 6, 8, None]


def test_what_lies_at_a_tables_place(tmp_path: Path) -> None:
    assert read_state(str(tmp_path / "nothing"), "shop", "shop.t") is None
    (tmp_path / "file").write_text("x")
    with pytest.raises(TargetError, match="is a file, not a folder"):
        read_state(str(tmp_path / "file" / "shop" / "t"), "shop", "shop.t")
    with pytest.raises(TargetError, match="holds files, but is not a Delta table"):
        read_state(str(tmp_path), "shop", "shop.t")


def test_what_a_kill_leaves_of_a_tables_making(tmp_path: Path) -> None:
    """Folders as they were found while Spark made a table; only what Spark wrote before the first commit is removed."""
    log = tmp_path / "t" / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    for name in (".00000000000000000000.json.4fc4.tmp", "..00000000000000000000.json.4fc4.tmp.crc"):
        (log / name).write_text("{")
    assert read_state(str(tmp_path / "t"), "shop", "shop.t") is None
    clear_unborn(str(tmp_path / "t"))
    assert not log.exists()
    clear_unborn(str(tmp_path / "t"))

    (tmp_path / "t" / "rows.csv").write_text("1")
    log.mkdir()
    with pytest.raises(TargetError, match="holds files, but is not a Delta table"):
        read_state(str(tmp_path / "t"), "shop", "shop.t")

    (log / "00000000000000000000.json").write_text("{")
    clear_unborn(str(tmp_path / "t"))
    assert (log / "00000000000000000000.json").exists()


def test_no_setting_holds_a_reference_that_spark_would_replace() -> None:
    manifest_of = {"destination": "${a}", "table": "shop.${env:HOME}"}
    assert "${" not in for_settings(json.dumps(manifest_of))
    assert json.loads(for_settings(json.dumps(manifest_of))) == manifest_of
    assert application_id("shop", "db.${env:HOME}") == "towpath:shop:db.$%7Benv:HOME}:0"
    with pytest.raises(ValidationError, match=r"would replace \$\{...\}.*remove it"):
        SparkConfig.model_validate({"conf": {"spark.sql.variable.substitute": True}})
    SparkConfig.model_validate({"conf": {"spark.sql.variable.substitute": False}})


def test_errors_cross_from_workers_to_the_driver() -> None:
    error = cdc.errors.DamagedError("fails its check", place="segment 1, position 7", remedy="Restore it.")
    with pytest.raises(RuntimeError) as raised, _marked_errors():
        raise error
    wrapped = f"org.apache.spark.SparkException: Job aborted\n  Traceback …\nRuntimeError: {raised.value}\n\tat java…"
    found = find_error(wrapped)
    assert type(found) is cdc.errors.DamagedError
    assert str(found) == str(error)
    assert str(explain(RuntimeError(wrapped), "shop.t")) == str(error)
    assert find_error("nothing of ours") is None
    assert find_error("towpath-error:{broken}:end") is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION] Cannot create table", TargetError),
        ("java.lang.OutOfMemoryError: Java heap space\n\tat org.x", MergeFailedError),
        ("Answer from Java side is empty", MergeFailedError),
    ],
)
def test_foreign_errors_become_a_sentence(text: str, kind: type[CdcError]) -> None:
    error = explain(RuntimeError(text), "shop.t")
    assert type(error) is kind
    assert "shop.t" in str(error)
    assert "\n" not in str(error)
    assert is_concurrent(RuntimeError("io.delta.exceptions.ConcurrentTransactionException: x"))
    assert not is_concurrent(RuntimeError(text))


def test_batches_take_sparks_form() -> None:
    schema = pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.timestamp("us", tz="UTC"))])
    given = pa.RecordBatch.from_arrays(
        [pa.array([1], pa.int32()), pa.array([5], pa.timestamp("us", tz="UTC"))],
        schema=pa.schema([pa.field("a", pa.int32(), nullable=False), schema.field("b")]),
    )
    assert conform(given, schema, "shop.t").schema.equals(schema)
    with pytest.raises(cdc.errors.PermanentError, match="column b is not in the decoded rows"):
        conform(given.select(["a"]), schema, "shop.t")


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = {"spark.jars": "/x.jar", "spark.driver.memory": "9g", "spark.driver.extraJavaOptions": "-Xss4m"}
    values = settings(SparkConfig(master="local[3]", conf=conf))
    assert values["spark.jars"] == "/x.jar"
    assert values["spark.driver.memory"] == "9g"
    assert values["spark.sql.shuffle.partitions"] == "3"
    assert values["spark.sql.session.timeZone"] == "UTC"
    assert values["spark.driver.extraJavaOptions"].startswith("-Duser.timezone=UTC ")
    assert values["spark.driver.extraJavaOptions"].endswith(" -Xss4m")
    cluster = settings(SparkConfig(master="spark://h:7077", conf=conf))
    assert "spark.sql.shuffle.partitions" not in cluster
    assert "spark.driver.host" not in cluster


@pytest.mark.parametrize(
    ("master", "remote", "expected"),
    [
        ("local", None, True),
        ("local[*]", None, True),
        ("local-cluster[1,1,1024]", None, False),
        ("yarn", None, False),
        ("local[*]", "sc://h", False),
    ],
)
def test_where_a_merge_runs(master: str, remote: str | None, expected: bool) -> None:
    assert in_process(SparkConfig(master=master, remote=remote)) is expected


def test_workers_find_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/opt/others")
    root, *others = worker_path().split(os.pathsep)
    assert (Path(root) / "spark_jobs" / "apply_batch.py").exists()
    assert others == ["/opt/others"]


def test_a_pause_ends_when_it_is_let_on(tmp_path: Path) -> None:
    (tmp_path / "p.go").touch()
    pause(tmp_path / "p", "shop.t")
    assert (tmp_path / "p.here").read_text().split() == ["shop.t"]
