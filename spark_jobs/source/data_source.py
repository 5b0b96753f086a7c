"""The changes of one table as a Spark data source: byte ranges of segments in, Arrow batches out.

Options, all as text:

- ``manifest`` (path) or ``ranges`` (JSON ``[{path, offset, length}]``);
- ``table``: ``db.table``;
- ``table_mask``: only transactions with one of these bits in their index entry can have rows of the table; without it
  the store beside the segments is asked;
- ``after_seq`` and ``upto_seq``: only changes of transactions after the one, up to the other;
- ``images``: ``after`` or ``both``;
- ``split_bytes``;
- ``towpath_version``: the driver's version, which executors compare with theirs;
- ``schema``: JSON of the :class:`~cdc.schemas.TableSchema`;
- ``values``: JSON of the :class:`~cdc.decode.ValuePolicies`;
- ``columns``: JSON ``[{source, digits, name, policy}]``; without it each column is read as it is.

The caller gives the schema, and only its columns are decoded; :data:`spark_jobs.source.null_dates.FIELD` may be the
last of them. The key for hashing is no option, because plans show options: see :func:`source_name`.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cdc import __version__
from cdc.batches.manifest import ByteRange, Manifest
from cdc.errors import PermanentError, VersionError
from spark_jobs.runtime.failures import marked_errors
from spark_jobs.source import null_dates
from spark_jobs.source.input_splits import EMPTY, SPLIT_BYTES, InputSplit, input_splits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from cdc.decode import DecodeStats, ValuePolicies
    from cdc.decode.policies import ColumnPolicies
    from cdc.schemas import TableSchema
    from spark_jobs.runtime.session import TableSession


class TowpathChanges(DataSource):
    """The data source. Each session registers it under another name, see :func:`source_name`."""

    key: ClassVar[bytes | None] = None

    @classmethod
    def name(cls) -> str:
        return "towpath_changes"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ChangesReader(dict(self.options), schema, self.key)


class ChangesReader(DataSourceReader):
    """Cuts the ranges into input splits on the driver, and decodes one split in an executor."""

    def __init__(self, options: dict[str, str], schema: StructType, key: bytes | None = None) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._schema = schema
        self._key = key

    def partitions(self) -> list[InputSplit]:
        with marked_errors():
            after = int(self._options.get("after_seq", "0"))
            size = int(self._options.get("split_bytes", str(SPLIT_BYTES)))
            mask = self._options.get("table_mask")
            splits = input_splits(
                _ranges(self._options), after, size, self._options["table"], None if mask is None else int(mask)
            )
            # Spark takes an empty list as "no partitions given" and would start one task without a split.
            return splits or [EMPTY]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields batches with exactly the columns of the schema."""
        from pyspark.sql.types import StructType

        from cdc.decode import DecodeOptions, DecodeStats, decode_range

        one = cast(InputSplit, partition)
        if one == EMPTY:
            return
        schema = arrow_schema(StructType([field for field in self._schema if field.name != null_dates.COLUMN]))
        counts = len(schema) < len(self._schema)
        stats = DecodeStats()
        increments = null_dates.NullDateIncrements(stats)
        upto = self._options.get("upto_seq")
        with marked_errors():
            self._check_version()
            policies = column_policies(schema, self._options.get("columns"), self._key)
            for batch in decode_range(
                one.path,
                one.offset,
                one.length,
                table=self._options["table"],
                schema=_table_schema(self._options.get("schema")),
                part=one.part,
                stats=stats,
                options=DecodeOptions(
                    images=cast(Literal["after", "both"], self._options.get("images", "after")),
                    after_seq=int(self._options.get("after_seq", "0")),
                    upto_seq=int(upto) if upto is not None else None,
                    columns=policies.sources,
                    policies=_value_policies(self._options.get("values")),
                    table_mask=one.table_mask,
                ),
            ):
                found = conform(policies.apply(batch), schema, self._options["table"])
                yield null_dates.add_column(found, increments.next()) if counts else found
        if counts:
            _log_null_dates(self._options["table"], one, stats)

    def _check_version(self) -> None:
        driver = self._options.get("towpath_version", __version__)
        if driver != __version__:
            raise VersionError(
                f"the driver runs towpath {driver}, this Spark executor has towpath {__version__}",
                remedy="Install the same version on all machines.",
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema that Spark expects of batches for this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def conform(batch: pa.RecordBatch, schema: pa.Schema, table: str) -> pa.RecordBatch:
    """Returns the batch under the schema that Spark expects (nullability, spelling of the time zone).

    Raises PermanentError if a column is missing, which means that the table changed inside a batch.
    """
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


def column_policies(schema: pa.Schema, columns: str | None, key: bytes | None) -> ColumnPolicies:
    """Returns the policies of the columns in Spark's schema; ``columns`` is the option of that name."""
    from cdc.config import ColumnPolicy
    from cdc.decode.columns import METADATA_COLUMNS
    from cdc.decode.policies import KEEP, ColumnPolicies, PolicedColumn, SourceColumn

    known = {} if columns is None else {one["name"]: one for one in json.loads(columns)}
    found = []
    for field in schema:
        if field.name in METADATA_COLUMNS:
            continue
        one = known.get(field.name)
        if one is None:
            found.append(PolicedColumn(SourceColumn(field.name, field.type), KEEP, field))
        else:
            source = SourceColumn(one["source"], field.type, one["digits"])
            found.append(PolicedColumn(source, ColumnPolicy.model_validate(one["policy"]), field))
    return ColumnPolicies(tuple(found), key)


def _table_schema(option: str | None) -> TableSchema | None:
    from cdc.schemas import TableSchema

    return None if option is None else TableSchema.model_validate_json(option)


def _value_policies(option: str | None) -> ValuePolicies:
    from cdc.decode import ValuePolicies

    return ValuePolicies(**json.loads(option or "{}"))


def _log_null_dates(table: str, one: InputSplit, stats: DecodeStats) -> None:
    """Names the columns with dates that became null, in the executor's own log. The operator of a run gets one line a
    table from :mod:`cdc.batches.results`. Only the read that counts them logs, since others read the same rows."""
    for column, count in stats.null_dates.items():
        logging.getLogger(__name__).warning(
            "table %s, column %s: %d zero or impossible dates became null (%s, bytes %d to %d)",
            table, column, count, one.path, one.offset, one.offset + one.length,
        )  # fmt: skip


def _ranges(options: dict[str, str]) -> tuple[ByteRange, ...]:
    if "ranges" in options:
        return tuple(ByteRange.model_validate(item) for item in json.loads(options["ranges"]))
    return Manifest.model_validate_json(Path(options["manifest"]).read_bytes()).ranges


def source_name(session: TableSession, key: bytes | None = None) -> str:
    """Returns the name under which the session knows the data source that hashes with this key; registers it at the
    first call."""
    if key not in session.sources:
        session.sources[key] = register(session.spark, key)
    return session.sources[key]


def register(spark: SparkSession, hash_key: bytes | None = None) -> str:
    """Registers the data source in a session under a new unique name, and returns the name.

    The key travels with the pickled class, which plans, logs and the user interface do not show, unlike options.
    """
    unique = f"towpath_changes_{uuid.uuid4().hex}"

    class Named(TowpathChanges):
        key = hash_key

        @classmethod
        def name(cls) -> str:
            return unique

    spark.dataSource.register(Named)
    return unique
