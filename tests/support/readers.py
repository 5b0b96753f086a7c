"""Readers of Delta tables other than Spark: each reads tables of one feature, and says what it finds.

``python -m tests.support.readers`` reads ``{feature: path}`` as JSON from standard input, and writes
``{reader: {feature: {"rows": […]} or {"error": …}}}``, of the readers that are installed. ``make test-readers`` runs it
in an environment of its own (``.venv-readers``), which has DuckDB and Polars beside ``deltalake``.
"""

from __future__ import annotations

import datetime
import decimal
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

Rows = list[list[str | None]]


def text_of(value: Any) -> str | None:
    """Returns a value as text, the same for each reader's own type of it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.datetime):
        moment = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
        return moment.isoformat(" ", "microseconds")
    if isinstance(value, decimal.Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, dict | list):  # a VARIANT
        return json.dumps(value, separators=(",", ":"), default=lambda _: "binary")
    return str(value)


def rows_of(rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Returns rows as texts, in order of their first column, without columns of the layout's own."""
    texts = [[text_of(value) for value in row.values()] for row in rows]
    return sorted(texts, key=lambda row: int(row[0] or 0))


def deltalake_arrow(path: str) -> Rows:
    from deltalake import DeltaTable

    return rows_of(DeltaTable(path).to_pyarrow_table().to_pylist())


def deltalake_query(path: str) -> Rows:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    table = pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t"))
    return rows_of(table.to_pylist())


def polars(path: str) -> Rows:
    import polars as pl

    return rows_of(pl.read_delta(path).to_dicts())


def duckdb(path: str) -> Rows:
    import duckdb as library

    with library.connect() as connection:
        from duckdb_extensions import import_extension

        import_extension("delta", con=connection)
        connection.execute("SET TimeZone = 'UTC'")
        result = connection.execute(f"SELECT * FROM delta_scan('{path}')")
        names = [column[0] for column in result.description]
        return rows_of([dict(zip(names, row, strict=True)) for row in result.fetchall()])


READERS: dict[str, Callable[[str], Rows]] = {
    "deltalake to_pyarrow": deltalake_arrow,
    "deltalake QueryBuilder": deltalake_query,
    "Polars": polars,
    "DuckDB": duckdb,
}
PACKAGES = {
    "deltalake to_pyarrow": "deltalake",
    "deltalake QueryBuilder": "deltalake",
    "Polars": "polars",
    "DuckDB": "duckdb",
}


def read(reader: str, path: str) -> dict[str, Any]:
    """Returns the rows that a reader finds, or the first line of its error."""
    try:
        return {"rows": READERS[reader](path)}
    except BaseException as error:  # noqa: BLE001 - Rust's panics are no Exception
        return {"error": " ".join(str(error).split())[:200]}


def main() -> None:
    tables = json.load(sys.stdin)
    installed = [name for name in READERS if find_spec(PACKAGES[name]) is not None]
    results = {name: {feature: read(name, path) for feature, path in tables.items()} for name in installed}
    json.dump({"found": results, "versions": {name: version(PACKAGES[name]) for name in installed}}, sys.stdout)


if __name__ == "__main__":
    main()
