"""Checks of the included tables: keys, column types, names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cdc.config import DestinationConfig
from cdc.schemas import ColumnSchema, Schemas, TableSchema
from cdc.source.findings import Finding, error, ok, warning
from cdc.targets import PLAIN_READER, expected_reader, split_table, table_path

OUR_COLUMNS = frozenset({"_op", "_seq", "_row", "_commit_time", "_gtid", "_before"})
"""Names that a changelog adds, and that rows carry on their way to any table."""

# As information_schema names them; in every character set, since the servers have had the same ones for ten years.
_TYPES = frozenset(
    {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit"}
    | {"year", "date", "time", "datetime", "timestamp"}
    | {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "xmltype"}
    | {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector", "uuid", "inet4", "inet6"}
    | {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
    | {"geometrycollection", "geomcollection"}
)
# What a server adds to column_type: times in the storage of MariaDB before 10.1 or MySQL before 5.6, and COMPRESSED.
_NOTE = re.compile(r"/\*(.*?)\*/")
_NOTES = frozenset({"mariadb-5.3", "5.5 binary format", "M!100301 COMPRESSED"})


def check_names(tables: list[tuple[str, str]]) -> Iterator[Finding]:
    """Errors for included tables, (database, table), that share the name ``db.table``, since a dot may be in either."""
    known: dict[str, tuple[str, str]] = {}
    for db, table in tables:
        name = f"{db}.{table}"
        first = known.setdefault(name, (db, table))
        if first != (db, table):
            yield error(
                f"table {name}",
                f"`{first[0]}`.`{first[1]}` and `{db}`.`{table}` share the name {name}, by which Towpath knows tables",
                f"Rename one of the two, or leave both out (tables.exclude: ['{exact(name)}']).",
            )


def check_tables(config: DestinationConfig, schemas: Schemas) -> list[Finding]:
    """Everything that keeps an included table from being applied as configured."""
    found: list[Finding] = []
    for name, table in sorted(schemas.tables.items()):
        found += _columns(name, table)
        found += _keys(config, name, table)
        found += _reader(config, name, table)
    for name in sorted(config.tables.overrides):
        if name not in schemas.tables:
            found.append(
                warning(
                    f"table {name}",
                    "tables.overrides names it, but the source has no such included table",
                    "Correct the name (db.table, exactly), or remove the override.",
                )
            )
    return found


def _columns(name: str, table: TableSchema) -> Iterator[Finding]:
    for column in table.columns:
        reason = unsupported(column)
        if reason is not None:
            yield error(
                f"table {name}",
                f"column {column.name!r} has {reason}, which Towpath does not know",
                f"Leave the table out (tables.exclude: ['{exact(name)}']), or change the column's type.",
            )
        # Spark compares names of columns without their case.
        if column.name.lower() in OUR_COLUMNS:
            yield error(
                f"table {name}",
                f"column {column.name!r} is named like one of Towpath's own",
                f"Rename the column, or leave the table out (tables.exclude: ['{exact(name)}']).",
            )


def unsupported(column: ColumnSchema) -> str | None:
    """The type that is not known, in words; None where it can be decoded."""
    if column.data_type not in _TYPES:
        return f"type {column.column_type}"
    if column.data_type in ("enum", "set"):  # a member may look like a note
        return None
    notes = {note.strip() for note in _NOTE.findall(column.column_type)}
    return f"type {column.column_type}" if notes - _NOTES else None


def _keys(config: DestinationConfig, name: str, table: TableSchema) -> Iterator[Finding]:
    apply = config.table_apply(name)
    if apply.mode == "append":
        return
    if not apply.keys:
        if not table.primary_key:
            yield error(
                f"table {name}",
                f"has no primary key, which mode {apply.mode} needs",
                f"Give it one, or set tables.overrides.{name} to {{mode: append}} or {{keys: […]}}.",
            )
        return
    for key in apply.keys:
        column = next((c for c in table.columns if c.name == key), None)
        if column is None:
            yield error(
                f"table {name}",
                f"has no column {key!r}, which its keys name",
                f"Its columns are {', '.join(table.column_names)}.",
            )
        elif column.nullable:
            yield error(
                f"table {name}",
                f"key column {key!r} may be NULL, and NULL identifies no row",
                "Declare the column NOT NULL, or choose other keys.",
            )


def _reader(config: DestinationConfig, name: str, table: TableSchema) -> Iterator[Finding]:
    """Which readers the Delta table will need, where a plain one does not do."""
    apply = config.table_apply(name)
    columns = []
    for column in table.columns:
        policy = apply.columns.get(column.name.lower())
        if policy is None or policy.kind != "drop":
            columns.append(policy.name if policy is not None and policy.kind == "rename" else column.name)
    reader = expected_reader(table_path(apply.target, *split_table(name)), columns)
    if reader != PLAIN_READER:
        yield ok(f"table {name}", f"its Delta table is to be read with {reader}")


def exact(name: str) -> str:
    """A regular expression that matches ``db.table`` only, as ``tables.exclude`` takes it."""
    return re.escape(name).replace("'", "''")
