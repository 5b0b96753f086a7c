"""Lines of whole processes: ``cdc apply`` with a Spark of its own, and on a Spark Connect server that is warm already.

A store is filled and copied for each run, so that all runs find the same. The tables exist in Delta before. The first
run is not counted: it fills caches that outlive it. A cold run and one of a bare Spark process take turns.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from deltalake import DeltaTable

from benchmarks.accounting import ROOT, Run, Span, Stopwatch, Tree, run
from benchmarks.lines import Measurement, Options
from benchmarks.peers import PROGRAMS
from benchmarks.workload import LARGE_SERVER, capture, configure, create_table, inserts
from cdc.lake.runtime.jars import delta_jars
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

    def lake(self, number: int) -> Path:
        """Returns the folder of the Delta tables of a copy; the first one is number 1."""
        return self._folder / f"copy{number}" / "lake" / "bench"

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

        def written(number: int) -> list[str]:
            delta, files = work.lake(number) / "orders", work.lake(number) / "parquet"
            files.mkdir()
            for uri in DeltaTable(delta).file_uris():
                shutil.copy(uri, files)
            return bare_spark(options, "write", files, work.lake(number) / "own")

        ours, bare = _cold_runs(work, options.rounds, options.rows, beside=written)
    yield _ratio("inserts-cold", ours, bare)


def bare_spark(options: Options, *words: object) -> list[str]:
    """Returns the command of a bare Spark process; ``words`` are its work, see its program."""
    jars = ",".join(map(str, delta_jars()))
    return [sys.executable, str(PROGRAMS / "bare_spark.py"), str(options.cores), jars, *map(str, words)]


def _ratio(line: str, ours: Sequence[Run], bare: Sequence[Run]) -> Measurement:
    return Measurement(
        line,
        value=median(own.seconds / other.seconds for own, other in zip(ours, bare, strict=True)),
        ours_s=median(run.seconds for run in ours),
        other_s=median(run.seconds for run in bare),
        cpu_s=median(run.cpu_s for run in ours),
        peak_mb=max(run.peak_mb for run in ours),
    )


def _cold_runs(
    work: Prepared, rounds: int, changes: int, more: str = "", beside: Callable[[int], list[str]] | None = None
) -> tuple[list[Run], list[Run]]:
    """Applies copies. ``beside`` returns the command of a bare Spark process for the copy of this number, which runs
    after its apply. Returns the runs of both."""
    ours, bare = [], []
    for number in range(1, min(rounds, _MOST_COLD) + 2):
        ours.append(run(work.copy(more=more), BENCH_PASSWORD=PASSWORD))
        _check(ours[-1].output, changes)
        if beside is not None:
            bare.append(run(beside(number)))
    return ours[1:], bare[1:]


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
            runs = _cold_runs(
                work,
                options.rounds,
                2 * TABLES * EACH,
                beside=lambda n: bare_spark(options, "query", work.lake(n) / "t0"),
            )
            ratio = _ratio("ten-cold", *runs)
            assert ratio.peak_mb is not None
            yield ratio
            yield replace(ratio, line="ten-cold-memory", value=ratio.peak_mb / 1024, other_s=None)
        if "ten-connect" in chosen:
            yield _on_connect(work, options)
        if "ten-deltalake" in chosen:
            yield _by_deltalake(work, options)


def _by_deltalake(work: Prepared, options: Options) -> Measurement:
    more = ", small_batches: {engine: deltalake, max_rows: 100000}"
    runs, _ = _cold_runs(work, options.rounds, 2 * TABLES * EACH, more)
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
