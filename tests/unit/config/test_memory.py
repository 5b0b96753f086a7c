"""``store.kind: memory``: what it needs, what it refuses, and what the server makes of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import ConfigError
from cdc.config import load
from cdc.config.loading import parse
from cdc.config.memory import in_memory, run_folder

FILE = Path("/srv/towpath/conf/shop.yaml")
DOCUMENT: dict[str, Any] = {
    "source": {"url": "mysql://cdc@db.example", "server_id": 7, "start": "now"},
    "tables": {"include": [r"shop\..*"]},
    "store": {"kind": "memory"},
    "meta": {"kind": "file", "path": "./data/meta"},
    "server": {"canal": {"enabled": True}, "capture": "always"},
}


def parsed(**changes: Any) -> Any:
    """The configuration with other keys; ``section__key``, and None removes one."""
    import yaml

    document = copy.deepcopy(DOCUMENT)
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if not key:
            document[section] = value
        else:
            document.setdefault(section, {})[key] = value
    return parse(yaml.safe_dump(document), FILE)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *[
            ({name: value}, f"{name} has no effect with store.kind: memory")
            for name, value in {
                "apply": {"target": "./lake"},
                "airflow": {"retries": 1},
                "batch": {"max_bytes": 1000},
                "mq": {"servers": ["k:9092"], "topic": "shop"},
                "snapshot": {"parallel": 2},
                "spark": {"master": "local"},
            }.items()
        ],
        ({"server": {"capture": "always"}}, "needs server.canal.enabled: true"),
        ({"server": {"canal": {"enabled": True}}}, "needs server.capture: always or subscribed"),
        ({"server__tokens": {"apply": {"env": "T"}}}, "server.tokens and store.kind: memory contradict"),
        ({"source__standbys": ["mysql://cdc@db2.example"]}, "source.standbys and store.kind: memory contradict"),
        ({"source__start": "snapshot"}, "source.start: snapshot and store.kind: memory contradict"),
        ({"tables__overrides": {"shop.a": {"mode": "append"}}}, "tables.overrides: mode has no effect"),
        ({"tables__route": {r"shop\.a_\d": "all.a"}}, "tables.route has no effect with store.kind: memory"),
        *[
            ({f"store__{key}": value}, f"{key} has no effect with kind: memory")
            for key, value in {
                "path": "./data/store",
                "segment_bytes": 1 << 20,
                "flush": "async",
                "retain": {"acked_for": "1h"},
                "disk": {"warn_ratio": 0.5},
                "archive": "s3://b/a",
                "standby": {"role": "none"},
                "encryption": {"key_env": "K"},
                "stage": "s3://b/s",
                "permissions": "group",
                "url": "https://h:1",
            }.items()
        ],
        ({"store__buffer_size": 1000}, "buffer_size: 1000 must be a power of two"),
        ({"store__batch_mode": "itemsize", "store__buffer_unit_bytes": 64}, "buffer_unit_bytes has no effect with"),
        ({"meta": {"kind": "memory", "path": "x"}}, "path has no effect with kind: memory"),
        ({"meta": {"kind": "mixed"}}, "meta.path: is missing"),
        ({"meta": {"kind": "mixed", "path": "x", "root": "/a"}}, "root has no effect without hosts"),
        ({"server__ha": {"address": "127.0.0.1"}}, "server.ha needs meta.kind: zookeeper"),
    ],
)
def test_what_is_missing_or_would_have_no_effect_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(**changes)
    assert said in str(refused.value)


@pytest.mark.parametrize("kind", ["memory", "mixed"])
def test_a_meta_in_memory_needs_a_store_in_memory(kind: str) -> None:
    meta = {"kind": "memory"} if kind == "memory" else {"kind": "mixed", "path": "./data/meta"}
    with pytest.raises(ConfigError, match=f"meta.kind: {kind} needs store.kind: memory"):
        parsed(store={"path": "./data/store"}, meta=meta, apply={"target": "./lake"})


def test_a_store_on_a_disk_needs_apply() -> None:
    with pytest.raises(ConfigError, match="apply: is missing; add it"):
        parsed(store={"path": "./data/store"})


def test_what_the_server_makes_of_it() -> None:
    config = parsed()
    served = in_memory(config)
    run = run_folder(config)
    assert run.parent.parent == Path("/dev/shm")
    assert (served.store.kind, served.store.path, served.store.in_memory) == ("file", run / "store", True)
    assert served.store.segment_bytes == (16384 * 1024) // 8
    assert served.store.retain.wait_for == ()
    assert served.meta.path == Path("/srv/towpath/data/meta")
    assert served.alarms_path == Path("/srv/towpath/data/meta.alarms.json")
    assert in_memory(served) == served
    assert (served.name, served.file) == (config.name, config.file)
    alone = in_memory(parsed(meta={"kind": "memory"}))
    assert (alone.meta.kind, alone.meta.path) == ("file", run / "meta")
    assert alone.alarms_path == run / "meta.alarms.json"
    counted = in_memory(parsed(store__buffer_size=1 << 20, store__batch_mode="itemsize"))
    assert counted.store.segment_bytes == 16 << 20
    assert in_memory(parsed(store__buffer_size=16)).store.segment_bytes == 65536


def test_other_processes_are_told_that_there_is_no_disk(tmp_path: Path) -> None:
    from cdc.client import open_batches, open_meta, open_store

    config = parsed(meta={"kind": "memory"})
    for needs in (
        lambda: config.store.path,
        lambda: config.meta.path,
        lambda: open_batches(config),
        lambda: open_meta(config),
        lambda: open_store(config),
    ):
        with pytest.raises(ConfigError, match="`cdc server` keeps this one in its memory"):
            needs()


def test_another_file_has_another_folder(tmp_path: Path) -> None:
    folders = set()
    for folder in ("a", "b"):
        import yaml

        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "shop.yaml"
        file.write_text(yaml.safe_dump(DOCUMENT))
        folders.add(run_folder(load(file)))
    assert len(folders) == 2
