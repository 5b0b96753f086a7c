"""``cdc apply`` as users and scripts run it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable

from cdc.batches.service import BatchService
from cdc.testing.servers import Server
from tests.support.apply import COMPILED_CONF, Loop

SECRET = "hunter-4711"
SECRETS = {
    "spark.hadoop.fs.s3a.secret.key": SECRET,
    "spark.driver.extraJavaOptions": f"{COMPILED_CONF['spark.driver.extraJavaOptions']} -Dpassword={SECRET}",
}


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> Loop:
    loop = Loop(tmp_path, mysql9, database(mysql9), spark=f"{{master: 'local[2]', conf: {COMPILED_CONF | SECRETS}}}")
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    loop.capture()
    return loop


def command(loop: Loop, *words: str) -> list[str]:
    return [sys.executable, "-m", "cdc", "--conf-dir", str(loop.config.file.parent), "apply", "shop", *words]


def test_json_and_exit_codes(loop: Loop) -> None:
    done = subprocess.run(
        command(loop, "--until-empty", "--json"), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    batches = json.loads(done.stdout)["batches"]
    assert [b["batch"] for b in batches] == [1], "the statement and the rows behind it are one"
    assert set(batches[0]) >= {"batch", "first_seq", "last_seq", "tables"}
    (table,) = batches[0]["tables"]
    assert set(table) == {"table", "inserted", "updated", "deleted", "skipped", "delta_version", "seconds"}
    assert (table["table"], table["inserted"]) == (f"{loop.db}.t", 2)
    assert re.search(
        r"\] Spark starts \(local\[2\]\)\.\n.*\] Spark has started in \d+\.\d s\.$", done.stderr, re.MULTILINE
    )
    version = table["delta_version"]
    line = rf"\] {loop.db}\.t: 2 inserted, 0 updated, 0 deleted in 1 batch; version {version}, \d+\.\d s \(.*merge .* s.*\)\.$"
    assert re.search(line, done.stderr, re.MULTILINE), done.stderr
    assert re.search(r"\] The run merged 1 batch in .* \(Spark start .*\)\.$", done.stderr, re.MULTILINE), done.stderr
    loop.require_equal("t")

    done = subprocess.run(command(loop, "--json"), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"batches": []})
    done = subprocess.run(command(loop, "--until", "noon"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("cdc: --until 'noon' is not a time.")

    loop.sql("ALTER TABLE t DROP PRIMARY KEY")
    loop.capture()
    done = subprocess.run(command(loop), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "DROP PRIMARY KEY" in done.stderr
    assert "Traceback" not in done.stderr
    assert BatchService(loop.config).outstanding() == []


@pytest.mark.long
def test_a_table_that_cannot_be_applied_fails_each_run_and_holds_no_other_back(
    tmp_path: Path, mysql9: Server, database: Callable[[Server], str]
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply="on_error: park")
    loop.sql(
        "CREATE TABLE good (id INT PRIMARY KEY)",
        "CREATE TABLE keyless (id INT)",
        "CREATE TABLE dates (d DATE PRIMARY KEY)",
        "INSERT INTO good VALUES (1)",
        "INSERT INTO keyless VALUES (1)",
        "SET SESSION sql_mode = ''",
        "INSERT INTO dates VALUES ('0000-00-00')",
    )
    loop.capture()
    names = [f"{loop.db}.{table}" for table in ("dates", "keyless")]

    def run(*words: str) -> tuple[int, list[str]]:
        done = subprocess.run(command(loop, *words), capture_output=True, text=True, timeout=240, check=False)
        return done.returncode, done.stderr.strip().splitlines()

    code, lines = run("--until-empty")
    loop.require_equal("good")
    assert code == 1, lines
    for name, line in zip(names, lines[-3:-1], strict=True):
        assert line.startswith(f"{name} is left out: ") and line.endswith("Each run tries it again.")
    assert "primary key" in lines[-2]
    assert lines[-1].startswith(f"cdc: destination shop: 2 tables are left out: {', '.join(names)}.")

    loop.sql("INSERT INTO good VALUES (2)")
    loop.capture()
    assert run()[0] == 1
    loop.require_equal("good")
    code, lines = run()  # with nothing to apply
    assert code == 1 and lines[-1].startswith("cdc: destination shop: 2 tables are left out")

    file = loop.config.file
    file.write_text(file.read_text().replace("on_error: park", "on_error: park, on_parked: warn"))
    code, lines = run()
    assert code == 0 and [line.split(" is left out")[0] for line in lines[-2:]] == names


def _words(process: psutil.Process) -> list[str]:
    """Returns the command line; empty if the process has just ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie is one of these
        return []


def test_sigterm_leaves_no_driver_and_no_batch_behind(loop: Loop, tmp_path: Path) -> None:
    held = [sys.executable, "-m", "tests.support.pause", str(tmp_path / "pause")]
    words = command(loop, "--until-empty")[3:]  # without "python -m cdc"
    process = subprocess.Popen([*held, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "pause.here").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    (driver,) = [child for child in children if child.name() == "java"]
    # Every user of the machine may read the command lines; spark-defaults.conf is read as ever.
    lines = [" ".join(_words(each)) for each in (psutil.Process(process.pid), *children)]
    assert not [line for line in lines if SECRET in line]
    assert "--properties-file" in " ".join(driver.cmdline())
    assert not [line for line in lines if any(Path(word).exists() for word in line.split() if "towpath-conf-" in word)]
    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    (tmp_path / "pause.go").touch()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.rstrip().endswith("shop: stopped; batch 1 was rolled back. The next run takes the same changes.")
    assert "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
    assert BatchService(loop.config).outstanding() == []
    loop.apply_all()
    loop.require_equal("t")


def test_a_later_job_of_an_owner_takes_the_batch_over(loop: Loop, tmp_path: Path) -> None:
    """The earlier one, which a scheduler has lost, cannot ack, and its SIGTERM does not roll the batch back."""
    owner = ["--owner", "airflow:own.lake", "--until", "none", "--airflow-run", "own", "run 1", "lake.merge"]
    held = [sys.executable, "-m", "tests.support.pause", str(tmp_path / "pause")]
    earlier = subprocess.Popen([*held, *command(loop, *owner, "1")[3:]], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (tmp_path / "pause.here").exists():
        assert earlier.poll() is None, earlier.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    service = BatchService(loop.config)
    later = service.get("airflow:own.lake", wait_s=0)
    assert later is not None and later.batch == 1
    earlier.send_signal(signal.SIGTERM)
    (tmp_path / "pause.go").touch()
    _, errors = earlier.communicate(timeout=60)
    assert "the batch was not rolled back" in errors and "no batch was under way" in errors
    assert [lease.batch for lease in service.outstanding()] == [1]

    done = subprocess.run(command(loop, *owner, "2"), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    loop.require_equal("t")
    commits = [commit for commit in DeltaTable(str(loop.path("t"))).history() if commit["operation"] == "MERGE"]
    runs = [json.loads(commit["userMetadata"])["run"] for commit in commits]
    expected = {"dag_id": "own", "run_id": "run 1", "task_id": "lake.merge", "try": 2, "command": "cdc apply"}
    assert runs and all(expected.items() <= run.items() for run in runs)
