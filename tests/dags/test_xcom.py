"""A run leaves references to its batch in Airflow's database, and nothing with which a user could end the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from cdc.airflow import build_dags
from cdc.batches.lease import Lease
from cdc.batches.service import BatchService
from cdc.config import load
from cdc.lake import pipeline
from cdc.meta import open_meta
from tests.support.unit_batches import IDENTITY, make_store

States = dict[str, str | None]


@pytest.mark.parametrize("until", ["none", "interval_end"])
def test_no_token_reaches_airflows_database(
    write_conf: Callable[..., Path],
    run_dag: Callable[..., States],
    monkeypatch: pytest.MonkeyPatch,
    until: str,
) -> None:
    """The real steps on a real store and meta, without Spark."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    folder = write_conf(until=until)
    config = load(folder / "shop.yaml")
    make_store(config.store.path)
    open_meta(config).bind_source(IDENTITY)
    tokens: list[str] = []

    def merge(_: Any, lease: Lease) -> list[Any]:
        BatchService(config).check(lease.batch, lease.token)
        tokens.append(lease.token)
        return []

    monkeypatch.setattr(pipeline, "merge", merge)
    monkeypatch.setattr("cdc.store.reader.reader.StoreReader.complete_until_us", lambda _: 1 << 62)
    done = run_dag(build_dags(folder)["apply_shop"])
    assert done == {"run": "success", "fetch": "success", "merge": "success", "finalize": "success"}
    assert tokens and BatchService(config).outstanding() == []
    with create_session() as session:
        stored = " ".join(str(value) for value in session.scalars(select(XComModel.value)))
    assert str(config.meta.path / "manifests" / "apply") in stored
    assert not [token for token in tokens if token in stored]
