"""The changes of one table as a Spark data source: byte ranges of segments in, Arrow batches out.

Options (all text): ``manifest`` (path) or ``ranges`` (JSON ``[{path, offset, length}]``); ``table`` (``db.table``);
``after_seq`` and ``upto_seq`` (only changes of transactions after the one, up to the other); ``images`` (``after`` or
``both``); ``split_bytes``; ``towpath_version`` (the driver's, which executors compare with theirs). The schema is given
by who reads.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import cdc.errors
from cdc import __version__
from cdc.batches.manifest import ByteRange, Manifest
from cdc.errors import CdcError, PermanentError, VersionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SPLIT_BYTES = 24 * 1024 * 1024
_MARK = "towpath-error:"
_MARKED = re.compile(_MARK + r"(\{.*?\}):end")


@dataclass
class Piece(InputPartition):
    """Whole transactions of one segment, or of a staged one, that one task reads."""

    path: str
    offset: int
    length: int


class TowpathChanges(DataSource):
    """The data source; registered under another name in each session, see :func:`register`."""

    @classmethod
    def name(cls) -> str:
        return "towpath_changes"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ChangesReader(dict(self.options), schema)


class ChangesReader(DataSourceReader):
    """Splits ranges into pieces on the driver, decodes a piece in an executor."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._options = {key.lower(): value for key, value in options.items()}
        self._schema = schema

    def partitions(self) -> list[Piece]:
        with _marked_errors():
            after = int(self._options.get("after_seq", "0"))
            size = int(self._options.get("split_bytes", str(SPLIT_BYTES)))
            return split(_ranges(self._options), after, size)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches with exactly the columns of the schema."""
        from cdc.decode import decode_range

        piece = cast(Piece, partition)
        schema = arrow_schema(self._schema)
        upto = self._options.get("upto_seq")
        images = cast(Literal["after", "both"], self._options.get("images", "after"))
        with _marked_errors():
            self._check_version()
            for batch in decode_range(
                piece.path,
                piece.offset,
                piece.length,
                table=self._options["table"],
                images=images,
                after_seq=int(self._options.get("after_seq", "0")),
                upto_seq=int(upto) if upto is not None else None,
            ):
                yield conform(batch, schema, self._options["table"])

    def _check_version(self) -> None:
        driver = self._options.get("towpath_version", __version__)
        if driver != __version__:
            raise VersionError(
                f"the driver runs towpath {driver}, this Spark executor has towpath {__version__}",
                remedy="Install the same version on all machines.",
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches for this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def conform(batch: pa.RecordBatch, schema: pa.Schema, table: str) -> pa.RecordBatch:
    """The batch under Spark's own idea of its schema (nullability, time zone's spelling). Raises PermanentError
    where a column is missing, which means that a table changed inside a batch."""
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            raise PermanentError(f"column {field.name} is not in the decoded rows", place=table)
        column = batch.column(index)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _ranges(options: dict[str, str]) -> tuple[ByteRange, ...]:
    if "ranges" in options:
        return tuple(ByteRange.model_validate(item) for item in json.loads(options["ranges"]))
    return Manifest.model_validate_json(Path(options["manifest"]).read_bytes()).ranges


def split(ranges: tuple[ByteRange, ...], after_seq: int, size_bytes: int) -> list[Piece]:
    """Cut ranges between transactions into pieces of about ``size_bytes``, without what lies up to ``after_seq``."""
    from cdc.store.staged import staged_entries

    pieces: list[Piece] = []
    for part in ranges:
        entries = staged_entries(part.path, part.offset, part.length)
        entries = entries[entries["seq"] > after_seq]
        starts, ends = entries["offset"], entries["offset"] + entries["length"]
        first = 0
        while first < len(entries):  # once a piece, not once a transaction: there may be millions
            start = int(starts[first])
            following = max(first + 1, int(np.searchsorted(ends, np.uint64(start + size_bytes), side="right")))
            pieces.append(Piece(part.path, start, int(ends[following - 1]) - start))
            first = following
    return pieces


def register(spark: SparkSession) -> str:
    """Make the data source known to a session, under a name that no other session has; returns it."""
    unique = f"towpath_changes_{uuid.uuid4().hex}"

    class Named(TowpathChanges):
        @classmethod
        def name(cls) -> str:
            return unique

    spark.dataSource.register(Named)
    return unique


@contextmanager
def _marked_errors() -> Iterator[None]:
    """Errors of Towpath cross from Python workers to the driver as text; marked, they can be found in it again."""
    try:
        yield
    except CdcError as error:
        content = {"class": type(error).__name__, "message": error.message}
        content |= {"place": error.place or "", "remedy": error.remedy or ""}
        raise RuntimeError(f"{_MARK}{json.dumps(content)}:end") from error


def find_error(text: str) -> CdcError | None:
    """The error of Towpath that a worker raised, from the text of the exception that Spark made of it."""
    match = _MARKED.search(text)
    if match is None:
        return None
    try:
        content = json.loads(match[1])
    except json.JSONDecodeError:
        return None
    kind = getattr(cdc.errors, content["class"], CdcError)
    return cast(CdcError, kind(content["message"], place=content["place"] or None, remedy=content["remedy"] or None))
