"""Delta's own transactions, as Python reaches them: through Py4J, in the driver's JVM
(:mod:`cdc.lake.runtime.driver_jvm`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]

from cdc.base.log import get_logger
from cdc.base.targets import LOG_FOLDER, has_percent_sign, local_path
from cdc.lake.runtime.phases import in_phase
from cdc.lake.runtime.private_pyspark import java_class
from cdc.lake.runtime.session import APP_ID, VERSION

if TYPE_CHECKING:
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.runtime.driver_jvm import DriverJvm

T = TypeVar("T")
PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""Names of files that no action of Delta's protocol has to encode."""
ENCRYPTION = "parquet.crypto.factory.class"
"""Hadoop setting of a session whose Parquet files Spark encrypts: no other program may write them in clear."""
_OPERATIONS = "org.apache.spark.sql.delta.DeltaOperations"
_METRICS = (
    "numSourceRows",
    "operationNumSourceRows",
    "numTargetRowsInserted",
    "numTargetRowsUpdated",
    "numTargetRowsDeleted",
    "numTargetRowsMatchedUpdated",
    "numTargetRowsMatchedDeleted",
    "numTargetRowsCopied",
    "numTargetFilesAdded",
    "numTargetFilesRemoved",
    "numTargetBytesAdded",
    "numTargetBytesRemoved",
    "numTargetDeletionVectorsAdded",
    "scanTimeMs",
    "rewriteTimeMs",
    "executionTimeMs",
)
"""The metrics of a MERGE."""
_MOST_COUNTED = 200
"""Commits since a checksum that are read."""
_log = get_logger(__name__)


def scala_object(view: Any, name: str) -> Any:
    """Returns a singleton object of Scala by its full name."""
    return getattr(java_class(view, f"{name}$"), "MODULE$")


def scala_seq(view: Any, items: Iterable[Any] = ()) -> Any:
    """Returns a sequence of Scala."""
    java_list = java_class(view, "java.util.ArrayList")()
    for item in items:
        java_list.add(item)
    return as_scala(view, java_list).toSeq()


def as_scala(view: Any, collection: Any) -> Any:
    """Returns a collection of Java as one of Scala."""
    return java_class(view, "scala.jdk.javaapi.CollectionConverters").asScala(collection)


def some(view: Any, value: Any) -> Any:
    """Returns an ``Option`` of Scala; it is empty for None."""
    option = java_class(view, "scala.Option")
    return option.empty() if value is None else option.apply(value)


def from_scala(seq: Any) -> list[Any]:
    """Returns the items of a sequence of Scala."""
    return [seq.apply(number) for number in range(seq.size())]


def delta_log(jvm: DriverJvm, path: str) -> Any:
    """Returns Delta's ``DeltaLog`` of a table, which begins transactions."""
    return java_class(jvm.view, "org.apache.spark.sql.delta.DeltaLog").forTable(jvm.session, path)


def delta_action(view: Any, content: Mapping[str, Any]) -> Any:
    """Returns an action of Delta's protocol."""
    return scala_object(view, "org.apache.spark.sql.delta.actions.Action").fromJson(json.dumps(content))


def metadata_of(txn: Any) -> dict[str, Any]:
    """Returns the content of the ``metaData`` action that a transaction sees."""
    metadata: dict[str, Any] = json.loads(txn.metadata().json())["metaData"]
    return metadata


def features_of(versioned: Any) -> set[str]:
    """Returns the features in the protocol of a transaction or a snapshot, those of readers and of writers."""
    protocol: Mapping[str, Any] = json.loads(versioned.protocol().json())["protocol"]
    return {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}


def has_files(path: str, snapshot: Any, count: int, size_bytes: int) -> bool:
    """Whether a version of the table at ``path`` has so many files, of so many bytes together, by what Delta's
    checksums say. A list of files that somebody else has read from the log may then replace the one that Delta finds by
    jobs of Spark."""
    checksum = snapshot.checksumOpt()
    if checksum.isEmpty():
        return _counted(path, int(snapshot.version())) == (count, size_bytes)
    return bool((checksum.get().numFiles(), checksum.get().tableSizeBytes()) == (count, size_bytes))


def _counted(path: str, version: int) -> tuple[int, int] | None:
    """Returns the number of files of a version and their bytes, by the newest checksum before it and the commits since
    then: other writers than Spark leave no checksums. Returns None if the log does not tell."""
    folder = local_path(path)
    if folder is None or has_percent_sign(path):
        return None
    count = size_bytes = 0
    for number in range(version, max(-1, version - _MOST_COUNTED), -1):
        stem = folder / LOG_FOLDER / f"{number:020}"
        try:
            if (file := stem.with_suffix(".crc")).exists():
                checksum = json.loads(file.read_bytes())
                return count + int(checksum["numFiles"]), size_bytes + int(checksum["tableSizeBytes"])
            for line in stem.with_suffix(".json").read_bytes().splitlines():
                action = json.loads(line)
                for kind, sign in (("add", 1), ("remove", -1)):
                    if kind in action:
                        count += sign
                        size_bytes += sign * int(action[kind]["size"])
        except (OSError, ValueError, KeyError, TypeError):  # no such commit any more, or one of an unknown form
            return None
    return (count, size_bytes) if version < _MOST_COUNTED else None


# --- transactions that carry a position ------------------------------------------------------------------------------


class AlreadyThereError(Exception):
    """The table has the transaction already."""


@dataclass(frozen=True)
class PositionedTransaction:
    """A transaction at the newest version of a table. Its commit carries the application transaction and the user
    metadata of the session's settings, as a MERGE would."""

    jvm: DriverJvm
    log: Any
    """``DeltaLog`` of the table."""
    txn: Any
    """``OptimisticTransaction``."""
    helper: Any
    """``DMLWithDeletionVectorsHelper``."""
    is_at: bool
    """Whether the newest version is that of the state that was read."""

    @classmethod
    def begin(cls, jvm: DriverJvm, state: DeltaState) -> PositionedTransaction:
        """``state``: the table as its log was read. Raises AlreadyThereError if the table has the application
        transaction."""
        conf = jvm.session.conf()
        log = delta_log(jvm, state.path)
        txn = log.startTransaction()
        helper = scala_object(jvm.view, "org.apache.spark.sql.delta.commands.DMLWithDeletionVectorsHelper")
        application, seq = conf.get(APP_ID), int(conf.get(VERSION))
        is_at = int(txn.readVersion()) == state.version and metadata_of(txn)["id"] == state.id
        if is_at:
            # As Delta does if it is asked for the transaction: the same one in another commit is a conflict. Delta
            # finds it by a job of Spark, which takes longer than all the rest in a small table.
            txn.readTxn().addOne(application)
            if state.applied_seq >= seq:
                raise AlreadyThereError
        elif helper.hasBeenExecuted(txn, jvm.session, some(jvm.view, None)):
            raise AlreadyThereError
        return cls(jvm, log, txn, helper, is_at)

    def true(self) -> Any:
        """Returns the condition that holds for each row, as an expression."""
        return scala_object(self.jvm.view, "org.apache.spark.sql.catalyst.expressions.Literal").TrueLiteral()

    def track(self, condition: Any, files: Iterable[Any]) -> Any:
        """Says that these files, as ``AddFile``, were read for this condition: another commit that removes one of them,
        or adds a file with such rows, is a conflict. Returns the files as a sequence of Scala."""
        view = self.jvm.view
        default = [getattr(self.txn, f"trackReadPredicates$default${number}")() for number in (2, 3)]
        self.txn.trackReadPredicates(scala_seq(view, [condition]), *default)
        read = scala_seq(view, files)
        self.txn.trackFilesRead(read)
        return read

    def commit(
        self,
        actions: Iterable[Any],
        matched: Sequence[Any],
        inserted: Sequence[Any] = (),
        metrics: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Commits actions. ``matched`` and ``inserted``: the clauses of the MERGE that the commit names, made by
        :meth:`clause`. ``metrics``: those of a MERGE that are not 0. Raises what Delta raises for a conflict."""
        view = self.jvm.view
        none = some(view, None)
        carried = self.helper.createSetTransaction(self.jvm.session, self.log, none)
        if carried.isDefined():
            actions = [*actions, carried.get()]
        self._register({**dict.fromkeys(_METRICS, 0), **metrics})
        merge = java_class(view, f"{_OPERATIONS}$Merge")
        clauses = [scala_seq(view, kind) for kind in (matched, inserted, ())]
        with in_phase("commit"):
            self.txn.commit(scala_seq(view, actions), merge(none, none, none, none, *clauses))

    def clause(self, condition: str | None, action: str) -> Any:
        """Returns a clause of a MERGE: its action (``delete``, ``insert`` or ``update``) and its SQL condition."""
        return java_class(self.jvm.view, f"{_OPERATIONS}$MergePredicate")(some(self.jvm.view, condition), action)

    def counter(self, name: str) -> Any:
        """Returns a new ``SQLMetric``, to which tasks add."""
        metrics = java_class(self.jvm.view, "org.apache.spark.sql.execution.metric.SQLMetrics")
        return metrics.createMetric(self.jvm.session.sparkContext(), name)

    def _register(self, values: Mapping[str, int]) -> None:
        view = self.jvm.view
        metrics = java_class(view, "java.util.HashMap")()
        for name, value in values.items():
            metric = self.counter(name)
            metric.set(value)
            metrics.put(name, metric)
        reflexive = scala_object(view, "scala.$less$colon$less").refl()
        self.txn.registerSQLMetrics(self.jvm.session, as_scala(view, metrics).toMap(reflexive))


def commit_position(jvm: DriverJvm, state: DeltaState) -> bool:
    """Commits the application transaction and the user metadata of the session's settings, and no rows. A MERGE of no
    rows does the same, by jobs of Spark. Returns False, and changes nothing, if it has to do it. Raises
    AlreadyThereError, and what Delta raises for a conflict."""

    def commit() -> bool:
        with jvm.active():
            transaction = PositionedTransaction.begin(jvm, state)
            transaction.commit((), [transaction.clause(None, "delete")])
        return True

    return if_known("the position is merged", commit) is not None


def if_known(otherwise: str, work: Callable[[], T]) -> T | None:
    """Calls ``work``. Returns None, after a warning, if Py4J finds no such class or method in this version of Delta."""
    try:
        return work()
    except (Py4JJavaError, Py4JNetworkError):
        raise
    except (Py4JError, TypeError) as error:
        _log.warning(f"this version of Delta is not known, so {otherwise} by a statement", reason=str(error))
        return None
