"""Random ALTER TABLE statements, printed in random ways, with the changes that they make."""

from __future__ import annotations

import random

from cdc.binlog.sql.changes import (
    AddColumn,
    Change,
    ChangeColumn,
    Constant,
    ConvertCharset,
    DropColumn,
    DropPrimaryKey,
    NoEffect,
    Null,
    OldRows,
    RenameColumn,
    SetDefault,
    SetPrimaryKey,
    SetVisible,
)
from cdc.binlog.sql.schemas import ColumnSchema
from cdc.binlog.sql.tokens import word_set

TYPES = (
    ("TINYINT", "tinyint", "tinyint", "5", "5"),
    ("INT UNSIGNED", "int", "int unsigned", "'7'", "7"),
    ("BIGINT(20)", "bigint", "bigint", "-3", "-3"),
    ("BOOL", "tinyint", "tinyint(1)", "TRUE", "1"),
    ("DECIMAL(8, 2)", "decimal", "decimal(8,2)", "1.5", "1.50"),
    ("DOUBLE PRECISION", "double", "double", "0.5", "0.5"),
    ("VARCHAR(30)", "varchar", "varchar(30)", "'it''s, (x'", "it's, (x"),
    ("CHAR(4)", "char", "char(4)", "'ab '", "ab"),
    ("ENUM('a','b,c')", "enum", "enum('a','b,c')", "'b,c'", "b,c"),
    ("SET('x','y')", "set", "set('x','y')", "'y,x'", "x,y"),
    ("DATETIME(3)", "datetime", "datetime(3)", "'2024-01-02 03:04:05'", "2024-01-02 03:04:05.000"),
    ("DATE", "date", "date", "'2024-01-02'", "2024-01-02"),
)
"""Type as it is written, data type, column type on MySQL 9, a default as it is written, and its value."""
_IMPLICIT = {
    "tinyint": "0", "int": "0", "bigint": "0", "decimal": "0.00", "double": "0", "varchar": "", "char": "", "enum": "a",
    "set": "", "datetime": "0000-00-00 00:00:00.000", "date": "0000-00-00",
}  # fmt: skip
_RESERVED = word_set("ADD DROP KEY INDEX CHECK PRIMARY SELECT ORDER TABLE COLUMN")
_HARMLESS = (
    "ADD INDEX i (a)", "ADD UNIQUE KEY (b, c)", "COMMENT = 'DROP COLUMN a, x'", "ENGINE=InnoDB", "ALGORITHM=INPLACE",
    "LOCK = NONE", "DROP KEY k", "ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES t (b) ON DELETE SET NULL", "FORCE",
    "ADD CHECK (a > 0 AND b IN (1, 2))", "RENAME INDEX i TO j", "AUTO_INCREMENT 5", "ROW_FORMAT=DYNAMIC",
)  # fmt: skip


class RandomAlter:
    """Makes clauses of ALTER TABLE for MySQL 9, with the changes that they are."""

    def __init__(
        self, chance: random.Random, table: tuple[str, str], names: tuple[str, ...], *, hides: bool = False
    ) -> None:
        self._chance = chance
        self._table = table
        self._names = names
        self._hides = hides
        """Whether columns become invisible, as on MySQL from 8.0.23 on."""

    def statement(self) -> tuple[str, list[Change]]:
        """A statement with one to four clauses, and its changes."""
        clauses, changes = [], []
        for _ in range(self._chance.randint(1, 4)):
            text, clause_changes = self.clause()
            clauses.append(text)
            changes += clause_changes
        head = self._words("ALTER TABLE") + self._space() + self._name(self._table[1])
        return head + self._space() + f"{self._gap()},{self._gap()}".join(clauses), changes

    def clause(self) -> tuple[str, list[Change]]:
        """One clause, and its changes."""
        kind = self._chance.choice(
            [self._add, self._add, self._drop, self._rename, self._change, self._key, self._default, self._harmless]
            + [self._visible] * self._hides
        )
        return kind()

    def _add(self) -> tuple[str, list[Change]]:
        text, column, old_rows, first, after = self._definition(self._any())
        word = self._chance.choice(["ADD", "ADD COLUMN"])
        return f"{self._words(word)} {text}", [AddColumn(self._table, column, first, after, old_rows)]

    def _drop(self) -> tuple[str, list[Change]]:
        name = self._any()
        return f"{self._words(self._chance.choice(['DROP', 'DROP COLUMN']))} {self._name(name)}", [
            DropColumn(self._table, name)
        ]

    def _rename(self) -> tuple[str, list[Change]]:
        name, to = self._any(), self._any()
        text = f"{self._words('RENAME COLUMN')} {self._name(name)} {self._words('TO')} {self._name(to)}"
        return text, [RenameColumn(self._table, name, to)]

    def _change(self) -> tuple[str, list[Change]]:
        name, to = self._any(), self._any()
        modifies = self._chance.random() < 0.5
        text, column, _, first, after = self._definition(name if modifies else to)
        head = self._words("MODIFY") if modifies else f"{self._words('CHANGE')} {self._name(name)}"
        return f"{head} {text}", [ChangeColumn(self._table, name, column, first, after)]

    def _key(self) -> tuple[str, list[Change]]:
        if self._chance.random() < 0.4:
            return self._words("DROP PRIMARY KEY"), [DropPrimaryKey(self._table)]
        names = tuple(self._chance.sample(self._names, self._chance.randint(1, 2)))
        text = f"{self._words('ADD PRIMARY KEY')} ({', '.join(map(self._name, names))})"
        return text, [SetPrimaryKey(self._table, names)]

    def _default(self) -> tuple[str, list[Change]]:
        name = self._any()
        if self._chance.random() < 0.3:
            text = self._words("CONVERT TO CHARACTER SET") + " utf8mb4"
            return text, [ConvertCharset(self._table, "utf8mb4", None)]
        return f"{self._words('ALTER')} {self._name(name)} {self._words('DROP DEFAULT')}", [
            SetDefault(self._table, name, None)
        ]

    def _visible(self) -> tuple[str, list[Change]]:
        name, visible = self._any(), self._chance.random() < 0.5
        text = f"{self._words('ALTER')} {self._name(name)} {self._words('SET VISIBLE' if visible else 'SET INVISIBLE')}"
        return text, [SetVisible(self._table, name, visible)]

    def _harmless(self) -> tuple[str, list[Change]]:
        return self._chance.choice(_HARMLESS), [NoEffect(self._table)]

    def _definition(self, name: str) -> tuple[str, ColumnSchema, OldRows, bool, str | None]:
        written, data_type, column_type, default, value = self._chance.choice(TYPES)
        null = self._chance.choice(["", "NULL", "NOT NULL"])
        default_clause = self._chance.choice(["", f"DEFAULT {default}", "DEFAULT NULL" if null != "NOT NULL" else ""])
        attributes = [
            word for word in (null, default_clause, self._chance.choice(["", "COMMENT 'NOT NULL, x'"])) if word
        ]
        self._chance.shuffle(attributes)
        first, after = False, None
        place = ""
        if (draw := self._chance.random()) < 0.2:
            first, place = True, " FIRST"
        elif draw < 0.5:
            after = self._any()
            place = f" {self._words('AFTER')} {self._name(after)}"
        old_rows: OldRows
        if default_clause.endswith("NULL") or (not default_clause and null != "NOT NULL"):
            old_rows = Null()
        else:
            old_rows = Constant(value if default_clause else _IMPLICIT[data_type])
        column = ColumnSchema(
            name=name, data_type=data_type, column_type=column_type, nullable=null != "NOT NULL",
            default=value if default_clause and not default_clause.endswith("NULL") else None, extra="", charset=None, collation=None,
        )  # fmt: skip
        text = f"{self._name(name)}{self._space()}{written} {' '.join(attributes)}{place}"
        return text, column, old_rows, first, after

    # --- how it is printed

    def _any(self) -> str:
        return self._chance.choice(self._names)

    def _name(self, name: str) -> str:
        plain = name.isidentifier() and name.isascii() and name.upper() not in _RESERVED
        return name if plain and self._chance.random() < 0.5 else "`" + name.replace("`", "``") + "`"

    def _words(self, text: str) -> str:
        cased = "".join(self._chance.choice((char, char.lower())) for char in text)
        return self._space().join(cased.split(" "))

    def _space(self) -> str:
        return self._chance.choice([" ", "  ", "\n", "\t", " /* DROP COLUMN z */ ", " -- x\n", " # y, z\n", "/**/ "])

    def _gap(self) -> str:
        return self._chance.choice(["", " ", "\n"])
