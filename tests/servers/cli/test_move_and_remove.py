"""`cdc move` and `cdc remove` with real sources, real captures and ZooKeeper."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from kazoo.client import KazooClient

from cdc.base.errors import DamagedError
from cdc.capture import Capture
from cdc.cli.main import main
from cdc.config import load
from cdc.meta import open_meta
from cdc.store.formats.state import is_locked
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.removals import wait_for_server_id

Database = Callable[[Server], str]


def cdc(conf: Path, *words: str) -> int:
    return main(["--conf-dir", str(conf), *words])


def change(loop: Loop, **sections: dict[str, object]) -> None:
    """Changes sections of the configuration."""
    document = yaml.safe_load(loop.config.file.read_text())
    for name, values in sections.items():
        document[name] = {**document.get(name, {}), **values}
    loop.config.file.write_text(yaml.safe_dump(document))
    loop.config = load(loop.config.file)


def transactions(loop: Loop) -> int:
    return StoreReader(loop.config.store.path).totals().transactions


@pytest.mark.parametrize("encrypted", [pytest.param(False, marks=pytest.mark.long), True])
def test_capture_goes_on_at_the_very_position(
    mysql9: Server,
    tmp_path: Path,
    database: Database,
    encrypted: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store moves to another folder, then to another machine; an old capture that somebody starts is refused."""
    loop = Loop(tmp_path, mysql9, database(mysql9))
    if encrypted:
        monkeypatch.setenv("STORE_KEY", "00" * 32)
        change(loop, store={"encryption": {"key_env": "STORE_KEY"}})
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY)", *(f"INSERT INTO t VALUES ({n})" for n in range(20)))
    loop.capture()
    stored, last_seq = transactions(loop), StoreReader(loop.config.store.path).last_seq()
    conf, old = loop.config.file.parent, loop.config
    assert cdc(conf, "move", "shop", str(tmp_path / "large"), "--json") == 0
    moved = json.loads(capsys.readouterr().out)
    assert (moved["transactions"], moved["last_seq"]) == (stored, last_seq)
    loop.sql("INSERT INTO t VALUES (100)")
    with pytest.raises(DamagedError, match="was moved to"):
        Capture(old).run(until_current=True)
    change(loop, store={"path": str(tmp_path / "large")})
    loop.capture()
    assert transactions(loop) == stored + 1

    # Another machine: the same configuration, folders of its own.
    other_machine = tmp_path / "there"
    shutil.copytree(conf, other_machine / "conf")
    document = yaml.safe_load((other_machine / "conf" / "shop.yaml").read_text())
    document["store"]["path"] = "./store"
    document["meta"]["path"] = "./meta"
    (other_machine / "conf" / "shop.yaml").write_text(yaml.safe_dump(document))
    command = shlex.join([sys.executable, "-m", "cdc", "--conf-dir", str(other_machine / "conf")])
    assert cdc(conf, "move", "shop", "--through", command) == 0
    loop.sql("INSERT INTO t VALUES (101)")
    capture = [sys.executable, "-m", "cdc", "--conf-dir", str(conf), "capture", "shop", "--until-current"]
    done = subprocess.run(capture, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "was moved to" in done.stderr
    moved_config = load(other_machine / "conf" / "shop.yaml")
    with open_meta(moved_config) as meta:
        assert meta.source() == open_meta(old).source()
    wait_for_server_id(mysql9, moved_config)
    Capture(moved_config).run(until_current=True)
    reader = StoreReader(moved_config.store.path)
    assert reader.totals().transactions == stored + 2
    assert reader.beginning() == StoreReader(moved_config.store.path).beginning()
    assert cdc(other_machine / "conf", "check", "shop") == 0


def test_a_move_waits_for_the_capture(mariadb11: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY)")
    loop.capture()
    conf = loop.config.file.parent
    capture = subprocess.Popen(
        [sys.executable, "-m", "cdc", "--conf-dir", str(conf), "capture", "shop"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not is_locked(loop.config.store.path):
            assert capture.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        assert cdc(conf, "move", "shop", str(tmp_path / "large")) == 1
        os.kill(capture.pid, 9)
        capture.wait()
        stored = transactions(loop)
        assert cdc(conf, "move", "shop", str(tmp_path / "large")) == 0
    finally:
        capture.kill()
        capture.wait()
    change(loop, store={"path": str(tmp_path / "large")})
    loop.capture()
    assert transactions(loop) >= stored


def test_nodes_in_zookeeper_go(
    mysql9: Server, zookeeper: Server, tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """ZooKeeper is away: nothing is changed. It is back: the destination's nodes go, and those of another stay."""
    root = f"/removal/{tmp_path.name}"
    loop = Loop(tmp_path, mysql9, database(mysql9))
    change(loop, meta={"kind": "zookeeper", "hosts": zookeeper.url, "root": root})
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    loop.capture()
    conf = loop.config.file.parent
    assert cdc(conf, "batch", "subscribe", "shop", "--subscriber", "audit") == 0
    kazoo = KazooClient(zookeeper.url)
    kazoo.start()
    try:
        kazoo.create(f"{root}/destinations/bank/towpath", b"another destination", makepath=True)
        change(loop, meta={"hosts": "127.0.0.1:1"})
        assert cdc(conf, "remove", "shop", "--yes") == 1
        assert (conf / "shop.yaml").exists()
        change(loop, meta={"hosts": zookeeper.url})
        member = kazoo.create(f"{root}/destinations/shop/cluster/10.0.0.7:11111", b"", ephemeral=True, makepath=True)
        assert cdc(conf, "remove", "shop", "--yes") == 1
        assert "the server 10.0.0.7:11111 has the destination" in capsys.readouterr().err
        kazoo.delete(member)
        assert cdc(conf, "remove", "shop", "--yes") == 0
        assert kazoo.get_children(f"{root}/destinations") == ["bank"]
        assert not loop.config.store.path.exists()
        assert not loop.config.meta.path.exists()
    finally:
        kazoo.stop()
        kazoo.close()
