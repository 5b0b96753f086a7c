"""CPU seconds of a tree count processes that nobody waits for, in a cgroup and by looking at ``/proc``."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from benchmarks.accounting import Span, Stopwatch, Tree, run

BURN = "import time; end = time.process_time() + {0}\nwhile time.process_time() < end: pass\n"
ORPHANS = f"""
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # like pyspark.daemon: the kernel adds its children's time to nobody
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # its parent ends at once, so that it gets another one
        {BURN.format(0.3).replace(chr(10), chr(10) + "        ")}
        os._exit(0)
    os._exit(0)
if os.fork() == 0:
    {BURN.format(0.3).replace(chr(10), chr(10) + "    ")}
    os._exit(0)
time.sleep(1)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


@pytest.mark.parametrize("cgroups", [True, False], ids=["cgroup", "sampled"])
def test_children_that_nobody_waits_for_are_counted(cgroups: bool) -> None:
    with Tree(cgroups=cgroups) as tree:
        process = tree.start([sys.executable, "-c", ORPHANS])
        assert process.wait(timeout=60) == 0
        deadline = time.monotonic() + 30  # the orphan may go on for a moment on a busy machine
        while (cpu_s := tree.cpu_s()) < 0.5 and time.monotonic() < deadline:
            time.sleep(0.05)
    # Each of the two burns 0.3 s. Looking every 50 ms may miss the end of each.
    assert 0.5 <= cpu_s < 1.5, tree.how


@pytest.mark.parametrize("cgroups", [True, False], ids=["cgroup", "sampled"])
def test_a_process_that_joins_counts_what_it_starts_later_only(cgroups: bool) -> None:
    script = f"""
import subprocess, sys, time
from benchmarks.accounting import Stopwatch, Tree
earlier = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    with Tree(join=True, cgroups={cgroups}) as tree:
        with Stopwatch(tree) as watch:
            time.sleep(1)
        idle = watch.span.cpu_s
        with Stopwatch(tree) as watch:
            child = subprocess.Popen([sys.executable, "-c", {BURN.format(0.4)!r}])
            child.wait()
        print(idle, watch.span.cpu_s, tree.peak_mb() > 1)
finally:
    earlier.kill()
    earlier.wait()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    idle, busy, has_memory = done.stdout.split()
    assert float(idle) < 0.2
    assert 0.35 <= float(busy) < 1.2
    assert has_memory == "True"


def test_memory_of_all_processes_is_summed_and_told_by_time() -> None:
    held = "import os, time; block = b'x' * 40_000_000; time.sleep(1.6)"
    two = f"import subprocess, sys; a = [subprocess.Popen([sys.executable, '-c', {held!r}]) for _ in range(2)]; [p.wait() for p in a]"
    with Tree() as tree:
        began = time.perf_counter()
        assert tree.start([sys.executable, "-c", two]).wait(timeout=60) == 0
        span = Span(began, time.perf_counter() - began, 0.0)
        assert 80 < tree.peak_mb(span) < 200
        assert tree.peak_mb() == tree.peak_mb(span)
        assert tree.peak_mb(Span(0.0, 1.0, 0.0)) == 0.0


def test_a_command_that_fails_is_told_with_its_last_lines() -> None:
    with pytest.raises(RuntimeError, match="ended with code 3: no such thing"):
        run([sys.executable, "-c", "import sys; print('no such thing', file=sys.stderr); sys.exit(3)"])


def test_a_stopwatch_measures_its_block() -> None:
    with Tree(join=True) as tree:
        with Stopwatch(tree) as watch:
            time.sleep(0.2)
        assert 0.2 <= watch.span.seconds < 5
        assert watch.span.cpu_s < watch.span.seconds
