"""A pipeline that an earlier commit left in the middle of a batch is gone on with by this one.

``tests/golden/make_loop.py`` made the archive and says what it holds.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdc.batches.service import BatchService
from cdc.cli.main import main
from cdc.config import load
from cdc.lake import pipeline
from tests.support.apply import LOCAL

ARCHIVE = Path(__file__).parents[1] / "golden" / "loop-v1.tar.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The archive, unpacked. Manifests name files of the store by their paths, so these are rewritten."""
    with tarfile.open(ARCHIVE) as tar:
        if hasattr(tarfile, "data_filter"):  # the Python of Debian 12 has none
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(tmp_path)
    for manifest in (tmp_path / "meta" / "manifests").rglob("*.json"):
        manifest.write_text(re.sub(r'"[^"]*/store/', f'"{tmp_path}/store/', manifest.read_text()))
    file = tmp_path / "conf" / "shop.yaml"
    file.write_text(re.sub(r"(?m)^spark: .*$", lambda _: f"spark: {LOCAL}", file.read_text()))
    return tmp_path


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    reader = QueryBuilder().register("t", DeltaTable(str(folder / "lake" / "shop" / table)))
    records: list[dict[str, Any]] = pa.table(reader.execute("SELECT * FROM t ORDER BY 1")).to_pylist()
    return records


def as_text(row: dict[str, Any], columns: list[str]) -> dict[str, str | None]:
    """The row as the archive's ``expected.json`` has it."""
    texts = {}
    for column in columns:
        value = row[column]
        texts[column] = value.hex() if isinstance(value, bytes) else None if value is None else str(value)
    return texts


def test_a_batch_of_an_earlier_commit_is_applied_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    conf = ["--conf-dir", str(folder / "conf")]

    assert main([*conf, "status", "shop", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (subscription,) = shown["subscriptions"]
    assert [batch["batch"] for batch in subscription["outstanding"]] == [5]
    assert len(rows(folder, "orders")) == 1 and len(rows(folder, "items")) == 1, "one table has the batch already"

    config = load(folder / "conf" / "shop.yaml")
    service = BatchService(config)
    merged = []
    while (lease := service.get("successor", wait_s=0)) is not None:
        results = pipeline.merge(config, lease)
        pipeline.finalize(config, lease, True, results)
        merged.append((lease.manifest.batch, {result.table: result.skipped for result in results}))
    assert merged[0] == (5, {"shop.orders": 2, "shop.items": 0, "shop.journal": 2})
    for table in ("orders", "items", "late"):
        wanted = expected[table]
        assert [as_text(row, list(wanted[0])) for row in rows(folder, table)] == wanted, table
    changes = sorted((row["_seq"], row["_row"], row["_op"], row["id"], row["note"]) for row in rows(folder, "journal"))
    assert [change[2:] for change in changes] == [
        ("insert", 1, "one"),
        ("insert", 2, "two"),
        ("insert", 3, "three"),
        ("update", 2, "TWO"),
        ("insert", 4, "four"),
    ]
