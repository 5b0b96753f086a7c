"""Looks up keys in the statistics of a table's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.lake.delta.files import SCATTERED_BYTES, TableFiles, Touched
from cdc.lake.delta.log import DeltaState, read_state
from cdc.lake.rows.key_plan import KeyRanges


def ranges(*pairs: tuple[int, int]) -> dict[str, KeyRanges]:
    lows, highs = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in range(2))
    return {"id": KeyRanges(lows, highs)}


@pytest.fixture
def state(tmp_path: Path) -> DeltaState:
    """A table with the files 0..9, 20..29 and one whose ids are null."""
    path = str(tmp_path / "t")
    for ids in (range(10), range(20, 30), [None, None]):
        write_deltalake(path, pa.table({"id": pa.array(ids, pa.int64()), "v": ["x"] * len(ids)}), mode="append")
    state = read_state(path, "shop", "shop.t")
    assert state is not None
    return state


def files_of(state: DeltaState) -> TableFiles:
    files = TableFiles.of(state, "shop.t")
    assert files is not None
    return files


def test_files_that_hold_keys_are_found(state: DeltaState) -> None:
    files = files_of(state)

    def touched(*pairs: tuple[int, int]) -> int:
        return files.touched(ranges(*pairs), 1000).files

    # The file without bounds may hold any key.
    assert touched((10, 19)) == 1
    assert touched((9, 9)) == touched((20, 20)) == touched((29, 40)) == 2
    assert touched((-5, -1), (12, 12), (30, 30)) == 1
    assert touched((-5, 0), (29, 29)) == 3
    assert files.touched({}, 1000).rows == 22
    assert files.touched({"v": ranges((1, 1))["id"]}, 1000).files == 3  # no statistics of integers


def test_ranges_are_wide_if_they_have_most_of_the_values(state: DeltaState) -> None:
    write_deltalake(
        state.path,
        pa.table({"id": pa.array([*range(10), *range(20, 30)]), "v": ["x"] * 20}),
        mode="overwrite",
    )
    table_state = read_state(state.path, "shop", "shop.t")
    assert table_state is not None
    files = files_of(table_state)  # one file, 0..29
    assert files.are_wide(ranges((0, 29)))
    assert files.are_wide(ranges((-100, 14)))
    assert not files.are_wide(ranges((-100, 13)))
    assert files.are_wide(ranges((-5, -1), (0, 4), (6, 10), (15, 19), (40, 50)))
    assert not files.are_wide(ranges((-5, -1), (0, 4), (6, 10), (15, 18), (40, 50)))
    assert not files.are_wide(ranges((-(2**63), -1), (3, 3)))
    assert files.are_wide(ranges((-(2**63), 2**63 - 1)))
    assert not files.are_wide({**ranges((0, 29)), "v": ranges((1, 1))["id"]})  # no statistics of integers


def test_nothing_is_wide_without_statistics(state: DeltaState) -> None:
    assert not files_of(state).are_wide(ranges((0, 30)))


def test_one_row_touches_one_file(state: DeltaState) -> None:
    touched = files_of(state).touched(ranges((0, 30)), 1)
    assert (touched.files, touched.rows) == (1, 22 // 3)


def test_a_table_is_read_at_the_version_of_its_state(state: DeltaState) -> None:
    write_deltalake(state.path, pa.table({"id": [50], "v": ["y"]}), mode="append")
    DeltaTable(state.path).delete("id IS NULL")
    assert files_of(state).table.num_rows == 3
    assert files_of(state).may_hold(ranges((40, 45)))  # by the file without bounds
    newest = read_state(state.path, "shop", "shop.t")
    assert newest is not None
    assert files_of(newest).may_hold(ranges((50, 50)))
    assert not files_of(newest).may_hold(ranges((40, 45)))


@pytest.mark.parametrize(
    ("touched", "changed", "scattered"),
    [
        (Touched(10, 1000, SCATTERED_BYTES), 100, True),
        (Touched(10, 1000, SCATTERED_BYTES), 101, False),
        (Touched(10, 1000, SCATTERED_BYTES - 1), 1, False),
        (Touched(0, 0, 0), 0, False),
    ],
)
def test_scattered_changes_are_few_rows_in_many_bytes(touched: Touched, changed: int, scattered: bool) -> None:
    assert touched.is_scattered(changed) is scattered
