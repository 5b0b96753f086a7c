"""Changes tables in this process, without a job of Spark, in one commit of Delta's own transaction.

For a few rows, what Spark does around each query takes longer than the rows: it plans the query, writes a program for
all columns of the table, and compiles it. For many rows, Spark would read from files what this process has decoded, and
write it again. This module reads the table's files by Arrow, writes new ones or takes those that are written, and takes
their statistics from their footers. The transaction is the one of :mod:`cdc.lake.delta.row_replacement`, with the same
conflicts. Decisions 0155 and 0165 have the reasons and the figures.

Only tables are changed here whose features, properties, columns and files are all known to ask nothing else of a
writer. :func:`change` returns None for all others, and changes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql import types as t

from cdc.base.log import get_logger
from cdc.base.targets import has_percent_sign, local_path
from cdc.lake.delta.row_replacement import FEATURES, LoggedTable, Replaced, are_plain
from cdc.lake.delta.stats import added_file
from cdc.lake.delta.tables import LARGE_PROPERTY, schema_of
from cdc.lake.delta.transaction import (
    ENCRYPTION,
    PLAIN_NAME,
    PositionedTransaction,
    delta_action,
    features_of,
    has_files,
    if_known,
)
from cdc.lake.delta.vectors import VECTORS_PROPERTY
from cdc.lake.rows.split_reader import arrow_schema
from cdc.lake.rows.table_format import CODECS, SPARK_VERSION, TableFormat

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cdc.lake.delta.log import DeltaState
    from cdc.lake.rows.table_format import WrittenFile
    from cdc.lake.runtime.driver_jvm import DriverJvm
    from cdc.lake.runtime.session import TableSession


TINY_BYTES = 1 << 20
"""Up to this size, files that may have rows with one of the keys become one file."""
MOST_BYTES, MOST_ROWS = 8 << 20, 200_000
"""Up to these numbers, files are written anew for a few rows: above them Spark is as fast, by all of its cores."""
MOST_FILES = 100
"""Files in which a few rows are looked for."""
_MOST_CANDIDATES = 1_000
"""Files in which many rows are looked for."""
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
    "delta.constraints.", "delta.columnMapping.", "delta.dataSkippingStatsColumns", "delta.randomizeFilePrefixes",
    "delta.randomPrefixLength",
)  # fmt: skip
"""Beginnings of properties that :mod:`cdc.lake.delta.row_replacement` leaves to Delta, and nobody heeds here."""
_VECTORS = "deletionVectors"
_GREGORIAN_SINCE = (3, 1)
"""The version of Spark since which files say whether they have dates of the old calendar."""
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_GREGORIAN_WRITERS = ("delta-rs", "datafusion", "parquet-rs", "parquet-cpp-arrow")
"""Writers of files that know no other calendar."""
_rewriting = threading.BoundedSemaphore(os.cpu_count() or 1)
"""Held while rows are changed: more tables at a time than cores would only take more memory."""
_log = get_logger(__name__)


class LeftToSparkError(Exception):
    """Spark has to change the table; the message says why, as a clause. Raised before the commit."""


@dataclass(frozen=True)
class Change:
    """The new content of some files of a table."""

    removed: Sequence[dict[str, Any]]
    """The files that go, as :attr:`LocalTable.files` has them."""
    added: Sequence[dict[str, Any]]
    """The ``add`` actions of new files, which are in the table's folder."""
    copied: int
    """The number of their rows that the table had before, with the same values."""
    replaced: Replaced
    matched: Sequence[tuple[str | None, str]]
    """Condition and action of each clause in the commit that is for rows with a key of the table."""
    inserted: Sequence[tuple[str | None, str]]
    """The same for clauses that are for rows with a new key."""
    source_rows: int


def may_write(state: DeltaState, kinds: Mapping[str, t.DataType]) -> bool:
    """Whether this process may write files of a table, as far as the log tells. ``kinds``: the types of columns that
    the rows have."""
    if local_path(state.path) is None or has_percent_sign(state.path):
        return False
    if state.properties.get(LARGE_PROPERTY) == "true":
        return False  # a small file may have values of many megabytes
    if state.partition_by or not are_plain(state.stored) or any(name.startswith(_UNKNOWN) for name in state.stored):
        return False
    return all(
        field.nullable
        and not {*field.metadata} - {"comment"}
        and _is_known(field.dataType)
        and kinds.get(field.name) == field.dataType
        for field in schema_of(state).fields
    )


def may_change(logged_table: LoggedTable, keys: Sequence[str], columns: Iterable[t.StructField]) -> bool:
    """Whether :func:`change` may try it, as far as the log tells that was read before. ``columns``: those that new rows
    have."""
    state, files = logged_table.state, logged_table.files
    kinds = {column.name: column.dataType for column in columns}
    if files is None or not may_write(state, kinds):
        return False
    if VECTORS_PROPERTY in state.stored and files.may_hold(logged_table.keys):
        return False
    return all(isinstance(kinds.get(key), _KEYS) for key in keys)


def table_format(session: TableSession, state: DeltaState) -> TableFormat | None:
    """Returns the form of the files that this session writes for a table; None if only Spark knows it."""
    conf = session.spark.conf
    codec = conf.get("spark.sql.parquet.compression.codec", "snappy")
    if codec not in CODECS or conf.get("spark.databricks.delta.stats.collect", "true") != "true":
        return None
    if any(conf.get(f"{prefix}{ENCRYPTION}", None) for prefix in ("", "spark.hadoop.")):
        return None
    return TableFormat(arrow_schema(schema_of(state)), codec, session.spark.version)


def _is_known(kind: t.DataType) -> bool:
    if isinstance(kind, t.StringType):
        return kind == t.StringType()  # with another collation, other texts are equal
    return isinstance(kind, _TYPES) or kind == t.ArrayType(t.FloatType(), True)


def change(
    jvm: DriverJvm, logged_table: LoggedTable, file_format: TableFormat, work: Callable[[LocalTable], Change]
) -> Replaced | None:
    """Commits what ``work`` makes of a table for which :func:`may_change` is true. The commit carries the transaction
    and the user metadata of the session's settings. Returns None, and changes nothing, if Spark has to do it.

    Raises AlreadyThereError if the table has the session's transaction, and what Delta raises for a conflict.
    """

    def commit() -> Replaced:
        with _rewriting, jvm.active():
            table = _begin(jvm, logged_table, file_format)
            changed = work(table)
            table.commit(changed)
            return changed.replaced

    try:
        return if_known("rows are merged", commit)
    except LeftToSparkError as reason:
        _log.debug("Spark changes the table", path=logged_table.state.path, reason=str(reason))
        return None


def _begin(jvm: DriverJvm, logged_table: LoggedTable, file_format: TableFormat) -> LocalTable:
    import pyarrow.compute  # noqa: F401 - before the transaction begins

    state, files = logged_table.state, logged_table.files
    folder = local_path(state.path)
    assert files is not None and folder is not None  # may_change has looked
    adds = files.adds(logged_table.keys)
    if len(adds) > _MOST_CANDIDATES:
        _leave(f"{len(adds)} files may have one of the keys")
    if not all(PLAIN_NAME.fullmatch(add["path"]) for add in adds):
        _leave("its files have unusual names")
    transaction = PositionedTransaction.begin(jvm, state)
    snapshot = transaction.txn.snapshot()
    if not transaction.is_at:
        _leave("somebody else has committed")
    features = features_of(transaction.txn)
    if unknown := features - _FEATURES - ({_VECTORS} if not adds else set()):
        _leave(f"its table feature {min(unknown)}")
    if not has_files(state.path, snapshot, files.count, files.size_bytes):
        _leave("Delta's checksum has another number of files or bytes")
    return LocalTable(jvm, transaction, state, file_format, folder, adds, _VECTORS in features)


def _leave(reason: str) -> NoReturn:
    raise LeftToSparkError(reason)


@dataclass(frozen=True)
class LocalTable:
    """A table and the transaction that changes it. Nothing is visible before :meth:`commit`."""

    jvm: DriverJvm
    transaction: PositionedTransaction
    state: DeltaState
    format: TableFormat
    folder: Path
    files: Sequence[dict[str, Any]]
    """The ``add`` actions of files that may have rows with one of the keys."""
    has_vectors: bool
    """Whether files may have deletion vectors; those in :attr:`files` have none."""

    @property
    def schema(self) -> pa.Schema:
        return self.format.schema

    @property
    def is_tiny(self) -> bool:
        return _bytes(self.files) <= TINY_BYTES

    def read(self, add: Mapping[str, Any], names: Sequence[str] | None = None) -> pa.Table:
        """Returns the rows of a file, with these columns or all. Raises LeftToSparkError if they take more than
        :data:`MOST_MEMORY`, since a small file may have large texts many times, and as :meth:`batches`."""
        import pyarrow as pa

        batches, memory = [], 0
        for batch in self.batches(add, names):
            batches.append(batch)
            memory += batch.nbytes
            if memory > MOST_MEMORY:
                _leave("its rows take much memory")
        return pa.Table.from_batches(batches, self._wanted(names))

    def batches(self, add: Mapping[str, Any], names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a file, with these columns or all. Raises LeftToSparkError if Spark may read other values
        there, or if the log says that it has another number of rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path, wanted = add["path"], self._wanted(names)
        try:
            # Arrow's default for Spark's old form of moments has nanoseconds, and ends in the year 2262.
            with pq.ParquetFile(self.folder / path, coerce_int96_timestamp_unit="us") as file:
                old = _moments_of_old(file)
                present = {*file.schema_arrow.names}
                if rows_of(add) != file.metadata.num_rows:
                    _leave(f"the file {path} has {file.metadata.num_rows} rows")
                if present - {*self.schema.names}:
                    _leave(f"the file {path} has other columns")
                chosen = [field.name for field in wanted if field.name in present]
                for batch in file.iter_batches(batch_size=16_384, columns=chosen, use_threads=False):
                    columns = [_column(batch, field, old, path) for field in wanted]
                    yield pa.RecordBatch.from_arrays(columns, schema=wanted)
        except (OSError, pa.ArrowException) as error:
            raise LeftToSparkError(f"the file {path} cannot be read: {error}") from error

    def _wanted(self, names: Sequence[str] | None) -> pa.Schema:
        import pyarrow as pa

        return self.schema if names is None else pa.schema([field for field in self.schema if field.name in names])

    def require_few_files(self) -> None:
        """Raises LeftToSparkError if there are more than :data:`MOST_FILES` to look into."""
        if len(self.files) > MOST_FILES:
            _leave(f"it has {len(self.files)} files")

    def rewritten(self, touched: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the files to write anew if these have rows that go: all of them, if that keeps a tiny table in one
        file. Raises LeftToSparkError if they are too many."""
        rewritten = list(self.files) if self.is_tiny else list(touched)
        rows = sum(rows_of(add) for add in rewritten)
        if _bytes(rewritten) > MOST_BYTES or rows > MOST_ROWS:
            _leave(f"{len(rewritten)} files with {_bytes(rewritten)} bytes and {rows} rows would be written anew")
        return rewritten

    def write(self, rows: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
        """Writes these rows into a new file, and returns its ``add`` action; of no rows none."""
        written = self.format.write(self.folder, rows)
        return [] if written is None else [self._added(written)]

    def take(self, file: WrittenFile) -> dict[str, Any]:
        """Moves a file with rows of the table into its folder, and returns the ``add`` action."""
        path = self.folder / file.path.name
        shutil.move(file.path, path)
        return self._added(replace(file, path=path))

    def _added(self, file: WrittenFile) -> dict[str, Any]:
        fields, properties = schema_of(self.state).fields, self.state.stored
        return added_file(file.path, [file.footer], fields, properties, tight_bounds=self.has_vectors)

    def commit(self, changed: Change) -> None:
        """Raises what Delta raises for a conflict."""
        view = self.jvm.view
        files = {add["path"]: delta_action(view, {"add": add}) for add in self.files}
        self.transaction.track(self.transaction.true(), files.values())
        actions = [files[add["path"]].remove() for add in changed.removed]
        actions += [delta_action(view, {"add": add}) for add in changed.added]
        metrics = {
            **changed.replaced.metrics(changed.source_rows, changed.copied),
            "numTargetFilesAdded": len(changed.added),
            "numTargetFilesRemoved": len(changed.removed),
            "numTargetBytesAdded": _bytes(changed.added),
            "numTargetBytesRemoved": _bytes(changed.removed),
        }
        clause = self.transaction.clause
        matched, inserted = ([clause(*words) for words in clauses] for clauses in (changed.matched, changed.inserted))
        self.transaction.commit(actions, matched, inserted, metrics)


def _column(batch: pa.RecordBatch, field: pa.Field, old: Container[str], path: str) -> pa.Array:
    """Returns a column of a file's rows. ``old``: those with moments in Spark's old form."""
    import pyarrow as pa

    if field.name not in batch.schema.names:  # it was added since
        return pa.nulls(len(batch), field.type)
    column = batch.column(field.name)
    if field.name in old and field.type == pa.timestamp("us", "UTC"):
        column = column.cast(field.type)
    if column.type in (pa.string_view(), pa.binary_view(), pa.large_string(), pa.large_binary()):
        column = column.cast(pa.string() if "string" in str(column.type) else pa.binary())
    if column.type != field.type:
        _leave(f"the file {path} has {field.name} as {column.type}")
    return column


def rows_of(add: Mapping[str, Any]) -> int:
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
    version = re.match(rb"(\d+)\.(\d+)\.", facts.get(SPARK_VERSION.encode(), b""))
    if version is None:
        is_old = not (file.metadata.created_by or "").startswith(_GREGORIAN_WRITERS)
    else:
        is_old = (int(version[1]), int(version[2])) < _GREGORIAN_SINCE
    if is_old or any(key in facts for key in _OLD_CALENDAR):
        _leave("a file was written by an unknown program, or with dates of another calendar")
    columns = (file.schema.column(number) for number in range(len(file.schema)))
    return {column.name for column in columns if column.physical_type == "INT96"}
