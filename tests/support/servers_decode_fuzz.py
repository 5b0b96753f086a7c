"""Random tables on a real server, their binlog, and five answers for each row: SELECT's, ours, the snapshot reader's, the
slow decoder's, and mysql-replication's if that is right."""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pymysql

from cdc import decode
from cdc.binlog.sql.schemas import ColumnSchema, Schemas, TableSchema
from cdc.config import TablesConfig
from cdc.source.schemas import read_schemas
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support import snapshots
from tests.support.random_tables import Facts, RandomTable, random_table
from tests.support.random_tables.table import quoted
from tests.support.rows import RowChange
from tests.support.rows.events import RowReader
from tests.support.servers_mysql_replication import is_geometry, peer_changes, peer_value_differs
from tests.support.snapshots import write_config
from tests.support.versions import lacks

MAPPED = {"tinyint(1)": "boolean", "bit(1)": "boolean", "time": "microseconds"}
State = dict[int, dict[str, Any]]
_OPS = {0: "delete", 1: "insert", 2: "update"}
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_META = ("_op", "_seq", "_row", "_commit_time", "_gtid", "_before")


@dataclass(frozen=True)
class Played:
    """A random table whose statements were executed."""

    table: RandomTable
    full_name: str
    schema: TableSchema
    compared: TableSchema
    """The same without generated columns if the server leaves them out of updates and deletes, as MariaDB 11.8.9."""
    inserted: State
    """SELECT's answer after the inserts."""
    final: State
    """SELECT's answer at the end."""
    snapshot: State
    """The same rows as a snapshot reads them."""
    mapped: State
    """The same with :data:`MAPPED` types."""


@dataclass(frozen=True)
class Batch:
    """Tables whose rows are all in one binlog file."""

    server: Server
    facts: Facts
    path: Path
    schemas: Schemas
    tables: tuple[Played, ...]


def play(server: Server, facts: Facts, database: str, seeds: list[int]) -> Batch:
    """Makes and changes the tables of the seeds, in a binlog file of their own."""
    steps: list[tuple[RandomTable, State, State, State, State]] = []
    schemas = Schemas(tables={})
    with (
        server.connect() as connection,
        connection.cursor() as cursor,
        _plain_connection(server) as reader,
        tempfile.TemporaryDirectory(prefix="towpath-fuzz-") as folder,
    ):
        include = f"{re.escape(database)}\\..*"
        plain = write_config(server, Path(folder) / "plain", include)
        mapped = write_config(server, Path(folder) / "mapped", include, apply={"types": MAPPED})
        cursor.execute(f"USE `{database}`")
        cursor.execute("SET NAMES utf8mb4")
        cursor.execute("SET time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'")
        if facts.kind == "mysql56":
            cursor.execute("SET GLOBAL innodb_file_format = 'Barracuda'")
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        path = server.data / str(cursor.fetchall()[-1][0])
        for seed in seeds:
            table = random_table(seed, facts, f"t{seed}")
            _create(cursor, facts, table)
            table_schemas = read_schemas(connection, TablesConfig(include=(re.escape(f"{database}.{table.name}"),)))
            schemas = Schemas(tables={**schemas.tables, **table_schemas.tables})
            schema = _compared(facts, table_schemas.tables[f"{database}.{table.name}"])
            _execute(cursor, table, table.inserts)
            inserted = _select(reader, database, table.name, schema)
            _execute(cursor, table, table.changes)
            steps.append(
                (
                    table,
                    inserted,
                    _select(reader, database, table.name, schema),
                    _state(snapshots.select(plain, database, table.name), schema),
                    _state(snapshots.select(mapped, database, table.name), schema),
                )
            )
        cursor.execute("FLUSH BINARY LOGS")
    schemas_by_name = {table.name: schemas.tables[f"{database}.{table.name}"] for table, *_ in steps}
    played = tuple(
        Played(
            table,
            f"{database}.{table.name}",
            schemas_by_name[table.name],
            _compared(facts, schemas_by_name[table.name]),
            *states,
        )
        for table, *states in steps
    )
    return Batch(server, facts, path, schemas, played)


def _compared(facts: Facts, schema: TableSchema) -> TableSchema:
    if facts.kind != "mariadb11" or lacks(facts.kind, "rows without generated columns"):
        return schema
    return schema.model_copy(update={"columns": tuple(c for c in schema.columns if not c.is_generated)})


def _state(rows: pa.Table, schema: TableSchema) -> State:
    return {row["k"]: row for row in rows.select(list(schema.column_names)).to_pylist()}


def _create(cursor: Any, facts: Facts, table: RandomTable) -> None:
    if table.hidden_key:
        cursor.execute("SET sql_generate_invisible_primary_key = ON")
    if table.old_times:
        cursor.execute("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        _execute(cursor, table, (table.create,))
    finally:
        if table.hidden_key:
            cursor.execute("SET sql_generate_invisible_primary_key = OFF")
        if table.old_times:
            cursor.execute("SET GLOBAL mysql56_temporal_format = ON")


def _execute(cursor: Any, table: RandomTable, statements: tuple[str, ...]) -> None:
    for statement in statements:
        try:
            cursor.execute(statement)
        except pymysql.MySQLError as error:
            raise AssertionError(f"seed {table.seed}: {error}\n{table.create}\n{statement[:3000]}") from error


# ---------------------------------------------------------------- SELECT


def _plain_connection(server: Server) -> pymysql.connections.Connection[Any]:
    """A connection that leaves numbers and times as the server wrote them."""
    return pymysql.connect(
        host=HOST,
        port=server.port,
        user=USER,
        password=PASSWORD,
        charset="utf8mb4",
        autocommit=True,
        conv={},
        init_command="SET time_zone = '+00:00'",
    )


def _select(reader: pymysql.connections.Connection[Any], database: str, table: str, schema: TableSchema) -> State:
    expressions = ", ".join(_expression(column) for column in schema.columns)
    with reader.cursor() as cursor:
        cursor.execute(f"SELECT {expressions} FROM {quoted(database)}.{quoted(table)}")
        rows = [
            {c.name: _shown(c, value) for c, value in zip(schema.columns, row, strict=True)}
            for row in cursor.fetchall()
        ]
    return {row["k"]: row for row in rows}


def _expression(column: ColumnSchema) -> str:
    name = quoted(column.name)
    if column.data_type in ("float", "double"):
        return f"{name} * 1e0"  # all digits, not the six of a FLOAT
    # The client does not know a VECTOR, and would take a geometry for text.
    return f"HEX({name})" if column.data_type == "vector" or is_geometry(column) else name


def _shown(column: ColumnSchema, value: Any) -> Any:
    """SELECT's answer as the object that Arrow should give."""
    if value is None:
        return None
    kind, whole = column.data_type, column.column_type
    if kind == "json":
        return value.replace("\n", "\\n")  # older versions write line ends into the base64 form
    if kind in _INTEGERS:
        return Decimal(value) if kind == "bigint" and "unsigned" in whole else int(value)
    if kind == "year":
        return int(value)
    if kind == "decimal":
        precision = int(whole.partition("(")[2].partition(",")[0])
        return Decimal(value) if precision <= 38 else str(value)
    if kind in ("float", "double"):
        return float(np.float32(value)) if kind == "float" else float(value)
    if kind == "bit":
        number = int.from_bytes(value, "big")
        return Decimal(number) if whole == "bit(64)" else number
    if kind in ("date", "datetime", "timestamp"):
        return _moment(kind, value)
    if kind == "vector":
        raw = bytes.fromhex(value)
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    return bytes.fromhex(value) if is_geometry(column) else value


def _moment(kind: str, value: str) -> date | datetime | None:
    """None for zero and impossible dates."""
    try:
        if kind == "date":
            return date.fromisoformat(value)
        moment = datetime.fromisoformat(value.partition(".")[0])
    except ValueError:
        return None
    moment += timedelta(microseconds=int(value.partition(".")[2].ljust(6, "0")))
    return moment.replace(tzinfo=UTC) if kind == "timestamp" else moment


# ---------------------------------------------------------------- comparing


@dataclass
class Tally:
    """Counts of what was compared."""

    tables: int = 0
    changes: int = 0
    values: int = 0
    tables_with_peer: int = 0


def our_changes(batch: Batch, played: Played) -> list[RowChange]:
    """The changes by :func:`cdc.decode.read`."""
    out: list[RowChange] = []
    for record_batch in decode.read(
        batch.path,
        table=played.full_name,
        options=decode.DecodeOptions(images="both", columns=played.compared.column_names),
        schemas=batch.schemas,
    ):
        for row in record_batch.to_pylist():
            own = {name: value for name, value in row.items() if name not in _META}
            op = _OPS[row["_op"]]
            out.append(RowChange(op, row["_before"], None if op == "delete" else own))  # type: ignore[arg-type]
    return out


def differences(batch: Batch, tally: Tally) -> Iterator[str]:
    """Every difference between the answers, table by table."""
    reader = RowReader(batch.path)
    whole = {table.full_name: table.schema for table in batch.tables if table.compared == table.schema}
    peers = peer_changes(batch.server, batch.path.name, batch.facts.kind, Schemas(tables=whole))
    for played in batch.tables:
        reference = [_cut(change, played.compared) for change in reader.changes(played.full_name, played.schema)]
        tally.tables += 1
        tally.changes += len(reference)
        tally.values += len(played.compared.columns) * sum(
            (change.before is not None) + (change.after is not None) for change in reference
        )
        tally.tables_with_peer += played.full_name in peers
        for line in _against_select(batch, played, reference, "reference"):
            yield _told(batch, played, line)
        try:
            ours = our_changes(batch, played)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a difference
            yield _told(batch, played, f"ours raises {type(error).__name__}: {' '.join(str(error).split())[:700]}")
            ours = None
        if ours is not None:
            for line in _against_select(batch, played, ours, "ours"):
                yield _told(batch, played, line)
            for line in _row_by_row(played, ours, reference):
                yield _told(batch, played, line)
            for line in _states(batch, played, played.snapshot, played.final, "snapshot"):
                yield _told(batch, played, line)
            for line in _mapped(batch, played):
                yield _told(batch, played, line)
        if played.full_name in peers:
            for line in _against_peer(batch, played, reference, peers[played.full_name]):
                yield _told(batch, played, line)


def _cut(change: RowChange, schema: TableSchema) -> RowChange:
    """The change with these columns only."""

    def cut(row: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if row is None else {name: row[name] for name in schema.column_names}

    return RowChange(change.op, cut(change.before), cut(change.after))


def _mapped(batch: Batch, played: Played) -> Iterator[str]:
    """The rows that a snapshot reads with mapped types are those that the stream leaves with them."""
    values = decode.ValuePolicies(tinyint1="boolean", bit1="boolean", time="microseconds")
    options = decode.DecodeOptions(policies=values, images="both", columns=played.compared.column_names)
    left: State = {}
    for record_batch in decode.read(batch.path, table=played.full_name, options=options, schemas=batch.schemas):
        for row in record_batch.to_pylist():
            if row["_before"] is not None:
                del left[row["_before"]["k"]]
            if _OPS[row["_op"]] != "delete":
                left[row["k"]] = {name: value for name, value in row.items() if name not in _META}
    if repr(sorted(left.items())) != repr(sorted(played.mapped.items())):
        for key in left.keys() | played.mapped.keys():
            streamed, loaded = left.get(key, {}), played.mapped.get(key, {})
            for name in streamed.keys() | loaded.keys():
                if repr(streamed.get(name)) != repr(loaded.get(name)):
                    kind = _column_type(played, name)
                    yield f"mapped, k={key}, {kind}: stream {streamed.get(name)!r:.300}, snapshot {loaded.get(name)!r:.300}"


def _told(batch: Batch, played: Played, line: str) -> str:
    kind, seed = batch.facts.kind, played.table.seed
    command = f"TOWPATH_FUZZ_SEED={seed} pytest tests/servers/decode/test_fuzz.py -k {kind}"
    return f"{line}\n    {kind}, seed {seed}; alone: {command}\n    {played.table.create[:4000]}"


def _column_type(played: Played, name: str) -> str:
    column = next(c for c in played.schema.columns if c.name == name)
    return f"{name!r} {column.column_type[:80]}" + (f" in {column.charset}" if column.charset else "")


def _against_select(batch: Batch, played: Played, changes: list[RowChange], who: str) -> Iterator[str]:
    """The inserts give what SELECT showed after them, each change finds the row that the one before left, and all of
    them give what SELECT showed at the end."""
    state: State = {}
    compared = False
    for change in changes:
        if change.op != "insert" and not compared:
            compared = True
            yield from _states(batch, played, state, played.inserted, who)
        if change.before is not None:
            row_before = state.pop(change.before["k"], None)
            if repr(row_before) != repr(change.before):
                yield f"{who}: the {change.op} of k={change.before['k']} does not follow the change before it"
        if change.after is not None:
            state[change.after["k"]] = change.after
    if not compared:
        yield from _states(batch, played, state, played.inserted, who)
    yield from _states(batch, played, state, played.final, who)


def _states(batch: Batch, played: Played, rows_found: State, shown: State, who: str) -> Iterator[str]:
    if rows_found.keys() != shown.keys():
        yield f"{who}: has rows {sorted(rows_found)}, SELECT {sorted(shown)}"
    for key in rows_found.keys() & shown.keys():
        if list(rows_found[key]) != list(shown[key]):
            yield f"{who}: has columns {list(rows_found[key])}, SELECT {list(shown[key])}"
            return
        for column in played.compared.columns:
            mine, theirs = rows_found[key][column.name], shown[key][column.name]
            if (mine != theirs or type(mine) is not type(theirs)) and not _select_is_wrong(batch.facts, column):
                yield f"{who}: k={key}, {_column_type(played, column.name)}: SELECT {theirs!r:.500}, {who} {mine!r:.500}"


def _select_is_wrong(facts: Facts, column: ColumnSchema) -> bool:
    """MySQL 5.6 prints SETs of wide characters without converting them."""
    return (
        facts.kind == "mysql56"
        and column.data_type == "set"
        and column.charset in ("ucs2", "utf16", "utf16le", "utf32")
    )


def _row_by_row(played: Played, ours: list[RowChange], reference: list[RowChange]) -> Iterator[str]:
    if [c.op for c in ours] != [c.op for c in reference]:
        yield f"ours has {len(ours)} changes, the reference {len(reference)}, or of other kinds"
        return
    for number, (mine, theirs) in enumerate(zip(ours, reference, strict=True)):
        for image, our_image, their_image in (
            ("before", mine.before, theirs.before),
            ("after", mine.after, theirs.after),
        ):
            if repr(our_image) == repr(their_image):
                continue
            if our_image is None or their_image is None or list(our_image) != list(their_image):
                yield f"change {number}, {image}: ours {our_image!r:.500}, reference {their_image!r:.500}"
                continue
            for name in our_image:
                if repr(our_image[name]) != repr(their_image[name]):
                    kind = _column_type(played, name)
                    yield f"change {number}, {image}, {kind}: ours {our_image[name]!r:.500}, reference {their_image[name]!r:.500}"


def _against_peer(
    batch: Batch, played: Played, reference: list[RowChange], peer: list[tuple[Any, Any]]
) -> Iterator[str]:
    if len(reference) != len(peer):
        yield f"mysql-replication has {len(peer)} changes, the reference {len(reference)}"
        return
    for number, (change, images) in enumerate(zip(reference, peer, strict=True)):
        for mine, theirs in zip((change.before, change.after), images, strict=True):
            if (mine is None) != (theirs is None):
                yield f"change {number}: mysql-replication has other images"
            elif mine is not None:
                for column, value in zip(played.schema.columns, theirs, strict=True):
                    if peer_value_differs(batch.facts.kind, column, mine[column.name], value):
                        kind = _column_type(played, column.name)
                        yield f"change {number}, {kind}: mysql-replication {value!r:.300}, reference {mine[column.name]!r:.300}"
