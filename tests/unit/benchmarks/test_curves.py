"""Figures over time and over sizes: exponents, growth, and the pages that show them."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks import day_page, growth
from benchmarks.results import Machine

MACHINE = Machine(cpus=2, cpu="A CPU", memory_gb=24.0, kernel="6.1", load=0.1)
VERSIONS = dict.fromkeys(("towpath", "commit", "python", "deltalake"), "1.2")


def day(minutes: float, **last: float) -> day_page.Results:
    """A run with a look each minute, whose figures are 10; ``last``: other figures of the last quarter."""
    figures = {curve.name: 10 for curve in day_page.CURVES}
    samples = [
        day_page.Sample(minute=n, changes=n * 30_000, cpu_s=n, **figures | (last if n >= minutes * 0.75 else {}))
        for n in range(int(minutes))
    ]
    events = (
        day_page.Event(minute=4, kind="kill", text="capture"),
        day_page.Event(minute=minutes, kind="verify", text="everything is proved"),
    )
    return day_page.Results(
        date="2026-12-01T15:00:00+00:00", minutes=minutes, rate=500, machine=MACHINE, versions=VERSIONS, proved=True,
        failures=(), samples=tuple(samples), events=events,
    )  # fmt: skip


def test_a_curve_that_has_grown_is_named() -> None:
    assert day_page.grown(day(120)) == []
    assert day_page.grown(day(120, store_mb=13, lag_s=59)) == ["store: 10 MB in the second quarter, 13 in the last"]
    assert day_page.grown(day(120, lag_s=61)) == ["lag of the Delta tables: 10 s in the second quarter, 61 in the last"]
    assert day_page.grown(day(60, store_mb=99)) == []
    assert "no curve is judged" in day_page.markdown(day(60, store_mb=99), "run.svg")
    page = day_page.markdown(day(120, store_mb=13), "run.svg")
    assert "- store: 10 MB" in page and "no curve is judged" not in page


def test_a_chart_for_each_curve() -> None:
    root = ElementTree.fromstring(day_page.plot(day(120)))
    shapes = [element.get("class") for element in root.iter("{http://www.w3.org/2000/svg}path")]
    assert shapes.count("line") == len(day_page.CURVES) == shapes.count("kill")


@pytest.mark.parametrize(
    ("exponent", "grows", "verdict"),
    [(0.0, False, "as expected"), (1.0, True, "as expected"), (1.0, False, "grows"), (2.0, True, "worse than linear")],
)
def test_the_exponent_of_a_curve(exponent: float, grows: bool, verdict: str) -> None:
    points = tuple(
        growth.Point(size=size, seconds=1.0, cpu_s=size**exponent, peak_mb=100.0) for size in (10, 100, 1000, 10_000)
    )
    curve = growth.Curve(axis="tables", work="`cdc status`", grows=grows, points=points)
    assert curve.exponent() == pytest.approx(exponent, abs=1e-9) and curve.exponent("peak_mb") == pytest.approx(0)
    assert curve.verdict == verdict
    results = growth.Results(
        date="2026-12-01T15:00:00+00:00", machine=MACHINE, loads={"tables": (0.1, 1.0)}, versions=VERSIONS,
        curves=(curve,),
    )  # fmt: skip
    page = growth.markdown(results)
    assert ("Nothing is worse than linear." in page) == (verdict != "worse than linear")
    assert ("Nothing grows with what it should not depend on." in page) == (verdict != "grows")
