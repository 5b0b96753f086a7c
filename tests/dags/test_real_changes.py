"""The events of changed tables with a real source, store, Spark and lake: rows, statements, snapshots and replays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cdc.airflow import build_dags, changes, delta_asset
from cdc.config import DagKind
from tests.dags.conftest import retry_at_once
from tests.dags.test_changes import Events, clean, events
from tests.support.apply import Loop
from tests.support.capturing import capturing

__all__ = ["clean", "events"]
pytestmark = pytest.mark.long
States = dict[str, str | None]


@pytest.fixture
def loop(new_loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Loop:
    new_loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "CREATE TABLE idle (id INT PRIMARY KEY)")
    new_loop.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    new_loop.capture()
    retry_at_once(monkeypatch)
    return new_loop


@pytest.fixture
def run(loop: Loop, run_dag: Callable[..., States]) -> Callable[..., States]:
    def run(dag: DagKind, **form: Any) -> States:
        return run_dag(build_dags(loop.config.file.parent, [dag])[f"{dag}_shop"], conf=form or None)

    return run


def of_tables(loop: Loop, events: Events) -> dict[str, dict[str, Any]]:
    """The new events of tables, by the tables' names; one each."""
    new = [event for event in events.take() if event["uri"].startswith("file:")]
    by_name = {event["table"].partition(".")[2]: event for event in new}
    assert len(by_name) == len(new)
    for name, event in by_name.items():
        assert event["uri"] == delta_asset(str(loop.path(name))).uri
        assert event["delta_version"] == loop.version(name)
    return by_name


def test_rows_and_statements(loop: Loop, run: Callable[..., States], events: Events) -> None:
    assert run("apply")["run"] == "success"
    first = of_tables(loop, events)
    assert {name: (e["rows"], e["schema_changed"]) for name, e in first.items()} == {"t": (3, True), "idle": (0, True)}
    loop.sql("UPDATE t SET v = 'x' WHERE id < 3", "DELETE FROM t WHERE id = 3")
    loop.capture()
    assert run("apply")["run"] == "success"
    (event,) = of_tables(loop, events).values()
    assert (event["inserted"], event["updated"], event["deleted"], event["schema_changed"]) == (0, 2, 1, False)
    assert (
        event["gtid"].rpartition("-")[0] in event["gtids"] and event["first_commit_time"] <= event["last_commit_time"]
    )
    assert event["after_seq"] >= first["t"]["last_seq"]
    loop.sql("ALTER TABLE t ADD COLUMN w INT", "TRUNCATE TABLE idle")
    loop.capture()
    assert run("apply")["run"] == "success"
    assert {name: e["schema_changed"] for name, e in of_tables(loop, events).items()} == {"t": True}
    assert run("apply")["run"] == "success"
    assert of_tables(loop, events) == {}


def test_a_snapshot_and_a_replay(
    loop: Loop, run: Callable[..., States], events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("apply")
    events.take()
    real, calls = changes._load_of, []

    def dies_once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("the process ends after its commit")
        return real(*arguments)

    monkeypatch.setattr(changes, "_load_of", dies_once)
    tables = [f"{loop.db}.t"]
    with capturing(loop.config):
        assert run("backfill", tables=tables, kind="snapshot")["run"] == "success"
    (event,) = of_tables(loop, events).values()
    assert (event["kind"], event["rows"], event["table"]) == ("snapshot", 3, tables[0])
    assert len(calls) >= 2, "a second try has told what the first one loaded"
    assert run("backfill", tables=tables, kind="replay")["run"] == "success"
    (event,) = of_tables(loop, events).values()
    assert (event["kind"], event["table"]) == ("replay", tables[0])
