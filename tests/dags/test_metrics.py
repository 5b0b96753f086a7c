"""The metrics that the apply DAG sends to StatsD through Airflow: real datagrams of real runs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from cdc.airflow import build_dags
from cdc.base.errors import TargetError
from cdc.batches.manifest import TableResult
from cdc.testing.pipeline import FakePipeline, sample_manifest
from cdc.watch.metrics import push

Apply = Callable[..., dict[str, str | None]]


@pytest.fixture
def statsd(airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A StatsD server: a socket, to which Airflow sends as its task runner is set up by ``[metrics]``."""
    stats: Any = pytest.importorskip("airflow.sdk.observability.stats", reason="Airflow 3.2 began with this module")
    utils: Any = import_module("airflow.sdk.observability.metrics.stats_utils")

    def initialize() -> None:
        if hasattr(stats, "initialize"):
            stats.initialize(factory=utils.get_stats_factory(), export_legacy_names=False)
        else:  # 3.2
            stats.Stats.initialize(factory=utils.get_stats_factory(stats.Stats))

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.5)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.getsockname()[1]))
        initialize()
        yield server
    monkeypatch.undo()
    initialize()


def received(server: socket.socket) -> list[str]:
    """Returns the lines about Towpath that have come, without the times that durations took."""
    lines: list[str] = []
    while True:
        try:
            text = server.recv(65536).decode()
        except TimeoutError:
            return lines
        lines += [line for line in text.splitlines() if line.startswith("airflow.towpath.")]


@pytest.fixture
def apply(write_conf: Callable[..., Any], run_dag: Apply, pipeline: FakePipeline) -> Apply:
    def run(more: str = "") -> dict[str, str | None]:
        folder = write_conf()
        file = folder / "shop.yaml"
        file.write_text(file.read_text() + more)
        return run_dag(build_dags(folder)["apply_shop"])

    return run


def test_a_run_counts_its_rows_in_statsd(statsd: socket.socket, apply: Apply, pipeline: FakePipeline) -> None:
    pipeline.waiting = [sample_manifest(1), sample_manifest(2)]
    pipeline.results = [TableResult(table="shop.or ders", inserted=3, deleted=1, files=2, seconds=0.5)]
    assert apply()["run"] == "success"
    lines = received(statsd)
    counters = {line.removeprefix("airflow.towpath.") for line in lines if line.endswith("|c")}
    assert counters >= {
        "table.shop.shop__or_ders.inserted:6|c", "table.inserted:6|c", "table.shop.shop__or_ders.deleted:2|c",
        "table.shop.shop__or_ders.changes:8|c", "table.shop.shop__or_ders.files:4|c", "table.files:4|c",
        "run.shop.batches:2|c", "run.batches:2|c", "run.shop.transactions:2|c", "run.shop.row_events:2|c",
        "run.shop.succeeded:1|c", "run.succeeded:1|c",
    }  # fmt: skip
    assert not {line for line in counters if "updated" in line or "failed" in line}, "nothing is counted by zero"
    timings = [line.split(":")[0] for line in lines if line.endswith("|ms")]
    assert timings == [
        "airflow.towpath.run.shop.duration", "airflow.towpath.run.duration",
        "airflow.towpath.table.shop.shop__or_ders.duration", "airflow.towpath.table.duration",
    ]  # fmt: skip


def test_a_run_that_fails_or_is_idle_is_counted(statsd: socket.socket, apply: Apply, pipeline: FakePipeline) -> None:
    def fails() -> None:
        raise TargetError("is not a Delta table")

    pipeline.fail["merge"] = fails
    assert apply()["run"] == "failed"
    assert "airflow.towpath.run.shop.failed:1|c" in received(statsd)
    pipeline.fail = {"fetch": fails}
    assert apply()["run"] == "failed"
    assert received(statsd) == ["airflow.towpath.run.shop.failed:1|c", "airflow.towpath.run.failed:1|c"], "no batch"
    pipeline.fail, pipeline.waiting = {}, []
    assert apply()["run"] == "success"
    assert received(statsd) == ["airflow.towpath.run.shop.succeeded:1|c", "airflow.towpath.run.succeeded:1|c"]


@pytest.mark.long
def test_no_run_fails_because_nobody_listens(
    apply: Apply, pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = CapturingLogger()
    monkeypatch.setattr(push, "_log", lines)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    assert apply(f"metrics: {{push: '{address}'}}\n") == {
        "run": "success", "fetch": "success", "merge": "success", "finalize": "success",
    }  # fmt: skip
    assert [call.kwargs["gateway"] for call in lines.calls] == [address, address], "merge and finalize"
