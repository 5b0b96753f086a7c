"""Observes processes that tests have started."""

from __future__ import annotations

import subprocess
import time

import psutil


def peak_rss(process: subprocess.Popen[bytes]) -> int:
    """Waits for the end of a process. Returns the largest number of resident bytes that was seen."""
    peak, watched = 0, psutil.Process(process.pid)
    while process.poll() is None:
        try:
            peak = max(peak, watched.memory_info().rss)
        except psutil.NoSuchProcess:
            break
        time.sleep(0.02)
    process.wait()
    return peak
