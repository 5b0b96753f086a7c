"""Encrypted stores on their way to Delta: from the disk, from a stage and through a server. The keys reach Spark's tasks,
and rows lie nowhere in clear but in the lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from cdc.batches.service import BatchService
from cdc.config import DestinationConfig, load
from cdc.disk.encryption import keys
from cdc.disk.encryption.read import header_of
from cdc.lake import pipeline
from cdc.lake.rows import changes
from cdc.store.formats.layout import list_segments
from cdc.testing.servers import Server
from tests.support.apply import OWNER, Loop
from tests.support.encryption import FIRST, SECOND
from tests.support.server import client_config, make_certificates, server_process, with_tokens

NAME = "Ada-Lovelace-1815"


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(changes, "SMALL_BYTES", 0)  # tasks decode, in other processes
    with keys.isolated():
        yield


def encrypt(config: DestinationConfig, key: bytes, **store: object) -> DestinationConfig:
    document = yaml.safe_load(config.file.read_text())
    (config.file.parent / f"{key.hex()[:4]}.key").write_text(key.hex())
    old = document["store"].get("encryption", {}).get("key_file")
    encryption: dict[str, object] = {"key_file": f"{key.hex()[:4]}.key"}
    if old is not None:
        encryption["old_keys"] = [{"file": old}]
    document["store"] |= {"encryption": encryption, **store}
    config.file.write_text(yaml.safe_dump(document))
    return load(config.file)


def holds(*folders: Path) -> list[Path]:
    files = [p for folder in folders for p in folder.rglob("*") if p.is_file()]
    return [p for p in files if NAME.encode() in p.read_bytes()]


def change(loop: Loop, first: int) -> None:
    rows = ", ".join(f"({n}, '{NAME}')" for n in range(first, first + 200))
    loop.sql(
        f"INSERT INTO mirror VALUES {rows}",
        f"INSERT INTO log VALUES {rows}",
        f"UPDATE mirror SET v = 'x' WHERE id = {first}",
    )


TABLES = (
    "CREATE TABLE mirror (id INT PRIMARY KEY, v VARCHAR(40))",
    "CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(40))",
)


def test_a_store_that_was_encrypted_later_and_whose_key_was_changed(
    tmp_path: Path, mysql9: Server, database: Callable[[Server], str]
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.log: {mode: append}")
    loop.sql(*TABLES)
    change(loop, 0)
    loop.capture()
    for n, key in enumerate((FIRST, SECOND), start=1):
        loop.config = encrypt(loop.config, key)
        change(loop, 1000 * n)
        loop.capture()
    headers = [header_of(segment) for segment in list_segments(loop.config.store.path)]
    assert [None if header is None else header.key_id for header in headers] == [
        None,
        keys.WrappingKey.of(FIRST).id,
        keys.WrappingKey.of(SECOND).id,
    ]
    loop.apply_all()
    loop.require_equal("mirror")
    assert len(loop.changelog("log")) == 600
    assert holds(loop.config.store.path, loop.config.meta.path) == [list_segments(loop.config.store.path)[0]]


@pytest.mark.long
def test_staged_batches(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.log: {mode: append}")
    loop.config = encrypt(loop.config, FIRST, stage=f"file://{tmp_path}/stage")
    loop.sql(*TABLES)
    change(loop, 0)
    loop.capture()
    while True:
        lease = BatchService(loop.config).get(OWNER, wait_s=0)
        if lease is None:
            break
        assert not holds(tmp_path / "stage", loop.config.store.path, loop.config.meta.path)
        pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))
    loop.require_equal("mirror")
    assert len(loop.changelog("log")) == 200


@pytest.mark.long
def test_through_a_server(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> None:
    """Only the server has the key."""
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.log: {mode: append}")
    loop.config = encrypt(loop.config, FIRST)
    loop.sql(*TABLES)
    change(loop, 0)
    loop.capture()
    tls = make_certificates(loop.config.file.parent)
    loop.config = with_tokens(loop.config, certificate=tls.certificate.name, key=tls.key.name)
    with server_process(loop.config, tmp_path) as server, keys.isolated():
        config = client_config(
            loop.config, tmp_path / "client", server.url, ca_file=str(tls.ca), stage=f"file://{tmp_path}/stage"
        )
        assert not keys.has_sources()
        while (lease := pipeline.fetch(config, OWNER, wait_s=0)) is not None:
            pipeline.finalize(config, lease, True, pipeline.merge(config, lease))
    loop.require_equal("mirror")
    assert len(loop.changelog("log")) == 200
    assert not holds(loop.config.store.path, loop.config.meta.path)
