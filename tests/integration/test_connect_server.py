"""``cdc spark``: a Connect server that is started, used, killed, found outdated, and stopped."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import ConfigError, RetryableError
from cdc.cli import main as cli
from cdc.config import SparkConfig
from cdc.disk.cache import cache_dir
from cdc.lake.apply import commit, merge
from cdc.lake.delta.row_replacement import Replaced, replace_rows
from cdc.lake.runtime import class_archive, connect_server, session, spark_settings
from cdc.lake.runtime.driver_jvm import JvmError
from cdc.testing.servers import Server as Database
from cdc.testing.servers import free_port
from tests.fault.support import wait_for
from tests.support.apply import COMPILED_CONF, Loop


@pytest.fixture
def port() -> Iterator[int]:
    port = free_port()
    yield port
    session.discard()
    connect_server.stop(port)
    shutil.rmtree(connect_server.folder_of(port), ignore_errors=True)


def settings_of(config: SparkConfig) -> dict[str, str]:
    """Returns the settings of a server that is started with this configuration."""
    return spark_settings.settings(config.model_copy(update={"remote": None, "master": "local[*]"}))


def require_shared_code(config: SparkConfig) -> None:
    """A query of one session finds the code that Spark has compiled for another."""
    # CodeGenerator.compileTime() is the time spent in compiling so far, in ns.
    spent = "SELECT java_method('org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator', 'compileTime')"
    work = (
        "SELECT id % 7 AS a, count(*), max(concat(id, 'x')) FROM range(100) GROUP BY 1 HAVING count(*) > 3 ORDER BY 2"
    )
    spent_ns = []
    for _ in range(2):
        spark = session.acquire(config).spark
        spark.sql(spent).collect()
        before = int(spark.sql(spent).collect()[0][0])
        spark.sql(work).collect()
        spent_ns.append(int(spark.sql(spent).collect()[0][0]) - before)
        session.discard()
    assert spent_ns[0] > 0 == spent_ns[1]


def require_gateway(config: SparkConfig, port: int) -> None:
    """Processes with the server's token reach its JVM; their jobs can be cancelled, and nothing stays behind them."""
    spark = session.acquire(config).spark
    gateway = connect_server.gateway_of(f"sc://localhost:{port}", spark)
    assert gateway is not None
    with (
        pytest.raises(RetryableError, match="has broken the connection"),
        dataclasses.replace(gateway, token="guessed").jvm(spark),
    ):
        pass

    with pytest.raises(JvmError, match="ParseException"), gateway.jvm(spark) as jvm:
        jvm.session.sql("SELEC")

    def is_cached() -> bool:
        with gateway.jvm(spark) as other:
            return not other.session.sharedState().cacheManager().isEmpty()

    with gateway.jvm(spark) as jvm:
        assert jvm.view.io.towpath.DriverGateway.persist(jvm.session.range(10)).count() == 10
        assert is_cached()
    wait_for(lambda: not is_cached(), "the rows of a connection that has ended to be released")

    slow = "SELECT java_method('java.lang.Thread', 'sleep', 60000L) FROM range(1)"
    with ThreadPoolExecutor(1) as pool:

        def work() -> None:
            with gateway.jvm(spark) as jvm:
                jvm.session.sql(slow).collectAsList()

        begun = time.monotonic()
        working = pool.submit(work)
        while not working.done():
            session.TableSession(spark, gateway).interrupt()
            time.sleep(0.2)
        with pytest.raises(JvmError, match=r"(?i)cancelled"):
            working.result()
        assert time.monotonic() - begun < 30


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_server_is_started_used_killed_and_stopped(
    port: int,
    tmp_path: Path,
    mysql9: Database,
    database: Callable[[Database], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = f"{{remote: 'sc://localhost:{port}', conf: {COMPILED_CONF}}}"
    loop = Loop(tmp_path, mysql9, database(mysql9), spark=spark)
    conf = ["--conf-dir", str(loop.config.file.parent), "spark"]

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()  # the log of merges since the last command
        code = cli.main([*conf, *arguments, "--port", str(port)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    assert run("status") == (1, f"No server was started for port {port}.\n")
    assert run("stop") == (0, f"No server runs on port {port}.\n")
    code, text = run("start", "shop")
    assert (code, text.startswith(f"sc://localhost:{port} is ready (process ")) == (0, True), text
    code, text = run("start", "shop")
    assert (code, "a server runs already" in text) == (2, True)
    code, text = run("status", "--json")
    assert (code, json.loads(text)["running"], json.loads(text)["current"]) == (0, True, True)
    server = connect_server.find(port)
    assert server is not None
    assert connect_server.folder_of(port).stat().st_mode & 0o077 == 0
    token = server.token
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert token.encode() not in file.read_bytes()
        except OSError:
            continue

    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    loop.capture()
    loop.apply_all()
    loop.require_equal("t")
    loop.sql("UPDATE t SET v = 3")
    loop.capture()

    # Nobody without the token gets in.
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    with pytest.raises(PySparkException, match=r"(?i)token|unauthenticated"):
        _ = SparkSession.builder.remote(f"sc://localhost:{port}").create().version

    require_shared_code(loop.config.spark)

    # Another Towpath, and a server that was killed.
    session.discard()
    record = connect_server.folder_of(port) / "server.json"
    text = record.read_text()
    record.write_text(json.dumps(dataclasses.asdict(server) | {"towpath": "0.0.1 other"}))
    with pytest.raises(ConfigError, match=r"the Spark Connect server runs Towpath 0\.0\.1 other, and this process"):
        session.acquire(loop.config.spark)
    assert run("status")[0] == 1
    record.write_text(text)
    os.kill(server.pid, signal.SIGKILL)
    while server.is_alive():
        time.sleep(0.05)
    with pytest.raises(RetryableError, match=r"has started \(process \d+\) has ended.* Start|start it again"):
        session.acquire(loop.config.spark)
    assert run("status")[0] == 1

    # Started again: the merges go on, and the end leaves an archive of classes for the next start.
    digest = class_archive.digest_of(settings_of(loop.config.spark), connect_server.MAIN_CLASS)
    for old in (cache_dir() / "classes").glob(f"{digest}-*.jsa"):
        old.unlink()
    (cache_dir() / "classes" / f"{digest}.begun").unlink(missing_ok=True)
    assert run("start", "shop")[0] == 0
    with monkeypatch.context() as patch:
        replaced: list[Replaced | None] = []

        def seen(*given: Any, **more: Any) -> Replaced | None:
            replaced.append(replace_rows(*given, **more))
            return replaced[-1]

        patch.setattr(commit, "replace_rows", seen)
        patch.setattr(merge, "may_change", lambda *_: False)
        loop.apply_all()
    loop.require_equal("t")
    assert replaced == [Replaced(inserted=0, updated=2, deleted=0)]
    require_gateway(loop.config.spark, port)
    session.discard()
    assert run("stop") == (0, f"sc://localhost:{port} has ended.\n")
    [archive] = (cache_dir() / "classes").glob(f"{digest}-*.jsa")
    assert archive.stat().st_size > 1 << 20
    code, text = run("start", "shop")
    assert code == 0, text
    assert run("stop")[0] == 0
