"""The key plan of a batch: which changes are the last ones of their keys, found before Spark reads any row.

The driver decodes the key columns alone, in threads, and finds the last change of each key. Each input split gets the
choice of its rows that win, so that tasks give only those: nothing is shuffled, sorted or cached. A task checks that it
has decoded the rows that the plan was made of.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cdc.decode.last_changes import UnplannableError, joined, keys_of, last_changes
from cdc.log import get_logger
from spark_jobs.source import null_dates
from spark_jobs.source.changes import local_frame, mapped_frame
from spark_jobs.source.row_choice import SEEN, RowChoice
from spark_jobs.source.split_reader import SplitReader, arrow_schema, without_extras

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from cdc.decode.last_changes import Keys, LastChanges
    from spark_jobs.runtime.session import TableSession
    from spark_jobs.source.input_splits import InputSplit

MAX_BYTES = 512 * 1024 * 1024
"""The memory that a plan may take: enough for five to eight million changes with short keys. A batch that needs more is
reduced by Spark."""
MAX_RANGES = 16
"""The ranges of a key that the statement of a small batch names."""
_log = get_logger(__name__)
_one_large = threading.Lock()
"""Held while a plan is made whose changes are not decoded already, so that one plan's memory is the process's."""


@dataclass(frozen=True)
class KeyRanges:
    """Ranges of an integer column that do not overlap, in ascending order, both ends included."""

    lows: npt.NDArray[np.int64]
    highs: npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyPlan:
    """The last changes of a batch's keys."""

    choices: tuple[RowChoice, ...]
    """For each split."""
    found: LastChanges
    null_dates: int
    """Zero and impossible dates that became null, in all changes."""
    tables: tuple[pa.Table, ...] = ()
    """The changes of each split, if they were to be kept."""

    @property
    def rows(self) -> int:
        """How many rows win, which is the number of keys."""
        return self.found.keys

    def upserts(self, *, seen: bool) -> int:
        """Returns how many of these rows are no deletes; with ``seen``, how many have a change that is none."""
        kinds = self.found.seen if seen else self.found.kept
        return int(sum(np.count_nonzero(one & last) for one, last in zip(kinds, self.found.last, strict=True)))

    def spans(self, names: Sequence[str]) -> list[list[tuple[Any, Any]]]:
        """Returns for each key column the ranges, as Arrow scalars, that hold all its values; none for a column without
        an order. In a small batch, few values have a range each, and integers have several ranges with the widest gaps
        between them."""
        import pyarrow as pa

        found: list[list[tuple[Any, Any]]] = []
        for name, bound in zip(names, self.found.bounds, strict=True):
            if bound is None:
                found.append([])
            elif not self.tables:
                found.append([bound])
            elif pa.types.is_integer(bound[0].type):
                found.append([(pa.scalar(low), pa.scalar(high)) for low, high in clusters(self._integers(name))])
            else:
                values = self._values(name).unique()
                found.append([(one, one) for one in values] if len(values) <= MAX_RANGES else [bound])
        return found

    def integer_ranges(self, names: Sequence[str]) -> dict[str, KeyRanges]:
        """Returns the ranges of each key column with integers: in a small batch its values, else the range of all."""
        import pyarrow as pa

        found = {}
        for name, bound in zip(names, self.found.bounds, strict=True):
            if bound is None or not pa.types.is_integer(bound[0].type):
                continue
            if self.tables:
                values = self._integers(name)
                found[name] = KeyRanges(values, values)
            else:
                low, high = (np.array([one.as_py()], dtype=np.int64) for one in bound)
                found[name] = KeyRanges(low, high)
        return found

    def _integers(self, name: str) -> npt.NDArray[np.int64]:
        """Returns the distinct values of an integer column, ascending."""
        return np.unique(self._values(name).to_numpy().astype(np.int64))

    def _values(self, name: str) -> pa.ChunkedArray:
        import pyarrow as pa

        return pa.chunked_array([chunk for table in self.tables for chunk in table.column(name).chunks])


def clusters(values: npt.NDArray[np.int64], most: int = MAX_RANGES) -> list[tuple[int, int]]:
    """Returns at most ``most`` ranges, both ends included, that hold these ascending values, and not the widest gaps
    between them."""
    gaps = np.diff(values)
    widest = np.argsort(-gaps, kind="stable")[: most - 1]
    cuts = np.sort(widest[gaps[widest] > 1])
    lows, highs = [0, *(cuts + 1).tolist()], [*cuts.tolist(), len(values) - 1]
    return [(int(values[low]), int(values[high])) for low, high in zip(lows, highs, strict=True)]


def make_plan(reader: SplitReader, splits: Sequence[InputSplit], names: Sequence[str], *, keep: bool) -> KeyPlan | None:
    """Returns the plan of the changes that ``reader`` reads from these splits. Returns None if they must be reduced by
    Spark: they need more than :data:`MAX_BYTES`, or have a key that cannot be compared here.

    ``names``: the key columns in Delta; ``reader`` must read them, and may read others. ``keep``: the changes are
    kept in :attr:`KeyPlan.tables`; only for few changes. Raises what :meth:`SplitReader.read` raises.
    """
    decoded: list[_DecodedSplit] = []
    memory = 0
    try:
        if keep:
            decoded = [_decode(reader, one, names, keep=True) for one in splits]
        else:
            with _one_large, ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="plan") as pool:
                try:
                    for one in pool.map(lambda split: _decode(reader, split, names, keep=False), splits):
                        decoded.append(one)
                        memory += one.keys.memory
                        if memory > MAX_BYTES:
                            raise UnplannableError(f"the keys of a batch take more than {MAX_BYTES >> 20} MiB")
                finally:
                    pool.shutdown(wait=True, cancel_futures=True)
        found = last_changes([one.keys for one in decoded])
    except UnplannableError as reason:
        _log.info("Spark finds the last change of each key", table=reader.table, reason=str(reason))
        return None
    parts = list(zip(found.last, found.seen, decoded, strict=True))
    return KeyPlan(
        choices=tuple(RowChoice.of(last, seen, one.keys) for last, seen, one in parts),
        found=found,
        null_dates=sum(one.null_dates for one in decoded),
        tables=tuple(one.table for one in decoded if one.table is not None),
    )


def planned_frame(
    session: TableSession, reader: SplitReader, splits: Sequence[InputSplit], plan: KeyPlan, *, seen: bool
) -> DataFrame:
    """Returns the rows that win, with the columns of ``reader`` and, with ``seen``,
    :data:`~spark_jobs.source.row_choice.SEEN`."""
    from pyspark.sql import types as t

    fields = t.StructType([*reader.fields, t.StructField(SEEN, t.BooleanType())]) if seen else reader.fields
    if plan.tables:
        import pyarrow as pa

        parts = []
        for table, last, was_seen in zip(plan.tables, plan.found.last, plan.found.seen, strict=True):
            part = table.filter(pa.array(last))
            parts.append(part.append_column(SEEN, pa.array(was_seen[last])) if seen else part)
        return local_frame(session, pa.concat_tables(parts), fields)
    # Splits without such a row are decoded, too: a value that cannot be decoded fails the batch wherever it is.
    return mapped_frame(session, replace(reader, fields=fields, choices=plan.choices), splits)


@dataclass(frozen=True)
class _DecodedSplit:
    keys: Keys
    null_dates: int
    table: pa.Table | None


def _decode(reader: SplitReader, one: InputSplit, names: Sequence[str], *, keep: bool) -> _DecodedSplit:
    import pyarrow as pa

    batches, keys, nulls = [], [], 0
    for batch in reader.read(one):
        if null_dates.COLUMN in batch.schema.names:
            nulls += int(np.sum(batch.column(null_dates.COLUMN).to_numpy()))
            batch = batch.drop_columns([null_dates.COLUMN])
        keys.append(keys_of(batch, names))
        if keep:
            batches.append(batch)
    schema = arrow_schema(without_extras(reader.fields))
    return _DecodedSplit(joined(keys, len(names)), nulls, pa.Table.from_batches(batches, schema) if keep else None)
