"""Changes rows of small tables in this process, without a job of Spark, in one commit of Delta's own transaction.

For a few rows, what Spark does around each query takes longer than the rows: it plans the query, writes a program for
all columns of the table, and compiles it. This module reads the table's files by Arrow, writes one new file, and takes
that file's statistics from its footer. The transaction is the one of :mod:`cdc.lake.delta.row_replacement`, with the
same conflicts, and decision 0155 has the reasons and the figures.

Only tables are changed here whose features, properties, columns and files are all known to ask nothing else of a
writer. :func:`change` returns None for all others, and changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
from pyspark.sql import types as t

from cdc.base.log import get_logger
from cdc.base.targets import has_percent_sign, local_path
from cdc.lake.delta.row_replacement import FEATURES, LoggedTable, Replaced, are_plain
from cdc.lake.delta.stats import added_file
from cdc.lake.delta.tables import LARGE_PROPERTY, schema_of
from cdc.lake.delta.transaction import (
    PLAIN_NAME,
    PositionedTransaction,
    delta_action,
    features_of,
    has_files,
    if_known,
)
from cdc.lake.rows.split_reader import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cdc.lake.delta.log import DeltaState
    from cdc.lake.runtime.driver_jvm import DriverJvm

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]

TINY_BYTES = 1 << 20
"""Up to this size, files that may have rows with one of the keys become one file."""
MOST_BYTES, MOST_ROWS, MOST_FILES = 8 << 20, 200_000, 100
"""Up to these numbers, files are written anew here: above them Spark is as fast, by all of its cores."""
MOST_MEMORY = 256 << 20
"""Bytes of one file's rows in memory."""
_TYPES = (
    t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.DecimalType, t.FloatType, t.DoubleType, t.BooleanType,
    t.DateType, t.TimestampType, t.TimestampNTZType, t.StringType, t.BinaryType,
)  # fmt: skip
_KEYS = tuple(kind for kind in _TYPES if kind not in (t.FloatType, t.DoubleType))
"""Types of key columns. Spark and Arrow compare -0.0 and NaN differently."""
_FEATURES = FEATURES - {"deletionVectors", "columnMapping", "variantType", "variantType-preview"}
_UNKNOWN = (
    "delta.constraints.", "delta.columnMapping.", "delta.enableDeletionVectors", "delta.dataSkippingStatsColumns",
    "delta.randomizeFilePrefixes", "delta.randomPrefixLength",
)  # fmt: skip
"""Beginnings of properties that :mod:`cdc.lake.delta.row_replacement` leaves to Delta, and nobody heeds here."""
_CODECS = {"snappy": "snappy", "zstd": "zstd", "gzip": "gz"}
"""Spark's names of compressions, and how its files are called."""
_SPARK_VERSION = b"org.apache.spark.version"
_GREGORIAN_SINCE = (3, 1)
"""The version of Spark since which files say whether they have dates of the old calendar."""
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_rewriting = threading.BoundedSemaphore(os.cpu_count() or 1)
"""Held while rows are changed: more tables at a time than cores would only take more memory."""
_log = get_logger(__name__)


class LeftToSparkError(Exception):
    """Spark has to change the table; the message says why, as a clause. Raised before the commit."""


@dataclass(frozen=True)
class Change:
    """The new content of some files of a table."""

    removed: Sequence[dict[str, Any]]
    """The files that go, as :attr:`SmallTable.files` has them."""
    rows: pa.Table
    """The rows of a new file, with the table's columns; empty: there is none."""
    copied: int
    """The number of these rows that the table had before, with the same values."""
    replaced: Replaced
    matched: Sequence[tuple[str | None, str]]
    """Condition and action of each clause in the commit that is for rows with a key of the table."""
    inserted: Sequence[tuple[str | None, str]]
    """The same for clauses that are for rows with a new key."""
    source_rows: int


def may_change(logged_table: LoggedTable, keys: Sequence[str], columns: Iterable[t.StructField]) -> bool:
    """Whether :func:`change` may try it, as far as the log tells that was read before. ``columns``: those that new rows
    have."""
    state, files = logged_table.state, logged_table.files
    if files is None or not files.is_small or local_path(state.path) is None or has_percent_sign(state.path):
        return False
    if state.properties.get(LARGE_PROPERTY) == "true":
        return False  # a small file may have values of many megabytes
    if state.partition_by or not are_plain(state.stored) or any(name.startswith(_UNKNOWN) for name in state.stored):
        return False
    kinds = {column.name: column.dataType for column in columns}
    return all(isinstance(kinds.get(key), _KEYS) for key in keys) and all(
        field.nullable
        and not {*field.metadata} - {"comment"}
        and _is_known(field.dataType)
        and kinds.get(field.name) == field.dataType
        for field in schema_of(state).fields
    )


def _is_known(kind: t.DataType) -> bool:
    if isinstance(kind, t.StringType):
        return kind == t.StringType()  # with another collation, other texts are equal
    return isinstance(kind, _TYPES) or kind == t.ArrayType(t.FloatType(), True)


def change(jvm: DriverJvm, logged_table: LoggedTable, work: Callable[[SmallTable], Change]) -> Replaced | None:
    """Commits what ``work`` makes of a table for which :func:`may_change` is true. The commit carries the transaction
    and the user metadata of the session's settings. Returns None, and changes nothing, if Spark has to do it.

    Raises AlreadyThereError if the table has the session's transaction, and what Delta raises for a conflict.
    """

    def commit() -> Replaced:
        with _rewriting, jvm.active():
            table = _begin(jvm, logged_table)
            changed = work(table)
            table.commit(changed)
            return changed.replaced

    try:
        return if_known("rows are merged", commit)
    except LeftToSparkError as reason:
        _log.debug("Spark changes the table", path=logged_table.state.path, reason=str(reason))
        return None


def _begin(jvm: DriverJvm, logged_table: LoggedTable) -> SmallTable:
    import pyarrow.compute  # noqa: F401 - before the transaction begins

    state, files = logged_table.state, logged_table.files
    folder = local_path(state.path)
    assert files is not None and folder is not None  # may_change has looked
    adds = files.adds(logged_table.keys)
    if len(adds) > MOST_FILES:
        _leave(f"it has {len(adds)} files")
    if not all(PLAIN_NAME.fullmatch(add["path"]) for add in adds):
        _leave("its files have unusual names")
    transaction = PositionedTransaction.begin(jvm, state)
    snapshot = transaction.txn.snapshot()
    if not transaction.is_at:
        _leave("somebody else has committed")
    if unknown := features_of(transaction.txn) - _FEATURES:
        _leave(f"its table feature {min(unknown)}")
    if not has_files(snapshot, files.count, files.size_bytes):
        _leave("Delta's checksum has another number of files or bytes")
    conf = jvm.session.conf()
    codec = conf.get("spark.sql.parquet.compression.codec", "snappy")
    if codec not in _CODECS:
        _leave(f"files are compressed by {codec}")
    if conf.get("spark.databricks.delta.stats.collect", "true") != "true":
        _leave("the session keeps no statistics")
    fields = schema_of(state)
    return SmallTable(jvm, transaction, state, fields, arrow_schema(fields), folder, adds, codec)


def _leave(reason: str) -> NoReturn:
    raise LeftToSparkError(reason)


@dataclass(frozen=True)
class SmallTable:
    """A table and the transaction that changes it. Nothing is visible before :meth:`commit`."""

    jvm: DriverJvm
    transaction: PositionedTransaction
    state: DeltaState
    fields: t.StructType
    schema: pa.Schema
    """The same as :attr:`fields`."""
    folder: Path
    files: Sequence[dict[str, Any]]
    """The ``add`` actions of files that may have rows with one of the keys."""
    codec: str

    @property
    def is_tiny(self) -> bool:
        return _bytes(self.files) <= TINY_BYTES

    def read(self, add: Mapping[str, Any], names: Sequence[str] | None = None) -> pa.Table:
        """Returns the rows of a file, with these columns or all. Raises LeftToSparkError if Spark may read other values
        there, or if the log says that it has another number of rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        wanted = [field for field in self.schema if names is None or field.name in names]
        try:
            # Arrow's default for Spark's old form of moments has nanoseconds, and ends in the year 2262.
            with pq.ParquetFile(self.folder / add["path"], coerce_int96_timestamp_unit="us") as file:
                old = _moments_of_old(file)
                present = {*file.schema_arrow.names}
                table = _read(file, [field.name for field in wanted if field.name in present])
                rows = file.metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            raise LeftToSparkError(f"the file {add['path']} cannot be read: {error}") from error
        if _rows(add) != rows:
            _leave(f"the file {add['path']} has {rows} rows")
        if present - {field.name for field in self.schema}:
            _leave(f"the file {add['path']} has other columns")
        columns = []
        for field in wanted:
            if field.name not in present:  # it was added since
                columns.append(pa.chunked_array([pa.nulls(rows, field.type)]))
                continue
            column = table.column(field.name)
            if field.name in old and field.type == pa.timestamp("us", "UTC"):
                column = column.cast(field.type)
            if column.type != field.type:
                _leave(f"the file {add['path']} has {field.name} as {column.type}")
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=pa.schema(wanted))

    def rewritten(self, touched: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the files to write anew if these have rows that go: all of them, if that keeps a tiny table in one
        file. Raises LeftToSparkError if they are too many."""
        rewritten = list(self.files) if self.is_tiny else list(touched)
        rows = sum(_rows(add) for add in rewritten)
        if _bytes(rewritten) > MOST_BYTES or rows > MOST_ROWS:
            _leave(f"{len(rewritten)} files with {_bytes(rewritten)} bytes and {rows} rows would be written anew")
        return rewritten

    def commit(self, changed: Change) -> None:
        """Writes the rows, and commits. Raises what Delta raises for a conflict."""
        view = self.jvm.view
        added = self._write(changed.rows) if len(changed.rows) else None
        files = {add["path"]: delta_action(view, {"add": add}) for add in self.files}
        self.transaction.track(self.transaction.true(), files.values())
        actions = [files[add["path"]].remove() for add in changed.removed]
        if added is not None:
            actions.append(delta_action(view, {"add": added}))
        metrics = {
            **changed.replaced.metrics(changed.source_rows, changed.copied),
            "numTargetFilesAdded": int(added is not None),
            "numTargetFilesRemoved": len(changed.removed),
            "numTargetBytesAdded": 0 if added is None else added["size"],
            "numTargetBytesRemoved": _bytes(changed.removed),
        }
        clause = self.transaction.clause
        matched, inserted = ([clause(*words) for words in clauses] for clauses in (changed.matched, changed.inserted))
        self.transaction.commit(actions, matched, inserted, metrics)

    def _write(self, rows: pa.Table) -> dict[str, Any]:
        """Writes a file with these rows, and returns its ``add`` action."""
        import pyarrow.parquet as pq

        name = f"part-00000-{uuid.uuid4()}-c000.{_CODECS[self.codec]}.parquet"
        path = self.folder / name
        try:
            with pq.ParquetWriter(
                path, rows.schema, compression=self.codec, store_decimal_as_integer=True, store_schema=False
            ) as writer:
                # It says that dates and moments are of the Gregorian calendar.
                writer.add_key_value_metadata({_SPARK_VERSION.decode(): self.jvm.session.version()})
                writer.write_table(rows, row_group_size=len(rows))
            footer = pq.read_metadata(path)
            if footer.num_rows != len(rows):
                raise OSError(f"{path} has {footer.num_rows} rows instead of {len(rows)}")
        except BaseException:
            with suppress(OSError):  # the first error counts; VACUUM removes the file
                path.unlink()
            raise
        return added_file(path, [footer], self.fields.fields, self.state.stored)


def _read(file: pq.ParquetFile, names: Sequence[str]) -> pa.Table:
    """Returns columns of a file. Raises LeftToSparkError if they take more than :data:`MOST_MEMORY`: a small file may
    have large texts many times."""
    import pyarrow as pa

    batches, memory = [], 0
    for batch in file.iter_batches(batch_size=16_384, columns=names, use_threads=False):
        batches.append(batch)
        memory += batch.nbytes
        if memory > MOST_MEMORY:
            _leave("its rows take much memory")
    if batches:
        return pa.Table.from_batches(batches)
    return file.read(names, use_threads=False)


def _rows(add: Mapping[str, Any]) -> int:
    """Returns the rows of a file, as its ``add`` action says. Raises LeftToSparkError if it does not."""
    rows = json.loads(add["stats"]).get("numRecords")
    if not isinstance(rows, int):
        _leave("a file does not say how many rows it has")
    return rows


def _bytes(files: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(add["size"]) for add in files)


def _moments_of_old(file: pq.ParquetFile) -> set[str]:
    """Returns the columns with moments in Spark's old form, INT96, which has no time zone for Arrow. Raises
    LeftToSparkError if Spark would read dates or moments of another calendar."""
    facts = file.metadata.metadata or {}
    version = re.match(rb"(\d+)\.(\d+)\.", facts.get(_SPARK_VERSION, b""))
    is_old = version is None or (int(version[1]), int(version[2])) < _GREGORIAN_SINCE
    if is_old or any(key in facts for key in _OLD_CALENDAR):
        _leave("a file was not written by Spark, or with dates of another calendar")
    columns = (file.schema.column(number) for number in range(len(file.schema)))
    return {column.name for column in columns if column.physical_type == "INT96"}


# --- rows by key -----------------------------------------------------------------------------------------------------


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
                _leave("a key is null")
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
    """Rows by key: at most one for each key. It replaces the row of the table with that key, or deletes it."""

    rows: pa.Table
    """They have the table's columns, and others."""
    keys: Sequence[str]
    deletes: Bools
    """For each row: it deletes."""
    replaces: Bools
    """For each row: it only replaces a row that is there, and is no new one."""
    clauses: tuple[Sequence[tuple[str | None, str]], Sequence[tuple[str | None, str]]]
    """See :attr:`Change.matched` and :attr:`Change.inserted`."""

    def replace(self, table: SmallTable) -> Change:
        """Returns the change of a table that these rows make. Every row of the table with one of the keys goes: a table
        that somebody has damaged may have several."""
        import pyarrow as pa

        numbers = KeyNumbers.of(columns_of(self.rows, self.keys))
        if len(numbers) != len(self.rows):
            _leave("two changes have the same key")
        counts = np.zeros(len(numbers), dtype=np.int64)  # of the table's rows, for each key
        goes: dict[str, Bools] = {}
        for add in table.files:
            codes = numbers.find(columns_of(table.read(add, self.keys), self.keys))
            goes[add["path"]] = codes >= 0
            counts += np.bincount(codes[codes >= 0], minlength=len(numbers))
        replaced_rows = counts[numbers.find(columns_of(self.rows, self.keys))]
        comes = ~self.deletes & (~self.replaces | (replaced_rows > 0))
        new = self.rows.select(table.schema.names).cast(table.schema).filter(pa.array(comes))
        touched = [add for add in table.files if goes[add["path"]].any()]
        removed = table.rewritten(touched) if touched or len(new) else []
        stay = [table.read(add).filter(pa.array(~goes[add["path"]])) for add in removed]
        replaced = Replaced(
            inserted=int(np.count_nonzero(comes & (replaced_rows == 0))),
            updated=int(replaced_rows[~self.deletes].sum()),
            deleted=int(replaced_rows[self.deletes].sum()),
        )
        copied = sum(len(part) for part in stay)
        return Change(removed, pa.concat_tables([*stay, new]), copied, replaced, *self.clauses, len(self.rows))
