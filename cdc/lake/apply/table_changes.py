"""The changes of a batch for one table: the pieces that they are read in, their reader, and the result of merging them.
Both engines use it: Spark (:mod:`cdc.lake.apply.merge`) and delta-rs (:mod:`cdc.lake.apply.small_batches`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow as pa
from pyspark.sql import types as t

from cdc.batches.manifest import Manifest, TableResult
from cdc.decode.layout import METADATA_FIELDS
from cdc.lake.delta.tables import BEFORE, Target
from cdc.lake.rows import null_dates
from cdc.lake.rows.column_types import from_arrow_schema
from cdc.lake.rows.input_splits import SPLIT_BYTES, InputSplit, input_splits
from cdc.lake.rows.split_reader import SplitReader

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.apply.commit import MergeStats
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.rows.columns import SourceColumns


class TableChanges(NamedTuple):
    """The changes of a batch for one table."""

    target: Target
    manifest: Manifest
    schema: TableSchema | None
    """The table at the source, as the decoder needs it."""

    def splits(self, after_seq: int) -> list[InputSplit]:
        """Returns the pieces of the batch after a seq."""
        manifest, table = self.manifest, self.target.table
        return input_splits(manifest.ranges, after_seq, SPLIT_BYTES, table, manifest.table_mask(table))

    def reader(
        self,
        columns: SourceColumns | None,
        after_seq: int,
        images: Literal["after", "both"],
        *,
        counts: bool = False,
    ) -> SplitReader:
        """Returns the reader of the changes after a seq, with these columns; None: with the metadata columns only.
        ``counts``: also with the number of dates that became null."""
        fields = list(from_arrow_schema(pa.schema(METADATA_FIELDS)))
        if columns is not None:
            fields += columns.read_fields
            if images == "both":
                fields.append(t.StructField(BEFORE, t.StructType(columns.read_fields), True))
        if counts:
            fields.append(null_dates.FIELD)
        options = {} if columns is None else columns.options()
        return SplitReader(
            table=self.target.table,
            fields=t.StructType(fields),
            images=images,
            after_seq=after_seq,
            upto_seq=self.manifest.last_seq,
            columns=options.get("columns"),
            values=options.get("values"),
            schema=self.schema,
            key=None if columns is None else columns.policies.key,
        )

    def result(self, state: DeltaState, stats: MergeStats, began: float, skipped: int) -> TableResult:
        """Returns the result of a merge. ``state``: the table after it. ``began``: by ``time.monotonic``. ``skipped``:
        the changes that the table had already."""
        version = state.version_of(self.manifest.last_seq)
        return TableResult(
            table=self.target.table,
            inserted=stats.inserted,
            updated=stats.updated,
            deleted=stats.deleted,
            skipped=skipped,
            files=0 if version is None or not stats.ran else state.files.get(version, 0),
            null_dates=stats.null_dates,
            delta_version=state.version if version is None else version,
            delta_id=state.id,
            applied_seq=state.applied_seq,
            generation=state.generation,
            seconds=round(time.monotonic() - began, 3),
        )
