"""Random histories of rows on a real server, and what each mode makes of them according to a simple model.

The server is MariaDB, whose commit times follow ``SET timestamp``: so transactions share a commit time, or the clock
goes backwards. Every change writes a new ``n`` and the number of its transaction into ``tx``.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cdc.testing.servers import Server

BEGIN = datetime(2024, 5, 1, 12, tzinfo=UTC)
Key = tuple[Hashable, ...]
Row = tuple[Any, ...]
"""The columns of the key, then n and tx."""


@dataclass
class Version:
    """A row of an ``scd2`` table."""

    row: Row
    valid_from: datetime
    valid_to: datetime | None = None


@dataclass
class Marked:
    """A row of a ``soft_delete`` table."""

    row: Row
    deleted: bool
    time: datetime


@dataclass
class History:
    """One table and its model."""

    name: str
    keys: tuple[str, ...]
    columns: str
    """For CREATE TABLE."""
    draw: Any
    """Returns a random key."""
    state: dict[Key, Row] = field(default_factory=dict)
    versions: dict[Key, list[Version]] = field(default_factory=dict)
    marked: dict[Key, Marked] = field(default_factory=dict)
    _touched: dict[Key, Row | None] = field(default_factory=dict)

    def put(self, key: Key, row: Row, time: datetime) -> None:
        self.state[key] = self._touched[key] = row
        self.marked[key] = Marked(row, False, time)

    def remove(self, key: Key, time: datetime) -> None:
        row = self.state.pop(key)
        self._touched[key] = None
        self.marked[key] = Marked(row, True, time)

    def commit(self, time: datetime) -> None:
        """Only the last state of each key counts."""
        for key, row in self._touched.items():
            versions = self.versions.setdefault(key, [])
            last = versions[-1] if versions else None
            if last is not None:
                time_here = max(time, last.valid_to or last.valid_from)
                if last.valid_to is None:
                    last.valid_to = time_here
            else:
                time_here = time
            if row is not None:
                versions.append(Version(row, time_here))
        self._touched.clear()


def tables(prefix: str) -> list[History]:
    """Returns tables with a number, with two columns and with a column that is no primary key."""
    words = ["a", "A", "b ", "b", "é", ""]
    return [
        History(f"{prefix}_one", ("id",), "id INT PRIMARY KEY", lambda rng: (rng.randrange(12),)),
        History(
            f"{prefix}_two",
            ("a", "b"),
            "a BIGINT UNSIGNED, b VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin, PRIMARY KEY (a, b)",
            lambda rng: (rng.randrange(3), rng.choice(words)),
        ),
        History(f"{prefix}_plain", ("k",), "k INT NOT NULL", lambda rng: (rng.randrange(6),)),
    ]


class Histories:
    """Runs random transactions on all tables, and keeps their models."""

    def __init__(self, server: Server, database: str, rng: random.Random, histories: list[History]) -> None:
        self._server, self._database, self._rng = server, database, rng
        self.histories = histories
        self._time, self._n, self.tx = BEGIN, 0, 0
        for history in histories:
            server.execute(f"CREATE TABLE {database}.{history.name} ({history.columns}, n INT, tx INT)")

    def run(self, transactions: int) -> None:
        rng = self._rng
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self._database}`")
            for _ in range(transactions):
                self.tx += 1
                self._time += timedelta(seconds=rng.choice((0, 0, 1, 7, -1, -9)))
                cursor.execute("SET timestamp = %s", (self._time.timestamp(),))
                connection.begin()
                for _ in range(rng.choice((1, 1, 2, 5))):
                    self._change(cursor, rng.choice(self.histories))
                connection.commit()
                for history in self.histories:
                    history.commit(self._time)

    def _change(self, cursor: Any, table: History) -> None:
        rng, key = self._rng, table.draw(self._rng)
        where = " AND ".join(f"{name} <=> %s" for name in table.keys)
        self._n += 1
        row = (*key, self._n, self.tx)
        if key not in table.state:
            cursor.execute(f"INSERT INTO {table.name} VALUES ({', '.join(['%s'] * len(row))})", row)
            table.put(key, row, self._time)
            return
        kind = rng.choice(("update", "update", "delete", "move", "again"))
        if kind == "update":
            cursor.execute(f"UPDATE {table.name} SET n = %s, tx = %s WHERE {where}", (self._n, self.tx, *key))
            table.put(key, row, self._time)
        elif kind in ("delete", "again"):
            cursor.execute(f"DELETE FROM {table.name} WHERE {where}", key)
            table.remove(key, self._time)
            if kind == "again":
                cursor.execute(f"INSERT INTO {table.name} VALUES ({', '.join(['%s'] * len(row))})", row)
                table.put(key, row, self._time)
        else:
            to = table.draw(rng)
            if to in table.state:
                return
            changed = ", ".join(f"{name} = %s" for name in table.keys)
            cursor.execute(
                f"UPDATE {table.name} SET {changed}, n = %s, tx = %s WHERE {where}", (*to, self._n, self.tx, *key)
            )
            table.remove(key, self._time)
            table.put(to, (*to, self._n, self.tx), self._time)
