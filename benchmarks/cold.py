"""Lines of whole processes: ``cdc apply`` with a Spark of its own, and on a Spark Connect server that is warm already.

A store is filled and copied for each run, so that all runs find the same. The tables exist in Delta before. The first
run is not counted: it fills caches that outlive it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.accounting import ROOT, Run, Span, Stopwatch, Tree, run
from benchmarks.lines import Measurement, Options
from benchmarks.workload import LARGE_SERVER, capture, configure, create_table, inserts
from cdc.config.apply import ApplyConfig
from cdc.testing.servers import PASSWORD, Server, free_port

CDC = (sys.executable, "-m", "cdc")
_WARM_UP = 3
"""Runs on a Connect server that are not counted."""
_MOST_COLD = 2
"""Cold runs that are counted, at most."""


class Prepared:
    """A destination with changes in its store that are not applied yet."""

    def __init__(self, folder: Path, server: Server, cores: int) -> None:
        self._folder = folder
        self._server = server
        self._cores = cores
        self._copies = 0
        self.conf = folder / "base" / "conf"

    def fill(self, tables: Sequence[str], statements: Sequence[str]) -> None:
        """Brings ``tables`` (statements that make and fill them) into Delta, and ``statements`` into the store."""
        config = configure(self._folder / "base", self._server, self._cores)
        self._server.execute("CREATE DATABASE bench", *tables)
        capture(config)
        run([*CDC, "--conf-dir", str(self.conf), "apply", "bench", "--until-empty"], BENCH_PASSWORD=PASSWORD)
        self._server.execute(*statements)
        capture(config)

    def copy(self, remote: str | None = None, more: str = "") -> list[str]:
        """Copies it, and returns the command that applies the copy; the arguments are those of :func:`configure`."""
        self._copies += 1
        to = self._folder / f"copy{self._copies}"
        shutil.copytree(self._folder / "base", to)
        configure(to, self._server, self._cores, remote=remote, more=more)
        return [*CDC, "--conf-dir", str(to / "conf"), "apply", "bench", "--until-empty", "--json"]


@contextmanager
def prepared(cores: int) -> Iterator[Prepared]:
    with (
        tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder,
        Server("mariadb10", options=LARGE_SERVER) as server,
    ):
        yield Prepared(Path(folder), server, cores)


def inserts_cold(options: Options, _: Collection[str]) -> Iterator[Measurement]:
    """The line ``inserts-cold``."""
    with prepared(options.cores) as work:
        work.fill([create_table()], inserts("orders", options.rows))
        runs = _cold_runs(work, options.rounds, options.rows)
    yield Measurement(
        "inserts-cold",
        value=median(run.seconds for run in runs),
        ours_s=median(run.seconds for run in runs),
        cpu_s=median(run.cpu_s for run in runs),
        peak_mb=max(run.peak_mb for run in runs),
    )


def _cold_runs(work: Prepared, rounds: int, changes: int, more: str = "") -> list[Run]:
    runs = [run(work.copy(more=more), BENCH_PASSWORD=PASSWORD) for _ in range(min(rounds, _MOST_COLD) + 1)]
    for cold_run in runs:
        _check(cold_run.output, changes)
    return runs[1:]


def _check(output: str, changes: int) -> None:
    """Raises RuntimeError unless ``cdc apply --json`` says that it has applied all changes."""
    results = [result for batch in json.loads(output)["batches"] for result in batch["tables"]]
    applied = sum(result["inserted"] + result["updated"] + result["deleted"] for result in results)
    if applied != changes:
        raise RuntimeError(f"cdc apply has applied {applied} changes instead of {changes}")


# --- ten tables ------------------------------------------------------------------------------------------------------

TABLES, BASE, EACH = 10, 1000, 50


def ten_tables(options: Options, chosen: Collection[str]) -> Iterator[Measurement]:
    """The lines of the group ``ten``: in each of ten tables with 1,000 rows 50 are
    inserted and 50 updated, whatever ``rows`` is."""
    with prepared(options.cores) as work:
        names = [f"t{number}" for number in range(TABLES)]
        tables = [create_table(name) for name in names]
        tables += [statement for name in names for statement in inserts(name, BASE)]
        changes = [
            statement
            for name in names
            for statement in (
                *inserts(name, EACH, BASE + 1),
                f"UPDATE bench.{name} SET total = total + 1 WHERE id % {BASE // EACH} = 0 AND id <= {BASE}",
            )
        ]
        work.fill(tables, changes)
        if {"ten-cold", "ten-cold-memory"} & set(chosen):
            runs = _cold_runs(work, options.rounds, 2 * TABLES * EACH)
            seconds, cpu_s = median(run.seconds for run in runs), median(run.cpu_s for run in runs)
            peak_mb = max(run.peak_mb for run in runs)
            yield Measurement("ten-cold", value=seconds, ours_s=seconds, cpu_s=cpu_s, peak_mb=peak_mb)
            yield Measurement("ten-cold-memory", value=peak_mb / 1024, ours_s=seconds, cpu_s=cpu_s, peak_mb=peak_mb)
        if "ten-connect" in chosen:
            yield _on_connect(work, options)
        if "ten-deltalake" in chosen:
            yield _by_deltalake(work, options)


def _by_deltalake(work: Prepared, options: Options) -> Measurement:
    if "small_batches" not in ApplyConfig.model_fields:
        reason = "This checkout has no setting apply.small_batches, which would merge such a batch without Spark."
        return Measurement("ten-deltalake", skipped=reason)
    more = ", small_batches: {engine: deltalake, max_rows: 100000}"
    runs = _cold_runs(work, options.rounds, 2 * TABLES * EACH, more)
    seconds, cpu_s = median(run.seconds for run in runs), median(run.cpu_s for run in runs)
    peak_mb = max(run.peak_mb for run in runs)
    return Measurement("ten-deltalake", value=seconds, ours_s=seconds, cpu_s=cpu_s, peak_mb=peak_mb)


def _on_connect(work: Prepared, options: Options) -> Measurement:
    from cdc.lake.runtime.connect_server import folder_of

    port = free_port()
    spans: list[Span] = []
    with Tree() as tree:
        _finish(tree, [*CDC, "--conf-dir", str(work.conf), "spark", "start", "bench", "--port", str(port)])
        try:
            for number in range(_WARM_UP + options.rounds):
                command = work.copy(f"sc://localhost:{port}")
                with Stopwatch(tree) as watch:
                    output = _finish(tree, command)
                _check(output, 2 * TABLES * EACH)
                if number >= _WARM_UP:
                    spans.append(watch.span)
            peak_mb = tree.peak_mb(*spans)
        finally:
            _finish(tree, [*CDC, "spark", "stop", "--port", str(port)])
            shutil.rmtree(folder_of(port), ignore_errors=True)
    seconds = median(span.seconds for span in spans)
    return Measurement(
        "ten-connect",
        value=seconds,
        ours_s=seconds,
        cpu_s=median(span.cpu_s for span in spans),
        peak_mb=peak_mb,
        note="CPU and memory with the server",
    )


def _finish(tree: Tree, command: Sequence[str]) -> str:
    """Runs a command in the tree, and returns its output. Raises RuntimeError if it fails."""
    process = tree.start(
        command,
        env={**os.environ, "BENCH_PASSWORD": PASSWORD},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    out, err = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(
            f"{' '.join(command)} ended with code {process.returncode}: {err.decode(errors='replace')[-500:]}"
        )
    return out.decode()
