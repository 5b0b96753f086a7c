"""The events of changed tables: once for each run, whatever fails in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset

from cdc.airflow import TableChange, TowpathFinalizeOperator, build_dags, changes_asset, delta_asset
from cdc.airflow.changes import CHANGED
from cdc.base.errors import MergeFailedError, TargetError, UsageError
from cdc.batches.manifest import TableResult
from cdc.testing.pipeline import FakePipeline, sample_manifest

States = dict[str, str | None]
Run = Callable[..., States]
Write = Callable[..., Path]


class Events:
    """The events of assets in Airflow's database, as far as they are newer than this object."""

    def __init__(self) -> None:
        self._after = max((event.id for event in self._all()), default=0)

    def _all(self) -> list[Any]:
        from airflow.models.asset import AssetEvent
        from airflow.utils.session import create_session
        from sqlalchemy import select
        from sqlalchemy.orm import joinedload

        with create_session() as session:
            return list(
                session.scalars(select(AssetEvent).options(joinedload(AssetEvent.asset)).order_by(AssetEvent.id))
            )

    def take(self) -> list[dict[str, Any]]:
        """The ``extra`` of the new events, each with the asset's URI; oldest first."""
        events = [event for event in self._all() if event.id > self._after]
        self._after = max((event.id for event in events), default=self._after)
        return [{"uri": event.asset.uri, **event.extra} for event in events]


@pytest.fixture
def events(airflow_database: None) -> Events:
    return Events()


@pytest.fixture(autouse=True)
def clean(airflow_database: None) -> Iterator[None]:
    """Removes the events, so that each test begins with none."""
    yield
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(AssetEvent))


@pytest.fixture
def apply(write_conf: Write, run_dag: Run, pipeline: FakePipeline) -> Callable[..., States]:
    pipeline.results = [
        TableResult(table="shop.orders", inserted=3, updated=1, delta_version=7),
        TableResult(table="shop.items", delta_version=4),
        TableResult(table="shop.parked"),
    ]

    def run(retries: int = 0, more: str = "") -> States:
        file = write_conf(retries=retries) / "shop.yaml"
        file.write_text(file.read_text().replace("{apply_every", f"{{{more}apply_every"))
        return run_dag(build_dags(file.parent)["apply_shop"])

    return run


def spans(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """The batches that events of a destination tell."""
    return [(e["first_batch"], e["last_batch"]) for e in events if e["uri"] == "towpath://changes/shop"]


def test_a_run_emits_one_event_for_each_table_that_it_has_changed(
    apply: Callable[..., States], pipeline: FakePipeline, events: Events, tmp_path: Path
) -> None:
    pipeline.waiting = [sample_manifest(number) for number in (1, 2, 3)]
    assert apply()["run"] == "success"
    of_table, of_all = sorted(events.take(), key=lambda event: event["uri"])
    assert of_table.pop("uri") == f"file://{tmp_path}/lake/shop/orders"
    change = TableChange.from_extra(of_table)
    assert (change.rows, change.inserted, change.updated, change.deleted) == (12, 9, 3, 0)
    assert (change.after_seq, change.last_seq, change.first_batch, change.last_batch) == (0, 3, 1, 3)
    assert (change.kind, change.delta_version, change.schema_changed) == ("apply", 7, False)
    assert of_all["tables"] == "shop.orders"
    assert apply()["run"] == "success"
    assert events.take() == [], "nothing was applied"


def test_a_statement_that_changes_a_table_is_told_without_rows(
    apply: Callable[..., States], pipeline: FakePipeline, events: Events
) -> None:
    pipeline.waiting = [sample_manifest(1).model_copy(update={"ddl": True})]
    pipeline.results = [TableResult(table="shop.orders", delta_version=8)]
    apply()
    assert events.take() == [], "its columns are the same"
    pipeline.waiting = [sample_manifest(2).model_copy(update={"ddl": True})]
    pipeline.altered = {"shop.orders"}
    apply()
    assert [event["schema_changed"] for event in events.take() if "schema_changed" in event] == [True]


def test_what_a_run_acked_before_it_failed_is_told_by_the_next_one(
    apply: Callable[..., States], pipeline: FakePipeline, events: Events
) -> None:
    apply()
    assert spans(events.take()) == [(1, 1)]
    pipeline.waiting = [sample_manifest(number) for number in (2, 3, 4)]
    steps = iter([None, TargetError("is not a Delta table"), TargetError("is not a Delta table"), None, None])

    def step() -> None:
        error = next(steps)
        if error is not None:
            raise error

    pipeline.fail["merge"] = step
    assert apply()["run"] == "failed"
    assert (pipeline.acked, events.take()) == ([1, 2], [])
    assert apply()["run"] == "failed"
    assert spans(events.take()) == [(2, 2)], "by its fetch, although it applied nothing"
    assert apply()["run"] == "success"
    assert spans(events.take()) == [(3, 4)]


def test_a_batch_that_a_failed_run_acked_is_told_even_if_nothing_follows(
    apply: Callable[..., States], pipeline: FakePipeline, events: Events
) -> None:
    apply()
    events.take()
    pipeline.waiting = [sample_manifest(2)]
    pipeline.fail["left_out"] = _raise
    assert apply()["finalize"] == "failed"
    assert pipeline.acked == [1, 2]
    del pipeline.fail["left_out"]
    assert apply()["run"] == "success"
    assert spans(events.take()) == [(2, 2)]
    apply()
    assert events.take() == []


def _raise() -> None:
    from cdc.base.errors import TablesLeftOutError

    raise TablesLeftOutError("a table is parked")


def test_a_finalize_that_is_tried_again_tells_each_batch_once(
    apply: Callable[..., States], pipeline: FakePipeline, events: Events
) -> None:
    calls: list[int] = []

    def acked_and_dies() -> None:
        calls.append(1)
        if len(calls) == 2:  # after the ack of the first try
            raise MergeFailedError("the process was killed")

    pipeline.fail["left_out"] = acked_and_dies
    pipeline.waiting = [sample_manifest(1), sample_manifest(2)]
    assert apply(retries=2)["run"] == "success"
    assert spans(events.take()) == [(1, 2)]


def test_a_meta_that_began_anew_is_told_from_its_first_batch(
    apply: Callable[..., States], pipeline: FakePipeline, events: Events
) -> None:
    pipeline.waiting = [sample_manifest(70)]
    apply()
    assert spans(events.take()) == [(70, 70)]
    pipeline.acked.clear()
    pipeline.waiting = [sample_manifest(1)]
    apply()
    assert spans(events.take()) == [(1, 1)]
    pipeline.waiting = [sample_manifest(2)]
    apply()
    assert spans(events.take()) == [(2, 2)]


def test_events_can_be_switched_off(apply: Callable[..., States], pipeline: FakePipeline, events: Events) -> None:
    assert apply(more="table_events: false, ")["run"] == "success"
    assert events.take() == []


def test_a_template_hides_the_destination_unless_it_is_named() -> None:
    hidden = TowpathFinalizeOperator(task_id="f", conf_file="{{ var.value.conf }}")
    assert (hidden.inlets, hidden.outlets) == ([], [])
    named = TowpathFinalizeOperator(task_id="f", conf_file="{{ var.value.conf }}", destination="shop")
    assert (named.inlets, named.outlets) == ([changes_asset("shop")], [CHANGED])
    own = TowpathFinalizeOperator(task_id="f", conf_file="shop.yaml", outlets=[Asset("file:///report")])
    assert own.outlets == [Asset("file:///report"), CHANGED]
    partly = TowpathFinalizeOperator(task_id="f", conf_file="{{ var.value.folder }}/shop.yaml")
    assert partly.inlets == [changes_asset("shop")]


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("/lake/shop/orders", "file:///lake/shop/orders"),
        ("s3a://u:secret@bucket/lake/shop/orders", "s3://bucket/lake/shop/orders"),
        ("abfss://c@account.dfs.core.windows.net/lake/o", "abfss://c@account.dfs.core.windows.net/lake/o"),
        ("/lake/shop/ü #1?100%", "file:///lake/shop/%C3%BC%20%231%3F100%25"),
    ],
)
def test_the_asset_of_a_table_is_its_own_address(path: str, uri: str) -> None:
    asset = delta_asset(path)
    assert (asset.uri, asset.name) == (Asset(uri=uri).uri, uri)  # Airflow 3.0 drops the container of an abfss URI


def test_an_event_of_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="not an event of a table's change: it has no 'destination'"):
        TableChange.from_extra({"rows": 1})


def test_a_consumer_asks_for_its_own_transaction() -> None:
    change = TableChange("shop", "shop.orders", "/lake", "apply", 7, 1, 9, 3)
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    assert change.includes(f"{uuid}:5") is None
    mysql = replace(change, gtids=f"{uuid}:1-4:6")
    assert [mysql.includes(f"{uuid.upper()}:{number}") for number in ("4", "5", "2-4", "4-6")] == [
        True, False, True, False
    ]  # fmt: skip
    mariadb = replace(change, gtids="0-1-7,0-2-3")
    assert [mariadb.includes(gtid) for gtid in ("0-1-7", "0-1-8", "0-2-3", "1-1-1")] == [True, False, True, False]
    for event, text in ((mysql, "0-1-7"), (mariadb, f"{uuid}:5"), (mysql, " "), (mariadb, "")):
        with pytest.raises(UsageError, match=r"is not a|names no transaction"):
            event.includes(text)
