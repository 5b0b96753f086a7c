"""An application that changes its tables: random DML and DDL over tables of every mode, by a seed.

Every table has an ``id``, which is unique, is never altered, and belongs to its primary key. Everything else may
change: columns, types, keys, names, and whole tables. Values are drawn from what ``information_schema`` shows at that
moment, so the workload needs no model of its own. A statement that the server refuses is a step that does nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from typing import Any

import pymysql

from cdc.testing.servers import Server

MODES = {
    "mirror": "upsert",
    "other": "upsert",
    "log": "append",
    "marked": "soft_delete",
    "history": "scd2",
}
"""The tables of the beginning, each with its mode."""
_IDS = 60
_DDL = ("ALTER ", "CREATE ", "DROP ", "RENAME ", "TRUNCATE ", "OPTIMIZE ", "ANALYZE ")
_TYPES = (
    "INT",
    "BIGINT",
    "SMALLINT",
    "VARCHAR(12)",
    "VARCHAR(40)",
    "CHAR(8)",
    "DECIMAL(10,2)",
    "DECIMAL(14,4)",
    "DATETIME",
    "DATETIME(3)",
    "DATE",
    "DOUBLE",
    "TEXT",
    "ENUM('red','green','blue')",
    "VARBINARY(10)",
    "TIMESTAMP NULL",
    "TINYINT UNSIGNED",
    "BIGINT UNSIGNED",
    "FLOAT",
    "YEAR",
    "TIME",
    "JSON",
    "BIT(5)",
    "SET('x','y','z')",
    "BLOB",
)
_PLAIN = {
    "mirror": "at DATETIME(3)",
    "other": "day DATE",
    "log": "at TIMESTAMP(3) NULL",
    "marked": "price DOUBLE",
    "history": "at DATETIME",
}
"""A column of each table of the beginning that not all of them have: Delta knows types that a table must be prepared
for."""
_DEFAULTS = (
    ("VARBINARY", "'ab'"),
    ("DECIMAL", "1.50"),
    ("DATE", "'2024-02-29'"),
    ("TIMESTAMP", "NULL"),
    ("TIME", "'01:02:03'"),
    ("TINYINT", "200"),
    ("BIT", "b'101'"),
    ("YEAR", "2024"),
    ("BIGINT", "8"),
    ("INT", "7"),
    ("SMALLINT", "9"),
    ("SET", "'x,z'"),
    ("ENUM", "'green'"),
    ("DOUBLE", "2.5"),
    ("FLOAT", "2.5"),
    ("VARCHAR", "'new'"),
    ("CHAR", "'nw'"),
)
"""Defaults by the beginnings of types; the others have none."""
_WORDS = ("", "a", "Ångström", "naïve ☂", "12", "red", "tram", "x y", "ZZ")


class SchemaWorkload:
    """Random steps in one database. ``steps`` gets each statement."""

    def __init__(self, server: Server, database: str, rng: random.Random, steps: list[str]) -> None:
        self.server, self.database, self._rng, self._steps = server, database, rng, steps
        self._names = 0
        self.before_ddl: Callable[[], None] = lambda: None
        """Called before each DDL statement."""
        charset = "CHARACTER SET utf8mb4"
        server.execute(
            f"ALTER DATABASE `{database}` {charset}",
            *[
                f"CREATE TABLE `{database}`.`{name}` (id INT NOT NULL, k INT NOT NULL DEFAULT 0, v BIGINT,"
                f" word VARCHAR(20), amount DECIMAL(10,2), {_PLAIN[name]}, PRIMARY KEY (id))"
                for name in MODES
            ],
        )

    @property
    def has_rename_column(self) -> bool:
        return self.server.kind.name != "mysql56"

    def tables(self) -> list[str]:
        """Returns the tables that the source has."""
        return sorted(row[0] for row in self._query("SHOW TABLES"))

    def columns(self, table: str) -> list[dict[str, Any]]:
        """Returns the columns of a table, in order."""
        rows = self._query(
            "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COLUMN_KEY, CHARACTER_MAXIMUM_LENGTH "
            f"FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = '{self.database}' AND TABLE_NAME = '{table}' "
            "ORDER BY ORDINAL_POSITION"
        )
        names = ("name", "kind", "type", "nullable", "key", "length")
        return [
            dict(zip(names, (str(v).lower() if i == 1 else v for i, v in enumerate(row)), strict=True)) for row in rows
        ]

    def run(self, steps: int, ddl: float = 0.25) -> None:
        """Makes this many steps, a share of which is DDL."""
        for _ in range(steps):
            try:
                if self._rng.random() < ddl:
                    self._change_schema()
                else:
                    self._change_rows()
            except pymysql.MySQLError as error:
                self._steps.append(f"    … the server refuses: {error.args[0]}")

    def touch(self, table: str) -> None:
        """Updates every row of a table."""
        self._execute(f"UPDATE `{table}` SET k = k + 1")

    def delete(self, table: str, ids: Iterable[int]) -> None:
        """Deletes the rows with these ids."""
        for row_id in sorted(ids):
            self._execute(f"DELETE FROM `{table}` WHERE id = {row_id}")

    # ------------------------------------------------------------ rows

    def _change_rows(self) -> None:
        rng = self._rng
        statements: list[str] = []
        tables = self.tables()
        for _ in range(rng.choice((1, 1, 2, 5))):
            if not tables:
                return
            table = rng.choice(tables)
            columns = self.columns(table)
            kind = rng.choice(("insert", "insert", "insert", "update", "range", "move", "delete", "replace", "again"))
            key, other = rng.randrange(_IDS), rng.randrange(_IDS)
            if kind in ("insert", "replace"):
                verb = "REPLACE" if kind == "replace" else "INSERT IGNORE"
                statements.append(f"{verb} INTO `{table}` VALUES ({self._row(columns, key)})")
            elif kind == "again":  # a deleted row that comes back at once
                statements.append(f"DELETE FROM `{table}` WHERE id = {key}")
                statements.append(f"INSERT INTO `{table}` VALUES ({self._row(columns, key)})")
            elif kind == "delete":
                statements.append(f"DELETE FROM `{table}` WHERE id BETWEEN {key} AND {key + rng.randrange(3)}")
            elif kind == "move":
                statements.append(f"UPDATE IGNORE `{table}` SET id = {other} WHERE id = {key}")
            else:
                where = f"id = {key}" if kind == "update" else f"id BETWEEN {key} AND {key + 10}"
                column = rng.choice([c for c in columns if c["name"] != "id"] or columns)
                if column["name"] != "id":
                    statements.append(
                        f"UPDATE IGNORE `{table}` SET `{column['name']}` = {self._value(column)} WHERE {where}"
                    )
        self._execute(*statements, commit=rng.random() > 0.05)

    def _row(self, columns: list[dict[str, Any]], key: int) -> str:
        return ", ".join(str(key) if column["name"] == "id" else self._value(column) for column in columns)

    def _value(self, column: dict[str, Any]) -> str:
        rng, kind = self._rng, column["kind"]
        if column["nullable"] == "YES" and rng.random() < 0.15:
            return "NULL"
        if kind in ("int", "bigint", "smallint"):
            return str(rng.choice((0, -1, rng.randrange(100), rng.randrange(30_000))))
        if kind in ("tinyint", "bit", "year"):
            return str(rng.randrange(1970, 2150) if kind == "year" else rng.randrange(32))
        if kind == "float":
            return str(rng.randrange(-999, 999) / 8)
        if kind == "time":
            return f"'{rng.choice(('', '-'))}{rng.randrange(10, 800)}:01:0{rng.randrange(10)}'"
        if kind == "json":
            return f"""'{{"a": [{rng.randrange(100)}, null, "{rng.choice("xyz")}"]}}'"""
        if kind == "set":
            return rng.choice(("''", "'x'", "'y,z'"))
        if kind == "decimal":
            return f"{rng.randrange(-99_999, 99_999)}.{rng.randrange(100):02}"
        if kind == "double":
            return repr(rng.choice((0.0, 1.5, -2.25, rng.random() * 1000)))
        if kind == "date":
            return f"'20{rng.randrange(10, 40)}-0{rng.randrange(1, 10)}-1{rng.randrange(10)}'"
        if kind in ("datetime", "timestamp"):
            return (
                f"'20{rng.randrange(10, 37)}-0{rng.randrange(1, 10)}-1{rng.randrange(10)} 0{rng.randrange(10)}:11:12'"
            )
        if kind == "enum":
            members: list[str] = re.findall(r"'[^']*'", str(column["type"]))
            return rng.choice(members)
        if kind in ("varbinary", "blob"):
            return f"x'{rng.getrandbits(32):08x}'"
        if rng.random() < 0.4:
            return f"'{rng.randrange(1000)}'"
        return f"'{rng.choice(_WORDS)[: int(column['length'] or 8)]}'"

    # ------------------------------------------------------------ definitions

    def _change_schema(self) -> None:
        tables = self.tables()
        kinds = (
            [self._add] * 4 + [self._drop] * 2 + [self._rename_column] * 2 + [self._modify] * 3 + [self._key, self._several]
            + [self._truncate, self._swap, self._ghost, self._recreate, self._new_table, self._rename_table, self._no_effect]
        )  # fmt: skip
        if not tables:
            self._new_table("")
            return
        self._rng.choice(kinds)(self._rng.choice(tables))

    def _fresh(self, stem: str = "c") -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def _others(self, table: str) -> list[dict[str, Any]]:
        return [
            column for column in self.columns(table) if column["key"] != "PRI" and column["name"] not in ("id", "k")
        ]

    def _place(self, table: str) -> str:
        draw = self._rng.random()
        if draw < 0.15:
            return " FIRST"
        return f" AFTER `{self._rng.choice(self.columns(table))['name']}`" if draw < 0.4 else ""

    def _definition(self) -> str:
        kind = self._rng.choice(_TYPES)
        default = next((value for begin, value in _DEFAULTS if kind.startswith(begin)), None)
        if self._rng.random() < 0.5 or default is None:
            return kind
        null = "" if default == "NULL" else self._rng.choice(("", " NOT NULL"))
        return f"{kind}{null} DEFAULT {default}" if self._rng.random() < 0.8 else f"{kind}{null}"

    def _add(self, table: str) -> None:
        self._execute(f"ALTER TABLE `{table}` ADD COLUMN `{self._fresh()}` {self._definition()}{self._place(table)}")

    def _drop(self, table: str) -> None:
        if others := self._others(table):
            self._execute(f"ALTER TABLE `{table}` DROP COLUMN `{self._rng.choice(others)['name']}`")

    def _rename_column(self, table: str) -> None:
        if not (others := self._others(table)):
            return
        column, new = self._rng.choice(others), self._fresh()
        if self.has_rename_column and self._rng.random() < 0.6:
            self._execute(f"ALTER TABLE `{table}` RENAME COLUMN `{column['name']}` TO `{new}`")
        else:
            kind = column["type"] if self._rng.random() < 0.6 else self._rng.choice(_TYPES)
            self._execute(f"ALTER TABLE `{table}` CHANGE `{column['name']}` `{new}` {kind}{self._place(table)}")

    def _modify(self, table: str) -> None:
        if not (others := self._others(table)):
            return
        column, kind = self._rng.choice(others), None
        if column["kind"] == "int":
            kind = self._rng.choice(("BIGINT", "VARCHAR(40)", "INT NOT NULL"))
        elif column["kind"] in ("varchar", "char"):
            kind = self._rng.choice(("VARCHAR(60)", "TEXT", "VARCHAR(20)"))
        elif column["kind"] == "decimal":
            kind = self._rng.choice(("DECIMAL(16,4)", "DOUBLE", "DECIMAL(12,2)"))
        elif column["kind"] == "enum":
            kind = "ENUM('red','green','blue','white')"
        kind = kind or self._rng.choice((str(column["type"]), self._rng.choice(_TYPES)))
        self._execute(f"ALTER TABLE `{table}` MODIFY `{column['name']}` {kind}{self._place(table)}")

    def _key(self, table: str) -> None:
        columns = self.columns(table)
        if not any(column["name"] == "k" for column in columns):
            return
        now = [column["name"] for column in columns if column["key"] == "PRI"]
        wanted = "id" if "k" in now else self._rng.choice(("id, k", "k, id"))
        self._execute(f"ALTER TABLE `{table}` DROP PRIMARY KEY, ADD PRIMARY KEY ({wanted})")

    def _several(self, table: str) -> None:
        if others := self._others(table):
            gone, new, more = self._rng.choice(others)["name"], self._fresh(), self._fresh()
            self._execute(
                f"ALTER TABLE `{table}` ADD `{new}` INT DEFAULT 3 AFTER id, DROP `{gone}`, ADD COLUMN (`{more}` VARCHAR(9))"
            )

    def _truncate(self, table: str) -> None:
        self._execute(f"TRUNCATE TABLE `{table}`")

    def _no_effect(self, table: str) -> None:
        name = self._fresh("i")
        self._execute(
            self._rng.choice(
                (
                    f"ALTER TABLE `{table}` ADD INDEX {name} (k)",
                    f"CREATE INDEX {name} ON `{table}` (k, id)",
                    f"ALTER TABLE `{table}` COMMENT 'words', ALGORITHM=COPY",
                    f"ALTER TABLE `{table}` ENGINE=InnoDB",
                    f"OPTIMIZE TABLE `{table}`",
                    f"ANALYZE TABLE `{table}`",
                )
            )
        )

    def _swap(self, table: str) -> None:
        other = self._rng.choice(self.tables())
        if other != table:
            self._execute(f"RENAME TABLE `{table}` TO aside, `{other}` TO `{table}`, aside TO `{other}`")

    def _rename_table(self, table: str) -> None:
        if table not in MODES:
            self._execute(f"RENAME TABLE `{table}` TO `{self._fresh('extra')}`")
            return
        away = self._fresh("away")
        self._execute(f"ALTER TABLE `{table}` RENAME TO `{away}`")
        self._change_rows()
        self._execute(f"RENAME TABLE `{away}` TO `{table}`")

    def _ghost(self, table: str) -> None:
        """Changes a table as gh-ost does: a copy with another definition is filled, follows, and is exchanged with the
        table."""
        copy, gone, new = f"_{table}_gho", f"_{table}_del", self._fresh()
        names = [column["name"] for column in self.columns(table)]
        listed = ", ".join(f"`{name}`" for name in names)
        self._execute(
            f"DROP TABLE IF EXISTS `{copy}`",
            f"CREATE TABLE `{copy}` LIKE `{table}`",
            f"ALTER TABLE `{copy}` ADD COLUMN `{new}` {self._definition()}",
            f"INSERT IGNORE INTO `{copy}` ({listed}) SELECT {listed} FROM `{table}`",
        )
        if self._rng.random() < 0.5:
            key = self._rng.randrange(_IDS)
            self._execute(
                f"UPDATE `{table}` SET k = k + 1 WHERE id = {key}", f"UPDATE `{copy}` SET k = k + 1 WHERE id = {key}"
            )
        self._execute(f"RENAME TABLE `{table}` TO `{gone}`, `{copy}` TO `{table}`")
        self._execute(f"DROP TABLE IF EXISTS `{gone}`")

    def _recreate(self, table: str) -> None:
        self._execute(f"DROP TABLE `{table}`")
        if table in MODES:
            columns = ", ".join(f"`{self._fresh()}` {self._definition()}" for _ in range(self._rng.randrange(1, 4)))
            self._execute(f"CREATE TABLE `{table}` (id INT PRIMARY KEY, k INT NOT NULL DEFAULT 0, {columns})")

    def _new_table(self, table: str) -> None:
        if len(self.tables()) > 7:
            return
        name = self._fresh("extra")
        how = self._rng.random()
        if how < 0.4 or not table:
            self._execute(f"CREATE TABLE `{name}` (id INT PRIMARY KEY, k INT NOT NULL DEFAULT 0, note VARCHAR(20))")
        else:
            self._execute(f"CREATE TABLE `{name}` LIKE `{table}`")
            if how < 0.7:
                self._execute(f"INSERT INTO `{name}` SELECT * FROM `{table}`")

    # ------------------------------------------------------------ inside

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self.database}`")
            cursor.execute(sql)
            return list(cursor.fetchall())

    def _execute(self, *statements: str, commit: bool = True) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self.database}`")
            cursor.execute("SET time_zone = '+00:00'")
            if self._rng.random() < 0.2:
                cursor.execute("SET sql_mode = ''")
            connection.autocommit(False)
            for statement in statements:
                if statement.startswith(_DDL):
                    self.before_ddl()
                self._steps.append(f"    {statement}{'' if commit else '  (rolled back)'}")
                cursor.execute(statement)
            if commit:
                connection.commit()
            else:
                connection.rollback()
