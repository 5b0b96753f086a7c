"""The form in which this process writes the files of a Delta table: that of Spark's own."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.decode.parquet_files import RowGroupWriter

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

CODECS = {"snappy": "snappy", "zstd": "zstd", "gzip": "gz"}
"""Spark's names of compressions, and how its files are called."""
SPARK_VERSION = "org.apache.spark.version"
"""A file that has this note has dates and moments of the Gregorian calendar, from version 3.1 on."""
_LIMITS = 1 << 20, 128 << 20
"""The most rows and bytes of a row group, uncompressed."""


@dataclass(frozen=True)
class WrittenFile:
    """A file that is written, and its footer."""

    path: Path
    footer: pq.FileMetaData


@dataclass(frozen=True)
class TableFormat:
    """The form of one table's files. The table has neither partitions nor column mapping."""

    schema: pa.Schema
    codec: str
    """One of :data:`CODECS`."""
    spark_version: str

    def new_path(self, folder: Path) -> Path:
        """Returns the path of a new file, with a name as Spark gives it."""
        return folder / f"part-00000-{uuid.uuid4()}-c000.{CODECS[self.codec]}.parquet"

    def write(self, folder: Path, batches: Iterable[pa.RecordBatch]) -> WrittenFile | None:
        """Writes rows, which have at least the columns of the table, into a new file of a folder. Returns None, and
        writes nothing, if there are none. Raises OSError, also for a file that has other than these rows then."""
        import pyarrow.parquet as pq

        writer, path, names = None, self.new_path(folder), self.schema.names
        try:
            try:
                for batch in batches:
                    if not len(batch):
                        continue
                    if writer is None:
                        notes = {SPARK_VERSION: self.spark_version}
                        writer = RowGroupWriter(
                            path, self.schema, codec=self.codec, limits=_LIMITS, notes=notes, has_dictionaries=True
                        )
                    writer.add(batch.select(names).cast(self.schema))
            finally:
                if writer is not None:
                    writer.close()
            if writer is None:
                return None
            footer = pq.read_metadata(path)
            if footer.num_rows != writer.rows:
                raise OSError(f"{path} has {footer.num_rows} rows instead of {writer.rows}")
        except BaseException:
            with suppress(OSError):  # the first error counts; VACUUM removes the file
                path.unlink()
            raise
        return WrittenFile(path, footer)
