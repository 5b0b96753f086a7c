"""``cdc capture --metrics-port`` at a real MySQL: what it serves while it reads, without its source, and after."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from prometheus_client.parser import text_string_to_metric_families

from cdc.batches.service import BatchService
from cdc.config import DestinationConfig, load
from cdc.meta import ParkedTable
from cdc.testing.servers import HOST, USER, Server
from cdc.watch.metrics import catalogue
from tests.support.configurations import server_id_of

Samples = dict[tuple[str, tuple[str, ...]], float]
WAIT_S = 60.0
PARTS = ("store", "disk", "archive", "subscriptions")


def write(folder: Path, server: Server, db: str) -> DestinationConfig:
    file = folder / "conf" / "shop.yaml"
    file.parent.mkdir()
    file.write_text(
        f"source: {{url: 'mysql://{USER}@{HOST}:{server.port}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: {server_id_of(file)}, start: now}}\ntables: {{include: ['{db}\\..*']}}\n"
        f"store: {{path: store, archive: 'file://{folder}/archive'}}\n"
        "meta: {path: meta}\napply: {target: lake}\nbatch: {max_wait_s: 0}\n"
        "metrics: {host: 127.0.0.1, unhealthy_after: 1s}\n"
    )
    return load(file)


@contextmanager
def serving(config: DestinationConfig, errors: IO[bytes]) -> Iterator[str]:
    """Runs the command, and yields the address that its log names."""
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(config.file.parent), "capture", "--metrics-port", "0"]
    process = subprocess.Popen(command, stderr=errors)
    try:
        name = Path(errors.name)
        yield wait_for(lambda: re.search(r"address=(http://127\.0\.0\.1:\d+)/metrics", name.read_text()), "address")[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, name.read_text()
    finally:
        process.kill()
        process.wait()


def wait_for(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (value := look()):
        assert time.monotonic() < deadline, f"{what} did not come true"
        time.sleep(0.05)
    return value


def health(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(address: str) -> Samples:
    """The samples of Towpath by name and labels beside the destination."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("towpath_"):
                assert sample.labels.pop("destination") == "shop"
                samples[sample.name, tuple(sample.labels.values())] = sample.value
    assert "process_resident_memory_bytes" in text
    return samples


def test_a_capture_serves_its_metrics_and_its_health(tmp_path: Path) -> None:
    log = tmp_path / "capture.log"
    with Server("mysql9") as server, log.open("wb") as errors:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        config = write(tmp_path, server, "shop")
        with serving(config, errors) as address:
            wait_for(lambda: scrape(address).get(("towpath_capture_connected", ())) == 1, "a connection")
            assert health(address)[0] == 200
            server.execute(*(f"INSERT INTO shop.t VALUES ({n})" for n in range(5)))
            wait_for(lambda: scrape(address).get(("towpath_capture_transactions_total", ())) == 5, "five transactions")
            lease = BatchService(config).get("test", wait_s=WAIT_S)
            assert lease is not None
            with BatchService(config).meta.change() as state:
                parked = ParkedTable(due="hold", reason="A reason.", since=datetime.now(UTC))
                state.subscriptions["apply"].parked["shop.gone"] = parked

            # Counters count at once; times and positions are reported once a second.
            wait_for(lambda: ("towpath_capture_last_commit_timestamp_seconds", ()) in scrape(address), "a report")
            metrics = wait_for(lambda: 0 < lag_of(samples := scrape(address)) < 10 and samples, "a small lag")
            served = {name for name, _ in metrics}
            # Nothing is unread but in the newest file, which a server never purges.
            never = {"towpath_source_purge_timestamp_seconds", "towpath_source_last_failover_timestamp_seconds"}
            never |= {"towpath_alarms", "towpath_alarm_messages_total"}  # no alarms are configured
            assert served == {metric.name for metric in catalogue.CAPTURE} - never
            assert metrics["towpath_source_failovers_total", ()] == 0
            assert metrics["towpath_store_transactions", ()] == 5
            assert metrics["towpath_capture_events_total", ()] >= 5 * 3
            assert metrics["towpath_store_last_seq", ()] == lease.manifest.last_seq
            assert metrics["towpath_subscription_behind_transactions", ("apply",)] == 5
            assert metrics["towpath_subscription_outstanding_batches", ("apply",)] == 1
            assert metrics["towpath_subscription_expired_batches", ("apply",)] == 0
            assert metrics["towpath_subscription_lag_seconds", ("apply",)] > 0
            assert metrics["towpath_table_parked", ("apply", "shop.gone")] == 1
            assert (
                metrics["towpath_archive_failing_seconds", ()] == metrics["towpath_archive_waiting_segments", ()] == 0
            )
            assert metrics["towpath_store_disk_free_bytes", ()] < metrics["towpath_store_disk_total_bytes", ()]
            assert {metrics["towpath_scrape_success", (part,)] for part in PARTS} == {1}

            BatchService(config).ack(lease.batch, lease.token)
            metrics = scrape(address)
            assert metrics["towpath_subscription_behind_transactions", ("apply",)] == 0
            assert metrics["towpath_subscription_lag_seconds", ("apply",)] == 0

            server.execute("FLUSH BINARY LOGS", "INSERT INTO shop.t VALUES (5)")
            wait_for(lambda: scrape(address)["towpath_archive_seq", ()] > 0, "a segment in the archive")
            assert scrape(address)["towpath_archive_bytes", ()] > 0

            server.kill()
            _, text = wait_for(lambda: (now := health(address))[0] == 503 and now, "503")
            assert re.fullmatch(
                r"shop: the connection to the source is lost, for \d+ s; metrics\.unhealthy_after is 1 s\.\n", text
            ), text
            lost = scrape(address)
            assert lost["towpath_capture_connected", ()] == 0
            assert lost["towpath_capture_reconnects_total", ()] >= 1
            time.sleep(1)
            assert lag_of(scrape(address)) > lag_of(lost) + 0.9, "a lag without a connection grows"
            server.restart()
            wait_for(lambda: health(address)[0] == 200, "health after the restart")

            (tmp_path / "meta").rename(tmp_path / "away")
            (tmp_path / "meta").write_text("no folder")
            assert scrape(address)["towpath_scrape_success", ("subscriptions",)] == 0
            assert scrape(address)["towpath_scrape_success", ("store",)] == 1
            (tmp_path / "meta").unlink()
            (tmp_path / "away").rename(tmp_path / "meta")
    assert log.read_text().count("metrics could not be read") == 1


def lag_of(samples: Samples) -> float:
    return samples.get(("towpath_capture_lag_seconds", ()), 0)
