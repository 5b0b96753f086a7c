"""Compares the Delta tables with SELECT, value by value."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from rich.table import Table

from examples.demo.shop import TABLES, Shop

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Comparison:
    """The rows of one table in MySQL and in Delta, both sorted by primary key."""

    table: str
    columns: tuple[str, ...]
    source: list[Row]
    delta: list[Row]
    version: int

    @property
    def equal(self) -> bool:
        return self.source == self.delta

    def first_difference(self) -> tuple[Row | None, Row | None] | None:
        """Returns the first pair of rows that differ: SELECT's and Delta's."""
        for i in range(max(len(self.source), len(self.delta))):
            pair = (
                self.source[i] if i < len(self.source) else None,
                self.delta[i] if i < len(self.delta) else None,
            )
            if pair[0] != pair[1]:
                return pair
        return None

    def sample(self) -> Table:
        """Shows the last row of both sides."""
        shown = Table(title=f"{self.table}: the last row", title_justify="left")
        for heading in ("column", "SELECT", "Delta"):
            shown.add_column(heading, overflow="ellipsis", no_wrap=True)
        for name, ours, theirs in zip(self.columns, self.source[-1], self.delta[-1], strict=True):
            shown.add_row(name, _shown(ours), _shown(theirs))
        return shown


def compare(shop: Shop, lake: Path) -> list[Comparison]:
    """Compares all tables of the shop. Call it when nothing writes to the shop and everything is applied."""
    comparisons: list[Comparison] = []
    with shop.account.connect(shop.name) as connection, connection.cursor() as cursor:
        for table, key in TABLES.items():
            cursor.execute(f"SELECT * FROM `{table}`")
            columns = tuple(d[0] for d in cursor.description)
            at = [columns.index(k) for k in key]
            source = sorted((_plain_row(r) for r in cursor.fetchall()), key=lambda r: [r[i] for i in at])
            delta = DeltaTable(str(lake / shop.name / table))
            reader = QueryBuilder().register("t", delta)  # reads column mapping, which to_pandas() does not
            rows = pa.table(reader.execute("SELECT * FROM t")).to_pylist()
            read = sorted((_plain_row(tuple(r[c] for c in columns)) for r in rows), key=lambda r: [r[i] for i in at])
            comparisons.append(Comparison(table, columns, source, read, delta.version()))
    return comparisons


def verdict(comparisons: list[Comparison]) -> Table:
    """Shows the numbers of rows on both sides, and whether the rows are equal."""
    shown = Table(title="Delta tables compared with SELECT", title_justify="left")
    shown.add_column("table")
    shown.add_column("rows by SELECT", justify="right")
    shown.add_column("rows in Delta", justify="right")
    shown.add_column("Delta version", justify="right")
    shown.add_column("every value")
    for item in comparisons:
        mark = "[green]equal[/green]" if item.equal else "[red]NOT EQUAL[/red]"
        shown.add_row(item.table, str(len(item.source)), str(len(item.delta)), str(item.version), mark)
    return shown


def _plain_row(row: Row) -> Row:
    return tuple(_plain(v) for v in row)


def _plain(value: Any) -> Any:
    """Makes equal values equal in Python: a BIGINT UNSIGNED is a decimal(20,0) in Delta, and a TIMESTAMP has a time zone
    in Delta and none in MySQL's client (both are UTC)."""
    if isinstance(value, Decimal) and value == value.to_integral_value() and value.as_tuple().exponent == 0:
        return int(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.replace(tzinfo=None)
    return value


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    return value.hex() if isinstance(value, bytes) else str(value)
