"""Jobs on tables in a driver under spark-submit, on a master with executors of its own."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc.batches.parking import park
from cdc.config import load as load_config
from cdc.lake import pipeline
from cdc.lake.jobs.replay import BESIDE
from cdc.lake.jobs.results import CatchUp
from cdc.lake.runtime import driver, spark_settings
from cdc.lake.runtime.jars import spark_home
from cdc.meta import ParkedTable, open_meta
from cdc.source.snapshot.progress import SnapshotProgress
from cdc.testing.servers import Server
from tests.support.apply import COMPILED_CONF, Loop
from tests.support.capturing import capturing

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = f"{{master: 'local-cluster[1,2,1024]', conf: {COMPILED_CONF}}}"
SNAPSHOT = "import sys; from pathlib import Path; from cdc.lake import pipeline; from cdc.config import load\n"
SNAPSHOT += "pipeline.snapshot(load(Path(sys.argv[1])), sys.argv[2:], progress=lambda now: print(now.rows, flush=True))"


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> Loop:
    db = database(mysql9)
    values = ", ".join(f"({i}, 'row {i}')" for i in range(3000))
    mysql9.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, name VARCHAR(20))", f"INSERT INTO {db}.t VALUES {values}")
    loop = Loop(tmp_path, mysql9, db, spark=CLUSTER)
    file = loop.config.file
    file.write_text(file.read_text(encoding="utf-8") + "snapshot: {chunk_rows: 100, max_rows_per_s: 500}\n")
    loop.config = load_config(file)
    return loop


def drivers(file: Path) -> list[int]:
    """Process ids of the drivers of a configuration, and of their spark-submit."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "serve.py" in line and str(file) in line:
            pids.append(int(process.name))
    return pids


@pytest.mark.long
@pytest.mark.timeout(900)
def test_snapshot_replay_and_retry(loop: Loop) -> None:
    table = f"{loop.db}.t"
    with capturing(loop.config):
        # A process that is killed: its driver ends at once, and leaves the finished chunks.
        process = subprocess.Popen(
            [sys.executable, "-c", SNAPSHOT, str(loop.config.file), table], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        while int(process.stdout.readline()) < 500:
            pass
        assert drivers(loop.config.file)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        deadline = time.monotonic() + 30
        while drivers(loop.config.file):
            assert time.monotonic() < deadline, "the driver lives on without its process"
            time.sleep(0.1)

        loop.sql("UPDATE t SET name = 'changed' WHERE id % 7 = 0", "DELETE FROM t WHERE id % 11 = 0")
        shown: list[SnapshotProgress] = []
        with pipeline.session(loop.config):
            [taken] = pipeline.snapshot(loop.config, [table], progress=shown.append)
            assert taken.table == table
            assert shown[-1].complete
            assert shown[0].rows >= 400, "finished chunks are read again"
            loop.require_equal("t")

    loop.sql("INSERT INTO t VALUES (5000, 'new')")
    loop.capture()
    folder = Path(loop.config.apply.target) / BESIDE.partition("/")[0]
    of_another = folder / f"replay-{'0' * 12}-123456"
    killed = folder / f"replay-{hashlib.sha256(table.encode()).hexdigest()[:12]}-123456"
    for replay_folder in (of_another, killed):
        replay_folder.mkdir(parents=True)
        (replay_folder / "part").write_text("left by a replay that was killed")
    with pipeline.session(loop.config):
        done: list[CatchUp] = []
        [built] = pipeline.replay(loop.config, [table], progress=done.append)
        assert built.rows >= 3000 - 3000 // 11 - 1
        assert len(done) <= 1
        loop.apply_all()
        loop.require_equal("t")

        # A table that was parked because of an error is tried again by each run.
        meta = open_meta(loop.config)
        position = meta.read().subscription("apply").position()
        park(
            meta, "apply", table, ParkedTable(due="retry", reason="a fault", since=datetime.now(UTC), keep_seq=position)
        )
        loop.sql("INSERT INTO t VALUES (5001, 'newer')")
        loop.capture()
        loop.apply_all()
        assert loop.delta("t")[-1]["id"] == 5000
        [back] = pipeline.retry_parked(loop.config)
        assert (back.table, back.row_events) == (table, 1)
        loop.require_equal("t")
    assert not drivers(loop.config.file)
    assert [path.name for path in folder.iterdir() if path.name.startswith("replay-")] == [of_another.name]


def run_program(loop: Loop, name: str, *arguments: str) -> str:
    """Runs a program of ``spark_jobs`` under a spark-submit that the test starts. Returns its output, before which
    spark-submit prints the logs."""
    spark = loop.config.spark.model_copy(update={"master": "local[2]"})
    with driver.submit_options(spark_settings.settings(spark)) as options:
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]", *options]
        command += [str(ROOT / "spark_jobs" / f"{name}.py"), loop.config.name, *arguments]
        environment = {
            **os.environ,
            "CDC_CONF": str(loop.config.file.parent),
            "PYTHONPATH": spark_settings.worker_path(),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout[done.stdout.find("\n{") + 1 :]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_programs_use_the_session_of_a_spark_submit_of_ones_own(loop: Loop) -> None:
    """The configuration's master is a cluster, for which a command would start a driver of its own."""
    with capturing(loop.config):
        run_program(loop, "snapshot", f"{loop.db}.t")
    loop.sql("UPDATE t SET name = 'changed' WHERE id < 10", "DELETE FROM t WHERE id = 11")
    loop.capture()
    (batch,) = json.loads(run_program(loop, "apply", "--until-empty", "--json"))["batches"]
    assert [(table["updated"], table["deleted"]) for table in batch["tables"]] == [(10, 1)]
    loop.require_equal("t")
    assert json.loads(run_program(loop, "verify", "--json"))["ok"] is True
