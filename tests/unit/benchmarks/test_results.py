"""The lines of ``make bench``, their file of results, and the page that is made from it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page, results
from benchmarks.__main__ import group, table
from benchmarks.lines import BY_NAME, GROUPS, LINES, Measurement, shown, verdict
from benchmarks.results import Machine, Results, ResultsError, load, merged, refuse_partial, render

MACHINE = Machine(cpus=2, cpu="A CPU", memory_gb=24.0, kernel="6.1", load=0.1)
VERSIONS = {
    "towpath": "0.1.0",
    "commit": "abc1234",
    "python": "3.11.9",
    "pyspark": "4.2.0",
    "delta-spark": "4.4.0",
    "java": "17",
}


def made(*measurements: Measurement, rows: int = 1_000_000, **changes: Any) -> Results:
    values: dict[str, Any] = {
        "date": "2026-11-22T20:00:00+00:00", "rows": rows, "rounds": 3, "accounting": "cgroup", "seconds": 60.0,
        "machine": MACHINE, "versions": VERSIONS, "lines": [asdict(measurement) for measurement in measurements],
    }  # fmt: skip
    return Results.model_validate(values | changes)


RATIO = Measurement("inserts", value=0.6, ours_s=4.0, other_s=2.5, cpu_s=9.1, peak_mb=2100.4)
SLOW = Measurement("transactions", value=40_000.0, ours_s=25.0)
SKIPPED = Measurement("capture-large", skipped="connector-java is not compared, because mvn cannot be found.")


def test_a_line_holds_up_to_what_is_wanted() -> None:
    inserts, transactions = BY_NAME["inserts"], BY_NAME["transactions"]
    assert [inserts.holds(value) for value in (0.5, 0.7, 0.71)] == [True, True, False]
    assert [transactions.holds(value) for value in (119_999, 120_000, 130_000)] == [False, True, True]
    assert [verdict(inserts, measurement) for measurement in (RATIO, SKIPPED, None)] == ["held", "skipped", "not run"]
    assert verdict(transactions, SLOW) == "not held"


def test_goals_in_seconds_follow_the_pace_of_the_machine() -> None:
    slow = made(Measurement("inserts", value=1.6, ours_s=6.0, other_s=4.8))
    assert made(RATIO).pace() == pytest.approx(2.5 / 2.4) and slow.pace() == pytest.approx(2.0)
    assert made(SLOW).pace() is None
    line_by_name = {line.name: line for line in slow.lines_here()}
    wide, many, ratio = line_by_name["wide-upsert"], line_by_name["transactions"], line_by_name["inserts"]
    assert (wide.wanted, many.wanted) == (3.0, 60_000)
    assert ratio == BY_NAME["inserts"] and line_by_name["ten-cold-memory"] == BY_NAME["ten-cold-memory"]
    assert verdict(many, SLOW) == "not held" and many.goal() == "≥ 60,000/s"
    assert "so its goals are 2.00 times as long" in page.markdown(slow)
    assert made(SLOW).lines_here() == list(LINES)


def test_a_price_has_no_goal() -> None:
    line = BY_NAME["encrypted-decode"]
    measurement = Measurement("encrypted-decode", value=1.8, ours_s=0.4, other_s=0.2)
    assert (line.goal(), verdict(line, measurement)) == ("", "")
    assert "1 of 1 figures are" in page.markdown(made(RATIO, measurement))
    assert "encrypted-decode" not in page.plot(made(RATIO, measurement))


def test_every_line_has_a_group_that_measures_it() -> None:
    assert len(BY_NAME) == len(LINES)
    for name in GROUPS:
        assert callable(group(name))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1.7, "×", "1.70 ×"), (20.0, "s", "20.0 s"), (2.468, "GB", "2.47 GB"), (50_000, "changes/s", "50,000/s")],
)
def test_a_figure_is_shown_with_its_unit(value: float, unit: Any, text: str) -> None:
    assert shown(value, unit) == text


def test_a_title_has_the_rows_of_the_run() -> None:
    assert BY_NAME["inserts"].title(1_000_000).startswith("1 M inserts")
    assert BY_NAME["scattered"].title(20_000) == "200 scattered updates: time in 100,000 rows against 10,000 rows"
    assert "10 M rows" in BY_NAME["verify"].title(1_000_000)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    file.write_text(render(made(RATIO, SLOW, SKIPPED)))
    assert load(file) == made(RATIO, SLOW, SKIPPED)
    assert load(file).measurements()["inserts"] == RATIO


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "is of format version 2, and this checkout knows up to 1"),
        ({"version": None}, "is of format version None"),
        ({"later": 1}, "later: Extra inputs are not permitted"),
        ({"lines": [{"line": "unheard"}]}, "'unheard' is no line of benchmarks/lines.py"),
    ],
)
def test_results_of_a_newer_version_and_unknown_content_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(made(RATIO).model_dump() | change))
    with pytest.raises(ResultsError, match=message):
        load(file)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    file.write_text("{")
    with pytest.raises(ResultsError, match="cannot be read"):
        load(file)


def test_a_run_of_some_lines_keeps_the_others() -> None:
    better = Measurement("inserts", value=1.2)
    assert merged(made(RATIO, SLOW), made(better)).measurements() == {"inserts": better, "transactions": SLOW}
    assert merged(made(RATIO), made(better, rows=1000)) == made(better, rows=1000)
    assert merged(None, made(better)) == made(better)


def test_lines_of_other_rows_or_versions_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "current_versions", lambda: VERSIONS)
    old = made(RATIO, SLOW)
    refuse_partial(old, ["inserts"], 1_000_000)
    refuse_partial(None, ["inserts"], 1000)
    with pytest.raises(ResultsError, match="differ in rows: measure all lines"):
        refuse_partial(old, ["inserts"], 1000)
    monkeypatch.setattr(results, "current_versions", lambda: VERSIONS | {"commit": "other"})
    with pytest.raises(ResultsError, match="differ in commit"):
        refuse_partial(old, ["inserts"], 1_000_000)
    refuse_partial(old, ["inserts", "transactions"], 1000)  # nothing of the old run stays


def test_the_kept_results_can_be_read_and_say_how_they_were_counted() -> None:
    kept = load(results.KEPT)
    assert kept.accounting in page._ACCOUNTING
    assert kept.lines


def test_the_page_has_each_figure_and_each_reason() -> None:
    text = page.markdown(made(RATIO, SLOW, SKIPPED))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[1].endswith("| 0.60 × | ≤ 0.70 × |  | held | 4.00 | 2.50 | 9.10 | 2,100 |")
    assert "| 40,000/s | ≥ 115,200/s |  | not held |" in rows[2]
    assert "| – | ≥ 1.80 × |  | skipped |" in rows[3]
    assert SKIPPED.skipped is not None and SKIPPED.skipped in text
    assert "1 of 2 figures are what is wanted" in text
    assert "trial run" not in text


def test_a_short_run_and_a_busy_machine_are_said() -> None:
    short = page.markdown(made(RATIO, rows=20_000))
    assert "This was a trial run with 20,000 rows instead of 1,000,000" in short
    busy = page.markdown(made(RATIO, machine=MACHINE.model_copy(update={"load": 4.2})))
    assert "while others used the machine (load 4.2)" in busy


def test_the_plot_has_a_bar_for_each_figure_with_what_holds_to_the_right() -> None:
    picture = ET.fromstring(page.plot(made(RATIO, SLOW, SKIPPED)))
    bars = {bar.get("class"): bar for bar in picture.iter("{http://www.w3.org/2000/svg}rect") if bar.get("class")}
    assert set(bars) == {"held", "not"}
    center = float(bars["held"].get("x", "0"))
    assert float(bars["not"].get("x", "0")) < center
    assert float(bars["not"].get("x", "0")) + float(bars["not"].get("width", "0")) == pytest.approx(center, abs=0.2)


def test_the_table_has_a_row_for_each_line_of_the_run() -> None:
    assert table(made(RATIO, SLOW, SKIPPED)).row_count == 3
