"""Reads the schemas of the included tables from ``information_schema``.

Servers do not show the members of ENUM and SET as they are. They store members in the column's character set but show
them in utf8mb3 everywhere (SHOW CREATE TABLE, SHOW COLUMNS, information_schema, whatever the connection's character
set), so that a character beyond U+FFFF becomes a question mark. Table maps contain the members only with FULL metadata.
Otherwise the operator writes them into the configuration, or drops the column.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import pymysql
from pymysql.constants import ER

from cdc.base.errors import SourceRefusedError
from cdc.base.patterns import exclusion
from cdc.binlog.sql.partitions import shown_partitions
from cdc.binlog.sql.schemas import (
    ColumnSchema,
    ForeignKey,
    Offsets,
    Schemas,
    TableComments,
    TableSchema,
    charset_of_collation,
    quote_members,
    quoted_members,
)
from cdc.binlog.sql.table_options import union_of
from cdc.config import SYSTEM_SCHEMAS, DestinationConfig, TablesConfig
from cdc.source.connection import query, quoted
from cdc.source.findings import Finding, error
from cdc.source.server import variables

_WEEK_S = 7 * 24 * 3600
_PARTS = 16
_FIRST_DAY_S, _LAST_YEAR_S = 24 * 3600, int(datetime(2038, 1, 1, tzinfo=UTC).timestamp())
"""The times of a TIMESTAMP, to a day and some days."""
_TABLES = """
SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab, TABLE_COLLATION AS coll, TABLE_TYPE AS kind,
    TABLE_COMMENT AS comm, ENGINE AS engine
FROM information_schema.TABLES
WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN ({marks})
"""


_KIND = """
SELECT TABLE_COLLATION AS coll, TABLE_TYPE AS kind FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
"""
_PARTITIONED = """
SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab FROM information_schema.TABLES WHERE CREATE_OPTIONS LIKE '%partitioned%'
"""
_VERSIONED = "SYSTEM VERSIONED"
_COLUMNS = """
SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab, COLUMN_NAME AS name, DATA_TYPE AS data_type, COLUMN_TYPE AS column_type,
    IS_NULLABLE AS nullable, COLUMN_DEFAULT AS def, EXTRA AS extra,
    CHARACTER_SET_NAME AS charset, COLLATION_NAME AS coll, COLUMN_COMMENT AS comm
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA IN ({marks})
ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION
"""
_KEYS = """
SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab, COLUMN_NAME AS name FROM information_schema.STATISTICS
WHERE INDEX_NAME = 'PRIMARY' AND TABLE_SCHEMA IN ({marks}) ORDER BY TABLE_SCHEMA, TABLE_NAME, SEQ_IN_INDEX
"""

_KEY_COLUMNS = """
SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab, CONSTRAINT_NAME AS name, COLUMN_NAME AS col,
    REFERENCED_TABLE_SCHEMA AS parent_db, REFERENCED_TABLE_NAME AS parent, REFERENCED_COLUMN_NAME AS parent_col
FROM information_schema.KEY_COLUMN_USAGE WHERE TABLE_SCHEMA IN ({marks}) AND REFERENCED_TABLE_NAME IS NOT NULL
ORDER BY TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, ORDINAL_POSITION
"""
_KEY_RULES = """
SELECT CONSTRAINT_SCHEMA AS db, TABLE_NAME AS tab, CONSTRAINT_NAME AS name, DELETE_RULE AS on_delete,
    UPDATE_RULE AS on_update
FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA IN ({marks})
"""


def list_tables(conn: pymysql.connections.Connection[Any], tables: TablesConfig) -> list[tuple[str, str]]:
    """Returns ``(db, table)`` of the included base tables that the user can see, sorted."""
    return sorted(_included(conn, tables))


def list_sequences(conn: pymysql.connections.Connection[Any], tables: TablesConfig) -> set[tuple[str, str]]:
    """Returns ``(db, name)`` of the sequences of MariaDB; none of MySQL."""
    rows = query(
        conn,
        "SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab FROM information_schema.TABLES WHERE TABLE_TYPE = 'SEQUENCE'",
    )
    return {_table(row, tables) for row in rows}


def merge_tables(conn: pymysql.connections.Connection[Any], tables: TablesConfig) -> dict[str, list[str]]:
    """Returns the server's MERGE tables (``db.table``), each with the tables below it, as far as the user may see."""
    merged = {}
    for row in query(
        conn,
        "SELECT TABLE_SCHEMA AS db, TABLE_NAME AS tab FROM information_schema.TABLES WHERE ENGINE = 'MRG_MyISAM'",
    ):
        db, name = _table(row, tables)
        created = query(conn, f"SHOW CREATE TABLE {quoted(db)}.{quoted(name)}")[0]
        union = union_of(str(created["Create Table"]), db)
        merged[f"{db}.{name}"] = [tables.name(".".join(table)) for table in union]
    return merged


def _included(conn: pymysql.connections.Connection[Any], tables: TablesConfig) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns the included base tables, each with its default collation (``coll``), type (``kind``) and comment
    (``comm``)."""
    system = sorted(SYSTEM_SCHEMAS)
    rows = query(conn, _TABLES.format(marks=_marks(system)), system)
    all_tables = {_table(row, tables): row for row in rows}
    return {name: row for name, row in all_tables.items() if tables.includes(*name)}


def _table(row: dict[str, Any], tables: TablesConfig) -> tuple[str, str]:
    """Returns database and name of a row's table, as the store has them."""
    return tables.name(str(row["db"])), tables.name(str(row["tab"]))


def read_schemas(conn: pymysql.connections.Connection[Any], tables: TablesConfig) -> Schemas:
    """Returns the schemas of the included base tables (no views). Tables and columns that the user may not read are
    missing."""
    names = _included(conn, tables)
    if not names:
        return Schemas(tables={}, comments={}, foreign_keys={})
    databases = sorted({db for db, _ in names})
    facts = {f"{db}.{table}": row for (db, table), row in names.items()}
    keys_by_name = {name: f"{name[0]}.{name[1]}" for name in names}
    columns: dict[str, list[ColumnSchema]] = {key: [] for key in keys_by_name.values()}
    comments: dict[str, dict[str, str]] = {key: {} for key in keys_by_name.values()}
    keys: dict[str, list[str]] = {key: [] for key in keys_by_name.values()}
    for row in query(conn, _COLUMNS.format(marks=_marks(databases)), databases):
        key = keys_by_name.get(_table(row, tables))
        if key is not None:
            columns[key].append(_column(row))
            if row["comm"]:
                comments[key][str(row["name"])] = _text(row["comm"])
    for row in query(conn, _KEYS.format(marks=_marks(databases)), databases):
        key = keys_by_name.get(_table(row, tables))
        if key is not None:
            keys[key].append(str(row["name"]))
    visible = {key: visible_columns for key, visible_columns in columns.items() if visible_columns}
    schemas = Schemas(
        tables={
            key: TableSchema(
                columns=tuple(visible_columns),
                primary_key=tuple(keys[key]),
                charset=charset_of_collation(facts[key]["coll"]),
                collation=facts[key]["coll"],
                system_versioned=facts[key]["kind"] == _VERSIONED,
            )
            for key, visible_columns in visible.items()
        },
        comments={
            key: TableComments(table=_text(facts[key]["comm"] or ""), columns=comments[key])
            for key in visible
            if comments[key] or facts[key]["comm"]
        },
        engines={
            key: str(facts[key]["engine"]).lower() for key in visible if str(facts[key]["engine"]).lower() != "innodb"
        },
        foreign_keys=silent_keys(conn, tables, {name for name, key in keys_by_name.items() if key in visible}),
        system_zone=system_zone(conn),
    )
    return with_members(tables, schemas)


def read_partitions(
    conn: pymysql.connections.Connection[Any], tables: TablesConfig, table_names: Collection[str] | None = None
) -> dict[str, str]:
    """Returns the clauses behind PARTITION BY of partitioned tables, by ``db.table``, as
    :mod:`cdc.binlog.sql.partitions` writes them: of these tables, or of all that are included. Those that are not
    understood are missing."""
    if table_names is None:
        rows = query(conn, _PARTITIONED)
        names = [name for name in (_table(row, tables) for row in rows) if tables.includes(*name)]
    else:
        names = [(db, table) for db, _, table in (name.partition(".") for name in table_names)]
    partitions = {}
    for db, table in names:
        created = _created(conn, db, table, (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR, ER.TABLEACCESS_DENIED_ERROR))
        clause = None if created is None else shown_partitions(created)
        if clause is not None:
            partitions[f"{db}.{table}"] = clause
    return partitions


def _created(
    conn: pymysql.connections.Connection[Any], db: str, table: str, missing: Collection[int] = (ER.NO_SUCH_TABLE,)
) -> str | None:
    """Returns what SHOW CREATE TABLE shows; None after one of these errors of the server: the table was dropped or
    renamed meanwhile, or may not be read."""
    try:
        rows = query(conn, f"SHOW CREATE TABLE {quoted(db)}.{quoted(table)}")
    except SourceRefusedError as refused:
        if isinstance(refused.__cause__, pymysql.MySQLError) and refused.__cause__.args[0] in missing:
            return None
        raise
    return _text(rows[0]["Create Table"]) if rows and "Create Table" in rows[0] else None


def system_zone(conn: pymysql.connections.Connection[Any]) -> Offsets:
    """Returns the server's own time zone from two years before this one to the end of the next, and whether it was the
    same in all years before. Of later years it has the first week with another offset. ``conn`` is in UTC.

    A server reads its zone when it starts, so it is asked once in each connection.
    """
    offsets = _zones.get(conn)
    if offsets is None:
        offsets = _zones[conn] = _ask_system_zone(conn)
    return offsets


_OFFSET = "TIMESTAMPDIFF(SECOND, {time}, CONVERT_TZ({time}, '+00:00', 'SYSTEM'))"
_MOST_TIMES = 10_000
_DIGITS = " UNION ALL ".join(f"SELECT {digit} AS n" for digit in range(10))
_FIRST_OTHER = " ".join(
    (
        "SELECT t, o FROM (SELECT t,",
        _OFFSET.format(time="FROM_UNIXTIME(t)"),
        "AS o FROM (SELECT %s + %s * (a.n + 10 * b.n + 100 * c.n + 1000 * d.n) AS t FROM",
        ", ".join(f"({_DIGITS}) AS {name}" for name in "abcd"),
        ") AS times WHERE t < %s) AS offsets WHERE o <> %s ORDER BY t LIMIT 1",
    )
)
"""The arguments: the first time, the step, the end of the times (exclusive), and the offset."""
_zones: WeakKeyDictionary[pymysql.connections.Connection[Any], Offsets] = WeakKeyDictionary()


def _ask_system_zone(conn: pymysql.connections.Connection[Any]) -> Offsets:
    year = datetime.now(UTC).year
    begin, end = (int(datetime(first_of, 1, 1, tzinfo=UTC).timestamp()) for first_of in (year - 2, year + 2))
    times = list(range(begin, end, _WEEK_S))
    offsets = _system_offsets(conn, times)
    is_constant = _first_other(conn, range(_FIRST_DAY_S, begin, _WEEK_S), offsets[0]) is None
    changes = [(0 if is_constant else begin, offsets[0])]
    for (early, before), (late, after) in pairwise(zip(times, offsets, strict=True)):
        if before == after:
            continue
        while late - early > 1:  # until the second is known in which the clock changes
            points = [*range(early, late, max(1, (late - early) // _PARTS)), late]
            changed = next(i for i, offset in enumerate(_system_offsets(conn, points)) if offset != before)
            early, late = points[changed - 1], points[changed]
        changes.append((late, after))
    other = _first_other(conn, range(end, _LAST_YEAR_S, _WEEK_S), offsets[-1])
    return tuple(changes if other is None else [*changes, other])


def _first_other(conn: pymysql.connections.Connection[Any], times: range, offset: int) -> tuple[int, int] | None:
    """Returns the first of these times at which the server's zone has another offset, and that offset; None if it has
    this one at all of them. The server counts, since thousands of expressions would take longer to parse."""
    assert len(times) <= _MOST_TIMES
    rows = query(conn, _FIRST_OTHER, (times.start, times.step, times.stop, offset))
    return (int(rows[0]["t"]), int(rows[0]["o"])) if rows else None


def _system_offsets(conn: pymysql.connections.Connection[Any], times: Sequence[int]) -> list[int]:
    """Returns the offsets from UTC in seconds at these times, in seconds since 1970."""
    asked = ", ".join(f"{_OFFSET.format(time=f'FROM_UNIXTIME({time})')} AS o{n}" for n, time in enumerate(times))
    row = query(conn, f"SELECT {asked}")[0]
    return [int(row[f"o{n}"]) for n in range(len(times))]


def silent_keys(
    conn: pymysql.connections.Connection[Any], tables: TablesConfig, names: Collection[tuple[str, str]]
) -> dict[str, tuple[ForeignKey, ...]]:
    """Returns the foreign keys of these tables, (db, table), whose actions change rows without row events.

    InnoDB executes the actions by itself. MySQL 9.7 and later execute them in the server, which writes row events,
    unless ``innodb_native_foreign_keys`` is ON.
    """
    databases = sorted({db for db, _ in names})
    if not databases:
        return {}
    marks = _marks(databases)
    columns: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for row in query(conn, _KEY_COLUMNS.format(marks=marks), databases):
        name = _table(row, tables)
        if name in names:
            columns.setdefault(name, {}).setdefault(str(row["name"]), []).append(row)
    if not columns or _logs_actions(conn):
        return {}
    rules: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for row in query(conn, _KEY_RULES.format(marks=marks), databases):
        of_table = rules.setdefault(_table(row, tables), {})
        of_table[str(row["name"])] = str(row["on_delete"]), str(row["on_update"])
    keys_by_table: dict[str, tuple[ForeignKey, ...]] = {}
    for (db, table), constraints in sorted(columns.items()):
        actions = rules.get((db, table), {})
        if not constraints.keys() <= actions.keys():  # MariaDB hides the rules from users who may only SELECT
            actions = _shown_rules(conn, db, table)
        keys = [
            ForeignKey(
                name=name,
                columns=tuple(str(row["col"]) for row in rows),
                parent=tables.name(f"{rows[0]['parent_db']}.{rows[0]['parent']}"),
                parent_columns=tuple(str(row["parent_col"]) for row in rows),
                on_delete=actions[name][0],
                on_update=actions[name][1],
            )
            for name, rows in sorted(constraints.items())
            if name in actions  # else the key was dropped between the two statements
        ]
        keys_by_table[f"{db}.{table}"] = tuple(key for key in keys if key.actions)
    return {table: keys for table, keys in keys_by_table.items() if keys}


_SHOWN_KEY = re.compile(
    r"^ *CONSTRAINT `((?:[^`]|``)+)` FOREIGN KEY .*?((?: ON (?:DELETE|UPDATE) [A-Z ]+)*),?$", re.MULTILINE
)


def _shown_rules(conn: pymysql.connections.Connection[Any], db: str, table: str) -> dict[str, tuple[str, str]]:
    """Returns the actions ON DELETE and ON UPDATE of a table's foreign keys, by their names, from SHOW CREATE TABLE."""
    shown_rules = {}
    for name, actions in _SHOWN_KEY.findall(_created(conn, db, table) or ""):
        rules = dict(re.findall(r"ON (DELETE|UPDATE) (CASCADE|SET NULL|SET DEFAULT|RESTRICT|NO ACTION)", actions))
        shown_rules[name.replace("``", "`")] = rules.get("DELETE", "RESTRICT"), rules.get("UPDATE", "RESTRICT")
    return shown_rules


def _logs_actions(conn: pymysql.connections.Connection[Any]) -> bool:
    """Whether the server executes the actions of foreign keys itself, and writes row events for them."""
    return variables(conn, ("innodb_native_foreign_keys",)).get("innodb_native_foreign_keys") == "OFF"


def read_schema(
    conn: pymysql.connections.Connection[Any], tables: TablesConfig, db: str, name: str
) -> TableSchema | None:
    """Returns the schema of one base table, as :func:`read_schemas` does; None if the user cannot see such a table. The
    server opens no other table for it."""
    rows = query(conn, _KIND, (db, name))
    order = " AND TABLE_NAME = %s ORDER BY "
    columns = query(conn, _COLUMNS.format(marks="%s").replace("\nORDER BY ", order), (db, name))
    keys = query(conn, _KEYS.format(marks="%s").replace(" ORDER BY ", order), (db, name))
    if not rows or not columns:
        return None
    collation = rows[0]["coll"]
    schema = TableSchema(
        columns=tuple(_column(row) for row in columns),
        primary_key=tuple(str(row["name"]) for row in keys),
        charset=charset_of_collation(collation),
        collation=collation,
        system_versioned=rows[0]["kind"] == _VERSIONED,
    )
    return with_members(tables, Schemas(tables={f"{db}.{name}": schema})).tables[f"{db}.{name}"]


def is_dropped(conn: pymysql.connections.Connection[Any], db: str, name: str) -> bool:
    """Whether a base table does not exist, or is a view now. Raises SourceRefusedError if the user may not SELECT from
    it, because the server does not tell then; SourceUnavailableError."""
    try:
        query(conn, f"SELECT 1 FROM {quoted(db)}.{quoted(name)} LIMIT 0")  # noqa: S608
    except SourceRefusedError as refused:
        cause = refused.__cause__
        if isinstance(cause, pymysql.MySQLError) and cause.args[0] in (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR):
            return True
        raise SourceRefusedError(
            f"the user may not read it, so nobody knows whether it was dropped: {refused.message}",
            place=f"table {db}.{name}",
            remedy=f"GRANT SELECT on it. If it was dropped, exclude it ({exclusion(f'{db}.{name}')}).",
        ) from refused
    return not query(conn, _KIND, (db, name))


def _column(row: dict[str, Any]) -> ColumnSchema:
    return ColumnSchema(
        name=str(row["name"]),
        data_type=_text(row["data_type"]).lower(),
        # MariaDB writes COMPRESSED as a comment, which once had no M.
        column_type=_text(row["column_type"]).replace("/*!100301 COMPRESSED*/", "/*M!100301 COMPRESSED*/"),
        nullable=row["nullable"] == "YES",
        default=None if row["def"] is None else _text(row["def"]),
        extra=_text(row["extra"] or ""),
        charset=row["charset"],
        collation=row["coll"],
    )


def _text(value: Any) -> str:
    # Some of these columns are BLOBs since MySQL 8.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _marks(values: list[str]) -> str:
    return ", ".join(["%s"] * len(values))


# --- members of ENUM and SET

_WIDE = ("utf8mb4", "utf16", "utf32")


def with_members(tables: TablesConfig, schemas: Schemas) -> Schemas:
    """Returns the schemas with the members of ``tables.overrides`` in place of those with question marks."""
    tables_with_members = dict(schemas.tables)
    for name, table in schemas.tables.items() if tables.overrides else ():
        override = tables.override(name)
        if override is not None and override.members:
            columns = tuple(_completed(column, override.members) for column in table.columns)
            tables_with_members[name] = table.model_copy(update={"columns": columns})
    return schemas.model_copy(update={"tables": tables_with_members})


def _completed(column: ColumnSchema, members: dict[str, tuple[str, ...]]) -> ColumnSchema:
    override = _given(column, members)
    if (
        override is None
        or not _may_be_altered(column)
        or tuple(map(_as_shown, override)) != quoted_members(column.column_type)
    ):
        return column
    return column.model_copy(update={"column_type": quote_members(column.data_type, override)})


def check_members(config: DestinationConfig, schemas: Schemas) -> Iterator[Finding]:
    """Yields errors for columns whose members are unknown. Call it for servers whose table maps contain no members,
    with schemas from :func:`with_members`."""
    for name, table in sorted(schemas.tables.items()):
        override = config.tables.override(name)
        members = (override.members if override is not None else None) or {}
        policies = config.table_apply(name).columns
        for column in table.columns:
            policy = policies.get(column.name.lower())
            configured = _given(column, members)
            shown = quoted_members(column.column_type) if column.data_type in ("enum", "set") else ()
            if configured is not None and configured != shown:
                yield error(
                    f"table {name}",
                    f"tables.overrides gives column {column.name!r} the members "
                    f"{quote_members(column.data_type, configured)}, and the server shows {column.column_type}",
                    "Write all members in their order. They may differ only where the server shows a character beyond "
                    "U+FFFF as '?'.",
                )
            elif configured is None and _may_be_altered(column) and not (policy and policy.kind in ("drop", "null")):
                listed = ", ".join(repr(member) for member in shown)
                yield error(
                    f"table {name}",
                    f"column {column.name!r} is {column.column_type}; this server shows characters beyond U+FFFF as "
                    "question marks, so the column's members are unknown",
                    f"Write all members into tables.overrides.{name}, with the true characters: "
                    f"{{members: {{{column.name}: [{listed}]}}}}. Or drop the column: "
                    f"{{columns: {{{column.name}: drop}}}}.",
                )


def _given(column: ColumnSchema, members: dict[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    return next((override for name, override in members.items() if name.lower() == column.name.lower()), None)


def _may_be_altered(column: ColumnSchema) -> bool:
    wide = (column.charset or "").startswith(_WIDE)
    return column.data_type in ("enum", "set") and wide and "?" in column.column_type


def _as_shown(member: str) -> str:
    """Returns a member as MySQL 5.6 and 5.7 show it."""
    return "".join("?" if char > "\uffff" else char for char in member)
