"""The archive of classes: the first driver writes it, the next one maps it, and a damaged one does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdc.config import SparkConfig
from cdc.disk.cache import cache_dir
from cdc.lake.runtime import driver, session
from tests.support.apply import LOCAL_CONF

_DRIVER = """
from pathlib import Path
from cdc.config import SparkConfig
from cdc.lake.runtime import driver, session
warm = session.acquire(SparkConfig(master="local[1]", conf={conf}), 1)
warm.spark.range(1).write.format("delta").save({table!r})
print(warm.spark.read.format("delta").load({table!r}).count(), {classes!r} in Path(f"/proc/{{driver.pid()}}/maps").read_text())
"""


@pytest.fixture
def classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of archives in a cache that has the jars of the real one."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for jars in cache_dir().glob("io.delta*"):
        (cache / jars.name).symlink_to(jars)
    monkeypatch.setenv("TOWPATH_CACHE", str(cache))
    return cache / "classes"


def run(table: Path, java: str) -> str:
    """Runs a driver that writes and reads a Delta table. Returns the rows, and whether it has mapped an archive."""
    conf = LOCAL_CONF | {"spark.driver.extraJavaOptions": java}
    code = _DRIVER.format(conf=conf, table=str(table), classes=f"{cache_dir()}/classes/")
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _written(classes: Path) -> Path:
    """Waits for the archive, which the JVM writes after the command has ended."""
    deadline = time.monotonic() + 120
    while not (archives := list(classes.glob("*.jsa"))):
        assert time.monotonic() < deadline, list(classes.iterdir())
        time.sleep(0.2)
    (archive,) = archives
    return archive


@pytest.mark.long
def test_the_first_driver_writes_the_archive_and_the_next_one_maps_it(classes: Path, tmp_path: Path) -> None:
    quick = LOCAL_CONF["spark.driver.extraJavaOptions"]
    assert run(tmp_path / "t1", quick) == "1 False"
    archive = _written(classes)
    assert archive.stat().st_size > 50 << 20
    assert not list(classes.glob("*.new"))
    assert run(tmp_path / "t2", quick) == "1 True"


@pytest.mark.long
def test_other_options_of_the_jvm_and_a_damaged_archive(classes: Path, tmp_path: Path) -> None:
    quick = LOCAL_CONF["spark.driver.extraJavaOptions"]
    assert run(tmp_path / "t1", quick) == "1 False"
    archive = _written(classes)
    assert run(tmp_path / "t2", "-XX:+UseParallelGC") == "1 True", "with another collector"
    assert run(tmp_path / "t3", f"{quick} -Xshare:off") == "1 False"
    content = archive.read_bytes()
    archive.unlink()
    archive.write_bytes(content[: len(content) // 2])  # a JVM would crash
    assert run(tmp_path / "t5", quick) == "1 False"
    assert not archive.exists() or archive.stat().st_size > len(content) // 2


@pytest.mark.long
def test_a_session_for_short_work_is_replaced_for_other_work() -> None:
    config = SparkConfig(master="local[1]", conf={"spark.driver.memory": "512m"})
    try:
        assert session.acquire(config, 50 << 20) is session.acquire(config, 50 << 20)
        short = driver.pid()
        long = session.acquire(config, 40 << 20)  # 140 MiB together
        assert driver.pid() != short
        assert session.acquire(config, 1) is session.acquire(config) is long
        fixed = SparkConfig(master="local[1]", conf=LOCAL_CONF)  # which names a level of compilation
        assert session.acquire(fixed, 1) is session.acquire(fixed)
    finally:
        session.discard()
