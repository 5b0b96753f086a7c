"""``apply.catalog``: the names under which the Delta tables are registered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, field_validator

from cdc.config.values import Doc, Section

SESSION_CATALOG = "spark_catalog"
"""The catalog that every session of Spark has: a Hive metastore, Glue, or the memory of the session."""
_CATALOG = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER = re.compile(r"\{(db|table)\}")
_WITH = f"name: {SESSION_CATALOG}"
_REST = re.compile(r"[A-Za-z0-9_]*")
_NOT_PLAIN = re.compile(r"[^a-z0-9_]")


class CatalogConfig(Section):
    """Registration of the Delta tables in a catalog of Spark, so that they can be read by their names."""

    name: str | None = None
    """The catalog: `spark_catalog` for the one of the session, which is a Hive metastore or Glue by settings in
    `spark.conf`, or another one that `spark.conf` has as `spark.sql.catalog.NAME`. null: no table is registered."""
    database: Annotated[str, Doc(example="lake_{db}", only_with=_WITH)] = "{db}"
    """The database there of a table. `{db}` and `{table}` stand for the source's names, in lower case, with `_` for
    every character but `a-z`, `0-9` and `_`."""
    table: Annotated[str, Doc(example="{db}_{table}", only_with=_WITH)] = "{table}"
    """The name there of a table, in the same way."""
    names: Annotated[dict[str, str], Doc(example={"shop.Orders": "orders_old"}, only_with=_WITH)] = Field(
        default_factory=dict
    )
    """Names there of single tables, by `db.table`, where `table` would give two tables one name."""
    managed: Annotated[bool, Doc(only_with=_WITH)] = False
    """Whether the catalog owns the files: `DROP TABLE` in the catalog then deletes them. Otherwise the tables are
    external, and `DROP TABLE` removes a name only."""

    @field_validator("name")
    @classmethod
    def _name(cls, name: str | None) -> str | None:
        if name is not None and not _CATALOG.fullmatch(name):
            raise ValueError("is not the name of a catalog; use letters, digits and underscores")
        return name

    @field_validator("database", "table")
    @classmethod
    def _pattern(cls, pattern: str) -> str:
        if not pattern or not _REST.fullmatch(_PLACEHOLDER.sub("", pattern)):
            raise ValueError("is not a name; use letters, digits and underscores, and {db} and {table}")
        return pattern

    @field_validator("names")
    @classmethod
    def _names(cls, names: dict[str, Any]) -> dict[str, Any]:
        for table, name in names.items():
            if not name or not _REST.fullmatch(name):
                raise ValueError(f"{name!r} of {table} is not a name; use letters, digits and underscores")
        return names

    def _contradictions(self) -> Iterator[str]:
        keys = self.model_fields_set - {"name"}
        if self.name is None and keys:
            yield f"{', '.join(sorted(keys))} has no effect without name; write name: {SESSION_CATALOG}"
        if self.managed and self.name != SESSION_CATALOG:
            yield (
                f"managed is possible in {SESSION_CATALOG} only: other catalogs choose the folders of their tables "
                "themselves; remove it"
            )

    def name_of(self, table: str) -> tuple[str, str]:
        """Returns database and name in the catalog of the source table ``db.table``."""
        db, _, name = table.partition(".")
        table_name = self.names.get(table) or _filled(self.table, db, name)
        return _filled(self.database, db, name), table_name.lower()


def _filled(pattern: str, db: str, table: str) -> str:
    words = {"db": _plain(db), "table": _plain(table)}
    return _PLACEHOLDER.sub(lambda match: words[match[1]], pattern).lower()


def _plain(name: str) -> str:
    return _NOT_PLAIN.sub("_", name.lower())
