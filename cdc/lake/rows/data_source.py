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
- ``schema``: JSON of the :class:`~cdc.binlog.sql.schemas.TableSchema`;
- ``values``: JSON of the :class:`~cdc.decode.ValuePolicies`;
- ``columns``: JSON ``[{source, digits, name, policy}]``; without it each column is read as it is.

The caller gives the schema, and only its columns are decoded; :data:`cdc.lake.rows.null_dates.FIELD` may be the
last of them. The keys of the store and for hashing are no options, because
plans show options: see :func:`register`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cdc.base.version import package_version
from cdc.batches.manifest import ByteRange, Manifest
from cdc.binlog.sql.schemas import TableSchema
from cdc.disk.encryption import keys
from cdc.disk.encryption.keys import WrappingKey
from cdc.lake.rows.input_splits import EMPTY, SPLIT_BYTES, InputSplit, input_splits
from cdc.lake.rows.split_reader import SplitReader
from cdc.lake.runtime.failures import marked_errors
from cdc.wire.files import servers_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class TowpathChanges(DataSource):
    """The data source. Each session registers it under another name, see :func:`register`."""

    key: ClassVar[bytes | None] = None
    store_keys: ClassVar[tuple[WrappingKey, ...]] = ()

    @classmethod
    def name(cls) -> str:
        return "towpath_changes"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ChangesReader(dict(self.options), schema, self.key, self.store_keys)


class ChangesReader(DataSourceReader):
    """Cuts the ranges into input splits on the driver, and decodes one split in an executor."""

    def __init__(
        self,
        options: dict[str, str],
        schema: StructType,
        key: bytes | None = None,
        store_keys: tuple[WrappingKey, ...] = (),
    ) -> None:
        self._options = {name.lower(): value for name, value in options.items()}
        self._schema = schema
        self._key = key
        self._store_keys = store_keys
        has_ranges = not self._options.keys().isdisjoint(("ranges", "manifest"))
        self._servers = servers_of(byte_range.path for byte_range in _ranges(self._options)) if has_ranges else ()

    def partitions(self) -> list[InputSplit]:
        with marked_errors():
            keys.remember(self._store_keys)
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
        with marked_errors():
            yield from self._reader().read(cast(InputSplit, partition))

    def _reader(self) -> SplitReader:
        options = self._options
        upto, schema = options.get("upto_seq"), options.get("schema")
        return SplitReader(
            table=options["table"],
            fields=self._schema,
            images=cast(Literal["after", "both"], options.get("images", "after")),
            after_seq=int(options.get("after_seq", "0")),
            upto_seq=int(upto) if upto is not None else None,
            columns=options.get("columns"),
            values=options.get("values"),
            schema=None if schema is None else TableSchema.model_validate_json(schema),
            key=self._key,
            servers=self._servers,
            store_keys=self._store_keys,
            version=options.get("towpath_version", package_version()),
        )


def _ranges(options: dict[str, str]) -> tuple[ByteRange, ...]:
    if "ranges" in options:
        return tuple(ByteRange.model_validate(item) for item in json.loads(options["ranges"]))
    return Manifest.model_validate_json(Path(options["manifest"]).read_bytes()).ranges


def register(spark: SparkSession, hash_key: bytes | None = None) -> str:
    """Registers the data source in a session under a new unique name, and returns the name.

    The keys travel with the pickled class, which plans, logs and the user interface do not show, unlike options.
    """
    known_keys = keys.known()
    unique = f"towpath_changes_{uuid.uuid4().hex}"

    class Named(TowpathChanges):
        key = hash_key
        store_keys = known_keys

        @classmethod
        def name(cls) -> str:
            return unique

    spark.dataSource.register(Named)
    return unique
