"""Random tables without a server: a seed determines a table, and all types and unusual names occur."""

from __future__ import annotations

import re

import pytest

from tests.support.random_tables import Facts, random_table
from tests.support.random_tables.facts import CANDIDATES
from tests.support.random_tables.table import quoted

_CHARSETS = {"utf8mb4": ("\0aé日😀' \\", 4), "latin1": ("\0aé€", 1), "sjis": ("aア日", 2), "ascii": ("ab", 1)}


@pytest.mark.parametrize("kind", ["mysql9", "mysql56", "mariadb11"])
def test_a_seed_determines_a_table(kind: str) -> None:
    facts = Facts(kind, CANDIDATES, _CHARSETS)
    tables = [random_table(seed, facts, f"t{seed}") for seed in range(150)]
    assert tables == [random_table(seed, facts, f"t{seed}") for seed in range(150)]
    assert len({table.create.partition(" (")[2] for table in tables}) > 140
    assert {name for table in tables for name in table.types} == set(CANDIDATES)
    for table in tables:
        assert table.create.startswith(f"CREATE TABLE `{table.name}` (")
        assert "`k` INT NOT NULL" in table.create
        assert table.inserts and table.changes
        assert all(statement.startswith(("UPDATE IGNORE ", "DELETE FROM ")) for statement in table.changes)
    assert any("AS (" in table.create for table in tables) == (kind != "mysql56")
    assert any("INVISIBLE" in table.create for table in tables) == (kind != "mysql56")
    assert any(table.hidden_key for table in tables) == (kind == "mysql9")
    assert any(table.old_times for table in tables) == (kind == "mariadb11")


def test_rows_stay_within_the_servers_limits() -> None:
    facts = Facts("mariadb11", ("VARCHAR", "BINARY", "DECIMAL"), _CHARSETS)
    for seed in range(100):
        create = random_table(seed, facts, "t").create
        lengths = [int(n) for n in re.findall(r"VARCHAR\((\d+)\) CHARACTER SET utf8mb4", create)]
        assert sum(4 * n + 2 for n in lengths) <= 60_000
        assert sum(int(n) for n in re.findall(r" BINARY\((\d+)\)", create)) <= 7_000


def test_names_are_quoted() -> None:
    assert quoted("back`tick") == "`back``tick`"
    facts = Facts("mysql9", ("INT",), _CHARSETS)
    creates = "".join(random_table(seed, facts, "t").create for seed in range(100))
    for name in ("select", "back``tick", 'say "hi"', "日本語", "long" * 16):
        assert f"`{name}` " in creates
