"""The comparison with other pipelines: the difference of two tables, the file of figures, and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.pipelines import page
from benchmarks.pipelines.__main__ import arguments
from benchmarks.pipelines.peers import PEERS
from benchmarks.pipelines.pipeline import Pipeline
from benchmarks.pipelines.results import KEPT, Commits, Faults, Measured, Results, Work, load, render
from benchmarks.pipelines.source import Difference, compare
from benchmarks.results import Machine, ResultsError

VERSIONS = dict.fromkeys(("towpath", "commit", "python", "java", "pyspark", "delta-spark"), "1.2")


def measured(name: str, factor: float, **faults: Any) -> Measured:
    work = Work(rows=1000, seconds=2 * factor, cpu_s=3, peak_mb=500, written_mb=20)
    values: dict[str, Any] = {
        "recoveries_s": {"capture": 3.0}, "restarts": 0, "transactions": 9, "settled_s": 1.0, "rows": 1000,
        "missing": 0, "wrong": 0, "extra": 0, "new_column": True,
    }  # fmt: skip
    return Measured(
        name=name, load_average=0.2, versions={}, lines=20, processes=4, load=work,
        commits=Commits(count=3, median_s=factor, most_s=2 * factor), backlog=work, faults=Faults(**(values | faults)),
    )  # fmt: skip


def made(load_average: float = 0.1) -> Results:
    return Results(
        date="2026-11-23T15:00:00+00:00", seconds=800, versions=VERSIONS, rows=1000, changes=400, skipped={},
        machine=Machine(cpus=2, cpu="A CPU", memory_gb=24.0, kernel="6.1", load=load_average),
        pipelines=(measured("towpath", 2.0), measured("debezium", 1.0, missing=7, settled_s=None, new_column=False)),
    )  # fmt: skip


def rows(**columns: list[Any]) -> pa.Table:
    return pa.table(columns)


def test_missing_wrong_and_extra_rows_are_counted_apart() -> None:
    source = rows(id=[1, 2, 3, 4], note=["a", None, "c", "d"], extra=[1, 2, 3, 4])
    assert compare(source, source.take([3, 1, 0, 2])) == Difference(0, 0, 0, new_column=True)
    target = rows(id=[1, 2, 2, 9, 4], note=["a", "b", "b", "x", None])
    assert compare(source, target) == Difference(missing=1, wrong=2, extra=2, new_column=False, columns=("note",))
    assert compare(source, target.slice(0, 0)).missing == 4


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "pipelines.json"
    file.write_text(render(made()))
    assert load(file) == made()
    file.write_text(json.dumps(made().model_dump() | {"later": 1}))
    with pytest.raises(ResultsError, match="later: Extra inputs"):
        load(file)


def test_the_page_says_where_others_are_better_and_what_they_lost() -> None:
    text = page.markdown(made())
    assert "- `debezium`: one commit until readable, median, s (2.0 times)" in text
    assert "| `debezium` | capture 3 s | 0 | 7 | 0 | 0 | no | – |" in text
    assert PEERS["debezium"].fixed_columns is not None
    assert "Others used the machine" not in text
    assert "its load was 5.0, on 2 CPUs" in page.markdown(made(5.0))
    assert max(len(line) for line in text.splitlines() if not line.startswith(("|", "<!--"))) <= 120


def test_the_page_is_that_of_the_kept_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.markdown(load(KEPT))


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_every_setting_of_a_peer_is_a_file(peer: type[Pipeline]) -> None:
    assert {file.name for file in peer.files()} >= {"commands"}
    assert peer.lines() > 5


def test_a_run_without_arguments_has_whole_numbers_of_rows() -> None:
    options = arguments().parse_args([])
    assert (options.rows, options.changes, options.commits) == (1_000_000, 400_000, 11)
