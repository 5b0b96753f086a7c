"""The files of a Delta table by the statistics in its log: which of them may hold some keys, and how large they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cdc.lake.delta.log import DeltaState, open_delta, open_newest

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc.lake.rows.key_plan import KeyRanges

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_LIMITS = np.iinfo(np.int64)

SCATTERED_BYTES = 32 * 1024 * 1024
"""Files of fewer bytes together are rewritten: that is as fast as marking rows, and leaves no deletion vectors."""
SMALL_BYTES = 32 * 1024 * 1024
"""Tables of at most this size are read whole by each statement, and by one task if few rows are replaced."""
SCATTERED_SHARE = 0.1
"""Changed rows are scattered if they are at most this share of the rows in the files that hold them."""
WIDE_SHARE = 0.5
"""Ranges of keys are wide from this share of the values in the files that may hold them."""


@dataclass(frozen=True)
class Touched:
    """The files that a merge has to change, as far as the statistics tell."""

    files: int
    rows: int
    """The rows in these files, with those that are marked as deleted."""
    bytes: int

    def is_scattered(self, changed: int) -> bool:
        """Whether marking ``changed`` rows in deletion vectors is better than rewriting the files."""
        return self.bytes >= SCATTERED_BYTES and changed <= SCATTERED_SHARE * self.rows


@dataclass(frozen=True)
class TableFiles:
    """The files of a table at one version."""

    table: pa.Table
    """One row per file, as ``get_add_actions(flatten=True)`` gives them."""
    is_mapped: bool
    """The statistics have other names than the columns, so they tell nothing."""

    @classmethod
    def of(cls, state: DeltaState, table: str) -> TableFiles | None:
        """Returns the files of the table ``db.table`` at this version. Returns None if there is no table any more."""
        import pyarrow as pa

        is_mapped = state.properties.get("delta.columnMapping.mode", "none") != "none"
        with open_newest(state.path, table) as newest:
            if newest is None:
                return None
            if newest.delta.version() == state.version:
                return cls(pa.table(newest.delta.get_add_actions(flatten=True)), is_mapped)
        with open_delta(state.path, table) as delta:
            if delta is None:
                return None
            delta.load_as_version(state.version)
            return cls(pa.table(delta.get_add_actions(flatten=True)), is_mapped)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return int(self._numbers("size_bytes", 0).sum())

    @property
    def is_small(self) -> bool:
        return self.size_bytes <= SMALL_BYTES

    @property
    def count(self) -> int:
        return int(self.table.num_rows)

    def adds(self, keys: Mapping[str, KeyRanges]) -> list[dict[str, Any]]:
        """Returns the ``add`` actions of the files that may have a row with one of these keys, with the number of rows
        as their only statistics. The table has neither partitions nor deletion vectors."""
        import pyarrow as pa

        names = ("path", "size_bytes", "modification_time", "num_records")
        columns = [self.table.column(name).filter(pa.array(self._candidates(keys))) for name in names]
        return [
            {
                "path": path,
                "partitionValues": {},
                "size": size,
                "modificationTime": modified,
                "dataChange": True,
                "stats": json.dumps({"numRecords": rows}),
            }
            for path, size, modified, rows in zip(*(column.to_pylist() for column in columns), strict=True)
        ]

    def may_hold(self, keys: Mapping[str, KeyRanges]) -> bool:
        """Whether a file may have a row with each of these columns in one of its ranges. Returns True if the statistics
        do not tell."""
        return bool(self._candidates(keys).any())

    def are_wide(self, keys: Mapping[str, KeyRanges]) -> bool:
        """Whether reading only the rows in these ranges saves little in the files that may have some: each column's
        ranges have most of the values between the least and the greatest of a file. Returns False if the statistics do
        not tell."""
        if self.is_mapped:
            return False
        candidates = self._candidates(keys)
        for column, ranges in keys.items():
            least = self._numbers(f"min.{column}", _LIMITS.min)[candidates].astype(np.float64)
            greatest = self._numbers(f"max.{column}", _LIMITS.max)[candidates].astype(np.float64)
            if ranges.values_between(least, greatest).sum() < WIDE_SHARE * (greatest - least + 1).sum():
                return False
        return True

    def touched(self, keys: Mapping[str, KeyRanges], changed: int) -> Touched:
        """Returns what a merge of ``changed`` rows with these keys has to change, at most one file for each row."""
        candidates = self._candidates(keys)
        candidate_count = int(candidates.sum())
        files = min(candidate_count, changed)
        share = files / candidate_count if candidate_count else 0.0

        def total(column: str) -> int:
            return int(self._numbers(column, 0)[candidates].sum() * share)

        return Touched(files, total("num_records"), total("size_bytes"))

    def _candidates(self, keys: Mapping[str, KeyRanges]) -> Bools:
        possible = np.ones(self.table.num_rows, dtype=np.bool_)
        if self.is_mapped:
            return possible
        for column, ranges in keys.items():
            least = self._numbers(f"min.{column}", _LIMITS.min)
            greatest = self._numbers(f"max.{column}", _LIMITS.max)
            first = np.searchsorted(ranges.highs, least, side="left")
            behind = np.searchsorted(ranges.lows, greatest, side="right")
            possible &= first < behind
        return possible

    def _numbers(self, column: str, absent: int) -> Longs:
        """Returns the integers of a column; ``absent`` where there are none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.table.schema.get_all_field_indices(column) != []:
            values = self.table.column(column)
            if pa.types.is_integer(values.type):
                numbers: Longs = pc.fill_null(values.cast(pa.int64()), absent).to_numpy()
                return numbers
        return np.full(self.table.num_rows, absent, dtype=np.int64)
