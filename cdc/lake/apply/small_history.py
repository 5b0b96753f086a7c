"""The versions of rows for mode ``scd2``, found in this process, for a few changes of a small table.

The versions are those of :mod:`cdc.lake.apply.versions`, which says what they are; a test compares both. The table is
the one of the transaction's version, whose applied position was read, so no other commit can have written some of
these versions already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cdc.base.targets import MODE_COLUMNS
from cdc.decode.layout import DELETE
from cdc.lake.delta.keyed_rows import KeyNumbers, columns_of
from cdc.lake.delta.local_tables import Change, LeftToSparkError
from cdc.lake.delta.row_replacement import Replaced

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from cdc.lake.delta.local_tables import LocalTable

Longs = npt.NDArray[np.int64]
_NONE = np.iinfo(np.int64).min
"""Stands for a moment that is not there."""
_CLAUSES = ([(None, "update")], [(None, "insert")])


@dataclass
class _Key:
    """The versions of one key in the table."""

    open_seq: int | None = None
    """The ``_seq`` of the open version; None: there is none."""
    floor: int = _NONE
    """The end of the latest interval, or its beginning while it is open, in microseconds."""


@dataclass(frozen=True)
class _Versions:
    """The versions that the changes begin, and the ends of those that the table has."""

    rows: Sequence[int]
    """The changes that begin a version."""
    begins: Sequence[int]
    ends: Sequence[int | None]
    """In microseconds; None: the version is open."""
    closed: Mapping[int, int]
    """The numbers of keys whose open version ends, and when."""


@dataclass(frozen=True)
class FewChanges:
    """All changes of a batch to one table, in the order of the source; a row that changes its key is deleted first."""

    rows: pa.Table
    """With the columns of the source's table and the metadata columns."""
    keys: Sequence[str]

    def versions(self, table: LocalTable) -> Change:
        """Returns the change of a table that adds the new versions and closes the open ones. Raises LeftToSparkError
        if the table has versions that Spark has to tell apart."""
        import pyarrow as pa

        if self.rows.column("_commit_time").null_count:
            raise LeftToSparkError("a commit has no time")
        table.require_few_files()
        numbers = KeyNumbers.of(columns_of(self.rows, self.keys))
        codes = numbers.find(columns_of(self.rows, self.keys))
        parts = {add["path"]: _read(table, add, self.keys, numbers) for add in table.files}
        keys = _keys_of(list(parts.values()), len(numbers))
        versions = _versions_of(self.rows, codes, keys)
        open_rows = {path: part.open_rows(versions.closed) for path, part in parts.items()}
        new = _new_rows(self.rows, versions, table.schema)
        touched = [add for add in table.files if open_rows[add["path"]].any()]
        removed = table.rewritten(touched) if touched or len(new) else []
        rewritten = [
            _closed(table.read(add), open_rows[add["path"]], parts[add["path"]].codes, versions.closed)
            for add in removed
        ]
        replaced = Replaced(len(new), len(versions.closed), 0)
        copied = sum(len(part) for part in rewritten) - len(versions.closed)
        added = table.write(pa.concat_tables([*rewritten, new]).to_batches())
        return Change(removed, added, copied, replaced, *_CLAUSES, len(new) + len(versions.closed))


@dataclass(frozen=True)
class _Part:
    """The versions in one file."""

    codes: Longs
    """For each row the number of its key; -1: the batch does not change it."""
    seq: Longs
    begins: Longs
    ends: Longs
    """:data:`_NONE` for open versions."""

    def open_rows(self, closed: Mapping[int, int]) -> npt.NDArray[np.bool_]:
        """Returns which rows are open versions of these keys."""
        is_closed = np.isin(self.codes, np.fromiter(closed, np.int64, len(closed)))
        is_open: npt.NDArray[np.bool_] = self.ends == _NONE
        return is_open & is_closed


def _read(table: LocalTable, add: Mapping[str, Any], keys: Sequence[str], numbers: KeyNumbers) -> _Part:
    rows = table.read(add, [*keys, "_seq", "_valid_from", "_valid_to"])
    if rows.column("_seq").null_count:
        raise LeftToSparkError("a version has no _seq")
    codes = numbers.find(columns_of(rows, keys))
    return _Part(
        codes, rows.column("_seq").to_numpy(), _moments(rows.column("_valid_from")), _moments(rows.column("_valid_to"))
    )


def _moments(column: pa.ChunkedArray) -> Longs:
    """Returns moments in microseconds; :data:`_NONE` for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    moments: Longs = pc.fill_null(column.cast(pa.int64()), _NONE).to_numpy()
    return moments


def _keys_of(parts: Sequence[_Part], count: int) -> list[_Key]:
    """Returns what the table has of each key, by its number. Raises LeftToSparkError for a key with two versions that
    are open, or of one ``_seq``."""
    keys = [_Key() for _ in range(count)]
    versions: set[tuple[int, int]] = set()
    for part in parts:
        for row in np.flatnonzero(part.codes >= 0).tolist():
            code, seq, end = int(part.codes[row]), int(part.seq[row]), int(part.ends[row])
            key = keys[code]
            key.floor = max(key.floor, int(part.begins[row]) if end == _NONE else end)
            if (code, seq) in versions or (end == _NONE and key.open_seq is not None):
                raise LeftToSparkError("a key has several versions that are open, or of one _seq")
            versions.add((code, seq))
            if end == _NONE:
                key.open_seq = seq
    return keys


def _versions_of(changes: pa.Table, codes: Longs, keys: Sequence[_Key]) -> _Versions:
    seqs, ops = changes.column("_seq").to_numpy(), changes.column("_op").to_numpy()
    times = _moments(changes.column("_commit_time"))
    last: dict[int, dict[int, int]] = {}  # of each key, the last change in each transaction
    for row, (code, seq) in enumerate(zip(codes.tolist(), seqs.tolist(), strict=True)):
        last.setdefault(code, {})[seq] = row
    rows: list[int] = []
    begins: list[int] = []
    ends: list[int | None] = []
    closed: dict[int, int] = {}
    for code, rows_by_seq in last.items():
        key = keys[code]
        had_row, now = key.open_seq is not None, key.floor
        is_open, is_first = False, True  # whether the last of the new versions is open
        for row in rows_by_seq.values():
            is_delete = int(ops[row]) == DELETE
            if not is_delete or had_row:  # else a row is deleted that is not there
                now = max(now, int(times[row]))
                if is_open:
                    ends[-1] = now
                if is_first and key.open_seq is not None:
                    closed[code] = now
                is_open, is_first = not is_delete, False
                if is_open:
                    rows.append(row)
                    begins.append(now)
                    ends.append(None)
            had_row = not is_delete
    return _Versions(rows, begins, ends, closed)


def _new_rows(changes: pa.Table, versions: _Versions, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    rows = changes.take(pa.array(versions.rows, pa.int64()))
    moment = schema.field("_valid_from").type
    added = {
        "_valid_from": pa.array(versions.begins, pa.int64()).cast(moment),
        "_valid_to": pa.array(versions.ends, pa.int64()).cast(moment),
        "_current": pa.array([end is None for end in versions.ends], pa.bool_()),
    }
    assert {*added, "_seq"} == {*MODE_COLUMNS["scd2"]}
    columns = [added[name] if name in added else rows.column(name) for name in schema.names]
    return pa.table(columns, names=schema.names).cast(schema)


def _closed(rows: pa.Table, is_open: npt.NDArray[np.bool_], codes: Longs, closed: Mapping[int, int]) -> pa.Table:
    """Returns the rows of a file, in which the open versions of these keys end."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_open.any():
        return rows
    mask = pa.array(is_open)
    ends = pa.array([closed.get(code) for code in codes.tolist()], pa.int64())
    values = {
        "_valid_to": ends.cast(rows.schema.field("_valid_to").type),
        "_current": pa.array(np.zeros(len(rows), dtype=np.bool_)),
    }
    for name, value in values.items():
        place = rows.schema.get_field_index(name)
        column = pc.if_else(mask, value, rows.column(name).combine_chunks())
        rows = rows.set_column(place, rows.schema.field(place), column)
    return rows
