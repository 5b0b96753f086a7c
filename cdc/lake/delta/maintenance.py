"""Maintenance of one Delta table: compaction of small files, clustering, and removal of files that nobody needs.

OPTIMIZE changes no row, and carries no applied position. A merge that commits while it runs makes Delta refuse the
later of the two: the merge is tried again by itself, and OPTIMIZE is left to the next maintenance.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError, TargetError
from cdc.base.log import get_logger
from cdc.lake.delta.catalog import register, require_catalog
from cdc.lake.delta.layout import clustering_of
from cdc.lake.delta.log import open_newest
from cdc.lake.delta.tables import follow_configuration, require_owner, target_of
from cdc.lake.runtime.failures import explain, is_concurrent
from cdc.lake.runtime.private_pyspark import is_connect
from cdc.lake.runtime.session import setting_of

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import SparkSession

    from cdc.config import DestinationConfig
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.runtime.session import TableSessions

RETENTION_PROPERTY = "delta.deletedFileRetentionDuration"
DEFAULT_RETENTION_H = 168
"""Delta's own default."""
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", re.IGNORECASE)
_HOURS = {"second": 1 / 3600, "minute": 1 / 60, "hour": 1.0, "day": 24.0, "week": 168.0}
_VACUUM = {
    # Else VACUUM ignores its RETAIN clause, unless that is 0, and takes the table's own retention.
    "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false",
    # Tasks that list the table's folders; 10,000 by default.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
}
_AT_ONCE = {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}
_OPTIMIZE = "OPTIMIZE"
_WITHOUT_FILES = frozenset({
    "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS",
    "UPDATE SCHEMA", "VACUUM START", "VACUUM END",
})  # fmt: skip
"""Operations that add no files, as Delta's history names them."""
_log = get_logger(__name__)


@dataclass(frozen=True)
class Maintained:
    """The maintenance of one table; the keys of ``cdc maintain --json``."""

    table: str
    files_removed: int = 0
    """Files that OPTIMIZE has replaced."""
    files_added: int = 0
    files_deleted: int | None = None
    """Files that VACUUM has deleted; None if it did not run."""
    kept_for_h: int | None = None
    """Hours for which VACUUM kept files that the table does not need any more."""
    note: str | None = None
    """Why something was left out."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """Returns what was done, as a line for people."""
        done = []
        if self.files_removed:
            done.append(f"{self.files_removed:,} files compacted into {self.files_added:,}")
        if self.files_deleted:
            done.append(f"{self.files_deleted:,} old files deleted")
        if self.note:
            done.append(self.note)
        return f"{self.table}: {'; '.join(done) or 'nothing to do'}"


def is_worth_optimizing(target: Target, state: DeltaState) -> bool:
    """Whether the table has files that OPTIMIZE may not have seen: it has several, or is clustered, and the last
    commits changed files after the last OPTIMIZE. Needs no Spark."""
    with open_newest(target.path, target.table) as known_table:
        if known_table is None:
            return False
        for commit in known_table.commits:
            if commit.get("operation") == _OPTIMIZE:
                return False
            if commit.get("operation") not in _WITHOUT_FILES:
                break
        return bool(clustering_of(state)) or len(known_table.delta.file_uris()) > 1


def maintain_table(
    sessions: TableSessions, config: DestinationConfig, table: str, *, vacuum: bool, needed_for_h: float
) -> Maintained:
    """Compacts or clusters a table, and removes files that no version needs which may still be read.

    ``needed_for_h``: versions of the last so many hours stay readable, even if the table's own retention is shorter.
    Raises TargetError for a table of another owner, ConfigError for a layout that it cannot have.
    """
    target = target_of(config, table)
    state = target.state()
    if state is None:
        return Maintained(table, note="not there yet")
    require_owner(state, target)
    with sessions.one() as session:
        try:
            require_catalog(session.spark, config)
            state = follow_configuration(session.spark, target, state)
            register(session.spark, config, target)
            done = Maintained(table)
            if is_worth_optimizing(target, state):
                done = _optimize(session.spark, target)
            return _vacuum(session.spark, target, state, done, needed_for_h) if vacuum else done
        except CdcError:
            raise
        except Exception as error:
            raise explain(error, table) from error


def _optimize(spark: SparkSession, target: Target) -> Maintained:
    try:
        table = _delta_table(spark, target)
        rows = spark.sql(f"OPTIMIZE {target.sql}") if table is None else table.optimize().executeCompaction()
        metrics = rows.collect()[0]["metrics"]
    except Exception as error:
        if not is_concurrent(error):
            raise
        _log.info("a merge came first; the next maintenance compacts the table", table=target.table)
        return Maintained(target.table, note="a merge came first, so its files were not compacted")
    return Maintained(target.table, int(metrics["numFilesRemoved"]), int(metrics["numFilesAdded"]))


def _vacuum(
    spark: SparkSession, target: Target, state: DeltaState, done: Maintained, needed_for_h: float
) -> Maintained:
    own = retention_h(state.properties)
    if own is None:
        note = f"no VACUUM: its property {RETENTION_PROPERTY} is {state.properties[RETENTION_PROPERTY]!r}"
        return replace(done, note=note)
    hours = max(math.ceil(own), math.ceil(needed_for_h))
    with setting_of(spark, _VACUUM):
        statement = f"VACUUM {target.sql} RETAIN {hours} HOURS"
        # Delta's interface for Python has no dry run. VACUUM makes two commits, even if it deletes nothing.
        unneeded = spark.sql(f"{statement} DRY RUN").collect()
        table = _delta_table(spark, target) if unneeded else None
        if table is not None:
            table.vacuum(hours)
        elif unneeded:
            spark.sql(statement).collect()
    return replace(done, files_deleted=len(unneeded), kept_for_h=hours)


def require_own(target: Target) -> None:
    """Raises TargetError for a shared table, whose old files cannot be deleted at once."""
    if target.apply.shared:
        raise TargetError(
            "the files of old versions of a shared table cannot be deleted at once: others may be writing it",
            place=f"table {target.table} at {target.path}",
            remedy=f"Leave out --vacuum; `cdc maintain {target.destination} {target.table}` deletes them when they are "
            "old enough.",
        )


def vacuum_at_once(sessions: TableSessions, config: DestinationConfig, table: str) -> int:
    """Deletes all files that the newest version of a table does not need, however new they are, and returns their
    number. Nobody else may write the table meanwhile. Raises TargetError for a table of another owner, and for a shared
    one."""
    target = target_of(config, table)
    require_own(target)
    state = target.state()
    if state is None:
        return 0
    require_owner(state, target)
    with sessions.one() as session, setting_of(session.spark, _VACUUM | _AT_ONCE):
        try:
            unneeded = session.spark.sql(f"VACUUM {target.sql} RETAIN 0 HOURS DRY RUN").collect()
            if unneeded:
                session.spark.sql(f"VACUUM {target.sql} RETAIN 0 HOURS").collect()
        except Exception as error:
            raise explain(error, table) from error
    return len(unneeded)


def _delta_table(spark: SparkSession, target: Target) -> DeltaTable | None:
    """Returns Delta's interface for Python to a table; None over Spark Connect, where statements of SQL do the same:
    for Spark 4.1 and 4.2 Delta has published no jar with the server's side of :mod:`delta.connect`."""
    if is_connect(spark):
        return None
    from delta.tables import DeltaTable

    return DeltaTable.forPath(spark, target.path)


def retention_h(properties: dict[str, str]) -> float | None:
    """Returns for how many hours a table keeps files that it does not need any more; None if its property cannot be
    understood."""
    text = properties.get(RETENTION_PROPERTY)
    if text is None:
        return DEFAULT_RETENTION_H
    match = _INTERVAL.fullmatch(text.strip())
    return None if match is None else int(match[1]) * _HOURS[match[2].lower()]
