"""A random table with its changes."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from random import Random

from tests.support.random_tables.facts import Facts
from tests.support.random_tables.types import RandomType, random_type
from tests.support.versions import lacks

_ODD_NAMES = (
    "select", "order", "Group", "two words", "back`tick", "it's", 'say "hi"', "dot.ted", "comma,ed", "ünïcödé",
    "日本語",
    "per%cent", "semi;colon", "slash/\\", "tab\there", "new\nline", "=", "0", "$x", "#hash", "(paren)", "{brace}",
    "long" * 16,
)  # fmt: skip
_ROW_LIMIT, _PAGE_LIMIT = 60_000, 7_000


@dataclass(frozen=True)
class RandomTable:
    """``inserts`` come before the other ``changes``; all of them leave out what a value's type refuses."""

    seed: int
    name: str
    create: str
    inserts: tuple[str, ...]
    changes: tuple[str, ...]
    types: tuple[str, ...]
    """The types of its columns, from :data:`tests.support.random_tables.facts.CANDIDATES`."""
    hidden_key: bool
    """Whether MySQL adds its invisible key ``my_row_id``."""
    old_times: bool
    """Whether MariaDB uses its storage of version 5.3 for times."""


@dataclass(frozen=True)
class _Column:
    name: str
    type: RandomType | None
    """None: generated."""
    nullable: bool
    definition: str

    def literal(self, rng: Random) -> str:
        assert self.type is not None
        return "NULL" if self.nullable and rng.random() < 0.12 else self.type.literal(rng)


def quoted(name: str) -> str:
    """A name between backticks."""
    return "`" + name.replace("`", "``") + "`"


def random_table(seed: int, facts: Facts, name: str) -> RandomTable:
    """The table of a seed; the same server gives the same table. Its column ``k`` numbers the rows."""
    rng = Random(f"{seed} {facts.kind}")
    columns = _columns(rng, facts)
    columns.insert(rng.randint(0, len(columns)), _Column("k", None, False, "`k` INT NOT NULL"))
    key = _key(rng, columns)
    constraints = [f"PRIMARY KEY ({', '.join(quoted(part) for part in key)})"] if key else []
    options = _engine(rng, facts, columns)
    definitions = ", ".join([column.definition for column in columns] + constraints)
    create = f"CREATE TABLE {quoted(name)} ({definitions}){options}"
    own = [column for column in columns if column.type is not None]
    inserts, changes = _statements(rng, quoted(name), own)
    hidden = facts.kind == "mysql9" and not key and rng.random() < 0.5 and not lacks("mysql9", "invisible keys")
    old_times = facts.is_mariadb and rng.random() < 0.2
    types = tuple(column.type.name for column in own if column.type is not None)
    return RandomTable(seed, name, create, inserts, changes, types, hidden, old_times)


def _columns(rng: Random, facts: Facts) -> list[_Column]:
    out: list[_Column] = []
    taken = {"k", "my_row_id"}
    row = page = 0
    for number in range(rng.choice((1, 2, 5, 10, 20, 40, rng.randint(1, 40)))):
        name = _name(rng, number, taken)
        if facts.kind != "mysql56" and rng.random() < 0.06:
            out.append(_Column(name, None, True, f"{quoted(name)} {_generated(rng, facts, out)}"))
            continue
        kind = random_type(rng, facts)
        if row + kind.row_bytes > _ROW_LIMIT or page + kind.page_bytes > _PAGE_LIMIT:
            continue
        row, page = row + kind.row_bytes, page + kind.page_bytes
        nullable = rng.random() < 0.75
        null = "NULL" if nullable else "NOT NULL"
        hidden = facts.kind != "mysql56" and nullable and rng.random() < 0.05
        hidden = hidden and not lacks(facts.kind, "invisible columns")
        out.append(_Column(name, kind, nullable, f"{quoted(name)} {kind.sql} {null}{' INVISIBLE' if hidden else ''}"))
    return out


def _generated(rng: Random, facts: Facts, before: list[_Column]) -> str:
    stored = rng.choice(("VIRTUAL", "STORED"))
    lengths = [c.name for c in before if c.type is not None and c.type.sql.startswith(("VARCHAR", "TEXT", "VARBINARY"))]
    if lengths and rng.random() < 0.5:
        return f"INT AS (OCTET_LENGTH({quoted(rng.choice(lengths))})) {stored}"
    return rng.choice((f"BIGINT AS (`k` * 1000003) {stored}", f"VARCHAR(40) AS (CONCAT('row ', `k`)) {stored}"))


def _name(rng: Random, number: int, taken: set[str]) -> str:
    """Servers compare names without case and accents."""
    base = rng.choice(_ODD_NAMES) if rng.random() < 0.3 else f"c{number}"
    for name in (base, f"{base[:60]}{number}"):
        folded = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c)).casefold()
        if folded not in taken:
            taken.add(folded)
            return name
    raise AssertionError(f"no free name for column {number}")


def _key(rng: Random, columns: list[_Column]) -> list[str]:
    good = [c.name for c in columns if c.type is not None and c.type.in_key and not c.nullable]
    with_other = [rng.choice(good), "k"] if good else ["k"]
    return rng.choice(([], ["k"], ["k"], with_other, with_other[::-1]))


def _engine(rng: Random, facts: Facts, columns: list[_Column]) -> str:
    """MySQL 5.6 keeps 768 bytes of each long value in the page."""
    types = [c.type for c in columns if c.type is not None]
    wide = sum(min(768, t.row_bytes if t.page_bytes < 40 or t.row_bytes > 12 else 768) for t in types)
    if facts.kind == "mysql56" and wide > 7_000:
        return " ENGINE=MyISAM"
    return rng.choice(("", "", "", " ENGINE=MyISAM"))


def _statements(rng: Random, table: str, own: list[_Column]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = ", ".join([*(quoted(c.name) for c in own), "`k`"])
    inserts: list[str] = []
    count = 0
    for _ in range(rng.randint(1, 4)):
        rows = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            count += 1
            rows.append(f"({', '.join([*(c.literal(rng) for c in own), str(count)])})")
        inserts.append(f"INSERT IGNORE INTO {table} ({names}) VALUES {', '.join(rows)}")
    changes: list[str] = []
    for _ in range(rng.randint(1, 5)):
        where = (
            f"WHERE `k` <= {rng.randint(1, count)}" if rng.random() < 0.3 else f"WHERE `k` = {rng.randint(1, count)}"
        )
        if own and rng.random() < 0.75:
            some = rng.sample(own, rng.randint(1, len(own)))
            changes.append(
                f"UPDATE IGNORE {table} SET {', '.join(f'{quoted(c.name)} = {c.literal(rng)}' for c in some)} {where}"
            )
        else:
            changes.append(f"DELETE FROM {table} {where}")
    return tuple(inserts), tuple(changes)
