"""Every type that a server lists, with edge values, through capture, store and Spark into a Delta table.

One server here: all four take ``make types``, and the decoder alone reads them all in ``tests/servers``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.testing.servers import Server
from tests.support.apply import LOCAL_CONF
from tests.support.type_matrix.run import applied, decoded


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("text_step", [10, pytest.param(1, marks=pytest.mark.long)])
def test_delta_equals_select(mysql9: Server, tmp_path: Path, text_step: int) -> None:
    """Texts are texts to Spark in each character set, so that each tenth column of them will do."""
    run = applied(mysql9, tmp_path, {"master": "local[2]", "conf": LOCAL_CONF}, text_step=text_step)
    assert not run.result.faults, "\n".join(run.result.faults[:40])
    assert run.result.total > 30_000 // text_step
    assert run.result.counts == decoded(mysql9, text_step=text_step).result.counts
