"""Replaces rows by key in tables that this process writes (:mod:`cdc.lake.delta.local_tables`): the rows with one of
the batch's keys go, and the batch's rows come."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cdc.lake.delta.local_tables import Change, LeftToSparkError, rows_of
from cdc.lake.delta.row_replacement import Replaced

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc.lake.delta.local_tables import LocalTable
    from cdc.lake.rows.table_format import WrittenFile

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
Clauses = tuple[Sequence[tuple[str | None, str]], Sequence[tuple[str | None, str]]]
"""See :attr:`~cdc.lake.delta.local_tables.Change.matched` and ``inserted`` there."""


@dataclass(frozen=True)
class KeyNumbers:
    """Numbers of the distinct keys of some rows, to find these among other rows."""

    values: tuple[pa.Array, ...]
    """For each column its distinct values."""
    codes: tuple[Longs, ...]
    """For each column, ascending: a number for each combination of its values with those of the columns before."""

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray]) -> KeyNumbers:
        """``columns``: the key columns. Raises LeftToSparkError if a key is null or has a type that Arrow does not
        compare."""
        numbers = cls((), ())
        for column in columns:
            if column.null_count:
                raise LeftToSparkError("a key is null")
            numbers = replace(numbers, values=(*numbers.values, column.unique()))
            combined = numbers._combined(columns[: len(numbers.values)])
            numbers = replace(numbers, codes=(*numbers.codes, np.unique(combined)))
        return numbers

    def __len__(self) -> int:
        """The number of distinct keys."""
        return len(self.codes[-1])

    def find(self, columns: Sequence[pa.ChunkedArray]) -> Longs:
        """Returns the number of each row's key; -1 for other keys."""
        return _places(self.codes[-1], self._combined(columns))

    def _combined(self, columns: Sequence[pa.ChunkedArray]) -> Longs:
        import pyarrow as pa
        import pyarrow.compute as pc

        combined: Longs = np.zeros(len(columns[0]), dtype=np.int64)
        for number, (column, values) in enumerate(zip(columns, self.values, strict=True)):
            if number:
                combined = _places(self.codes[number - 1], combined)
            try:
                index = pc.index_in(column, value_set=values)
            except pa.ArrowException as error:
                raise LeftToSparkError(f"keys of type {column.type} cannot be compared here") from error
            places = pc.fill_null(index, -1).to_numpy().astype(np.int64)
            combined = np.where((combined < 0) | (places < 0), -1, combined * len(values) + places)
        return combined


def _places(sorted_codes: Longs, codes: Longs) -> Longs:
    """Returns where each code is among the sorted ones; -1 if it is not."""
    if not len(sorted_codes):
        return np.full(len(codes), -1, dtype=np.int64)
    places = np.minimum(np.searchsorted(sorted_codes, codes), len(sorted_codes) - 1)
    return np.where(sorted_codes[places] == codes, places, -1)


def columns_of(table: pa.Table, names: Sequence[str]) -> list[pa.ChunkedArray]:
    """Returns these columns of a table."""
    return [table.column(name) for name in names]


@dataclass(frozen=True)
class FewRows:
    """A few rows by key: at most one for each key. It replaces the row of the table with that key, or deletes it."""

    rows: pa.Table
    """They have the table's columns, and others."""
    keys: Sequence[str]
    deletes: Bools
    """For each row: it deletes."""
    replaces: Bools
    """For each row: it only replaces a row that is there, and is no new one."""
    clauses: Clauses

    def replace(self, table: LocalTable) -> Change:
        """Returns the change of a table that these rows make. Every row of the table with one of the keys goes: a table
        that somebody has damaged may have several."""
        import pyarrow as pa

        table.require_few_files()
        keys = columns_of(self.rows, self.keys)
        matches = _Matches.among(table, self.keys, KeyNumbers.of(keys), len(self.rows))
        replaced_rows = matches.counts[matches.numbers.find(keys)]
        comes = ~self.deletes & (~self.replaces | (replaced_rows > 0))
        new = self.rows.select(table.schema.names).cast(table.schema).filter(pa.array(comes))
        touched = [add for add in table.files if matches.goes[add["path"]].any()]
        removed = table.rewritten(touched) if touched or len(new) else []
        stay = [table.read(add).filter(pa.array(~matches.goes[add["path"]])) for add in removed]
        replaced = Replaced(
            inserted=int(np.count_nonzero(comes & (replaced_rows == 0))),
            updated=int(replaced_rows[~self.deletes].sum()),
            deleted=int(replaced_rows[self.deletes].sum()),
        )
        copied = sum(len(part) for part in stay)
        added = table.write(pa.concat_tables([*stay, new]).to_batches())
        return Change(removed, added, copied, replaced, *self.clauses, len(self.rows))


@dataclass(frozen=True)
class WrittenRows:
    """Rows by key as :class:`FewRows`, in files that can become files of the table."""

    files: Sequence[WrittenFile]
    """The rows that do not delete."""
    read_keys: Callable[[], tuple[pa.Table, pa.Table]]
    """Returns the keys of the rows that do not delete, and of those that do."""
    keys: Sequence[str]
    rows: int
    """The number of all rows."""
    upserts: int
    """The number of rows that do not delete."""
    clauses: Clauses

    def replace(self, table: LocalTable) -> Change:
        """Returns the change of a table that these rows make: its files without rows that stay go, others are written
        anew. Raises LeftToSparkError if the files have other numbers of rows."""
        if (written := sum(file.footer.num_rows for file in self.files)) != self.upserts:
            raise LeftToSparkError(f"{written} instead of {self.upserts} rows were written")
        replaced, removed, rewritten = Replaced(self.upserts, 0, 0), [], []
        with ThreadPoolExecutor(os.cpu_count() or 1, "replace") as pool:
            if table.files:
                matches, is_deleted = self._matches(table, pool)
                updated = matches.counts[~is_deleted]
                replaced = Replaced(
                    inserted=int(np.count_nonzero(updated == 0)),
                    updated=int(updated.sum()),
                    deleted=int(matches.counts[is_deleted].sum()),
                )
                removed = [add for add in table.files if matches.goes[add["path"]].any()]
                partly = [add for add in removed if not matches.goes[add["path"]].all()]
                rewritten = [*pool.map(lambda add: matches.rewrite(table, add), partly)]
            taken = [table.take(file) for file in self.files]
        copied = sum(rows_of(add) for adds in rewritten for add in adds)
        added = [*taken, *itertools.chain.from_iterable(rewritten)]
        return Change(removed, added, copied, replaced, *self.clauses, self.rows)

    def _matches(self, table: LocalTable, pool: Executor) -> tuple[_Matches, Bools]:
        """Returns the rows of the table that go, and for each key by its number whether its row is deleted."""
        import pyarrow as pa

        upserts, deletes = self.read_keys()
        keys = columns_of(pa.concat_tables([upserts, deletes]), self.keys)
        matches = _Matches.among(table, self.keys, KeyNumbers.of(keys), self.rows, pool)
        is_deleted = np.zeros(len(matches.numbers), dtype=np.bool_)
        is_deleted[matches.numbers.find(columns_of(deletes, self.keys))] = True
        return matches, is_deleted


@dataclass(frozen=True)
class _Matches:
    """The rows of a table with one of some keys."""

    numbers: KeyNumbers
    counts: Longs
    """How many rows have each key, by its number."""
    goes: Mapping[str, Bools]
    """For each file and row: it has one of the keys."""

    @classmethod
    def among(
        cls, table: LocalTable, keys: Sequence[str], numbers: KeyNumbers, rows: int, pool: Executor | None = None
    ) -> _Matches:
        """Looks through the files of a table. ``rows``: the number of rows that the keys are of. Raises
        LeftToSparkError if these are not as many keys."""
        if len(numbers) != rows:
            raise LeftToSparkError(f"{rows} changes have {len(numbers)} keys")

        def find(add: Mapping[str, Any]) -> Longs:
            return numbers.find(columns_of(table.read(add, keys), keys))

        counts = np.zeros(len(numbers), dtype=np.int64)
        goes: dict[str, Bools] = {}
        places = (pool.map if pool is not None else map)(find, table.files)
        for add, codes in zip(table.files, places, strict=True):
            goes[add["path"]] = codes >= 0
            counts += np.bincount(codes[codes >= 0], minlength=len(numbers))
        return cls(numbers, counts, goes)

    def rewrite(self, table: LocalTable, add: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Writes the rows of a file that stay into a new one, and returns its ``add`` action."""
        import pyarrow as pa

        goes, first = self.goes[add["path"]], 0

        def rows() -> Iterator[pa.RecordBatch]:
            nonlocal first
            for batch in table.batches(add):
                yield batch.filter(pa.array(~goes[first : first + len(batch)]))
                first += len(batch)

        return table.write(rows())
