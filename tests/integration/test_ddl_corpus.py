"""The corpus of DDL statements through the whole loop: Delta equals SELECT afterwards, or the statement is refused by name.

`make test-long` takes a sample of each server; `make test-ddl` takes all cases (TOWPATH_DDL_CASES=all).
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import pytest

from tests.support.ddl_corpus import cases_for
from tests.support.ddl_loop import CorpusRun, counts

SAMPLE = os.environ.get("TOWPATH_DDL_CASES") or "20"
"""Cases of each server, spread over the corpus; ``all``."""
_AT_ONCE = 60
"""Cases that share one store: their rows are merged in two batches."""


@pytest.mark.long
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_delta_equals_select_or_the_statement_is_refused(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, seed: int
) -> None:
    server, cases = request.getfixturevalue(kind), cases_for(kind)
    step = 1 if SAMPLE == "all" else max(1, len(cases) // int(SAMPLE))
    chosen = cases[seed % step :: step]
    outcomes = []
    for number, at in enumerate(range(0, len(chosen), _AT_ONCE)):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcomes += CorpusRun(folder, server, list(islice(chosen, at, at + _AT_ONCE))).run()
    print(counts(outcomes))
    wrong = [one for one in outcomes if one.kind in ("different", "not run")]
    assert not wrong, "\n".join(f"{one.kind}: {one.case.name}: {one.case.sql}: {one.details}" for one in wrong)
    assert any(one.kind == "equal" for one in outcomes)
