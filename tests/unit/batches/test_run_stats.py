"""The statistics of a run: sums for each table, and one line for each in the log."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from cdc.base.log import configure
from cdc.batches.manifest import Parking, TableResult
from cdc.batches.results import run_stats
from cdc.testing.pipeline import sample_manifest


def test_each_table_has_one_line_with_the_sums_of_its_batches() -> None:
    parked = Parking(due="retry", reason="A reason.")
    with capture_logs() as logs, run_stats() as stats:
        first = TableResult(table="shop.a", inserted=5, updated=2, seconds=0.5, files=1, delta_version=3)
        stats.add([first, TableResult(table="shop.b", parked=parked)], sample_manifest(1))
        stats.add([TableResult(table="shop.a", deleted=1, skipped=4, seconds=0.25, files=2)], sample_manifest(2))
    assert logs == [
        {
            "event": "table applied", "log_level": "info", "module": "cdc.batches.results", "table": "shop.a",
            "changes": 8, "inserted": 5, "updated": 2, "deleted": 1, "skipped": 4, "seconds": 0.75, "files": 3,
            "batches": 2, "delta_version": 3,
        },
        {
            "event": "table left out", "log_level": "warning", "module": "cdc.batches.results", "table": "shop.b",
            "reason": "A reason.",
        },
    ]  # fmt: skip
    assert (stats.batches, stats.transactions, stats.row_events) == (2, 2, 2)


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_line_is_for_people_or_for_programs(
    log_format: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: configure("console"))
    configure("json" if log_format == "json" else "console")
    with run_stats() as stats:
        stats.add([TableResult(table="shop.a", inserted=5, seconds=0.5, files=1)], sample_manifest(1))
    (line,) = capsys.readouterr().err.splitlines()
    if log_format == "json":
        entry = json.loads(line)
        assert (entry["table"], entry["changes"], entry["files"]) == ("shop.a", 5, 1)
    else:
        assert "table applied" in line
        assert "table=shop.a" in line
        assert "changes=5" in line
