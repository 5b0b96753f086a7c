"""A person approves or rejects a loss in a real Airflow: until then nothing is changed, and what has changed since the
question is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdc.batches.service import BatchService
from cdc.config import load
from cdc.testing.servers import Server
from tests.fault.support import DELTA_RS
from tests.support.airflows import VERSION
from tests.support.apply import LOCAL, Loop
from tests.support.real_airflow import COMPONENTS, RealAirflow

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

DAG = "backfill_shop"
SETTINGS = "airflow: {approve_losses: true, retries: 2}\n"


@dataclass
class Setup:
    """The destination ``shop``, and an Airflow with its backfill DAG."""

    loop: Loop
    airflow: RealAirflow

    def begin_store_anew(self) -> int:
        """Loses the store, and lets capture begin at the end of the source's binlog. Returns where the store begins."""
        self.loop.sql("INSERT INTO t (v) VALUES ('lost')")
        shutil.rmtree(self.loop.config.store.path)
        self.loop.capture()
        beginning = BatchService(self.loop.config)._reader.beginning()
        assert beginning is not None
        return beginning.seq

    def ask(self, *tables: str) -> tuple[str, dict[str, Any]]:
        """Triggers a run, and returns its id and its question."""
        names = [f"{self.loop.db}.{table}" for table in tables]
        run_id = self.airflow.trigger(DAG, {"kind": "accept", "tables": names})
        return run_id, self.airflow.question(DAG, run_id, "accept")

    def answer(self, run_id: str, option: str) -> dict[str, str | None]:
        """Answers, and returns the states of the tasks when the run has ended."""
        self.airflow.answer(DAG, run_id, "accept", option)
        state = self.airflow.wait_run(DAG, run_id)
        return {"run": state, **self.airflow.states(DAG, run_id)}

    def approve_what_has_changed(self, run_id: str) -> str:
        """Approves, requires that the task refuses, and returns its log."""
        before = self.meta()
        states = self.answer(run_id, "Approve")
        assert (states["run"], states["accept"], states["finalize"]) == ("failed", "failed", "failed")
        assert self.meta() == before
        log = self.airflow.task_log(DAG, "accept")
        assert "the loss has changed since it was shown" in log
        return log

    def meta(self) -> bytes:
        return self.loop.config.meta.path.joinpath("meta.json").read_bytes()


@pytest.fixture(scope="module")
def setup(mysql9: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("approvals")
    mysql9.execute("CREATE DATABASE approvals")
    loop = Loop(folder, mysql9, "approvals", start="now", apply=DELTA_RS, spark=LOCAL)
    file = loop.config.file
    file.write_text(f"{file.read_text(encoding='utf-8')}{SETTINGS}", encoding="utf-8")
    loop.config = load(file)
    loop.capture()
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(20))", "INSERT INTO t (v) VALUES ('a')")
    loop.capture()
    loop.apply_all()
    airflow = RealAirflow(folder / "airflow", file.parent, ("backfill",), {"AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO"})
    try:
        # Before 3.3 a question waits in the triggerer.
        airflow.start(COMPONENTS if VERSION < (3, 3) else ("api-server", "scheduler", "dag-processor"))
        airflow.unpause(DAG)
        yield Setup(loop, airflow)
    finally:
        airflow.stop()
        mysql9.execute("DROP DATABASE approvals")


def test_a_gap_before_the_store(setup: Setup) -> None:
    begins, before = setup.begin_store_anew(), setup.meta()
    cursor = BatchService(setup.loop.config).subscription().acked_seq
    run_id, question = setup.ask()
    assert (question["subject"], question["options"]) == ("Changes of shop are lost", ["Approve", "Reject"])
    body = question["body"]
    assert f"Apply has everything up to transaction {cursor} (" in body
    assert f"The store has everything after transaction {begins} (" in body
    assert "Delta tables that may lack changes: approvals.t." in body
    assert setup.meta() == before, "nothing is changed before the answer"

    states = setup.answer(run_id, "Reject")
    assert (states["run"], states["accept"], states["finalize"]) == ("failed", "skipped", "failed")
    assert "has rejected it: nothing was changed." in setup.airflow.task_log(DAG, "accept")
    assert setup.meta() == before

    # The gap grows between the question and the answer.
    run_id, _ = setup.ask()
    further = setup.begin_store_anew()
    assert further > begins
    assert f"; now it is the transactions after {cursor} up to {further} " in setup.approve_what_has_changed(run_id)

    # Airflow would show the old text in another try: the task refuses, and a new run asks.
    setup.airflow.clear(DAG, run_id, ["accept"])
    assert setup.airflow.wait_run(DAG, run_id) == "failed"
    assert "would show the question of an earlier try" in setup.airflow.task_log(DAG, "accept")
    run_id, question = setup.ask()
    assert f"The store has everything after transaction {further} (" in question["body"]
    states = setup.answer(run_id, "Approve")
    assert (states["run"], states["accept"], states["finalize"]) == ("success", "success", "success")
    assert {states[kind] for kind in ("snapshot", "replay", "verify")} == {"skipped"}
    subscription = BatchService(setup.loop.config).subscription()
    assert [(gap.after_seq, gap.until_seq) for gap in subscription.gaps] == [(cursor, further)]
    assert subscription.acked_seq == further
    result = setup.airflow.xcoms(DAG, run_id, "accept")["return_value"]
    assert (result["gaps"][0]["until_seq"], result["approved_by"]) == (further, "Anonymous")

    # Nothing is left to accept.
    run_id = setup.airflow.trigger(DAG, {"kind": "accept"})
    assert setup.airflow.wait_run(DAG, run_id) == "failed"
    assert setup.airflow.states(DAG, run_id)["plan"] == "failed"


def test_a_person_approves_in_a_browser(setup: Setup, tmp_path: Path) -> None:
    pytest.importorskip("selenium", reason="the environments of other Airflows have no browser")
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.expected_conditions import element_to_be_clickable
    from selenium.webdriver.support.wait import WebDriverWait

    from tests.support.browsers import chromium, set_size

    setup.loop.capture()
    setup.loop.apply_all()
    cursor = BatchService(setup.loop.config).subscription().acked_seq
    begins = setup.begin_store_anew()
    run_id, _ = setup.ask()
    with chromium(tmp_path) as browser:
        set_size(browser, 1400)
        browser.get(f"http://127.0.0.1:{setup.airflow.port}/dags/{DAG}/runs/{run_id}/tasks/accept/required_actions")
        by_name = {
            name: WebDriverWait(browser, 60).until(
                element_to_be_clickable((By.XPATH, f"//button[normalize-space()='{name}']"))
            )
            for name in ("Approve", "Reject")
        }
        (tmp_path / "question.png").write_bytes(browser.get_screenshot_as_png())
        text = browser.find_element(By.TAG_NAME, "body").text
        assert "Changes of shop are lost" in text
        assert f"Apply has everything up to transaction {cursor} (" in text
        assert f"The store has everything after transaction {begins} (" in text
        by_name["Approve"].click()
        assert setup.airflow.wait_run(DAG, run_id) == "success"
        (tmp_path / "answer.png").write_bytes(browser.get_screenshot_as_png())
    assert BatchService(setup.loop.config).subscription().acked_seq == begins


def test_a_delta_table_that_is_gone(setup: Setup) -> None:
    folder = setup.loop.path("t")
    away = folder.with_name("away")
    folder.rename(away)
    run_id, question = setup.ask("t")
    assert "approvals.t: At the last ack it had version " in question["body"]
    assert "Now it is gone: all its rows are lost" in question["body"]

    # The table comes back between the question and the answer: nothing is lost any more.
    away.rename(folder)
    assert "is as it was at the last ack" in setup.approve_what_has_changed(run_id)

    shutil.rmtree(folder)
    run_id, _ = setup.ask("t")
    assert setup.answer(run_id, "Approve")["run"] == "success"
    subscription = BatchService(setup.loop.config).subscription()
    assert subscription.table("approvals.t") is None
    assert subscription.gaps[-1].table == "approvals.t"
    setup.loop.sql("INSERT INTO t (v) VALUES ('next')")
    setup.loop.capture()
    setup.loop.apply_all()
    assert [row["v"] for row in setup.loop.delta("t")] == ["next"]
