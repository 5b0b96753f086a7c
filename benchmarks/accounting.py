"""CPU seconds and memory of a whole tree of processes: daemons, and children that nobody waits for, included.

Spark's Python daemon ignores its children's end, so the kernel adds their CPU time to nobody, and processes that outlive
their parent get another one. :class:`Tree` counts them all, in one of two ways:

- **cgroup** (version 2, where this user may make one): the kernel counts every process that was started inside, to the
  microsecond, ended ones included.
- **sampled** (elsewhere): another process looks at ``/proc`` every 50 ms. A process is part of the tree if its parent is,
  or if it has inherited the tree's environment variable. What a process uses between the last look and its end is lost:
  at most 50 ms for each process that ended, so sums are too low, never too high.

Memory is the PSS (a page that n processes share counts a n-th for each of them) summed over the tree. That other
process, which is not part of the tree, looks at it ten times a second, or as often as 2 % of a core allow: each look at
a large JVM takes some ten milliseconds. A peak between two looks is missed.

``python -m benchmarks.accounting`` is that other process.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
MARK = "TOWPATH_BENCH_TREE"
"""Environment variable of a sampled tree's processes."""
CPU_EVERY_S = 0.05
MEMORY_EVERY_S = 0.1
MEMORY_SHARE = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Span:
    """A piece of work, measured."""

    began: float
    """Monotonic seconds."""
    seconds: float
    cpu_s: float


class Tree:
    """Processes that are measured together. With ``join`` this process is the first of them, with everything that it
    starts from then on; children that it has already, like servers, are not. Otherwise :meth:`run` starts the first."""

    def __init__(self, *, join: bool = False, cgroups: bool = True) -> None:
        self.name = f"towpath-bench-{uuid.uuid4().hex[:12]}"
        self._cgroup = _make_cgroup(self.name) if cgroups else None
        self._folder = tempfile.TemporaryDirectory(prefix="towpath-tree-")
        self._samples = Path(self._folder.name) / "samples"
        self._samples.touch()
        place = ["--cgroup", str(self._cgroup)] if self._cgroup else ["--mark", self.name]
        root = ["--root", str(os.getpid())] if join else []
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        self._sampler = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.accounting", *place, *root, str(self._samples)],
            cwd=ROOT,
            env=environment,
        )
        self._next_sample()
        if join and self._cgroup is not None:
            (self._cgroup / "cgroup.procs").write_text(str(os.getpid()))
        elif join:
            os.environ[MARK] = self.name
        self._joined = join

    @property
    def how(self) -> str:
        return "sampled" if self._cgroup is None else "cgroup"

    def start(self, command: Sequence[str], **arguments: object) -> subprocess.Popen[bytes]:
        """Starts a process of the tree; ``arguments`` are those of Popen."""
        environment = dict(arguments.pop("env", None) or os.environ)  # type: ignore[call-overload]
        if self._cgroup is None:
            environment[MARK] = self.name
            return subprocess.Popen(command, env=environment, **arguments)  # type: ignore[call-overload,no-any-return]
        inside = ["sh", "-c", f'echo $$ > "{self._cgroup}/cgroup.procs" && exec "$@"', "sh", *command]
        return subprocess.Popen(inside, env=environment, **arguments)  # type: ignore[call-overload,no-any-return]

    def cpu_s(self) -> float:
        """Returns the CPU seconds of all processes up to now."""
        if self._cgroup is not None:
            return _cgroup_cpu_s(self._cgroup)
        return self._next_sample()[1]

    def peak_mb(self, *spans: Span) -> float:
        """Returns the most memory that was seen, during the spans if some are given. A span without a look has that of
        the looks before and after it."""
        samples = self._read()
        if not spans:
            return max((mb for _, _, mb in samples), default=0.0)
        return max(_peak(samples, span) for span in spans)

    def close(self) -> None:
        """Ends the sampler. A process that has joined returns to where it was; the others stay where they are."""
        self._sampler.terminate()
        self._sampler.wait()
        if self._cgroup is not None:
            parent = self._cgroup.parent
            if self._joined:
                (parent / "cgroup.procs").write_text(str(os.getpid()))
            for pid in (self._cgroup / "cgroup.procs").read_text().split():
                try:
                    (parent / "cgroup.procs").write_text(pid)
                except ProcessLookupError:
                    continue  # it has ended meanwhile
            _remove_cgroup(self._cgroup)
        elif self._joined:
            os.environ.pop(MARK, None)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> list[tuple[float, float, float]]:
        """Returns the time, CPU seconds and megabytes of each sample."""
        lines = self._samples.read_text().splitlines(keepends=True)
        rows = [line.split() for line in lines if line.endswith("\n")]
        return [(float(at), float(cpu_s), float(mb)) for at, cpu_s, mb in rows]

    def _next_sample(self) -> tuple[float, float, float]:
        """Waits for a sample that was begun after this call."""
        now = time.perf_counter()
        while True:
            samples = self._read()
            if samples and samples[-1][0] >= now:
                return samples[-1]
            if self._sampler.poll() is not None:
                raise RuntimeError(f"the sampler of processes ended with code {self._sampler.returncode}")
            time.sleep(0.01)


class Stopwatch:
    """Measures blocks of a tree that this process has joined: ``with watch: …``, then ``watch.span``."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.span = Span(0.0, 0.0, 0.0)

    def __enter__(self) -> Self:
        self._cpu_s, self._began = self.tree.cpu_s(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._began
        self.span = Span(self._began, seconds, self.tree.cpu_s() - self._cpu_s)


@dataclass(frozen=True)
class Run:
    """A whole process with all that it has started."""

    seconds: float
    cpu_s: float
    peak_mb: float
    output: str


def compile_sources() -> None:
    """Compiles the bytecode of Towpath's modules that have changed. Where PYTHONDONTWRITEBYTECODE is set, each process
    would compile them again, and that would be measured."""
    if not compileall.compile_dir(ROOT / "cdc", quiet=2):
        raise RuntimeError("cdc has a module that cannot be compiled")


def run(command: Sequence[str], **env: str) -> Run:
    """Runs a command to its end in a tree of its own. Raises RuntimeError with the end of its output if it fails."""
    with Tree() as tree, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        process = tree.start(command, env={**os.environ, **env}, stdout=out, stderr=err, cwd=ROOT)
        code = process.wait()
        seconds = time.perf_counter() - began
        out.seek(0)
        err.seek(0)
        output = out.read().decode(errors="replace")
        if code != 0:
            last = (err.read().decode(errors="replace") or output).strip().splitlines()[-8:]
            raise RuntimeError(f"{' '.join(command)} ended with code {code}: {' / '.join(last)}")
        return Run(seconds, tree.cpu_s(), tree.peak_mb(), output)


def _peak(samples: list[tuple[float, float, float]], span: Span) -> float:
    ended = span.began + span.seconds
    inside = [mb for at, _, mb in samples if span.began <= at <= ended]
    before = [mb for at, _, mb in samples if at < span.began][-1:]
    after = [mb for at, _, mb in samples if at > ended][:1]
    return max(inside or before + after, default=0.0)


# --- cgroups ---------------------------------------------------------------------------------------------------------


def _make_cgroup(name: str) -> Path | None:
    """Makes a cgroup below this process's own; None if there is no version 2, or if this user may not."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        mounted = next(Path(fields[1]) for fields in mounts if fields[2] == "cgroup2")
        own = next(
            line.removeprefix("0::") for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"
        )
        below = mounted / own.lstrip("/")
        if below.name.startswith("towpath-bench-"):
            below = below.parent
        folder = below / name
        folder.mkdir()
    except (OSError, StopIteration):
        return None
    try:
        probe = ["sh", "-c", f'echo $$ > "{folder}/cgroup.procs"']
        subprocess.run(probe, check=True, capture_output=True)
        _cgroup_cpu_s(folder)
    except (OSError, subprocess.CalledProcessError, StopIteration):
        _remove_cgroup(folder)
        return None
    return folder


def _remove_cgroup(folder: Path) -> None:
    """Removes a cgroup; processes that are just ending may stay in it for a moment."""
    for _ in range(100):
        try:
            folder.rmdir()
        except OSError:
            time.sleep(0.02)
        else:
            return


def _cgroup_cpu_s(folder: Path) -> float:
    lines = (folder / "cpu.stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("usage_usec")) / 1e6


# --- the sampler -----------------------------------------------------------------------------------------------------


class Sampled:
    """The processes of a tree, found by looking at all processes again and again."""

    def __init__(self, mark: str, root: int | None, proc: Path = Path("/proc")) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self._proc = proc
        self._root = root
        self._strangers: set[tuple[int, str]] = set()
        self._ticks: dict[tuple[int, str], int] = {}
        """CPU ticks of each process of the tree when it was last seen."""
        self.pids: set[int] = set()
        if root is not None:  # what it has started before is not part of the tree
            self._strangers = {key for key, ppid, _ in self._processes() if ppid == root}

    def look(self) -> float:
        """Returns the CPU seconds of all processes that were ever seen in the tree."""
        seen = list(self._processes())
        self.pids = {key[0] for key, _, _ in seen if key in self._ticks}
        for _ in range(2):  # a child may be listed before its parent
            for key, ppid, ticks in seen:
                if key in self._ticks or self._belongs(key, ppid):
                    self._ticks[key] = ticks
                    self.pids.add(key[0])
        self._strangers |= {key for key, _, _ in seen if key not in self._ticks}
        return sum(self._ticks.values()) / _TICKS

    def _belongs(self, key: tuple[int, str], ppid: int) -> bool:
        if key in self._strangers or key[0] == os.getpid():
            return False
        if key[0] == self._root or ppid in self.pids:
            return True
        try:
            return self._mark in (self._proc / str(key[0]) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def _processes(self) -> list[tuple[tuple[int, str], int, int]]:
        """Returns pid with start time, parent, and CPU ticks of every process."""
        processes = []
        for name in os.listdir(self._proc):
            if name.isdigit():
                try:
                    fields = (self._proc / name / "stat").read_text(errors="replace").rpartition(")")[2].split()
                except OSError:
                    continue  # it has ended
                processes.append(((int(name), fields[19]), int(fields[1]), int(fields[11]) + int(fields[12])))
        return processes


def pss_mb(pids: set[int]) -> float:
    """Returns the PSS of all these processes together; those that have ended count nothing."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="Samples the processes of a tree until it is ended.")
    parser.add_argument("--cgroup", type=Path)
    parser.add_argument("--mark", default="")
    parser.add_argument("--root", type=int)
    parser.add_argument("samples", type=Path)
    args = parser.parse_args()
    sampled = None if args.cgroup else Sampled(args.mark, args.root)
    parent, memory_at, mb = os.getppid(), 0.0, 0.0
    with args.samples.open("a") as samples:
        while os.getppid() == parent:
            now = time.perf_counter()
            cpu_s = 0.0 if sampled is None else sampled.look()
            if now >= memory_at:
                used = time.process_time()
                try:
                    listed = "" if args.cgroup is None else (args.cgroup / "cgroup.procs").read_text()
                except OSError:
                    return
                mb = pss_mb({int(pid) for pid in listed.split()} if sampled is None else sampled.pids)
                memory_at = now + max(MEMORY_EVERY_S, (time.process_time() - used) / MEMORY_SHARE)
            samples.write(f"{now:.6f} {cpu_s:.6f} {mb:.1f}\n")
            samples.flush()
            time.sleep(CPU_EVERY_S if sampled is not None else max(0.0, memory_at - time.perf_counter()))


if __name__ == "__main__":
    main()
