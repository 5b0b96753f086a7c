"""The metrics that runs push: real HTTP requests to a server that keeps them, and nothing that fails a run."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from cdc.base.errors import ConfigError
from cdc.batches.manifest import Parking, TableResult
from cdc.batches.results import RunStats
from cdc.testing.pipeline import sample_manifest
from cdc.watch.metrics import catalogue
from cdc.watch.metrics.push import push_run
from tests.support.metrics import configuration

SECRET = "gateway-Sesam-4711"
Request = tuple[str, str, str | None, str]


class Gateway(HTTPServer):
    """Takes requests, and answers each with ``status``."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.status = 200
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.requests.append((self.command, self.path, self.headers.get("Authorization"), body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    server = Gateway()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run_of_two_tables() -> RunStats:
    stats = RunStats()
    parked = TableResult(table="shop.b", parked=Parking(due="retry", reason="A reason."))
    done = TableResult(table="shop.a", inserted=5, updated=2, deleted=1, skipped=4, null_dates=3, files=2, seconds=0.5)
    stats.add([done, parked], sample_manifest(1))
    return stats


def values(text: str) -> dict[tuple[str, str | None], float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels["destination"] for sample in samples} == {"shop"}
    return {(sample.name, sample.labels.get("table")): sample.value for sample in samples}


def test_a_run_pushes_every_metric_of_the_catalogue(gateway: Gateway) -> None:
    assert push_run(configuration(f"{{push: '{gateway.url}'}}"), run_of_two_tables(), succeeded=True)
    [(method, path, authorization, body)] = gateway.requests
    assert (method, path, authorization) == ("POST", "/metrics/job/towpath/destination/shop", None)
    metrics = values(body)
    assert {name for name, _ in metrics} == {metric.name for metric in catalogue.RUN}
    of_a = {
        name.removeprefix("towpath_run_table_"): value for (name, table), value in metrics.items() if table == "shop.a"
    }
    assert of_a == {
        "changes": 8, "inserted": 5, "updated": 2, "deleted": 1, "skipped": 4, "null_dates": 3, "seconds": 0.5,
        "files": 2, "parked": 0,
    }  # fmt: skip
    assert metrics["towpath_run_table_parked", "shop.b"] == 1
    assert (metrics["towpath_run_success", None], metrics["towpath_run_batches", None]) == (1, 1)


def test_a_failure_leaves_the_time_of_the_last_success(gateway: Gateway) -> None:
    """POST replaces the metrics that it carries, and keeps the others."""
    assert push_run(configuration(f"{{push: '{gateway.url}'}}"), None, succeeded=False)
    metrics = values(gateway.requests[0][3])
    assert metrics.pop(("towpath_run_end_timestamp_seconds", None)) > 1.7e9
    assert metrics == {("towpath_run_success", None): 0}


def test_an_empty_run_leaves_the_tables_of_the_last_one(gateway: Gateway) -> None:
    assert push_run(configuration(f"{{push: '{gateway.url}'}}"), RunStats(), succeeded=True)
    assert {table for _, table in values(gateway.requests[0][3])} == {None}


def test_nothing_is_pushed_unless_it_is_asked_for(gateway: Gateway) -> None:
    assert not push_run(configuration("{}"), run_of_two_tables(), succeeded=True)
    assert gateway.requests == []


def test_a_login_is_sent_and_never_logged(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PASSWORD", SECRET)
    config = configuration(f"{{push: '{gateway.url}', push_user: u, push_password_env: GATEWAY_PASSWORD}}")
    assert push_run(config, None, succeeded=True)
    assert gateway.requests[0][2] == "Basic " + base64.b64encode(f"u:{SECRET}".encode()).decode()
    gateway.status = 401
    with capture_logs() as logs:
        assert not push_run(config, None, succeeded=True)
    assert "401" in logs[0]["reason"]
    assert SECRET not in repr(logs)


@pytest.mark.parametrize("trouble", ["refused", "silent", "no password"])
def test_a_push_that_fails_is_logged_and_raises_nothing(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        more = ", push_timeout: 0.2s"
        if trouble == "refused":
            listener.close()
        if trouble == "no password":
            monkeypatch.delenv("GATEWAY_PASSWORD", raising=False)
            more = ", push_user: u, push_password_env: GATEWAY_PASSWORD"
        with capture_logs() as logs:
            assert not push_run(configuration(f"{{push: '{url}'{more}}}"), run_of_two_tables(), succeeded=True)
    [line] = logs
    assert (line["event"], line["log_level"], line["gateway"]) == (
        "the metrics of the run were not pushed",
        "warning",
        url,
    )
    assert line["reason"]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("{push: 'gateway:9091'}", "is not a URL"),
        ("{push: 'http://u:p@gateway:9091'}", "must not hold a user or a password"),
        ("{push_user: u}", "has no effect without push"),
        ("{push: 'http://g:1', push_user: u}", "belong together"),
        ("{push: 'http://g:1', push_password_env: P}", "belong together"),
        ("{push: 'http://g:1', push_user: u, push_password_env: P, push_password_file: f}", "contradict each other"),
        ("{port: 70000}", "port"),
    ],
)
def test_settings_without_sense_are_refused(metrics: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configuration(metrics)


def test_the_password_file_lies_beside_the_configuration() -> None:
    config = configuration("{push: 'http://g:1', push_user: u, push_password_file: gateway.password}")
    assert config.metrics.push_password_file == Path("/conf/gateway.password")
