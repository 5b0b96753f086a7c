"""Every way into Spark gives the same rows: tasks of ``mapInArrow``, a local relation, and the data source."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from cdc.config import SparkConfig
from cdc.decode.layout import METADATA_FIELDS, range_layouts
from cdc.decode.transactions import ALL_TABLES
from cdc.lake.rows import changes, null_dates
from cdc.lake.rows.column_types import from_arrow_schema
from cdc.lake.rows.columns import SourceColumns, TablePolicies, columns_of_layout
from cdc.lake.rows.data_source import register
from cdc.lake.rows.input_splits import input_splits
from cdc.lake.rows.split_reader import SplitReader
from cdc.lake.runtime import session
from cdc.lake.runtime.session import TableSession
from cdc.store.formats.index import make_header, seal
from cdc.store.formats.layout import index_path, segment_name, segments_folder
from tests.support.apply import LOCAL_CONF
from tests.support.unit_decode import GOLDEN, TYPED_TABLES, schemas_of, typed


@pytest.fixture
def spark() -> SparkSession:
    return session.acquire(SparkConfig(master="local[2]", conf=LOCAL_CONF)).spark


def segment(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Makes a store's segment of a golden file with every type, and returns its ranges: one for each two
    transactions."""
    segments_folder(folder).mkdir()
    path = segments_folder(folder) / segment_name(0, 1, 4)
    shutil.copyfile(GOLDEN / f"decode-types-{kind}-v1.binlog", path)
    entries = typed(kind).entries
    index_path(path).write_bytes(make_header() + seal(entries))
    begin, end = entries["offset"], entries["offset"] + entries["length"]
    return [
        {"path": str(path), "offset": int(begin[i]), "length": int(end[min(i + 1, len(end) - 1)] - begin[i])}
        for i in range(0, len(entries), 2)
    ]


def reader_of(kind: str, table: str, images: Literal["after", "both"]) -> tuple[SplitReader, SourceColumns]:
    name, schema = f"shop.{table}", schemas_of(kind).tables[f"shop.{table}"]
    layout = next(range_layout for _, range_layout, _ in range_layouts(typed(kind), {name: schema}))
    columns = columns_of_layout(layout, TablePolicies(name))
    fields = [*from_arrow_schema(pa.schema(METADATA_FIELDS)), *columns.read_fields]
    if images == "both":
        fields.append(t.StructField("_before", t.StructType(columns.read_fields)))
    fields.append(null_dates.FIELD)
    options = columns.options()
    reader = SplitReader(
        table=name, fields=t.StructType(fields), images=images, columns=options["columns"], values=options["values"],
        schema=schema,
    )  # fmt: skip
    return reader, columns


def by_data_source(spark: SparkSession, reader: SplitReader, ranges: list[dict[str, Any]]) -> DataFrame:
    assert reader.schema is not None
    options = {
        "ranges": json.dumps(ranges), "table": reader.table, "images": reader.images, "columns": reader.columns,
        "values": reader.values, "schema": reader.schema.model_dump_json(),
        "table_mask": str(ALL_TABLES),
    }  # fmt: skip
    return spark.read.format(register(spark)).schema(reader.fields).options(**options).load()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    table = frame.toArrow()
    return sorted(table.to_pylist(), key=lambda row: (row["_seq"], row["_row"], row["_op"]))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "table"), [TYPED_TABLES[0], pytest.param(*TYPED_TABLES[-2], marks=pytest.mark.long)])
def test_every_way_gives_the_same_rows(
    kind: str, table: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = segment(tmp_path, kind)
    for images in ("after", "both"):
        reader, _ = reader_of(kind, table, images)
        splits = input_splits([_range(byte_range) for byte_range in ranges], 0, 1, reader.table, ALL_TABLES)
        assert len(splits) > 2
        wanted = rows_of(by_data_source(spark, reader, ranges))
        assert len(wanted) > 3
        monkeypatch.setattr(changes, "SMALL_BYTES", 1 << 30)
        local = changes.changes_frame(TableSession(spark), reader, splits)
        monkeypatch.setattr(changes, "SMALL_BYTES", 0)
        mapped = changes.changes_frame(TableSession(spark), reader, splits)
        assert "MapInArrow SplitReader" in mapped._jdf.queryExecution().toString()
        assert "LocalRelation" in local._jdf.queryExecution().toString()
        assert mapped.rdd.getNumPartitions() == len(splits)
        assert local.schema == mapped.schema == reader.fields
        assert _comparable(rows_of(local)) == _comparable(wanted)
        assert _comparable(rows_of(mapped)) == _comparable(wanted)


def test_pieces_without_rows_end_no_local_relation(spark: SparkSession) -> None:
    """Spark reads a local relation only up to its first Arrow batch without rows."""
    pieces = [pa.table({"id": pa.array(ids, pa.int64())}) for ids in ([], [1], [], [2, 3], [], [], [4], [])]
    rows = pa.concat_tables(pieces)
    fields = t.StructType([t.StructField("id", t.LongType())])
    assert spark.createDataFrame(rows, fields).count() < 4, "Spark reads all of them now: local_frame has no use"
    frame = changes.local_frame(TableSession(spark), rows, fields)
    assert sorted(row["id"] for row in frame.collect()) == [1, 2, 3, 4]
    assert changes.local_frame(TableSession(spark), rows.slice(0, 0), fields).count() == 0


def test_an_executor_with_another_version_is_refused(tmp_path: Path) -> None:
    ranges = segment(tmp_path, "mysql9")
    reader, _ = reader_of("mysql9", "kinds", "after")
    splits = input_splits([_range(byte_range) for byte_range in ranges], 0, 1, reader.table, ALL_TABLES)
    other = replace(reader, version="0.0.0", splits=tuple(splits))
    with pytest.raises(RuntimeError, match=r"VersionError.*the driver runs towpath 0\.0\.0"):
        next(other([pa.RecordBatch.from_pydict({"id": [0]})]))


def _range(document: dict[str, Any]) -> Any:
    from cdc.batches.manifest import ByteRange

    return ByteRange.model_validate(document)


def _comparable(rows: list[dict[str, Any]]) -> str:
    """Returns rows as text: NaN equals itself there. The counts of null dates depend on how the rows are cut."""
    return "\n".join(repr({name: value for name, value in row.items() if name != null_dates.COLUMN}) for row in rows)
