"""A profile of a line's time: samples of the stacks of this process and of its JVM while batches are merged.

    python -m benchmarks.profile --line wide-upsert [--rounds 3] [--cores 2] [--every 0.1]

Only lines that merge in this process can be sampled. The JVM's stacks come from ``jstack``, of threads that run. Each
stack counts once for every function in it, so a function's share contains that of the functions which it calls.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from benchmarks.__main__ import group
from benchmarks.lines import BY_NAME, FULL_ROWS, Options

GROUPS = ("warm", "transactions", "scattered", "wide")
"""Groups of lines that merge in this process."""
_SHOWN = 25
_WAITING = re.compile(r"\b(wait|acquire|readinto|recv|accept|poll|select|_worker|_relay|FinalizerWorker\.run)$")
_NATIVE_WAIT = re.compile(r"sun\.nio\.ch\.|java\.net\.|[eE][pP]oll|accept0|jdk\.internal\.misc\.Unsafe\.park")
_PLUMBING = re.compile(r"(java|jdk|sun|scala|py4j|io\.netty)\.|(threading|thread|contextlib|runpy|profile)\.|<frozen")
"""Functions that are on every stack."""


class Sampler:
    """Counts functions on the stacks of running threads, while :attr:`is_on` is set."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self.is_on, self._ends = threading.Event(), threading.Event()
        self.python: Counter[str] = Counter()
        self.java: Counter[str] = Counter()
        self.samples = self.running = 0
        """Samples of the JVM, and stacks of running threads in them."""

    @contextmanager
    def running_beside(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join()

    def _run(self) -> None:
        while not self._ends.wait(self._every_s):
            if self.is_on.is_set():
                self._sample_python()
                self._sample_java()
                self.samples += 1

    def _sample_python(self) -> None:
        for thread, frame in sys._current_frames().items():  # the documented way to the frames of other threads
            if thread == threading.get_ident():
                continue
            names: list[str] = []
            at: Any = frame
            while at is not None:
                names.append(f"{Path(at.f_code.co_filename).stem}.{at.f_code.co_qualname}")
                at = at.f_back
            if not _WAITING.search(names[0]):
                self.python.update(set(names))

    def _sample_java(self) -> None:
        for process in _children("java"):
            dump = subprocess.run(["jstack", str(process)], capture_output=True, text=True, check=False).stdout
            for stack in dump.split("\n\n"):
                names = re.findall(r"^\tat (?:\S+/)?([^(\s]+)\(", stack, re.MULTILINE)
                if "State: RUNNABLE" in stack and names and not _NATIVE_WAIT.search(names[0]):
                    self.running += 1
                    self.java.update(set(names))


def _children(name: str) -> list[int]:
    """Returns the processes below this one whose program has this name."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    ours = {str(Path("/proc/self").resolve().name)}
    while more := {pid for pid, parent, _ in rows if parent in ours} - ours:
        ours |= more
    return [int(pid) for pid, _, program in rows if pid in ours and program == name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--line", default="wide-upsert", choices=[line.name for line in BY_NAME.values() if line.group in GROUPS]
    )
    parser.add_argument("--rows", type=int, default=FULL_ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--every", type=float, default=0.1, help="seconds between two samples (0.1)")
    options = parser.parse_args()
    if shutil.which("jstack") is None:
        parser.error("there is no jstack, which comes with a JDK")
    from cdc.lake import pipeline

    sampler, merge = Sampler(options.every), pipeline.merge

    def merged(*given: Any, **more: Any) -> Any:
        sampler.is_on.set()
        try:
            return merge(*given, **more)
        finally:
            sampler.is_on.clear()

    console = Console(width=None if sys.stdout.isatty() else 150)
    with sampler.running_beside(), mock.patch.object(pipeline, "merge", merged):
        wanted = Options(options.rows, options.rounds, options.cores)
        for figure in group(BY_NAME[options.line].group)(wanted, [options.line]):
            console.print(f"{figure.line}: {figure.ours_s:.2f} s, {figure.cpu_s:.2f} CPU s")
    for title, counted in (("Python", sampler.python), ("JVM", sampler.java)):
        table = Table(title=f"{title}: stacks per sample with the function, of {sampler.samples} samples")
        table.add_column("function", no_wrap=True)
        table.add_column("stacks", justify="right")
        chosen = [(name, count) for name, count in counted.most_common() if not _PLUMBING.match(name)]
        for name, count in chosen[:_SHOWN]:
            table.add_row(name, f"{count / max(1, sampler.samples):.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
