"""Pages show every destination, whatever happens to one of them, and escape what others have named."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import StorageError
from cdc.base.run_identity import RunIdentity
from cdc.batches.manifest import TableResult
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.meta import ParkedTable
from cdc.watch.page.board import AckedBatch, Board, BoardRow, newest_batches
from cdc.watch.page.charts import lag_chart, throughput_chart
from cdc.watch.page.render import ExternalLink, destination, message, overview, summary
from cdc.watch.status import collect
from tests.support.commit_times import T0, fill
from tests.support.unit_batches import IDENTITY, make_config

EVIL = "<script>alert(1)</script>\"'&"


class NoLinks:
    def related(self, row: BoardRow) -> Sequence[ExternalLink]:
        return ()

    def table(self, config: DestinationConfig, table: str, path: str) -> str:
        return ""

    def manifest(self, config: DestinationConfig, batch: AckedBatch) -> str:
        return ""

    def run(self, config: DestinationConfig, run: RunIdentity) -> str:
        return ""

    def remedy(self, row: BoardRow, due: str) -> ExternalLink | None:
        return None


class Tags(HTMLParser):
    """The tags of a page, and its links."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        links = [value or "" for name, value in attrs if name in ("href", "src")]
        self.links += [link for link in links if not link.startswith("data:")]


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    config = make_config(tmp_path)
    fill(config.store.path, [1, 2, 3, 4])
    service = BatchService(config)
    service.meta.bind_source(IDENTITY)
    lease = service.get("test", wait_s=0)
    assert lease is not None
    result = TableResult(table="shop.orders", delta_version=3, delta_id="x", applied_seq=lease.manifest.last_seq)
    service.ack(lease.batch, lease.token, results=[result])
    return config


def row_of(config: DestinationConfig) -> BoardRow:
    (row,) = Board().rows([config.file], batches=True)
    assert row.error == ""
    return row


def test_a_page_of_a_store(config: DestinationConfig) -> None:
    row = row_of(config)
    page = overview([row], NoLinks(), "n", folder="conf")
    assert "stopped" in page
    assert "1 transaction," in page, "one is left"
    detail = destination(row, NoLinks(), "n")
    assert "shop.orders" in detail
    assert detail.count("<polyline") == 1, "this batch has no rows, so there is no throughput"
    way = re.findall(r"<li><strong>(\w+)</strong>(.*?)</li>", detail)
    assert [name for name, _ in way] == ["Source", "Capture", "Store", "Batches", "Tables"]
    assert "4 transactions" in way[2][1] and "1 transaction to go" in way[3][1]
    assert Tags(detail).found.count("script") == 1
    assert [batch.batch for batch in row.batches] == [1]
    assert row.batches[0].lag_s == pytest.approx(row.batches[0].acked_s - T0 / 1e6 - 1, abs=1)


class Links(NoLinks):
    def related(self, row: BoardRow) -> Sequence[ExternalLink]:
        return [ExternalLink("apply", "/dags/apply_shop", "paused")]

    def table(self, config: DestinationConfig, table: str, path: str) -> str:
        return "https://x.example/t"

    def manifest(self, config: DestinationConfig, batch: AckedBatch) -> str:
        return "https://x.example/m"

    def run(self, config: DestinationConfig, run: RunIdentity) -> str:
        return "https://x.example/r"

    def remedy(self, row: BoardRow, due: str) -> ExternalLink | None:
        return ExternalLink("Trigger snapshot_shop", "/dags/snapshot_shop")


def test_links(config: DestinationConfig) -> None:
    row = row_of(config)
    assert Tags(overview([row], Links(), "n", folder="")).links == ["shop", "/dags/apply_shop"]
    assert set(Tags(destination(row, Links(), "n")).links) == {
        "./", "/dags/apply_shop", "https://x.example/t", "https://x.example/m", "https://x.example/r",
    }  # fmt: skip


def test_a_card_begins_with_a_sentence_and_the_next_step(config: DestinationConfig) -> None:
    tables = [{"table": "shop.orders"}, {"table": "shop.products"}]
    late = {"transactions": 1200, "bytes": 5}
    subscription: dict[str, Any] = {"name": "apply", "parked": [], "behind": late, "lag_s": 240.0}
    store = {"complete_until": "2026-03-01T22:35:25.5Z"}
    status = {"tables": tables, "store": store, "subscriptions": [subscription]}
    assert summary(status) == "Both tables wait for 1,200 transactions, the oldest for 4 min."
    subscription["behind"] = {"transactions": 0, "bytes": 0}
    assert summary(status) == "Both tables are complete until 2026-03-01 22:35:25."
    assert summary(status | {"tables": tables[:1]}) == "shop.orders is complete until 2026-03-01 22:35:25."
    assert summary(status | {"tables": []}) == "No table has been loaded yet."
    subscription["parked"] = [{"table": "shop.products", "due": "snapshot"}]
    assert summary(status) == "1 of 2 tables is parked: shop.products needs a snapshot."
    subscription["parked"] += [{"table": f"shop.t{n}", "due": "retry"} for n in range(4)]
    assert "5 of 6 tables are parked" in summary(status) and "and 2 more" in summary(status)
    with BatchService(config).meta.change() as state:
        state.subscription("apply").parked["shop.orders"] = ParkedTable(
            due="snapshot", reason="Run `cdc snapshot shop shop.orders`.", since=datetime.now(UTC)
        )
    row = row_of(config)
    page = overview([row], NoLinks(), "n", folder="")
    assert "1 of 1 table is parked: shop.orders needs a snapshot." in page
    assert "Next step: <code>cdc snapshot shop</code> brings it back." in page
    assert '<a href="/dags/snapshot_shop" data-outside>Trigger snapshot_shop</a>' in overview(
        [row], Links(), "n", folder=""
    )
    detail = destination(row, NoLinks(), "n")
    assert detail.count("cdc snapshot shop") == 2, "the step on the card, and the one way in the reason"
    assert "`" not in detail


def test_everything_is_escaped(config: DestinationConfig) -> None:
    """Names of tables, reasons, owners and errors come from elsewhere."""
    service = BatchService(config)
    assert service.get(f"cli:{EVIL}", wait_s=0) is not None
    with service.meta.change() as state:
        state.subscription("apply").parked[f"shop.{EVIL}"] = ParkedTable(
            due="retry", reason=f"it failed: {EVIL}", since=datetime.now(UTC)
        )
    row = row_of(config)
    assert row.status is not None
    row.status["tables"].append(
        {"table": f"shop.{EVIL}", "mode": "upsert", "delta_version": 1, "applied_seq": 1, "path": f"/lake/{EVIL}",
         "note": EVIL, "reader": None, "small_files": 0,
         "applied_time": None, "lag_s": 7200.0, "parked_since": "2026-03-01T09:00:00Z",
         "last_merge": None}
    )  # fmt: skip
    row.status["source"]["gtid"] = EVIL
    failed = BoardRow(EVIL, error=f"it is broken: {EVIL}")
    for page in (
        overview([row, failed], NoLinks(), "n", folder=EVIL),
        overview([], NoLinks(), "n", folder=EVIL),
        destination(row, NoLinks(), "n"),
        destination(failed, NoLinks(), "n"),
        message(EVIL, EVIL, "n"),
    ):
        assert EVIL not in page
        assert "<script>alert" not in page
        assert Tags(page).found.count("script") == 1
        assert "&lt;script&gt;" in page


def test_a_broken_destination_leaves_the_others_readable(config: DestinationConfig, tmp_path: Path) -> None:
    folder = config.file.parent
    (folder / "broken.yaml").write_text("source: {url: 'mysql://u:secret@h'}\n")
    (folder / "gone.yaml").write_text(config.file.read_text().replace("./shop/", "./gone/"))

    def collected(destination_config: DestinationConfig) -> dict[str, Any]:
        if destination_config.name == "gone":
            raise StorageError("cannot be read: Input/output error", place=str(destination_config.store.path))
        return collect(destination_config)

    files = [folder / f"{name}.yaml" for name in ("broken", "gone", "shop")]
    rows = Board(collect=collected).rows(files)
    assert [bool(row.error) for row in rows] == [True, True, False]
    page = overview(rows, NoLinks(), "n", folder="")
    assert "Input/output error" in page
    assert "is missing" in page
    assert "secret" not in page
    assert page.count('<section class="card') == 3


def test_an_unexpected_failure_is_shown_too(config: DestinationConfig) -> None:
    def fails(destination_config: DestinationConfig) -> dict[str, Any]:
        raise ZeroDivisionError("division")

    (row,) = Board(collect=fails).rows([config.file])
    assert row.error == "the status cannot be collected: ZeroDivisionError: division"


def test_a_destination_that_hangs_delays_no_other(config: DestinationConfig) -> None:
    """Pages that are loaded meanwhile start no further look at it."""
    folder, go, looks = config.file.parent, threading.Event(), []
    (folder / "hangs.yaml").write_text(config.file.read_text().replace("./shop/", "./hangs/"))

    def collected(destination_config: DestinationConfig) -> dict[str, Any]:
        if destination_config.name == "hangs":
            looks.append(destination_config.name)
            go.wait(30)
        return collect(destination_config)

    board = Board(wait_s=0.5, fresh_s=0, collect=collected)
    files = [folder / "hangs.yaml", config.file]
    began = time.monotonic()
    for _ in range(3):
        hangs, shop = board.rows(files)
        assert "no answer for" in hangs.error
        assert shop.error == ""
    assert time.monotonic() - began < 30
    assert looks == ["hangs"]
    go.set()
    error: Callable[[], str] = lambda: board.rows(files)[0].error  # noqa: E731
    deadline = time.monotonic() + 20
    while error() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert error() == ""


def test_a_destination_without_a_store(tmp_path: Path) -> None:
    (row,) = Board().rows([make_config(tmp_path).file], batches=True)
    assert (row.error, row.batches) == ("", [])
    page = destination(row, NoLinks(), "n")
    assert "No table has been loaded yet." in page and "<dt>Position</dt>" not in page


def test_the_chart_has_the_batches_and_now() -> None:
    def batch(number: int, lag_s: float | None) -> AckedBatch:
        return AckedBatch(number, 1, 2, 1, (3, 2, 1), 10, 1000.0 + number, lag_s, "")

    chart = lag_chart([batch(0, 10), batch(5, 20), batch(7, None)], 1010, 5, 15.0)
    assert chart is not None
    assert chart.lines[0].points == "0.0,150.0 500.0,0.0 1000.0,225.0"
    assert chart.levels == ("20 s", "10 s", "0")
    assert re.match(r"20 s: batch 5", chart.dots[1][2])
    assert (chart.alarm_y, chart.times[1]) == (75.0, "00:16")
    assert lag_chart([batch(1, None)], 1010, 0, 15.0) is None
    single = lag_chart([batch(1, 0.0)], 1001, None, 15.0)
    assert single is not None and single.lines[0].points == "0.0,300.0"
    assert (single.alarm_y, len(single.times)) == (None, 2)


def test_the_chart_of_the_throughput_has_the_busiest_tables() -> None:
    def batch(acked_s: float, **tables: int) -> AckedBatch:
        return AckedBatch(1, 1, 2, 1, (3, 2, 1), 10, acked_s, 1.0, "", tables=tables)

    batches = [batch(1000.0, orders=10), batch(1020.0, orders=30, items=10, a=1, b=2, c=3), batch(1030.0, items=10)]
    chart = throughput_chart(batches, 1040.0)
    assert chart is not None, "each of its 40 parts has a second"
    assert [line.name for line in chart.lines] == ["all tables", "orders", "items", "c"]
    assert len({line.dash for line in chart.lines}) == 4, "colours are not all that tells them apart"
    assert (chart.levels[0], len(chart.times), chart.alarm_y) == ("46 rows/s", 5, None)
    heights = [[float(point.partition(",")[2]) for point in line.points.split()] for line in chart.lines]
    assert [len(line) for line in heights] == [40] * 4
    assert heights[0][20] == 0.0, "the most rows"
    assert heights[1][20] == pytest.approx(300 * (1 - 30 / 46), abs=0.1)
    assert heights[2][30] == heights[0][30] == pytest.approx(300 * (1 - 10 / 46), abs=0.1)
    assert heights[1][25] == 300.0
    assert "66 rows in 3 batches, at most 46 rows/s" in chart.summary
    assert "averages of 1 s" in chart.note
    one_table = throughput_chart([batch(1000.0, orders=10)], 1040.0)
    assert one_table is not None and [line.name for line in one_table.lines] == [""]
    assert throughput_chart([], 1040.0) is None
    assert throughput_chart([batch(1000.0)], 1040.0) is None, "nothing was applied"
    assert throughput_chart([batch(1040.0, orders=1)], 1040.0) is None, "no time has passed"


def test_the_newest_batches_only(config: DestinationConfig) -> None:
    service = BatchService(config)
    lease = service.get("test", wait_s=0)
    assert lease is not None
    service.ack(lease.batch, lease.token)
    assert [batch.batch for batch in newest_batches(config, 1)] == [2]
