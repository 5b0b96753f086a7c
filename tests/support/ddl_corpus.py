"""The corpus of DDL statements in tests/ddl/corpus: each with the tables that it runs on and the servers it is for.

A file has a title and cases. A case is a statement, or a mapping: ``sql`` (a statement or a list of them, which run one
after the other), ``table`` (one or a list of ``tables.yaml``; the file's otherwise), ``servers`` (all by default),
``mode`` (the session's sql_mode, added to strict mode; ``lenient`` leaves strict mode out) and ``why`` (a remark).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "ddl" / "corpus"
SERVERS = ("mysql9", "mariadb11", "mariadb10", "mysql56")
_GROUPS = {
    "all": SERVERS,
    "new": ("mysql9", "mariadb11", "mariadb10"),
    "mysql": ("mysql9", "mysql56"),
    "mariadb": ("mariadb11", "mariadb10"),
}
STRICT = ("STRICT_TRANS_TABLES", "NO_ENGINE_SUBSTITUTION")
MODE_BITS = {
    "REAL_AS_FLOAT": 1, "PIPES_AS_CONCAT": 2, "ANSI_QUOTES": 4, "NO_BACKSLASH_ESCAPES": 1 << 20,
    "STRICT_TRANS_TABLES": 1 << 21, "NO_AUTO_VALUE_ON_ZERO": 1 << 19, "NO_ENGINE_SUBSTITUTION": 1 << 30, "ORACLE": 1 << 9,
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table with rows, as SQL."""

    name: str
    create: str
    rows: tuple[str, ...]

    @property
    def statements(self) -> tuple[str, ...]:
        """Returns the statements that create and fill the table, outside strict mode."""
        return (self.create, *(f"INSERT INTO `{self.name}` VALUES ({row})" for row in self.rows))


@dataclass(frozen=True)
class Case:
    """One case of the corpus."""

    origin: str
    """The title of its file."""
    number: int
    """Its number in the file, from 1."""
    file: str
    sql: tuple[str, ...]
    tables: tuple[Table, ...]
    servers: tuple[str, ...]
    modes: tuple[str, ...]

    @property
    def name(self) -> str:
        """A short name for messages, unique in the corpus."""
        return f"{self.file}:{self.number}"

    @property
    def sql_mode(self) -> int:
        """The bits of its sql_mode."""
        return sum(MODE_BITS[mode] for mode in self.modes)

    @property
    def set_mode(self) -> str:
        """The statement that sets its sql_mode."""
        return f"SET SESSION sql_mode = '{','.join(self.modes)}'"


@cache
def tables() -> Mapping[str, Table]:
    """The tables that cases run on."""
    content = yaml.safe_load((FOLDER / "tables.yaml").read_text("utf-8"))
    return {name: Table(name, fields["create"], tuple(fields["rows"])) for name, fields in content.items()}


@cache
def corpus() -> tuple[Case, ...]:
    """All cases, in the order of their files."""
    files = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "tables")
    return tuple(case for path in files for case in _cases(path))


def with_generated_key(case: Case) -> Case:
    """The case over tables with the primary key that MySQL generates, which the server knows by its definition alone.
    A primary key of their own becomes an index. Not for partitioned tables, whose keys need their columns."""
    return replace(case, tables=tuple(replace(table, create=_generated(table.create)) for table in case.tables))


def _generated(create: str) -> str:
    head, _, rest = create.partition("(")
    rest = rest.replace("AUTO_INCREMENT", "").replace("PRIMARY KEY (", "KEY (").replace(" PRIMARY KEY", "")
    return f"{head}(my_row_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT INVISIBLE PRIMARY KEY,{rest}"


def cases_for(server: str) -> list[Case]:
    """The cases that run on a server."""
    return [case for case in corpus() if server in case.servers]


def _cases(path: Path) -> Iterator[Case]:
    content = yaml.safe_load(path.read_text("utf-8"))
    unknown = set(content) - {"title", "table", "cases"}
    assert not unknown, f"{path.name}: {unknown}"
    for number, case in enumerate(content["cases"], 1):
        yield _case(path.stem, content, number, case if isinstance(case, dict) else {"sql": case})


def _case(stem: str, defaults: Mapping[str, Any], number: int, fields: Mapping[str, Any]) -> Case:
    unknown = set(fields) - {"sql", "table", "servers", "mode", "why"}
    assert not unknown, f"{stem}:{number}: {unknown}"
    modes = [mode for mode in str(fields.get("mode", "")).split() if mode != "lenient"]
    strict = ("NO_ENGINE_SUBSTITUTION",) if "lenient" in str(fields.get("mode", "")) else STRICT
    return Case(
        origin=defaults["title"],
        number=number,
        file=stem,
        sql=tuple(sql.strip() for sql in _listed(fields["sql"])),
        tables=tuple(tables()[name] for name in _listed(fields.get("table", defaults.get("table", [])))),
        servers=_servers(str(fields.get("servers", "all"))),
        modes=(*strict, *modes),
    )


def _listed(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value


def _servers(text: str) -> tuple[str, ...]:
    servers = {server for word in text.split() for server in _GROUPS.get(word, (word,))}
    assert servers <= set(SERVERS), text
    return tuple(server for server in SERVERS if server in servers)
