"""Random tables that refer to one another by foreign keys with actions, and random changes of their rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql
from deltalake import DeltaTable

from cdc.base.targets import table_path
from cdc.config import DestinationConfig
from cdc.testing.servers import Server
from tests.support.ddl_loop import plain

MODES = ("upsert", "soft_delete", "append", "scd2")


def present_rows(config: DestinationConfig, db: str, table: str, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """Returns the rows of a Delta table that the source must have, whatever mode the table has."""
    rows = DeltaTable(table_path(config.apply.target, db, table)).to_pyarrow_table().to_pylist()
    mode = config.table_apply(f"{db}.{table}").mode
    if mode == "soft_delete":
        rows = [row for row in rows if not row["_deleted"]]
    elif mode == "scd2":
        rows = [row for row in rows if row["_current"]]
    elif mode == "append":
        present: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: (row["_seq"], row["_row"])):
            if row["_before"] is not None:
                present.pop(tuple(row["_before"][key] for key in keys), None)
            if not row["_op"].endswith("delete"):
                present[tuple(row[key] for key in keys)] = row
        rows = list(present.values())
    names = [name for name in (rows[0] if rows else ()) if not name.startswith("_")]
    return sorted((tuple(plain(row[name]) for name in names) for row in rows), key=repr)


def selected_rows(server: Server, db: str, table: str) -> list[tuple[Any, ...]]:
    """Returns the rows of the source."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT * FROM `{db}`.`{table}`")
        return sorted((tuple(plain(value) for value in row) for row in cursor.fetchall()), key=repr)


ACTIONS = ("CASCADE", "CASCADE", "SET NULL", "RESTRICT", "NO ACTION")
_NUMBERS = tuple(range(1, 9))
_TEXTS = ("a", "B", "c ", "Dd", "e", "x y", "7", "z-")


@dataclass
class RandomTable:
    """A table: its primary key, a unique column, two columns for keys of each, and a value."""

    name: str
    primary_key: tuple[str, ...]
    kind: str
    """The type of the primary key's columns and of those that refer to it."""
    code: str
    """The type of the unique column and of those that refer to it."""
    references: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """By the columns of a key, separated by commas, the parent and the referenced columns."""

    @property
    def create(self) -> str:
        key = ", ".join(f"{name} {self.kind} NOT NULL" for name in self.primary_key)
        return (
            f"CREATE TABLE {self.name} ({key}, code {self.code} UNIQUE, f INT, g INT, n INT, m INT, "
            f"s VARCHAR(10), w VARCHAR(10), v INT, PRIMARY KEY ({', '.join(self.primary_key)}))"
        )


class RandomRows:
    """Makes tables and changes in a database of a server."""

    def __init__(self, server: Server, database: str, rng: random.Random) -> None:
        self.server, self.database, self.rng = server, database, rng
        self.tables: list[RandomTable] = []
        self.executed = self.refused = 0

    def create(self) -> None:
        """Makes up to five tables and their keys, self-references and cycles among them."""
        rng = self.rng
        for number in range(rng.randint(1, 5)):
            composite = rng.random() < 0.3
            kind = "INT" if composite or rng.random() < 0.7 else "VARCHAR(10)"
            code = rng.choice(("INT", "VARCHAR(10)"))
            key = ("a", "b") if composite else ("id",)
            self.tables.append(RandomTable(f"t{number}", key, kind, code))
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self.database}`")
            for table in self.tables:
                cursor.execute(table.create)
            for number in range(rng.randint(len(self.tables), 2 * len(self.tables) + 1)):
                self._add_key(cursor, number)

    def _add_key(self, cursor: Any, number: int) -> None:
        rng = self.rng
        child, parent = rng.choice(self.tables), rng.choice(self.tables)
        by_code = rng.random() < 0.4
        referenced = ("code",) if by_code else parent.primary_key
        kind = parent.code if by_code else parent.kind
        if len(referenced) == 2:
            columns: tuple[str, ...] = ("f", "g")
        elif kind == "INT":
            own = [name for name in ("a", *child.primary_key) if name in child.primary_key and child.kind == "INT"]
            columns = (rng.choice(["f", "n", "m", *own]),)
        else:
            columns = (rng.choice(["s", "w"]),)
        if ",".join(columns) in child.references or (child is parent and columns[0] in child.primary_key):
            return
        is_key = columns[0] in child.primary_key
        actions = [
            rng.choice([action for action in ACTIONS if not (is_key and action == "SET NULL")]) for _ in range(2)
        ]
        sql = (
            f"ALTER TABLE {child.name} ADD CONSTRAINT k{number} FOREIGN KEY ({', '.join(columns)}) REFERENCES "
            f"{parent.name} ({', '.join(referenced)}) ON DELETE {actions[0]} ON UPDATE {actions[1]}"
        )
        try:
            cursor.execute(sql)
        except pymysql.MySQLError:  # servers differ in what they take
            return
        child.references[",".join(columns)] = parent.name, referenced

    def change(self, transactions: int) -> None:
        """Changes rows. Statements that the server refuses are counted in :attr:`refused`."""
        rng = self.rng
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self.database}`")
            for _ in range(transactions):
                checks = rng.random() > 0.05
                cursor.execute(f"SET foreign_key_checks = {int(checks)}")
                for _ in range(rng.choice((1, 1, 1, 2, 4))):
                    sql = self._statement(cursor)
                    try:
                        cursor.execute(sql)
                        self.executed += 1
                    except pymysql.MySQLError:
                        self.refused += 1
                if rng.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()

    def _statement(self, cursor: Any) -> str:
        rng = self.rng
        table = rng.choice(self.tables)
        roll = rng.random()
        if roll < 0.55:
            values = self._row(cursor, table)
            verb = "REPLACE" if rng.random() < 0.15 else "INSERT"
            listed = ", ".join(values)
            sql = f"{verb} INTO {table.name} ({listed}) VALUES ({', '.join(values.values())})"
            if verb == "INSERT" and rng.random() < 0.2:
                name = rng.choice(list(values))
                sql += f" ON DUPLICATE KEY UPDATE {name} = {values[name]}"
            return sql
        where = self._where(table)
        if roll < 0.75:
            return f"DELETE FROM {table.name}{where}"
        values = self._row(cursor, table)
        names = rng.sample(list(values), rng.choice((1, 1, 2)))
        return f"UPDATE {table.name} SET {', '.join(f'{name} = {values[name]}' for name in names)}{where}"

    def _where(self, table: RandomTable) -> str:
        rng = self.rng
        name = rng.choice(table.primary_key)
        if rng.random() < 0.03:
            return ""
        operator = rng.choice(("=", "=", "=", "<", ">="))
        return f" WHERE {name} {operator} {self._value(table.kind)}"

    def _row(self, cursor: Any, table: RandomTable) -> dict[str, str]:
        rng = self.rng
        values = {name: self._value(table.kind) for name in table.primary_key}
        values["code"] = "NULL" if rng.random() < 0.2 else self._value(table.code)
        values["v"] = str(rng.randint(0, 99))
        for columns, (parent, referenced) in table.references.items():
            names = columns.split(",")
            row = self._any(cursor, parent, referenced) if rng.random() < 0.85 else None
            if row is not None:
                values |= dict(zip(names, row, strict=True))
            else:
                values |= {name: "NULL" for name in names if name not in table.primary_key}
        return values

    def _any(self, cursor: Any, table: str, columns: Sequence[str]) -> list[str] | None:
        cursor.execute(f"SELECT {', '.join(columns)} FROM {table}")
        rows = [row for row in cursor.fetchall() if None not in row]
        return [repr(value) for value in self.rng.choice(rows)] if rows else None

    def _value(self, kind: str) -> str:
        return str(self.rng.choice(_NUMBERS)) if kind == "INT" else repr(self.rng.choice(_TEXTS))
