"""Parquet files that become files of a Delta table, compared with the table that Spark writes of the same rows."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import types as t

from cdc.base.errors import RetryableError
from cdc.config import SparkConfig
from cdc.decode.parquet_files import RowGroupWriter
from cdc.lake.delta import adoption
from cdc.lake.delta.adoption import Adoption, ParquetFile, Replacement, begin
from cdc.lake.delta.log import KEPT_TRANSACTIONS, TRANSACTION_RETENTION
from cdc.lake.delta.tables import sql_properties
from cdc.lake.rows.column_types import from_arrow
from cdc.lake.runtime import session
from cdc.lake.runtime.driver_jvm import DriverJvm
from tests.support.apply import LOCAL_CONF

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("medium", pa.int32()),
        ("big", pa.decimal128(20, 0)),
        ("d9", pa.decimal128(9, 2)),
        ("d18", pa.decimal128(18, 4)),
        ("d38", pa.decimal128(38, 10)),
        ("flag", pa.bool_()),
        ("word", pa.string()),
        ("blob", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("f", pa.float32()),
        ("g", pa.float64()),
        ("vector", pa.list_(pa.float32())),
        ("empty", pa.string()),
    ]
)
FIELDS = t.StructType([t.StructField(field.name, from_arrow(field.type), True) for field in SCHEMA])
PROPERTIES = {
    "towpath.generation": "1",
    TRANSACTION_RETENTION: KEPT_TRANSACTIONS,
    "delta.feature.timestampNtz": "supported",
}
UNORDERED = ("flag", "blob", "vector", "empty")
"""Columns without least and greatest values."""
Rows = list[dict[str, Any]]
FIRST = datetime.min  # noqa: DTZ901 - DATETIME has no time zone
LAST = datetime.max  # noqa: DTZ901


def made_rows(first: int, count: int, seed: int) -> Rows:
    """Rows with values of each type, of which some are null. The first ones are the extremes of each type."""
    dice = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if dice.random() < 0.1 else value

    def words() -> str:
        return "".join(dice.choice("aZé😀￿\U0010ffff") for _ in range(dice.choice((0, 3, 31, 32, 33, 60))))

    rows = [
        {
            "id": first + number,
            "tiny": maybe(dice.randrange(-128, 128)),
            "small": maybe(dice.randrange(-(2**15), 2**15)),
            "medium": maybe(dice.randrange(-(2**31), 2**31)),
            "big": maybe(Decimal(dice.randrange(2**64))),
            "d9": maybe(Decimal(dice.randrange(-(10**9) + 1, 10**9)).scaleb(-2)),
            "d18": maybe(Decimal(dice.randrange(-(10**18) + 1, 10**18)).scaleb(-4)),
            "d38": maybe(Decimal(dice.randrange(-(10**28), 10**28)).scaleb(-10)),
            "flag": maybe(dice.random() < 0.5),
            "word": maybe(words()),
            "blob": maybe(dice.randbytes(5)),
            "day": maybe(date(1, 1, 1) + timedelta(days=dice.randrange(3_652_058))),
            "at": maybe(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=dice.randrange(2**31 * 10**6))),
            "local": maybe(FIRST + timedelta(microseconds=dice.randrange(3 * 10**17))),
            "f": maybe(dice.choice((-0.0, 1.1, 3e38, -1e-30))),
            "g": maybe(dice.uniform(-1e300, 1e300)),
            "vector": maybe([1.5, -2.0]),
            "empty": None,
        }
        for number in range(count)
    ]
    rows[0] |= {"day": date(1, 1, 1), "local": FIRST, "word": "\U0010ffff" * 40, "d9": Decimal("-0.01")}
    rows[1] |= {
        "day": date(9999, 12, 31),
        "local": LAST,
        "at": datetime(2038, 1, 19, 3, 14, 7, 999_999, tzinfo=UTC),
        "word": "z" * 5000,  # longer than what a footer keeps
    }
    return rows


def write_chunk(path: Path, rows: Rows, schema: pa.Schema = SCHEMA) -> ParquetFile:
    """Writes a chunk as a snapshot does."""
    writer = RowGroupWriter(path, schema)
    if rows:
        writer.add(pa.RecordBatch.from_pylist(rows, schema=schema))
    writer.close()
    return ParquetFile.read(str(path))


class Lake:
    """Delta tables in a folder, and chunks."""

    def __init__(self, made: session.TableSession, folder: Path) -> None:
        self.spark, self.folder = made.spark, folder
        self.path = folder / "t"
        (folder / "chunks").mkdir()
        self.chunks: list[ParquetFile] = []

    def add_chunk(self, rows: Rows, schema: pa.Schema = SCHEMA) -> ParquetFile:
        chunk = write_chunk(self.folder / "chunks" / f"{len(self.chunks)}.parquet", rows, schema)
        self.chunks.append(chunk)
        return chunk

    def begin(self, properties: dict[str, str] | None = None, schema: t.StructType = FIELDS) -> Adoption | None:
        version = DeltaTable(str(self.path)).version() if self.path.exists() else -1
        chosen = PROPERTIES | (properties or {})
        return begin(DriverJvm.of(self.spark), Replacement(str(self.path), version, schema, chosen), self.chunks)

    def adopt(self, seq: int = 7, properties: dict[str, str] | None = None) -> None:
        begun = self.begin(properties)
        assert begun is not None
        self.path.mkdir(exist_ok=True)
        begun.add_files(self.chunks)
        begun.commit("towpath:t", seq, '{"who": "test"}')

    def replace(self, path: Path, properties: dict[str, str] | None = None) -> None:
        """Does the same by a statement."""
        rows = self.spark.read.schema(FIELDS).parquet(*[chunk.path for chunk in self.chunks]).coalesce(1)
        with session.view_of(rows) as view, session.transaction(self.spark, "towpath:t", 7, '{"who": "test"}'):
            self.spark.sql(
                f"CREATE OR REPLACE TABLE delta.`{path}` USING delta "
                f"TBLPROPERTIES ({sql_properties(PROPERTIES | (properties or {}))}) AS SELECT * FROM {view}"
            )

    def ids(self, where: str = "true", as_of: str = "") -> list[int]:
        rows = self.spark.sql(f"SELECT id FROM delta.`{self.path}`{as_of} WHERE {where}").collect()
        return sorted(row[0] for row in rows)

    def data_files(self) -> list[Path]:
        return sorted(self.path.glob("part-*.parquet"))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    warm = session.acquire(SparkConfig(master="local[2]", conf=LOCAL_CONF))
    with warm.tables.one() as made:
        yield Lake(made, tmp_path)


def newest(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the actions of a table's newest commit, by kind."""
    commit = max((path / "_delta_log").glob("*.json"))
    actions_by_kind: dict[str, list[dict[str, Any]]] = {}
    for line in commit.read_text(encoding="utf-8").splitlines():
        ((kind, content),) = json.loads(line).items()
        actions_by_kind.setdefault(kind, []).append(content)
    return actions_by_kind


@pytest.mark.parametrize(
    ("exists", "properties"),
    [
        (False, {}),
        (True, {"delta.enableDeletionVectors": "true"}),
        pytest.param(True, {}, marks=pytest.mark.long),
        pytest.param(False, {"delta.enableDeletionVectors": "true"}, marks=pytest.mark.long),
    ],
)
def test_the_commit_is_the_one_of_the_statement(lake: Lake, exists: bool, properties: dict[str, str]) -> None:
    lake.add_chunk(made_rows(0, 300, 1))
    lake.add_chunk(made_rows(300, 5, 2))
    other = lake.folder / "other"
    if exists:
        for path in (lake.path, other):
            lake.spark.sql(f"CREATE TABLE delta.`{path}` (a INT, p INT) USING delta PARTITIONED BY (p)")
            lake.spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 1), (2, 2)")
    lake.adopt(properties=properties)
    lake.replace(other, properties)
    mine, wanted = newest(lake.path), newest(other)
    assert {kind: len(actions) for kind, actions in mine.items()} == {
        kind: len(actions) for kind, actions in wanted.items()
    }
    for kind, ignored in (("metaData", {"id", "createdTime"}), ("protocol", set()), ("txn", {"lastUpdated"})):
        for action, wanted_action in zip(mine.get(kind, []), wanted.get(kind, []), strict=True):
            for key in action.keys() | wanted_action.keys() - ignored:
                if key not in ignored:
                    assert _sorted(action.get(key)) == _sorted(wanted_action.get(key)), (kind, key)
    (info,), (wanted_info,) = mine["commitInfo"], wanted["commitInfo"]
    for key in ("operation", "operationParameters", "isolationLevel", "isBlindAppend", "userMetadata"):
        assert _parsed(info.get(key)) == _parsed(wanted_info.get(key)), key
    assert info["operation"] == "CREATE OR REPLACE TABLE AS SELECT" and info["userMetadata"] == '{"who": "test"}'

    (added,), (written,) = mine["add"], wanted["add"]
    stats, wanted_stats = json.loads(added["stats"]), json.loads(written["stats"])
    assert stats["numRecords"] == wanted_stats["numRecords"] == 305
    assert stats.get("tightBounds") == wanted_stats.get("tightBounds")
    assert wanted_stats["nullCount"].pop("vector") > 0
    assert stats["nullCount"] == wanted_stats["nullCount"]
    # The greatest text is longer than what footers keep, so the column has no bounds.
    for bounds in ("minValues", "maxValues"):
        wanted_stats[bounds].pop("word", None)
        assert stats[bounds] == wanted_stats[bounds]
    rows = DeltaTable(str(lake.path)).to_pyarrow_dataset().to_table() if not properties else None
    if rows is not None:
        expected = pa.concat_tables([pq.read_table(chunk.path) for chunk in lake.chunks])
        assert rows.select(SCHEMA.names).sort_by("id").to_pylist() == expected.sort_by("id").to_pylist()
    assert (
        lake.spark.read.format("delta")
        .load(str(lake.path))
        .exceptAll(lake.spark.read.format("delta").load(str(other)))
        .isEmpty()
    )


def _sorted(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def _parsed(value: Any) -> Any:
    """Operation parameters with the texts in them as JSON, so that the order of properties does not count."""
    if not isinstance(value, dict):
        return value
    return {key: json.loads(text) if str(text).startswith("{") else text for key, text in value.items()}


def sql_literal(value: Any, kind: t.DataType) -> str:
    if isinstance(value, datetime):
        return (
            f"{'TIMESTAMP' if value.tzinfo else 'TIMESTAMP_NTZ'}'{value.isoformat(sep=' ', timespec='microseconds')}'"
        )
    if isinstance(value, date):
        return f"DATE'{value.isoformat()}'"
    return f"CAST('{value}' AS {kind.simpleString()})"


@pytest.mark.long
def test_texts_are_cut_as_spark_cuts_them(lake: Lake) -> None:
    schema = pa.schema([("id", pa.int64()), ("word", pa.string())])
    fields = t.StructType([t.StructField(field.name, from_arrow(field.type), True) for field in schema])
    for text in ("short", "x" * 32, "x" * 33, "é" * 50, "😀" * 40, "a" * 32 + "\U0010ffff"):
        lake.chunks.clear()
        lake.add_chunk([{"id": 1, "word": text}], schema)
        begun = lake.begin(schema=fields)
        assert begun is not None
        lake.path.mkdir(exist_ok=True)
        begun.add_files(lake.chunks)
        begun.commit("towpath:t", 7, "{}")
        assert lake.ids(f"word = '{text}'") == lake.ids(f"word >= '{text}'") == [1]
        assert lake.ids("word > 'zzzz'") == ([1] if text > "zzzz" else [])
        stats = json.loads(newest(lake.path)["add"][0]["stats"])
        assert stats["minValues"].get("word", text)[:32] == text[:32]
        assert stats["maxValues"].get("word", text) >= text


@pytest.mark.long
def test_predicates_of_each_type_read_only_the_files_that_may_have_rows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files whose values do not overlap; the one that a predicate does not need is taken away."""
    monkeypatch.setattr(adoption, "FILE_BYTES", 1)
    low, high = dict.fromkeys(SCHEMA.names), dict.fromkeys(SCHEMA.names)
    values: dict[str, tuple[Any, Any]] = {
        "id": (1, 2),
        "tiny": (-5, 5),
        "small": (-5, 5),
        "medium": (-5, 5),
        "big": (Decimal(1), Decimal(2**64 - 1)),
        "d9": (Decimal("-1.25"), Decimal("1.25")),
        "d18": (Decimal("-1.25"), Decimal("1.25")),
        "d38": (Decimal("-1.25"), Decimal("12345678901234567890.5")),
        "word": ("a" * 40, "b" * 40),
        "day": (date(1, 1, 1), date(9999, 12, 31)),
        "at": (datetime(1969, 1, 1, 0, 0, 0, 1, tzinfo=UTC), datetime(2030, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)),
        "local": (FIRST + timedelta(microseconds=1), LAST),
        "f": (-1.1, 1.1),
        "g": (-1e300, 1e300),
    }
    assert values.keys() == set(SCHEMA.names) - {*UNORDERED}
    for name, (smallest, largest) in values.items():
        low[name], high[name] = smallest, largest
    lake.add_chunk([low])
    lake.add_chunk([high])
    lake.adopt()
    first, second = sorted(lake.data_files(), key=lambda file: int(pq.read_table(str(file)).column("id")[0].as_py()))
    kinds = dict(zip(SCHEMA.names, FIELDS.fields, strict=True))
    for hidden, row, sign in ((second, low, "<="), (first, high, ">=")):
        aside = hidden.rename(hidden.with_name("aside"))
        for name in values:
            literal = sql_literal(row[name], kinds[name].dataType)
            for operator in (sign, "="):
                assert lake.ids(f"{name} {operator} {literal}") == [row["id"]], (name, operator)
        aside.rename(hidden)


@pytest.mark.long
@pytest.mark.parametrize("properties", [{}, {"delta.enableDeletionVectors": "true"}])
def test_the_table_goes_on_like_any_other(lake: Lake, properties: dict[str, str]) -> None:
    lake.add_chunk(made_rows(0, 100, 3))
    lake.adopt(properties=properties)
    lake.chunks.clear()
    lake.add_chunk(made_rows(1000, 50, 4))
    lake.add_chunk([], SCHEMA)
    lake.adopt(seq=8, properties=properties)
    assert lake.ids() == list(range(1000, 1050))
    assert lake.ids(as_of=" VERSION AS OF 0") == list(range(100))
    sql = lake.spark.sql
    sql(f"UPDATE delta.`{lake.path}` SET word = 'new' WHERE id < 1010")
    sql(f"DELETE FROM delta.`{lake.path}` WHERE id >= 1040")
    sql(
        f"MERGE INTO delta.`{lake.path}` t USING (SELECT 1000L AS id UNION ALL SELECT 5L) s ON s.id = t.id "
        "WHEN MATCHED THEN UPDATE SET word = 'merged' WHEN NOT MATCHED THEN INSERT (id, word) VALUES (s.id, 'merged')"
    )
    assert lake.ids("word = 'merged'") == [5, 1000]
    assert lake.ids("word = 'new'") == list(range(1001, 1010))
    assert lake.ids() == [5, *range(1000, 1040)]
    lake.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        stray = lake.path / "part-00000-00000000-0000-0000-0000-000000000000-c000.snappy.parquet"
        stray.write_bytes(b"left by a kill")
        lake.chunks.clear()
        lake.add_chunk(made_rows(0, 20, 5))
        lake.adopt(seq=9, properties=properties)
        sql(f"VACUUM delta.`{lake.path}` RETAIN 0 HOURS")
    finally:
        lake.spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert not stray.exists() and len(lake.data_files()) == 1
    assert lake.ids() == list(range(20))
    if not properties:
        assert DeltaTable(str(lake.path)).to_pyarrow_dataset().count_rows() == 20


@pytest.mark.long
def test_files_of_others_are_removed_too(lake: Lake) -> None:
    lake.add_chunk(made_rows(0, 10, 1))
    lake.adopt()
    lake.adopt(seq=8)
    write_deltalake(str(lake.path), DeltaTable(str(lake.path)).to_pyarrow_table().slice(0, 2), mode="append")
    lake.adopt(seq=9)
    assert lake.ids() == list(range(10))
    lake.spark.sql(f"INSERT INTO delta.`{lake.path}` (id) VALUES (50)")
    lake.spark.sql(f"INSERT INTO delta.`{lake.path}` (id) VALUES (51)")
    lake.adopt(seq=10)
    assert lake.ids() == list(range(10))
    assert len(DeltaTable(str(lake.path)).file_uris()) == 1


def test_files_are_joined_and_empty_ones_left_out(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        lake.add_chunk(made_rows(number * 10, 10, number) if number != 3 else [])
    largest = max(chunk.size for chunk in lake.chunks)
    monkeypatch.setattr(adoption, "FILE_BYTES", 2 * largest)
    lake.adopt()
    assert lake.ids() == [*range(30), *range(40, 60)]
    assert 3 <= len(lake.data_files()) < 5
    assert all(chunk.path and Path(chunk.path).exists() for chunk in lake.chunks), "the snapshot's files stay"


@pytest.mark.long
def test_another_commit_in_between_is_a_conflict(lake: Lake) -> None:
    lake.add_chunk(made_rows(0, 10, 1))
    lake.adopt()
    for statement in (
        f"INSERT INTO delta.`{lake.path}` (id) VALUES (77)",
        f"ALTER TABLE delta.`{lake.path}` SET TBLPROPERTIES ('x' = 'y')",
        f"DELETE FROM delta.`{lake.path}` WHERE id = 3",
    ):
        begun = lake.begin()
        assert begun is not None
        begun.add_files(lake.chunks)
        lake.spark.sql(statement)
        before = DeltaTable(str(lake.path)).version()
        with pytest.raises(RetryableError, match="another writer has committed"):
            begun.commit("towpath:t", 8, "{}")
        assert DeltaTable(str(lake.path)).version() == before
    with pytest.raises(RetryableError, match="another writer has committed"):
        begin(DriverJvm.of(lake.spark), Replacement(str(lake.path), 0, FIELDS, PROPERTIES), lake.chunks)


def test_a_table_that_appears_in_between_is_a_conflict(lake: Lake) -> None:
    lake.add_chunk(made_rows(0, 10, 1))
    begun = lake.begin()
    assert begun is not None
    lake.spark.sql(f"CREATE TABLE delta.`{lake.path}` (a INT) USING delta")
    begun.add_files(lake.chunks)
    with pytest.raises(RetryableError, match="another writer has committed"):
        begun.commit("towpath:t", 8, "{}")
    assert DeltaTable(str(lake.path)).version() == 0


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.columnMapping.mode": "name"},
        {"delta.constraints.positive": "id > 0"},
        {"delta.enableRowTracking": "true"},
        {"delta.appendOnly": "true"},
        {"delta.dataSkippingStatsColumns": "id"},
        {"delta.enableInCommitTimestamps": "true"},
        {"delta.universalFormat.enabledFormats": "iceberg"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_tables_with_such_properties_are_written_by_spark(lake: Lake, properties: dict[str, str]) -> None:
    lake.add_chunk(made_rows(0, 10, 1))
    assert lake.begin(properties) is None
    assert not lake.path.exists()
    assert lake.begin() is not None


def test_tables_with_clusters_and_defaults_of_a_session_are_written_by_spark(lake: Lake) -> None:
    lake.add_chunk(made_rows(0, 10, 1))
    default = "spark.databricks.delta.properties.defaults.enableChangeDataFeed"
    lake.spark.conf.set(default, "true")
    try:
        assert lake.begin() is None
    finally:
        lake.spark.conf.unset(default)
    lake.spark.sql(f"CREATE TABLE delta.`{lake.path}` (id BIGINT) USING delta CLUSTER BY (id)")
    assert lake.begin() is None


def test_files_that_spark_would_write_otherwise_are_not_taken(lake: Lake) -> None:
    other = pa.schema([SCHEMA.field("id").with_type(pa.int32()), *list(SCHEMA)[1:]])
    lake.add_chunk(made_rows(0, 10, 1))
    lake.add_chunk(made_rows(10, 10, 2), other)
    assert lake.begin() is None
    lake.chunks.pop()
    assert lake.begin() is not None
    # Chunks of an earlier Towpath have no statistics.
    path = lake.folder / "chunks" / "old.parquet"
    pq.write_table(pq.read_table(lake.chunks[0].path), path, write_statistics=False, store_decimal_as_integer=True)
    lake.chunks = [ParquetFile.read(str(path))]
    assert lake.begin() is None
    # Many small row groups would stay small.
    lake.chunks = [lake.add_chunk(made_rows(number, 2, number)) for number in range(40)]
    assert lake.begin() is None


@pytest.mark.long
def test_rows_that_spark_writes_belong_to_the_same_commit(lake: Lake) -> None:
    lake.add_chunk(made_rows(0, 10, 1))
    begun = lake.begin()
    assert begun is not None
    lake.path.mkdir()
    begun.add_files(lake.chunks)
    begun.add_rows(lake.spark.createDataFrame([{"id": 99}], FIELDS))
    begun.commit("towpath:t", 8, "{}")
    assert DeltaTable(str(lake.path)).version() == 0
    assert lake.ids() == [*range(10), 99]
