"""The number of files of a version, by checksums and by the commits since the last one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.lake.delta import transaction
from cdc.lake.delta.transaction import has_files

ROWS = pa.table({"id": [1, 2, 3]})


class Checksum:
    """A checksum of Delta, or none."""

    def __init__(self, version: int, files: int | None = None, size_bytes: int = 0) -> None:
        self._version, self._files, self._size_bytes = version, files, size_bytes

    def version(self) -> int:
        return self._version

    def checksumOpt(self) -> Any:  # noqa: N802 - Delta's name
        content = SimpleNamespace(numFiles=lambda: self._files, tableSizeBytes=lambda: self._size_bytes)
        return SimpleNamespace(isEmpty=lambda: self._files is None, get=lambda: content)


def made(folder: Path) -> tuple[int, int, int]:
    """Makes a table by a library that leaves no checksums. Returns version, files and bytes."""
    for number in range(3):
        write_deltalake(folder, ROWS, mode="append" if number else "error")
    table = DeltaTable(folder)
    table.delete("id = 2")
    actions = pa.table(table.get_add_actions(flatten=True))
    return table.version(), actions.num_rows, sum(actions["size_bytes"].to_pylist())


def test_the_checksum_of_the_version_counts() -> None:
    assert has_files("/nowhere", Checksum(7, 3, 100), 3, 100)
    assert not has_files("/nowhere", Checksum(7, 3, 100), 3, 101)
    assert not has_files("/nowhere", Checksum(7), 3, 100)
    assert not has_files("s3://bucket/table", Checksum(7), 3, 100)


def test_without_a_checksum_the_commits_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, files, size_bytes = made(tmp_path)
    assert has_files(str(tmp_path), Checksum(version), files, size_bytes)
    assert not has_files(str(tmp_path), Checksum(version), files + 1, size_bytes)
    assert not has_files(str(tmp_path), Checksum(version), files, size_bytes + 1)
    monkeypatch.setattr(transaction, "_MOST_COUNTED", version)
    assert not has_files(str(tmp_path), Checksum(version), files, size_bytes)  # too many commits


def test_commits_are_counted_from_an_earlier_checksum(tmp_path: Path) -> None:
    version, files, size_bytes = made(tmp_path)
    log = tmp_path / "_delta_log"
    first, second = (sum(action["add"]["size"] for action in actions(log, n) if "add" in action) for n in (0, 1))
    checksum = {"numFiles": 2, "tableSizeBytes": first + second}
    (log / f"{1:020}.crc").write_text(json.dumps(checksum))
    (log / f"{0:020}.json").unlink()  # which a checkpoint replaces in time
    assert has_files(str(tmp_path), Checksum(version), files, size_bytes)
    (log / f"{1:020}.crc").write_text(json.dumps(checksum | {"numFiles": 3}))
    assert not has_files(str(tmp_path), Checksum(version), files, size_bytes)
    for damage in ("{", "[]", "{}"):
        (log / f"{1:020}.crc").write_text(damage)
        assert not has_files(str(tmp_path), Checksum(version), files, size_bytes)
    (log / f"{1:020}.crc").unlink()
    assert not has_files(str(tmp_path), Checksum(version), files, size_bytes)


def actions(log: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (log / f"{version:020}.json").read_text().splitlines()]
