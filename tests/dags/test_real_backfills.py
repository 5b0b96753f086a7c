"""The DAGs of snapshots and backfills with a real source, store, Spark and lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.airflow import build_dags
from cdc.base.errors import MergeFailedError, UsageError
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.jobs import rebuilt, replay
from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.integration.test_snapshot import Started
from tests.support.capturing import capturing

States = dict[str, str | None]
ROWS = 300


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> Iterator[Started]:
    loop = Started(tmp_path, mysql9, database(mysql9))
    text = loop.config.file.read_text(encoding="utf-8")
    loop.config.file.write_text(f"{text}airflow: {{retries: 0}}\n", encoding="utf-8")
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "CREATE TABLE other (id INT PRIMARY KEY)")
    loop.sql(f"INSERT INTO t VALUES {', '.join(f'({n}, {n})' for n in range(ROWS))}", "ANALYZE TABLE t")
    loop.capture()
    yield loop
    session.discard()


@pytest.fixture
def run(loop: Started, run_dag: Callable[..., States]) -> Callable[..., States]:
    """Runs a DAG of the destination, with a form if there is one."""

    def run(dag: str, /, **form: Any) -> States:
        form = {"tables": [f"{loop.db}.t"], **form} if form else {}
        return run_dag(build_dags(loop.config.file.parent)[f"{dag}_shop"], conf=form or None)

    return run


def version(loop: Started) -> int:
    return loop.version("t")


def parked(loop: Started) -> dict[str, str]:
    return {table: entry.due for table, entry in BatchService(loop.config).subscription().parked.items()}


@pytest.mark.long
def test_tables_are_filled_then_replayed(
    loop: Started, run: Callable[..., States], monkeypatch: pytest.MonkeyPatch
) -> None:
    with capturing(loop.config):
        assert run("snapshot") == {"run": "success", "snapshot": "success"}
        assert run("snapshot") == {"run": "success", "snapshot": "skipped"}
    loop.require_equal("t")
    loop.sql("UPDATE t SET v = -v WHERE id < 100", "DELETE FROM t WHERE id = 7")
    loop.capture()
    assert run("apply")["run"] == "success"
    loop.require_equal("t")

    # A dry run changes nothing.
    before = version(loop)
    states = run("backfill", kind="replay", dry_run=True)
    assert (states["run"], states["plan"], states["replay"], states["finalize"]) == (
        "success", "success", "skipped", "skipped"
    )  # fmt: skip
    plan = pipeline.plan_replay(loop.config, [f"{loop.db}.t"])
    assert plan.rows >= ROWS and plan.bytes > 0 and plan.seconds > 0
    assert plan.tables[0].effect.startswith(f"replaces {loop.db}.t: version {before}, ")
    assert plan.points[0].startswith("The store has the transactions since 20")
    to = BatchService(loop.config).last_seq()
    assert (
        f"The changes end with transaction {to} ("
        in pipeline.plan_replay(loop.config, [f"{loop.db}.t"], to=str(to)).points[1]
    )
    with pytest.raises(UsageError, match=rf"there is no table {loop.db}\.tt"):
        pipeline.plan_replay(loop.config, [f"{loop.db}.tt"])
    assert (version(loop), parked(loop)) == (before, {})

    # After a replay that fails apply brings the table level, and the same form may be run again.
    def fails(*_: Any) -> None:
        raise MergeFailedError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(replay, "replace_by", fails)
        states = run("backfill", kind="replay")
    assert (states["run"], states["replay"], states["finalize"]) == ("failed", "failed", "failed")
    assert parked(loop) == {f"{loop.db}.t": "retry"}
    assert version(loop) == before
    (back,) = pipeline.retry_parked(loop.config)
    assert (back.table, parked(loop)) == (f"{loop.db}.t", {})
    loop.require_equal("t")
    states = run("backfill", kind="replay")
    assert (states["run"], states["replay"], states["snapshot"]) == ("success", "success", "skipped")
    assert version(loop) > before
    loop.require_equal("t")

    # Refused before anything is done.
    states = run("backfill", kind="replay", to="0:1:4")
    assert (states["run"], states["plan"], states["replay"]) == ("failed", "failed", "upstream_failed")
    assert parked(loop) == {}


@pytest.mark.long
def test_a_snapshot_by_hand_has_a_plan(loop: Started, run: Callable[..., States]) -> None:
    assert pipeline.has_captured(loop.config)
    plan = pipeline.plan_snapshot(loop.config, [f"{loop.db}.t"])
    (table,) = plan.tables
    assert 0.5 * ROWS <= table.rows <= 2 * ROWS
    assert table.effect == f"creates {loop.db}.t"
    with capturing(loop.config):
        assert run("backfill", kind="snapshot")["run"] == "success"
    loop.require_equal("t")
    (table,) = pipeline.plan_snapshot(loop.config, [f"{loop.db}.t"]).tables
    assert table.effect.startswith(f"replaces {loop.db}.t: version {version(loop)}, {ROWS} rows in files, ")


@pytest.mark.long
def test_apply_goes_on_while_a_table_is_replayed(
    loop: Started, run: Callable[..., States], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay has built the table, and is about to replace it, when apply runs."""
    with capturing(loop.config):
        assert run("snapshot")["run"] == "success"
    replace_by, seen = rebuilt.replace_by, []

    def meanwhile(*arguments: Any) -> None:
        loop.sql("INSERT INTO other VALUES (1)", "UPDATE t SET v = 0 WHERE id = 1")
        loop.capture()
        before = version(loop)
        loop.apply_all()  # would wait for ever if it waited for the replay
        seen.append((version(loop) - before, loop.delta("other")))
        replace_by(*arguments)

    monkeypatch.setattr(replay, "replace_by", meanwhile)
    assert run("backfill", kind="replay")["run"] == "success"
    ((versions, others),) = seen
    assert (versions, others) == (0, [{"id": 1}]), "the table is left out, and the others go on"
    assert parked(loop) == {}
    loop.require_equal("t")
