"""The types of CPU for which kernels are built ahead, and the one of this machine.

A level is a set of instructions that many CPUs have: x86-64-v3 is AVX2 with its companions (Intel since 2013, AMD since
2015), x86-64-v2 is SSE 4.2 (since 2008, and the plainest CPU that hypervisors show to their guests).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")
_V2 = frozenset({"cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "pclmulqdq", "xsave"}


@dataclass(frozen=True)
class CpuLevel:
    """A type of CPU that built kernels run on."""

    name: str
    machine: str
    """The architecture, as ``uname -m`` prints it."""
    flags: frozenset[str]
    """The sets of instructions, as ``/proc/cpuinfo`` names them."""
    cpu: str
    """LLVM's name of the CPU."""
    features: str
    """LLVM's names of instructions beyond those of ``cpu``."""


LEVELS = (
    CpuLevel("x86-64-v3", "x86_64", _V3, "x86-64-v3", "+pclmul"),
    CpuLevel("x86-64-v2", "x86_64", _V2, "x86-64-v2", ""),
    CpuLevel("aarch64", "aarch64", frozenset(), "generic", ""),
)
"""The best of each machine first."""

_building: CpuLevel | None = None


def build_for(level: CpuLevel) -> None:
    """Has kernels use the instructions of this level instead of those of this machine. Call it before any kernel module
    is imported, since CRC32 is another function where there is no carry-less multiplication."""
    global _building
    _building = level


@cache
def _host_flags() -> frozenset[str]:
    try:
        lines = _CPU_INFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ()))


def cpu_flags() -> frozenset[str]:
    """Returns the sets of instructions that kernels may use, by their names in ``/proc/cpuinfo``; empty without it."""
    return _host_flags() if _building is None else _building.flags


def fitting() -> list[CpuLevel]:
    """Returns the levels whose code runs on this machine, the best first; none after :func:`build_for`, which asks for
    one to be compiled."""
    if _building is not None:
        return []
    return [level for level in LEVELS if level.machine == os.uname().machine and level.flags <= _host_flags()]
