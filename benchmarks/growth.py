"""Time, CPU seconds and memory against the size of things, as curves with their exponents: ``make bench-growth``.

    python -m benchmarks.growth [--only tables,commits] [--tables 10,100,1000,10000] [--json FILE] [--page FILE]

Each axis has a list of sizes, which an option of its name changes. A work is measured at each size by a whole process
of its own. The exponent of a curve is the slope of the logarithm of the CPU seconds against that of the size, by least
squares over the three largest sizes: 0 does not grow, 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import results as machines
from benchmarks.accounting import ROOT, compile_sources, run
from benchmarks.markdown import bullets, table, text
from benchmarks.results import Machine, Strict
from benchmarks.scale.workload import INSERT, PASSWORD_ENV, Template, merge_all
from cdc.base.targets import LOG_FOLDER, table_path
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.testing.servers import HOST, PASSWORD, USER, Server

VERSION = 1
CDC = (sys.executable, "-m", "cdc")
SIZES = {
    "tables": (10, 100, 1000, 10_000),
    "commits": (100, 1000, 10_000, 100_000),
    "files": (10, 100, 1000, 10_000),
    "destinations": (1, 10, 100, 1000),
    "store": (1, 10, 100, 1000),
    "rows": (500_000, 2_000_000, 8_000_000),
}
TITLES = {
    "tables": "Tables in a destination",
    "commits": "Commits in the log of a Delta table",
    "files": "Files of a Delta table",
    "destinations": "Destinations",
    "store": "Megabytes in a store",
    "rows": "Rows in a table",
}
INDEPENDENT = 0.3
"""Above this exponent, a work grows with the size."""
LINEAR = 1.2
"""Above this exponent, a work is worse than linear."""
_CHANGED = 10
"""Tables that the batch changes, on the axis of tables."""
_CHECKPOINT = 100
"""Commits between two checkpoints, as delta-rs makes them."""
_SERVER = (
    "--table-definition-cache=20000", "--open-files-limit=60000", "--innodb-flush-log-at-trx-commit=0",
    "--sync-binlog=0", "--innodb-file-per-table=0", "--innodb-flush-method=nosync", "--innodb-doublewrite=0",
    "--max-binlog-size=1G",
)  # fmt: skip
_COLUMNS = "id INT AUTO_INCREMENT PRIMARY KEY, customer INT NOT NULL, note VARCHAR(50), changed TIMESTAMP(3) NULL"
_PAD_BYTES = 2000
_CONFIGURATION = """\
source: {{url: 'mysql://{user}@{host}:{port}', password_env: {env}, server_id: {id}, start: now}}
tables: {{include: ['{name}\\..*']}}
store: {{path: data/{name}/store}}
meta: {{path: data/{name}/meta}}
apply: {{target: lake/{name}, small_batches: {{engine: deltalake, max_rows: 100000}}}}
batch: {{max_wait_s: 0}}
spark: {{master: 'local[2]', conf: {{spark.driver.memory: 1g}}}}
"""
_SCHEMAS = """
import sys
from pathlib import Path
from cdc.config import load
from cdc.source.connection import connect
from cdc.source.schemas import read_schemas
config = load(Path(sys.argv[1]))
print(len(read_schemas(connect(config.source), config.tables).tables))
"""
_STATUS = """
import sys
from pathlib import Path
from cdc.config import load
from cdc.watch.status import collect
files = sorted(Path(sys.argv[1]).glob("*.yaml"))
print(len([collect(load(file)) for file in files]))
"""
_PARSE = """
import sys
from pathlib import Path
import airflow.sdk
namespace = {"__file__": sys.argv[1], "__name__": "dag_file"}
exec(compile(Path(sys.argv[1]).read_text(), sys.argv[1], "exec"), namespace)
print(sum(isinstance(value, airflow.sdk.DAG) for value in namespace.values()))
"""


# --- results ---------------------------------------------------------------------------------------------------------


class Point(Strict):
    """A process with all that it has started."""

    size: int
    seconds: float
    cpu_s: float
    peak_mb: float
    """As PSS."""


class Curve(Strict):
    """One work on one axis."""

    axis: str
    work: str
    grows: bool
    """Whether the work has to look at all that the axis counts, so that linear growth is expected."""
    points: tuple[Point, ...]

    def exponent(self, value: str = "cpu_s", last: int = 3) -> float:
        """Returns the exponent of a value between the largest sizes."""
        points = [point for point in self.points if getattr(point, value) > 0][-last:]
        if len(points) < 2:
            return 0.0
        sizes, values = ([getattr(point, name) for point in points] for name in ("size", value))
        return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])

    @property
    def verdict(self) -> str:
        """Returns the growth in words. The wall time is not judged, because others use the machine too."""
        exponent = max(self.exponent(), self.exponent("peak_mb"))
        if exponent > LINEAR:
            return "worse than linear"
        if exponent > INDEPENDENT and not self.grows:
            return "grows"
        return "as expected"


class Results(Strict):
    """The curves of one run, or of several that measured different axes."""

    version: int = VERSION
    date: str
    machine: Machine
    loads: dict[str, tuple[float, float]]
    """The load of the machine at the start and the end of each axis."""
    versions: dict[str, str]
    curves: tuple[Curve, ...]


def render(results: Results) -> str:
    return json.dumps(results.model_dump(), indent=1) + "\n"


# --- measuring -------------------------------------------------------------------------------------------------------


class Bench:
    """A server, a folder, and the curves so far."""

    def __init__(self, folder: Path, server: Server, say: Callable[[str], None]) -> None:
        self.folder, self.server, self.say = folder, server, say
        self.points: dict[tuple[str, str, bool], list[Point]] = {}
        self._template: Template | None = None

    def curves(self) -> list[Curve]:
        return [
            Curve(axis=axis, work=work, grows=grows, points=tuple(points))
            for (axis, work, grows), points in self.points.items()
        ]

    def measure(self, key: tuple[str, str, bool], size: int, command: Sequence[str], **env: str) -> str:
        """Runs a command, adds its point to a curve, and returns its output. Raises RuntimeError if it fails."""
        done = run(command, **env)
        point = Point(
            size=size, seconds=round(done.seconds, 3), cpu_s=round(done.cpu_s, 3), peak_mb=round(done.peak_mb, 1)
        )
        self.points.setdefault(key, []).append(point)
        self.say(f"{key[0]} {size}, {key[1]}: {point.seconds:.1f} s, {point.cpu_s:.2f} CPU s, {point.peak_mb:.0f} MB")
        return done.output

    def cdc(self, key: tuple[str, str, bool], size: int, config: DestinationConfig, *words: str) -> str:
        """Measures a command of ``cdc`` for a destination."""
        at = [*CDC, "--conf-dir", str(config.file.parent)]
        split = 2 if words[0] == "batch" else 1
        return self.measure(key, size, [*at, *words[:split], config.name, *words[split:]])

    def destination(self, name: str, tables: int, columns: str = _COLUMNS) -> DestinationConfig:
        """Makes a database with tables, and a destination whose capture has begun behind them."""
        create = [f"CREATE TABLE {name}.t{number:05d} ({columns})" for number in range(tables)]
        self.server.execute(f"CREATE DATABASE {name}")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda first: self.server.execute(*create[first::4]), range(min(4, tables))))
        file = self.folder / "conf" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            _CONFIGURATION.format(
                user=USER, host=HOST, port=self.server.port, env=PASSWORD_ENV, name=name, id=6000 + len(name) + tables
            )
        )
        config = load(file)
        Capture(config).run(until_current=True)
        return config

    def insert(self, config: DestinationConfig, tables: int) -> None:
        """Inserts a row into each of the first tables, and captures them."""
        self.server.execute(*(INSERT.format(f"{config.name}.t{number:05d}") for number in range(tables)))
        Capture(config).run(until_current=True)

    def template(self) -> Template:
        """Returns the log of a Delta table that Spark has created."""
        if self._template is None:
            config = self.destination("template", 1)
            self.insert(config, 1)
            merge_all(config)
            log = Path(table_path(config.apply.target, "template", "t00000")) / LOG_FOLDER
            self._template = Template((log / f"{0:020d}.json").read_text(encoding="utf-8"))
        return self._template

    def lake(self, config: DestinationConfig, tables: int) -> None:
        """Makes the Delta tables of a destination as Spark would, and merges a row into the first ones."""
        self.insert(config, min(_CHANGED, tables))
        names = [f"{config.name}.t{number:05d}" for number in range(tables)]
        self.template().copy(config, names)
        merge_all(config)


def measure_tables(bench: Bench, sizes: Sequence[int]) -> None:
    """Measures destinations with so many tables; a batch changes ten of them."""
    axis = "tables"
    for size in sizes:
        config = bench.destination(f"g{size}", size)
        bench.cdc((axis, "`cdc check`", True), size, config, "check")
        bench.measure((axis, "read the schemas", True), size, [sys.executable, "-c", _SCHEMAS, str(config.file)])
        bench.lake(config, size)
        bench.cdc((axis, "start of capture", True), size, config, "capture", "--until-current")
        bench.insert(config, min(_CHANGED, size))
        bench.cdc((axis, f"`cdc apply`, {_CHANGED} tables changed", False), size, config, "apply")
        bench.cdc((axis, "`cdc status`", True), size, config, "status", "--json")


def measure_commits(bench: Bench, sizes: Sequence[int]) -> None:
    """Measures a table with so many commits in its log."""
    _measure_logs(bench, "commits", sizes, lengthen)


def measure_files(bench: Bench, sizes: Sequence[int]) -> None:
    """Measures a table with so many files, which one commit has added."""
    _measure_logs(bench, "files", sizes, add_files)


def _measure_logs(bench: Bench, axis: str, sizes: Sequence[int], change: Callable[[Path, int], None]) -> None:
    config = bench.destination(axis, 1)
    bench.lake(config, 1)
    path = Path(table_path(config.apply.target, axis, "t00000"))
    shutil.copytree(path, bench.folder / f"{axis}-copy")
    for size in sizes:
        change(path, size)
        bench.insert(config, 1)
        merge_all(config)  # the last ack comes after these commits, as it does if Towpath has made them
        bench.insert(config, 1)
        bench.cdc((axis, "`cdc apply`, one row", False), size, config, "apply")
        bench.cdc((axis, "`cdc status`", False), size, config, "status", "--json")


def _newest(path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Returns the newest version of a table on this disk, and the actions of its last commit that added a file, by
    their names."""
    commits = sorted((path / LOG_FOLDER).glob("*.json"))
    for commit in reversed(commits):
        lines = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
        actions = {name: action for line in lines for name, action in line.items()}
        if "add" in actions:
            return int(commits[-1].stem), actions
    raise RuntimeError(f"{path}: no commit has added a file")


def lengthen(path: Path, commits: int) -> None:
    """Adds commits of the form that delta-rs writes to a log until it has so many, with a checkpoint after each
    hundred. Of two commits one adds a file and the other removes it, so all checkpoints have the same content."""
    from deltalake import DeltaTable

    log = path / LOG_FOLDER
    DeltaTable(path).create_checkpoint()
    before, actions = _newest(path)
    checkpoint = log / f"{before:020d}.checkpoint.parquet"
    last = json.loads((log / "_last_checkpoint").read_text(encoding="utf-8"))
    written, add = actions["commitInfo"], dict(actions["add"], path="")
    remove = {"dataChange": True, "extendedFileMetadata": True, "partitionValues": {}, "size": add["size"]}
    for version in range(before + 1, commits):
        is_added = (version - before) % 2 == 1
        if is_added:
            add["path"] = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        info = {**written, "readVersion": version - 1, "timestamp": written["timestamp"] + version}
        change = {"add": add} if is_added else {"remove": {**remove, "path": add["path"],
                                                           "deletionTimestamp": info["timestamp"]}}  # fmt: skip
        lines = [{"commitInfo": info}, change, {"txn": actions["txn"]}]
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
        if not is_added and version % _CHECKPOINT in (0, 1):
            os.link(checkpoint, log / f"{version:020d}.checkpoint.parquet")
            last["version"] = version
    if (commits - 1 - before) % 2 == 1:  # the last file is added, and has to exist
        shutil.copyfile(path / actions["add"]["path"], path / add["path"])
    (log / "_last_checkpoint").write_text(json.dumps(last), encoding="utf-8")


def add_files(path: Path, files: int) -> None:
    """Adds files to a table until it has so many, by one commit. Each says that it has other keys than the rows that a
    merge brings, so that none of them is read."""
    from deltalake import DeltaTable

    present = len(DeltaTable(path).file_uris())
    version, actions = _newest(path)
    add, lines = actions["add"], [{"commitInfo": actions["commitInfo"]}, {"txn": actions["txn"]}]
    for number in range(present, files):
        stats = json.loads(add["stats"])
        stats["minValues"]["id"] = stats["maxValues"]["id"] = 1_000_000 + number
        name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        os.link(path / add["path"], path / name)
        lines.append({"add": {**add, "path": name, "stats": json.dumps(stats)}})
    commit = path / LOG_FOLDER / f"{version + 1:020d}.json"
    commit.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    DeltaTable(path).create_checkpoint()


def measure_destinations(bench: Bench, sizes: Sequence[int]) -> None:
    """Measures so many configurations, whose stores do not exist yet."""
    axis = "destinations"
    for size in sizes:
        conf = bench.folder / f"conf{size}"
        conf.mkdir()
        for number in range(size):
            text = _CONFIGURATION.format(
                user=USER, host=HOST, port=3306, env=PASSWORD_ENV, name=f"d{number:04d}", id=7000 + number
            )
            (conf / f"d{number:04d}.yaml").write_text(text, encoding="utf-8")
        bench.measure((axis, "status of all", True), size, [sys.executable, "-c", _STATUS, str(conf)])
        for kind in ("apply", "capture", "verify"):
            command = [sys.executable, "-c", _PARSE, str(ROOT / "dags" / f"{kind}.py")]
            output = bench.measure((axis, f"parse `dags/{kind}.py`", True), size, command, CDC_CONF=str(conf))
            if int(output.splitlines()[-1]) != size:
                raise RuntimeError(f"dags/{kind}.py has other DAGs than {size}: {output}")


def measure_store(bench: Bench, sizes: Sequence[int]) -> None:
    """Measures a store that grows to so many megabytes, by transactions of 20 KB."""
    axis = "store"
    config = bench.destination(axis, 1, "id BIGINT AUTO_INCREMENT PRIMARY KEY, pad VARCHAR(4000)")
    bench.server.execute(f"ALTER TABLE {axis}.t00000 ENGINE = BLACKHOLE")
    rows = ", ".join(["(REPEAT(SHA2(RAND(), 256), 31))"] * (20_000 // _PAD_BYTES))
    bench.server.execute(
        f"CREATE PROCEDURE {axis}.fill(n INT) BEGIN DECLARE i INT DEFAULT 0; WHILE i < n DO "
        f"INSERT INTO {axis}.t00000 (pad) VALUES {rows}; SET i = i + 1; END WHILE; END"
    )
    Capture(config).run(until_current=True)
    present = 0
    for size in sizes:
        bench.server.execute(f"CALL {axis}.fill({(size - present) * 50})")
        present = size
        Capture(config).run(until_current=True)
        bench.cdc((axis, "start of capture", False), size, config, "capture", "--until-current")
        bench.cdc((axis, "`cdc status`", False), size, config, "status", "--json")
        got = json.loads(bench.cdc((axis, "`cdc batch get`", False), size, config, "batch", "get", "--json"))
        words = ("batch", "ack", "--batch", str(got["batch"]), "--token", got["token"])
        bench.cdc((axis, "`cdc batch ack`", False), size, config, *words)


def measure_rows(bench: Bench, sizes: Sequence[int]) -> None:
    """Measures a table with so many rows, which Spark loads: a merge of one row, and the proof of the whole table."""
    axis, name, part = "rows", "large", 100_000  # ROWS is a word of SQL
    config, present = bench.destination(name, 1), 1
    bench.insert(config, 1)
    merge_all(config)
    numbers = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {})"
    for size in sizes:
        for first in range(present, size, part):
            rows = min(part, size - first)
            insert = (
                f"INSERT INTO {name}.t00000 (customer, note, changed) {numbers.format(rows)} SELECT i, i, NOW(3) FROM n"
            )
            bench.server.execute(f"USE {name}", f"SET SESSION cte_max_recursion_depth = {part}", insert)
        present = size
        Capture(config).run(until_current=True)
        merge_all(config)
        bench.insert(config, 1)
        bench.cdc((axis, "`cdc apply`, one row", False), size, config, "apply")
        bench.cdc((axis, "`cdc verify`", True), size, config, "verify")


MEASURES: dict[str, Callable[[Bench, Sequence[int]], None]] = {
    "tables": measure_tables,
    "commits": measure_commits,
    "files": measure_files,
    "destinations": measure_destinations,
    "store": measure_store,
    "rows": measure_rows,
}


# --- the page --------------------------------------------------------------------------------------------------------


def markdown(results: Results) -> str:
    """Returns the page."""
    machine = results.machine
    blocks = [
        "# Growth",
        "<!-- Written by `make bench-growth`: change benchmarks/growth.py. -->",
        text(
            "This page shows how time and memory grow with the tables, commits, files, destinations, bytes and rows that "
            "there are, for those who plan for more of them than they have. At its end you know what becomes slow first."
        ),
        text(
            f"Measured on {results.date[:10]} with Towpath {results.versions['towpath']} ({results.versions['commit']}), on "
            f"{machine.cpus} CPUs ({machine.cpu}) with {machine.memory_gb:.0f} GB. Where others used the machine, compare "
            "CPU seconds; a wait for a busy CPU is in the seconds."
        ),
        text(
            "An exponent is the slope of the logarithm of a value against that of the size, by least squares over the "
            "three largest sizes: with 0 the value does not grow, with 1 it is linear, with 2 it is quadratic. Each figure "
            "is of one whole process, its start included (about one CPU second), and memory is PSS."
        ),
        "## Summary",
        *_summary(results),
    ]
    for axis, title in TITLES.items():
        curves = [curve for curve in results.curves if curve.axis == axis]
        if curves:
            before, after = results.loads[axis]
            blocks += [
                f"## {title}",
                f"The load of the machine was {before} at the start, and {after} at the end.",
                _curves_table(curves),
            ]
    blocks += [
        "## How it was measured",
        bullets(
            "The server is MySQL 9, without syncs to its disk. delta-rs merges the batches.",
            "Delta tables are copies of one that Spark has created, as in `make bench-scale`. Those with many rows are "
            "loaded by `cdc snapshot`.",
            "The commits of a long log have the form that delta-rs writes, with a checkpoint after each hundred. The files "
            "of a table with many files have other keys than the rows of the merge.",
            "`make bench-growth` measures all of it, and `ARGS='--page FILE'` makes this page from it. "
            "`ARGS='--only tables --tables 10,100,1000'` measures one axis with other sizes.",
        ),
    ]
    return "\n\n".join(blocks) + "\n"


def _summary(results: Results) -> list[str]:
    blocks = []
    for verdict, some, none in (
        ("worse than linear", "Worse than linear:", "Nothing is worse than linear."),
        (
            "grows",
            "These grow with what they should not depend on:",
            "Nothing grows with what it should not depend on.",
        ),
    ):
        sentences = [_sentence(curve) for curve in results.curves if curve.verdict == verdict]
        blocks += [some, bullets(*sentences)] if sentences else [none]
    return blocks


def _sentence(curve: Curve) -> str:
    cpu, memory = curve.exponent(), curve.exponent("peak_mb")
    return f"{curve.work} by {curve.axis}: CPU seconds with exponent {cpu:.2f}, memory with {memory:.2f}."


def _curves_table(curves: list[Curve]) -> str:
    sizes = sorted({point.size for curve in curves for point in curve.points})
    rows = []
    for curve in curves:
        points = {point.size: point for point in curve.points}
        exponents = [f"{curve.exponent(value):.2f}" for value in ("cpu_s", "seconds", "peak_mb")]
        rows.append((curve.work, *(_cell(points.get(size)) for size in sizes), *exponents))
    return table(("work", *(f"{size:,}" for size in sizes), "exponent of CPU", "of seconds", "of memory"), rows)


def _cell(point: Point | None) -> str:
    if point is None:
        return ""
    return f"{point.cpu_s:.1f} CPU s, {point.seconds:.1f} s, {point.peak_mb:.0f} MB"


# --- the command -----------------------------------------------------------------------------------------------------


def measured(options: argparse.Namespace, say: Callable[[str], None]) -> Results:
    """Measures the chosen axes, one after the other."""
    os.environ[PASSWORD_ENV] = PASSWORD
    machine, loads = machines.this_machine(), {}
    compile_sources()
    with (
        tempfile.TemporaryDirectory(prefix="towpath-growth-", dir=options.folder) as folder,
        Server("mysql9", options=_SERVER) as server,
    ):
        bench = Bench(Path(folder), server, say)
        for axis in options.only:
            before = os.getloadavg()[0]
            MEASURES[axis](bench, getattr(options, axis))
            loads[axis] = (round(before, 1), round(os.getloadavg()[0], 1))
        return Results(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine,
            loads=loads,
            versions=machines.current_versions("deltalake"),
            curves=tuple(bench.curves()),
        )


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted(int(size) for size in text.split(",")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(MEASURES), help="some of the axes")
    for axis, sizes in SIZES.items():
        listed = ",".join(map(str, sizes))
        parser.add_argument(f"--{axis}", type=_sizes, default=sizes, metavar="SIZES", help=f"the sizes ({listed})")
    parser.add_argument("--folder", type=Path, help="folder of the files, which need some gigabytes")
    parser.add_argument("--json", type=Path, help="write the results into this file")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page in Markdown into this file")
    options = parser.parse_args()
    if unknown := [axis for axis in options.only if axis not in MEASURES]:
        parser.error(f"unknown axis {unknown[0]!r}; known: {', '.join(MEASURES)}")
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s: {text}", file=sys.stderr, flush=True)

    results = measured(options, say)
    Console(width=160).print(markdown(results), markup=False, soft_wrap=True)
    if options.json:
        options.json.write_text(render(results), encoding="utf-8")
    if options.page:
        options.page.write_text(markdown(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
