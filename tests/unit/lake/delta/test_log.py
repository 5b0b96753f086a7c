"""Reading a Delta table's log without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from cdc.base.errors import TargetError
from cdc.base.targets import table_path
from cdc.lake.delta.log import DeltaState, LostRows, clear_unborn, files_added, read_position, read_state
from tests.support.s3 import s3_server


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
    """The folders that Spark leaves while it creates a table; only what it wrote before the first commit is removed."""
    log = tmp_path / "t" / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    for name in (".00000000000000000000.json.4fc4.tmp", "..00000000000000000000.json.4fc4.tmp.crc"):
        (log / name).write_text("{")
    assert read_state(str(tmp_path / "t"), "shop", "shop.t") is None
    clear_unborn(str(tmp_path / "t"))
    assert not log.exists()
    clear_unborn(str(tmp_path / "t"))

    # Rows that were written, without the commit.
    data = tmp_path / "t" / "part-00000-ed77a8ba-f4b3-4ca0-b56d-ecd6aeb00391-c000.snappy.parquet"
    data.write_text("1")
    with pytest.raises(TargetError, match="holds files, but is not a Delta table"):
        read_state(str(tmp_path / "t"), "shop", "shop.t")
    log.mkdir()
    data.with_name(f".{data.name}.crc").write_text("1")
    assert read_state(str(tmp_path / "t"), "shop", "shop.t") is None
    clear_unborn(str(tmp_path / "t"))
    assert data.exists() and not log.exists()

    (tmp_path / "t" / "rows.csv").write_text("1")
    log.mkdir()
    with pytest.raises(TargetError, match="holds files, but is not a Delta table"):
        read_state(str(tmp_path / "t"), "shop", "shop.t")

    (log / "00000000000000000000.json").write_text("{")
    clear_unborn(str(tmp_path / "t"))
    assert (log / "00000000000000000000.json").exists()


def write(path: Path, generation: str | None, application: str, seq: int) -> None:
    path.mkdir(parents=True)
    properties = CommitProperties(app_transactions=[Transaction(application, seq)])
    write_deltalake(str(path), pa.table({"id": [1]}), commit_properties=properties)
    if generation is not None:  # deltalake refuses to set properties that it does not know; Spark sets it
        log = path / "_delta_log" / "00000000000000000000.json"
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"]["towpath.generation"] = generation
        log.write_text("\n".join(map(json.dumps, actions)))


def test_position_of_a_table_is_read_without_spark(tmp_path: Path) -> None:
    write(tmp_path / "orders", None, "towpath:shop:shop.orders:0", 77)
    write(tmp_path / "items", "3", "towpath:shop:shop.items:3", 78)
    position = read_position(str(tmp_path / "orders"), "shop", "shop.orders")
    assert (position.applied_seq, position.delta_version, position.generation, position.note) == (77, 0, 0, None)
    position = read_position((tmp_path / "items").as_uri(), "shop", "shop.items")
    assert (position.applied_seq, position.delta_version, position.generation) == (78, 0, 3)
    assert read_position(str(tmp_path / "orders"), "other", "shop.orders").applied_seq is None


def test_position_behind_a_percent_sign(tmp_path: Path) -> None:
    write(tmp_path / "made", None, "towpath:shop:shop.a.b:0", 79)
    (tmp_path / "made").rename(tmp_path / "a%2Eb")
    assert read_position(str(tmp_path / "a%2Eb"), "shop", "shop.a.b").applied_seq == 79
    assert read_position(f"file://{tmp_path}/a%2Eb", "shop", "shop.a.b").applied_seq == 79


def test_what_is_no_table_is_noted(tmp_path: Path) -> None:
    assert read_position(str(tmp_path / "none"), "shop", "shop.none").note == "not there yet"
    log = tmp_path / "bad" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{nonsense")
    position = read_position(str(tmp_path / "bad"), "shop", "shop.bad")
    assert position.applied_seq is None
    assert position.note is not None
    assert position.note.startswith("cannot be read: ")


def test_a_table_in_an_object_store_lies_where_spark_writes_it(tmp_path: Path) -> None:
    """Spark's S3A takes the path as the object's key, unchanged: ``order%20items``."""
    import s3fs

    write(tmp_path / "made", "0", "towpath:shop:shop.order items:0", 80)
    with s3_server("lake") as uri:
        target = table_path(f"{uri}/tables", "shop", "order items")
        files = s3fs.S3FileSystem()
        for file in sorted((tmp_path / "made").rglob("*")):
            if file.is_file():
                key = f"lake/tables/shop/order%20items/{file.relative_to(tmp_path / 'made')}"
                files.pipe_file(key, file.read_bytes())
        assert files.exists("lake/tables/shop/order%20items/_delta_log/00000000000000000000.json")
        position = read_position(target, "shop", "shop.order items")
        assert (position.applied_seq, position.note) == (80, None)
        state = read_state(target, "shop", "shop.order items")
        assert state is not None
        assert state.applied_seq == 80
        assert read_position(f"{target}%20", "shop", "shop.order items ").note == "not there yet"


@pytest.mark.parametrize(
    ("metrics", "lost"),
    [
        ({"numSourceRows": "10", "numTargetRowsInserted": "0"}, False),
        ({"numSourceRows": "12"}, False),  # a task ran twice
        ({"numSourceRows": "9", "numTargetRowsInserted": "3", "numTargetRowsUpdated": "4"}, True),
        ({"numSourceRows": "0", "numTargetRowsInserted": "8"}, False),  # nothing could match
        ({"numSourceRows": "0", "numTargetRowsInserted": "7"}, True),
        ({"numSourceRows": "9", "numTargetRowsUpdated": "8"}, True),  # a delete is lost
        ({}, False),
    ],
)
def test_a_commit_that_read_fewer_rows_than_it_was_given_has_lost_some(metrics: dict[str, str], lost: bool) -> None:
    rows = LostRows.of({"version": 4, "operationMetrics": metrics}, {"source_rows": 10, "source_upserts": 8})
    assert rows == (LostRows(4, 10, int(metrics.get("numSourceRows", 0))) if lost else None)
    assert LostRows.of({"version": 4, "operationMetrics": metrics}, {}) is None


@pytest.mark.parametrize(
    ("metrics", "files"),
    [
        ({"numTargetFilesAdded": "3"}, 3),  # MERGE of Spark
        ({"numFiles": "2"}, 2),  # INSERT
        ({"num_target_files_added": 4}, 4),  # delta-rs
        ({"numOutputRows": "7"}, None),
        (None, None),
    ],
)
def test_a_commit_tells_how_many_files_it_added(metrics: dict[str, object] | None, files: int | None) -> None:
    assert files_added({"version": 1, "operationMetrics": metrics}) == files
