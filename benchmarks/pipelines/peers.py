"""The pipelines that are compared."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from benchmarks.accounting import ROOT
from benchmarks.peers import built, missing_tools
from benchmarks.pipelines.pipeline import SETTINGS, Pipeline
from benchmarks.snapshot import PACKAGES
from cdc.disk.cache import cache_dir
from cdc.lake.runtime.jars import Packages, delta_jars, jars_of
from cdc.testing.servers import HOST, PASSWORD, find_kind, free_port

_SPARK_HAS = tuple(
    f"{group}:*" for group in ("org.apache.hadoop", "org.slf4j", "org.lz4", "at.yawk.lz4", "org.scala-lang")
)


class Towpath(Pipeline):
    name = "towpath"
    title = "Towpath: capture, apply in a loop, a warm Spark Connect server"

    def prepare(self) -> None:
        self.variables["spark_port"] = str(free_port())
        self.write_files()

    def load(self) -> None:
        self.start("capture")
        self._start_spark()
        self.finish("snapshot")
        self.start("apply")

    @property
    def target(self) -> Path:
        return self.folder / "lake" / "bench" / "orders"

    def _start_spark(self) -> None:
        self.start("spark")
        self.wait("Spark Connect", lambda: _listens(int(self.variables["spark_port"])))

    @contextmanager
    def without_loop(self) -> Iterator[None]:
        """Stops the loop and the Connect server for a block; a configuration without them is for :meth:`cold`."""
        for service in ("apply", "spark"):
            self.kill(service)
        warm = (self.folder / "bench.yaml").read_text()
        (self.folder / "bench.yaml").write_text(re.sub(", remote: '[^']*'", "", warm))
        yield
        (self.folder / "bench.yaml").write_text(warm)
        self._start_spark()
        self.start("apply")

    def cold(self) -> None:
        """Applies what is there, in a process of its own."""
        command = [sys.executable, "-m", "cdc", "--conf-dir", str(self.folder), "apply", "bench", "--wait", "10"]
        environment = {**os.environ, "BENCH_PASSWORD": PASSWORD}
        subprocess.run(command, check=True, capture_output=True, env=environment, cwd=ROOT)

    def versions(self) -> dict[str, str]:
        return {}


class Debezium(Pipeline):
    name = "debezium"
    title = "Debezium in Kafka Connect, Kafka, Spark Structured Streaming with MERGE into Delta"
    fixed_columns = (
        "The streaming job names its columns, so a new column arrives only after somebody has changed the job and "
        "the table, and rows that were merged before lack it."
    )

    def prepare(self) -> None:
        _require_tools(self.title, "mvn")
        steps = [["mvn", "-q", "-B", "-f", "debezium.pom.xml", "dependency:copy-dependencies", "-DoutputDirectory=lib"]]
        jars = built("debezium", ("pipelines/debezium.pom.xml",), steps) / "lib"
        streaming = Packages((f"org.apache.spark:spark-sql-kafka-0-10_2.13:{metadata.version('pyspark')}",), _SPARK_HAS)
        kafka, kafka_port = find_kind("kafka"), free_port()
        (self.folder / "kafka").mkdir()
        kafka.create(self.folder / "kafka")
        command = kafka.command(self.folder / "kafka", kafka_port, ())
        # The broker of tests has a small heap; this is what Kafka's own script gives it.
        heap = {"-Xmx320m": "-Xmx1g", "-XX:+UseSerialGC": "-XX:+UseG1GC", "-XX:TieredStopAtLevel=1": "-server"}
        self.variables |= {
            "kafka": " ".join(f"'{heap.get(word, word)}'" for word in command),
            "kafka_address": f"{HOST}:{kafka_port}",
            "rest_port": str(free_port()),
            "java": command[0],
            "connect_jars": str(jars),
            "spark_jars": ",".join(map(str, [*delta_jars(), *jars_of(streaming)])),
        }
        self.write_files()

    def load(self) -> None:
        self.start("kafka")
        port = int(self.variables["kafka_address"].partition(":")[2])
        self.wait("Kafka", lambda: find_kind("kafka").answers(port))
        self.start("connect")
        self.wait("Connect", self._takes_connector)
        self.start("spark")

    def _takes_connector(self) -> bool:
        """Sends the connector's configuration to Connect; False while Connect does not take it."""
        url = f"http://{HOST}:{self.variables['rest_port']}/connectors/bench/config"
        body = (self.folder / "connector.json").read_bytes()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status in (200, 201)
        except OSError:
            return False  # Connect is starting

    @property
    def target(self) -> Path:
        return self.folder / "lake"

    def versions(self) -> dict[str, str]:
        jars = Path(self.variables["connect_jars"])
        connector = next(jars.glob("debezium-connector-mysql-*.jar")).stem.rpartition("mysql-")[2]
        connect = next(jars.glob("connect-runtime-*.jar")).stem.rpartition("-")[2]
        broker = next(find_kind("kafka").root().glob("kafka_2.13-*.jar")).stem.rpartition("-")[2]
        return {"Debezium": connector, "Kafka Connect": connect, "Kafka": broker}


class Jdbc(Pipeline):
    name = "jdbc"
    title = "spark.read.jdbc in partitions, the whole table into Delta"
    continuous = False

    def prepare(self) -> None:
        jars = [*delta_jars(), *jars_of(Packages((PACKAGES["mysql9"],), ("com.google.protobuf:*",)))]
        self.variables["spark_jars"] = ",".join(map(str, jars))
        self.write_files()

    def load(self) -> None:
        self.finish("load")

    @property
    def target(self) -> Path:
        return self.folder / "lake"

    def versions(self) -> dict[str, str]:
        return {"MySQL Connector/J": PACKAGES["mysql9"].rpartition(":")[2]}


class Dlt(Pipeline):
    name = "dlt"
    title = "dlt: sql_table with the pyarrow backend, the whole table into Delta"
    continuous = False

    def prepare(self) -> None:
        requirements = SETTINGS / self.name / "requirements.txt"
        venv = cache_dir() / "bench-peers" / f"dlt-{re.sub('[^0-9.]+', '-', requirements.read_text())[:60].strip('-.')}"
        if not (venv / "complete").exists():
            shutil.rmtree(venv, ignore_errors=True)
            for command in (
                [sys.executable, "-m", "venv", str(venv)],
                [str(venv / "bin" / "pip"), "install", "-q", "-r", str(requirements)],
            ):
                subprocess.run(command, check=True)
            (venv / "complete").touch()
        self.variables["dlt_python"] = str(venv / "bin" / "python")
        self.write_files()

    def load(self) -> None:
        self.finish("load")

    @property
    def target(self) -> Path:
        return self.folder / "lake" / "bench" / "orders"

    def versions(self) -> dict[str, str]:
        pinned = dict(line.split("==") for line in (SETTINGS / self.name / "requirements.txt").read_text().split())
        return {"dlt": pinned["dlt[deltalake,filesystem]"], "deltalake (dlt)": pinned["deltalake"]}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _require_tools(title: str, *tools: str) -> None:
    if missing := missing_tools(title, *tools):
        raise LookupError(missing)


UNAVAILABLE = {
    "Flink CDC's pipeline into Paimon": "The Maven repository of the run did not serve `flink-cdc-cli`, "
    "`flink-cdc-composer`, `flink-cdc-pipeline-connector-mysql` and `flink-cdc-pipeline-connector-paimon`."
}
PEERS: dict[str, type[Pipeline]] = {peer.name: peer for peer in (Towpath, Debezium, Jdbc, Dlt)}
