"""The pages in Airflow's API server: for users who are logged in, each sees the destinations whose DAGs they may see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.airflows import VERSION

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

Write = Callable[..., Path]
pytestmark = pytest.mark.skipif(VERSION < (3, 3), reason="what the API shows of plugins, and how it logs in, is older")


@pytest.fixture
def conf(write_conf: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_conf("secret-shop")
    folder = write_conf("shop")
    monkeypatch.setenv("CDC_CONF", str(folder))
    return folder


def test_airflow_lists_the_page(api: TestClient) -> None:
    plugins = {plugin["name"]: plugin for plugin in api.get("/api/v2/plugins").json()["plugins"]}
    (view,) = plugins["towpath"]["external_views"]
    assert (view["href"], view["url_route"]) == ("/towpath/", "towpath")
    assert plugins["towpath"]["timetables"] == ["cdc.airflow.timetables.IntervalTimetable"]


def test_a_user_sees_the_destinations(api: TestClient, conf: Path) -> None:
    page = api.get("/towpath/")
    assert page.status_code == 200
    assert "secret-shop" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"
    response = api.get("/towpath/shop")
    assert response.status_code == 200
    assert "All destinations" in response.text


@pytest.mark.parametrize(
    "path", ["/towpath/", "/towpath/shop", "/towpath/secret-shop", "/towpath/no-such", "/towpath/a/b"]
)
def test_who_is_not_logged_in_learns_nothing(api: TestClient, conf: Path, path: str) -> None:
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer x"}, {"Authorization": "", "Cookie": "_token=x"}):
        answer = api.get(path, headers=headers)
        assert answer.status_code in ({404} if path.endswith("/b") else {401, 403})
        assert "secret-shop" not in answer.text.replace(path, "")
        assert str(conf) not in answer.text


def test_a_user_without_the_right_sees_no_destination(
    api: TestClient, conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    def allowed(*, details: Any, **_: Any) -> bool:
        return bool(details.id == "apply_shop")

    monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", allowed)
    page = api.get("/towpath/").text
    assert "secret-shop" not in page
    assert ">shop<" in page
    assert api.get("/towpath/secret-shop").status_code == api.get("/towpath/no-such").status_code == 404


def test_names_of_paths_are_not_files(api: TestClient, conf: Path) -> None:
    for name in ("..%2Fshop", "%2e%2e", "shop.yaml", "<b>"):
        answer = api.get(f"/towpath/{name}")
        assert answer.status_code == 404
        assert "<b>" not in answer.text


def test_a_broken_configuration_is_shown(api: TestClient, conf: Path) -> None:
    (conf / "broken.yaml").write_text("source: 7\n")
    page = api.get("/towpath/").text
    assert "source" in page and ">shop<" in page and "not readable" in page


def test_links_lead_to_the_dags_that_airflow_has(api: TestClient, conf: Path, run_dag: Any, pipeline: Any) -> None:
    from cdc.airflow import build_dags

    run_dag(build_dags(conf)["apply_shop"])
    page = api.get("/towpath/shop").text
    assert 'href="/dags/apply_shop"' in page
    assert 'href="/dags/apply_shop/runs"' in page
    assert "/dags/verify_shop" not in page
