"""The changes of one table as a Spark data source: byte ranges of segments in, Arrow batches out.

Options (all text): ``manifest`` (path) or ``ranges`` (JSON ``[{path, offset, length}]``); ``table`` (``db.table``);
``table_mask`` (only transactions with one of these bits in their index entry can have rows of the table; without it
the store beside the segments is asked); ``after_seq`` and ``upto_seq`` (only changes of transactions after the one, up
to the other); ``images`` (``after`` or ``both``); ``split_bytes``; ``towpath_version`` (the driver's, which executors
compare with theirs); ``schema`` (JSON of the :class:`~cdc.schemas.TableSchema`); ``values`` (JSON of the
:class:`~cdc.decode.ValuePolicies`); ``columns`` (JSON ``[{source, digits, name, policy}]``; without it each column is
read as it is). The schema is given by who reads, and only its columns are decoded;
:data:`spark_jobs.apply.null_dates.FIELD` may be the last of them. The key for hashing is no option, since options are
shown in plans: see :func:`register`.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import cdc.errors
from cdc import __version__
from cdc.batches.manifest import ByteRange, Manifest
from cdc.errors import CdcError, PermanentError, VersionError
from spark_jobs.apply import null_dates
from spark_jobs.source.input_splits import NOTHING, SPLIT_BYTES, Piece, split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from cdc.decode import DecodeStats, ValuePolicies
    from cdc.decode.policies import ColumnPolicies
    from cdc.schemas import TableSchema

_MARK = "towpath-error:"
_MARKED = re.compile(_MARK + r"(\{.*?\}):end")


class TowpathChanges(DataSource):
    """The data source; registered under another name in each session, see :func:`register`."""

    key: ClassVar[bytes | None] = None

    @classmethod
    def name(cls) -> str:
        return "towpath_changes"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ChangesReader(dict(self.options), schema, self.key)


class ChangesReader(DataSourceReader):
    """Splits ranges into pieces on the driver, decodes a piece in an executor."""

    def __init__(self, options: dict[str, str], schema: StructType, key: bytes | None = None) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._schema = schema
        self._key = key

    def partitions(self) -> list[Piece]:
        with _marked_errors():
            after = int(self._options.get("after_seq", "0"))
            size = int(self._options.get("split_bytes", str(SPLIT_BYTES)))
            mask = self._options.get("table_mask")
            # Spark takes an empty list for none given, and would have one task read nothing in particular.
            pieces = split(
                _ranges(self._options), after, size, self._options["table"], None if mask is None else int(mask)
            )
            return pieces or [NOTHING]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches with exactly the columns of the schema."""
        from pyspark.sql.types import StructType

        from cdc.decode import DecodeOptions, DecodeStats, decode_range

        piece = cast(Piece, partition)
        if piece == NOTHING:
            return
        schema = arrow_schema(StructType([field for field in self._schema if field.name != null_dates.COLUMN]))
        counts = len(schema) < len(self._schema)
        stats = DecodeStats()
        increments = null_dates.Increments(stats)
        upto = self._options.get("upto_seq")
        images = cast(Literal["after", "both"], self._options.get("images", "after"))
        with _marked_errors():
            self._check_version()
            policies = column_policies(schema, self._options.get("columns"), self._key)
            for batch in decode_range(
                piece.path,
                piece.offset,
                piece.length,
                table=self._options["table"],
                schema=_table_schema(self._options.get("schema")),
                part=piece.part,
                stats=stats,
                options=DecodeOptions(
                    images=images,
                    after_seq=int(self._options.get("after_seq", "0")),
                    upto_seq=int(upto) if upto is not None else None,
                    columns=policies.sources,
                    policies=_value_policies(self._options.get("values")),
                    table_mask=piece.table_mask,
                ),
            ):
                found = conform(policies.apply(batch), schema, self._options["table"])
                yield null_dates.add_column(found, increments.next()) if counts else found
        if counts:
            _tell_of_dates(self._options["table"], piece, stats)

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


def column_policies(schema: pa.Schema, columns: str | None, key: bytes | None) -> ColumnPolicies:
    """What becomes of the columns that the schema (of Spark) has; ``columns`` is the option of that name."""
    from cdc.config import ColumnPolicy
    from cdc.decode.columns import METADATA_COLUMNS
    from cdc.decode.policies import KEEP, ColumnPolicies, PolicedColumn, SourceColumn

    wanted = [field for field in schema if field.name not in METADATA_COLUMNS]
    known = {} if columns is None else {one["name"]: one for one in json.loads(columns)}
    found = []
    for field in wanted:
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


def _tell_of_dates(table: str, piece: Piece, stats: DecodeStats) -> None:
    """Which columns had zero dates that became null, for the executor's own log; a run's operator is told once a table,
    see :mod:`cdc.batches.results`. Of the reading that counts them alone, since others may read the same rows."""
    for column, count in stats.null_dates.items():
        logging.getLogger(__name__).warning(
            "table %s, column %s: %d zero or impossible dates became null (%s, bytes %d to %d)",
            table, column, count, piece.path, piece.offset, piece.offset + piece.length,
        )  # fmt: skip


def _ranges(options: dict[str, str]) -> tuple[ByteRange, ...]:
    if "ranges" in options:
        return tuple(ByteRange.model_validate(item) for item in json.loads(options["ranges"]))
    return Manifest.model_validate_json(Path(options["manifest"]).read_bytes()).ranges


def register(spark: SparkSession, hash_key: bytes | None = None) -> str:
    """Make the data source known to a session, under a name that no other has; returns it.

    The key goes with the pickled class, of which plans, logs and the user interface show nothing; of options they show
    the text.
    """
    unique = f"towpath_changes_{uuid.uuid4().hex}"

    class Named(TowpathChanges):
        key = hash_key

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
