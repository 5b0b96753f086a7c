"""The corpus of DDL statements through the whole loop: Delta equals SELECT afterwards, or the statement is refused by name.

`make test-long` takes a sample of each server; `make test-ddl` takes all cases and writes the counts into
docs/reference/ddl.md.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from tests.support.ddl_corpus import SERVERS, cases_for
from tests.support.ddl_loop import CorpusRun, Outcome, counts
from tests.support.ddl_page import write_counts

SAMPLE = os.environ.get("TOWPATH_DDL_CASES") or "20"
"""Cases of each server, spread over the corpus; ``all``."""
WRITES = bool(os.environ.get("TOWPATH_DDL_WRITE"))
"""Whether the counts go into docs/reference/ddl.md."""
_AT_ONCE = 30
"""Cases that share one destination."""
_PARALLEL = 6
"""Destinations at the same time: each applies its DDL statements one after the other."""
_known: dict[str, Outcome] = {}


@pytest.mark.long
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("kind", SERVERS)
def test_delta_equals_select_or_the_statement_is_refused(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, seed: int
) -> None:
    server, cases = request.getfixturevalue(kind), cases_for(kind)
    step = 1 if SAMPLE == "all" else max(1, len(cases) // int(SAMPLE))
    chosen = cases[seed % step :: step]
    runs = []
    for number, at in enumerate(range(0, len(chosen), _AT_ONCE)):
        folder = tmp_path / str(number)
        folder.mkdir()
        runs.append(CorpusRun(folder, server, list(islice(chosen, at, at + _AT_ONCE)), _known))
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for number, _ in enumerate(pool.map(CorpusRun.run, runs)):
            print(kind, number, counts(runs[number].outcomes), flush=True)
    outcomes = [outcome for run in runs for outcome in run.settle()]
    print(kind, counts(outcomes), flush=True)
    wrong = [outcome for outcome in outcomes if outcome.kind in ("different", "not run")]
    assert not wrong, "\n".join(
        f"{outcome.kind}: {outcome.case.name}: {outcome.case.sql}: {outcome.details}" for outcome in wrong
    )
    assert any(outcome.kind == "equal" for outcome in outcomes)
    if WRITES:
        assert SAMPLE == "all"
        write_counts(kind, outcomes)
