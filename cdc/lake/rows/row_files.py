"""The rows that win in a plan as Parquet files, for sessions whose tasks read the files of this machine.

The driver decodes these rows anyway, or can do so in threads. Spark reads the files with its own vectorized reader, so
no Python worker takes part, and a statement that looks for matches before it writes reads only the keys first.

The files lie in a folder below ``spark.local.dir``, else in the folder for temporary files, beside those of Spark's
shuffles. They go with the statement. Those that a killed process has left are removed by the next one.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.log import get_logger
from cdc.decode.layout import DELETE, INSERT
from cdc.disk.work_folders import make_work_folder
from cdc.lake.rows.split_reader import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from cdc.lake.rows.input_splits import InputSplit
    from cdc.lake.rows.table_format import TableFormat, WrittenFile
    from cdc.lake.runtime.session import TableSession

FILE_BYTES = 128 << 20
"""The most bytes of the store whose rows become one file of a table, as far as splits allow it."""
PREFIX = "towpath-rows-"
_PLAIN = re.compile(r"[\w./~@+=-]+", re.ASCII)
"""Paths that Spark takes as they are: others could be patterns."""
_log = get_logger(__name__)


@dataclass(frozen=True)
class RowFiles:
    """A folder with a file for each input split that has rows."""

    folder: Path

    def write(self, number: int, batches: Iterable[pa.RecordBatch], fields: StructType) -> None:
        """Writes the rows of one group of splits. Several threads may write. Raises OSError."""
        with self.new_file(number, fields) as add:
            for batch in batches:
                add(batch)

    @contextmanager
    def new_file(self, number: int, fields: StructType) -> Iterator[Callable[[pa.RecordBatch], None]]:
        """Yields what adds rows to a file, which is made with the first of them. Raises OSError."""
        import pyarrow.parquet as pq

        schema, writer = _numbered(arrow_schema(fields)), None
        path = self.folder / f"{number}.parquet"

        def add(batch: pa.RecordBatch) -> None:
            nonlocal writer
            if not len(batch):
                return
            if writer is None:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
                # Uncompressed: the files are read at once, and Spark judges by their size what can be broadcast.
                writer = pq.ParquetWriter(
                    path, schema, compression="none", use_dictionary=False, write_statistics=False,
                    store_decimal_as_integer=True,
                )  # fmt: skip
            writer.write_batch(batch.rename_columns(schema.names))

        try:
            yield add
        finally:
            if writer is not None:
                writer.close()

    def groups(self, splits: Sequence[InputSplit]) -> list[range]:
        """Returns the numbers of the splits whose rows share a file."""
        return [range(number, number + 1) for number in range(len(splits))]

    def frame(self, session: TableSession, fields: StructType) -> DataFrame:
        """Returns the rows of all files, of which there is at least one."""
        from pyspark.sql import types as t

        schema = t.StructType([t.StructField(f"c{i}", field.dataType) for i, field in enumerate(fields)])
        return _read(session, schema, [self.folder]).toDF(*fields.names)


@dataclass(frozen=True)
class TableRowFiles:
    """A folder with rows in the form of the table's own files, so that these can become files of the table. Rows that
    delete are in files beside them."""

    folder: Path
    format: TableFormat
    written: list[WrittenFile] = field(default_factory=list)
    """The files of rows that do not delete."""

    def write(self, number: int, batches: Iterable[pa.RecordBatch], fields: StructType) -> None:
        """Writes the rows of one group of splits. Several threads may write. Raises OSError."""
        import pyarrow as pa

        with self.deletes.new_file(number, fields) as add:

            def upserts() -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    is_delete = batch.column("_op").to_numpy() == DELETE
                    if is_delete.any():
                        add(batch.filter(pa.array(is_delete)))
                        batch = batch.filter(pa.array(~is_delete))
                    yield batch

            written = self.format.write(self.folder, upserts())
        if written is not None:
            self.written.append(written)

    @property
    def deletes(self) -> RowFiles:
        """The rows that delete."""
        folder = self.folder / "deletes"
        folder.mkdir(mode=0o700, exist_ok=True)
        return RowFiles(folder)

    def groups(self, splits: Sequence[InputSplit]) -> list[range]:
        """Returns the numbers of the splits whose rows share a file: as many files as cores, or as keep each of them
        below :data:`FILE_BYTES`."""
        size_bytes = sum(split.length for split in splits)
        files = min(len(splits), max(os.cpu_count() or 1, -(-size_bytes // FILE_BYTES)))
        cuts = [len(splits) * number // files for number in range(files + 1)]
        return [range(first, last) for first, last in itertools.pairwise(cuts)]

    def frame(self, session: TableSession, fields: StructType) -> DataFrame:
        """Returns the rows of all files. Those that do not delete have no other metadata than ``_op``."""
        from pyspark.sql import functions as f
        from pyspark.sql import types as t

        frames = []
        if self.written:
            schema = t.StructType([field for field in fields if field.name in self.format.schema.names])
            rows = _read(session, schema, [file.path for file in self.written])
            values = {field.name: f.col(f"c{number}") for number, field in enumerate(schema)} | {"_op": f.lit(INSERT)}
            columns = [values.get(field.name, f.lit(None)).cast(field.dataType).alias(field.name) for field in fields]
            frames.append(rows.toDF(*(f"c{number}" for number in range(len(schema)))).select(*columns))
        if any(self.deletes.folder.iterdir()):
            frames.append(self.deletes.frame(session, fields))
        return functools.reduce(lambda left, right: left.union(right), frames)

    def keys(self, names: Sequence[str], fields: StructType) -> tuple[pa.Table, pa.Table]:
        """Returns these columns of the rows that do not delete, and of those that do."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        kept = [pq.read_table(file.path, columns=list(names), partitioning=None) for file in self.written]
        schema = pa.schema([self.format.schema.field(name) for name in names])
        numbers = [f"c{fields.names.index(name)}" for name in names]
        deletes = [
            pq.read_table(path, columns=numbers, partitioning=None).rename_columns(list(names)).cast(schema)
            for path in self.deletes.folder.iterdir()
        ]
        empty = schema.empty_table()
        return pa.concat_tables([empty, *(part.cast(schema) for part in kept)]), pa.concat_tables([empty, *deletes])


def _read(session: TableSession, schema: StructType, paths: Sequence[Path]) -> DataFrame:
    """Returns the rows of Parquet files, or of those in a folder. There is at least one."""
    # A session may tell Spark to pass over damaged or missing files. The rows of a batch are never passed over.
    strict = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false", "mergeSchema": "false"}
    # Dates are those of the proleptic calendar, also before 1582.
    exact = {"datetimeRebaseMode": "CORRECTED"}
    read = session.spark.read.schema(schema).options(**strict, **exact)
    return read.parquet(*(path.as_uri() for path in paths))


def _numbered(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with numbers for names, which mean the same to every reader and every setting of Spark."""
    import pyarrow as pa

    return pa.schema([pa.field(f"c{i}", field.type) for i, field in enumerate(schema)])


@contextmanager
def row_files(session: TableSession, table: TableFormat | None = None) -> Iterator[RowFiles | TableRowFiles | None]:
    """Yields a new folder for rows, which is removed at the end of the block. Yields None if the tasks of the session
    may run on other machines, or if there can be no such folder. ``table``: the form of the table's files; None if rows
    cannot become such files."""
    locked_folder = _make(session) if session.is_local else None
    if locked_folder is None:
        yield None
        return
    folder, lock = locked_folder
    try:
        yield RowFiles(folder) if table is None else TableRowFiles(folder, table)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make(session: TableSession) -> tuple[Path, int] | None:
    """Returns a new folder and its lock, which is held; None if there can be none."""
    parent = Path((session.spark.conf.get("spark.local.dir", None) or tempfile.gettempdir()).split(",")[0]).absolute()
    if not _PLAIN.fullmatch(str(parent)):
        return None
    try:
        return make_work_folder(parent, PREFIX)
    except OSError as error:
        reason = "the rows of a batch have no folder; Spark's tasks decode them"
        _log.warning(reason, folder=str(parent), error=str(error))
        return None
