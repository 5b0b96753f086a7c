"""DAGs and configurations of a Git bundle, in a real Airflow: each commit is a version, and lies in a folder of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.config import load
from cdc.testing.servers import PASSWORD, Server
from tests.support.apply import Loop
from tests.support.real_airflow import REPOSITORY, RealAirflow

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


class Repository:
    """A Git repository with the DAG files of Towpath and configurations beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(REPOSITORY / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "conf").mkdir()
        self._git("init", "--quiet", "--initial-branch=main")
        self._git("config", "user.name", "A team")
        self._git("config", "user.email", "team@example.com")

    def commit(self, name: str, text: str) -> None:
        """Writes a configuration, and commits everything."""
        (self.folder / "conf" / name).write_text(text, encoding="utf-8")
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", name)

    def _git(self, *words: str) -> None:
        subprocess.run(["git", *words], cwd=self.folder, check=True, timeout=60)


@pytest.fixture
def airflow(tmp_path: Path) -> Iterator[RealAirflow]:
    bundle = {
        "name": "team",
        "classpath": "airflow.providers.git.bundles.git.GitDagBundle",
        "kwargs": {
            "repo_url": str(tmp_path / "repository"), "tracking_ref": "main", "subdir": "dags", "refresh_interval": 5,
        },
    }  # fmt: skip
    environment = {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(tmp_path / "bundles"),
        "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
        "TOWPATH_TEST_PASSWORD": PASSWORD,
    }
    airflow = RealAirflow(tmp_path / "airflow", tmp_path / "unused", (), environment)
    yield airflow
    airflow.stop()


def has_rows(loop: Loop, table: str, count: int) -> bool:
    return DeltaTable.is_deltatable(str(loop.path(table))) and len(loop.delta(table)) == count


def test_runs_have_the_configuration_of_their_commit(
    tmp_path: Path,
    mysql9: Server,
    database: Callable[[Server], str],
    airflow: RealAirflow,
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    relative = loop.config.file.read_text(encoding="utf-8")
    text = relative.replace("path: shop/", f"path: {tmp_path}/shop/").replace(
        "target: lake", f"target: {tmp_path}/lake"
    )
    text += "airflow: {retries: 0, start: data, start_pause: 1s, apply_every: 1d}\n"
    repository = Repository(tmp_path / "repository")
    repository.commit("beside.yaml", relative)
    repository.commit("shop.yaml", text)
    loop.config = load(repository.folder / "conf" / "shop.yaml")
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (1, 'a')")
    loop.capture()
    airflow.start()
    beside = airflow.dag("apply_beside")
    assert "configuration-error" in [tag["name"] for tag in beside["tags"]]
    assert "store.path" in beside["description"] and "Write an absolute path outside of" in beside["description"]
    # The triggerer reads the configuration among the bundle's files as well: changes start the runs.
    airflow.unpause("apply_shop")
    airflow.wait(lambda: has_rows(loop, "t", 1), "the first run", 300)
    first = airflow.runs("apply_shop")[0]
    repository.commit("shop.yaml", text.replace("overrides: {", f"overrides: {{{loop.db}.u: {{mode: append}}"))
    airflow.wait(lambda: airflow.dag("apply_shop")["bundle_version"] != first["bundle_version"], "the commit", 120)
    loop.sql("CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO u VALUES (7)", "INSERT INTO t VALUES (2, 'b')")
    loop.capture()
    airflow.wait(lambda: has_rows(loop, "u", 1) and has_rows(loop, "t", 2), "a run of the new commit", 300)
    assert [(row["id"], row["_op"]) for row in loop.delta("u")] == [(7, "insert")]
    loop.require_equal("t")
    assert {run["state"] for run in airflow.runs("apply_shop")} <= {"success", "running", "queued"}
    assert not list((tmp_path / "bundles").rglob("store")), "no data lies in a bundle"
