"""The measured work of a pipeline: it loads the table, follows commits and a backlog, and survives faults."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import pyarrow.compute as pc

from benchmarks.accounting import Stopwatch, Tree
from benchmarks.pipelines import source as table
from benchmarks.pipelines.pipeline import Pipeline
from benchmarks.pipelines.results import Commits, Faults, Measured, Work
from cdc.testing.servers import Server

_BETWEEN_S = 4.0
_SETTLE_S = 300.0
"""The time after which a target that still differs from the source is reported as it is."""
_RECOVERY_ID = 1_000_000_000
"""The id of the first row that is committed after a SIGKILL."""


@dataclass(frozen=True)
class Sizes:
    """How much work is measured."""

    rows: int = 1_000_000
    changes: int = 400_000
    commits: int = 11


def measure(peer: type[Pipeline], source: Server, sizes: Sizes, say: Callable[[str], None]) -> Measured:
    """Measures one pipeline from its first start on; ``source`` has the table with ``sizes.rows`` rows."""
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="towpath-pipeline-", ignore_cleanup_errors=True) as name, Tree() as tree:
        pipeline = peer(source, Path(name), tree)
        pipeline.prepare()
        phases = _Phases(pipeline, sizes, say)
        try:
            load = phases.load()
            commits = phases.commits()
            processes = phases.processes
            cold = phases.cold_commits() if hasattr(pipeline, "cold") else None
            backlog = phases.backlog()
            faults = phases.faults()
        finally:
            pipeline.stop()
        return Measured(
            name=peer.name, load_average=load_average, versions=pipeline.versions(), lines=peer.lines(),
            processes=processes, load=load, commits=commits, cold_commits=cold, backlog=backlog, faults=faults,
        )  # fmt: skip


class _Phases:
    def __init__(self, pipeline: Pipeline, sizes: Sizes, say: Callable[[str], None]) -> None:
        self._pipeline, self._sizes, self._say = pipeline, sizes, say
        self._source = pipeline.source
        self._next_id = sizes.rows + 1
        self._rows = sizes.rows
        self.processes = 0

    def load(self) -> Work:
        pipeline = self._pipeline
        with self._work("load", self._rows) as work:
            pipeline.load()
            pipeline.wait_readable("the loaded table", lambda: pipeline.count() == self._rows)
        return work[0]

    def commits(self) -> Commits:
        """Commits single rows with pauses of different lengths; a pipeline that copies the table copies it once."""
        dice = random.Random(7)
        seconds = []
        for number in range(self._sizes.commits + 1 if self._pipeline.continuous else 1):
            time.sleep(dice.uniform(1.5, 3.0))
            seconds.append(self._commit(lambda: None if self._pipeline.continuous else self._copy()))
            self._say(f"commit: {seconds[-1]:.2f} s")
            if number == 0 and self._pipeline.continuous:
                seconds.pop()  # it warms up
        return _commits(seconds)

    def cold_commits(self) -> Commits:
        pipeline = self._pipeline
        with pipeline.without_loop():  # type: ignore[attr-defined]
            return _commits([self._commit(pipeline.cold) for _ in range(3)])  # type: ignore[attr-defined]

    def backlog(self) -> Work:
        pipeline, half = self._pipeline, self._sizes.changes // 2
        first = self._next_id
        self._next_id += half
        self._rows += half
        with self._work("backlog", 2 * half) as work:
            table.backlog(self._source, 2 * half, first)
            if not pipeline.continuous:
                pipeline.load()
            marked = pc.field("flag") == table.MARK
            pipeline.wait_readable(
                "the backlog", lambda: pipeline.count() == self._rows and pipeline.count(marked) == half
            )
        return work[0]

    def faults(self) -> Faults:
        pipeline = self._pipeline
        traffic = table.Traffic(self._source, self._next_id)
        traffic.start()
        try:
            kills = self._kills(traffic) if pipeline.continuous else self._killed_copy(traffic)
        finally:
            traffic.stop()
        ended = time.perf_counter()
        if not pipeline.continuous:
            pipeline.load()
        rows = table.select(self._source)
        settled_s, difference = None, None
        looked: object = ""
        while settled_s is None and time.perf_counter() - ended < _SETTLE_S:
            pipeline.supervise()
            at = time.perf_counter()
            if (stamp := pipeline.stamp()) != looked and (target := pipeline.read()) is not None:
                looked, difference = stamp, table.compare(rows, target)
                self._say(f"after the faults: {difference}")
                if not (difference.missing or difference.wrong or difference.extra):
                    settled_s = at - ended
                elif not pipeline.continuous and pipeline.restarts:
                    break
                elif not pipeline.continuous:  # its second copy since the SIGKILL
                    pipeline.restarts += 1
                    pipeline.load()
            time.sleep(1)
        assert difference is not None
        return Faults(
            recoveries_s=kills, restarts=pipeline.restarts, transactions=traffic.transactions, settled_s=settled_s,
            rows=len(rows), **asdict(difference),
        )  # fmt: skip

    def _kills(self, traffic: table.Traffic) -> dict[str, float | None]:
        """Kills each service once and starts it again. The next one follows when a row that was committed after the
        SIGKILL is readable. The table is altered in the middle, and the following service is killed right after."""
        pipeline = self._pipeline
        services = list(pipeline.running)
        recoveries: dict[str, float | None] = {}
        for number, service in enumerate(services):
            if number == len(services) // 2:
                self._source.execute(table.ALTER)
                traffic.altered = True
            time.sleep(_BETWEEN_S)
            began = time.perf_counter()
            pipeline.kill(service)
            table.commit(self._source, _RECOVERY_ID + number)
            time.sleep(1)
            pipeline.start(service)
            recoveries[service] = self._recovered(_RECOVERY_ID + number, began)
            self._say(f"SIGKILL of {service}: recovered in {recoveries[service]} s")
        return recoveries

    def _recovered(self, row_id: int, began: float) -> float | None:
        """Waits until this row is readable, as a supervisor that starts ended services again."""
        here, looked = pc.field("id") == row_id, self._pipeline.stamp()
        while (at := time.perf_counter()) - began < _SETTLE_S:
            self._pipeline.supervise()
            if (stamp := self._pipeline.stamp()) != looked:
                looked = stamp
                if self._pipeline.count(here):
                    return at - began
            time.sleep(0.2)
        return None

    def _killed_copy(self, traffic: table.Traffic) -> dict[str, float | None]:
        """Kills a copy in the middle. The table is altered while nothing copies it."""
        pipeline = self._pipeline
        pipeline.start("load")
        time.sleep(self._copy_s / 2)
        pipeline.kill("load")
        self._source.execute(table.ALTER)
        traffic.altered = True
        time.sleep(_BETWEEN_S)
        return {"load": None}

    def _commit(self, apply: Callable[[], None]) -> float:
        row_id = self._next_id
        self._next_id += 1
        self._rows += 1
        began = table.commit(self._source, row_id)
        apply()
        here = pc.field("id") == row_id
        return self._pipeline.wait_readable("the commit", lambda: self._pipeline.count(here) == 1) - began

    def _copy(self) -> None:
        began = time.perf_counter()
        self._pipeline.load()
        self._copy_s = time.perf_counter() - began

    @contextmanager
    def _work(self, what: str, rows: int) -> Iterator[list[Work]]:
        """Measures a block; the list has the work after it."""
        pipeline, work = self._pipeline, list[Work]()
        watch, before_mb = Stopwatch(pipeline.tree), pipeline.written_mb()
        ended = threading.Event()
        counter = threading.Thread(target=self._count_processes, args=(ended,))
        counter.start()
        try:
            with watch:
                yield work
        finally:
            ended.set()
            counter.join()
        work.append(
            Work(
                rows=rows, seconds=watch.span.seconds, cpu_s=watch.span.cpu_s,
                peak_mb=pipeline.tree.peak_mb(watch.span), written_mb=pipeline.written_mb() - before_mb,
            )
        )  # fmt: skip
        self._say(f"{what}: {work[0]}")

    def _count_processes(self, ended: threading.Event) -> None:
        while not ended.wait(1.0):
            self.processes = max(self.processes, len(list(self._pipeline.pids())))


def _commits(seconds: list[float]) -> Commits:
    return Commits(count=len(seconds), median_s=median(seconds), most_s=max(seconds))
