"""Delta's own transactions, as Python reaches them: through Py4J, in the driver's JVM
(:mod:`cdc.lake.runtime.driver_jvm`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdc.lake.runtime.driver_jvm import DriverJvm

PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""Names of files that no action of Delta's protocol has to encode."""


def scala_object(package: Any, name: str) -> Any:
    """Returns a singleton object of Scala."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def scala_seq(jvm: Any, items: Iterable[Any] = ()) -> Any:
    """Returns a sequence of Scala."""
    found = jvm.java.util.ArrayList()
    for item in items:
        found.add(item)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(found).toSeq()


def from_scala(seq: Any) -> list[Any]:
    """Returns the items of a sequence of Scala."""
    return [seq.apply(number) for number in range(seq.size())]


def delta_log(jvm: DriverJvm, path: str) -> Any:
    """Returns Delta's ``DeltaLog`` of a table, which begins transactions."""
    return jvm.view.org.apache.spark.sql.delta.DeltaLog.forTable(jvm.session, path)


def delta_action(jvm: Any, content: Mapping[str, Any]) -> Any:
    """Returns an action of Delta's protocol."""
    return scala_object(jvm.org.apache.spark.sql.delta.actions, "Action").fromJson(json.dumps(content))


def metadata_of(txn: Any) -> dict[str, Any]:
    """Returns the content of the ``metaData`` action that a transaction sees."""
    found: dict[str, Any] = json.loads(txn.metadata().json())["metaData"]
    return found


def features_of(one: Any) -> set[str]:
    """Returns the features in the protocol of a transaction or a snapshot, those of readers and of writers."""
    protocol: Mapping[str, Any] = json.loads(one.protocol().json())["protocol"]
    return {*protocol.get("readerFeatures", ()), *protocol.get("writerFeatures", ())}


def has_files(snapshot: Any, count: int, size_bytes: int) -> bool:
    """Whether Delta's checksum of a version says that it has so many files, of so many bytes together. A list of files
    that somebody else has read from the log may then replace the one that Delta finds by jobs of Spark."""
    checksum = snapshot.checksumOpt()
    if checksum.isEmpty():
        return False
    return bool((checksum.get().numFiles(), checksum.get().tableSizeBytes()) == (count, size_bytes))
