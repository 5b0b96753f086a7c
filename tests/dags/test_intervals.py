"""The intervals DAG: its runs and their partition keys, what an event carries, and how a consumer reads it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest

from cdc.airflow.compat import has_partitions

if not has_partitions():
    pytest.skip("the intervals DAG needs Airflow 3.3", allow_module_level=True)

from airflow.timetables.base import DagRunInfo, TimeRestriction

from cdc.airflow import TableInterval, build_dags, destination_asset, table_asset
from cdc.airflow.intervals import CRON, KEY_FORMAT, interval_of
from cdc.airflow.timetables import IntervalTimetable
from cdc.base.errors import UsageError
from cdc.config import AirflowConfig

Write = Callable[..., Path]


def context(key: str | None) -> dict[str, Any]:
    return {"dag_run": SimpleNamespace(partition_key=key, run_id="r", dag_id="intervals_shop")}


def test_the_shape_of_the_intervals_dag(write_conf: Write) -> None:
    folder = write_conf()
    assert "intervals_shop" not in build_dags(folder)
    file = folder / "shop.yaml"
    file.write_text(file.read_text().replace("retries: 0", "retries: 0, interval: day, timezone: Europe/Berlin"))
    dag = build_dags(folder)["intervals_shop"]
    assert dag.get_task("wait").downstream_task_ids == {"publish"}
    assert dag.get_task("publish").downstream_task_ids == {"left_out"}
    assert (dag.max_active_runs, dag.catchup) == (1, True)
    assert isinstance(dag.schedule, IntervalTimetable)
    wait: Any = dag.get_task("wait")
    assert wait.timeout == 21600


def test_the_first_run_is_for_the_interval_that_ended_last_and_none_is_left_out() -> None:
    timetable = IntervalTimetable(
        CRON["hour"], timezone="UTC", run_offset=-1, run_immediately=True, key_format=KEY_FORMAT
    )
    restriction = TimeRestriction(earliest=pendulum.datetime(2026, 1, 1), latest=None, catchup=True)
    first = timetable.next_dagrun_info_v2(last_dagrun_info=None, restriction=restriction)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    assert first is not None
    assert first.run_after in (now, now + timedelta(hours=1)), "the clock may strike now"
    assert first.partition_key == (first.run_after - timedelta(hours=1)).strftime(KEY_FORMAT)
    old = pendulum.datetime(2026, 5, 1, 3)
    last = DagRunInfo(run_after=old, data_interval=None, partition_date=old, partition_key="x")
    following = timetable.next_dagrun_info_v2(last_dagrun_info=last, restriction=restriction)
    assert following is not None and following.partition_key == "2026-05-01T03:00:00"
    restored = IntervalTimetable.deserialize(timetable.serialize())
    assert restored.serialize() == timetable.serialize()


@pytest.mark.parametrize(
    ("settings", "key", "start", "end"),
    [
        ({"interval": "hour"}, "2026-11-23T05:00:00", "2026-11-23T05:00Z", "2026-11-23T06:00Z"),
        ({"interval": "day"}, "2026-11-23T00:00:00", "2026-11-23T00:00Z", "2026-11-24T00:00Z"),
        ({"interval": "day", "timezone": "Europe/Berlin"}, "2026-10-25T00:00:00", "2026-10-24T22:00Z", "2026-10-25T23:00Z"),
        ({"interval": "day", "timezone": "Europe/Berlin"}, "2026-03-29T00:00:00", "2026-03-28T23:00Z", "2026-03-29T22:00Z"),
    ],
)  # fmt: skip
def test_the_interval_of_a_run(settings: dict[str, Any], key: str, start: str, end: str) -> None:
    """A day in which clocks are set has 23 or 25 hours."""
    partition_key, interval = interval_of(AirflowConfig(**settings), context(key))
    assert partition_key == key
    assert interval.start == datetime.fromisoformat(start)
    assert interval.end == datetime.fromisoformat(end)


@pytest.mark.parametrize("key", [None, "", "2026-11-23", "2026-11-23T05:30:00", "yesterday"])
def test_a_run_for_no_interval_says_how_to_start_one(key: str | None) -> None:
    with pytest.raises(UsageError, match="airflow backfill create --dag-id intervals_shop"):
        interval_of(AirflowConfig(interval="hour"), context(key))
    with pytest.raises(UsageError, match="is not the beginning of a day in UTC"):
        interval_of(AirflowConfig(interval="day"), context("2026-11-23T05:00:00"))


def test_names_of_assets_are_ascii() -> None:
    asset = table_asset("shop", "shop.<script>/ü.x")
    assert asset.uri == "towpath://lake/shop/shop/%3Cscript%3E%2F%C3%BC.x"
    assert asset.name.isascii()
    assert destination_asset("shop").name == "towpath_shop"
    with pytest.raises(UsageError, match="not the name of a table"):
        table_asset("shop", "orders")


def made(**changed: Any) -> TableInterval:
    start = datetime(2026, 11, 23, 5, tzinfo=UTC)
    values: dict[str, Any] = {
        "destination": "shop", "table": "shop.orders", "path": "/lake/shop/orders", "start": start,
        "end": start + timedelta(hours=1), "after_seq": 1, "last_seq": 9, "gtid": "u:7", "file": "b.1", "pos": 4, "batch": 2,
        "batches": (1, 2), "delta_version": 3, "applied_seq": 9, "rows": 5, "transactions": 2, "ddl": 0,
    }  # fmt: skip
    return TableInterval(**values | changed)


def event(interval: TableInterval, minute: int, key: str = "k") -> Any:
    return SimpleNamespace(
        extra=interval.as_extra(), timestamp=datetime(2026, 11, 23, 6, minute, tzinfo=UTC), partition_key=key
    )


def test_a_consumer_reads_the_newest_event_of_its_interval() -> None:
    asset = table_asset("shop", "shop.orders")
    events = [event(made(rows=5), 1), event(made(rows=6), 9), event(made(rows=7), 3)]
    interval = TableInterval.of({**context("k"), "triggering_asset_events": {asset: events}}, asset)
    assert (interval.rows, interval.seqs) == (6, {"after_seq": 1, "last_seq": 9})
    assert TableInterval.from_extra(made().as_extra()) == made()
    other = [event(made(), 1), event(made(), 2, "l")]
    with pytest.raises(UsageError, match="events of 2 intervals"):
        TableInterval.of({**context("k"), "triggering_asset_events": {asset: other}}, asset)
    with pytest.raises(UsageError, match=r"no event of the asset towpath_shop_shop\.orders has started"):
        TableInterval.of({**context("k"), "triggering_asset_events": {}}, asset)
    with pytest.raises(UsageError, match="not an event of a table's interval"):
        TableInterval.from_extra({"rows": 5})
