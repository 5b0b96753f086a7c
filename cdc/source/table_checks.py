"""Checks of the included tables: names, column types, keys, column policies and type mappings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from cdc.base.patterns import exclusion
from cdc.base.targets import MODE_COLUMNS, PLAIN_READER, SOURCE_COLUMN, expected_reader, split_table
from cdc.binlog.sql.schemas import (
    CHANGES_ROWS,
    VERSIONED,
    ColumnSchema,
    ForeignKey,
    Schemas,
    TableSchema,
    versioned_remedy,
)
from cdc.config import ApplyConfig, ColumnPolicy, DestinationConfig
from cdc.source.findings import Finding, error, ok, warning
from cdc.source.foreign_keys import refusal

METADATA_COLUMNS = frozenset({"_op", "_seq", "_row", "_commit_time", "_gtid", "_before"})
"""Columns that rows carry until they are merged, whatever the mode."""

# As information_schema names them.
_TYPES = frozenset(
    {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit"}
    | {"year", "date", "time", "datetime", "timestamp"}
    | {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "xmltype"}
    | {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector", "uuid", "inet4", "inet6"}
    | {"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
    | {"geometrycollection", "geomcollection"}
)
# Comments that a server adds to column_type: storage formats of times before MariaDB 10.1 or MySQL 5.6, COMPRESSED.
_COMMENT = re.compile(r"/\*(.*?)\*/")
_COMMENTS = frozenset({"mariadb-5.3", "5.5 binary format", "M!100301 COMPRESSED"})

_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "time"}) | {
    "uuid", "inet4", "inet6", "xmltype"
}  # fmt: skip
"""Types that arrive as text, as long as TIME is not mapped."""
_KEEP = ColumnPolicy(kind="keep")
_CHARACTERS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})


def check_names(tables: list[tuple[str, str]]) -> Iterator[Finding]:
    """Yields errors for included tables (database, table) that share the name ``db.table``. Either part may contain a
    dot."""
    owners: dict[str, tuple[str, str]] = {}
    for db, table in tables:
        name = f"{db}.{table}"
        first = owners.setdefault(name, (db, table))
        if first != (db, table):
            yield error(
                f"table {name}",
                f"`{first[0]}`.`{first[1]}` and `{db}`.`{table}` share the name {name}, which must identify one table",
                f"Rename one of the two, or exclude both ({exclusion(name)}).",
            )


def check_tables(config: DestinationConfig, schemas: Schemas) -> list[Finding]:
    """Returns the findings about types, names and keys of the included tables."""
    findings: list[Finding] = []
    for name, table in sorted(schemas.tables.items()):
        if table.system_versioned:
            findings.append(error(f"table {name}", VERSIONED, versioned_remedy(name)))
        findings += _columns(config, name, table)
        findings += _keys(config, name, table)
        findings += _reader(config, name, table)
    named = {*schemas.tables, *map(config.tables.lake_name, schemas.tables)}
    for name in sorted(config.tables.overrides):
        if name not in named:
            findings.append(
                warning(
                    f"table {name}",
                    "tables.overrides names it, but the source has no such included table, and tables.route leads "
                    "none there",
                    "Correct the name (db.table, exactly), or remove the override.",
                )
            )
    return findings


ENGINES_OF_OTHERS = {
    "mrg_myisam": "it shows the rows of other tables, which change without an event of it",
    "federated": "its rows belong to a table of another server",
    "spider": "its rows belong to tables of other servers",
    "connect": "its rows belong to files or tables elsewhere",
}  # fmt: skip
"""Why a table of an engine changes without an event of its own, or changes others."""


def check_engines(schemas: Schemas, merged: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Yields errors for tables that change without an event: those whose rows belong to others, and those below a MERGE
    table. ``merged``: the server's MERGE tables (``db.table``), each with the tables below it."""
    for name, engine in sorted((schemas.engines or {}).items()):
        if engine in ENGINES_OF_OTHERS:
            yield error(
                f"table {name}",
                f"has the engine {engine}: {ENGINES_OF_OTHERS[engine]}",
                f"Exclude the table ({exclusion(name)}).",
            )
    for merge, tables in sorted(merged.items()):
        for name in sorted(set(tables) & set(schemas.tables)):
            yield error(
                f"table {name}",
                f"its rows may change through the MERGE table {merge}, and the binlog has them as rows of {merge} then",
                f"Drop {merge}, or exclude the table ({exclusion(name)}).",
            )


def _lake_name(apply: ApplyConfig, column: ColumnSchema) -> str | None:
    """Returns the name of a column in Delta; None if it is dropped."""
    policy = apply.columns.get(column.name.lower())
    return column.name if policy is None else policy.lake_name(column.name)


def _columns(config: DestinationConfig, name: str, table: TableSchema) -> Iterator[Finding]:
    apply = config.table_apply(name)
    for column in table.columns:
        reason = unsupported(column)
        if reason is not None:
            yield error(
                f"table {name}",
                f"column {column.name!r} has {reason}, which Towpath does not support",
                f"Exclude the table ({exclusion(name)}), or change the column's type.",
            )
        # Spark compares column names case-insensitively.
        own = (_lake_name(apply, column) or "").lower()
        if (
            column.name.lower() in METADATA_COLUMNS
            or own in MODE_COLUMNS[apply.mode]
            or (apply.shared and own == SOURCE_COLUMN)
        ):
            yield error(
                f"table {name}",
                f"column {column.name!r} has the name of one of Towpath's metadata columns",
                f"Rename the column, or exclude the table ({exclusion(name)}).",
            )


def unsupported(column: ColumnSchema) -> str | None:
    """Returns the column's type for a message if it cannot be decoded, else None."""
    if column.data_type not in _TYPES:
        return f"type {column.column_type}"
    if column.data_type in ("enum", "set"):  # a member may look like a comment
        return None
    comments = {comment.strip() for comment in _COMMENT.findall(column.column_type)}
    return f"type {column.column_type}" if comments - _COMMENTS else None


def _keys(config: DestinationConfig, name: str, table: TableSchema) -> Iterator[Finding]:
    apply = config.table_apply(name)
    if apply.mode == "append":
        return
    if not apply.keys:
        if not table.primary_key:
            yield error(
                f"table {name}",
                f"has no primary key, which mode {apply.mode} needs",
                f"Add a primary key, or set tables.overrides.{name} to {{mode: append}} or {{keys: […]}}.",
            )
        return
    for key in apply.keys:
        column = next((c for c in table.columns if c.name == key), None)
        if column is None:
            yield error(
                f"table {name}",
                f"has no column {key!r}, which keys names",
                f"Its columns are {', '.join(table.column_names)}.",
            )
        elif column.nullable:
            yield error(
                f"table {name}",
                f"key column {key!r} may be NULL, and NULL identifies no row",
                "Declare the column NOT NULL, or choose other keys.",
            )


def _reader(config: DestinationConfig, name: str, table: TableSchema) -> Iterator[Finding]:
    """Yields the readers that the Delta table will need, if the plain reader is not enough."""
    apply = config.table_apply(name)
    columns = [_lake_name(apply, column) for column in table.columns]
    reader = expected_reader(
        config.table_path(name),
        [column for column in columns if column is not None],
        deletion_vectors=apply.deletion_vectors and apply.mode != "append",
    )
    if reader != PLAIN_READER:
        yield ok(f"table {name}", f"its Delta table needs {reader} to be read")


# --- column policies and type mappings


def check_key_dates(config: DestinationConfig, schemas: Schemas, sql_mode: str) -> Iterator[Finding]:
    """Yields warnings about dates in keys if the server accepts zero dates, since the merge refuses such keys."""
    modes = frozenset(sql_mode.upper().split(","))
    strict = modes & {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES", "TRADITIONAL"}
    if strict and modes >= {"NO_ZERO_DATE", "NO_ZERO_IN_DATE"} and "ALLOW_INVALID_DATES" not in modes:
        return
    for name, table in sorted(schemas.tables.items()):
        apply = config.table_apply(name)
        keys = {key.lower() for key in apply.keys or table.primary_key} if apply.mode != "append" else set()
        for column in table.columns:
            policy = apply.columns.get(column.name.lower())
            is_text = policy is not None and policy.kind == "text"
            if column.name.lower() in keys and column.data_type in ("date", "datetime", "timestamp") and not is_text:
                yield warning(
                    f"table {name}",
                    f"key column {column.name!r} may contain zero dates (the server's sql_mode allows them), which "
                    "Delta cannot represent; a batch with such a key is refused",
                    f"If the column may contain zero dates, store it as text (tables.overrides.{name}: {{columns: "
                    f"{{{column.name}: text}}}}) before the Delta table is created.",
                )


def check_generated(config: DestinationConfig, schemas: Schemas) -> Iterator[Finding]:
    """Yields warnings about generated columns that are not left out, for a server whose updates and deletes may lack
    them."""
    for name, table in sorted(schemas.tables.items()):
        policies = config.table_apply(name).columns
        kept = [
            column.name
            for column in table.columns
            if column.is_generated and policies.get(column.name.lower(), _KEEP).kind not in ("drop", "null")
        ]
        if kept:
            yield warning(
                f"table {name}",
                f"the generated columns {', '.join(kept)} are kept, and MariaDB 11.8.9 leaves generated columns out of "
                "updates and deletes, which apply refuses then",
                f"Leave them out (tables.overrides.{name}: {{columns: {{{kept[0]}: drop}}}}) before "
                "the Delta table is created, or make them null.",
            )


def check_foreign_keys(config: DestinationConfig, schemas: Schemas) -> Iterator[Finding]:
    """Yields a finding for each foreign key whose actions change captured rows without row events: an error if the
    parent is not captured, else a warning."""
    for name, keys in sorted((schemas.foreign_keys or {}).items()):
        setting = config.table_apply(name).foreign_keys
        for key in keys:
            what = f"the foreign key {key.name} to {key.parent} ({key.actions}) changes rows without row events"
            ignore = f"tables.overrides.{name}: {{foreign_keys: ignore}}"
            if setting == "ignore":
                yield warning(
                    f"table {name}",
                    f"{what}, and foreign_keys: ignore leaves them in the Delta table as they were",
                    "Remove foreign_keys: ignore if the Delta table must equal the source.",
                )
            elif not config.tables.includes(*split_table(key.parent)):
                yield error(
                    f"table {name}",
                    f"{what}, and {key.parent} is not captured, so that nobody can tell when",
                    f"Capture {key.parent} too (tables.include), exclude the table ({exclusion(name)}), or set "
                    f"{ignore} if its Delta table may differ.",
                )
            elif setting == "park":
                yield warning(
                    f"table {name}",
                    f"{what}; apply parks the table when rows of {key.parent} are deleted, or their referenced columns "
                    "change, because foreign_keys is park",
                    f"Remove foreign_keys: park, so that apply executes the actions, or set {ignore} if its Delta "
                    f"table may differ. `cdc snapshot {config.name} {name}` brings a parked table back.",
                )
            elif obstacles := _obstacles(config, schemas, name, key):
                yield warning(
                    f"table {name}",
                    f"{what}, and apply cannot find these rows in the Delta table: {obstacles}; it parks the table "
                    f"when rows of {key.parent} are deleted, or their referenced columns change",
                    f"Remove the obstacle, or set {ignore} if its Delta table may differ. `cdc snapshot {config.name} "
                    f"{name}` brings a parked table back.",
                )
            else:
                yield ok(f"table {name}", f"{what}; apply executes its actions on the rows of the Delta table")


def _obstacles(config: DestinationConfig, schemas: Schemas, child: str, key: ForeignKey) -> str:
    """Returns why apply cannot follow a key's actions; nothing if it can."""
    updates = key.on_update in CHANGES_ROWS or key.on_delete in ("SET NULL", "SET DEFAULT")
    acts = {True: updates, False: key.on_delete == "CASCADE"}
    reasons = [refusal(config, schemas, child, key, changes) for changes, may_act in acts.items() if may_act]
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason is not None))


def check_policies(config: DestinationConfig, schemas: Schemas) -> Iterator[Finding]:
    """Yields errors for column policies that apply would refuse, and warnings for policies without effect."""
    for name, table in sorted(schemas.tables.items()):
        yield from _policies_of(config, name, table)
    column_names = {column.name.lower() for table in schemas.tables.values() for column in table.columns}
    for column in sorted(set(config.apply.columns) - column_names):
        if schemas.tables:
            yield warning(
                "apply: columns", f"no included table has a column {column!r}", "Correct its name, or remove it."
            )


def _policies_of(config: DestinationConfig, name: str, table: TableSchema) -> Iterator[Finding]:
    apply = config.table_apply(name)
    override = config.tables.override(name)
    columns = {column.name.lower(): column for column in table.columns}
    for missing in sorted(set((override.columns if override is not None else None) or {}) - set(columns)):
        yield error(
            f"table {name}",
            f"has no column {missing!r}, which tables.overrides names in columns",
            f"Its columns are {', '.join(table.column_names)}.",
        )
    keys = {key.lower() for key in apply.keys or table.primary_key} if apply.mode != "append" else set()
    for key, policy in sorted(apply.columns.items()):
        column = columns.get(key)
        if column is None:
            continue
        why = _misfit(policy, column, columns, key in keys, apply.types.get("time", "text") == "text")
        if why is not None:
            yield error(f"table {name}", f"column {column.name!r} with the policy {policy}: {why[0]}", why[1])
    for key in sorted(keys & set(columns)):
        mapped = _mapped(columns[key], apply.types)
        if mapped is not None:
            yield error(
                f"table {name}",
                f"key column {columns[key].name!r} would become {mapped}, in which different keys may be equal",
                "Change types for this table (tables.overrides), or set mode: append.",
            )


def _misfit(
    policy: ColumnPolicy, column: ColumnSchema, columns: dict[str, ColumnSchema], is_key: bool, times_are_texts: bool
) -> tuple[str, str] | None:
    """Returns why a policy does not fit a column, and the remedy; None if it fits."""
    if is_key and policy.kind in ("drop", "null", "mask"):
        return "a key must tell rows apart", "Remove the policy (hash and rename are allowed), or set mode: append."
    texts = _TEXTS if times_are_texts else _TEXTS - {"time"}
    if policy.kind == "mask" and column.data_type not in texts:
        return f"only texts can be masked, not {column.column_type}", "Use hash, drop or null instead."
    if policy.kind == "text" and column.data_type not in ("date", "datetime", "timestamp"):
        return f"it is for DATE, DATETIME and TIMESTAMP, not for {column.column_type}", "Remove the policy."
    if policy.kind == "bytes" and column.data_type not in _CHARACTERS:
        return f"it is for CHAR, VARCHAR and TEXT, not for {column.column_type}", "Remove the policy."
    if policy.kind == "hash" and column.data_type == "vector":
        return "only single values can be hashed", "Use drop or null instead."
    if policy.kind == "rename" and policy.name.lower() != column.name.lower() and policy.name.lower() in columns:
        return f"the table has a column {policy.name!r} already", "Choose another name."
    return None


def _mapped(column: ColumnSchema, types: dict[str, str]) -> str | None:
    """Returns the mapped type of a column if different values may become equal or unordered in it, else None."""
    if column.column_type.lower().startswith("tinyint(1)") and types.get("tinyint(1)") == "boolean":
        return "boolean"
    return "variant" if column.data_type == "json" and types.get("json") == "variant" else None
