"""The features of a table that each reader of Delta reads: every cell of docs/reference/readers.md is tried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.config import SparkConfig
from cdc.lake.runtime import session
from tests.support import reader_page
from tests.support.apply import LOCAL_CONF
from tests.support.reader_page import SPARK, Cell, cell
from tests.support.reader_tables import FEATURES, Feature
from tests.support.readers import READERS, Rows, read, rows_of

SHORT = ("vectors", "mapping")
"""Features that the normal run tries: those that a reader may get wrong."""
HERE = ("deltalake to_pyarrow", "deltalake QueryBuilder")
"""Readers of the environment of the tests."""


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session.acquire(SparkConfig(master="local[2]", conf=LOCAL_CONF)).spark


def make(spark: SparkSession, folder: Path, name: str, feature: Feature) -> tuple[str, Rows]:
    """Makes a table. Returns its path, and the rows that Spark reads."""
    path = str(folder / ("a%20b" if name == "percent" else name.replace(" ", "_").replace(",", "")))
    for statement in feature.statements:
        spark.sql(statement.replace("{t}", f"delta.`{path}`")).collect()
    frame = spark.read.format("delta").load(path)
    shown = [f"CAST(`{c}` AS STRING) AS `{c}`" if t == "variant" else f"`{c}`" for c, t in frame.dtypes]
    return path, rows_of(row.asDict() for row in frame.selectExpr(*shown).collect())


def others(tables: dict[str, str]) -> dict[str, Any]:
    """Lets the readers of ``.venv-readers``, or else of this environment, read the tables."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [os.environ.get("TOWPATH_READERS_PYTHON", sys.executable), "-m", "tests.support.readers"],
        input=json.dumps(tables),
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.long
@pytest.mark.parametrize("name", SHORT)
def test_deltalake_reads_what_the_page_says(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path, right = make(spark, tmp_path, name, FEATURES[name])
    kept = reader_page.kept()
    for reader in HERE:
        assert cell(read(reader, path), right).verdict == kept.cells[name][reader].verdict, reader


@pytest.mark.long
def test_every_reader_and_feature(spark: SparkSession, tmp_path: Path) -> None:
    made = {name: make(spark, tmp_path, name, feature) for name, feature in FEATURES.items()}
    assert all(rows for _, rows in made.values())
    result = others({name: path for name, (path, _) in made.items()})
    cells: dict[str, dict[str, Cell]] = {
        name: {SPARK: Cell("read")}
        | {reader: cell(results[name], right) for reader, results in result["found"].items()}
        for name, (_, right) in made.items()
    }
    versions = {SPARK: f"{spark.version}, Delta 4.4.0"} | result["versions"]
    if os.environ.get("TOWPATH_READERS_WRITE"):
        assert set(versions) == {SPARK, *READERS}
        reader_page.write(reader_page.Kept(versions, cells))
    kept = reader_page.kept()
    assert versions.items() <= dict(kept.versions).items()
    for name, row in cells.items():
        assert {reader: kept_cell.verdict for reader, kept_cell in row.items()} == {
            reader: kept.cells[name][reader].verdict for reader in versions
        }, name


def test_the_page_shows_the_kept_results() -> None:
    assert reader_page.PAGE.read_text(encoding="utf-8") == reader_page.page(reader_page.kept())
    assert set(reader_page.kept().cells) == set(FEATURES)
