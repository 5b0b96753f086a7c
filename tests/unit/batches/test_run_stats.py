"""The statistics of a run: sums for each table, and one line for each in the log."""

from __future__ import annotations

import json
import re

import pytest
from structlog.testing import capture_logs

from cdc.base import log
from cdc.base.log import configure
from cdc.batches.manifest import Parking, TableResult
from cdc.batches.results import run_stats
from cdc.testing.pipeline import sample_manifest


def test_each_table_has_one_line_with_the_sums_of_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_is_json", True)
    parked = Parking(due="retry", reason="A reason.")
    with capture_logs() as logs, run_stats() as stats:
        first = TableResult(
            table="shop.a", inserted=5, updated=2, seconds=0.5, files=1, delta_version=3,
            phases={"start": 6.0, "read": 0.1, "merge": 0.4},
        )  # fmt: skip
        stats.add([first, TableResult(table="shop.b", parked=parked)], sample_manifest(1))
        second = TableResult(table="shop.a", deleted=1, skipped=4, seconds=0.25, files=2, phases={"merge": 0.25})
        other = TableResult(table="shop.c", seconds=0.1, phases={"start": 6.1, "merge": 0.1})
        stats.add([second, other], sample_manifest(2))
    assert stats.phases == pytest.approx({"start": 12.1, "read": 0.1, "merge": 0.75})
    run = logs.pop()
    assert run.pop("seconds") < 60
    assert logs == [
        {
            "event": "table applied", "log_level": "info", "module": "cdc.batches.results", "table": "shop.a",
            "changes": 8, "inserted": 5, "updated": 2, "deleted": 1, "skipped": 4, "seconds": 0.75, "files": 3,
            "batches": 2, "delta_version": 3, "start_s": 6.0, "read_s": 0.1, "merge_s": 0.65,
        },
        {
            "event": "table left out", "log_level": "warning", "module": "cdc.batches.results", "table": "shop.b",
            "reason": "A reason.",
        },
        {
            "event": "table applied", "log_level": "info", "module": "cdc.batches.results", "table": "shop.c",
            "changes": 0, "inserted": 0, "updated": 0, "deleted": 0, "skipped": 0, "seconds": 0.1, "files": 0,
            "batches": 1, "delta_version": None, "start_s": 6.1, "merge_s": 0.1,
        },
    ]  # fmt: skip
    assert run == {
        "event": "run applied", "log_level": "info", "module": "cdc.batches.results", "batches": 2, "transactions": 2,
        "row_events": 2, "start_s": 12.1, "read_s": 0.1, "merge_s": 0.75,
    }  # fmt: skip
    assert (stats.batches, stats.transactions, stats.row_events) == (2, 2, 2)


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_line_is_for_people_or_for_programs(
    log_format: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: configure("console"))
    configure("json" if log_format == "json" else "console")
    with run_stats() as stats:
        stats.add([TableResult(table="shop.a", inserted=5, seconds=0.5, files=1)], sample_manifest(1))
    line, run = capsys.readouterr().err.splitlines()
    if log_format == "json":
        entry = json.loads(line)
        assert json.loads(run)["event"] == "run applied"
        assert (entry["table"], entry["changes"], entry["files"]) == ("shop.a", 5, 1)
    else:
        assert line.endswith("shop.a: 5 inserted, 0 updated, 0 deleted in 1 batch; no version, 0.5 s.")
        assert re.search(r"The run merged 1 batch in \d+\.\d s\.$", run)
