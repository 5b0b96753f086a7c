"""``store.archive``: its forms, what is refused, and the access that it shares with the lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config import parse
from cdc.disk import object_stores
from tests.support.configurations import FILE, document, message
from tests.support.settings import json_schema

URL = "s3://bucket/archive"


def test_a_uri_is_the_short_form() -> None:
    short = parse(document(store__archive=f"{URL}/"), FILE).store
    assert short.archive == parse(document(store__archive={"url": URL}), FILE).store.archive
    assert (short.archive.url, short.archive.meta_every, short.archive.keep_for) == (URL, 60.0, None)
    assert short.retain.wait_for_archive
    assert parse(document(), FILE).store.archive.url is None
    assert {"type": "string"} in json_schema()["$defs"]["StoreConfig"]["properties"]["archive"]["anyOf"]


@pytest.mark.parametrize("url", ["/backup", "backup/archive", "file://backup", "s3:bucket", "file:///"])
def test_something_that_is_no_uri(url: str) -> None:
    assert "is not a URI; write s3://bucket/archive or file:///backup/archive" in message(store__archive=url)


def test_what_contradicts_or_has_no_effect() -> None:
    assert "must not hold a key or a password" in message(store__archive="s3://key:secret@bucket/archive")
    assert "keep_for has no effect without url" in message(store__archive={"keep_for": "7d"})
    assert "wait_for_archive has no effect without archive" in message(store__retain={"wait_for_archive": False})
    said = message(store__archive="file:///srv/towpath/data/shop/store/archive")
    assert "store.archive.url (/srv/towpath/data/shop/store/archive) lies inside store.path" in said
    server = {"kind": "server", "url": "https://store.example:8040", "token_env": "T", "archive": URL}
    assert "archive is set where the server runs; remove it here" in message(store=server)
    memory = {"kind": "memory", "archive": URL}
    assert "archive has no effect with kind: memory" in message(store=memory)


def test_the_access_of_the_lake_serves_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", "s3cret")
    access = {"endpoint": "http://minio.example:9000", "access_key_id": "AKIA1", "secret_access_key_env": "LAKE_SECRET"}
    config = parse(document(store__archive="s3://another/archive", s3=access), FILE)
    files, path = object_stores.filesystem(f"{config.store.archive.url}/shop/states")
    assert path == "another/archive/shop/states"
    assert (files.key, files.secret) == ("AKIA1", "s3cret")
    assert files.client_kwargs == {"endpoint_url": "http://minio.example:9000"}
    assert "s3cret" not in repr(config)
    assert "s3 has no effect" in message(s3=access)
