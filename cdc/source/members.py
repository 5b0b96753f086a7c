"""Members of ENUM and SET that a server does not show as they are.

MySQL 5.6 and 5.7 keep them in the column's character set, but show them in utf8mb3 wherever one may look (SHOW CREATE
TABLE, SHOW COLUMNS, information_schema, whatever the connection's character set): a character beyond U+FFFF becomes a
question mark. Their table maps do not tell members either. So the operator writes them down, or leaves the column out.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdc.config import DestinationConfig, TablesConfig
from cdc.schemas import ColumnSchema, Schemas, TableSchema, quote_members, quoted_members
from cdc.source.findings import Finding, error

_WIDE = ("utf8mb4", "utf16", "utf32")


def with_members(tables: TablesConfig, schemas: Schemas) -> Schemas:
    """The schemas with the members that ``tables.overrides`` names in place of those with question marks."""
    found = dict(schemas.tables)
    for name, override in tables.overrides.items():
        if override.members and name in found:
            columns = tuple(_completed(column, override.members) for column in found[name].columns)
            found[name] = TableSchema(columns=columns, primary_key=found[name].primary_key)
    return schemas.model_copy(update={"tables": found})


def _completed(column: ColumnSchema, members: dict[str, tuple[str, ...]]) -> ColumnSchema:
    given = _of(column, members)
    if given is None or not _may_be_wrong(column) or tuple(map(_shown, given)) != quoted_members(column.column_type):
        return column
    return column.model_copy(update={"column_type": quote_members(column.data_type, given)})


def check_members(config: DestinationConfig, schemas: Schemas) -> Iterator[Finding]:
    """Errors for columns whose members are not known, of a server whose table maps do not tell them. ``schemas`` have
    passed :func:`with_members`."""
    for name, table in sorted(schemas.tables.items()):
        override = config.tables.overrides.get(name)
        members = (override.members if override is not None else None) or {}
        policies = config.table_apply(name).columns
        for column in table.columns:
            policy = policies.get(column.name.lower())
            given = _of(column, members)
            shown = quoted_members(column.column_type) if column.data_type in ("enum", "set") else ()
            if given is not None and given != shown:
                yield error(
                    f"table {name}",
                    f"members in tables.overrides says that column {column.name!r} is "
                    f"{quote_members(column.data_type, given)}, and the server shows {column.column_type}",
                    "Write all members in their order, as they are; only characters beyond U+FFFF may be shown as '?'.",
                )
            elif given is None and _may_be_wrong(column) and not (policy and policy.kind in ("drop", "null")):
                listed = ", ".join(repr(member) for member in shown)
                yield error(
                    f"table {name}",
                    f"column {column.name!r} is {column.column_type}; this server shows characters beyond U+FFFF as "
                    "question marks and tells them nowhere else, so its members are not known",
                    f"Write all of them into tables.overrides.{name}, with the true characters: "
                    f"{{members: {{{column.name}: [{listed}]}}}}. Or do without the column: "
                    f"{{columns: {{{column.name}: drop}}}}.",
                )


def _of(column: ColumnSchema, members: dict[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    return next((given for name, given in members.items() if name.lower() == column.name.lower()), None)


def _may_be_wrong(column: ColumnSchema) -> bool:
    wide = (column.charset or "").startswith(_WIDE)
    return column.data_type in ("enum", "set") and wide and "?" in column.column_type


def _shown(member: str) -> str:
    """A member as such a server shows it."""
    return "".join("?" if char > "\uffff" else char for char in member)
