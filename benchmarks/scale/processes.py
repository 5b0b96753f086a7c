"""CPU seconds and memory of trees of processes, read from ``/proc`` at the beginning and at the end of a window.

Unlike :class:`benchmarks.accounting.Tree` it needs no process that looks all the time, so that it can count ten parts
beside each other. What a process has used is counted to the end if its parent has waited for it, which all parents here
do.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """The resources that some processes have used so far."""

    processes: int
    cpu_s: float

    def since(self, before: Usage, seconds: float) -> float:
        """Returns the CPU time since an earlier look, in percent of one core."""
        return 100 * (self.cpu_s - before.cpu_s) / seconds


@dataclass(frozen=True)
class _Process:
    parent: int
    own_s: float
    waited_s: float


class Look:
    """All processes of this machine, at one moment."""

    def __init__(self) -> None:
        self._all: dict[int, _Process] = {}
        self._children: dict[int, list[int]] = defaultdict(list)
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            user, system, waited_user, waited_system = (int(value) / _TICKS for value in fields[11:15])
            process = _Process(int(fields[1]), user + system, waited_user + waited_system)
            self._all[int(entry.name)] = process
            self._children[process.parent].append(int(entry.name))

    def tree(self, roots: Iterable[int]) -> list[int]:
        """Returns these processes and their descendants."""
        pids, waiting = [], [pid for pid in roots if pid in self._all]
        while waiting:
            pid = waiting.pop()
            pids.append(pid)
            waiting += self._children[pid]
        return pids

    def usage(self, roots: Iterable[int]) -> Usage:
        """Returns the sum over these processes and their descendants, ended ones included."""
        pids = self.tree(roots)
        return Usage(len(pids), sum(self._all[pid].own_s + self._all[pid].waited_s for pid in pids))

    def own(self, pid: int) -> Usage:
        """Returns what one process has used itself."""
        return Usage(1, self._all[pid].own_s)


def pss_mb(pids: Iterable[int]) -> float:
    """Returns the memory of processes, in which a page that n of them share counts a n-th for each."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total / 1000
