"""A server records who its clients are, as they say it, and never takes itself for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cdc.base.run_identity import RunIdentity, working_for
from cdc.batches.manifest import Manifest
from cdc.batches.manifest_files import ManifestFiles
from cdc.client import open_batches
from cdc.config import DestinationConfig
from cdc.server.destinations import ServedDestination
from tests.support.server import TOKEN, client_config, in_thread, served_destination

RUN = RunIdentity(dag_id='d "é" 🦀\n\x00' + "x" * 230, run_id="🦀" * 250, task_id="merge", try_number=1)


@pytest.fixture
def served(tmp_path: Path) -> ServedDestination:
    return served_destination(tmp_path)


@pytest.fixture
def url(served: ServedDestination) -> Iterator[str]:
    with in_thread([served]) as url:
        yield url


def manifest_of(config: DestinationConfig, batch: int) -> Manifest:
    """Returns the manifest on the server's disk."""
    files = ManifestFiles(config.meta.path)
    return Manifest.model_validate_json(files.path("apply", batch).read_bytes())


def test_a_client_says_who_gets_and_who_acks(served: ServedDestination, url: str, tmp_path: Path) -> None:
    batches = open_batches(client_config(served.config, tmp_path / "client", url))
    with working_for(RUN):
        lease = batches.get("airflow:apply_shop", wait_s=0)
    assert lease is not None
    assert lease.manifest.run == manifest_of(served.config, lease.batch).run == RUN
    second_try = RUN.model_copy(update={"try_number": 2})
    with working_for(second_try):
        repeated = batches.get("airflow:apply_shop", wait_s=0)
        assert repeated is not None
        assert repeated.manifest.run == RUN, "the batch is handed out unchanged"
        batches.ack(repeated.batch, repeated.token)
    acked = manifest_of(served.config, lease.batch).acked
    assert acked is not None
    assert acked.run == second_try


@pytest.mark.parametrize("header", [None, "", "no JSON", "7", '{"try": "many"}', "[" * 20000, "null"])
def test_a_client_that_does_not_say_it(served: ServedDestination, url: str, header: str | None) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"} | ({} if header is None else {"towpath-run": header})
    with httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
        answer = client.post("/v1/shop/get", json={"owner": "o", "token": "a" * 32, "wait_s": 0})
        assert answer.status_code == 200, answer.text
        lease = answer.json()["result"]
        manifest = json.loads(ManifestFiles(served.config.meta.path).path("apply", 1).read_bytes())
        assert manifest["run"] is None, "not that of the server"
        assert lease is not None
