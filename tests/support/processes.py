"""Observes processes that tests have started, and what they left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil


def heed_sigint() -> None:
    """For ``preexec_fn``: tests that a shell runs in the background ignore SIGINT, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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


def read_whole_lines(journal: Path) -> list[str]:
    """Returns the lines of a journal whose writer was killed, after cutting off a line that the kill tore.

    A write over the border of two pages can be torn, and the next process would continue the torn line.
    """
    written = journal.read_bytes()
    os.truncate(journal, written.rfind(b"\n") + 1)
    return journal.read_text().splitlines()
