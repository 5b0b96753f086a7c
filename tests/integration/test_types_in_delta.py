"""Every type that a server lists, with edge values, through capture, store and Spark into a Delta table.

One server here: all four take ``make types``, and the decoder alone reads them all in ``tests/servers``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.testing.servers import Server
from tests.support.apply import LOCAL_CONF
from tests.support.type_matrix.run import applied, decoded


@pytest.mark.timeout(900)
def test_delta_equals_select(mysql9: Server, tmp_path: Path) -> None:
    run = applied(mysql9, tmp_path, {"master": "local[2]", "conf": LOCAL_CONF})
    assert not run.result.faults, "\n".join(run.result.faults[:40])
    assert run.result.total > 30_000
    assert run.result.counts == decoded(mysql9).result.counts
