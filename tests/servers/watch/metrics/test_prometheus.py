"""``deploy/`` in the real Prometheus and the real Pushgateway: rules, configuration, dashboard, and what they get."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.batches.manifest import TableResult
from cdc.batches.results import RunStats
from cdc.testing.pipeline import sample_manifest
from cdc.testing.servers import free_port
from cdc.testing.servers.packages import DebianPackages, fetch
from cdc.watch.metrics import catalogue
from cdc.watch.metrics.capture import CaptureMonitor
from cdc.watch.metrics.http import serving
from cdc.watch.metrics.push import push_run
from tests.support.metrics import configuration, connected

DEPLOY = Path(__file__).resolve().parents[4] / "deploy"
PACKAGES = DebianPackages(
    "bookworm", ("prometheus", "prometheus-pushgateway"), "usr/bin/prometheus-pushgateway", alone=True
)
WAIT_S = 60.0


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of Prometheus' programs."""
    return fetch("prometheus", PACKAGES) / "usr" / "bin"


def dashboard_queries() -> list[str]:
    """Every expression of the dashboard, with its variables filled in."""
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [query.replace("$destination", ".*").replace("$__rate_interval", "1m") for query in queries]


def promtool(programs: Path, *words: str | Path) -> str:
    done = subprocess.run([programs / "promtool", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_and_configuration_are_valid(programs: Path) -> None:
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    count = sum(len(group["rules"]) for group in rules["groups"])
    assert f"{count} rules found" in promtool(programs, "check", "rules", DEPLOY / "alerts.yml")
    assert "is valid" in promtool(programs, "check", "config", DEPLOY / "prometheus.yml")


def test_each_alert_fires_when_it_should_and_only_then(programs: Path) -> None:
    tests = Path(__file__).with_name("alerts.test.yml")
    assert "SUCCESS" in promtool(programs, "test", "rules", tests)
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    fired = {
        alert["alertname"]
        for test in yaml.safe_load(tests.read_text())["tests"]
        for alert in test["alert_rule_test"]
        if alert.get("exp_alerts")
    }
    assert fired == alerts


def test_the_queries_of_the_dashboard_are_valid(programs: Path, tmp_path: Path) -> None:
    rules = [{"record": f"q{number}", "expr": query} for number, query in enumerate(dashboard_queries())]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool(programs, "check", "rules", file)


def test_the_page_names_every_alert() -> None:
    page = (DEPLOY.parent / "docs" / "how-to" / "metrics.md").read_text()
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert set(re.findall(r"^\| `(Towpath\w+)` \|", page, re.MULTILINE)) == alerts


# --- running servers


@contextmanager
def running(command: list[str | Path], log: Path, is_ready: Callable[[], Any]) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            wait_for(is_ready, f"{command[0]} at work: {log}")
            yield
        finally:
            process.kill()


def get(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            body = answer.read()
    except OSError:
        return None
    return json.loads(body) if body.startswith(b"{") else body.decode() or "empty"


def wait_for(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (value := look()):
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.1)
    return value


@pytest.fixture
def prometheus(programs: Path, tmp_path: Path) -> Iterator[tuple[str, str, int]]:
    """Runs Prometheus with the configuration of ``deploy/`` at other ports, every second. Yields its address, that of
    the Pushgateway, and the port at which it expects a capture."""
    own, gateway, capture = free_port(), free_port(), free_port()
    text = (DEPLOY / "prometheus.yml").read_text()
    text = text.replace("9102", str(capture)).replace("9091", str(gateway)).replace("15s", "1s")
    (tmp_path / "prometheus.yml").write_text(text)
    (tmp_path / "alerts.yml").write_bytes((DEPLOY / "alerts.yml").read_bytes())
    with ExitStack() as stack:
        stack.enter_context(
            running(
                [programs / "prometheus-pushgateway", f"--web.listen-address=127.0.0.1:{gateway}"],
                tmp_path / "gateway.log",
                lambda: get(f"http://127.0.0.1:{gateway}/-/ready"),
            )
        )
        stack.enter_context(
            running(
                [
                    programs / "prometheus",
                    f"--config.file={tmp_path / 'prometheus.yml'}",
                    f"--storage.tsdb.path={tmp_path / 'data'}",
                    f"--web.listen-address=127.0.0.1:{own}",
                ],
                tmp_path / "prometheus.log",
                lambda: get(f"http://127.0.0.1:{own}/-/ready"),
            )
        )
        yield f"http://127.0.0.1:{own}", f"http://127.0.0.1:{gateway}", capture


def query(address: str, expression: str) -> list[dict[str, Any]]:
    answer = get(f"{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    assert answer is not None, f"{expression} is refused"
    assert answer["status"] == "success"
    series: list[dict[str, Any]] = answer["data"]["result"]
    return series


def alerts(address: str) -> dict[str, str]:
    return {alert["labels"]["alertname"]: alert["state"] for alert in get(f"{address}/api/v1/alerts")["data"]["alerts"]}


def test_prometheus_gets_what_captures_serve_and_runs_push(prometheus: tuple[str, str, int], tmp_path: Path) -> None:
    address, gateway, port = prometheus
    config = configuration(f"{{push: '{gateway}', host: 127.0.0.1}}")
    monitor = CaptureMonitor("shop", 60)
    monitor.observe(replace(connected(), connected=False))
    stats = RunStats()
    stats.add([TableResult(table="shop.t", inserted=7, files=1, seconds=0.5)], sample_manifest(1))
    with serving(config, port, monitor):
        assert push_run(config, stats, succeeded=None), "the merge"
        assert push_run(config, None, succeeded=False), "finalize, after a failure"
        [sample] = wait_for(lambda: query(address, "towpath_run_table_inserted"), "the run in Prometheus")
        labels = {"destination": "shop", "table": "shop.t", "job": "towpath"}
        assert sample["value"][1] == "7"
        assert labels.items() <= sample["metric"].items(), "the labels that were pushed are kept"
        wait_for(lambda: query(address, "towpath_capture_connected == 0"), "the capture in Prometheus")
        wait_for(lambda: alerts(address).get("TowpathApplyFails") == "firing", "an alert")
        wait_for(lambda: alerts(address).get("TowpathCaptureDisconnected") == "pending", "the other alert")

        assert push_run(config, RunStats(), succeeded=True), "the next run, without changes"
        wait_for(lambda: "TowpathApplyFails" not in alerts(address), "the end of the alert")
        assert query(address, "towpath_run_table_inserted")[0]["value"][1] == "7", "the tables of the run before stay"
        assert query(address, "towpath_run_batches")[0]["value"][1] == "0"

        empty = {text for text in dashboard_queries() if not query(address, text)}
    # No store, meta or disk is there, and rates need more time than a second.
    needs_more = re.compile(r"towpath_(store|subscription|table)_|rate\(|increase\(")
    assert {text for text in empty if not needs_more.search(text)} == set()


def test_dashboard_and_alerts_use_only_exported_names() -> None:
    exported = {metric.name for metric in (*catalogue.CAPTURE, *catalogue.RUN)}
    texts = {name: (DEPLOY / name).read_text() for name in ("alerts.yml", "grafana-dashboard.json")}
    used = {name: set(re.findall(r"\btowpath_\w+", text)) for name, text in texts.items()}
    assert all(used.values())
    for name, names in used.items():
        assert names <= exported, f"{name} uses {names - exported}"
