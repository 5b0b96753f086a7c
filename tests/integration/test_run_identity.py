"""Every commit to a Delta table says who made it, and the history of a row names the batch, the version and the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.base import run_identity
from cdc.batches.service import BatchService
from cdc.cli.main import main
from cdc.lake import pipeline
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing

Cdc = Callable[..., Any]


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> Loop:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.log: {mode: append}", snapshot="{chunk_rows: 2}")
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "CREATE TABLE log (id INT PRIMARY KEY)")
    return loop


@pytest.fixture
def cdc(loop: Loop, capsys: pytest.CaptureFixture[str]) -> Cdc:
    """Runs a command in this process, where Spark is warm. Returns its document."""

    def run(command: str, *words: str) -> Any:
        capsys.readouterr()
        code = main(["--conf-dir", str(loop.config.file.parent), *command.split(), "shop", *words, "--json"])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    return run


def work_as(monkeypatch: pytest.MonkeyPatch, run_id: str, number: int = 1) -> dict[str, Any]:
    """Sets what Airflow sets for a task. Returns the identity."""
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "apply_shop")
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "merge")
    monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", run_id)
    monkeypatch.setenv("AIRFLOW_CTX_TRY_NUMBER", str(number))
    return {"dag_id": "apply_shop", "task_id": "merge", "run_id": run_id, "try": number}


def commits(loop: Loop, table: str) -> list[tuple[str, dict[str, Any]]]:
    """Operation and user metadata of each commit, oldest first."""
    history = DeltaTable(str(loop.path(table))).history()
    return [(c["operation"], json.loads(c.get("userMetadata") or "{}")) for c in reversed(history)]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_commits_and_manifests_name_their_run(loop: Loop, cdc: Cdc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_identity, "_command", None)
    first = work_as(monkeypatch, 'manual__"é" ${user.home}')
    loop.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "INSERT INTO log VALUES (1)")
    loop.capture()
    (result,) = loop.apply_all()["t"][-1:]
    assert {"merge", "read"} <= {*result.phases} <= {"start", "read", "plan", "merge", "commit"}
    own = [seconds for phase, seconds in result.phases.items() if phase != "start"]
    assert result.seconds == pytest.approx(sum(own), abs=0.001)
    second = work_as(monkeypatch, "r" * 400, 3)
    second["run_id"] = "r" * 249 + "…"
    loop.sql("UPDATE t SET v = 'c' WHERE id = 1", "ALTER TABLE t ADD COLUMN n INT", "UPDATE t SET n = 7")
    loop.capture()
    write_deltalake(loop.path("t"), DeltaTable(str(loop.path("t"))).to_pyarrow_table().slice(0, 0), mode="append")
    loop.apply_all()
    loop.require_equal("t")

    entries = commits(loop, "t")
    runs = [{key: value for key, value in m["run"].items() if key in first} for _, m in entries if "run" in m]
    assert len(runs) == len(entries) - 1, "all but the commit of somebody else"
    assert [run for run in runs if run not in (first, second)] == []
    assert runs == sorted(runs, key=lambda run: run != first)
    assert all("host" in metadata["run"] for _, metadata in entries if metadata)
    acked = BatchService(loop.config).acked_manifests()
    assert [m.run for m in acked] == [m.acked and m.acked.run for m in acked]
    assert {m.run.run_id for m in acked if m.run} == {first["run_id"], second["run_id"]}

    # Commands outside of Airflow: a snapshot, a replay, and maintenance.
    for name in ("DAG_ID", "TASK_ID", "DAG_RUN_ID", "TRY_NUMBER"):
        monkeypatch.delenv(f"AIRFLOW_CTX_{name}")
    table = f"{loop.db}.t"
    for command in ("snapshot", "replay"):
        before = len(commits(loop, "t"))
        with capturing(loop.config):
            cdc(command, table)
        added = [metadata["run"].get("command") for _, metadata in commits(loop, "t")[before:]]
        assert set(added) == {f"cdc {command}"}, command
    loop.sql("INSERT INTO t VALUES (3, 'z', 1)")
    loop.capture()
    loop.apply_all()
    loop.sql("INSERT INTO t VALUES (4, 'z', 1)")
    loop.capture()
    loop.apply_all()
    before = len(commits(loop, "t"))
    cdc("maintain")
    maintained = commits(loop, "t")[before:]
    assert "OPTIMIZE" in [operation for operation, _ in maintained]
    assert {metadata["run"]["command"] for _, metadata in maintained} == {"cdc maintain"}
    with capturing(loop.config):
        report = cdc("verify", table)
    assert report["ok"], "a commit that only says who made it is no entry of the ledger"


@pytest.mark.timeout(400)
def test_the_history_of_a_row(loop: Loop, cdc: Cdc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://air.example")
    monkeypatch.setattr(run_identity, "_command", None)
    loop.sql("INSERT INTO t VALUES (1, 'a')")
    work_as(monkeypatch, "manual__1")
    loop.capture()
    loop.apply_all()
    loop.sql("UPDATE t SET v = 'b'")
    loop.capture()
    lease = loop.fetch()
    work_as(monkeypatch, "manual__2", 1)
    pipeline.merge(loop.config, lease)  # and the task is killed
    second = work_as(monkeypatch, "manual__2", 2)
    loop.apply_all()
    loop.sql("DELETE FROM t")
    loop.capture()

    shown = cdc("status")
    (mirror,) = [table for table in shown["tables"] if table["table"] == f"{loop.db}.t"]
    assert mirror["last_merge"]["updated"] == 0, "the second merge found the rows of the first"
    assert mirror["last_merge"]["phases"]["read"] > 0
    assert mirror["lag_s"] > 0, "the DELETE waits"
    (log,) = [table for table in shown["tables"] if table["table"] == f"{loop.db}.log"]
    assert mirror["applied_time"] == log["applied_time"], "what did not change a table makes it newer, too"
    assert shown["last_run"]["run"]["run_id"] == "manual__2"

    inserted, updated, deleted = cdc("history", f"{loop.db}.t", "1")
    assert (inserted["batch"], inserted["run"]["run_id"], inserted["run"]["try"]) == (1, "manual__1", 1)
    assert inserted["run_url"] == "https://air.example/dags/apply_shop/runs/manual__1/tasks/merge?try_number=1"
    assert (updated["batch"], updated["run"]["try"]) == (lease.batch, 1), "the try that merged, not the one that acked"
    assert updated["delta_version"] == loop.version("t")
    assert inserted["seq"] < updated["seq"] == lease.manifest.last_seq
    assert (deleted["batch"], deleted["delta_version"], deleted["run"], deleted["run_url"]) == (None,) * 4
    acked = BatchService(loop.config).acked_manifests()[-1].acked
    assert acked is not None
    assert acked.run is not None
    assert acked.run.try_number == second["try"]

    # A row that a replay has written is the replay's, and a table that is gone leaves the rest of the answer.
    loop.apply_all()
    for name in ("DAG_ID", "TASK_ID", "DAG_RUN_ID", "TRY_NUMBER"):
        monkeypatch.delenv(f"AIRFLOW_CTX_{name}")
    with capturing(loop.config):
        cdc("replay", f"{loop.db}.t")
    for change in cdc("history", f"{loop.db}.t", "1"):
        assert (change["batch"], change["rebuild"], change["delta_version"]) == (None, "replay", loop.version("t"))
        assert (change["run"]["command"], change["run_url"]) == ("cdc replay", None)
    (loop.path("t") / "_delta_log").rename(loop.path("t") / "gone")
    assert [change["op"] for change in cdc("history", f"{loop.db}.t", "1")] == ["insert", "update", "delete"]
