"""Random tables: our rows against SELECT's, against a slow decoder's, and against mysql-replication's where it is right.

``TOWPATH_FUZZ_TABLES`` says how many tables on all servers together (200); ``TOWPATH_FUZZ_SEED`` where the seeds begin
(0): given alone, only that one. ``make test-fuzz`` runs 10,000.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from cdc.testing.servers import Server
from tests.support.random_tables import ask
from tests.support.servers_decode_fuzz import Tally, differences, play

SERVERS = ("mysql9", "mysql56", "mariadb11", pytest.param("mariadb10", marks=pytest.mark.long))
_TABLES_A_FILE = 10
"""The whole file is searched for the rows of each table."""
_MANY = 50
"""This many random tables have a column of every type."""


def _seeds() -> range:
    first = int(os.environ.get("TOWPATH_FUZZ_SEED") or 0)
    given = os.environ.get("TOWPATH_FUZZ_TABLES")
    if given:
        return range(first, first + -(-int(given) // len(SERVERS)))
    return range(first, first + 1) if "TOWPATH_FUZZ_SEED" in os.environ else range(200 // len(SERVERS))


@pytest.mark.long_on("mysql56", "mariadb10")
@pytest.mark.parametrize("kind", SERVERS)
def test_random_tables(kind: str, request: pytest.FixtureRequest, database: Callable[[Server], str]) -> None:
    server: Server = request.getfixturevalue(kind)
    with server.connect() as connection:
        facts = ask(connection, kind)
    tally = Tally()
    wrong: list[str] = []
    missing = set(facts.types)
    begin = time.monotonic()
    seeds = _seeds()
    for at in range(0, len(seeds), _TABLES_A_FILE):
        numbers = seeds[at : at + _TABLES_A_FILE]
        batch = play(server, facts, database(server), list(numbers))
        wrong += differences(batch, tally)
        missing -= {name for played in batch.tables for name in played.table.types}
        print(
            f"{kind}: seeds {seeds[0]} to {numbers[-1]} of {seeds[-1]}: {tally.changes} changes, {tally.values} values, "
            f"{tally.tables_with_peer} tables with mysql-replication, {len(wrong)} differences, "
            f"{time.monotonic() - begin:.0f} s",
            flush=True,
        )
        if len(wrong) > 200:
            break
        server.execute(f"DROP DATABASE `{batch.tables[0].full_name.partition('.')[0]}`")
    assert not wrong, f"{len(wrong)} differences, among them\n" + "\n".join(wrong[:20])
    assert tally.tables == len(seeds)
    assert tally.changes >= len(seeds)
    if len(seeds) >= _MANY:
        assert not missing, f"no column of {sorted(missing)} in all tables"
        assert tally.tables_with_peer > len(seeds) // 20
