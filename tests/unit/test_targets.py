"""Paths and application ids of Delta tables."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from cdc.errors import UsageError
from cdc.targets import (
    PLAIN_READER,
    application_id,
    encode_name,
    expected_reader,
    local_path,
    read_position,
    reader_of,
    split_table,
    table_path,
)
from spark_jobs.delta.log import read_state
from tests.support.s3 import s3_server


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("orders_2$-X", "orders_2$-X"),
        ("..", "%2E%2E"),
        ("a/b", "a%2Fb"),
        ("a b~%", "a%20b%7E%25"),
        ("käse", "k%C3%A4se"),
        ("_delta_log", "%5Fdelta_log"),
        ("_delta_logs", "_delta_logs"),
    ],
)
def test_names_are_percent_encoded(name: str, folder: str) -> None:
    assert encode_name(name) == folder


def test_table_path_takes_folders_and_uris() -> None:
    assert table_path("/lake/", "shop", "orders") == "/lake/shop/orders"
    assert table_path("s3a://bucket/lake", "shop", "a.b") == "s3a://bucket/lake/shop/a%2Eb"
    with pytest.raises(UsageError):
        table_path("/lake", "shop", "")


def test_application_id() -> None:
    assert application_id("shop", "db.orders", 2) == "towpath:shop:db.orders:2"


def test_split_table() -> None:
    assert split_table("shop.a.b") == ("shop", "a.b")
    with pytest.raises(UsageError, match="Write it as"):
        split_table("shop")


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
    found = read_position(str(tmp_path / "orders"), "shop", "shop.orders")
    assert (found.applied_seq, found.delta_version, found.generation, found.note) == (77, 0, 0, None)
    found = read_position((tmp_path / "items").as_uri(), "shop", "shop.items")
    assert (found.applied_seq, found.delta_version, found.generation) == (78, 0, 3)
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
    found = read_position(str(tmp_path / "bad"), "shop", "shop.bad")
    assert found.applied_seq is None
    assert found.note is not None
    assert found.note.startswith("cannot be read: ")


def test_a_percent_sign_is_no_escape_in_paths() -> None:
    assert local_path("file:///a/b%20c") == Path("/a/b%20c")
    assert local_path("file:/a/b%20c") == Path("/a/b%20c")
    assert local_path("s3://a/b") is None


def test_a_table_in_an_object_store_lies_where_spark_writes_it(tmp_path: Path) -> None:
    """Spark's S3A makes the object's key of the path as it is written: ``order%20items``."""
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
        found = read_position(target, "shop", "shop.order items")
        assert (found.applied_seq, found.note) == (80, None)
        state = read_state(target, "shop", "shop.order items")
        assert state is not None
        assert state.applied_seq == 80
        assert read_position(f"{target}%20", "shop", "shop.order items ").note == "not there yet"


def test_which_reader_a_table_needs() -> None:
    assert expected_reader("/lake/shop/orders", ["id", "name"]) == PLAIN_READER
    assert "QueryBuilder" in expected_reader("/lake/shop/orders", ["id", "a b"])
    assert expected_reader("/lake/shop/order%20items", ["id"]).startswith("Spark (deltalake")
    assert expected_reader("s3://lake/shop/order%20items", ["id"]).startswith("Spark (deltalake")
    assert reader_of("/lake/x", {}, ["variantType"]) == "Spark, or another reader with variants"
