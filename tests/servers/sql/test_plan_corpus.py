"""The verdicts of `cdc plan` about the cases of the DDL corpus are those that apply gave them in the whole loop."""

from __future__ import annotations

from collections import Counter

import pytest

from cdc.testing.servers import Server
from tests.support.ddl_corpus import SERVERS, cases_for
from tests.support.ddl_page import read_outcomes
from tests.support.ddl_plan import Definitions, loop_kinds, plan_case, read_definitions

BY_ITS_ROWS = {"online_tools:10"}
"""Cases whose table is parked by a row that is written after the statements: its key is a date that Delta cannot have."""
MODES = {"mysql9": "soft_delete", "mariadb11": "append", "mariadb10": "scd2", "mysql56": "upsert"}
"""The mode in which the cases of a server are planned once more."""


@pytest.fixture(scope="module", params=SERVERS)
def definitions(request: pytest.FixtureRequest) -> tuple[str, Definitions]:
    server: Server = request.getfixturevalue(request.param)
    return request.param, read_definitions(server)


@pytest.mark.long_on("mysql56", "mariadb10")
def test_every_case_gets_the_verdict_that_apply_gave(definitions: tuple[str, Definitions]) -> None:
    """A verdict that depends on rows has the one of apply among its two."""
    name, on_server = definitions
    outcomes = read_outcomes(name)
    wrong = []
    planned: Counter[str] = Counter()
    for case in cases_for(name):
        if case.name not in outcomes or case.name in BY_ITS_ROWS:
            continue
        kinds, outcome = loop_kinds(plan_case(case, on_server)), outcomes[case.name].replace("columns", "snapshot")
        planned["depends" if len(kinds) > 1 else outcome] += 1
        if outcome not in kinds:
            wrong.append(f"{case.name}: apply: {outcome}, plan: {sorted(kinds)}: {'; '.join(case.sql)[:300]}")
    assert not wrong, "\n".join(wrong)
    assert planned["depends"] <= 12, planned
    assert planned["equal"] > 10 * planned["depends"], planned


@pytest.mark.long_on("mysql56", "mariadb10")
def test_every_case_has_a_verdict_in_another_mode(definitions: tuple[str, Definitions]) -> None:
    name, on_server = definitions
    kinds: Counter[str] = Counter()
    for case in cases_for(name):
        kinds.update(loop_kinds(plan_case(case, on_server, MODES[name])))
    assert kinds["wrong"] == 0, kinds
    assert kinds["equal"] > 10 * (kinds["snapshot"] + kinds["refused"]), kinds
