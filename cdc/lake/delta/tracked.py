"""The tracked schema: a Delta table's source schema as of its applied position, kept in the table's own properties.

A table is created with one record (``towpath.source_schema``), and each statement that changes the schema adds another
one under its seq (``towpath.source_schema.SEQ``) before it changes the Delta table. The record in force is the newest
one that the applied position has reached, so a record of a statement that was cut off counts for nothing, and a driver
that writes an old record late changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc.base.documents import require_version
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema, quote_members
from cdc.binlog.table_map import ColumnType
from cdc.decode.columns import BINARY, BLOBS, Column

if TYPE_CHECKING:
    from cdc.decode import TableLayout
    from cdc.lake.delta.log import DeltaState

SCHEMA_PROPERTY = "towpath.source_schema"
"""Delta table property: a record of the source's schema. A record that came later has ``.SEQ`` behind the name."""
RECORD_VERSION = 2
"""Version 2 has ``values``."""
_KEPT_RECORDS = 4
"""Records that are no longer in force are removed when there are more."""


@dataclass(frozen=True)
class SchemaRecord:
    """A source schema that is in force from a statement on."""

    seq: int
    """The statement's seq; for a new table the seq up to which it is complete."""
    schema: TableSchema | None
    """None: the source has no table of this name."""
    columns: Any = None
    """The columns that the Delta table must get, as :mod:`cdc.lake.apply.schema.columns` writes them; None if nothing
    is to be altered."""
    values: dict[str, str] | None = None
    """The values that old rows then get, as SQL, by the names of columns; None in a record of format version 1."""

    def to_json(self) -> str:
        """Returns the record as text, without the columns' defaults: they may be values that a policy keeps out of the
        lake, and no row depends on them."""
        version = RECORD_VERSION if self.values is not None else 1
        content: dict[str, Any] = {"version": version, "seq": self.seq, "schema": None}
        if self.schema is not None:
            columns = tuple(column.model_copy(update={"default": None}) for column in self.schema.columns)
            bare = self.schema.model_copy(update={"columns": columns})
            content["schema"] = bare.model_dump(mode="json", exclude_defaults=True)
        if self.columns is not None:
            content["columns"] = self.columns
        if self.values is not None:
            content["values"] = self.values
        return json.dumps(content, ensure_ascii=False)

    @classmethod
    def of_json(cls, text: str, place: str) -> SchemaRecord:
        content = json.loads(text)
        require_version(int(content["version"]), RECORD_VERSION, place, what=f"its {SCHEMA_PROPERTY}")
        schema = content["schema"]
        return cls(
            int(content["seq"]),
            None if schema is None else TableSchema.model_validate(schema),
            content.get("columns"),
            content.get("values"),
        )

    @property
    def name(self) -> str:
        """The property of a record that is added to an existing table."""
        return f"{SCHEMA_PROPERTY}.{self.seq}"


def records(state: DeltaState) -> list[SchemaRecord]:
    """Returns all records of a table, oldest first. Raises VersionError."""
    return sorted(
        (
            SchemaRecord.of_json(text, f"table at {state.path}")
            for name, text in state.properties.items()
            if name == SCHEMA_PROPERTY or name.startswith(f"{SCHEMA_PROPERTY}.")
        ),
        key=lambda record: record.seq,
    )


def record_in_force(state: DeltaState, before: int | None = None) -> SchemaRecord | None:
    """Returns the newest record that the table's applied position has reached; None for a table of an older Towpath.
    ``before``: only records of earlier statements."""
    all_records = records(state)
    first = all_records[0] if all_records else None
    reached = [
        r for r in all_records if (r is first or r.seq <= state.applied_seq) and (before is None or r.seq < before)
    ]
    return reached[-1] if reached else None


def tracked_schema(state: DeltaState) -> TableSchema | None:
    """Returns the source schema as of the applied position; None if the source has no such table, or if the table was
    made by an older Towpath."""
    record = record_in_force(state)
    return None if record is None else record.schema


def is_dropped(state: DeltaState) -> bool:
    """Whether the source's table was dropped, or is called otherwise, as of the applied position."""
    record = record_in_force(state)
    return record is not None and record.schema is None


def outdated_records(state: DeltaState) -> list[str]:
    """Returns the names of properties with records that are no longer in force, if there are many of them."""
    reached = [r for r in records(state) if r.seq <= state.applied_seq and r.name in state.properties]
    return [r.name for r in reached[:-1]] if len(reached) > _KEPT_RECORDS else []


# --- a schema from rows ----------------------------------------------------------------------------------------------


def schema_of_layout(layout: TableLayout, stored: TableSchema | None) -> TableSchema:
    """Returns the source schema that rows have shown. ``stored``: the definition that capture read, perhaps at a later
    time; each column that it shares with the rows is taken from there."""
    stored_columns = {} if stored is None else {c.name.lower(): c for c in stored.columns}
    columns = []
    for column in layout.columns:
        schema = stored_columns.get(column.name.lower())
        if schema is None or not column.column_type or column.column_type != schema.column_type.lower():
            kind, full = _words(column)
            charset = column.charset if column.charset not in (None, "binary") else None
            schema = ColumnSchema(
                name=column.name, data_type=kind, column_type=full, nullable=column.nullable, default=None, extra="",
                charset=charset, collation=None,
            )  # fmt: skip
        columns.append(schema)
    same = stored is not None and tuple(columns) == stored.columns
    return TableSchema(
        columns=tuple(columns),
        primary_key=layout.primary_key,
        charset=stored.charset if same and stored is not None else None,
        collation=stored.collation if same and stored is not None else None,
    )


_NAMES = {
    "TINY": "tinyint", "SHORT": "smallint", "INT24": "mediumint", "LONG": "int", "LONGLONG": "bigint", "FLOAT": "float",
    "DOUBLE": "double", "NEWDECIMAL": "decimal", "YEAR": "year", "BIT": "bit", "DATE": "date", "NEWDATE": "date",
    "TIME": "time", "TIME2": "time", "DATETIME": "datetime", "DATETIME2": "datetime", "TIMESTAMP": "timestamp",
    "TIMESTAMP2": "timestamp", "ENUM": "enum", "SET": "set", "JSON": "json", "GEOMETRY": "geometry",
    "VECTOR": "vector",
}  # fmt: skip
_SIZES = {1: "tiny", 2: "", 3: "medium", 4: "long"}


def _words(column: object) -> tuple[str, str]:
    """Returns the data type and the column type of a table map's column, in the words of ``information_schema``."""
    assert isinstance(column, Column)
    if column.declared and column.column_type:
        return column.declared, column.column_type
    name = ColumnType(column.type).name
    if column.type in BLOBS or name == "BLOB_COMPRESSED":
        kind = _SIZES.get(column.length, "") + ("blob" if column.charset == BINARY else "text")
        return kind, kind
    if name in ("STRING", "VARCHAR", "VAR_STRING", "VARCHAR_COMPRESSED"):
        base = "char" if name == "STRING" else "varchar"
        kind = base if column.charset != BINARY else "binary" if base == "char" else "varbinary"
        return kind, f"{kind}({column.length})"
    kind = _NAMES[name]
    if kind == "decimal":
        full = f"decimal({column.precision},{column.scale})"
    elif kind == "bit":
        full = f"bit({column.length})"
    elif kind in ("time", "datetime", "timestamp") and column.scale:
        full = f"{kind}({column.scale})"
    elif kind in ("enum", "set"):
        full = quote_members(kind, column.members)
    else:
        full = kind
    return kind, full + (" unsigned" if column.unsigned else "")
