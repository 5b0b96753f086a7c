"""The same merges on a Spark Connect server."""

from __future__ import annotations

import hmac
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from cdc.lake import pipeline
from cdc.lake.runtime import session, spark_settings
from cdc.lake.runtime.jars import delta_jars, spark_home
from cdc.testing.servers import Server, free_port
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.run_identity import require_signed, sign

OF_A_TEAM = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parser.quotedRegexColumnNames": "true",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.storeAssignmentPolicy": "LEGACY",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
}
"""Settings of a server that change what values and statements mean; Towpath's sessions have their own."""
KEY = "6b6579206f66207468652074657374"


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[str]:
    """Starts a Connect server with Delta on this machine, and yields its URL."""
    port = free_port()
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += ["--jars", ",".join(str(jar) for jar in delta_jars())]
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": "2",
    }
    for key, value in (settings | OF_A_TEAM).items():
        command += ["--conf", f"{key}={value}"]
    environment = os.environ | {"SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = spark_settings.worker_path()
    with (tmp_path / "connect.log").open("wb") as log:
        process = subprocess.Popen([*command, "spark-internal"], env=environment, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while not _listens(port):
            assert process.poll() is None, (tmp_path / "connect.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the Connect server does not listen"
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        session.discard()
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.long
def test_connect(
    connect_server: str,
    tmp_path: Path,
    mysql9: Server,
    database: Callable[[Server], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = f"{{remote: '{connect_server}'}}"
    monkeypatch.setenv("TOWPATH_TEST_HASH_KEY", KEY)
    overrides = "DB.log: {mode: append, columns: {v: hash}}"
    apply = "hash_key_env: TOWPATH_TEST_HASH_KEY"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides, apply=apply, spark=spark)
    loop.sql(
        "SET sql_mode = ''",
        "CREATE TABLE mirror (id INT PRIMARY KEY, v VARCHAR(20), d DATE)",
        "CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO mirror VALUES (1, 'a', NULL), (2, 'b', '2024-02-29'), (3, 'c', '2024-02-00')",
        "INSERT INTO log VALUES (1, 'a')",
        "UPDATE mirror SET id = 4 WHERE id = 2",
        "DELETE FROM mirror WHERE id = 3",
        "UPDATE log SET v = 'z'",
        "ALTER TABLE mirror ADD COLUMN n INT",
        "UPDATE mirror SET n = 7",
        "CREATE TABLE times (id INT PRIMARY KEY, d DATE, t DATETIME(6), ts TIMESTAMP(6) NULL, n DECIMAL(38,10))",
        "SET time_zone = '+00:00'",
        "INSERT INTO times VALUES (1, '1500-02-28', '1500-02-28 01:02:03.456789', '1970-01-01 00:00:01.000001', 1.5),"
        " (2, '1582-10-05', '1582-10-10 23:59:59.999999', '2024-03-10 02:30:00.123456', 1234567890123456789012.5),"
        " (3, '9999-12-31', '2024-03-10 02:30:00', '2024-11-03 05:30:00', -0.0000000001)",
    )
    loop.capture()
    sign(monkeypatch)
    applied = loop.apply_all()
    require_signed(loop, "mirror")
    loop.require_equal("mirror")
    loop.require_equal("times")
    assert pipeline.verify(loop.config, [f"{loop.db}.times"], wait_s=10).exit_code == 0
    # The one that was inserted, and then deleted.
    assert sum(result.null_dates for result in applied["mirror"]) == 2
    assert loop.changelog("log") == [("insert", 1), ("update", 1)]
    digests = [hmac.digest(KEY.encode(), value, "sha256").hex() for value in (b"a", b"z")]
    assert [row["v"] for row in loop.delta("log", order="_seq")] == digests
    # A task that is killed interrupts what it runs on the server; the session can be used afterwards.
    running = session.acquire(loop.config.spark).spark.sql("SELECT sum(id % 7) FROM range(100000000000000)")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(running.collect)
        time.sleep(3)
        assert not answer.done()
        pipeline.stop()
        with pytest.raises(PySparkException, match=r"(?i)cancel|interrupt"):
            answer.result(30)
    loop.sql("UPDATE mirror SET n = 8")
    loop.capture()
    loop.apply_all()
    loop.require_equal("mirror")

    # New generations have types that other readers know.
    with capturing(loop.config):
        pipeline.snapshot(loop.config, [f"{loop.db}.mirror"])
    pipeline.replay(loop.config, [f"{loop.db}.times"])
    for table in ("mirror", "times"):
        assert "collate" not in DeltaTable(loop.path(table)).schema().to_json()
    loop.require_equal("mirror")
    loop.require_equal("times")
    assert KEY not in (tmp_path / "connect.log").read_text(errors="replace")
