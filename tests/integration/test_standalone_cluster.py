"""Merges on a real standalone cluster of Spark: store, driver, master and workers are machines that share no disk, the
lake is in S3, and the workers do not have Towpath."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from cdc.config import load
from cdc.testing.servers import Server
from tests.support.apply import COMPILED_CONF, Loop
from tests.support.compare import delta_rows, select_rows
from tests.support.machines import Machine, Site
from tests.support.s3 import S3Server, serve
from tests.support.server import TOKEN, client_config, make_certificates, server_process, with_tokens
from tests.support.spark_cluster import Cluster, give_jars

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="machines of their own take root"),
]

CLUSTER_SECRET, LAKE_SECRET = "Sesam-cluster-4716", "Sesam-lake-4717"
SECRETS = (TOKEN, CLUSTER_SECRET, LAKE_SECRET)
REPOSITORY = Path(__file__).resolve().parents[2]
BUCKET = "lake"


def towpath_folders() -> list[Path]:
    """The package of Towpath that processes of this Python find: of this checkout, and of the one that is installed."""
    code = "import cdc; print(*cdc.__path__, sep='\\n')"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], cwd="/", env=environment, capture_output=True, text=True)
    return sorted({REPOSITORY / "cdc", *map(Path, done.stdout.split())})


@dataclass
class Setup:
    """A destination whose store is on the host, and the machines around it."""

    loop: Loop
    s3: S3Server
    cluster: Cluster
    driver: Machine
    """The machine on which the submitting commands run."""
    copies: int = 0

    def run(self, *words: str, code: int = 0) -> str:
        """Runs a command of ``cdc`` on the driver's machine."""
        return self.driver.run(*self.command(*words), code=code, env=self.environment(), limit_s=500)

    def command(self, *words: str) -> list[str]:
        conf = str(self.driver.folder / "client" / "conf")
        return [sys.executable, "-m", "cdc", "--conf-dir", conf, words[0], "shop", *words[1:]]

    def environment(self) -> dict[str, str]:
        return self.driver.environment(LAKE_SECRET=LAKE_SECRET, CLUSTER_SECRET=CLUSTER_SECRET, **of_stage(self.s3))

    def require_equal(self, *tables: str) -> None:
        """Compares tables of the lake with the source, by a copy of the bucket."""
        self.copies += 1
        copy = self.loop.config.file.parent.parent / f"copy{self.copies}"
        self.s3.download("tables", copy)
        for table in tables:
            columns, expected = select_rows(self.loop.server, self.loop.db, table)
            assert delta_rows(copy, self.loop.db, table, columns) == expected, table


@pytest.fixture(scope="module")
def setup(mysql9: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("cluster")
    patch = pytest.MonkeyPatch()
    patch.setenv("LAKE_SECRET", LAKE_SECRET)
    patch.setenv("CLUSTER_SECRET", CLUSTER_SECRET)
    db = f"cluster_{os.getpid()}"
    mysql9.execute(f"CREATE DATABASE {db}")
    try:
        with Site(folder) as site, serve(BUCKET, site.host, kind="moto") as s3:
            site.forward(mysql9.port)
            hidden = towpath_folders()
            cluster = Cluster(
                site.machine("master", hidden),
                [site.machine(f"w{n}", hidden) for n in (1, 2)],
                CLUSTER_SECRET,
                of_stage(s3),
            )
            cluster.start()
            driver = site.machine("driver")
            loop = make_loop(folder, mysql9, db, s3, cluster)
            tls = make_certificates(loop.config.file.parent, address=site.host)
            served = with_tokens(loop.config, host=site.host, certificate=tls.certificate.name, key=tls.key.name)
            with server_process(served, folder) as server:
                client = client_config(
                    served, folder / "client", server.url, ca_file="ca.pem", stage=f"s3://{BUCKET}/stage"
                )
                (client.file.parent / "ca.pem").write_bytes(tls.ca.read_bytes())
                document = yaml.safe_load(client.file.read_text())
                document["source"]["url"] = f"mysql://t@{site.host}:{mysql9.port}"
                client.file.write_text(yaml.safe_dump(document))
                load(client.file)
                give_jars(driver)
                driver.put("client")
                driver.path("events").mkdir()
                yield Setup(loop, s3, cluster, driver)
    finally:
        mysql9.execute(f"DROP DATABASE {db}")
        patch.undo()


def of_stage(s3: S3Server) -> dict[str, str]:
    """The environment by which fsspec reaches the stage, on the driver's machine and on the workers."""
    return {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def make_loop(folder: Path, server: Server, db: str, s3: S3Server, cluster: Cluster) -> Loop:
    conf = {
        **COMPILED_CONF,
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.authenticate": "true",
        "spark.authenticate.secret": "${CLUSTER_SECRET}",
        "spark.network.crypto.enabled": "true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }
    return Loop(
        folder,
        server,
        db,
        spark=f"{{master: '{cluster.url}', ship: towpath, conf: {json.dumps(conf)}}}",
        target=f"s3a://{BUCKET}/tables",
        s3=f"{{endpoint: '{s3.endpoint}', access_key_id: testing, secret_access_key_env: LAKE_SECRET}}",
        overrides="DB.log: {mode: append}",
    )


@contextmanager
def all_command_lines() -> Iterator[set[bytes]]:
    """Collects the command lines of all processes of all machines, which every user of a machine may read."""
    seen: set[bytes] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(cmdline.read_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def holds_secret(content: bytes) -> list[str]:
    return [secret for secret in SECRETS if secret.encode() in content]


def test_executors_without_disk_and_without_towpath(setup: Setup) -> None:
    loop, driver = setup.loop, setup.driver
    rows = ", ".join(f"({n}, '{n:0250d}')" for n in range(20_000))  # more than the driver decodes itself
    loop.sql(
        "CREATE TABLE mirror (id INT PRIMARY KEY, v VARCHAR(300))",
        "CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(20))",
        f"INSERT INTO mirror VALUES {rows}",
        "INSERT INTO log VALUES (1, 'x')",
    )
    loop.capture()
    with all_command_lines() as lines:
        setup.run("apply", "--until-empty")
        loop.sql("UPDATE mirror SET v = CONCAT('x', v)", "DELETE FROM mirror WHERE id % 5 = 0")
        loop.capture()
        setup.run("apply", "--until-empty")
    setup.require_equal("mirror", "log")
    assert '"ok": true' in setup.run("verify", "--json")

    # The work was done by executors on the workers, and no secret stands where others can read it.
    executors = [line for line in lines if b"CoarseGrainedExecutorBackend" in line]
    assert executors
    assert any(b"cdc.lake.rows.worker_daemon" in line for line in lines), "no executor has decoded rows"
    assert [line for line in lines if holds_secret(line)] == []
    events = [path for path in driver.path("events").rglob("*") if path.is_file()]
    assert events
    for file in events:
        assert holds_secret(file.read_bytes()) == [], file
    for worker in setup.cluster.workers:
        written = [path for path in worker.path("work").rglob("*") if path.is_file()]
        assert [path for path in written if path.name == "stderr"], worker.name
        for file in written:
            content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            assert holds_secret(content) == [], file


def test_a_snapshot_by_executors(setup: Setup) -> None:
    rows = ", ".join(f"({n}, 'row {n}')" for n in range(3000))
    setup.loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", f"INSERT INTO t VALUES {rows}")
    setup.loop.capture()
    setup.run("apply", "--until-empty")
    setup.loop.sql("UPDATE t SET v = 'x' WHERE id < 9")
    setup.loop.capture()
    setup.run("snapshot", f"{setup.loop.db}.t")
    setup.run("apply", "--until-empty")
    setup.require_equal("t")


def test_a_worker_a_driver_and_the_master_are_lost(setup: Setup) -> None:
    loop, cluster = setup.loop, setup.cluster
    rows = ", ".join(f"({n}, '{n:0100d}')" for n in range(60_000))
    loop.sql("CREATE TABLE large (id INT PRIMARY KEY, v VARCHAR(120))", f"INSERT INTO large VALUES {rows}")
    loop.capture()

    def running() -> int:
        apps = cluster.state()["activeapps"]
        assert isinstance(apps, list)
        return len(apps)

    def started() -> subprocess.Popen[bytes]:
        process = setup.driver.popen(setup.command("apply", "--until-empty"), "apply", setup.environment())
        deadline = time.monotonic() + 120
        while not running():
            assert process.poll() is None, setup.driver.log("apply")[-3000:]
            assert time.monotonic() < deadline, "no application has started"
            time.sleep(0.05)
        return process

    # A worker dies under a merge, which goes on at the other one.
    process = started()
    lost = cluster.workers[0]
    time.sleep(2)
    lost.crash()
    assert process.wait(300) == 0, setup.driver.log("apply")[-3000:]
    setup.require_equal("large")
    cluster.start_worker(lost)

    # The driver's machine loses its processes; the next run goes on.
    loop.sql("UPDATE large SET v = CONCAT('a', id) WHERE id % 2 = 0")
    loop.capture()
    process = started()
    time.sleep(2)
    setup.driver.crash()
    process.wait(60)
    setup.run("apply", "--until-empty")
    setup.require_equal("large")

    # Without a master nothing can be submitted: the run fails with a sentence, and a later one succeeds.
    loop.sql("DELETE FROM large WHERE id % 4 = 1")
    loop.capture()
    cluster.master.crash()
    assert "Spark" in setup.run("apply", "--until-empty", code=1)
    cluster.start_master()
    cluster.wait_for_workers(2)
    setup.run("apply", "--until-empty")
    setup.require_equal("large")
