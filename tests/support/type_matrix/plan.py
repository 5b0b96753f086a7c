"""Builds the tables of the matrix for a server, with every type and character set of its catalog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import pymysql

from cdc.base.errors import UsageError
from tests.support.type_matrix import numbers, special, temporal, texts
from tests.support.type_matrix.catalog import Catalog
from tests.support.type_matrix.column import Column, Table
from tests.support.type_matrix.texts import FEATURES, Repertoire

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

MAX_COLUMNS = 200
"""Columns per table. Fewer and wider tables are faster, since each costs the pipeline seconds."""
MAX_ROW_BYTES = 60_000
"""Bytes per row without BLOBs and TEXTs. The servers' limit is 65,535."""
MAX_PAGE_BYTES = 7500
"""Bytes per row that InnoDB keeps in a page. Its limit is 8,126."""


@dataclass(frozen=True)
class _Server:
    """A server's limits that families of columns depend on."""

    catalog: Catalog

    @property
    def max_scale(self) -> int:
        return 38 if self.catalog.is_mariadb else 30

    @property
    def last_timestamp(self) -> str:
        unsigned = self.catalog.is_mariadb and self.catalog.number >= (11, 5)
        return "2106-02-07 06:28:15" if unsigned else "2038-01-19 03:14:07"

    @property
    def is_new_mysql(self) -> bool:
        return not self.catalog.is_mariadb and self.catalog.number >= (8, 0)


_Family = Callable[[_Server], list[Column]]


def _each(names: str, columns_of: Callable[[str, _Server], list[Column]]) -> dict[str, _Family]:
    """Returns one family for several data types, whose names it receives."""
    return {name: partial(columns_of, name) for name in names.split()}


_FAMILIES: dict[str, _Family] = {
    **_each("tinyint smallint mediumint int bigint", lambda name, _: numbers.integers(name)),
    "decimal": lambda server: numbers.decimals(server.max_scale),
    "float": lambda _: numbers.floats(),
    "double": lambda _: numbers.doubles(),
    "bit": lambda _: numbers.bits(),
    "year": lambda server: numbers.years(two_digits=server.catalog.is_mariadb),
    "date": lambda _: temporal.dates(),
    "datetime": lambda _: temporal.datetimes(),
    "timestamp": lambda server: temporal.timestamps(server.last_timestamp),
    "time": lambda _: temporal.times(),
    "binary": lambda _: special.binaries(),
    "varbinary": lambda _: special.varbinaries(),
    **_each("tinyblob blob mediumblob longblob", lambda name, _: special.blobs(name.upper())),
    "json": lambda server: special.json_documents(casts=server.catalog.release >= (8, 0, 22)),
    **_each(
        "geometry point linestring polygon multipoint multilinestring multipolygon geometrycollection geomcollection",
        lambda name, server: special.geometries(
            name,
            with_srid=server.is_new_mysql,
            empty="()" if not server.catalog.is_mariadb and server.catalog.number == (5, 7) else " EMPTY",
        ),
    ),
    "vector": lambda server: special.vectors(fixed=server.catalog.is_mariadb),
    **_each("uuid inet4 inet6", lambda name, _: special.addresses(name)),
}
"""Columns for each data type. Those of texts are in ``texts.BY_CHARSET``."""


def tables(connection: Connection, catalog: Catalog, *, text_step: int = 1) -> list[Table]:
    """Returns all tables for a server; ``text_step``: with each so manieth column of text only. Raises UsageError for a
    type of the server that has no edge values here."""
    without = [name for name in catalog.types if name not in _FAMILIES and name not in texts.BY_CHARSET]
    if without:
        raise UsageError(
            f"the server has types without edge values in the matrix: {', '.join(without)}",
            remedy="Add them to tests.support.type_matrix.",
        )
    server = _Server(catalog)
    columns = [column for name in catalog.types if name in _FAMILIES for column in _FAMILIES[name](server)]
    if "JSON" in catalog.types.get("longtext", ()):
        columns += special.json_texts()
    columns += _of_texts(connection, catalog)[::text_step]
    columns += _of_features(connection, catalog)
    return _packed([_with_null(column) for column in columns])


def _of_texts(connection: Connection, catalog: Catalog) -> list[Column]:
    columns = []
    old = not catalog.is_mariadb and catalog.number < (8, 0)
    # In the character set binary, CHAR is BINARY and so on, but ENUM and SET keep their types.
    charsets = {name: width for name, width in catalog.charsets.items() if name != "binary"}
    for repertoire in texts.repertoires(connection, charsets):
        for name in catalog.types:
            if name in texts.BY_CHARSET:
                members = old and name in ("enum", "set")
                text_columns = texts.BY_CHARSET[name](repertoire.below_10000() if members else repertoire)
                columns += (
                    [texts.garbled(c) for c in text_columns]
                    if old and name == "set" and repertoire.is_wide
                    else text_columns
                )
        columns += texts.longest(repertoire)
    plain = Repertoire("utf8mb4", 4, "abcdé€😀", b"")
    columns += texts.sizes_of_enum(plain) + texts.sizes_of_set(plain)
    in_bytes = Repertoire("binary", 1, "abcdefgh", b"")
    return columns + texts.enums(in_bytes) + texts.sets(in_bytes)


def _of_features(connection: Connection, catalog: Catalog) -> list[Column]:
    """Returns columns with features instead of further types, as far as the server supports them."""
    columns = [replace(column, group=FEATURES) for column in special.odd_names()]
    # MariaDB 11.8.9 leaves generated columns out of UPDATE and DELETE; tests/servers/decode/test_promises.py shows it.
    generated = [] if catalog.is_mariadb and catalog.number >= (11, 8) else [special.generated()]
    for feature_columns in (special.compressed(), *generated, special.invisible()):
        if accepts(connection, feature_columns[0].sql):
            columns += [replace(column, group=FEATURES) for column in feature_columns]
    if catalog.is_mariadb:
        columns += temporal.old_storage()
    return columns


def accepts(connection: Connection, sql: str) -> bool:
    """Whether the server accepts this column declaration."""
    with connection.cursor() as cursor:
        try:
            cursor.execute(f"CREATE TEMPORARY TABLE tried (id INT, other INT, v {sql})")
        except pymysql.MySQLError:
            return False
        cursor.execute("DROP TEMPORARY TABLE tried")
    return True


def _with_null(column: Column) -> Column:
    return replace(column, values=(*column.values, "NULL")) if column.written else column


def _packed(columns: list[Column]) -> list[Table]:
    """Packs columns into few tables. Each has columns of one group with similar numbers of values."""
    tables: list[Table] = []
    for group in dict.fromkeys(column.group for column in columns):
        mine = sorted((c for c in columns if c.group == group), key=lambda column: len(column.values))
        part: list[Column] = []
        for column in mine:
            if part and not _fit([*part, column]):
                tables.append(_table(len(tables), part, group))
                part = []
            part.append(column)
        tables.append(_table(len(tables), part, group))
    return tables


def _fit(columns: list[Column]) -> bool:
    if len(columns) > MAX_COLUMNS or sum(column.size_bytes for column in columns) > MAX_ROW_BYTES:
        return False
    return sum(40 if c.size_bytes > 1020 else c.size_bytes for c in columns) <= MAX_PAGE_BYTES


def _table(number: int, columns: list[Column], group: str) -> Table:
    named = tuple(replace(column, name=column.name or f"c{n}") for n, column in enumerate(columns))
    return Table(f"m{number:02d}", named, group)
