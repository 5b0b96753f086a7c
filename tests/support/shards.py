"""A destination whose source tables (shards) fill a few Delta tables together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cdc.base.targets import table_path
from cdc.lake import pipeline
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.groups import own_rows, rows_of

Database = Callable[[Server], str]
MODES = "lake.marked: {mode: soft_delete}, lake.history: {mode: scd2}, lake.log: {mode: append}"
KINDS = ("mirror", "marked", "history", "log")


class Shards(Loop):
    """Several databases of one server, each with a few tables of each kind; those of a kind go into one Delta table."""

    def __init__(
        self,
        folder: Path,
        server: Server,
        database: Database,
        *,
        databases: int = 2,
        tables: int = 2,
        kinds: Iterable[str] = KINDS,
        columns: str = "v INT, note VARCHAR(20)",
        **settings: str,
    ) -> None:
        self.databases, self.kinds = [database(server) for _ in range(databases)], tuple(kinds)
        stem = re.sub(r"_0_\w{8}$", "", self.databases[0])
        self.names = {
            kind: [f"{db}.{kind}_{number}" for db in self.databases for number in range(tables)] for kind in self.kinds
        }
        for name in self.all_names:
            server.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, {columns})")
        route = f"route: {{'{stem}_\\d_\\w{{8}}\\.([a-z]+)_\\d+': 'lake.\\1'}}"
        settings = {"overrides": MODES, "start": "now", "tables": route, **settings}
        super().__init__(folder, server, self.databases[0], **settings)
        self.edit(f"['{self.db}\\..*']", f"['{stem}_\\d_\\w{{8}}\\..*']")

    @property
    def all_names(self) -> list[str]:
        return [name for names in self.names.values() for name in names]

    def path(self, table: str) -> Path:
        return Path(table_path(self.config.apply.target, "lake", table))

    def fill(self, rows: int = 20) -> None:
        values = ", ".join(f"({number}, {number}, 'begun')" for number in range(rows))
        self.sql(*[f"INSERT INTO {name} VALUES {values}" for name in self.all_names])

    def level(self) -> None:
        self.capture()
        self.apply_all()

    def source_rows(self, name: str) -> list[dict[str, Any]]:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(f"SELECT * FROM {name}")
            names = [column[0] for column in cursor.description]
            return sorted((dict(zip(names, row, strict=True)) for row in cursor.fetchall()), key=repr)

    def columns_of(self, name: str) -> list[str]:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {name} LIMIT 0")
            return [column[0] for column in cursor.description]

    def require_union(self, *kinds: str, besides: Iterable[str] = ()) -> None:
        """Checks that the Delta tables are what a UNION ALL of their shards is. ``besides``: names at the source whose
        rows may stay although they have no table any more."""
        for kind in kinds or self.kinds:
            rows = rows_of(self, kind)
            for name in self.names[kind]:
                assert own_rows(rows, name, self.columns_of(name)) == self.source_rows(name), name
            present = [row for row in rows if not row.get("_deleted") and row.get("_current") is not False]
            if kind != "log":
                assert {row["_source"] for row in present} <= {*self.names[kind], *besides}, kind

    def require_proved(self) -> None:
        report = pipeline.verify(self.config, None, wait_s=10)
        assert report.state == "proved", report.document()
