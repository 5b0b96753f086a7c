"""Replaces the content of a Delta table by Parquet files that exist already, in one commit of Delta's own transaction.

The row groups of the files are copied as they are, several files into one of the size that readers like; nothing is
decoded. Delta checks and writes the commit, as it does for ``CREATE OR REPLACE TABLE … AS SELECT``. The transaction is
reached through Py4J (:mod:`cdc.lake.runtime.driver_jvm`).

Whether a table may be replaced in this way is for :func:`begin` to say: it returns None unless the commit is provably
the one that the statement would make.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from cdc.base.errors import RetryableError
from cdc.base.log import get_logger
from cdc.base.targets import LOG_FOLDER, local_path
from cdc.lake.delta.log import TRANSACTION_RETENTION, open_delta
from cdc.lake.delta.stats import INDEXED_PROPERTY, added_file, has_statistics
from cdc.lake.delta.transaction import (
    ENCRYPTION,
    PLAIN_NAME,
    delta_action,
    delta_log,
    features_of,
    from_scala,
    has_files,
    metadata_of,
    scala_object,
    scala_seq,
    some,
)
from cdc.lake.runtime.failures import first_line, is_concurrent
from cdc.lake.runtime.private_pyspark import java_class
from cdc.lake.runtime.session import view_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame
    from pyspark.sql import types as t

    from cdc.lake.runtime.driver_jvm import DriverJvm

FILE_BYTES = 128 << 20
"""Size up to which files are joined."""
COPIES = 4
"""Files that are copied at the same time."""
_PATH = "org.apache.hadoop.fs.Path"
_FEW_ROW_GROUPS, _LEAST_ROWS, _LEAST_BYTES = 32, 20_000, 4 << 20
"""More row groups than these few must have this many rows or bytes each: others make a table slow to read."""
_HARMLESS = {
    TRANSACTION_RETENTION, INDEXED_PROPERTY, "delta.logRetentionDuration", "delta.deletedFileRetentionDuration",
    "delta.checkpointInterval", "delta.enableChangeDataFeed", "delta.enableDeletionVectors",
    "delta.feature.timestampNtz",
}  # fmt: skip
"""Delta's properties that say nothing about the content of files."""
_FEATURES = {
    "appendOnly", "invariants", "checkConstraints", "generatedColumns", "identityColumns", "changeDataFeed",
    "columnMapping", "timestampNtz", "deletionVectors", "typeWidening", "typeWidening-preview", "vacuumProtocolCheck",
    "v2Checkpoint",
}  # fmt: skip
"""Features of Delta that ask nothing of a file, unless a property or the schema says so."""
_log = get_logger(__name__)


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file on this machine, and its footer."""

    path: str
    footer: pq.FileMetaData
    size: int

    @classmethod
    def read(cls, path: str) -> ParquetFile:
        import pyarrow.parquet as pq

        return cls(path, pq.read_metadata(path), Path(path).stat().st_size)


def are_good(files: Sequence[ParquetFile]) -> bool:
    """Whether files are fit for readers once they are joined: their row groups are large, and have statistics."""
    groups = sum(file.footer.num_row_groups for file in files)
    large = (
        sum(file.footer.num_rows for file in files) >= groups * _LEAST_ROWS
        or sum(file.size for file in files) >= groups * _LEAST_BYTES
    )
    return (large or groups <= _FEW_ROW_GROUPS) and has_statistics(file.footer for file in files)


def joined(files: Iterable[ParquetFile]) -> list[list[ParquetFile]]:
    """Splits files into groups of :data:`FILE_BYTES` at most, neighbours together."""
    groups: list[list[ParquetFile]] = []
    size = FILE_BYTES
    for file in files:
        if not file.footer.num_rows:
            continue
        if size + file.size > FILE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups


@dataclass(frozen=True)
class Replacement:
    """The new content and metadata of a table."""

    path: str
    version: int
    """The version that is replaced; -1 if there is no table."""
    schema: t.StructType
    properties: dict[str, str]


@dataclass
class Adoption:
    """A transaction of Delta that replaces a table; nothing is visible before :meth:`commit`."""

    jvm: DriverJvm
    replacement: Replacement
    _txn: Any
    _parquet_schema: Any
    _conf: Any
    _is_tight: bool
    _adds: list[Any] = field(default_factory=list)

    def add_files(self, files: Sequence[ParquetFile]) -> None:
        """Copies the rows of Parquet files into files of the table."""
        groups = joined(files)
        if self.jvm.is_shared:  # it belongs to this thread
            self._adds += map(self._join, groups)
            return
        with ThreadPoolExecutor(COPIES, "adopt") as pool:
            self._adds += pool.map(self._join, groups)

    def add_rows(self, rows: DataFrame) -> None:
        """Writes rows as files of the table, as each statement of Spark does."""
        with view_of(rows) as view, self.jvm.active():
            self._adds += from_scala(self._txn.writeFiles(self.jvm.session.table(view)))

    def commit(self, application: str, seq: int, user_metadata: str) -> None:
        """Makes the added files the whole table, in a commit that carries an applied position and user metadata.

        Raises RetryableError if another writer has committed meanwhile.
        """
        jvm, txn = self.jvm.view, self._txn
        now = int(time.time() * 1000)
        applied = delta_action(jvm, {"txn": {"appId": application, "version": seq, "lastUpdated": now}})
        try:
            with self.jvm.active():
                txn.readWholeTable()  # so that every other commit is a conflict
                actions = scala_seq(jvm, [applied, *self._adds, *self._removals(now)])
                txn.commit(actions, _operation(jvm, txn.metadata(), user_metadata))
        except Exception as error:
            if is_concurrent(error):
                raise _overtaken(self.replacement.path) from error
            raise

    def _removals(self, now: int) -> Iterator[Any]:
        """Yields the actions that remove the present files.

        Delta finds the files by Spark jobs, which take longer than all the rest. The ``deltalake`` library finds them
        in milliseconds; its list counts if Delta's checksum of the version has the same number of files and bytes.
        """
        jvm, snapshot = self.jvm.view, self._txn.snapshot()
        listed = _listed(self.replacement, snapshot)
        if listed is None:
            for added_file in from_scala(self._txn.filterFiles()):
                yield added_file.remove()
            return
        for path, size in listed.items():
            content = {"path": path, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}
            yield delta_action(jvm, {"remove": {**content, "partitionValues": {}, "size": size}})

    def _join(self, files: Sequence[ParquetFile]) -> Any:
        jvm, replacement = self.jvm.view, self.replacement
        folder = local_path(replacement.path)
        assert folder is not None  # begin() has looked
        name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        target = folder / name
        try:
            _copy_row_groups(self.jvm, files, target, self._parquet_schema, self._conf)
        except BaseException:
            with suppress(OSError):  # the first error counts; VACUUM removes the file
                target.unlink()
            raise
        footers = [file.footer for file in files]
        content = added_file(
            target, footers, replacement.schema.fields, replacement.properties, tight_bounds=self._is_tight
        )
        return delta_action(jvm, {"add": content})


def begin(jvm: DriverJvm, replacement: Replacement, files: Sequence[ParquetFile]) -> Adoption | None:
    """Begins to replace a table by files, in its schema. Returns None, and changes nothing, if Spark has to write the
    rows itself: the table is not on a disk of this machine, has properties or features that concern the content of
    files, or the files are not as Spark writes them.

    Raises RetryableError if the table is at another version than the one that is replaced.
    """
    if local_path(replacement.path) is None or not _is_plain(replacement) or not are_good(files):
        return None
    try:
        return _begin(jvm, replacement, files)
    except (Py4JJavaError, Py4JNetworkError):
        raise
    except (Py4JError, TypeError) as error:  # how Py4J tells that there is no such class or method
        _log.warning("this version of Delta is not known, so Spark writes the rows of the snapshot", reason=str(error))
        return None


def _is_plain(replacement: Replacement) -> bool:
    return all(key in _HARMLESS or not key.startswith("delta.") for key in replacement.properties) and "struct" not in {
        field.dataType.typeName() for field in replacement.schema.fields
    }


def _begin(jvm: DriverJvm, replacement: Replacement, files: Sequence[ParquetFile]) -> Adoption | None:
    conf = _hadoop(jvm)
    path = java_class(jvm.view, _PATH)(replacement.path)
    if path.getFileSystem(conf).getUri().getScheme() != "file" or conf.get(ENCRYPTION) is not None:
        return None
    parquet_schema = _common_schema(jvm.view, files, replacement.schema, conf)
    if parquet_schema is None:
        return None
    txn = delta_log(jvm, replacement.path).startTransaction()
    if int(txn.readVersion()) != replacement.version:
        raise _overtaken(replacement.path)
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": replacement.schema.json(),
        "partitionColumns": [],
        "configuration": replacement.properties,
        "createdTime": int(time.time() * 1000),
    }
    with jvm.active():
        try:
            txn.updateMetadataForNewTable(delta_action(jvm.view, {"metaData": metadata}))
        except (Py4JJavaError, PySparkException) as error:
            _log.info("Delta refuses the table's metadata, so the statement is tried", reason=first_line(error))
            return None
    features = features_of(txn)
    _operation(jvm.view, txn.metadata(), "")  # which an unknown version of Delta may not have
    txn.snapshot().checksumOpt()
    if not _is_as_asked(txn, replacement) or not features <= _FEATURES:
        return None
    is_tight = "deletionVectors" in features
    return Adoption(jvm, replacement, txn, parquet_schema, conf, is_tight)


def _is_as_asked(txn: Any, replacement: Replacement) -> bool:
    """Whether Delta has added no property, and no metadata of columns, to what was asked for. Properties that name
    features go into the protocol."""
    from pyspark.sql import types as t

    metadata = metadata_of(txn)
    schema = t.StructType.fromJson(json.loads(metadata["schemaString"]))
    kept = {key: value for key, value in replacement.properties.items() if not key.startswith("delta.feature.")}
    return (
        metadata["configuration"] == kept
        and schema == replacement.schema
        and all(not field.metadata for field in schema.fields)
        and not metadata["partitionColumns"]
    )


def _operation(jvm: Any, metadata: Any, user_metadata: str) -> Any:
    """Returns the operation as ``CREATE OR REPLACE TABLE … AS SELECT`` records it."""
    name = "org.apache.spark.sql.delta.DeltaOperations$ReplaceTable"
    companion = scala_object(jvm, name)
    default = "$lessinit$greater$default$"
    numbers = sorted(int(method.removeprefix(default)) for method in dir(companion) if method.startswith(default))
    more = [getattr(companion, f"{default}{number}")() for number in numbers if number > 5]
    return java_class(jvm, name)(metadata, False, True, True, some(jvm, user_metadata), *more)


def _listed(replacement: Replacement, snapshot: Any) -> dict[str, int] | None:
    """Returns the files of the version that is replaced, with their sizes; None if Delta has to say it: files have
    deletion vectors, partitions or unusual names, or the version has no checksum."""
    import pyarrow as pa

    if replacement.version < 0:
        return {}
    if "deletionVectors" in features_of(snapshot) or not snapshot.metadata().partitionColumns().isEmpty():
        return None
    with open_delta(replacement.path, replacement.path) as delta:
        if delta is None or delta.version() != replacement.version:
            return None
        files = pa.table(delta.get_add_actions())
    sizes = dict(zip(files.column("path").to_pylist(), files.column("size_bytes").to_pylist(), strict=True))
    is_complete = has_files(replacement.path, snapshot, len(sizes), sum(sizes.values()))
    return sizes if is_complete and all(PLAIN_NAME.fullmatch(name) for name in sizes) else None


# --- Parquet ---------------------------------------------------------------------------------------------------------


def _common_schema(jvm: Any, files: Sequence[ParquetFile], schema: t.StructType, conf: Any) -> Any:
    """Returns the Parquet schema that Spark writes for a table's schema, with INT64 timestamps; None if a file has
    another one."""
    spark, parquet = "org.apache.spark.sql", "org.apache.parquet.hadoop"
    timestamps = scala_object(jvm, f"{spark}.internal.SQLConf$ParquetOutputTimestampType")
    converter = java_class(jvm, f"{spark}.execution.datasources.parquet.SparkToParquetSchemaConverter")
    to_parquet = converter(False, timestamps.TIMESTAMP_MICROS(), False, False)
    expected = to_parquet.convert(scala_object(jvm, f"{spark}.types.DataType").fromJson(schema.json()))
    seen: list[pq.ParquetSchema] = []
    for file in files:
        if any(file.footer.schema.equals(known_schema) for known_schema in seen):
            continue
        seen.append(file.footer.schema)
        reader = java_class(jvm, f"{parquet}.ParquetFileReader").open(_input(jvm, file.path, conf))
        try:
            if not reader.getFileMetaData().getSchema().getFields().equals(expected.getFields()):
                return None
        finally:
            reader.close()
    return expected


def _copy_row_groups(driver: DriverJvm, files: Sequence[ParquetFile], target: Path, schema: Any, conf: Any) -> None:
    """Writes one Parquet file that has the row groups of others, byte by byte."""
    jvm = driver.view
    writer = java_class(jvm, "org.apache.parquet.hadoop.ParquetFileWriter")(conf, schema, _hadoop_path(jvm, target))
    try:
        writer.start()
        for file in files:
            writer.appendFile(_input(jvm, file.path, conf))
        facts = java_class(jvm, "java.util.HashMap")()
        facts.put(
            "org.apache.spark.version", driver.session.version()
        )  # dates and moments are of the Gregorian calendar
        writer.end(facts)
    finally:
        writer.close()


def _input(jvm: Any, path: str, conf: Any) -> Any:
    return java_class(jvm, "org.apache.parquet.hadoop.util.HadoopInputFile").fromPath(_hadoop_path(jvm, path), conf)


def _hadoop_path(jvm: Any, path: str | Path) -> Any:
    return java_class(jvm, _PATH)(f"file:{path}")


def _hadoop(jvm: DriverJvm) -> Any:
    """Returns the session's Hadoop configuration for files of this machine: without the files of checksums, which cost
    more than copying."""
    conf = jvm.session.sessionState().newHadoopConf()
    is_ours = conf.get("fs.file.impl", "").startswith("io.towpath.")
    conf.set("fs.file.impl", "io.towpath.LocalFiles$Raw" if is_ours else "org.apache.hadoop.fs.RawLocalFileSystem")
    conf.set("fs.file.impl.disable.cache", "true")
    return conf


def _overtaken(path: str) -> RetryableError:
    return RetryableError(
        "another writer has committed to the table while its new content was written",
        place=path,
        remedy="Give the command again; chunks of a snapshot that were read are not read again.",
    )


def make_log(path: str) -> None:
    """Creates the folder of a new table's log, which tells the remains of an interrupted load from files of others."""
    folder = local_path(path)
    if folder is not None:
        (folder / LOG_FOLDER).mkdir(parents=True, exist_ok=True)
