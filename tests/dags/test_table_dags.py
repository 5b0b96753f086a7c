"""The DAGs that work on single tables: snapshot, backfill and verify."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fastapi.testclient import TestClient

from cdc.airflow import (
    TowpathMaintainOperator,
    TowpathReplayOperator,
    TowpathSnapshotOperator,
    TowpathVerifyOperator,
    build_dags,
    factory,
    forms,
    proved_asset,
    table_operators,
)
from cdc.airflow.base import DestinationOperator
from cdc.base.errors import MergeFailedError, SourceRefusedError, UsageError
from cdc.config import load
from cdc.lake import attestation, pipeline
from cdc.lake.second_opinion.report import Disagreement, SecondOpinion
from cdc.lake.verify.report import State
from cdc.store.formats.state import Beginning, record_beginning
from tests.dags.conftest import retry_at_once
from tests.support.table_jobs import FakeJobs, report_of
from tests.support.unit_batches import make_store

States = dict[str, str | None]
Write = Callable[..., Path]
FORM = {"kind": "snapshot", "tables": ["shop.orders"]}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    fake = FakeJobs()
    monkeypatch.setattr(table_operators, "pipeline", fake)
    retry_at_once(monkeypatch)
    return fake


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """The log of the operators."""
    log = logging.getLogger("tests.tables")
    caplog.set_level(logging.INFO, "tests.tables")
    monkeypatch.setattr(DestinationOperator, "log", log)
    return lambda: "\n".join(record.getMessage() for record in caplog.records if record.name == "tests.tables")


@pytest.fixture
def backfill(write_conf: Write, run_dag: Callable[..., States], fake: FakeJobs) -> Callable[..., States]:
    def run(retries: int = 0, **form: Any) -> States:
        return run_dag(build_dags(write_conf(retries=retries))["backfill_shop"], conf=FORM | form)

    return run


# --- snapshot and verify ---------------------------------------------------------------------------------------------


def test_due_tables_are_loaded(write_conf: Write, run_dag: Callable[..., States], fake: FakeJobs) -> None:
    dag = build_dags(write_conf())["snapshot_shop"]
    assert run_dag(dag) == {"run": "success", "snapshot": "skipped"}
    fake.due = ["shop.orders"]
    assert run_dag(dag) == {"run": "success", "snapshot": "success"}
    assert fake.calls == [("snapshot", None), ("snapshot", None)]


def test_before_capture_no_snapshot_is_tried(write_conf: Write, run_dag: Callable[..., States], fake: FakeJobs) -> None:
    assert not pipeline.has_captured(load(write_conf() / "shop.yaml"))
    fake.captured, fake.due = False, ["shop.orders"]
    assert run_dag(build_dags(write_conf())["snapshot_shop"]) == {"run": "success", "snapshot": "skipped"}
    assert fake.calls == []


def test_a_retryable_error_of_a_snapshot_is_retried_and_a_permanent_one_is_not(
    write_conf: Write, run_dag: Callable[..., States], fake: FakeJobs
) -> None:
    dag = build_dags(write_conf(retries=2))["snapshot_shop"]
    fake.due, fake.errors = ["shop.orders"], [MergeFailedError("the driver was killed")]
    assert run_dag(dag)["run"] == "success"
    assert len(fake.calls) == 2
    fake.errors = [SourceRefusedError("the password is wrong"), SourceRefusedError("again")]
    assert run_dag(dag)["run"] == "failed"
    assert len(fake.calls) == 3


@pytest.mark.parametrize(
    ("state", "run", "calls"),
    [("proved", "success", 1), ("differs", "failed", 1), ("partial", "failed", 1), ("unknown", "failed", 3)],
)
def test_a_verification_fails_if_something_differs(
    write_conf: Write, run_dag: Callable[..., States], fake: FakeJobs, state: State, run: str, calls: int
) -> None:
    """Another try may tell what could not be told, and changes nothing about a difference."""
    fake.report = report_of(state)
    assert run_dag(build_dags(write_conf(retries=2))["verify_shop"])["run"] == run
    assert fake.calls == [("verify", None)] * calls


def test_proved_tables_emit_events(
    write_conf: Write, run_dag: Callable[..., States], fake: FakeJobs, api: TestClient
) -> None:
    dag = build_dags(write_conf())["verify_shop"]
    asset = proved_asset("shop", "shop.orders")

    def events() -> list[Any]:
        assets = api.get("/api/v2/assets", params={"name_pattern": asset.name, "only_active": False}).json()["assets"]
        ids = [entry["id"] for entry in assets if (entry["name"], entry["uri"]) == (asset.name, asset.uri)]
        if not ids:
            return []
        events_of_asset = api.get("/api/v2/assets/events", params={"asset_id": ids[0]}).json()["asset_events"]
        return [event["extra"] for event in sorted(events_of_asset, key=lambda event: event["id"])]

    before = len(events())
    assert run_dag(dag)["run"] == "success"
    fake.report = report_of("differs")
    assert run_dag(dag)["run"] == "failed"
    (extra,) = events()[before:]
    expected = {"destination": "shop", "table": "shop.orders", "delta_version": 4, "applied_seq": 4711, "seq": 4712}
    assert extra.items() >= (expected | {"gtids": "a:1-9", "rows": 12345, "sum": 99, "attestation": None}).items()
    assert extra["path"].endswith("/lake/shop/orders")


def test_a_verification_tells_its_lineage(write_conf: Write, fake: FakeJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("airflow.providers.openlineage", reason="towpath[openlineage]")
    monkeypatch.setattr("airflow.providers.openlineage.conf.is_disabled", lambda: False)
    task = TowpathVerifyOperator(task_id="verify", conf_file=str(write_conf() / "shop.yaml"))
    assert task.get_openlineage_facets_on_complete(None).inputs == []
    fake.report = report_of("differs")
    with pytest.raises(Exception, match="differ from the source"):
        task.execute({"ti": Pushed()})  # type: ignore[typeddict-item]
    source, lake = task.get_openlineage_facets_on_complete(None).inputs
    assert (source.namespace, source.name) == ("mysql://127.0.0.1:1", "shop.orders")
    assert lake.namespace == "file" and lake.name.endswith("/lake/shop/orders")
    (assertion,) = lake.inputFacets["dataQualityAssertions"].assertions
    assert (assertion.assertion, assertion.success) == ("equal_to_source", False)
    assert lake.facets["version"].datasetVersion == "4"


def test_a_verification_is_signed(
    write_conf: Write, fake: FakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attestation, "write", lambda *words: fake.calls.append(("write", *words[1:])))
    text = (write_conf() / "shop.yaml").read_text()
    file = tmp_path / "{{ run_id }}.json"
    task = TowpathVerifyOperator(task_id="verify", conf_file=str(write_conf() / "shop.yaml"), attest=str(file))
    assert "attest" in task.template_fields
    with pytest.raises(Exception, match="there is no key to sign an attestation with"):
        task.execute({"ti": Pushed()})  # type: ignore[typeddict-item]
    assert fake.calls == []
    write_conf(text=text + "verify: {signing_key_env: TOWPATH_TEST_SIGNING_KEY}\n")
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    monkeypatch.setenv("TOWPATH_TEST_SIGNING_KEY", pem.decode())
    fake.report = report_of("differs")
    with pytest.raises(Exception, match="differ from the source"):
        task.execute({"ti": Pushed()})  # type: ignore[typeddict-item]
    assert fake.calls == [("verify", None), ("write", fake.report, file)]


def test_the_report_is_a_table_in_the_log(write_conf: Write, fake: FakeJobs, lines: Callable[[], str]) -> None:
    fake.report = report_of("differs")
    task = TowpathVerifyOperator(task_id="verify", conf_file=str(write_conf() / "shop.yaml"))
    with pytest.raises(Exception, match=r"The tables of shop differ from the source: shop\.orders"):
        task.execute({"ti": Pushed()})  # type: ignore[typeddict-item]
    assert "| table       | state   |   rows | commits | gaps | chunks | differences | verdict  |" in lines()
    assert "| shop.orders | differs | 12,345 |       4 |    0 |     16 |           1 | 1 DIFFER |" in lines()
    assert "shop.orders: key {'id': '7'}: source {'v': 'a'}, Delta None" in lines()


def test_a_second_opinion_that_differs_is_in_the_log(
    write_conf: Write, fake: FakeJobs, lines: Callable[[], str]
) -> None:
    second_opinion = SecondOpinion(seed=7, asked=2000, rows=2, values=4)
    second_opinion.leave_out("shop.orders", "took", "the reason", 3)
    second_opinion.differ(Disagreement("binlog.000012", 4711, 5, "shop.orders", "n", "new", "-1", "255"))
    fake.report = report_of("differs", second_opinion)
    task = TowpathVerifyOperator(task_id="verify", conf_file=str(write_conf() / "shop.yaml"))
    with pytest.raises(Exception, match="A second library reads other values in the store of shop"):
        task.execute({"ti": Pushed()})  # type: ignore[typeddict-item]
    assert (
        "second opinion: 1 DIFFER; 4 values of 2 rows compared with mysql-replication, 3 left out (seed 7)" in lines()
    )
    assert "binlog.000012:4711, seq 5, shop.orders.n (new): Towpath -1, mysql-replication 255" in lines()
    assert "not compared: shop.orders.took (3 values): the reason" in lines()


def test_the_schedules(write_conf: Write) -> None:
    dags = build_dags(write_conf())
    assert dags["snapshot_shop"].schedule == timedelta(seconds=60)
    assert [dags[f"{kind}_shop"].schedule for kind in ("verify", "backfill")] == [None, None]
    text = (write_conf() / "shop.yaml").read_text().replace("retries: 0", "retries: 0, verify_every: 1d")
    assert build_dags(write_conf(text=text))["verify_shop"].schedule == timedelta(days=1)


# --- backfill --------------------------------------------------------------------------------------------------------


def test_a_backfill_plans_works_and_ends(backfill: Callable[..., States], fake: FakeJobs) -> None:
    assert backfill() == {
        "run": "success",
        "plan": "success",
        "snapshot": "success",
        "replay": "skipped",
        "verify": "skipped",
        "finalize": "success",
    }
    assert fake.calls == [("plan_snapshot", ["shop.orders"]), ("snapshot", ["shop.orders"])]


def test_a_replay_gets_the_fields_of_the_form(backfill: Callable[..., States], fake: FakeJobs) -> None:
    states = backfill(kind="replay", to="2026-11-21T10:00:00Z", into="./copy", mode="append")
    assert (states["replay"], states["snapshot"], states["finalize"]) == ("success", "skipped", "success")
    arguments = {"from_": None, "to": "2026-11-21T10:00:00Z", "into": "./copy", "mode": "append"}
    assert fake.calls == [(step, ["shop.orders"], arguments) for step in ("plan_replay", "replay")]


def test_a_time_of_the_date_picker_is_a_point(backfill: Callable[..., States], fake: FakeJobs) -> None:
    time = "2026-11-21T10:00:00.000+01:00"
    assert backfill(kind="replay", from_time=time, dry_run=None)["replay"] == "success"
    assert fake.calls[1] == ("replay", ["shop.orders"], {"from_": time, "to": None, "into": None, "mode": None})


def test_a_verification_by_hand(backfill: Callable[..., States], fake: FakeJobs) -> None:
    assert backfill(kind="verify", tables=["shop.orders", "shop.items"])["run"] == "success"
    assert fake.calls == [("verify", ["shop.orders", "shop.items"])]
    fake.report = report_of("differs")
    states = backfill(kind="verify")
    assert (states["run"], states["verify"], states["finalize"]) == ("failed", "failed", "failed")


def test_a_dry_run_ends_with_the_plan(
    backfill: Callable[..., States], fake: FakeJobs, lines: Callable[[], str]
) -> None:
    states = backfill(dry_run=True)
    assert states == {
        "run": "success",
        "plan": "success",
        **dict.fromkeys(("snapshot", "replay", "verify", "finalize"), "skipped"),
    }
    assert fake.calls == [("plan_snapshot", ["shop.orders"])]
    assert "Load these tables anew from the source: `shop.orders`." in lines()
    assert "Together about 1,000 rows, 2.0 KiB, 1 min 30 s." in lines()
    assert "- Replaces shop.orders: 7 rows.\n- The store begins." in lines()


def test_a_backfill_that_fails_says_how_to_go_on(backfill: Callable[..., States], fake: FakeJobs) -> None:
    fake.errors = [SourceRefusedError("the password is wrong")]
    states = backfill(retries=2)
    assert (states["run"], states["snapshot"], states["finalize"]) == ("failed", "failed", "failed")
    assert [call[0] for call in fake.calls] == ["plan_snapshot", "snapshot"], "no retry"
    assert backfill()["run"] == "success", "the same form again"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"tables": ["crm.people"]}, r"'crm\.people' is not a table that shop captures"),
        ({"tables": ["orders"]}, "'orders' is not a table that shop captures"),
        ({"tables": []}, "no table is named"),
        ({"to": "7"}, "to and kind snapshot contradict each other"),
        ({"kind": "verify", "mode": "append", "from": "7"}, "mode, from and kind verify contradict each other"),
        ({"kind": "replay", "to": "7", "to_time": "2026-11-21T10:00:00Z"}, "to and to_time contradict each other"),
        ({"kind": "drop"}, "'drop' is not a kind of backfill"),
    ],
)
def test_forms_that_are_refused(write_conf: Write, form: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        forms.read_form(load(write_conf() / "shop.yaml"), FORM | form)


def test_a_refused_form_fails_the_run_at_once(backfill: Callable[..., States], fake: FakeJobs) -> None:
    states = backfill(retries=2, tables=["crm.people"])
    assert (states["run"], states["plan"], states["finalize"]) == ("failed", "failed", "failed")
    assert fake.calls == []


def test_the_form_has_a_schema(write_conf: Write) -> None:
    dag: DAG = build_dags(write_conf())["backfill_shop"]
    schemas = {name: dag.params.get_param(name).schema for name in dag.params}
    assert list(schemas) == ["kind", "tables", "dry_run", "from_time", "to_time", "into", "mode", "from", "to"]
    required = [name for name, schema in schemas.items() if "null" not in schema["type"]]
    assert required == ["kind", "tables"], "Airflow's form marks these"
    pickers = [name for name, schema in schemas.items() if schema.get("format") == "date-time"]
    assert pickers == ["from_time", "to_time"]
    assert schemas["kind"]["enum"] == ["snapshot", "replay", "verify"]
    assert schemas["tables"]["items"] == {"type": "string"}
    assert "examples" not in schemas["tables"], "a pattern names no tables, and no store is there: they are typed"
    assert None in schemas["mode"]["enum"]


def test_the_form_offers_the_tables_that_are_known(write_conf: Write) -> None:
    text = (write_conf() / "shop.yaml").read_text()
    file = write_conf(text=text.replace(r"['shop\..*']", r"['shop\.orders', 'shop\.order\-items']")) / "shop.yaml"
    assert forms.known_tables(load(file)) == ["shop.order-items", "shop.orders"]
    file = write_conf(text=text.replace(r"['shop\..*']", r"['shop\.orders', 'crm\.[ab]']")) / "shop.yaml"
    assert forms.known_tables(load(file)) == []


def test_the_form_says_since_which_day_the_store_has_changes(write_conf: Write) -> None:
    """Every second parse makes the same text: another one would be another version of the DAG."""
    config = load(write_conf() / "shop.yaml")

    def texts() -> list[str | None]:
        return [field.description for field in forms.fields(config).values()]

    assert not [text for text in texts() if "goes back" in str(text)], "nothing was captured yet"
    make_store(config.store.path)
    record_beginning(config.store.path, Beginning(1, "binlog.000007", 4, None, 1_764_460_800_000_000, "first start"))
    (since, _) = [text for text in texts() if "The store goes back to 2025-11-30 (UTC);" in str(text)]
    assert "committed at this time or later" in str(since)
    assert texts() == texts()
    assert not [text for text in texts() if "`" in str(text)], "it would cover the line above"


def test_a_broken_file_keeps_its_dags(write_conf: Write) -> None:
    dags = build_dags(write_conf("wrong", text="sauce: {}\n"))
    assert sorted(dags) == [
        f"{kind}_wrong" for kind in ("apply", "backfill", "capture", "maintain", "snapshot", "verify")
    ]
    assert all(factory.ERROR_TAG in dag.tags for dag in dags.values())


def test_killing_a_job_stops_its_driver(write_conf: Write, fake: FakeJobs) -> None:
    TowpathSnapshotOperator(task_id="snapshot", conf_file=str(write_conf() / "shop.yaml")).on_kill()
    assert fake.calls == [("stop",)]


# --- in a DAG of one's own -------------------------------------------------------------------------------------------


def own_dag(*tasks: Callable[[], object], **params: Any) -> DAG:
    """A DAG of a team, with these tasks."""
    dag = DAG("own", schedule=None, max_active_runs=1, params=params)
    with dag:
        for make in tasks:
            make()
    return dag


def test_operators_with_templates(write_conf: Write, run_dag: Callable[..., States], fake: FakeJobs) -> None:
    file = str(write_conf() / "shop.yaml")
    dag = own_dag(
        lambda: TowpathReplayOperator(
            task_id="replay",
            conf_file="{{ params.conf }}",
            tables="{{ params.tables | join(',') }}",
            from_="{{ params.from or '' }}",
            to="{{ params.to }}",
            into="./copy",
        ),
        lambda: TowpathVerifyOperator(task_id="verify", conf_file=file, tables=["shop.{{ params.tables[0][5:] }}"]),
        conf=file,
        tables=["shop.orders", "shop.items"],
        to="2026-11-21T10:00:00Z",
        **{"from": None},
    )
    assert run_dag(dag) == {"run": "success", "replay": "success", "verify": "success"}
    arguments = {"from_": None, "to": "2026-11-21T10:00:00Z", "into": "./copy", "mode": None}
    assert sorted(fake.calls) == [
        ("replay", ["shop.orders", "shop.items"], arguments),
        ("verify", ["shop.orders"]),
    ]


def test_named_tables_are_loaded_and_others_refused(
    write_conf: Write, run_dag: Callable[..., States], fake: FakeJobs
) -> None:
    file = str(write_conf() / "shop.yaml")
    fake.due = ["shop.items"]
    dag = own_dag(
        lambda: TowpathSnapshotOperator(task_id="known", conf_file=file, tables="shop.orders, shop.orders"),
        lambda: TowpathSnapshotOperator(task_id="foreign", conf_file=file, tables=["crm.people"], retries=2),
        lambda: TowpathVerifyOperator(task_id="none", conf_file=file, tables="", retries=2),
    )
    assert run_dag(dag) == {"run": "failed", "known": "success", "foreign": "failed", "none": "failed"}
    assert fake.calls == [("snapshot", ["shop.orders"])]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "a replay needs tables"),
        ({"tables": ["shop.orders"], "plan_task_id": "plan"}, "tables and plan_task_id contradict each other"),
        ({"plan_task_id": "plan", "to": "7"}, "from_, to, into and mode contradict plan_task_id"),
    ],
)
def test_arguments_that_contradict_each_other(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TowpathReplayOperator(task_id="replay", conf_file="shop.yaml", **arguments)


def test_maintenance(
    write_conf: Write, run_dag: Callable[..., States], fake: FakeJobs, lines: Callable[[], str]
) -> None:
    file = str(write_conf() / "shop.yaml")
    task = TowpathMaintainOperator(task_id="maintain", conf_file=file)
    assert task.execute({})["removed_bytes"] == 2048
    assert "2 segments removed, 2.0 KiB; 4.0 KiB are left. Snapshots removed: shop.orders." in lines()
    assert "Subscriber audit was cut off" in lines()
    fake.errors = [UsageError("this store follows another one")]
    dag = own_dag(lambda: TowpathMaintainOperator(task_id="maintain", conf_file=file, dry_run=True, retries=2))
    assert run_dag(dag)["run"] == "failed"
    dag = own_dag(lambda: TowpathMaintainOperator(task_id="maintain", conf_file=file, tables="shop.a", vacuum=False))
    assert run_dag(dag)["run"] == "success"
    assert fake.calls == [
        ("maintain", [], {"dry_run": False, "store_only": False, "vacuum": True}),
        ("maintain", [], {"dry_run": True, "store_only": False, "vacuum": True}),
        ("maintain", ["shop.a"], {"dry_run": False, "store_only": False, "vacuum": False}),
    ]


class Pushed:
    """A task instance that keeps XComs."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.values[key] = value
