"""Random DML and DDL, with snapshots, replays, lost tables and kills at random moments: no silent difference.

``TOWPATH_SCHEMA_SEEDS`` sets the number of seeds (default: one scenario; ``make test-nemesis``: 60, a quarter on
each server), ``TOWPATH_SCHEMA_SEED`` a single seed to repeat, ``TOWPATH_SCHEMA_ROUNDS`` the steps of each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.nemesis.schema_scenario import Scenario

KINDS = ("mysql9", "mariadb11", "mysql56", "mariadb10")
_ONE = os.environ.get("TOWPATH_SCHEMA_SEED")
_COUNT = int(os.environ.get("TOWPATH_SCHEMA_SEEDS") or 1)
SEEDS = [int(_ONE)] if _ONE else sorted(range(_COUNT), key=lambda seed: seed % len(KINDS))
_ROUNDS = int(os.environ.get("TOWPATH_SCHEMA_ROUNDS") or (6 if _ONE or _COUNT > 1 else 3))


@pytest.fixture(scope="session", autouse=True)
def _spark() -> Iterator[None]:
    yield
    session.discard()


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("number", SEEDS)
def test_no_silent_difference(
    number: int,
    request: pytest.FixtureRequest,
    database: Callable[[Server], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of servers without GTIDs: nothing else commits there, and nobody waits for a minute.
    monkeypatch.setattr("cdc.source.snapshot.positions.MARGIN_S", 1.0)
    kind = KINDS[number % len(KINDS)]
    server: Server = request.getfixturevalue(kind)
    scenario = Scenario(number, server, database(server), tmp_path)
    try:
        scenario.play(_ROUNDS)
    except BaseException as error:
        listed = "\n".join(scenario.steps)
        error.add_note(
            f"seed {number} ({kind}) failed after these steps:\n{listed}\n"
            f"To repeat it: make test-nemesis TOWPATH_SCHEMA_SEED={number}"
        )
        raise
