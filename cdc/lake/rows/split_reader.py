"""Decodes input splits of one table: in tasks of ``mapInArrow``, in those of the data source, and on the driver.

A :class:`SplitReader` is pickled into the plan of a DataFrame and runs wherever its task does. Plans show only the name
of the class, so neither the keys of the store, nor that for hashing, nor a value of the table appears in them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cdc.base.errors import PermanentError, VersionError
from cdc.base.version import package_version
from cdc.config import ColumnPolicy
from cdc.decode import DecodeOptions, DecodeStats, ValuePolicies, decode_range
from cdc.decode.columns import METADATA_COLUMNS
from cdc.decode.policies import KEEP, ColumnPolicies, PolicedColumn, SourceColumn
from cdc.disk.encryption import keys
from cdc.disk.encryption.keys import WrappingKey
from cdc.lake.rows import null_dates
from cdc.lake.rows.input_splits import EMPTY, InputSplit
from cdc.lake.rows.row_choice import SEEN, ChosenRows, RowChoice
from cdc.lake.runtime import private_pyspark
from cdc.lake.runtime.failures import marked_errors
from cdc.wire.connection import Connection, remember

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from cdc.binlog.sql.schemas import TableSchema

_EXTRAS = {null_dates.COLUMN, SEEN}
"""Columns that are added to the decoded ones."""


@dataclass(frozen=True)
class SplitReader:
    """Reads changes of one table, with exactly the columns of ``fields``."""

    table: str
    """``db.table``."""
    fields: StructType
    """The columns that Spark gets. The last of them may be :data:`cdc.lake.rows.null_dates.FIELD` or, with choices,
    :data:`~cdc.lake.rows.row_choice.SEEN`."""
    images: Literal["after", "both"] = "after"
    after_seq: int = 0
    upto_seq: int | None = None
    """Only changes of transactions with ``after_seq`` < seq ≤ ``upto_seq`` are read."""
    columns: str | None = None
    """JSON ``[{source, digits, name, policy}]``; None: each column is read as it is."""
    values: str | None = None
    """JSON of the :class:`~cdc.decode.ValuePolicies`."""
    schema: TableSchema | None = None
    """The table in ``information_schema``."""
    key: bytes | None = field(default=None, repr=False)
    """The key for hashing."""
    version: str = package_version()
    """The driver's version of towpath."""
    splits: tuple[InputSplit, ...] = ()
    """The splits that :meth:`__call__` is given the numbers of."""
    servers: tuple[Connection, ...] = field(default=(), repr=False)
    """The servers that have the splits, if their paths are URIs of one."""
    store_keys: tuple[WrappingKey, ...] = field(default=(), repr=False)
    """The keys of encrypted segments."""
    choices: tuple[RowChoice, ...] = ()
    """For each split the rows that are wanted; empty: all of them."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decodes splits in a task of ``mapInArrow``, whose input is one column with numbers of splits."""
        with marked_errors():
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    choice = self.choices[number] if self.choices else None
                    yield from self.read(self.splits[number], choice)

    def read(self, split: InputSplit, choice: RowChoice | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the rows of one split, or those of a choice. Raises VersionError on a machine with another towpath,
        and what :func:`~cdc.decode.decode_range` raises."""
        if split == EMPTY:
            return
        for server in self.servers:
            remember(server)
        keys.remember(self.store_keys)
        import pyarrow as pa

        if self.version != package_version():
            raise VersionError(
                f"the driver runs towpath {self.version}, this Spark executor has towpath {package_version()}",
                remedy="Install the same version on all machines.",
            )
        schema = arrow_schema(without_extras(self.fields))
        extra = {field.name for field in self.fields} & _EXTRAS
        seen = pa.field(SEEN, pa.bool_()) if SEEN in extra else None
        chosen = None if choice is None else ChosenRows(choice, f"{self.table}, {split.path}, byte {split.offset}")
        stats = DecodeStats()
        increments = null_dates.NullDateIncrements(stats)
        policies = column_policies(schema, self.columns, self.key)
        for batch in decode_range(
            split.path,
            split.offset,
            split.length,
            table=self.table,
            schema=self.schema,
            part=split.part,
            stats=stats,
            options=DecodeOptions(
                images=self.images,
                after_seq=self.after_seq,
                upto_seq=self.upto_seq,
                columns=policies.sources,
                policies=_value_policies(self.values),
                table_mask=split.table_mask,
            ),
        ):
            rows = conform(policies.apply(batch), schema, self.table)
            if chosen is not None:
                rows = chosen.of(rows, seen)
            yield null_dates.add_column(rows, increments.next()) if null_dates.COLUMN in extra else rows
        if chosen is not None:
            chosen.require_all()
        if null_dates.COLUMN in extra:
            _log_null_dates(self.table, split, stats)


def without_extras(fields: StructType) -> StructType:
    """Returns the columns that are decoded."""
    from pyspark.sql.types import StructType

    return StructType([field for field in fields if field.name not in _EXTRAS])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Returns the Arrow schema that Spark expects of batches for this schema."""
    return private_pyspark.to_arrow_schema(schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema, table: str) -> pa.RecordBatch:
    """Returns the batch under the schema that Spark expects (nullability, spelling of the time zone).

    Raises PermanentError if a column is missing, which means that the table changed inside a batch.
    """
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    columns = []
    for spark_field in schema:
        index = batch.schema.get_field_index(spark_field.name)
        if index < 0:
            raise PermanentError(f"column {spark_field.name} is not in the decoded rows", place=table)
        column = batch.column(index)
        columns.append(column if column.type.equals(spark_field.type) else column.cast(spark_field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def column_policies(schema: pa.Schema, columns: str | None, key: bytes | None) -> ColumnPolicies:
    """Returns the policies of the columns in Spark's schema; ``columns``: see :class:`SplitReader`."""
    described = {} if columns is None else {column["name"]: column for column in json.loads(columns)}
    policed = []
    for spark_field in schema:
        if spark_field.name in METADATA_COLUMNS:
            continue
        policy = described.get(spark_field.name)
        if policy is None:
            policed.append(PolicedColumn(SourceColumn(spark_field.name, spark_field.type), KEEP, spark_field))
        else:
            source = SourceColumn(policy["source"], spark_field.type, policy["digits"])
            policed.append(PolicedColumn(source, ColumnPolicy.model_validate(policy["policy"]), spark_field))
    return ColumnPolicies(tuple(policed), key)


def _value_policies(text: str | None) -> ValuePolicies:
    return ValuePolicies(**json.loads(text or "{}"))


def _log_null_dates(table: str, split: InputSplit, stats: DecodeStats) -> None:
    """Names the columns with dates that became null, in the log of the process that decodes. The operator of a run gets
    one line a table from :mod:`cdc.batches.results`. Only the read that counts them logs, since others read the same
    rows."""
    for column, count in stats.null_dates.items():
        logging.getLogger(__name__).warning(
            "table %s, column %s: %d zero or impossible dates became null (%s, bytes %d to %d)",
            table, column, count, split.path, split.offset, split.offset + split.length,
        )  # fmt: skip
