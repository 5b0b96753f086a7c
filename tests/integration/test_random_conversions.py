"""Random ALTERs of random columns, in strict sessions and in others, through the whole loop: Delta equals SELECT
afterwards, or the table is parked by a sentence that names the statement."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from cdc.testing.servers import Server
from tests.support.ddl_conversions import VALUES
from tests.support.ddl_corpus import STRICT, Case, Table
from tests.support.ddl_loop import CorpusRun, counts

SEEDS = int(os.environ.get("TOWPATH_CONVERSION_SEEDS") or 1)
"""The number of destinations, of CASES tables each."""
CASES = 30
COLUMNS = 2
TYPES = {
    kind: tuple(value for value in values if "70000" not in value and "65535" not in value)
    for kind, values in VALUES.items()
    if not kind.startswith(("GEOMETRY", "POINT", "LONG", "MEDIUMTEXT", "DECIMAL(4", "DECIMAL(50", "DECIMAL(6"))
}
"""The types that have room in a row beside others, and that Delta shows as SELECT does, with values."""


def random_case(rng: random.Random, number: int) -> Case:
    """A table with rows, and statements that give its columns other types and names."""
    kinds = rng.choices(list(TYPES), k=COLUMNS)
    names = [f"c{n}" for n in range(COLUMNS)]
    columns = ", ".join(f"{name} {kind} NULL" for name, kind in zip(names, kinds, strict=True))
    rows = [
        ", ".join([str(key), *("NULL" if rng.random() < 0.15 else rng.choice(TYPES[kind]) for kind in kinds)])
        for key in range(1, rng.randint(2, 6))
    ]
    statements = []
    for step in range(rng.randint(1, 2)):
        clauses = []
        for at in rng.sample(range(COLUMNS), rng.randint(1, 2)):
            kind = rng.choice(_alike(kinds[at], rng))
            null = rng.choice(["NULL", "NULL", "NOT NULL"]) if "TIMESTAMP" not in kind else ""
            new = names[at] if rng.random() < 0.7 else f"d{number}_{step}_{at}"
            clauses.append(f"CHANGE {names[at]} {new} {kind} {null}")
            names[at], kinds[at] = new, kind
        statements.append(f"ALTER TABLE t {', '.join(clauses)}")
    create = f"CREATE TABLE t (id INT PRIMARY KEY, {columns}) DEFAULT CHARSET = utf8mb4"
    modes = STRICT if rng.random() < 0.5 else ("NO_ENGINE_SUBSTITUTION",)
    return Case("random", number, "random", tuple(statements), (Table("t", create, tuple(rows)),), (), modes)


def _alike(kind: str, rng: random.Random) -> list[str]:
    """Types that a person may turn this one into: mostly those of the same family."""
    families = [
        [column_type for column_type in TYPES if any(word in column_type for word in words)]
        for words in (("INT", "DECIMAL", "FLOAT", "DOUBLE", "BIT"), ("CHAR", "TEXT", "ENUM", "SET"), ("BINARY", "BLOB"),
                      ("DATE", "TIME", "YEAR"))
    ]  # fmt: skip
    if rng.random() < 0.25:
        return list(TYPES)
    return next((family for family in families if kind in family), list(TYPES))


@pytest.mark.timeout(14400)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.long) for kind in ("mariadb11", "mysql9", "mariadb10", "mysql56")],
)
def test_delta_equals_select_or_the_table_is_parked(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    equal = 0
    for number in range(SEEDS):
        rng = random.Random(f"{seed} {number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        run = CorpusRun(folder, server, [random_case(rng, n) for n in range(CASES)], {})
        run.run()
        outcomes = run.settle()
        print(kind, number, counts(outcomes), flush=True)
        wrong = [outcome for outcome in outcomes if outcome.kind == "different"]
        assert not wrong, "\n".join(
            f"{outcome.case.modes} {outcome.case.tables} {outcome.case.sql}: {outcome.details}" for outcome in wrong
        )
        equal += sum(outcome.kind == "equal" for outcome in outcomes)
    assert equal > SEEDS
