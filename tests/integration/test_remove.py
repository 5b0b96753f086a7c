"""`cdc remove` with a real source, a real capture and names in a real metastore."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from cdc.cli.main import main
from cdc.config import load
from cdc.store.formats.state import is_locked, read_capture_state
from cdc.testing.servers import Server
from tests.integration.test_catalog import NAMES, entry, hive
from tests.support.apply import Loop, spark_of
from tests.support.removals import wait_for_server_id

Database = Callable[[Server], str]


def start_capture(conf: Path) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "cdc", "--conf-dir", str(conf), "capture", "shop"]
    capture = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    store = load(conf / "shop.yaml").store.path
    deadline = time.monotonic() + 120
    while not (store.is_dir() and is_locked(store) and (state := read_capture_state(store)) and state.connected):
        assert capture.poll() is None, "capture has ended"
        assert time.monotonic() < deadline, "capture does not connect"
        time.sleep(0.1)
    return capture


def remove(loop: Loop, *arguments: str) -> int:
    return main(["--conf-dir", str(loop.config.file.parent), "remove", "shop", "--yes", *arguments])


@pytest.mark.long
def test_captures_prevent_it_wherever_they_run(
    mariadb11: Server, tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    loop.capture()
    conf = loop.config.file.parent
    capture = start_capture(conf)
    try:
        assert remove(loop) == 1
        assert "another capture" in capsys.readouterr().err
        assert capture.poll() is None
    finally:
        capture.terminate()
        capture.wait()
    # A second host with the same configuration, and so with the same server_id.
    other = tmp_path / "host"
    shutil.copytree(conf, other / "conf")
    wait_for_server_id(loop.server, loop.config)
    capture = start_capture(other / "conf")
    try:
        assert remove(loop) == 1
        assert "a capture of this destination runs elsewhere" in capsys.readouterr().err
    finally:
        capture.terminate()
        capture.wait()
    wait_for_server_id(loop.server, loop.config)
    assert remove(loop) == 0
    assert not loop.config.store.path.exists()
    assert (other / "shop" / "store" / "store.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("managed", [False, True])
def test_tables_and_their_names_go(
    mysql9: Server, tmp_path: Path, database: Database, managed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names go, and tables if that is asked for; a name that has been given to another table stays."""
    names = NAMES.replace("}'}", "}', managed: true}") if managed else NAMES
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=names, spark=hive(tmp_path))
    document = yaml.safe_load(loop.config.file.read_text())
    document["store"] |= {"segment_bytes": 65536, "archive": f"file://{tmp_path}/archive"}
    document["store"]["stage"] = f"file://{tmp_path}/stage"
    loop.config.file.write_text(yaml.safe_dump(document))
    loop.config = load(loop.config.file)
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    loop.capture()
    loop.apply_all()
    assert main(["--conf-dir", str(loop.config.file.parent), "archive", "upload", "shop"]) == 0
    spark = spark_of(loop)
    if not managed:
        spark.sql(f"DROP TABLE lake_{loop.db}.u")
        spark.sql(f"CREATE TABLE lake_{loop.db}.u (mine INT) USING delta LOCATION '{tmp_path / 'mine'}'")
    lake = [] if managed else ["--lake", "--archive"]
    assert remove(loop, *lake) == 0
    said = capsys.readouterr().out
    assert not loop.config.store.path.exists()
    assert not loop.config.meta.path.exists()
    assert not (tmp_path / "stage" / "shop").exists()
    if managed:
        assert "the catalog owns the files" in said
        assert entry(loop, "t") is not None
        assert loop.path("t").exists()
        assert "--archive removes it" in said
        assert (tmp_path / "archive" / "shop" / "states").exists()
        loop.config.file.with_name("shop.yaml.removed").rename(loop.config.file)
        assert remove(loop, "--incomplete", "--lake") == 0
        assert entry(loop, "t") is None
        assert not loop.path("t").exists()
        return
    assert entry(loop, "t") is None
    assert entry(loop, "u") is not None
    assert "it names another place" in said
    assert not loop.path("t").exists() and not loop.path("u").exists()
    assert (tmp_path / "mine").exists()
    assert not (tmp_path / "archive" / "shop").exists()
