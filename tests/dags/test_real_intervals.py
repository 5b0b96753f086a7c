"""Complete hours in a real Airflow: each is published once, a consumer gets exactly its changes, and a cleared or
backfilled one is read again from the store, or says why it cannot be."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest

from cdc.batches.parking import park, release_parked
from cdc.batches.service import BatchService
from cdc.config import load
from cdc.meta import ParkedTable
from cdc.store.formats.state import Beginning, read_beginning, record_beginning
from cdc.testing.servers import Server
from tests.fault.support import DELTA_RS
from tests.support.apply import LOCAL, Loop
from tests.support.commit_times import SECOND, T0, set_times
from tests.support.real_airflow import REPOSITORY, RealAirflow

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

INTERVALS, CONSUMER = "intervals_shop", "orders_hourly"
SETTINGS = """\
airflow: {interval: hour, interval_wait: 20s, retries: 3, default_args: {retry_delay: 1s, max_retry_delay: 2s}}
"""
HOLD = """
if get_parsing_context().dag_id:
    from tests.support.pause import pause
    import os
    from cdc.lake import intervals
    read = intervals.content_of

    def held(config, found):
        if (Path({home!r}) / "hold").exists():
            pause(Path({home!r}) / (Path({home!r}) / "hold").read_text(), f"{{os.getpid()}}")
        return read(config, found)

    intervals.content_of = held
"""


def hours_ago(number: int) -> datetime:
    """The beginning of the hour that began this many whole hours before the present one."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=number)


def key(start: datetime) -> str:
    return start.strftime("%Y-%m-%dT%H:%M:%S")


@dataclass
class Setup:
    """A destination whose changes lie in the last two hours, and the Airflow that publishes them."""

    loop: Loop
    airflow: RealAirflow
    last: datetime
    """The beginning of the last complete hour when the changes were made."""

    @property
    def orders(self) -> str:
        return f"{self.loop.db}.orders"

    def run_of(self, dag_id: str, start: datetime, number: int = 1, limit_s: float = 240) -> dict[str, Any]:
        """Waits for the end of the DAG's n-th run for an hour, and returns it."""

        def runs_of_hour() -> list[dict[str, Any]]:
            return [run for run in self.airflow.runs(dag_id) if run["partition_key"] == key(start)]

        def is_over() -> bool:
            runs = runs_of_hour()
            return len(runs) >= number and runs[number - 1]["state"] in ("success", "failed")

        self.airflow.wait(is_over, f"run {number} of {dag_id} for {key(start)}", limit_s)
        return runs_of_hour()[number - 1]

    def events(self, table: str, start: datetime) -> list[dict[str, Any]]:
        """Returns the ``extra`` of the events of a table for an hour, oldest first."""
        name = f"towpath_shop_{self.loop.db}.{table}" if table else "towpath_shop"
        assets = self.airflow._ask("GET", "/assets", params={"name_pattern": name, "only_active": False})["assets"]
        ids = [asset["id"] for asset in assets if asset["name"] == name]
        if not ids:
            return []
        events = self.airflow._ask("GET", "/assets/events", params={"asset_id": ids[0], "limit": 100})["asset_events"]
        ours = [event for event in events if event["partition_key"] == key(start)]
        return [event["extra"] for event in sorted(ours, key=lambda event: str(event["timestamp"]))]

    def reported(self, run: dict[str, Any]) -> Any:
        """Returns what the consumer's task returned."""
        path = f"/dags/{CONSUMER}/dagRuns/{run['dag_run_id']}/taskInstances/report/xcomEntries/return_value"
        value = self.airflow._ask("GET", path)["value"]
        return json.loads(value) if isinstance(value, str) else value

    def backfill(self, start: datetime) -> None:
        """Creates a backfill of an hour, after the one before it, since a DAG may have one at a time."""

        def is_free() -> bool:
            backfills = self.airflow._ask("GET", "/backfills", params={"dag_id": INTERVALS})["backfills"]
            return all(backfill["completed_at"] is not None for backfill in backfills)

        self.airflow.wait(is_free, "the end of the last backfill")
        self.airflow._run(
            "backfill", "create", "--dag-id", INTERVALS, "--from-date", key(start), "--to-date", key(start)
        )


@pytest.fixture(scope="module")
def setup(mysql9: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    if datetime.now(UTC).minute >= 52:
        time.sleep((60 - datetime.now(UTC).minute) * 60 + 5)  # the hour must not end while the test runs
    folder = tmp_path_factory.mktemp("intervals")
    database = f"hours_{random.SystemRandom().randrange(2**32):08x}"
    mysql9.execute(f"CREATE DATABASE {database}")
    loop = Loop(folder, mysql9, database, apply=DELTA_RS, spark=LOCAL)
    with loop.config.file.open("a", encoding="utf-8") as file:
        file.write(SETTINGS)
    loop.config = load(loop.config.file)
    last = hours_ago(1)
    steps = [
        (last - timedelta(hours=3), "CREATE TABLE orders (id INT PRIMARY KEY, v INT)"),
        (last - timedelta(hours=3), "CREATE TABLE idle (id INT PRIMARY KEY)"),
        (last - timedelta(minutes=50), "INSERT INTO orders VALUES (1, 1), (2, 2), (3, 3)"),
        (last - timedelta(seconds=1), "UPDATE orders SET v = 9 WHERE id < 3"),
        (last, "DELETE FROM orders WHERE id = 3"),
        (last + timedelta(minutes=30), "INSERT INTO orders VALUES (4, 4)"),
        (last + timedelta(hours=1), "INSERT INTO orders VALUES (5, 5)"),
    ]
    loop.sql(*[statement for _, statement in steps])
    loop.capture()
    set_times(loop.config.store.path, [at.timestamp() - T0 / SECOND for at, _ in steps])
    begins = read_beginning(loop.config.store.path)
    assert begins is not None
    long_ago = int((last - timedelta(hours=5)).timestamp() * SECOND)
    record_beginning(
        loop.config.store.path,
        Beginning(begins.seq, begins.file, begins.pos, begins.gtid, long_ago, begins.reason),
    )
    loop.apply_all()
    airflow = RealAirflow(
        folder / "airflow",
        loop.config.file.parent,
        ("apply", "intervals"),
        {
            "CDC_CONF": str(loop.config.file.parent),
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
                {"type": "file", "log_file_path": str(folder / "lineage.jsonl"), "append": True}
            ),
            "AIRFLOW__OPENLINEAGE__NAMESPACE": "tests",
        },
    )
    file_of_dags = airflow.home / "dags" / "towpath.py"
    file_of_dags.write_text(file_of_dags.read_text() + HOLD.format(home=str(airflow.home)))
    example = (REPOSITORY / "examples" / "airflow" / "orders_hourly.py").read_text()
    (airflow.home / "dags" / "orders_hourly.py").write_text(example.replace("shop.orders", f"{database}.orders"))
    made = Setup(loop, airflow, last)
    try:
        airflow.start()
        airflow.wait(lambda: CONSUMER in airflow.dag_ids(), "the consumer", 300)
        airflow.unpause(CONSUMER)
        airflow.unpause(INTERVALS)
        yield made
    finally:
        airflow.stop()
        mysql9.execute(f"DROP DATABASE {database}")


def test_the_first_run_publishes_the_hour_that_ended_last(setup: Setup) -> None:
    run = setup.run_of(INTERVALS, setup.last)
    assert run["state"] == "success", setup.airflow.task_log(INTERVALS, "publish")
    (event,) = setup.events("orders", setup.last)
    assert (event["rows"], event["transactions"], event["table"]) == (2, 2, setup.orders)
    assert event["delta_version"] == setup.loop.version("orders")
    assert event["gtid"] and event["after_seq"] < event["last_seq"] and event["batch"] in event["batches"]
    (idle,) = setup.events("idle", setup.last)
    assert idle["rows"] == 0
    (whole,) = setup.events("", setup.last)
    assert (whole["left_out"], whole["last_seq"]) == ([], event["last_seq"])
    consumed = setup.run_of(CONSUMER, setup.last)
    assert consumed["state"] == "success", setup.airflow.task_log(CONSUMER, "report")
    report = setup.reported(consumed)
    assert (report["changes"], report["rows"]) == ({"delete": 1, "insert": 1}, 3)
    assert report["hour"] == setup.last.isoformat()


def test_a_backfilled_hour_is_read_from_the_store(setup: Setup) -> None:
    earlier = setup.last - timedelta(hours=1)
    setup.backfill(earlier)
    run = setup.run_of(INTERVALS, earlier)
    assert run["state"] == "success", setup.airflow.task_log(INTERVALS, "publish")
    (event,) = setup.events("orders", earlier)
    (later,) = setup.events("orders", setup.last)
    assert event["rows"] == 5
    assert event["last_seq"] == later["after_seq"]
    report = setup.reported(setup.run_of(CONSUMER, earlier))
    assert (report["changes"], report["rows"]) == ({"insert": 3, "update": 2}, 3)


def test_a_cleared_hour_is_published_again_with_the_same_transactions(setup: Setup) -> None:
    run = setup.run_of(INTERVALS, setup.last)
    before = len(setup.events("orders", setup.last))
    setup.airflow.clear(INTERVALS, run["dag_run_id"], ["publish"])
    setup.airflow.wait(lambda: len(setup.events("orders", setup.last)) > before, "another event")
    events = setup.events("orders", setup.last)
    assert len({(event["after_seq"], event["last_seq"], event["rows"]) for event in events}) == 1
    second_run = setup.run_of(CONSUMER, setup.last, number=2)
    assert setup.reported(second_run)["changes"] == {"delete": 1, "insert": 1}


def test_a_cleared_consumer_reads_the_same_hour(setup: Setup) -> None:
    run = setup.run_of(CONSUMER, setup.last)
    before = setup.reported(run)
    setup.airflow.clear(CONSUMER, run["dag_run_id"])
    setup.airflow.wait(lambda: setup.airflow.run_state(CONSUMER, run["dag_run_id"]) == "running", "a new try", 60)
    assert setup.airflow.wait_run(CONSUMER, run["dag_run_id"]) == "success"
    assert setup.reported(run) == before


def test_a_publish_that_is_killed_publishes_once(setup: Setup) -> None:
    start = setup.last - timedelta(hours=2)
    place = setup.airflow.hold()
    setup.backfill(start)
    process: psutil.Process = setup.airflow.held(place)
    setup.airflow.release_later()
    assert setup.events("orders", start) == []
    process.kill()
    setup.airflow.go_on(place)
    run = setup.run_of(INTERVALS, start)
    assert run["state"] == "success", setup.airflow.task_log(INTERVALS, "publish")
    (event,) = setup.events("orders", start)
    assert event["rows"] == 0
    assert len(setup.events("", start)) == 1


def test_an_hour_from_before_the_store_says_why(setup: Setup) -> None:
    start = setup.last - timedelta(hours=6)
    setup.backfill(start)
    assert setup.run_of(INTERVALS, start)["state"] == "failed"
    assert "cannot be proved complete: the store begins at" in setup.airflow.task_log(INTERVALS, "wait")
    assert setup.events("orders", start) == []


def test_an_hour_without_a_parked_table_is_not_green(setup: Setup) -> None:
    start, table = setup.last - timedelta(hours=3), f"{setup.loop.db}.idle"
    service = BatchService(setup.loop.config)
    with service.meta.change() as state:  # a table that has never been applied
        subscription = state.subscription("apply")
        record = subscription.tables.pop(table)
    park(service.meta, "apply", table, ParkedTable(due="snapshot", reason="a test", since=datetime.now(UTC)))
    setup.backfill(start)
    run = setup.run_of(INTERVALS, start)
    assert run["state"] == "failed"
    assert setup.airflow.states(INTERVALS, run["dag_run_id"])["left_out"] == "failed"
    assert f"{table}: it is parked since" in setup.airflow.task_log(INTERVALS, "left_out")
    assert len(setup.events("orders", start)) == 1
    assert setup.events("idle", start) == []
    with service.meta.change() as state:
        state.subscription("apply").tables[table] = record
    release_parked(service.meta, "apply", table)
    setup.airflow.clear(INTERVALS, run["dag_run_id"], ["publish"])
    setup.airflow.wait(lambda: len(setup.events("idle", start)) == 1, "the event of the table")
    assert setup.airflow.wait_run(INTERVALS, run["dag_run_id"]) == "success"
    assert len(setup.events("orders", start)) == 1, "it was published before"


def test_a_merge_tells_its_lineage(setup: Setup) -> None:
    """Through the transport of Airflow's own provider."""
    setup.loop.sql("INSERT INTO orders VALUES (6, 6), (7, 7)")
    setup.loop.capture()
    setup.airflow.unpause("apply_shop")
    run = setup.airflow.trigger("apply_shop")
    assert setup.airflow.wait_run("apply_shop", run) == "success", setup.airflow.task_log("apply_shop", "merge")
    file = setup.airflow.home.parent / "lineage.jsonl"

    def told() -> list[dict[str, Any]]:
        events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [e for e in events if e["job"]["name"] == "apply_shop.merge" and e["eventType"] == "COMPLETE"]

    setup.airflow.wait(lambda: bool(told()), "the event of the merge", 60)
    event = told()[0]
    (source,) = event["inputs"]
    assert (source["namespace"], source["name"]) == (f"mysql://127.0.0.1:{setup.loop.server.port}", setup.orders)
    (lake,) = event["outputs"]
    assert (lake["namespace"], lake["name"]) == ("file", str(setup.loop.path("orders")))
    assert lake["facets"]["version"]["datasetVersion"] == str(setup.loop.version("orders"))
    assert lake["outputFacets"]["outputStatistics"]["rowCount"] == 2
    assert [field["name"] for field in lake["facets"]["schema"]["fields"]] == ["id", "v"]
    (id_source,) = lake["facets"]["columnLineage"]["fields"]["id"]["inputFields"]
    assert (id_source["name"], id_source["field"]) == (setup.orders, "id")
