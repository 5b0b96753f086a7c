"""Every type that a server lists, with edge values, through capture, store and Spark into a Delta table.

One server here: all four take ``make types``, and the decoder alone reads them all in ``tests/servers``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.testing.servers import Server
from tests.support.type_matrix.run import applied, decoded

SPARK: dict[str, object] = {
    "master": "local[2]",
    "conf": {
        "spark.driver.memory": "1g",
        # Each table is read and written once: compiling code for its hundreds of columns takes longer than its rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m",
    },
}


@pytest.mark.timeout(900)
def test_delta_equals_select(mysql9: Server, tmp_path: Path) -> None:
    run = applied(mysql9, tmp_path, SPARK)
    assert not run.result.faults, "\n".join(run.result.faults[:40])
    assert run.result.total > 30_000
    assert run.result.counts == decoded(mysql9).result.counts
