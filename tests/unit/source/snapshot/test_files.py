"""The files of a snapshot: a golden one of version 1, damage, chains that are broken, and folders at a URI."""

from __future__ import annotations

import datetime
import json
import shutil
from decimal import Decimal
from pathlib import Path

import pytest

from cdc.base.errors import DamagedError, UsageError, VersionError
from cdc.source.snapshot.files import Folder, SnapshotFiles

GOLDEN = Path(__file__).parents[3] / "golden" / "snapshot-v1"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "s")
    return tmp_path / "s"


def test_a_snapshot_of_version_1_is_read() -> None:
    files = SnapshotFiles.open(str(GOLDEN))
    assert (files.info.table, files.info.method, files.info.engine) == ("shop.orders", "exact", "InnoDB")
    assert files.info.key == ("day", "code") and files.info.index == "PRIMARY"
    assert files.info.policies == {"note": "rename: remark"}
    assert files.info.definition.column_names == ("code", "day", "total", "note")
    records = files.records()
    assert [(record.segment, record.number, record.rows) for record in records] == [(0, 1, 2), (0, 2, 0), (1, 1, 1)]
    assert files.is_complete() and all(files.is_sound(record) and record.is_exact for record in records)
    rows = [row for record in records for batch in files.batches(record) for row in batch.to_pylist()]
    day = datetime.date(2026, 1, 1)
    assert rows == [
        {"code": "b", "day": day, "total": Decimal("-2.00"), "remark": None},
        {"code": "ä1", "day": day, "total": Decimal("1.50"), "remark": "x"},
        {"code": "c", "day": datetime.date(2026, 1, 2), "total": Decimal("0.00"), "remark": "😀"},
    ]
    loaded = files.loaded()
    assert loaded is not None and loaded.high_seq == files.high_seq()
    assert files.read_progress() is not None


def test_a_snapshot_of_columns_has_version_2() -> None:
    files = SnapshotFiles.open(str(GOLDEN.with_name("snapshot-v2")))
    assert (files.info.version, files.info.key, files.info.columns) == (2, ("id",), ("total",))
    assert files.info.definition.column_names == ("day", "id", "note", "total")
    rows = [row for record in files.records() for batch in files.batches(record) for row in batch.to_pylist()]
    assert rows == [{"id": 1, "amount": Decimal("1.50")}, {"id": 2, "amount": Decimal("-2.00")}]
    assert SnapshotFiles.open(str(GOLDEN)).info.columns is None
    assert "columns" not in SnapshotFiles.open(str(GOLDEN)).info.model_dump()


def test_a_snapshot_of_a_part_has_version_3() -> None:
    files = SnapshotFiles.open(str(GOLDEN.with_name("snapshot-v3")))
    assert files.info.version == 3 and files.info.part is not None
    assert files.info.part.sql(files.info.definition) == "((`id` >= 2))"
    rows = [row for record in files.records() for batch in files.batches(record) for row in batch.to_pylist()]
    assert rows == [{"day": datetime.date(2026, 1, 2), "id": 2, "note": None, "amount": Decimal("-2.00")}]
    assert "part" not in SnapshotFiles.open(str(GOLDEN)).info.model_dump()


def test_a_newer_version_is_refused(copied: Path) -> None:
    for name in ("snapshot.json", "chunk-000-000001.json"):
        content = json.loads((copied / name).read_text())
        (copied / name).write_text(json.dumps({**content, "version": 4}))
        with pytest.raises(VersionError, match="has format version 4; this Towpath knows 3"):
            SnapshotFiles.open(str(copied)).records()
        (copied / name).write_text(json.dumps(content))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"version": 1}', '{"version": 1, "unknown": 2}'])
def test_damaged_files_are_named(copied: Path, content: str) -> None:
    (copied / "snapshot.json").write_text(content)
    with pytest.raises(DamagedError, match="is not a file of a snapshot"):
        SnapshotFiles.open(str(copied))


def test_a_folder_without_description_is_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match=r"has no snapshot\.json"):
        SnapshotFiles.open(str(tmp_path))


def test_a_chunk_that_does_not_continue_the_chain_is_ignored(copied: Path) -> None:
    files = SnapshotFiles.open(str(copied))
    before = files.records()
    path = copied / "chunk-000-000002.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "after": ["00", "00"]}))
    assert files.records() == [before[0], before[2]] and not files.is_complete()
    with pytest.raises(UsageError, match="is not complete"):
        files.high_seq()


def test_changed_rows_are_noticed(copied: Path) -> None:
    files = SnapshotFiles.open(str(copied))
    record = files.records()[0]
    path = copied / record.file
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    assert not files.is_sound(record)
    path.unlink()
    assert not files.is_sound(record)


def test_a_folder_at_a_uri_is_used_like_a_local_one(tmp_path: Path) -> None:
    local, remote = Folder(str(tmp_path / "a")), Folder("memory://towpath-snapshots/a")
    for folder in (local, remote):
        folder.make()
        assert folder.read("x") is None and folder.digest("x") is None
        folder.write("x", b"12")
        with folder.new_file() as new:
            new.path.write_bytes(b"rows")
            new.name = "y"
        with pytest.raises(KeyError), folder.new_file() as new:
            _fail(new.path)
        assert [name for name in folder.names() if not name.startswith(".")] == ["x", "y"]
        assert folder.read("x") == b"12"
        digest = folder.digest("y")
        assert digest is not None and digest[0] == 4
        folder.remove()
        folder.remove()
        assert folder.names() == []


def _fail(path: Path) -> None:
    path.write_bytes(b"half")
    raise KeyError
