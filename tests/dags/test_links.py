"""The extra links of tasks, as Airflow's API gives them to its pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdc.airflow import build_dags
from cdc.airflow.links import most_changed
from cdc.batches.manifest import TableResult
from cdc.testing.pipeline import FakePipeline

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

States = dict[str, str | None]
LINKS = (
    "links: {manifest: 'https://files.example/{destination}/{batch}?p={path}',"
    " table: 'https://lake.example/{db}/{table}/history', spark: 'https://history.example/'}"
)


@pytest.fixture
def run(
    write_conf: Callable[..., Path], run_dag: Callable[..., States], pipeline: FakePipeline, api: TestClient
) -> Callable[..., dict[str, dict[str, str | None]]]:
    """Runs the apply DAG and returns the links of its tasks, by task."""

    def links(settings: str = "") -> dict[str, dict[str, str | None]]:
        file = write_conf() / "shop.yaml"
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("airflow: {", f"airflow: {{{settings}, " if settings else "airflow: {"))
        run_dag(build_dags(file.parent)["apply_shop"])
        (last,) = api.get("/api/v2/dags/apply_shop/dagRuns?order_by=-id&limit=1").json()["dag_runs"]
        where = f"/api/v2/dags/apply_shop/dagRuns/{last['dag_run_id']}/taskInstances"
        answers = {task: api.get(f"{where}/{task}/links") for task in ("fetch", "merge", "finalize")}
        return {task: answer.json()["extra_links"] for task, answer in answers.items()}

    return links


def test_links_lead_to_the_page(run: Callable[..., dict[str, dict[str, str | None]]], pipeline: FakePipeline) -> None:
    pipeline.results = [
        TableResult(table="shop.items", inserted=3),
        TableResult(table="shop.order lines", inserted=2, updated=2),
    ]
    manifest, table = "/towpath/shop#batch-1", "/towpath/shop#table-shop.order%20lines"
    assert run() == {
        "fetch": {"Manifest": manifest},
        "merge": {"Manifest": manifest, "Delta table": table, "Spark": None},
        "finalize": {},
    }


def test_links_lead_to_pages_of_the_team(
    run: Callable[..., dict[str, dict[str, str | None]]], pipeline: FakePipeline, tmp_path: Path
) -> None:
    pipeline.results = [TableResult(table="shop.a&b", inserted=1)]
    manifest = f"https://files.example/shop/1?p={tmp_path / '1.json'}"
    assert run(LINKS) == {
        "fetch": {"Manifest": manifest},
        "merge": {
            "Manifest": manifest,
            "Delta table": "https://lake.example/shop/a%26b/history",
            "Spark": "https://history.example/",
        },
        "finalize": {},
    }


def test_a_run_without_changes_has_no_links(
    run: Callable[..., dict[str, dict[str, str | None]]], pipeline: FakePipeline
) -> None:
    pipeline.waiting.clear()
    assert run() == {
        "fetch": {"Manifest": None},
        "merge": {"Manifest": None, "Delta table": None, "Spark": None},
        "finalize": {},
    }


def test_the_table_with_most_changes() -> None:
    changes: list[tuple[str, int]] = [("a", 2), ("b", 3), ("a", 2)]
    assert (most_changed(changes), most_changed([("a", 0), ("b", 0)]), most_changed([])) == ("a", "a", None)


def test_the_provider_lists_the_links() -> None:
    from airflow.providers_manager import ProvidersManager

    manager: Any = ProvidersManager
    names = manager().extra_links_class_names
    assert {f"cdc.airflow.links.Towpath{name}Link" for name in ("Manifest", "Table", "Spark")} <= set(names)
