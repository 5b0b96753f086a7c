"""The figures of many destinations: their file, the page that is made from it, and the count of CPU seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.results import Machine, ResultsError
from benchmarks.scale import page
from benchmarks.scale.processes import Look, pss_mb
from benchmarks.scale.results import (
    CHANGED,
    UNCHANGED,
    Burst,
    Captures,
    Cost,
    Parsing,
    Requests,
    Results,
    Share,
    Start,
    Traffic,
    Whole,
    Window,
    load,
    render,
)

VERSIONS = dict.fromkeys(("towpath", "commit", "apache-airflow", "python", "deltalake", "pyspark"), "1.2")


def window(busy: float) -> Window:
    shares = tuple(Share(part=part, processes=2, cpu_percent=busy, mb=100) for part in page._PARTS)
    return Window(seconds=100, shares=shares, slots_most=3, slots_mean=1.5, deferred=10)


def made(**changes: Any) -> Results:
    cost = Cost(seconds=2, cpu_s=1.5, peak_mb=80)
    values: dict[str, Any] = {
        "date": "2026-11-23T15:00:00+00:00",
        "seconds": 800,
        "machine": Machine(cpus=2, cpu="A CPU", memory_gb=24.0, kernel="6.1", load=0.1),
        "versions": VERSIONS,
        "destinations": 10,
        "tables": 5,
        "captures": Captures(count=10, start_s=9, start_cpu_s=1.5, mb=60, source_mb=900),
        "parsing": (Parsing(file="dags/apply.py", dags=10, cpu_s=0.5),),
        "start": Start(dags=60, ready_s=30, cpu_s=40),
        "watches": Burst(runs=10, seconds=20, cpu_s=30),
        "empty_runs": Burst(runs=10, seconds=20, cpu_s=24),
        "idle": window(10),
        "traffic": Traffic(
            window=window(20), destinations=2, transactions=25, runs=25, latency_median_s=5, latency_most_s=9,
            latency_least_s=3, steps={"`merge`": 2},
        ),
        "whole": Whole(
            tables=50, few_tables=5, status=cost, few_status=cost, page_s=1, apply=cost, few_apply=cost, nothing=cost,
            few_nothing=cost, warm_apply_s=0.1, new_tables=5, new_tables_s=9, ddl_s=2, meta_bytes=9500,
            few_meta_bytes=5000, schemas_bytes=50_000, few_schemas_bytes=5000, transaction_bytes=400.5,
            manifest_bytes=1200, lake_bytes=3000,
        ),
        "requests": (
            Requests(work=UNCHANGED, tables=50, counts={"GET": 100}),
            Requests(work=CHANGED, tables=1, counts={"GET": 10, "PUT": 4}),
        ),
    }  # fmt: skip
    return Results.model_validate(values | changes)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "scale.json"
    file.write_text(render(made()))
    assert load(file) == made()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"later": 1}, "later: Extra inputs are not permitted"), ({"idle": 1}, "idle: Input should be")],
)
def test_unknown_content_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = tmp_path / "scale.json"
    file.write_text(json.dumps(made().model_dump() | change))
    with pytest.raises(ResultsError, match=message):
        load(file)
    file.write_text("{")
    with pytest.raises(ResultsError, match="is no JSON"):
        load(file)


def test_the_page_has_the_formula_of_the_figures() -> None:
    text = page.markdown(made())
    for line in (
        "| cores: captures, idle | D × 0.0100 |",
        "| cores: Airflow with 60 DAGs, idle | 0.50 |",
        "| cores: watches that begin anew | D × 3.0 / `capture_for` |",
        "| cores: runs that find nothing | E × 2.4 / 3600 |",
        "| cores: runs that merge a few rows | R × 2.0 / 3600 |",
        "| meta of a destination | T × 100 bytes |",
        "| requests to an object store | R × (min(T, 500) × 2.0 + changed tables × 14) |",
        "| **all** | 14 | 70.0 % | 140.0 % | 700 |",
    ):
        assert line in text
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "<!--"))) <= 120
    assert "Others used the machine" not in text


def test_the_cpu_of_children_counts_before_and_after_their_end() -> None:
    work = "import time\nwhile time.process_time() < 0.5: pass\n"
    before = Look().usage([os.getpid()])
    process = subprocess.Popen([sys.executable, "-c", f"{work}print('done', flush=True)\ninput()"], stdin=-1, stdout=-1)
    assert process.stdout is not None
    assert process.stdout.readline() == b"done\n"
    running = Look()
    assert process.pid in running.tree([os.getpid()])
    assert pss_mb([process.pid]) > 1
    assert running.usage([process.pid]).cpu_s >= 0.4
    process.communicate(b"\n")
    ended = Look()
    assert process.pid not in ended.tree([os.getpid()])
    assert ended.usage([os.getpid()]).cpu_s - before.cpu_s >= 0.4
