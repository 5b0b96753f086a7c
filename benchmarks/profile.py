"""Profiles of lines of ``make bench``: the CPU seconds of Java's threads, divided by their stacks, and of Python.

    python -m benchmarks.profile [--only wide-upsert,inserts] [--functions] [--rows 1000000] [--page FILE]

The last measured run of a line counts, when everything is warm; a cold line's process counts as a whole. The kernel
counts CPU seconds by thread, and Java's Flight Recorder samples the stacks of threads that run Java, each 10 ms: the
seconds of these threads are divided as their samples are. What the recorder itself costs is part of the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import accounting, cold
from benchmarks import markdown as md
from benchmarks.__main__ import group
from benchmarks.lines import BY_NAME, FULL_ROWS, Options
from benchmarks.results import current_versions, this_machine

LINES = {
    "inserts": -2, "updates": -1, "transactions": -1, "scattered": -2, "wide-upsert": -1, "wide-scd2": -1,
    "inserts-cold": -2, "ten-cold": -2, "snapshot": -2, "replay": -1, "verify": -1,
}  # fmt: skip
"""The lines that can be profiled, with the place of the line's own work among the spans that its group measures."""
_JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
_LOOK_S = 0.05
_SHOWN = 25
_LEAST_JAVA_S = 0.2
"""CPU seconds of Java that some sample must have seen."""
_THREADS = (("JIT", re.compile(r"C[12] Compiler|Sweeper")), ("GC", re.compile(r"GC|G1 |VM Thread")))
"""Java's own threads, by the names that the kernel knows; all others run Java."""
_STACKS = (
    ("classes", re.compile(r"ClassLoader|jdk\.internal\.loader")),
    ("code", re.compile(r"janino|\.CodeGenerator|\.CodeFormatter|doCodeGen|genCode")),
    ("Parquet", re.compile(r"parquet", re.IGNORECASE)),
    ("Delta", re.compile(r"\.sql\.delta\.|io\.delta")),
    ("planning", re.compile(r"\.catalyst\.|\.QueryExecution|\.sql\.Dataset|\.DataFrame")),
)
"""The categories of stacks: the first pattern that matches a function on a stack counts."""
_TASK = "Executor task launch worker"
_NATIVE_WAIT = re.compile(r"sun\.nio\.ch\.|java\.net\.|[eE][pP]oll|accept0|Unsafe\.park|FileDispatcherImpl\.read")
_PYTHON_WAIT = re.compile(r"\b(wait|acquire|readinto|recv|accept|poll|select|_worker|_relay|FinalizerWorker\.run)$")
_PLUMBING = re.compile(r"(java|jdk|sun|scala|py4j|io\.netty)\.|(threading|thread|contextlib|runpy|profile)\.|<frozen")
"""Functions that are on every stack."""
COLUMNS = ("JIT", "GC", "classes", "code", "planning", "Delta", "Parquet", "tasks", "driver", "Python", "workers")
_MEANINGS = """\
CPU seconds of both cores together. *JIT*: Java's compiler. *GC*: Java's collector. *classes*: loading of classes.
*code*: generation and compilation of the code of queries. *planning*: analysis, optimization and the rest of Spark SQL
in the driver. *Delta*: its log, statistics and commits. *Parquet*: reading and writing of files by tasks. *tasks*: what
else tasks do with rows. *driver*: other threads of the driver. *Python*: Towpath's own process, with decoding, Arrow and
its waiting for Java. *workers*: Python workers and other processes.
"""


@dataclass
class Seconds:
    """CPU seconds by category up to a point in time, of all processes that are looked at."""

    at: float
    """Seconds since the epoch."""
    by_name: dict[str, float]


class Looks:
    """Looks at the threads of this process and of all below it, every :data:`_LOOK_S`, and at the stacks of Python."""

    def __init__(self) -> None:
        self.seconds: list[Seconds] = []
        self.python: list[tuple[float, frozenset[str]]] = []
        self._ticks: dict[tuple[int, int], tuple[str, float]] = {}

    @contextmanager
    def beside(self) -> Iterator[None]:
        ends = threading.Event()
        thread = threading.Thread(target=self._run, args=(ends,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()

    def between(self, began: float, ended: float) -> dict[str, float]:
        """Returns the CPU seconds between two points in time."""
        first = max((look for look in self.seconds if look.at <= began), key=lambda look: look.at)
        last = min((look for look in self.seconds if look.at >= ended), key=lambda look: look.at)
        return {name: value - first.by_name.get(name, 0.0) for name, value in last.by_name.items()}

    def _run(self, ends: threading.Event) -> None:
        while not ends.wait(_LOOK_S):
            now, own = time.time(), psutil.Process()
            for process in (own, *own.children(recursive=True)):
                self._look_at(process, "Python" if process.pid == own.pid else None)
            totals: dict[str, float] = {}
            for name, seconds in self._ticks.values():
                totals[name] = totals.get(name, 0.0) + seconds
            self.seconds.append(Seconds(now, totals))
            self._sample_python(now)

    def _look_at(self, process: psutil.Process, name: str | None) -> None:
        try:
            command = process.cmdline()
            program = process.name()
            if name is None and (program.startswith(("mysqld", "mariadbd")) or "benchmarks.accounting" in command):
                return
            if name is None and program.startswith("python"):
                name = "Python" if command[1:3] == ["-m", "cdc"] else "workers"
            for thread in process.threads():
                category = name or _thread_category(process.pid, thread.id)
                self._ticks[process.pid, thread.id] = category, thread.user_time + thread.system_time
        except (psutil.Error, OSError):
            return  # it has ended

    def _sample_python(self, now: float) -> None:
        for thread, frame in sys._current_frames().items():  # the documented way to the frames of other threads
            names: list[str] = []
            at: Any = None if thread == threading.get_ident() else frame
            while at is not None:
                names.append(f"{Path(at.f_code.co_filename).stem}.{at.f_code.co_qualname}")
                at = at.f_back
            if names and not _PYTHON_WAIT.search(names[0]):
                self.python.append((now, frozenset(names)))


def _thread_category(pid: int, thread: int) -> str:
    name = Path(f"/proc/{pid}/task/{thread}/comm").read_text()
    return next((category for category, pattern in _THREADS if pattern.search(name)), "Java")


def _run_java_tool(*command: str) -> bytes:
    environment = {name: value for name, value in os.environ.items() if name != _JAVA_OPTIONS}
    return subprocess.run(command, capture_output=True, check=True, env=environment).stdout


def java_stacks(file: Path, began: float, ended: float) -> list[tuple[str, list[str]]]:
    """Returns the sampled stacks of a recording between two points in time, each with the name of its thread."""
    kinds = "jdk.ExecutionSample,jdk.NativeMethodSample"
    document = json.loads(_run_java_tool("jfr", "print", "--json", "--stack-depth", "64", "--events", kinds, str(file)))
    stacks = []
    for event in document["recording"]["events"]:
        values = event["values"]
        # Nine places, of which datetime takes six.
        at = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", values["startTime"])).timestamp()
        if not began <= at <= ended or values["stackTrace"] is None:
            continue
        names = [
            f"{frame['method']['type']['name'].replace('/', '.')}.{frame['method']['name']}"
            for frame in values["stackTrace"]["frames"]
        ]
        if not _NATIVE_WAIT.search(names[0]):
            stacks.append(((values["sampledThread"] or {}).get("javaName") or "", names))
    return stacks


def _stack_category(thread: str, names: list[str]) -> str:
    text = "\n".join(names)
    category = next((category for category, pattern in _STACKS if pattern.search(text)), "driver")
    is_task = thread.startswith(_TASK)
    return "tasks" if is_task and category not in ("classes", "code", "Parquet") else category


@dataclass(frozen=True)
class Profile:
    """The last run of a line."""

    line: str
    wall_s: float
    cpu_s: dict[str, float]
    """By the names of :data:`COLUMNS`."""
    functions: dict[str, Counter[str]]
    """Samples with a function, of ``Java`` and ``Python``."""

    def cells(self) -> list[str]:
        figures = (self.wall_s, sum(self.cpu_s.values()), *(self.cpu_s.get(name, 0.0) for name in COLUMNS))
        return [f"`{self.line}`", *(f"{figure:.2f}" for figure in figures)]


def profile(line: str, options: Options) -> Profile:
    """Measures a line, and returns the profile of its last run."""
    from cdc.lake.runtime import session

    spans: list[tuple[float, float]] = []
    looks = Looks()
    with tempfile.TemporaryDirectory(prefix="towpath-profile-") as folder:
        with ExitStack() as stack:
            recorder = f"-XX:StartFlightRecording:filename={folder},settings=profile,dumponexit=true"
            java_options = f"{recorder} -Xlog:disable -Xlog:all=error:stderr"
            stack.enter_context(mock.patch.dict(os.environ, {_JAVA_OPTIONS: java_options}))
            stack.enter_context(_spans_of(accounting.Stopwatch, spans))
            stack.enter_context(mock.patch.object(cold, "run", _timed(accounting.run, spans)))
            stack.enter_context(looks.beside())
            for _ in group(BY_NAME[line].group)(options, [line]):
                time.sleep(2 * _LOOK_S)
            for process in psutil.Process().children(recursive=True):
                if process.name() == "java":  # a JVM that is told to end writes no recording
                    _run_java_tool("jcmd", str(process.pid), "JFR.dump", f"filename={folder}/{process.pid}-dump.jfr")
            session.discard()
        began, ended = spans[LINES[line]]
        stacks = [pair for file in Path(folder).glob("*.jfr") for pair in java_stacks(file, began, ended)]
    cpu_s = looks.between(began, ended)
    categories = Counter(_stack_category(*stack) for stack in stacks)
    java_s, samples = cpu_s.pop("Java", 0.0), sum(categories.values())
    if java_s > _LEAST_JAVA_S and not samples:
        raise RuntimeError(f"{line}: the recorder has no stack of {java_s:.1f} s of Java")
    for name, count in categories.items():
        cpu_s[name] = cpu_s.get(name, 0.0) + java_s * count / samples
    functions = {
        "Java": Counter(name for _, names in stacks for name in set(names)),
        "Python": Counter(name for at, names in looks.python if began <= at <= ended for name in names),
    }
    return Profile(line, ended - began, cpu_s, functions)


@contextmanager
def _spans_of(kind: type[accounting.Stopwatch], spans: list[tuple[float, float]]) -> Iterator[None]:
    """Keeps the begin and the end of each measured block, in seconds since the epoch."""
    leave = kind.__exit__

    def left(watch: accounting.Stopwatch, *error: object) -> None:
        ended = time.time()
        leave(watch, *error)
        spans.append((ended - watch.span.seconds, ended))

    with mock.patch.object(kind, "__exit__", left):
        yield


def _timed(run: Callable[..., accounting.Run], spans: list[tuple[float, float]]) -> Callable[..., accounting.Run]:
    def timed(*given: Any, **env: str) -> accounting.Run:
        began = time.time()
        try:
            return run(*given, **env)
        finally:
            spans.append((began, time.time()))
            time.sleep(2 * _LOOK_S)

    return timed


def markdown(profiles: list[Profile], options: Options) -> str:
    """Returns a page of the profiles."""
    machine, versions = this_machine(), current_versions()
    how = (
        f"Measured with Towpath {versions['towpath']} ({versions['commit']}), Spark {versions['pyspark']}, Delta "
        f"{versions['delta-spark']} and Java {versions['java']}, on {machine.cpus} CPUs ({machine.cpu}) with "
        f"{machine.memory_gb:.0f} GB, {options.rows:,} rows for a million."
    )
    blocks = (
        "# Profiles",
        "<!-- Written by python -m benchmarks.profile: change benchmarks/profile.py. -->",
        md.text(
            "This page shows what the processor does during the lines of [the page of performance](performance.md), for "
            "those who want to make one of them faster."
        ),
        md.text(how),
        md.table(("line", "wall s", "CPU s", *COLUMNS), [tuple(each.cells()) for each in profiles]),
        md.text(_MEANINGS.replace("\n", " ")),
        md.text(
            "`python -m benchmarks.profile --page FILE` writes this page. `--only updates "
            "--functions` lists the functions that are on most stacks of a line."
        ),
    )
    return "\n\n".join(blocks) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default=",".join(LINES), help="some of the lines")
    parser.add_argument("--functions", action="store_true", help="list the functions that are on most stacks")
    parser.add_argument("--rows", type=int, default=FULL_ROWS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page in Markdown into this file")
    parser.add_argument("--line", choices=LINES, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if shutil.which("jfr") is None:
        parser.error("there is no jfr, which comes with a JDK")
    options = Options(args.rows, args.rounds, args.cores)
    if args.line:
        done = profile(args.line, options)
        functions = {name: counted.most_common() for name, counted in done.functions.items()}
        args.into.write_text(json.dumps([done.wall_s, done.cpu_s, functions]))
        return
    chosen = args.only.split(",")
    if unknown := [name for name in chosen if name not in LINES]:
        parser.error(f"unknown line {unknown[0]!r}; known: {', '.join(LINES)}")
    console = Console(width=None if sys.stdout.isatty() else 170)
    profiles = [_in_process(line, options) for line in chosen]
    shown = Table(*("line", "wall s", "CPU s", *COLUMNS), title="CPU seconds")
    for each in profiles:
        shown.add_row(*each.cells())
    console.print(shown)
    for each in profiles if args.functions else ():
        for language, counted in each.functions.items():
            _print_functions(console, f"{each.line}, {language}: samples with the function", counted)
    if args.page:
        args.page.write_text(markdown(profiles, options), encoding="utf-8")


def _in_process(line: str, options: Options) -> Profile:
    """Profiles a line in a process of its own, whose JVM is a new one."""
    with tempfile.TemporaryDirectory(prefix="towpath-profile-") as folder:
        into = Path(folder) / "profile.json"
        words = [f"--{name}={value}" for name, value in vars(options).items()]
        command = [sys.executable, "-m", "benchmarks.profile", "--line", line, "--into", str(into), *words]
        subprocess.run(command, cwd=accounting.ROOT, check=True, stdout=subprocess.DEVNULL)
        wall_s, cpu_s, functions = json.loads(into.read_text())
    return Profile(line, wall_s, cpu_s, {name: Counter(dict(counted)) for name, counted in functions.items()})


def _print_functions(console: Console, title: str, counted: Counter[str]) -> None:
    shown = Table(title=title)
    shown.add_column("function", no_wrap=True)
    shown.add_column("samples", justify="right")
    for name, count in [pair for pair in counted.most_common() if not _PLUMBING.match(pair[0])][:_SHOWN]:
        shown.add_row(name, str(count))
    console.print(shown)


if __name__ == "__main__":
    main()
