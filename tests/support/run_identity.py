"""A task of Airflow, as its variables tell it, and the proof that all commits of a table are its own."""

from __future__ import annotations

import json

import pytest
from deltalake import DeltaTable

from tests.support.apply import Loop

_TASK = {"dag_id": "apply_shop", "task_id": "merge", "run_id": 'manual__"é" ${user.home}', "try": 2}
_VARIABLES = {"dag_id": "DAG_ID", "task_id": "TASK_ID", "run_id": "DAG_RUN_ID", "try": "TRY_NUMBER"}


def sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process be the second try of a task."""
    for key, value in _TASK.items():
        monkeypatch.setenv(f"AIRFLOW_CTX_{_VARIABLES[key]}", str(value))


def require_signed(loop: Loop, table: str, after_version: int = -1) -> None:
    """Requires that the task has made every commit of a Delta table after a version."""
    commits = [c for c in DeltaTable(str(loop.path(table))).history() if c["version"] > after_version]
    assert commits
    for commit in commits:
        run = json.loads(commit["userMetadata"])["run"]
        assert {key: run.get(key) for key in _TASK} == _TASK, commit
