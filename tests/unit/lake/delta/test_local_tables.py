"""Small tables: how keys are found, and which files are read."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import types as t

from cdc.lake.delta import local_tables
from cdc.lake.delta.keyed_rows import FewRows, KeyNumbers, WrittenRows
from cdc.lake.delta.local_tables import LeftToSparkError, LocalTable
from cdc.lake.delta.row_replacement import Replaced
from cdc.lake.rows.split_reader import arrow_schema
from cdc.lake.rows.table_format import TableFormat

FIELDS = t.StructType([t.StructField("id", t.LongType()), t.StructField("at", t.TimestampType())])
FORMAT = TableFormat(arrow_schema(FIELDS), "snappy", "4.2.0")
SPARK = {"org.apache.spark.version": "4.2.0"}


def chunked(values: list[Any], kind: pa.DataType | None = None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, kind)])


@pytest.mark.parametrize("seed", range(30))
def test_keys_are_found_by_their_values(seed: int) -> None:
    chance = random.Random(seed)
    kinds = chance.sample(["int", "text", "bytes", "decimal"], chance.randrange(1, 4))
    make: dict[str, Callable[[int], Any]] = {
        "int": lambda n: n,
        "text": str,
        "bytes": lambda n: bytes([n]),
        "decimal": lambda n: Decimal(n),
    }

    def rows(count: int) -> list[tuple[Any, ...]]:
        return [tuple(make[kind](chance.randrange(6)) for kind in kinds) for _ in range(count)]

    ours, theirs = rows(chance.randrange(1, 20)), rows(50)
    numbers = KeyNumbers.of([chunked(list(column)) for column in zip(*ours, strict=True)])
    assert len(numbers) == len(set(ours))
    own = numbers.find([chunked(list(column)) for column in zip(*ours, strict=True)]).tolist()
    number_of = dict(zip(ours, own, strict=True))
    assert sorted(set(own)) == list(range(len(numbers)))
    codes = numbers.find([chunked(list(column)) for column in zip(*theirs, strict=True)])
    assert codes.tolist() == [number_of.get(row, -1) for row in theirs]


def test_many_columns_do_not_overflow() -> None:
    columns = [chunked(list(range(1000))) for _ in range(12)]
    numbers = KeyNumbers.of(columns)
    assert numbers.find(columns).tolist() == list(range(1000))


def test_no_rows_and_no_keys() -> None:
    numbers = KeyNumbers.of([chunked([], pa.int64())])
    assert len(numbers) == 0
    assert numbers.find([chunked([1, None])]).tolist() == [-1, -1]
    with pytest.raises(LeftToSparkError):
        KeyNumbers.of([chunked([1, None])])


def read(folder: Path, table: pa.Table, *, rows: int | None = None, facts: Any = SPARK, **options: Any) -> pa.Table:
    with pq.ParquetWriter(folder / "file.parquet", table.schema, store_schema=False, **options) as writer:
        writer.add_key_value_metadata(facts)
        writer.write_table(table)
    add = {"path": "file.parquet", "size": 1, "stats": json.dumps({"numRecords": len(table) if rows is None else rows})}
    none = cast(Any, SimpleNamespace())
    return LocalTable(none, none, none, FORMAT, folder, [add], has_vectors=False).read(add)


MOMENTS = pa.array(
    [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), None],
    pa.timestamp("us", "UTC"),
)
TABLE = pa.table({"id": [1, 2, 3], "at": MOMENTS})


def test_files_are_read_in_the_types_of_the_table(tmp_path: Path) -> None:
    assert read(tmp_path, TABLE) == TABLE
    old = pa.table({"id": [1, 2, 3], "at": MOMENTS.cast(pa.timestamp("us"))})
    assert read(tmp_path, old, use_deprecated_int96_timestamps=True) == TABLE
    assert read(tmp_path, TABLE.select(["id"])).column("at").to_pylist() == [None] * 3
    assert read(tmp_path, TABLE.select(["at", "id"])) == TABLE
    assert read(tmp_path, TABLE.slice(0, 0)) == TABLE.slice(0, 0)


@pytest.mark.parametrize(
    ("table", "options"),
    [
        (TABLE, {"rows": 4}),
        (TABLE, {"facts": {"org.apache.spark.version": "3.0.3"}}),
        (TABLE, {"facts": {"org.apache.spark.version": "2.4.8"}}),
        (TABLE, {"facts": SPARK | {"org.apache.spark.legacyDateTime": ""}}),
        (TABLE, {"facts": SPARK | {"org.apache.spark.legacyINT96": ""}}),
        (TABLE.append_column("more", pa.array([1, 2, 3])), {}),
        (TABLE.set_column(0, "id", pa.array([1, 2, 3], pa.int32())), {}),
        (TABLE.set_column(1, "at", MOMENTS.cast(pa.timestamp("us"))), {}),
        (TABLE.rename_columns(["ID", "at"]), {}),
    ],
)
def test_other_files_are_left_to_spark(tmp_path: Path, table: pa.Table, options: dict[str, Any]) -> None:
    with pytest.raises(LeftToSparkError):
        read(tmp_path, table, **options)


def test_files_of_writers_that_know_one_calendar_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, TABLE, facts={}) == TABLE
    file = tmp_path / "file.parquet"
    file.write_bytes(file.read_bytes().replace(b"parquet-cpp-arrow", b"somebody's writer"))
    add = {"path": "file.parquet", "size": 1, "stats": json.dumps({"numRecords": 3})}
    none = cast(Any, SimpleNamespace())
    with pytest.raises(LeftToSparkError, match="unknown program"):
        LocalTable(none, none, none, FORMAT, tmp_path, [add], has_vectors=False).read(add)


def test_texts_of_delta_rs_are_read(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["a", None]})
    write_deltalake(tmp_path, rows)
    merge = DeltaTable(tmp_path).merge(rows, "s.id = t.id", "s", "t")
    merge.when_matched_update_all().execute()
    (uri,) = DeltaTable(tmp_path).file_uris()
    add = {"path": Path(uri).name, "size": 1, "stats": json.dumps({"numRecords": 2})}
    none = cast(Any, SimpleNamespace())
    form = TableFormat(arrow_schema(VALUES), "snappy", "4.2.0")
    table = LocalTable(none, none, none, form, Path(uri.removeprefix("file://")).parent, [add], has_vectors=False)
    assert table.read(add).to_pylist() == rows.to_pylist()


def test_damaged_files_are_left_to_spark(tmp_path: Path) -> None:
    read(tmp_path, TABLE)
    (tmp_path / "file.parquet").write_bytes(b"PAR1")
    add = {"path": "file.parquet", "size": 1, "stats": json.dumps({"numRecords": 3})}
    none = cast(Any, SimpleNamespace())
    table = LocalTable(none, none, none, FORMAT, tmp_path, [add], has_vectors=False)
    with pytest.raises(LeftToSparkError, match="cannot be read"):
        table.read(add)
    with pytest.raises(LeftToSparkError, match="cannot be read"):
        table.read(add | {"path": "gone.parquet"})


VALUES = t.StructType([t.StructField("id", t.LongType()), t.StructField("v", t.StringType())])


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("are_written", [False, True])
def test_rows_are_replaced_as_in_a_model(
    seed: int, are_written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(local_tables, "TINY_BYTES", chance.choice([0, 1 << 20]))
    ids = chance.sample(range(30), 20)
    rows = {number: f"old {number}" for number in ids}
    files: list[dict[str, Any]] = []
    none = cast(Any, SimpleNamespace())
    for part in (ids[:8], ids[8:12], ids[12:]):
        path = f"part{len(files)}.parquet"
        with pq.ParquetWriter(tmp_path / path, arrow_schema(VALUES), store_schema=False) as writer:
            writer.add_key_value_metadata(SPARK)
            writer.write_table(pa.table({"id": part, "v": [rows[i] for i in part]}, schema=arrow_schema(VALUES)))
        files.append({"path": path, "size": 1000, "stats": json.dumps({"numRecords": len(part)})})
    state = cast(Any, SimpleNamespace(schema_json=VALUES.json(), stored={}))
    form = TableFormat(arrow_schema(VALUES), "snappy", "4.2.0")
    table = LocalTable(none, none, state, form, tmp_path, files, has_vectors=False)
    changed = chance.sample(range(35), chance.randrange(1, 12))
    deletes, replaces = (np.array([chance.random() < 0.4 for _ in changed]) for _ in range(2))
    new = pa.table({"_op": [0] * len(changed), "v": [f"new {i}" for i in changed], "id": changed})
    if are_written:
        replaces[:] = False
        change = written(new, deletes, form, tmp_path).replace(table)
    else:
        change = FewRows(new, ["id"], deletes, replaces, ([], [])).replace(table)

    expected, counts = dict(rows), Counter[str]()
    for number, is_delete, only_replaces in zip(changed, deletes, replaces, strict=True):
        is_there = number in rows
        if is_delete:
            counts["deleted"] += expected.pop(number, None) is not None
        elif is_there or not only_replaces:
            counts["updated" if is_there else "inserted"] += 1
            expected[number] = f"new {number}"
    removed = {add["path"] for add in change.removed}
    kept = [table.read(add) for add in files if add["path"] not in removed]
    added = [table.read(add) for add in change.added]
    rows_after = [(r["id"], r["v"]) for part in (*kept, *added) for r in part.to_pylist()]
    assert sorted(rows_after) == sorted(expected.items())
    assert change.replaced == Replaced(counts["inserted"], counts["updated"], counts["deleted"])
    assert change.copied == sum(map(len, added)) - counts["inserted"] - counts["updated"]


def written(rows: pa.Table, deletes: npt.NDArray[np.bool_], form: TableFormat, folder: Path) -> WrittenRows:
    """Returns the rows in files of another folder."""
    (folder / "scratch").mkdir()
    files = [form.write(folder / "scratch", part.to_batches()) for part in (rows.filter(pa.array(~deletes)),)]
    keys = [rows.filter(pa.array(kind)).select(["id"]) for kind in (~deletes, deletes)]
    present = [file for file in files if file is not None]
    return WrittenRows(present, lambda: (keys[0], keys[1]), ["id"], len(rows), len(keys[0]), ([], []))


def test_too_much_is_left_to_spark(tmp_path: Path) -> None:
    none = cast(Any, SimpleNamespace())
    files = [{"path": str(number), "size": 5 << 20, "stats": '{"numRecords": 7}'} for number in range(2)]
    table = LocalTable(none, none, none, FORMAT, tmp_path, files, has_vectors=False)
    assert table.rewritten(files[:1]) == files[:1]
    with pytest.raises(LeftToSparkError, match="2 files with 10485760 bytes and 14 rows"):
        table.rewritten(files)
    with pytest.raises(LeftToSparkError, match="how many rows"):
        table.rewritten([{**files[0], "stats": "{}"}])


def test_a_small_file_with_large_texts_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_tables, "MOST_MEMORY", 20)
    with pytest.raises(LeftToSparkError, match="memory"):
        read(tmp_path, TABLE)


@pytest.mark.parametrize(("codec", "suffix"), [("zstd", ".zstd.parquet"), ("gzip", ".gz.parquet"), ("lz4", None)])
def test_files_are_compressed_as_the_session_says(codec: str, suffix: str | None, tmp_path: Path) -> None:
    settings = {"spark.sql.parquet.compression.codec": codec}
    spark = SimpleNamespace(
        conf=SimpleNamespace(get=lambda name, default: settings.get(name, default)), version="4.2.0"
    )
    state = SimpleNamespace(schema_json=VALUES.json())
    form = local_tables.table_format(cast(Any, SimpleNamespace(spark=spark)), cast(Any, state))
    if suffix is None:
        assert form is None
        return
    assert form is not None
    file = form.write(tmp_path, [pa.record_batch({"id": [1], "v": ["a"], "_op": [1]})])
    assert file is not None and file.path.name.endswith(suffix)
    assert file.footer.row_group(0).column(0).compression == codec.upper()
    assert (file.footer.metadata or {}) == {b"org.apache.spark.version": b"4.2.0"}
    assert form.write(tmp_path, []) is None
    for setting in ("parquet.crypto.factory.class", "spark.hadoop.parquet.crypto.factory.class"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(settings, setting, "org.example.Factory")
            assert local_tables.table_format(cast(Any, SimpleNamespace(spark=spark)), cast(Any, state)) is None
    assert list(tmp_path.iterdir()) == [file.path]
