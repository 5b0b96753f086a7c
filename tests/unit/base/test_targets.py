"""Paths and application ids of Delta tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.base.errors import UsageError
from cdc.base.targets import (
    PLAIN_READER,
    VECTORS_READER,
    application_id,
    encode_name,
    expected_reader,
    local_path,
    members_of,
    properties_for,
    reader_of,
    records_of,
    split_table,
    stored_name,
    table_path,
)


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


def test_a_percent_sign_is_no_escape_in_paths() -> None:
    assert local_path("file:///a/b%20c") == Path("/a/b%20c")
    assert local_path("file:/a/b%20c") == Path("/a/b%20c")
    assert local_path("s3://a/b") is None


def test_which_reader_a_table_needs() -> None:
    assert expected_reader("/lake/shop/orders", ["id", "name"]) == PLAIN_READER
    assert "QueryBuilder" in expected_reader("/lake/shop/orders", ["id", "a b"])
    assert expected_reader("/lake/shop/order%20items", ["id"]).startswith("Spark (deltalake")
    assert expected_reader("s3://lake/shop/order%20items", ["id"]).startswith("Spark (deltalake")
    assert expected_reader("/lake/shop/orders", ["id"], deletion_vectors=True) == VECTORS_READER
    assert reader_of("/lake/x", {}, ["deletionVectors"]) == VECTORS_READER
    assert reader_of("/lake/x", {}, ["variantType"]) == "Spark, or another reader with variants"


def test_members_of_a_shared_table_see_their_own_records() -> None:
    names = ["eu", "eu.x", "eu.source_schema", "EU", "a b", "_delta_log"]
    stored = {"towpath.shared": "true", "towpath.mode": "upsert", "delta.appendOnly": "false"}
    for number, name in enumerate(names):
        for record in ("generation", "since_seq", "source_schema", "source_schema.7"):
            stored[stored_name(f"towpath.{record}", name, shared=True)] = str(number)
    assert len(stored) == 3 + 4 * len(names)
    assert members_of(stored) == sorted(names)
    for number, name in enumerate(names):
        properties = properties_for(stored, name, "shop.t")
        assert properties == {
            "towpath.shared": "true",
            "towpath.mode": "upsert",
            "delta.appendOnly": "false",
            "towpath.destination": name,
            "towpath.generation": str(number),
            "towpath.since_seq": str(number),
            "towpath.source_schema": str(number),
            "towpath.source_schema.7": str(number),
        }
        assert len(records_of(stored, name)) == 4
    assert "towpath.destination" not in properties_for(stored, "us", "shop.t")
    remaining = {name: value for name, value in stored.items() if name != "towpath.member.eu.generation"}
    assert "eu" not in members_of(remaining)
    assert properties_for(remaining, "eu", "shop.t") == {
        k: v for k, v in stored.items() if not k.startswith("towpath.member.")
    }
    assert len(records_of(remaining, "eu")) == 3


def test_other_properties_keep_their_names() -> None:
    assert stored_name("towpath.mode", "eu", shared=True) == "towpath.mode"
    assert stored_name("delta.generation", "eu", shared=True) == "delta.generation"
    assert stored_name("towpath.generation", "eu", shared=False) == "towpath.generation"
    assert properties_for({"towpath.destination": "eu"}, "us", "shop.t") == {"towpath.destination": "eu"}


def test_source_tables_of_a_routed_table_see_their_own_records() -> None:
    stored = {"towpath.shared": "tables", "towpath.destination": "eu", "towpath.mode": "upsert"}
    for number, name in enumerate(("a.t", "b.t")):
        stored[stored_name("towpath.generation", name, shared=True)] = str(number)
    assert members_of(stored) == ["a.t", "b.t"]
    assert properties_for(stored, "eu", "b.t") == {
        "towpath.shared": "tables",
        "towpath.destination": "eu",
        "towpath.mode": "upsert",
        "towpath.generation": "1",
    }
    for destination, name in (("eu", "c.t"), ("us", "a.t")):
        assert properties_for(stored, destination, name) == {"towpath.shared": "tables", "towpath.mode": "upsert"}
