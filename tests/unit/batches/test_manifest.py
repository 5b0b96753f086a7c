"""The format of the manifest: its schema, its first version, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc.base.errors import DamagedError, VersionError
from cdc.batches.manifest import Manifest
from cdc.batches.manifest_files import load_manifest, parse_manifest

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "manifest-v1.json"


def test_the_published_schema_is_that_of_the_model() -> None:
    published = json.loads((ROOT / "docs" / "formats" / "manifest.schema.json").read_text())
    assert published == Manifest.model_json_schema(mode="serialization")


def test_version_1_is_read() -> None:
    manifest = load_manifest(GOLDEN)
    assert (manifest.batch, manifest.transactions, manifest.ranges[1].length) == (2, 2, 596)
    assert manifest.positions.last.file == "binlog.000013"
    assert manifest.acked is not None
    assert manifest.acked.versions == {"shop.orders": 6, "shop.customers": 2}
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_version_2_is_read() -> None:
    manifest = load_manifest(GOLDEN.with_name("manifest-v2.json"))
    assert (manifest.ddl, manifest.mixed, manifest.row_events) == (True, True, 3)
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_a_newer_version_is_refused() -> None:
    document = json.loads(GOLDEN.read_text()) | {"version": 3, "ranges": "something else"}
    with pytest.raises(VersionError, match="format version 3; this Towpath knows 2"):
        parse_manifest(json.dumps(document).encode(), "m.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "is not a manifest"),
        ({"batch": -1}, "batch: "),
        ({"ranges": [{"path": "x", "offset": -1, "length": 1}]}, "ranges.0.offset: "),
        ({"version": None}, "version: "),
    ],
)
def test_damage_is_named(change: dict[str, object], message: str) -> None:
    document = json.loads(GOLDEN.read_text()) | change
    with pytest.raises(DamagedError, match=message) as caught:
        parse_manifest(json.dumps(document).encode(), "m.json")
    assert "m.json" in str(caught.value)


def test_half_a_file_and_a_missing_file_are_damage(tmp_path: Path) -> None:
    half = tmp_path / "half.json"
    half.write_bytes(GOLDEN.read_bytes()[:300])
    with pytest.raises(DamagedError, match="is not whole"):
        load_manifest(half)
    with pytest.raises(DamagedError, match="is missing"):
        load_manifest(tmp_path / "none.json")
