"""Tables with many small files are named, by what compaction can do about them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.lake.delta import log
from cdc.watch.status import small_files_text


def small_files(path: Path) -> int:
    return log.read_position(str(path), "shop", "shop.orders").small_files


def append(path: Path, number: int, partition: str = "a", rows: int = 1) -> None:
    data = pa.table({"id": list(range(rows)), "part": [partition] * rows, "number": [number] * rows})
    write_deltalake(path, data, mode="append", partition_by=["part"])


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MANY_FILES", 4)


def test_files_that_compaction_would_join_are_counted(tmp_path: Path) -> None:
    for number in range(4):
        append(tmp_path, number)
    assert small_files(tmp_path) == 0, "three of four can go"
    append(tmp_path, 4)
    assert small_files(tmp_path) == 4
    DeltaTable(tmp_path).optimize.compact()
    assert small_files(tmp_path) == 0


def test_one_file_for_each_partition_is_not_many(tmp_path: Path) -> None:
    for number in range(6):
        append(tmp_path, number, partition=str(number))
    assert small_files(tmp_path) == 0
    for number in range(6):
        append(tmp_path, number, partition=str(number))
    assert small_files(tmp_path) == 6


def test_large_files_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SMALL_BYTES", 1)
    for number in range(6):
        append(tmp_path, number)
    assert small_files(tmp_path) == 0


def test_the_sentence_names_the_command() -> None:
    table = {"table": "shop.orders", "small_files": 4210}
    assert small_files_text(table, "shop").startswith("has 4,210 small files") and "cdc maintain shop shop.orders" in (
        small_files_text(table, "shop")
    )
    assert small_files_text(table | {"small_files": 0}, "shop") == ""
