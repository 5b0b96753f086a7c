"""A run that finds nothing starts no Spark, and is over at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cdc.lake import pipeline
from cdc.testing.servers import Server
from tests.support.apply import Loop

PROGRAM = """
import json, sys, time
import psutil
from airflow.sdk import BaseOperator
from cdc.airflow.compat import DownstreamTasksSkipped
began, cpu = time.monotonic(), time.process_time()
from cdc.airflow import TowpathFetchOperator
from tests.support.airflows import NoEvents
try:
    TowpathFetchOperator(task_id="fetch", conf_file=sys.argv[1], batch_owner="airflow:apply_shop").execute(
        {"inlet_events": NoEvents()}
    )
except DownstreamTasksSkipped:
    pass
else:
    raise SystemExit("there was something to apply")
seconds = time.monotonic() - began
heavy = sorted({name.partition(".")[0] for name in sys.modules} & {"pyspark", "delta", "deltalake", "numba", "pymysql"})
print(json.dumps({"seconds": seconds, "cpu": time.process_time() - cpu, "heavy": heavy,
                  "children": len(psutil.Process().children(recursive=True))}))
"""


def test_a_run_that_finds_nothing(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> None:
    """Its only task, in a process of its own with Airflow loaded, as a worker has it. ``merge`` and ``finalize`` are
    skipped, and never start."""
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    loop.capture()
    while (lease := pipeline.fetch(loop.config, "airflow:apply_shop", wait_s=0)) is not None:
        pipeline.finalize(loop.config, lease, True)
    # With the default of batch.max_wait_s, which must not count.
    text = loop.config.file.read_text(encoding="utf-8").replace("max_wait_s: 0", "max_wait_s: 60")
    loop.config.file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(loop.config.file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    print(report)
    assert (report["heavy"], report["children"]) == ([], 0)
    assert report["cpu"] < 2, "seconds of the processor, since others may use this machine"
    assert report["seconds"] < 20
