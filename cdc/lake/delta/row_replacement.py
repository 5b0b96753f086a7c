"""Replaces rows of a Delta table by key, in one commit of Delta's own transaction.

A MERGE joins the table with its source twice or three times, the second time with all columns, and decides for each row
what becomes of it. That is not needed where the source has whole rows: the rows of the table with one of the source's
keys go, and the source's rows come. So the table's keys are read once, to find the rows that go. A file all of whose
rows go is removed unread. Of the others, the remaining rows are written again, or the rows that go are marked in a
deletion vector. Decision 0100 has the reasons and the figures.

The transaction is Delta's, reached in the driver's JVM: it lists the files, writes rows, checks constraints, finds
conflicts and commits, as it does for MERGE. The rows are found there, too, by a view of the session, so that nothing
here asks whether the session is one of this process or of a Spark Connect server. :func:`replace_rows` leaves the work
to a MERGE wherever the commit would not provably have the same content: for columns or properties that ask more of a
commit, and for unknown versions of Delta.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc.base.errors import RetryableError
from cdc.base.log import get_logger
from cdc.lake.delta.sql import quote
from cdc.lake.delta.transaction import (
    PLAIN_NAME,
    PositionedTransaction,
    delta_action,
    features_of,
    from_scala,
    has_files,
    if_known,
    metadata_of,
    scala_object,
    scala_seq,
    some,
)
from cdc.lake.delta.vectors import VECTORS_PROPERTY
from cdc.lake.runtime.private_pyspark import java_class

if TYPE_CHECKING:
    from pyspark.sql import types as t

    from cdc.lake.delta.files import TableFiles
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.rows.key_plan import KeyRanges
    from cdc.lake.runtime.driver_jvm import DriverJvm

_log = get_logger(__name__)
_HARMLESS = {
    "delta.dataSkippingNumIndexedCols", "delta.dataSkippingStatsColumns", "delta.logRetentionDuration",
    "delta.deletedFileRetentionDuration", "delta.setTransactionRetentionDuration", "delta.checkpointInterval",
    "delta.checkpointPolicy", "delta.enableDeletionVectors", "delta.enableTypeWidening", "delta.columnMapping.mode",
    "delta.columnMapping.maxColumnId", "delta.minReaderVersion", "delta.minWriterVersion", "delta.targetFileSize",
    "delta.randomizeFilePrefixes", "delta.randomPrefixLength", "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementVersion", "delta.inCommitTimestampEnablementTimestamp",
}  # fmt: skip
"""Delta's properties that ask nothing of a commit beyond what its transaction does by itself."""
_HARMLESS_PREFIXES = ("delta.feature.", "delta.constraints.")
FEATURES = {
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "columnMapping", "timestampNtz",
    "deletionVectors", "typeWidening", "typeWidening-preview", "vacuumProtocolCheck", "v2Checkpoint",
    "inCommitTimestamp", "variantType", "variantType-preview", "domainMetadata", "clustering", "generatedColumns",
    "identityColumns", "allowColumnDefaults",
}  # fmt: skip
"""Features of Delta that ask nothing more, unless a property or the schema says so."""
_FIELD_METADATA = {"comment", "delta.columnMapping.id", "delta.columnMapping.physicalName", "delta.typeChanges"}
_OURS, _THEIRS = "_our_key", "_their_key"
_FILE, _ROW, _DELETES = "_file", "_row_index", "_deletes"
_STATISTICS = "spark.databricks.delta.stats.collect"
_FEW_ROWS = 100_000
"""Up to this many rows are written by one task, into one file, and as many keys are sent to every executor."""
_TINY_BYTES = 1 << 20
"""Up to this size, files are written anew without a look at which of them have rows that go."""
_MOST_LISTED = 1_000
"""Files that are listed without Spark."""


@dataclass(frozen=True)
class NewRows:
    """Rows by key: at most one for each key. It replaces the row of the table with that key, or deletes it."""

    view: Callable[[], str]
    """Returns the name of a view in the session, with the table's columns and those that :attr:`is_delete` needs."""
    keys: Sequence[str]
    """Columns that are never null."""
    is_delete: str
    """SQL condition: the row deletes."""
    ranges: Sequence[str]
    """SQL conditions on ``t`` that hold for every row of the table with one of the keys."""
    count: int
    """The number of rows, as the driver knows it."""
    upserts: int
    """Those of them that do not delete."""
    is_stored: bool
    """Reading the rows again is cheap, and gives the same."""


@dataclass(frozen=True)
class LoggedTable:
    """A table as its log was read, without Spark."""

    state: DeltaState
    files: TableFiles | None
    """Its files; None if they are not known."""
    keys: Mapping[str, KeyRanges]
    """Ranges of integer keys, one of which has the key of each new row."""


@dataclass(frozen=True)
class Replaced:
    """The rows of the table that changed."""

    inserted: int
    updated: int
    deleted: int

    def metrics(self, source_rows: int, copied: int) -> dict[str, int]:
        """Returns the metrics of rows that Delta's history shows of a MERGE. ``source_rows``: the rows that came;
        ``copied``: those that were written again as they were."""
        return {
            "numSourceRows": source_rows,
            "operationNumSourceRows": source_rows,
            "numTargetRowsInserted": self.inserted,
            "numTargetRowsUpdated": self.updated,
            "numTargetRowsDeleted": self.deleted,
            "numTargetRowsMatchedUpdated": self.updated,
            "numTargetRowsMatchedDeleted": self.deleted,
            "numTargetRowsCopied": copied,
        }


class _UnknownRowsError(Exception):
    """A file does not say how many rows it has."""


def are_plain(properties: Mapping[str, str]) -> bool:
    """Whether these properties of a table ask nothing of a commit beyond what Delta's transaction does by itself."""
    return all(
        not key.startswith("delta.") or key in _HARMLESS or key.startswith(_HARMLESS_PREFIXES) for key in properties
    )


def _are_whole(rows: t.StructType, schema: t.StructType) -> bool:
    kinds = {field.name: field.dataType for field in rows.fields}
    return all(
        kinds.get(field.name) == field.dataType and {*field.metadata} <= _FIELD_METADATA for field in schema.fields
    )


def replace_rows(jvm: DriverJvm, logged_table: LoggedTable, new: NewRows, *, marks: bool) -> Replaced | None:
    """Replaces rows of a table at its newest version. The commit carries the transaction and the user metadata of the
    session's settings. Returns None, and changes nothing, if a MERGE has to do it. ``marks``: rows that go are marked
    in deletion vectors if the table has these, and other rows of their files stay.

    Raises AlreadyThereError if the table has the session's transaction, RetryableError if rows were lost on the way
    into Spark, and what Delta raises for a conflict.
    """

    def replace() -> Replaced | None:
        with jvm.active():
            replacement = _begin(jvm, logged_table, new)
            return None if replacement is None else replacement.run(marks=marks)

    try:
        return if_known("rows are merged", replace)
    except _UnknownRowsError:
        _log.info(
            "files do not say how many rows they have, so rows are merged by a statement", path=logged_table.state.path
        )
        return None


def _begin(jvm: DriverJvm, logged_table: LoggedTable, new: NewRows) -> _Replacement | None:
    from pyspark.sql import types as t

    transaction = PositionedTransaction.begin(jvm, logged_table.state)
    txn, metadata = transaction.txn, metadata_of(transaction.txn)
    schema = t.StructType.fromJson(json.loads(metadata["schemaString"]))
    features = features_of(txn)
    properties = metadata["configuration"]
    has_statistics = jvm.session.conf().get(_STATISTICS, "true") == "true"
    rows = jvm.session.table(new.view())
    view_schema = t.StructType.fromJson(json.loads(rows.schema().json()))
    if not (has_statistics and features <= FEATURES and are_plain(properties) and _are_whole(view_schema, schema)):
        return None
    # Delta also knows the least and the greatest value of other keys than integers.
    has_all_keys = not new.ranges or {*new.keys} == {*logged_table.keys}
    is_listed = transaction.is_at and has_all_keys and not metadata["partitionColumns"]
    listed, listed_bytes = None, 0
    if is_listed:
        listed, listed_bytes = _listed(jvm, logged_table, txn.snapshot(), "deletionVectors" in features)
    has_vectors = properties.get(VECTORS_PROPERTY, "false").lower() == "true"
    is_small = logged_table.files is not None and logged_table.files.is_small and new.count <= _FEW_ROWS
    is_tiny = is_small and bool(listed) and listed_bytes <= _TINY_BYTES
    return _Replacement(jvm, transaction, schema, new, rows, has_vectors, listed, is_small, is_tiny)


def _listed(
    jvm: DriverJvm, logged_table: LoggedTable, snapshot: Any, has_vectors: bool
) -> tuple[Sequence[Any] | None, int]:
    """Returns the files that may have rows with one of the keys, as ``AddFile``, and their bytes together. Returns None
    and 0 if Delta has to find them, which takes more jobs of Spark: the files are many, have unusual names or no number
    of rows, or Delta's checksum of the version has another number of files or bytes. ``has_vectors``: files may have
    deletion vectors, which only Delta knows; its list of all files takes one job."""
    files = logged_table.files
    if files is None or not has_files(logged_table.state.path, snapshot, files.count, files.size_bytes):
        return None, 0
    adds = files.adds(logged_table.keys)
    if len(adds) > _MOST_LISTED or not all(PLAIN_NAME.fullmatch(add["path"]) for add in adds):
        return None, 0
    size_bytes = sum(int(add["size"]) for add in adds)
    if not has_vectors:
        return [delta_action(jvm.view, {"add": add}) for add in adds], size_bytes
    if files.count > _MOST_LISTED:
        return None, 0
    paths = {add["path"] for add in adds}
    listed = [file for file in snapshot.allFiles().collectAsList() if file.path() in paths]
    return (listed, size_bytes) if len(listed) == len(paths) else (None, 0)


@dataclass(frozen=True)
class _Match:
    """The rows of one file that go."""

    path: str
    """The path as Spark gives it in ``_metadata.file_path``."""
    file: Any
    """``AddFile``."""
    rows: int
    deleted: int
    """Those of them that are deleted; the others are replaced."""
    remaining: int
    """The rows of the file that stay."""
    bitmap: bytes | None
    """The numbers of the rows that go, in the format of a deletion vector; None if they were not asked for."""


@dataclass(frozen=True)
class _Change:
    """The changes of a transaction: files, as ``AddFile``, and rows."""

    replaced: Replaced
    removed: Sequence[Any]
    marked: Sequence[Any]
    """Actions: pairs of one that removes a file, and one that adds it with a deletion vector."""
    added: Sequence[Any]
    copied: int
    """Rows of removed files that stay."""
    scan_s: float
    """How long it took to find the rows that go."""


@dataclass
class _Replacement:
    """A transaction of Delta that replaces rows; nothing is visible before its commit."""

    jvm: DriverJvm
    transaction: PositionedTransaction
    schema: t.StructType
    new: NewRows
    rows: Any
    """The new rows, as ``Dataset``."""
    has_vectors: bool
    listed: Sequence[Any] | None
    """The files that may have rows with one of the keys, as ``AddFile``; None if Delta finds them."""
    is_small: bool
    """The table is small, and so are the new rows."""
    is_tiny: bool
    """The listed files are so small that to write them anew takes less time than to find those with rows that go."""

    def run(self, *, marks: bool) -> Replaced:
        began = time.monotonic()
        marks = marks and self.has_vectors
        files = self._candidates()
        change = self._joined() if self.is_tiny and not marks else None
        if change is None:
            change = self._by_files(files, marks=marks)
        replaced = change.replaced
        metrics = {
            **replaced.metrics(self.new.count, change.copied),
            "numTargetFilesAdded": len(change.added),
            "numTargetFilesRemoved": len(change.removed),
            "numTargetBytesAdded": sum(int(file.getFileSize()) for file in change.added),
            "numTargetBytesRemoved": sum(int(file.getFileSize()) for file in change.removed),
            "numTargetDeletionVectorsAdded": len(change.marked) // 2,
            "scanTimeMs": int(change.scan_s * 1000),
            "rewriteTimeMs": int((time.monotonic() - began - change.scan_s) * 1000),
            "executionTimeMs": int((time.monotonic() - began) * 1000),
        }
        is_delete, clause = self.new.is_delete, self.transaction.clause
        matched = [clause(f"({is_delete})", "delete"), clause(None, "update")]
        inserted = [clause(f"(NOT ({is_delete}))", "insert")]
        actions = [*(file.remove() for file in change.removed), *change.marked, *change.added]
        self.transaction.commit(actions, matched, inserted, metrics)
        return replaced

    # --- one join of all rows ----------------------------------------------------------------------------------------

    def _joined(self) -> _Change | None:
        """Writes the listed files anew, with the new rows, in one task, which joins both and counts rows of each kind.
        Returns None if the counts do not fit; no version of the table then has the files that were written."""
        files, names = self.listed or (), [field.name for field in self.schema.fields]
        numbers = {name.lower(): number for number, name in enumerate(names)}
        keys = [numbers[key.lower()] for key in self.new.keys]
        table = self._frame(self._seq(files))
        table = table.selectExpr(self._seq(f"{quote(name)} AS {_THEIRS}{i}" for i, name in enumerate(names)))
        ours = [f"{quote(name)} AS {_OURS}{i}" for i, name in enumerate(names)]
        new = self.rows.selectExpr(self._seq([*ours, f"{self.new.is_delete} AS {_DELETES}"]))
        same = " AND ".join(f"{_THEIRS}{i} = {_OURS}{i}" for i in keys)
        joined = table.coalesce(1).join(new.coalesce(1), self._column(same), "full_outer")
        cases = {
            "deleted": (f"{_DELETES} AND {_THEIRS}{keys[0]} IS NOT NULL", "FALSE"),
            "absent": (_DELETES, "FALSE"),
            "updated": (f"{_THEIRS}{keys[0]} IS NOT NULL", "TRUE"),
            "inserted": ("TRUE", "TRUE"),
        }
        counters = {case: self.transaction.counter(case) for case in cases}
        stays = self._functions.when(self._column(f"{_DELETES} IS NULL"), self._column("TRUE"))
        for case, (condition, value) in cases.items():
            stays = stays.when(self._column(condition), self._counted(value, counters[case]))
        chosen = [f"IF({_DELETES} IS NULL, {_THEIRS}{i}, {_OURS}{i}) AS {quote(n)}" for i, n in enumerate(names)]
        added = self._write_files(joined.filter(stays).selectExpr(self._seq(chosen)))
        count = {case: int(counter.value()) for case, counter in counters.items()}
        before = sum(_rows_of(file.numLogicalRecords()) for file in files)
        is_whole = (sum(count.values()), count["inserted"] + count["updated"]) == (self.new.count, self.new.upserts)
        if not is_whole or _rows_in(added) != before - count["deleted"] + count["inserted"]:
            _log.info("a key has several rows in the table, or rows were lost on the way; looking into each file")
            return None
        replaced = Replaced(count["inserted"], count["updated"], count["deleted"])
        return _Change(replaced, files, [], added, before - count["updated"] - count["deleted"], 0.0)

    def _counted(self, value: str, counter: Any) -> Any:
        """Returns the column of a constant that counts how often it is taken."""
        columns = scala_object(self.jvm.view, "org.apache.spark.sql.classic.ExpressionUtils")
        increment = java_class(self.jvm.view, "org.apache.spark.sql.delta.metric.IncrementMetric")
        return columns.column(increment(columns.expression(self._column(value)), counter))

    # --- one file after the other ------------------------------------------------------------------------------------

    def _by_files(self, files: Any, *, marks: bool) -> _Change:
        """Finds the files with rows that go, and writes these anew, or marks the rows. ``files``: those that may have
        some."""
        began = time.monotonic()
        with self._keys() as keys:
            # Without a file that may have one of the keys, nothing is looked for.
            matches = [] if files.isEmpty() else self._matches(keys, files, marks=marks)
            scan_s = time.monotonic() - began
            partly = [match for match in matches if match.remaining]
            whole = [match for match in matches if not match.remaining]
            marked: list[Any] = []
            if marks:
                marked = self._mark(partly) if partly else []
                partly = []
            added = self._write(keys, partly)
        removed = [match.file for match in (*whole, *partly)]
        copied = sum(match.remaining for match in partly)
        return _Change(self._replaced(matches), removed, marked, added, copied, scan_s)

    def _replaced(self, matches: Sequence[_Match]) -> Replaced:
        deleted = sum(match.deleted for match in matches)
        updated = sum(match.rows for match in matches) - deleted
        # A table that somebody has damaged may have several rows with one key. All of them go.
        return Replaced(max(0, self.new.upserts - updated), updated, deleted)

    def _candidates(self) -> Any:
        """Returns the files that may have rows with one of the keys. The transaction conflicts with every other commit
        that removes one of them, or adds such a file."""
        if self.new.ranges:
            filtered = self._frame(self._seq([])).alias("t").filter(" AND ".join(self.new.ranges))
            condition = filtered.queryExecution().analyzed().condition()
        else:
            condition = self.transaction.true()
        if self.listed is None:
            return self.transaction.txn.filterFiles(self._seq([condition]), True)
        return self.transaction.track(condition, self.listed)

    def _frame(self, files: Any) -> Any:
        """Returns the rows of these files of the transaction's version."""
        snapshot = self.transaction.txn.snapshot()
        return self.transaction.log.createDataFrame(snapshot, files, False, some(self.jvm.view, None))

    @contextmanager
    def _keys(self) -> Iterator[Any]:
        """Yields the keys of all new rows, and whether each deletes."""
        chosen = [f"{quote(key)} AS {_OURS}{i}" for i, key in enumerate(self.new.keys)]
        keys = self.rows.selectExpr(self._seq([*chosen, f"{self.new.is_delete} AS {_DELETES}"]))
        with nullcontext(keys) if self.new.is_stored else self.jvm.persisted(keys) as keys:
            is_few = self.new.is_stored and self.new.count <= _FEW_ROWS
            yield self._functions.broadcast(keys) if is_few else keys

    def _matches(self, keys: Any, files: Any, *, marks: bool) -> list[_Match]:
        """Returns the files with rows that go; with ``marks``, with the numbers of these rows. Raises RetryableError if
        Spark reads other than the new rows."""
        matched = self._matched(keys, files, marks=marks)
        if self.is_small:  # one task each, and no exchange of rows
            matched, keys = matched.coalesce(1), keys.coalesce(1)
        counts = [self._column("count(1) AS n"), self._column(f"count_if({_DELETES}) AS deleted")]
        numbers = [self._bitmap(matched.col(_ROW)).alias("rows")] if marks else []
        by_file = matched.groupBy(self._seq([matched.col(_FILE)])).agg(counts[0], self._seq([*counts[1:], *numbers]))
        whole = keys.agg(counts[0], self._seq(counts[1:]))
        of_file, of_none = [_FILE, "n", "deleted"], ["CAST(NULL AS STRING)", "n", "deleted"]
        if marks:
            of_file += ["rows.cardinality", "rows.bitmap"]
            of_none += ["CAST(NULL AS BIGINT)", "CAST(NULL AS BINARY)"]
        by_file, whole = by_file.selectExpr(self._seq(of_file)), whole.selectExpr(self._seq(of_none))
        rows = by_file.union(whole).collectAsList()
        read = sum(int(row.get(1)) for row in rows if row.isNullAt(0))
        if read != self.new.count:
            raise _lost(read, self.new.count, "read")
        by_path = self.transaction.helper.generateCandidateFileMap(self.transaction.log.dataPath(), files)
        return [self._match(by_path, row, marks=marks) for row in rows if not row.isNullAt(0)]

    def _match(self, by_path: Any, row: Any, *, marks: bool) -> _Match:
        path, rows, deleted = row.get(0), int(row.get(1)), int(row.get(2))
        if marks and int(row.get(3)) != rows:
            raise _lost(int(row.get(3)), rows, "found again")
        file = self.transaction.helper.getTouchedFile(self.transaction.log.dataPath(), path, by_path)
        remaining = _rows_of(file.numLogicalRecords()) - rows
        return _Match(path, file, rows, deleted, remaining, row.get(4) if marks else None)

    def _matched(self, keys: Any, files: Any, *, marks: bool) -> Any:
        """Returns the rows of the table that go, by file and, with ``marks``, number in it."""
        table = self._frame(files)
        if self.new.ranges:  # Parquet's readers pass over parts of files
            table = table.alias("t").filter(" AND ".join(self.new.ranges))
        place = table.metadataColumn("_metadata")
        places = [place.getField("file_path").alias(_FILE)]
        if marks:  # Delta numbers the rows only of tables with deletion vectors
            places.append(place.getField("row_index").alias(_ROW))
        theirs = [table.col(quote(key)).alias(f"{_THEIRS}{i}") for i, key in enumerate(self.new.keys)]
        same = " AND ".join(f"{_THEIRS}{i} = {_OURS}{i}" for i in range(len(self.new.keys)))
        columns = [_DELETES, _FILE, *([_ROW] if marks else [])]
        matched = table.select(self._seq([*theirs, *places])).join(keys, self._column(same))
        return matched.selectExpr(self._seq(columns))

    def _bitmap(self, numbers: Any) -> Any:
        """Returns the column of Delta's aggregate that makes a deletion vector of numbers of rows."""
        view, delta = self.jvm.view, "org.apache.spark.sql.delta"
        columns = scala_object(view, "org.apache.spark.sql.classic.ExpressionUtils")
        portable = scala_object(view, f"{delta}.deletionvectors.RoaringBitmapArrayFormat").Portable()
        aggregator = java_class(view, "org.apache.spark.sql.catalyst.expressions.aggregation.BitmapAggregator")
        aggregate = aggregator(columns.expression(numbers), portable)
        return columns.column(aggregate.toAggregateExpression())

    def _mark(self, matches: Sequence[_Match]) -> list[Any]:
        """Writes deletion vectors for the rows that go, with those that the files have already. Returns for each file
        the action that removes it and the one that adds it again."""
        view, delta = self.jvm.view, "org.apache.spark.sql.delta"
        vector_data = java_class(view, f"{delta}.commands.DeletionVectorData")
        whole = {file.path(): file for file in self._whole_files(matches)}
        rows = []
        for match in matches:
            vector = whole[match.file.path()].deletionVector()
            before = some(view, None if vector is None else vector.serializeToBase64())
            rows.append(vector_data(match.path, before, match.bitmap, match.rows))
        prefix = scala_object(view, f"{delta}.util.Utils").getRandomPrefixLength(self.transaction.txn.metadata())
        write = scala_object(view, f"{delta}.commands.DeletionVectorWriter").createMapperToStoreDeletionVectors(
            self.jvm.session, self.transaction.log.newDeltaHadoopConf(), self.transaction.log.dataPath(), prefix
        )
        written = from_scala(write.apply(self._seq(rows).iterator()).toVector())
        vectors = {vector_file.filePath(): vector_file.deletionVector() for vector_file in written}
        pairs = [whole[match.file.path()].removeRows(vectors[match.path], True, True) for match in matches]
        return [action for pair in pairs for action in (pair._2(), pair._1())]

    def _whole_files(self, matches: Sequence[_Match]) -> Iterable[Any]:
        """Returns the files with all their statistics, which Delta leaves out where it chooses files."""
        if self.listed is not None:
            return self.listed
        files = self.transaction.txn.snapshot().allFiles()
        paths = [self._functions.lit(match.file.path()) for match in matches]
        whole_files: Iterable[Any] = files.filter(files.col("path").isin(self._seq(paths))).collectAsList()
        return whole_files

    def _write(self, keys: Any, rewritten: Sequence[_Match]) -> list[Any]:
        """Writes the new rows, and those that stay of files that are rewritten. Raises RetryableError if other than
        these were written."""
        expected = self.new.upserts + sum(match.remaining for match in rewritten)
        if not expected:
            return []
        columns = self._seq(quote(field.name) for field in self.schema.fields)
        rows = self.rows.filter(f"NOT ({self.new.is_delete})").selectExpr(columns)
        if rewritten:
            table = self._frame(self._seq(match.file for match in rewritten))
            pairs = [table.col(quote(key)).equalTo(keys.col(f"{_OURS}{i}")) for i, key in enumerate(self.new.keys)]
            same = functools.reduce(lambda left, right: getattr(left, "and")(right), pairs)
            rows = table.join(keys, same, "left_anti").selectExpr(columns).union(rows)
        if expected <= _FEW_ROWS:
            rows = rows.coalesce(1)
        added = self._write_files(rows)
        if _rows_in(added) != expected:
            raise _lost(_rows_in(added), expected, "written")
        return added

    def _write_files(self, rows: Any) -> list[Any]:
        return from_scala(self.transaction.txn.writeFiles(rows))

    def _seq(self, items: Iterable[Any]) -> Any:
        return scala_seq(self.jvm.view, items)

    @property
    def _functions(self) -> Any:
        return java_class(self.jvm.view, "org.apache.spark.sql.functions")

    def _column(self, text: str) -> Any:
        """Returns the column of an SQL expression."""
        return self._functions.expr(text)


def _rows_of(number: Any) -> int:
    """Returns what a file says of its number of rows. Raises _UnknownRowsError if it says nothing."""
    if number.isEmpty():
        raise _UnknownRowsError
    return int(number.get())


def _rows_in(files: Iterable[Any]) -> int:
    """Returns the number of rows in files that were written."""
    return sum(_rows_of(file.numPhysicalRecords()) for file in files)


def _lost(count: int, expected: int, what: str) -> RetryableError:
    return RetryableError(
        f"Spark has {what} {count:,} of {expected:,} rows; nothing was committed", remedy="The batch is merged again."
    )
