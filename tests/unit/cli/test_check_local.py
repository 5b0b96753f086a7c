"""The findings of ``cdc check`` about this machine."""

from __future__ import annotations

import tempfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from cdc.cli import check_local
from cdc.config import load
from tests.support.configurations import release
from tests.support.metrics import configuration


def test_a_store_that_others_may_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = check_local._removable("store", tmp_path / "data" / "store", "store.path")
    assert [f.level for f in findings] == ["warning"], "tests run in a temporary folder"
    assert "temporary folder" in findings[0].message
    monkeypatch.setattr(check_local, "_TEMPORARY", ())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    assert check_local._removable("store", tmp_path / "data" / "store", "store.path") == []
    worktree = release(tmp_path, "a")
    (worktree / ".git").write_text("gitdir: /elsewhere\n")
    (tmp_path / "current").symlink_to(worktree)
    for path in (worktree / "data" / "store", tmp_path / "current" / "data" / "store"):
        (warning,) = check_local._removable("meta", path, "meta.path")
        assert f"{path} lies inside the git checkout " in warning.message
        assert "meta.path" in (warning.remedy or "")
    assert "by a symbolic link" in warning.message
    (tmp_path / "conf").symlink_to(worktree / "conf")
    config = load(tmp_path / "conf" / "shop.yaml")
    assert check_local._removable("store", config.store.path, "store.path") == [], (
        "the store is outside of the checkout"
    )


def test_check_prints_these_warnings(tmp_path: Path) -> None:
    """`cdc check` reports them."""
    config = load(release(tmp_path, "a") / "conf" / "shop.yaml")
    warnings = [f for f in check_local.examine(config) if f.level == "warning" and "temporary folder" in f.message]
    assert [f.subject for f in warnings] == ["store", "meta"]


def test_metrics_that_cannot_be_served_or_pushed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def metrics(text: str) -> list[tuple[str, str]]:
        return [(metric.level, metric.message) for metric in check_local._metrics(configuration(text))]

    assert metrics("{}") == []
    port_and_push = "{port: 9102, push: 'http://gateway:9091'}"
    assert metrics(port_and_push) == [("ok", "served at port 9102 and pushed to http://gateway:9091")]
    monkeypatch.delenv("GATEWAY_PASSWORD", raising=False)
    [(level, message)] = metrics("{push: 'http://g:1', push_user: u, push_password_env: GATEWAY_PASSWORD}")
    assert (level, "GATEWAY_PASSWORD is not set" in message) == ("error", True)

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(check_local, "version", absent)
    [(level, message)] = metrics(port_and_push)
    assert (level, "prometheus-client is not installed" in message) == ("error", True)


def test_an_untried_pair_of_spark_and_delta_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"pyspark": "4.2.0", "delta-spark": "4.4.0"}
    monkeypatch.setattr(check_local, "version", versions.__getitem__)
    assert check_local._untried_pair() == []
    versions["pyspark"] = "4.2.1"
    (finding,) = check_local._untried_pair()
    assert (finding.level, finding.message) == ("warning", "PySpark 4.2.1 with delta-spark 4.4.0 was not tried")
    assert "PySpark 4.2.0 with delta-spark 4.4.0, " in (finding.remedy or "")
