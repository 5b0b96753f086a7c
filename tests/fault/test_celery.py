"""Two Airflow workers with Celery and a Spark cluster, all on machines without a shared disk, under traffic and kills:
the tables equal the source, each change is there once, and no batch stays behind.

``TOWPATH_CLUSTER_MINUTES`` says how long the traffic lasts (4 minutes).
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from cdc.batches.service import BatchService
from cdc.config import DestinationConfig, load
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import PASSWORD, Server
from tests.fault.support import RestartedCommand, configure, require_exactly_once, wait_for
from tests.support.apply import LOCAL_CONF
from tests.support.celery_airflow import CeleryAirflow
from tests.support.compare import mirror_faults
from tests.support.load import Load
from tests.support.machines import Site
from tests.support.redis import start_redis
from tests.support.s3 import S3Server, serve
from tests.support.server import (
    TOKEN,
    ServerProcess,
    client_config,
    make_certificates,
    server_process,
    with_tokens,
)
from tests.support.spark_cluster import Cluster, give_jars

MINUTES = float(os.environ.get("TOWPATH_CLUSTER_MINUTES", "4"))
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(int(MINUTES * 60) + 1500),
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of their own take root"),
]

APPLY = "apply_shop"
BUCKET = "lake"
AIRFLOW = {
    "apply_every": "10s",
    "run_for": "20s",
    "retries": 2,
    "default_args": {"retry_delay": "2s", "max_retry_delay": "5s"},
}


@dataclass
class Setup:
    """The host with source, capture and server; machines for Airflow, its workers, its queue and Spark."""

    server: Server
    database: str
    config: DestinationConfig
    """The destination on the host, which has the store."""
    traffic: Load
    s3: S3Server
    cluster: Cluster
    airflow: CeleryAirflow
    served: ServerProcess
    capture: RestartedCommand
    rng: random.Random
    kills: Counter[str] = field(default_factory=Counter)
    copies: int = 0

    def change_much(self) -> None:
        """Changes all rows of the table ``bulk``: more bytes than the driver decodes itself, so executors do."""
        self.server.execute(f"UPDATE {self.database}.bulk SET n = n + 1, v = CONCAT(n, REPEAT('x', 250))")

    def is_level(self) -> bool:
        """Returns whether everything in the store is applied."""
        service = BatchService(self.config)
        if "apply" not in service.meta.read().subscriptions:  # no run has fetched yet
            return False
        return service.next_seq() is None and not service.outstanding()

    def require_level(self, limit_s: float = 600) -> None:
        """Waits until runs have applied everything and compares the tables with the source, by a copy of the lake."""
        now_us, reader = time.time_ns() // 1000, StoreReader(self.config.store.path)
        wait_for(lambda: reader.complete_until_us() > now_us, "capture to be level")
        self.airflow.wait(self.is_level, "a level destination", limit_s)
        self.copies += 1
        copy = self.config.file.parent.parent / f"copy{self.copies}"
        self.s3.download("tables", copy)
        apply = self.config.apply.model_copy(update={"target": str(copy)})
        require_exactly_once(
            self.server, self.database, self.config.model_copy(update={"apply": apply}), self.traffic.changes
        )
        assert mirror_faults(self.server, copy, self.database, "bulk") == []

    # --- what dies, and comes back

    def lose_worker(self) -> None:
        """The power of an Airflow worker fails; it comes back after some seconds."""
        machine = self.rng.choice(self.airflow.workers)
        machine.crash()
        time.sleep(self.rng.uniform(1, 12))
        self.airflow.start_worker(machine)

    def lose_driver(self) -> None:
        """The driver's JVM is killed, whoever started it."""
        for machine in self.airflow.workers:
            machine.kill_matching("SparkSubmit")

    def lose_executor(self) -> None:
        for machine in self.cluster.workers:
            machine.kill_matching("CoarseGrainedExecutorBackend")

    def lose_spark_worker(self) -> None:
        machine = self.rng.choice(self.cluster.workers)
        machine.crash()
        time.sleep(self.rng.uniform(1, 8))
        self.cluster.start_worker(machine)

    def lose_master(self) -> None:
        self.cluster.master.crash()
        time.sleep(self.rng.uniform(0, 4))
        self.cluster.start_master()

    def lose_cable(self) -> None:
        """An Airflow worker is cut off from everything, while its processes go on."""
        machine = self.rng.choice(self.airflow.workers)
        machine.cable("down")
        time.sleep(self.rng.uniform(5, 30))
        machine.cable("up")

    def lose_server(self) -> None:
        self.served.stop(signal.SIGKILL)
        time.sleep(self.rng.uniform(0, 5))
        self.served.start()

    def lose_capture(self) -> None:
        self.capture.kill()

    def lose_scheduler(self) -> None:
        self.airflow.main.kill_matching("airflow", "scheduler")
        self.airflow.processes["scheduler"].wait()
        time.sleep(self.rng.uniform(0, 5))
        self.airflow.start_one("scheduler")

    def disturb(self) -> None:
        """Lets something die."""
        kinds: list[Callable[[], None]] = [
            self.lose_worker, self.lose_driver, self.lose_executor,
            self.lose_spark_worker, self.lose_master, self.lose_cable, self.lose_server, self.lose_capture,
            self.lose_scheduler,
        ]  # fmt: skip
        choice = self.rng.choice(kinds)
        self.kills[choice.__name__] += 1
        choice()


def configure_lake(
    folder: Path, server: Server, database: str, site: Site, s3: S3Server, cluster: Cluster
) -> DestinationConfig:
    """Configures the destination on the host: lake in S3, Spark on the cluster."""
    config = configure(folder, server, database, transactions=1000)
    document = yaml.safe_load(config.file.read_text())
    document["apply"]["target"] = f"s3a://{BUCKET}/tables"
    document["s3"] = {"endpoint": s3.endpoint, "access_key_id": "testing", "secret_access_key_env": "LAKE_SECRET"}
    document["spark"] = {
        "master": cluster.url,
        "ship": "towpath",
        "conf": {
            **LOCAL_CONF,
            "spark.executor.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.authenticate": "true",
            "spark.authenticate.secret": "${CLUSTER_SECRET}",
        },
    }
    document["airflow"] = AIRFLOW
    document["batch"]["lease_s"] = 120
    config.file.write_text(yaml.safe_dump(document))
    return load(config.file)


@pytest.fixture(scope="module")
def setup(mysql9: Server, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("celery")
    patch = pytest.MonkeyPatch()
    lake, of_cluster, of_queue = (secrets.token_hex(8) for _ in range(3))
    environment = {"LAKE_SECRET": lake, "CLUSTER_SECRET": of_cluster, "TOWPATH_TEST_PASSWORD": PASSWORD}
    for key, value in environment.items():
        patch.setenv(key, value)
    database = f"celery_{random.SystemRandom().randrange(2**32):08x}"
    mysql9.execute(f"CREATE DATABASE {database}")
    with ExitStack() as stack:
        stack.callback(patch.undo)
        stack.callback(mysql9.execute, f"DROP DATABASE {database}")
        metadata = stack.enter_context(
            Server("mysql9", options=["--disable-log-bin", "--character-set-server=utf8mb4"])
        )
        metadata.execute("CREATE DATABASE airflow CHARACTER SET utf8mb4")
        site = stack.enter_context(Site(folder))
        site.forward(metadata.port)
        s3 = stack.enter_context(serve(BUCKET, site.host, kind="moto"))
        cluster = Cluster(site.machine("master"), [site.machine("w1"), site.machine("w2")], of_cluster, memory="1200m")
        cluster.start()
        queue, _ = start_redis(site.machine("queue"), of_queue)
        main, workers = site.machine("main"), [site.machine("a1"), site.machine("a2")]
        config = configure_lake(folder, mysql9, database, site, s3, cluster)
        tls = make_certificates(config.file.parent, address=site.host)
        config = with_tokens(config, host=site.host, certificate=tls.certificate.name, key=tls.key.name)
        served = stack.enter_context(server_process(config, folder))
        client = client_config(config, folder / "client", served.url, ca_file="ca.pem", retry_for_s=20)
        (client.file.parent / "ca.pem").write_bytes(tls.ca.read_bytes())
        for machine in (main, *workers):
            machine.put("client")
            give_jars(machine)
        airflow = CeleryAirflow(
            folder / "airflow",
            client.file.parent,
            ("apply",),
            environment,
            main=main,
            workers=workers,
            database=f"t:{PASSWORD}@{site.host}:{metadata.port}/airflow",
            queue=f":{of_queue}@{queue}",
        )
        stack.callback(airflow.stop)
        traffic = Load(mysql9, database, random.Random(f"{seed} celery").getrandbits(32), pause_s=0.2)
        rows = ", ".join(f"({n}, 0, '')" for n in range(20_000))
        mysql9.execute(
            f"CREATE TABLE {database}.bulk (id INT PRIMARY KEY, n INT, v VARCHAR(300))",
            f"INSERT INTO {database}.bulk VALUES {rows}",
        )
        capture = RestartedCommand(config, "capture")
        stack.callback(lambda: capture.stop(terminate=True))
        airflow.start_all()
        airflow.wait(lambda: APPLY in airflow.dag_ids(), "the DAG", 300)
        airflow.unpause(APPLY)
        rng = random.Random(f"{seed} kills")
        yield Setup(mysql9, database, config, traffic, s3, cluster, airflow, served, capture, rng)


def test_tasks_in_separate_machines(setup: Setup) -> None:
    """The DAG on two workers that do not see the store, and what its XComs hold."""
    airflow = setup.airflow
    setup.traffic.run(40)
    setup.change_much()
    setup.require_level()
    wait_for(lambda: any(run["state"] == "success" for run in airflow.runs(APPLY)), "a successful run")
    merged = [run for run in airflow.runs(APPLY) if airflow.states(APPLY, run["dag_run_id"])["merge"] == "success"]
    assert merged
    for run in merged:
        fetched = airflow.xcoms(APPLY, run["dag_run_id"], "fetch")["return_value"]
        assert set(fetched) == {"batch", "lease", "manifest"}
        merge_result = airflow.xcoms(APPLY, run["dag_run_id"], "merge")["return_value"]
        assert set(merge_result) == {"batch", "lease", "results", "acked", "fetched"}
        finalized = airflow.xcoms(APPLY, run["dag_run_id"], "finalize")
        assert finalized.get("return_value") is None
        text = json.dumps([fetched, merge_result])
        assert TOKEN not in text
        assert all(secret not in text for secret in (os.environ["LAKE_SECRET"], os.environ["CLUSTER_SECRET"]))
        assert len(text) < 20_000
    for machine in airflow.workers:
        assert not machine.path("shop").exists(), "the store's folder"


def test_traffic_with_kills(setup: Setup) -> None:
    began = time.monotonic()
    setup.traffic.start()
    try:
        while time.monotonic() - began < MINUTES * 60:
            time.sleep(setup.rng.uniform(30, 80))
            if setup.rng.random() < 0.3:
                setup.change_much()
            setup.disturb()
    finally:
        setup.traffic.stop()
    minutes = (time.monotonic() - began) / 60
    committed = setup.traffic.transactions
    setup.require_level()
    runs = Counter(str(run["state"]) for run in setup.airflow.runs(APPLY))
    print(f"{minutes:.1f} minutes, {committed} transactions, last runs {dict(runs)}, kills {dict(setup.kills)}")
    setup.traffic.run(5)
    setup.require_level()
