"""A command that has loaded everything, and waits for a line before it begins."""

from __future__ import annotations

import subprocess
import sys

import cdc


def ready(given: bytes) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "cdc.cli.ready", "--version"]
    return subprocess.run(command, input=given, capture_output=True, timeout=300)


def test_it_runs_its_command_after_a_line() -> None:
    done = ready(b"\n")
    assert (done.returncode, done.stdout.decode().strip()) == (0, f"towpath {cdc.__version__}"), done.stderr


def test_it_does_nothing_if_it_is_not_needed() -> None:
    done = ready(b"")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
