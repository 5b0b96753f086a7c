"""Compares Delta tables of every mode with SELECT, without Towpath's own verification."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import TimestampType

from cdc.base.targets import MODE_COLUMNS
from cdc.testing.servers import Server
from tests.support.compare import ordered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Record = dict[str, Any]
_METADATA = {name for names in MODE_COLUMNS.values() for name in names}


_ASKED = {"time": "CAST(`{}` AS CHAR)", "float": "`{}` + 0e0", "bit": "`{}` + 0", "json": "CAST(`{}` AS CHAR)"}
"""Expressions for types that SELECT shows otherwise than Delta."""


def select(server: Server, database: str, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Returns the columns and rows of the source, ordered by value."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
            "ORDER BY ordinal_position",
            (database, table),
        )
        columns = [(str(name), str(kind).lower()) for name, kind in cursor.fetchall()]
        asked = ", ".join(_ASKED.get(kind, "`{}`").format(name) for name, kind in columns)
        cursor.execute(f"SELECT {asked} FROM `{database}`.`{table}`")
        return [name for name, _ in columns], _rows(cursor.fetchall())


def delta(spark: SparkSession, path: Path) -> tuple[list[str], list[Record]]:
    """Returns the source's columns and all rows of a Delta table."""
    frame = spark.read.format("delta").load(str(path))
    for field in frame.schema.fields:
        if isinstance(field.dataType, TimestampType) and field.name not in _METADATA:
            frame = frame.withColumn(field.name, frame[f"`{field.name}`"].cast("timestamp_ntz"))  # as SELECT, in UTC
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return [name for name in frame.columns if name not in _METADATA], rows


def table_faults(
    server: Server, database: str, spark: SparkSession, path: Path, *, table: str, mode: str, keys: Sequence[str]
) -> list[str]:
    """Returns the differences between a Delta table and the source's table, in any mode. ``keys``: the primary key."""
    names, wanted = select(server, database, table)
    if not (path / "_delta_log").exists():
        return [f"{table}: there is no Delta table for {names}, {len(wanted)} rows"]
    columns, rows = delta(spark, path)
    if columns != names:
        return [f"{table} ({mode}): Delta has {columns}, SELECT shows {names}"]
    shown, faults = _shown(table, mode, rows, keys)
    delta_rows = _rows([row[name] for name in names] for row in shown)
    lost, alien = Counter(wanted) - Counter(delta_rows), Counter(delta_rows) - Counter(wanted)
    if lost or alien:
        faults.append(
            f"{table} ({mode}): {names}\n  SELECT has {len(wanted)} rows; only there: {list(lost)[:4]}\n"
            f"  Delta has {len(delta_rows)}; only there: {list(alien)[:4]}"
        )
    return faults


def _shown(table: str, mode: str, rows: list[Record], keys: Sequence[str]) -> tuple[list[Record], list[str]]:
    """Returns the rows that a table shows of the present, and the faults of its form."""
    if mode == "upsert":
        return rows, []
    if mode == "soft_delete":
        counts = Counter(tuple(row[key] for key in keys) for row in rows)
        return [row for row in rows if not row["_deleted"]], [
            f"{table}: {count} rows of the key {key}" for key, count in counts.items() if count > 1
        ]
    if mode == "scd2":
        return [row for row in rows if row["_current"]], _interval_faults(table, rows, keys)
    return _replayed(table, rows)


def _interval_faults(table: str, rows: list[Record], keys: Sequence[str]) -> list[str]:
    """Each key has at most one current version, and its versions do not overlap."""
    faults: list[str] = []
    versions: dict[tuple[Any, ...], list[Record]] = {}
    for row in rows:
        versions.setdefault(tuple(row[key] for key in keys), []).append(row)
        if row["_current"] != (row["_valid_to"] is None):
            faults.append(f"{table}: _current and _valid_to contradict each other in {row}")
    for key, version in versions.items():
        version.sort(key=lambda row: (row["_valid_from"], row["_valid_to"] is None, row["_valid_to"] or 0))
        if sum(row["_current"] for row in version) > 1:
            faults.append(f"{table}: {key} has several current versions")
        for earlier, following in itertools.pairwise(version):
            if earlier["_valid_to"] is None or earlier["_valid_to"] > following["_valid_from"]:
                faults.append(f"{table}: {key} has versions that overlap: {earlier}, {following}")
    return faults


def _replayed(table: str, rows: list[Record]) -> tuple[list[Record], list[str]]:
    """Returns the rows that a changelog leads to, and its faults."""
    counts = Counter((row["_seq"], row["_row"], row["_op"]) for row in rows)
    faults = [f"{table}: {count} times the change {change}" for change, count in counts.items() if count > 1]
    state: dict[int, Record] = {}
    loaded = -1
    for row in sorted(rows, key=lambda row: (row["_seq"], row["_op"] != "snapshot", row["_row"])):
        if row["_op"] == "truncate":
            state.clear()
            continue
        if row["_op"] == "snapshot" and row["_seq"] != loaded:
            state.clear()
            loaded = row["_seq"]
        if row["_op"] == "delete":
            state.pop(row["id"], None)
            continue
        if row["_before"] is not None and row["_before"]["id"] != row["id"]:
            state.pop(row["_before"]["id"], None)
        state[row["id"]] = row
    return list(state.values()), faults


def history_faults(table: str, mode: str, before: list[Record], after: list[Record], deleted: set[int]) -> list[str]:
    """Returns the faults of a table with a history whose rows ``deleted`` (their ids) were deleted between ``before``
    and ``after``, while the rows with other ids that have changed were updated."""
    faults: list[str] = []
    if mode == "soft_delete":
        now = {row["id"]: row for row in after}
        for row in before:
            current_row = now.get(row["id"])
            if current_row is None or current_row["_deleted"] != (row["_deleted"] or row["id"] in deleted):
                faults.append(f"{table}: deleted {sorted(deleted)}, had {row}, has {current_row}")
        return faults
    versions = {(row["id"], row["_valid_from"], row["_seq"]): row for row in after}
    for row in before:
        same_version = versions.get((row["id"], row["_valid_from"], row["_seq"]))
        if same_version is None:
            faults.append(f"{table}: the version {row} is gone")
        elif row["_current"] and not same_version["_current"] and row["id"] not in deleted:
            next_ones = [
                version
                for version in after
                if version["id"] == row["id"] and version["_valid_from"] == same_version["_valid_to"]
            ]
            if not any(version["_current"] for version in next_ones):
                faults.append(f"{table}: the version {same_version} is not joined by the next one")
        elif row["id"] in deleted and same_version["_current"]:
            faults.append(f"{table}: the version {same_version} was deleted, and is current")
    return faults


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, Decimal):
        return value.normalize() + 0
    return Decimal(value) if isinstance(value, int) else value


def _rows(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    return ordered([_plain(value) for value in row] for row in rows)
