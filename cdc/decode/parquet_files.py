"""Parquet files of decoded rows, in the form of those that Spark writes for a Delta table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

GROUP_ROWS, GROUP_BYTES = 131_072, 64 << 20
"""The most rows and bytes of a row group, uncompressed, of which the first that is reached counts."""


class RowGroupWriter:
    """Writes rows into a Parquet file in row groups of bounded size."""

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        codec: str = "snappy",
        limits: tuple[int, int] = (GROUP_ROWS, GROUP_BYTES),
        notes: Mapping[str, str] | None = None,
        has_dictionaries: bool = False,
    ) -> None:
        """``limits``: the rows and bytes of a row group. ``notes``: key-value metadata of the file. Without them it
        has the Arrow schema there. ``has_dictionaries``: columns with few values are smaller, which takes half as much
        time again."""
        self.rows = 0
        """The rows of the file."""
        self._schema, self._limits = schema, limits
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression=codec,
            use_dictionary=has_dictionaries,
            write_statistics=True,
            store_decimal_as_integer=True,
            store_schema=notes is None,
            version="2.6",
        )
        if notes is not None:
            self._writer.add_key_value_metadata(dict(notes))
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows, which have the writer's schema."""
        self._waiting.append(batch)
        self._rows += len(batch)
        self._bytes += batch.nbytes
        self.rows += len(batch)
        if self._rows >= self._limits[0] or self._bytes >= self._limits[1]:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        """Writes the rest and the footer."""
        self._flush()
        self._writer.close()
