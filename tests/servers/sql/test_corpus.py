"""The corpus of DDL statements on real servers: the tracked definitions are information_schema's, and what is claimed
of old rows is what SELECT shows."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cdc.binlog.sql import statements
from cdc.binlog.sql.changes import AddColumn, Constant
from cdc.binlog.sql.server import ServerVersion as SqlServer
from cdc.testing.servers import Server
from tests.support import ddl_run
from tests.support.ddl_corpus import SERVERS, Case, cases_for, corpus, with_generated_key
from tests.support.ddl_run import CorpusRun, Observed, judge

GENERATED_KEYS = 100
"""The number of cases that run over tables with a generated key."""
NEWEST = 0.7
"""The probability that a case runs on the newer one of the servers of a flavor."""


def chosen(server: str, seed: int) -> list[Case]:
    """The cases for a server in this run: each case runs on one MySQL and on one MariaDB that it is for, by chance; with
    TOWPATH_DDL_ALL on all of them."""
    if os.environ.get("TOWPATH_DDL_ALL"):
        return cases_for(server)
    cases = []
    for case in cases_for(server):
        newest = random.Random(f"{seed} {case.name}").random() < NEWEST
        of_flavor = [name for name in case.servers if name[:2] == server[:2]]
        if of_flavor[0 if newest else -1] == server:
            cases.append(case)
    return cases


@pytest.fixture(scope="module", params=SERVERS)
def observed(request: pytest.FixtureRequest, seed: int) -> Iterator[tuple[SqlServer, list[Observed]]]:
    server: Server = request.getfixturevalue(request.param)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        ((version,),) = cursor.fetchall()
    parsed = SqlServer.parse(str(version))
    assert parsed is not None and parsed.mariadb == request.param.startswith("mariadb")
    run = CorpusRun(server)
    yield parsed, run.observe(chosen(request.param, seed))
    run.close()


@pytest.mark.long_on("mysql56", "mariadb10")
def test_the_server_does_what_is_claimed(observed: tuple[SqlServer, list[Observed]]) -> None:
    server, cases = observed
    verdicts = [judge(case, server) for case in cases]
    wrong = [text for verdict in verdicts for text in verdict.wrong]
    assert not wrong, "\n".join(wrong)
    counts = Counter(verdict.outcome for verdict in verdicts)
    assert counts["followed"] > len(cases) // 2, counts
    assert counts["refused"] <= len(cases) // 50, counts
    # Without the server's version, more may be refused (comments for MariaDB alone), but not much.
    assert Counter(judge(case, None).outcome for case in cases)["refused"] <= counts["refused"] + 1


def test_the_server_does_what_is_claimed_over_tables_with_a_generated_key(mysql9: Server, seed: int) -> None:
    run = CorpusRun(mysql9)
    cases = [with_generated_key(case) for case in chosen("mysql9", seed) if case.tables and case.file != "partitions"]
    cases = cases if os.environ.get("TOWPATH_DDL_ALL") else random.Random(seed).sample(cases, GENERATED_KEYS)
    observed = run.observe(cases, may_refuse=True)
    run.close()
    sql_server = SqlServer(mariadb=False, version=(9, 7, 0))
    wrong = [text for observation in observed for text in judge(observation, sql_server).wrong]
    assert not wrong, "\n".join(wrong)
    keyed = [
        observation
        for observation in observed
        if any("my_row_id" in schema.column_names for schema in observation.after.values())
    ]
    assert len(keyed) > len(cases) // 2


def test_wrong_claims_are_found(observed: tuple[SqlServer, list[Observed]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: other constants, other columns and other rows are found in most cases."""
    server, cases = observed
    classify = statements.classify

    def other_constants(*arguments: object, **context: object) -> object:
        claim = classify(*arguments, **context)  # type: ignore[arg-type]
        changes = tuple(
            replace(change, old_rows=Constant("4711"))
            if isinstance(change, AddColumn) and isinstance(change.old_rows, Constant)
            else change
            for change in claim.changes
        )
        return replace(claim, changes=changes)

    with monkeypatch.context() as patched:
        patched.setattr(ddl_run, "classify", other_constants)
        assert sum(bool(judge(case, server).wrong) for case in cases) > 10
    with monkeypatch.context() as patched:
        patched.setattr(
            ddl_run, "classify", lambda *arguments, **context: replace(classify(*arguments, **context), changes=())
        )
        assert sum(bool(judge(case, server).wrong) for case in cases) > len(cases) // 2
    for case in cases:
        case.rows_after = {name: [*rows, *rows[:1]] for name, rows in case.rows_after.items()}
    assert sum(bool(judge(case, server).wrong) for case in cases) > len(cases) // 3


def test_the_corpus_is_large_and_named_by_its_place() -> None:
    assert sum(len(case.sql) for case in corpus()) >= 300
    assert len({case.name for case in corpus()}) == len(corpus())
