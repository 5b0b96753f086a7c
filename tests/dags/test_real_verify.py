"""The DAG that verifies tables with a real source, store, Spark and lake."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from airflow.sdk import BaseOperator

from cdc.airflow import build_dags
from cdc.airflow.base import DestinationOperator
from cdc.lake.delta.sql import quote
from cdc.lake.runtime import session
from tests.support.apply import Loop

States = dict[str, str | None]


@pytest.fixture
def loop(new_loop: Loop) -> Loop:
    text = new_loop.config.file.read_text(encoding="utf-8")
    new_loop.config.file.write_text(f"{text}airflow: {{retries: 0}}\n", encoding="utf-8")
    new_loop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10))",
        "CREATE TABLE other (id INT PRIMARY KEY, at DATETIME(3))",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, NULL)",
        "INSERT INTO other VALUES (1, '2026-01-02 03:04:05.678')",
    )
    new_loop.capture()
    new_loop.apply_all()
    return new_loop


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """The log of the operators since it was asked for last."""
    log = logging.getLogger("tests.verify")
    caplog.set_level(logging.INFO, "tests.verify")
    monkeypatch.setattr(DestinationOperator, "log", log)
    assert issubclass(DestinationOperator, BaseOperator)

    def new_lines() -> str:
        text = "\n".join(record.getMessage() for record in caplog.records if record.name == "tests.verify")
        caplog.clear()
        return text

    return new_lines


def rows(text: str) -> list[list[str]]:
    """The cells of the table in a log."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


@pytest.mark.long
def test_the_task_fails_when_a_table_differs_and_its_log_has_the_report(
    loop: Loop, run_dag: Callable[..., States], lines: Callable[[], str]
) -> None:
    def run() -> States:
        return run_dag(build_dags(loop.config.file.parent)["verify_shop"])

    assert run() == {"run": "success", "verify": "success"}
    text = lines()
    assert "Everything is proved" in text
    head, _, *table_rows = rows(text)
    assert [dict(zip(head, row, strict=True)) for row in table_rows] == [
        {
            "table": f"{loop.db}.{name}",
            "state": "proved",
            "rows": count,
            "commits": "2",
            "gaps": "0",
            "chunks": chunks,
            "differences": "0",
            "verdict": "equal",
        }
        for name, count, chunks in (("other", "1", "1"), ("t", "3", "3"))
    ]

    # Rows change in the lake, behind Towpath's back.
    spark = session.acquire(loop.config.spark).spark
    spark.sql(f"UPDATE delta.{quote(str(loop.path('t')))} SET v = 'wrong' WHERE id = 2")
    spark.sql(f"DELETE FROM delta.{quote(str(loop.path('t')))} WHERE id = 3")
    assert run() == {"run": "failed", "verify": "failed"}
    text = lines()
    head, _, other, wrong = rows(text)
    assert dict(zip(head, other, strict=True))["state"] == "proved"
    row = dict(zip(head, wrong, strict=True))
    assert (row["state"], row["differences"], row["verdict"]) == ("differs", "2", "2 DIFFER")
    assert f"{loop.db}.t: key {{'id': '2'}}: source {{'id': '2', 'v': 'b'}}, Delta {{'id': '2', 'v': 'wrong'}}" in text
    assert f"{loop.db}.t: key {{'id': '3'}}: source {{'id': '3', 'v': None}}, Delta None" in text

    # Only a repair makes it green again.
    assert run()["verify"] == "failed"
    spark.sql(f"UPDATE delta.{quote(str(loop.path('t')))} SET v = 'b' WHERE id = 2")
    spark.sql(f"INSERT INTO delta.{quote(str(loop.path('t')))} VALUES (3, NULL)")
    assert run() == {"run": "success", "verify": "success"}
