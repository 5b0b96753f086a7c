"""Copies of logs in object stores: they follow the table, and notice another one. The store is fsspec's, in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.base.errors import RetryableError
from cdc.lake.delta import mirrors
from cdc.lake.delta.log import open_delta, open_newest

ROWS = pa.table({"id": [1, 2]})
URI = "memory://lake/shop/a%20b"


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TOWPATH_CACHE", str(tmp_path / "cache"))
    clear()  # tests of other modules have objects in this store, too
    yield
    clear()


def clear() -> None:
    files = fsspec.filesystem("memory")
    if files.exists("/lake"):
        files.rm("/lake", recursive=True)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "made", ROWS)
    return tmp_path / "made"


def put(table: Path) -> None:
    """Makes the object store hold what the folder holds."""
    clear()
    files = fsspec.filesystem("memory")
    for file in table.rglob("*"):
        if file.is_file():
            files.pipe_file(f"/lake/shop/a%20b/{file.relative_to(table)}", file.read_bytes())


def version(*, whole: bool = False) -> int | None:
    with mirrors.mirrored(URI, 2, whole=whole) as mirror:
        return None if mirror is None else DeltaTable(mirror).version()


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records what is read from the object store from now on."""
    calls: list[str] = []
    kind = type(fsspec.filesystem("memory"))
    for name in ("info", "cat_file", "ls"):
        original = getattr(kind, name)

        def call(
            self: object, path: str, *args: object, _name: str = name, _call: object = original, **more: object
        ) -> object:
            calls.append(f"{_name} {str(path).rpartition('/')[2]}")
            return _call(self, path, *args, **more)  # type: ignore[operator]

        monkeypatch.setattr(kind, name, call)
    return calls


def test_a_copy_follows_the_table(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert version() is None
    put(table)
    assert version() == 0
    write_deltalake(table, ROWS, mode="append")
    write_deltalake(table, ROWS, mode="append")
    put(table)
    assert version() == 2
    seen = reads(monkeypatch)
    assert version() == 2
    assert "ls" not in " ".join(seen)
    assert seen[-1] == "cat_file 00000000000000000003.json", "the commit that is not there"
    with open_newest(URI, "shop.a b") as mirror:
        assert mirror is not None
        assert mirror.delta.version() == 2
        assert len(mirror.commits) == 3


@pytest.mark.parametrize("commits", [1, 4])
def test_another_table_is_noticed(table: Path, tmp_path: Path, commits: int) -> None:
    """It has fewer commits than the one that was read, or more."""
    write_deltalake(table, ROWS, mode="append")
    put(table)
    assert version() == 1
    for _ in range(commits):
        write_deltalake(tmp_path / "other", pa.table({"name": ["x"]}), mode="append")
    put(tmp_path / "other")
    with mirrors.mirrored(URI, 2) as mirror:
        assert mirror is not None
        delta_table = DeltaTable(mirror)
        assert [field.name for field in delta_table.schema().fields] == ["name"]
        assert delta_table.version() == commits - 1
    fsspec.filesystem("memory").rm("/lake", recursive=True)
    assert version() is None


def test_a_copy_begins_at_the_last_checkpoint_unless_all_is_wanted(table: Path) -> None:
    for _ in range(9):
        write_deltalake(table, ROWS, mode="append")
    DeltaTable(table).create_checkpoint()
    write_deltalake(table, ROWS, mode="append")
    put(table)
    with mirrors.mirrored(URI, 2) as mirror:
        assert mirror is not None
        names = sorted(os.listdir(mirror / "_delta_log"))
        assert names[0] == "00000000000000000007.json"
        assert DeltaTable(mirror).version() == 10
    with open_delta(URI, "shop.a b") as delta:
        assert delta is not None
        delta.load_as_version(0)
    assert version() == 10


def test_many_commits_make_the_copy_anew(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "MOST_COMMITS", 2)
    put(table)
    assert version() == 0
    for _ in range(3):
        write_deltalake(table, ROWS, mode="append")
    put(table)
    assert version() == 3
    seen = reads(monkeypatch)
    assert version() == 3
    assert seen[0] == "ls _delta_log"


def test_an_error_of_the_object_store_leaves_no_gap(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltalake(table, ROWS, mode="append")
    write_deltalake(table, ROWS, mode="append")
    put(table)
    kind = type(fsspec.filesystem("memory"))
    cat_file = kind.cat_file

    def slow_down(self: object, path: str, *args: object, **more: object) -> object:
        if path.endswith("1.json"):
            raise OSError("Reduce your request rate.")
        return cat_file(self, path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "cat_file", slow_down)
        with pytest.raises(RetryableError, match="Reduce your request rate"):
            version()
    with open_newest(URI, "shop.a b") as mirror:
        assert mirror is not None
        assert len(mirror.commits) == 3


@pytest.mark.parametrize("damage", ["known", "commit", "all"])
def test_a_damaged_copy_is_made_anew(table: Path, tmp_path: Path, damage: str) -> None:
    write_deltalake(table, ROWS, mode="append")
    put(table)
    assert version() == 1
    (folder,) = (tmp_path / "cache" / "logs").iterdir()
    if damage == "known":
        (folder / "known.json").write_text(json.dumps({"format": 99}))
    elif damage == "commit":
        (folder / "table" / "_delta_log" / "00000000000000000001.json").unlink()
    else:
        for file in sorted(folder.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
    assert version() == 1


def test_an_unreachable_store_is_no_missing_table(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(table)
    assert version() == 0

    def refuse(*_args: object, **_more: object) -> object:
        raise PermissionError("Forbidden")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", refuse)
    with pytest.raises(RetryableError, match=r"the object store cannot be read: Forbidden"):
        version()
