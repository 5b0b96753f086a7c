"""Runs with real Spark: one session for all batches, each acked by itself, whatever fails."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import MergeFailedError
from cdc.batches.lease import Lease
from cdc.batches.manifest_files import load_manifest
from cdc.batches.results import phases_of
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.apply import commit
from cdc.lake.runs import Merged, Run, RunLimits, RunListener
from cdc.lake.runtime import driver, session
from cdc.testing.servers import Server
from tests.support.apply import LOCAL_CONF, OWNER, Loop
from tests.support.run_identity import require_signed, sign

STATEMENTS = 50


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> Loop:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    loop.capture()
    loop.apply_all()
    return loop


def migrate(loop: Loop, statements: int = STATEMENTS) -> None:
    """A migration as tools write it: columns and indexes by turns."""
    for n in range(statements):
        loop.sql(f"ALTER TABLE t ADD COLUMN c{n} INT" if n % 2 == 0 else f"CREATE INDEX i{n} ON t (c{n - 1})")
    loop.sql("UPDATE t SET c0 = 7 WHERE id = 1", "INSERT INTO t (id, v) VALUES (3, 'c')")
    loop.capture()


class Record(RunListener):
    """Keeps the batches of a run and the processes of their drivers."""

    def __init__(self) -> None:
        self.merged_batches: list[int] = []
        self.acked_batches: list[int] = []
        self.drivers: set[int | None] = set()

    def merged(self, batch: Merged) -> None:
        self.merged_batches.append(batch.lease.batch)
        self.drivers.add(driver.pid())

    def acked(self, batch: Merged) -> None:
        self.acked_batches.append(batch.lease.batch)


def run(loop: Loop, limits: RunLimits | None = None) -> Record:
    """Does what the DAG does, and acks the last batch."""
    record = Record()
    lease = pipeline.fetch(loop.config, OWNER, wait_s=0)
    assert lease is not None
    last = Run(pipeline, loop.config, OWNER, RunLimits() if limits is None else limits, record).merge(lease)
    assert last is not None
    pipeline.finalize(loop.config, last.lease, True, last.results)
    return record


def acked_tables(loop: Loop, batch: int) -> list[str]:
    """Returns the tables in the results of an acked batch."""
    manifest = load_manifest(BatchService(loop.config).manifests.path("apply", batch))
    assert manifest.acked is not None
    return [result.table for result in manifest.acked.tables]


@pytest.mark.long
def test_a_migration_of_fifty_statements_is_one_run_of_one_session(loop: Loop) -> None:
    migrate(loop)
    version = loop.version("t")
    began = time.monotonic()
    record = run(loop)
    seconds = time.monotonic() - began
    print(f"{len(record.merged_batches)} batches in {seconds:.1f} s")
    assert len(record.merged_batches) == STATEMENTS / 2, "an index comes with its column, and so do the rows"
    assert record.acked_batches == record.merged_batches[:-1]
    assert len(record.drivers) == 1
    loop.require_equal("t")
    assert BatchService(loop.config).outstanding() == []
    assert BatchService(loop.config).next_seq() is None
    assert all(acked_tables(loop, batch) for batch in record.merged_batches)
    # Three commits for each column, one for the rows, and one for every fourth record that is removed.
    assert loop.version("t") - version <= 3 * STATEMENTS / 2 + 1 + STATEMENTS / 8


def test_batches_without_effect_start_no_session(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_session(*_: Any) -> Any:
        raise AssertionError("a session was started")

    for n in range(5):
        loop.sql(f"CREATE INDEX i{n} ON t (v)", "ALTER TABLE t ENGINE = InnoDB")
    loop.sql("UPDATE t SET v = v WHERE id = 1")  # no row is changed, so none is in the binlog
    loop.capture()
    version = loop.version("t")
    monkeypatch.setattr(session, "acquire", no_session)
    assert run(loop).merged_batches
    assert loop.version("t") == version
    assert BatchService(loop.config).next_seq() is None


def test_a_batch_that_fails_in_the_middle(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(loop, 6)
    before = BatchService(loop.config).subscription().acked_seq
    seen: list[str] = []

    def fails_at_the_second(table: str) -> None:
        seen.append(table)
        if len(seen) == 2:
            raise MergeFailedError("the disk is full")

    monkeypatch.setattr(commit, "before_statement", fails_at_the_second)
    lease = pipeline.fetch(loop.config, OWNER, wait_s=0)
    assert lease is not None
    failing = Run(pipeline, loop.config, OWNER, RunLimits())
    with pytest.raises(MergeFailedError, match="the disk is full"):
        failing.merge(lease)
    assert failing.merging is not None
    failed = failing.merging.manifest
    pipeline.finalize(loop.config, failing.merging, False)
    subscription = BatchService(loop.config).subscription()
    assert before < subscription.acked_seq == failed.after_seq, "what was acked before stays acked"
    assert subscription.outstanding == []
    monkeypatch.setattr(commit, "before_statement", lambda table: None)
    run(loop)
    loop.require_equal("t")


def test_a_run_whose_time_is_spent(loop: Loop) -> None:
    migrate(loop, 4)
    assert run(loop, RunLimits(run_for_s=0.001)).acked_batches == []
    assert BatchService(loop.config).next_seq() is not None
    assert len(run(loop, RunLimits(run_for_s=300)).merged_batches) == 1  # an index comes with its column
    loop.require_equal("t")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_process_killed_in_the_middle(loop: Loop) -> None:
    """Batches before the moment of the kill are acked, and the next run applies the rest once."""
    migrate(loop, 16)
    words = [sys.executable, "-m", "cdc", "--conf-dir", str(loop.config.file.parent), "apply", "shop"]
    start = BatchService(loop.config).subscription().acked_seq
    for more in (1, 3):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seen, deadline = {start}, time.monotonic() + 280
        while len(seen) <= more and process.poll() is None:
            assert time.monotonic() < deadline
            seen.add(BatchService(loop.config).subscription().acked_seq)
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        start = BatchService(loop.config).subscription().acked_seq
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert [table for batch in json.loads(done.stdout)["batches"] for table in batch["tables"]]
    assert BatchService(loop.config).outstanding() == []
    assert BatchService(loop.config).next_seq() is None
    loop.require_equal("t")


@pytest.mark.long
def test_one_driver_under_spark_submit(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(loop, 4)
    monkeypatch.setattr(pipeline, "_is_submitted", lambda _: True)
    sign(monkeypatch)
    version = loop.version("t")
    drivers: set[int | None] = set()

    class Submitted(Pipeline):
        def merge(self, config: Any, lease: Lease) -> Any:
            results = pipeline.merge(config, lease)
            assert pipeline._submitted is not None
            drivers.add(pipeline._submitted.pid())
            return results

    lease = pipeline.fetch(loop.config, OWNER, wait_s=0)
    assert lease is not None
    config = loop.config.model_copy(update={"spark": loop.config.spark.model_copy(update={"conf": LOCAL_CONF})})
    last = Run(Submitted(), config, OWNER, RunLimits()).merge(lease)
    assert last is not None
    pipeline.finalize(loop.config, last.lease, True, last.results)
    require_signed(loop, "t", version)
    manifests = BatchService(loop.config).acked_manifests(after_batch=lease.batch - 1)
    acked = [manifest.acked for manifest in manifests if manifest.acked]
    starts = [phases_of(batch.tables).get("start", 0.0) for batch in acked]
    assert len([seconds for seconds in starts if seconds > 1]) == 1, "only the first batch waits for the driver"
    assert len(drivers - {None}) == 1, "None: an index before the first column would need no driver"
    assert pipeline._submitted is None
    loop.require_equal("t")


class Pipeline:
    """The steps of :mod:`cdc.lake.pipeline`, as an object."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pipeline, name)
