"""Compares a source's tables with Delta, value by value, by the ``deltalake`` library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from cdc.base.targets import (
    DESTINATION_PROPERTY,
    GENERATION_PROPERTY,
    SINCE_PROPERTY,
    application_id,
    table_path,
)
from cdc.batches.manifest_files import ManifestFiles, load_manifest
from cdc.decode import DecodeOptions, read
from cdc.lake.delta.log import reader_uri
from cdc.lake.verify.ledger import Ledger, TableCommits, read_commits
from cdc.meta import TableRecord
from cdc.meta.file import FileMeta
from cdc.testing.servers import Server

Row = tuple[Any, ...]

_OPS = {0: "delete", 1: "insert", 2: "update"}
_OWN = ("_op", "_seq", "_row", "_commit_time", "_gtid", "_before")


def select_rows(
    server: Server, database: str, table: str, asked: Mapping[str, str] | None = None
) -> tuple[list[str], list[Row]]:
    """Returns SELECT's column names and rows, ordered by value. ``asked``: expressions in place of columns that differ
    between SELECT and Delta, such as BIT."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT * FROM `{database}`.`{table}` LIMIT 0")
        names = [column[0] for column in cursor.description]
        expressions = ", ".join((asked or {}).get(name, f"`{name.replace('`', '``')}`") for name in names)
        cursor.execute(f"SELECT {expressions} FROM `{database}`.`{table}`")
        return names, ordered(cursor.fetchall())


def delta_rows(target: str | Path, database: str, table: str, columns: Sequence[str]) -> list[Row]:
    """Returns the rows of the Delta table in the same order."""
    rows = _rows(target, database, table)
    return ordered([row[name] for name in columns] for row in rows)


def ordered(rows: Iterable[Iterable[Any]]) -> list[Row]:
    """Returns rows ordered by value; times lose their zone, which is UTC."""
    return sorted((tuple(_plain(value) for value in row) for row in rows), key=repr)


def changelog(target: str | Path, database: str, table: str) -> list[dict[str, Any]]:
    """Returns the rows of a table in mode ``append``, in the order of the changes."""
    return sorted(_rows(target, database, table), key=lambda row: (row["_seq"], row["_row"]))


def mirror_faults(
    server: Server, target: str | Path, database: str, table: str, asked: Mapping[str, str] | None = None
) -> list[str]:
    """Returns the differences between a table in mode ``upsert`` and SELECT. For ``asked`` see :func:`select_rows`."""
    columns, expected = select_rows(server, database, table, asked)
    rows = delta_rows(target, database, table, columns)
    if rows == expected:
        return []
    lost, alien = Counter(expected) - Counter(rows), Counter(rows) - Counter(expected)
    return [f"{table}: missing {row}" for row in lost] + [f"{table}: only in Delta {row}" for row in alien]


def changelog_faults(
    server: Server, target: str | Path, database: str, table: str, keys: Sequence[str], changes: Mapping[str, int]
) -> list[str]:
    """Returns the faults of a table in mode ``append`` that has its source's table from the beginning.

    Each change is there once; the number of each kind equals the committed one (``changes``); and applied from first
    to last, each change finds the row that the former one left, and the result equals SELECT.
    """
    rows = changelog(target, database, table)
    faults = [
        f"{table}: {count} times _seq {seq}, _row {row}"
        for (seq, row), count in Counter((row["_seq"], row["_row"]) for row in rows).items()
        if count > 1
    ]
    counts = Counter(row["_op"] for row in rows)
    if counts != Counter(changes):
        faults.append(f"{table}: has {dict(counts)}, but {dict(changes)} were committed")
    state: dict[Row, Row] = {}
    for change in rows:
        after = {name: value for name, value in change.items() if name not in _OWN}
        before = after if change["_op"] == "delete" else change["_before"]
        if before is not None:
            key = tuple(before[name] for name in keys)
            if state.pop(key, None) != tuple(before.values()):
                faults.append(f"{table}: {change['_op']} at {change['_seq']} does not follow the change before it")
        if change["_op"] != "delete":
            state[tuple(after[name] for name in keys)] = tuple(after.values())
    columns, expected = select_rows(server, database, table)
    own = [name for name in (rows[0] if rows else columns) if name not in _OWN]
    if own != columns or ordered(state.values()) != expected:
        faults.append(f"{table}: its changes do not add up to what SELECT shows")
    return faults


def store_faults(store: str | Path, target: str | Path, database: str, table: str) -> list[str]:
    """Returns the differences between a table in mode ``append`` and the decoded store."""
    stored: Counter[tuple[int, int, str]] = Counter()
    for batch in read(store, table=f"{database}.{table}", options=DecodeOptions(images="both")):
        seqs, ordinals, ops = (batch.column(name).to_pylist() for name in ("_seq", "_row", "_op"))
        stored.update((seq, row, _OPS[op]) for seq, row, op in zip(seqs, ordinals, ops, strict=True))
    applied = Counter((row["_seq"], row["_row"], row["_op"]) for row in changelog(target, database, table))
    return [f"{table}: only in the store {change}" for change in stored - applied] + [
        f"{table}: not in the store {change}" for change in applied - stored
    ]


def ledger_faults(target: str | Path, database: str, table: str, meta: str | Path | None = None) -> list[str]:
    """Returns the faults of a table's ledger, by :class:`cdc.lake.verify.ledger.Ledger`. With the folder of a meta, its acked batches
    and records are joined with the commits."""
    name = f"{database}.{table}"
    subscription = None if meta is None else FileMeta(meta).read().subscription("apply")
    acked = []
    if meta is not None:
        manifests = ManifestFiles(Path(meta))
        acked = [load_manifest(manifests.path("apply", batch)) for batch in manifests.ids("apply")]
    with reader_uri(table_path(str(target), database, table)) as place:
        assert place is not None
        table_history = ledger_table(
            DeltaTable(place), name, None if subscription is None else subscription.table(name)
        )
    ledger = Ledger(
        {name: table_history},
        [manifest for manifest in acked if manifest.acked is not None],
        () if subscription is None else subscription.gaps,
    )
    return ledger.check()[name].faults


def ledger_table(delta: DeltaTable, name: str, record: TableRecord | None = None) -> TableCommits:
    """Returns a Delta table in the ledger's form."""
    configuration = delta.metadata().configuration
    destination = str(configuration[DESTINATION_PROPERTY])
    generation = int(configuration.get(GENERATION_PROPERTY, "0"))
    history = delta.history()
    return TableCommits(
        commits=read_commits(history, destination, name, generation),
        applied_seq=delta.transaction_version(application_id(destination, name, generation)) or 0,
        since_seq=int(configuration.get(SINCE_PROPERTY, "0")),
        whole=any(commit.get("version") == 0 for commit in history),
        record=record,
    )


def _rows(target: str | Path, database: str, table: str) -> list[dict[str, Any]]:
    """Returns all rows, by QueryBuilder, the only reader of ``deltalake`` with column mapping."""
    with reader_uri(table_path(str(target), database, table), rows=True) as place:
        assert place is not None
        reader = QueryBuilder().register("t", DeltaTable(place))
        rows: list[dict[str, Any]] = pa.table(reader.execute("SELECT * FROM t")).to_pylist()
        return rows


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, float):
        return value + 0.0  # -0.0 and 0.0 are one key
    # An unsigned BIGINT is an int to MySQL's client and a decimal(20,0) in Delta.
    return int(value) if isinstance(value, Decimal) and value.as_tuple().exponent == 0 else value
