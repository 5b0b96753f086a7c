"""The key plan of a batch: which changes are the last ones of their keys, found before Spark reads any row.

The driver decodes the key columns, in threads, and finds the last change of each key. Each input split gets the choice
of its rows that win, so that tasks give only those: nothing is shuffled, sorted or cached. A task checks that it has
decoded the rows that the plan was made of.

If tasks read the files of this machine, the driver decodes all columns, and writes the rows that win as Parquet files
(:mod:`cdc.lake.rows.row_files`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cdc.base.log import get_logger
from cdc.decode.last_changes import UnplannableError, joined, keys_of, last_changes
from cdc.lake.rows import null_dates
from cdc.lake.rows.changes import local_frame, mapped_frame
from cdc.lake.rows.row_choice import SEEN, RowChoice
from cdc.lake.rows.split_reader import SplitReader, arrow_schema, without_extras

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from cdc.decode.last_changes import ChangeKeys, LastChanges
    from cdc.lake.rows.input_splits import InputSplit
    from cdc.lake.rows.row_files import RowFiles, TableRowFiles
    from cdc.lake.runtime.session import TableSession

MAX_BYTES = 512 * 1024 * 1024
"""The memory that a plan may take: enough for five to eight million changes with short keys. A batch that needs more is
reduced by Spark."""
KEPT_BYTES = 256 * 1024 * 1024
"""The memory for decoded rows that are kept until those that win are written into files. Others are decoded twice."""
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

    def values_between(
        self, least: npt.NDArray[np.float64], greatest: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Returns for each pair of limits, both included, how many values the ranges have between them."""
        if not len(least):
            return np.empty(0)
        floor, ceiling = least.min(), greatest.max()
        lows = np.clip(self.lows.astype(np.float64), floor, ceiling + 1)
        highs = np.clip(self.highs.astype(np.float64), floor - 1, ceiling)
        before = np.concatenate([[0.0], np.cumsum(highs - lows + 1)])

        def upto(limits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            begun = np.searchsorted(lows, limits, side="right")
            beyond = np.where(begun > 0, np.maximum(0.0, highs[begun - 1] - limits), 0.0)
            return before[begun] - beyond

        return upto(greatest) - upto(least - 1)


@dataclass(frozen=True)
class KeyPlan:
    """The last changes of a batch's keys."""

    choices: tuple[RowChoice, ...]
    """For each split."""
    last_changes: LastChanges
    null_dates: int
    """Zero and impossible dates that became null, in all changes."""
    tables: tuple[pa.Table, ...] = ()
    """The changes of each split, if they are few."""
    files: RowFiles | TableRowFiles | None = None
    """The rows that win, if they are in files."""

    @property
    def rows(self) -> int:
        """How many rows win, which is the number of keys."""
        return self.last_changes.keys

    def upserts(self, *, seen: bool) -> int:
        """Returns how many of these rows are no deletes; with ``seen``, how many have a change that is none."""
        kinds = self.last_changes.seen if seen else self.last_changes.kept
        return int(
            sum(
                np.count_nonzero(is_upsert & last)
                for is_upsert, last in zip(kinds, self.last_changes.last, strict=True)
            )
        )

    def winners(self, *, seen: bool = False) -> pa.Table:
        """Returns the rows that win, of a small batch; with ``seen``, with :data:`~cdc.lake.rows.row_choice.SEEN`."""
        import pyarrow as pa

        parts = [_winners(table, self.last_changes, number, seen=seen) for number, table in enumerate(self.tables)]
        return pa.concat_tables(parts)

    def spans(self, names: Sequence[str]) -> list[list[tuple[Any, Any]]]:
        """Returns for each key column the ranges, as Arrow scalars, that hold all its values; none for a column without
        an order. In a small batch, few values have a range each, and integers have several ranges with the widest gaps
        between them."""
        import pyarrow as pa

        spans: list[list[tuple[Any, Any]]] = []
        for name, bound in zip(names, self.last_changes.bounds, strict=True):
            if bound is None:
                spans.append([])
            elif not self.tables:
                spans.append([bound])
            elif pa.types.is_integer(bound[0].type):
                spans.append([(pa.scalar(low), pa.scalar(high)) for low, high in clusters(self._integers(name))])
            else:
                values = self._values(name).unique()
                spans.append([(value, value) for value in values] if len(values) <= MAX_RANGES else [bound])
        return spans

    def integer_ranges(self, names: Sequence[str]) -> dict[str, KeyRanges]:
        """Returns the ranges of each key column with integers: in a small batch its values, else the range of all."""
        import pyarrow as pa

        integer_ranges = {}
        for name, bound in zip(names, self.last_changes.bounds, strict=True):
            if bound is None or not pa.types.is_integer(bound[0].type):
                continue
            if self.tables:
                values = self._integers(name)
                integer_ranges[name] = KeyRanges(values, values)
            else:
                low, high = (np.array([edge.as_py()], dtype=np.int64) for edge in bound)
                integer_ranges[name] = KeyRanges(low, high)
        return integer_ranges

    def _integers(self, name: str) -> npt.NDArray[np.int64]:
        """Returns the distinct values of an integer column, ascending."""
        return np.unique(self._values(name).to_numpy().astype(np.int64))

    def _values(self, name: str) -> pa.ChunkedArray:
        import pyarrow as pa

        return pa.chunked_array([chunk for table in self.tables for chunk in table.column(name).chunks])


def integer_spans(names: Sequence[str], spans: Sequence[Sequence[tuple[Any, Any]]]) -> dict[str, KeyRanges]:
    """Returns those of :meth:`KeyPlan.spans` that are of integers, by column."""
    import pyarrow as pa

    return {
        name: KeyRanges(*(np.array([pair[end].as_py() for pair in ranges], dtype=np.int64) for end in range(2)))
        for name, ranges in zip(names, spans, strict=True)
        if ranges and pa.types.is_integer(ranges[0][0].type)
    }


def clusters(values: npt.NDArray[np.int64], most: int = MAX_RANGES) -> list[tuple[int, int]]:
    """Returns at most ``most`` ranges, both ends included, that hold these ascending values, and not the widest gaps
    between them."""
    gaps = np.diff(values)
    widest = np.argsort(-gaps, kind="stable")[: most - 1]
    cuts = np.sort(widest[gaps[widest] > 1])
    lows, highs = [0, *(cuts + 1).tolist()], [*cuts.tolist(), len(values) - 1]
    return [(int(values[low]), int(values[high])) for low, high in zip(lows, highs, strict=True)]


@dataclass(frozen=True)
class FileOutput:
    """Files for the rows that win."""

    files: RowFiles | TableRowFiles
    reader: SplitReader
    """Reads all columns."""
    seen: bool
    """Whether the rows have the column :data:`~cdc.lake.rows.row_choice.SEEN`."""

    @property
    def fields(self) -> StructType:
        return with_seen(self.reader.fields) if self.seen else self.reader.fields

    def write(
        self, group: range, splits: Sequence[InputSplit], decoded: Sequence[_DecodedSplit], plan: KeyPlan
    ) -> None:
        """Writes the rows of some splits that win: those that were kept, else they are decoded again. Raises OSError,
        and what :meth:`SplitReader.read` raises."""
        self.files.write(group.start, self._rows(group, splits, decoded, plan), self.fields)

    def _rows(
        self, group: range, splits: Sequence[InputSplit], decoded: Sequence[_DecodedSplit], plan: KeyPlan
    ) -> Iterator[pa.RecordBatch]:
        reader = replace(self.reader, fields=self.fields)
        for number in group:
            table = decoded[number].table
            if table is None:
                yield from reader.read(splits[number], plan.choices[number])
            else:
                yield from _winners(table, plan.last_changes, number, seen=self.seen).to_batches()


def make_plan(
    reader: SplitReader,
    splits: Sequence[InputSplit],
    names: Sequence[str],
    *,
    keep: bool,
    output: FileOutput | None = None,
) -> KeyPlan | None:
    """Returns the plan of the changes that ``reader`` reads from these splits. Returns None if they must be reduced by
    Spark: they need more than :data:`MAX_BYTES`, or have a key that cannot be compared here.

    ``names``: the key columns in Delta; ``reader`` must read them, and may read others. ``keep``: the changes are
    kept in :attr:`KeyPlan.tables`; only for few changes. ``output``: the rows that win are written; without ``keep``.
    Raises what :meth:`SplitReader.read` raises.
    """
    try:
        if keep:
            decoded = [_decode(reader, split, names, _Kept(None)) for split in splits]
            last_rows = last_changes([decoded_split.keys for decoded_split in decoded])
            return _plan(
                decoded,
                last_rows,
                tables=tuple(decoded_split.table for decoded_split in decoded if decoded_split.table is not None),
            )
        with _one_large, ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="plan") as pool:
            try:
                return _large_plan(reader, splits, names, output, pool)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    except UnplannableError as reason:
        _log.debug("Spark finds the last change of each key", table=reader.table, reason=str(reason))
        return None


def _large_plan(
    reader: SplitReader,
    splits: Sequence[InputSplit],
    names: Sequence[str],
    output: FileOutput | None,
    pool: ThreadPoolExecutor,
) -> KeyPlan:
    kept = _Kept(KEPT_BYTES if output is not None else 0)
    whole = reader if output is None else replace(reader, fields=_with_extras_of(output.reader.fields, reader.fields))
    decoded: list[_DecodedSplit] = []
    memory = 0
    for decoded_split in pool.map(
        lambda split: _decode(whole if kept.has_room else reader, split, names, kept), splits
    ):
        decoded.append(decoded_split)
        memory += decoded_split.keys.memory
        if memory > MAX_BYTES:
            raise UnplannableError(f"the keys of a batch take more than {MAX_BYTES >> 20} MiB")
    last_rows = last_changes([decoded_split.keys for decoded_split in decoded])
    plan = _plan(decoded, last_rows)
    if output is None or not plan.rows:
        return plan

    def write(group: range) -> None:
        output.write(group, splits, decoded, plan)

    try:
        for _ in pool.map(write, output.files.groups(splits)):
            pass
    except OSError as error:
        _log.warning("the rows of a batch could not be written into files; Spark's tasks decode them",
                     table=reader.table, folder=str(output.files.folder), error=str(error))  # fmt: skip
        return plan
    return replace(plan, files=output.files)


def _plan(decoded: Sequence[_DecodedSplit], last_rows: LastChanges, tables: tuple[pa.Table, ...] = ()) -> KeyPlan:
    parts = zip(last_rows.last, last_rows.seen, decoded, strict=True)
    return KeyPlan(
        choices=tuple(RowChoice.of(last, seen, decoded_split.keys) for last, seen, decoded_split in parts),
        last_changes=last_rows,
        null_dates=sum(decoded_split.null_dates for decoded_split in decoded),
        tables=tables,
    )


def planned_frame(
    session: TableSession, reader: SplitReader, splits: Sequence[InputSplit], plan: KeyPlan, *, seen: bool
) -> DataFrame:
    """Returns the rows that win, with the columns of ``reader`` and, with ``seen``,
    :data:`~cdc.lake.rows.row_choice.SEEN`."""
    fields = with_seen(reader.fields) if seen else reader.fields
    if plan.tables:
        return local_frame(session, plan.winners(seen=seen), fields)
    if plan.files is not None:
        return plan.files.frame(session, fields)
    # Splits without such a row are decoded, too: a value that cannot be decoded fails the batch wherever it is.
    return mapped_frame(session, replace(reader, fields=fields, choices=plan.choices), splits)


def with_seen(fields: StructType) -> StructType:
    """Returns the fields with :data:`~cdc.lake.rows.row_choice.SEEN`."""
    from pyspark.sql import types as t

    return t.StructType([*fields, t.StructField(SEEN, t.BooleanType())])


def _with_extras_of(fields: StructType, narrow: StructType) -> StructType:
    """Returns the fields with the columns that are counted while ``narrow`` is read."""
    from pyspark.sql import types as t

    return t.StructType([*fields, *(field for field in narrow if field.name == null_dates.COLUMN)])


def _winners(table: pa.Table, last_rows: LastChanges, number: int, *, seen: bool) -> pa.Table:
    """Returns the rows of one split that win."""
    import pyarrow as pa

    last = last_rows.last[number]
    part = table if last.all() else table.filter(pa.array(last))
    return part.append_column(SEEN, pa.array(last_rows.seen[number][last])) if seen else part


class _Kept:
    """The memory for decoded rows that are kept."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit
        self._lock = threading.Lock()

    @property
    def has_room(self) -> bool:
        return self._left is None or self._left > 0

    def take(self, size: int) -> bool:
        """Whether these bytes may be kept, too. After a refusal, nothing else may."""
        if self._left is None:
            return True
        with self._lock:
            self._left = self._left - size if size <= self._left else 0
            return self._left > 0


@dataclass(frozen=True)
class _DecodedSplit:
    keys: ChangeKeys
    null_dates: int
    table: pa.Table | None
    """None: it was not kept."""


def _decode(reader: SplitReader, split: InputSplit, names: Sequence[str], kept: _Kept) -> _DecodedSplit:
    import pyarrow as pa

    keys, nulls = [], 0
    batches: list[pa.RecordBatch] | None = [] if kept.has_room else None
    for batch in reader.read(split):
        if null_dates.COLUMN in batch.schema.names:
            nulls += int(np.sum(batch.column(null_dates.COLUMN).to_numpy()))
            batch = batch.drop_columns([null_dates.COLUMN])
        keys.append(keys_of(batch, names))
        if batches is not None and kept.take(batch.nbytes):
            batches.append(batch)
        else:
            batches = None
    schema = arrow_schema(without_extras(reader.fields))
    table = None if batches is None else pa.Table.from_batches(batches, schema)
    return _DecodedSplit(joined(keys, len(names)), nulls, table)
