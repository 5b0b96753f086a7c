"""Signals to ``cdc`` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time


def test_sigterm_ends_a_command_cleanly() -> None:
    script = (
        "import sys, time; from cdc import config; from cdc.cli import main as cli;"
        "config.load_destination = lambda *a: (print('ready', flush=True), time.sleep(30));"
        "sys.exit(cli.main(['status', 'shop']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (1, "cdc: Stopped.\n")
    assert time.monotonic() - began < 10


def test_a_sigterm_that_python_cannot_raise_is_not_lost() -> None:
    """Python only prints an exception that is raised in a destructor, or in a callback at a fork."""
    script = (
        "import os, signal, sys, time; from cdc import config; from cdc.cli import main as cli\n"
        "class Gone:\n"
        "    def __del__(self): os.kill(os.getpid(), signal.SIGTERM); time.sleep(0)\n"
        "def load(*a):\n"
        "    Gone(); print('ready', flush=True); time.sleep(30)\n"
        "config.load_destination = load\n"
        "sys.exit(cli.main(['status', 'shop']))"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "ready\n", "cdc: Stopped.\n")
    assert time.monotonic() - began < 15
