"""The rows that win in a plan as Parquet files, for sessions whose tasks read the files of this machine.

The driver decodes these rows anyway, or can do so in threads. Spark reads the files with its own vectorized reader, so
no Python worker takes part, and a statement that looks for matches before it writes reads only the keys first.

The files lie in a folder below ``spark.local.dir``, else in the folder for temporary files, beside those of Spark's
shuffles. They go with the statement. Those that a killed process has left are removed by the next one.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.log import get_logger
from cdc.disk.work_folders import make_work_folder
from cdc.lake.rows.split_reader import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from cdc.lake.runtime.session import TableSession

PREFIX = "towpath-rows-"
_PLAIN = re.compile(r"[\w./~@+=-]+", re.ASCII)
"""Paths that Spark takes as they are: others could be patterns."""
_log = get_logger(__name__)


@dataclass(frozen=True)
class RowFiles:
    """A folder with a file for each input split that has rows."""

    folder: Path

    def write(self, number: int, batches: Iterable[pa.RecordBatch], fields: StructType) -> None:
        """Writes the rows of one split. Splits may be written by several threads. Raises OSError."""
        import pyarrow.parquet as pq

        schema, writer = _numbered(arrow_schema(fields)), None
        try:
            for batch in batches:
                if not len(batch):
                    continue
                if writer is None:
                    os.close(os.open(self.folder / f"{number}.parquet", os.O_WRONLY | os.O_CREAT, 0o600))
                    # Uncompressed: the files are read at once, and Spark judges by their size what can be broadcast.
                    writer = pq.ParquetWriter(
                        self.folder / f"{number}.parquet", schema, compression="none", use_dictionary=False,
                        write_statistics=False, store_decimal_as_integer=True,
                    )  # fmt: skip
                writer.write_batch(batch.rename_columns(schema.names))
        finally:
            if writer is not None:
                writer.close()

    def frame(self, session: TableSession, fields: StructType) -> DataFrame:
        """Returns the rows of all files, of which there is at least one."""
        from pyspark.sql import types as t

        schema = t.StructType([t.StructField(f"c{i}", field.dataType) for i, field in enumerate(fields)])
        # A session may tell Spark to pass over damaged or missing files. The rows of a batch are never passed over.
        strict = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false", "mergeSchema": "false"}
        # Dates are those of the proleptic calendar, also before 1582.
        exact = {"datetimeRebaseMode": "CORRECTED"}
        read = session.spark.read.schema(schema).options(**strict, **exact)
        return read.parquet(self.folder.as_uri()).toDF(*fields.names)


def _numbered(schema: pa.Schema) -> pa.Schema:
    """Returns the schema with numbers for names, which mean the same to every reader and every setting of Spark."""
    import pyarrow as pa

    return pa.schema([pa.field(f"c{i}", field.type) for i, field in enumerate(schema)])


@contextmanager
def row_files(session: TableSession) -> Iterator[RowFiles | None]:
    """Yields a new folder for rows, which is removed at the end of the block. Yields None if the tasks of the session
    may run on other machines, or if there can be no such folder."""
    locked_folder = _make(session) if session.is_local else None
    if locked_folder is None:
        yield None
        return
    folder, lock = locked_folder
    try:
        yield RowFiles(folder)
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
