"""A table whose log is read step by step is the same as one whose whole log is read."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from cdc.base.targets import application_id
from cdc.lake.delta import log
from cdc.lake.delta.files import TableFiles
from cdc.lake.delta.known_tables import KnownTables
from cdc.lake.delta.log import DeltaState, read_state

NAME = "shop.t"


@pytest.fixture(autouse=True)
def known_tables(monkeypatch: pytest.MonkeyPatch) -> KnownTables:
    fresh = KnownTables(log.LEDGER_DEPTH)
    monkeypatch.setattr(log, "_known_tables", fresh)
    return fresh


def commit(path: Path, seq: int) -> None:
    """Appends a row, with an applied position and an entry in the ledger."""
    metadata = {"destination": "shop", "table": NAME, "last_seq": seq, "generation": 0, "batch": seq}
    properties = CommitProperties(
        custom_metadata={"userMetadata": json.dumps(metadata)},
        app_transactions=[Transaction(application_id("shop", NAME), seq)],
    )
    write_deltalake(str(path), pa.table({"id": [seq]}), mode="append", commit_properties=properties)


def step(path: Path) -> DeltaState | None:
    return read_state(str(path), "shop", NAME)


def whole(path: Path) -> DeltaState | None:
    """Reads the state as a process does that has not seen the table."""
    with mock.patch.object(log, "_known_tables", KnownTables(log.LEDGER_DEPTH)):
        return read_state(str(path), "shop", NAME)


def files_of(state: DeltaState) -> list[object]:
    files = TableFiles.of(state, NAME)
    assert files is not None
    return sorted(files.table.column("path").to_pylist())


class History:
    """A table to which anything may happen."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path, self.rng, self.seq, self.copies = path, rng, 0, 0

    def happen(self) -> None:
        acts = [self.append] * 6
        if self.path.exists():
            acts += [self.delete, self.checkpoint, self.clean, self.drop, self.replace, self.restore, self.alter]
            acts += [self.copy, self.put_back]
        self.rng.choice(acts)()

    def append(self) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 12, 60))):
            self.seq += 1
            commit(self.path, self.seq)

    def delete(self) -> None:
        DeltaTable(str(self.path)).delete(f"id % 3 = {self.rng.randrange(3)}")

    def checkpoint(self) -> None:
        DeltaTable(str(self.path)).create_checkpoint()

    def clean(self) -> None:
        """Removes commits before the last checkpoint, as the cleanup of the log does."""
        last = self.path / "_delta_log" / "_last_checkpoint"
        if last.exists():
            for version in range(json.loads(last.read_text())["version"]):
                (self.path / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=True)

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def replace(self) -> None:
        """Puts another table under the same path, with about as many versions."""
        versions = DeltaTable(str(self.path)).version() + self.rng.randrange(3)
        shutil.rmtree(self.path)
        for _ in range(min(versions, 20) + 1):
            self.seq += 1
            commit(self.path, self.seq)

    def restore(self) -> None:
        delta = DeltaTable(str(self.path))
        kept = sorted(int(file.stem) for file in (self.path / "_delta_log").glob("*.json") if file.stem.isdigit())
        if kept[0] == 0 and len(kept) > 2:
            delta.restore(self.rng.choice(kept[:-1]))

    def alter(self) -> None:
        DeltaTable(str(self.path)).alter.set_table_properties({"delta.appendOnly": "false", "delta.logRetentionDuration": f"interval {self.rng.randrange(100, 999)} days"})  # fmt: skip

    def copy(self) -> None:
        shutil.rmtree(self.path.with_name("copy"), ignore_errors=True)
        shutil.copytree(self.path, self.path.with_name("copy"))

    def put_back(self) -> None:
        """Puts an older copy in the table's place, either as the folder or file by file, and goes on from there."""
        copy = self.path.with_name("copy")
        if not copy.exists():
            return
        if self.rng.random() < 0.5:
            shutil.rmtree(self.path)
            shutil.copytree(copy, self.path)
        else:
            shutil.rmtree(self.path / "_delta_log")
            (self.path / "_delta_log").mkdir()
            for file in (copy / "_delta_log").iterdir():
                shutil.copy(file, self.path / "_delta_log")
            for file in copy.glob("*.parquet"):
                shutil.copy(file, self.path)
        for _ in range(self.rng.randrange(4)):
            self.seq += 1
            commit(self.path, self.seq)


@pytest.mark.parametrize("run", [0, *(pytest.param(run, marks=pytest.mark.long) for run in range(1, 6))])
def test_random_histories(run: int, tmp_path: Path, seed: int) -> None:
    history = History(tmp_path / "t", random.Random(f"{seed} {run} histories"))
    for _ in range(25):
        history.happen()
        if history.rng.random() < 0.7:
            state = step(history.path)
            assert state == whole(history.path)
            if state is not None:
                with mock.patch.object(log, "_known_tables", KnownTables(log.LEDGER_DEPTH)):
                    expected = files_of(state)
                assert files_of(state) == expected


def test_a_table_that_is_known_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "t"
    commit(path, 1)
    assert step(path) is not None
    with mock.patch.object(log, "_opened", side_effect=AssertionError("the whole log is read")):
        for seq in (2, 3):
            commit(path, seq)
            state = step(path)
            assert state is not None
            assert (state.applied_seq, len(state.ledger)) == (seq, seq)
            assert len(files_of(state)) == seq
    older = whole(path)
    assert older is not None
    commit(path, 4)
    assert len(files_of(older)) == 3  # at its own version


def test_a_table_that_was_replaced_by_one_with_as_many_versions_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for folder, first in ((path, 1), (tmp_path / "other", 50)):
        for seq in range(first, first + 3):
            commit(folder, seq)
    before = step(path)
    # The log's folder stays the same, only its files are others.
    for file in (tmp_path / "other" / "_delta_log").iterdir():
        shutil.copy(file, path / "_delta_log" / file.name)
    state = step(path)
    assert before is not None
    assert state is not None
    assert state.applied_seq == 52
    assert state.id != before.id
    assert state == whole(path)


def test_tables_that_are_not_used_are_forgotten(
    tmp_path: Path, known_tables: KnownTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.lake.delta.known_tables.MOST_TABLES", 2)
    for i in range(4):
        commit(tmp_path / str(i), 1)
        assert step(tmp_path / str(i)) is not None
    assert [path.name for path in known_tables._tables] == ["2", "3"]
    assert np.all([whole(tmp_path / str(i)) is not None for i in range(4)])
