"""Charts of a destination's page: the lag of its batches, and the rows that they have applied each second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter

from cdc.base.units import human_seconds
from cdc.watch.page.board import AckedBatch

_TICKS = 5
_DAY_S = 24 * 3600
_PARTS = 40
"""Parts of the time in the chart of the throughput: of each its average is drawn."""
_MOST_TABLES = 3
"""Tables with a line of their own in the chart of the throughput."""
_DASHES = ("", "7 4", "2 4", "9 3 2 3")

Point = tuple[float, float, str]
"""A time, the number at it, and a text about both."""


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    points: str
    """The points as an SVG polyline takes them."""
    name: str = ""
    """What it shows, if the chart has several lines."""
    dash: str = ""
    """How it is dashed, so that lines can be told apart without colours."""


@dataclass(frozen=True)
class Chart:
    """A number over time, as points of a drawing that is 1,000 wide and 300 high, with texts for its edges."""

    title: str
    lines: tuple[Line, ...]
    """The first one is that of the area and the dots."""
    area: str
    dots: tuple[tuple[float, float, str], ...]
    """Each with the text that a pointer shows."""
    levels: tuple[str, ...]
    """Texts of the number from the top to the bottom."""
    times: tuple[str, ...]
    """Texts of the time from the left to the right."""
    summary: str
    note: str
    """What is drawn."""
    alarm_y: float | None = None
    """The height from which on an alarm is raised; None if there is none, or the drawing is lower."""


def lag_chart(batches: Sequence[AckedBatch], now_s: float, lag_s: float | None, alarm_s: float) -> Chart | None:
    """Draws the age of each batch's first transaction when it was acked, and the lag now. ``alarm_s``: the lag from
    which on an alarm is raised. None without points."""
    points = [
        (batch.acked_s, batch.lag_s, f"batch {batch.batch}, acked {time_text(batch.acked_s)}")
        for batch in batches
        if batch.lag_s is not None
    ]
    if not points:
        return None
    if lag_s is not None:
        points.append((now_s, lag_s, "now"))
    most_s = max(1.0, *(lag for _, lag, _ in points))
    return _draw(
        "Lag",
        [("", points)],
        most_s,
        human_seconds,
        alarm=alarm_s,
        summary=f"{len(batches)} batches, the longest lag {human_seconds(most_s)}"
        + (f", alarms from {human_seconds(alarm_s)} on" if alarm_s <= most_s else ""),
        note="The age of each batch's first transaction when the batch was acked, and the lag now",
    )


def throughput_chart(batches: Sequence[AckedBatch], now_s: float) -> Chart | None:
    """Draws the rows that batches have applied each second, of all tables and of those with the most rows. None without
    two points of time."""
    begin_s = batches[0].acked_s if batches else now_s
    width_s = (max(now_s, batches[-1].acked_s) - begin_s) / _PARTS if batches else 0.0
    if width_s <= 0 or not any(any(batch.tables.values()) for batch in batches):
        return None
    totals = Counter[str]()
    by_part: list[Counter[str]] = [Counter() for _ in range(_PARTS)]
    for batch in batches:
        part = min(_PARTS - 1, int((batch.acked_s - begin_s) / width_s))
        by_part[part].update(batch.tables)
        totals.update(batch.tables)
    busiest = [table for table, count in totals.most_common(_MOST_TABLES) if count] if len(totals) > 1 else []

    def points(count: Callable[[Counter[str]], int]) -> list[Point]:
        middles = [begin_s + width_s * (part + 0.5) for part in range(_PARTS)]
        return [
            (middle_s, count(rows) / width_s, f"around {time_text(middle_s)}")
            for middle_s, rows in zip(middles, by_part, strict=True)
        ]

    every = points(Counter.total)
    most = max(rate for _, rate, _ in every)
    return _draw(
        "Throughput",
        [("all tables", every), *((table, points(itemgetter(table))) for table in busiest)],
        most,
        _rate_text,
        summary=f"{totals.total():,} rows in {len(batches)} batches, at most {_rate_text(most)}",
        note=f"Rows inserted, updated and deleted each second, as averages of {human_seconds(width_s)}",
    )


def _draw(
    title: str,
    series: Sequence[tuple[str, Sequence[Point]]],
    most: float,
    text_of: Callable[[float], str],
    *,
    summary: str,
    note: str,
    alarm: float | None = None,
) -> Chart:
    """Returns a chart of points with one time axis. ``most``: the number at its top."""
    begin_s = min(points[0][0] for _, points in series)
    end_s = max(time_s for _, points in series for time_s, _, _ in points)
    width_s = max(1.0, end_s - begin_s)

    def place(point: Point) -> tuple[float, float, str]:
        time_s, number, text = point
        x, y = 1000 * (time_s - begin_s) / width_s, 300 * (1 - number / most)
        return round(x, 1), round(y, 1), f"{text_of(number)}: {text}"

    dots = [place(point) for point in series[0][1]]
    lines = tuple(
        Line(" ".join(f"{x},{y}" for x, y, _ in map(place, points)), name if len(series) > 1 else "", dash)
        for (name, points), dash in zip(series, _DASHES, strict=False)
    )
    return Chart(
        title=title,
        lines=lines,
        area=f"{dots[0][0]},300 {lines[0].points} {dots[-1][0]},300",
        dots=tuple(dots),
        levels=tuple(text_of(most * part) if part else "0" for part in (1, 0.5, 0)),
        times=_ticks(begin_s, end_s),
        summary=summary,
        note=note,
        alarm_y=round(300 * (1 - alarm / most), 1) if alarm is not None and alarm <= most else None,
    )


def _rate_text(rate: float) -> str:
    """Returns rows for each second: ``1,203 rows/s``."""
    return f"{rate:,.0f} rows/s" if rate >= 10 else f"{rate:.2g} rows/s"


def _ticks(begin_s: float, end_s: float) -> tuple[str, ...]:
    """Returns the texts of times at equal distances: whole ones at both ends, and the clock between them."""
    if end_s - begin_s < _TICKS:
        return time_text(begin_s), time_text(end_s)
    between = [begin_s + (end_s - begin_s) * part / (_TICKS - 1) for part in range(1, _TICKS - 1)]
    clock = "%H:%M" if end_s - begin_s < _DAY_S else "%m-%d %H:%M"
    texts = [datetime.fromtimestamp(time_s, UTC).strftime(clock) for time_s in between]
    return time_text(begin_s), *texts, time_text(end_s)


def time_text(unix_s: float) -> str:
    """Returns a time in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
