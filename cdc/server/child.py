"""Becomes a command that the kernel kills when its parent dies: ``-m cdc.server.child PARENT MODULE ARGUMENT…``.

The module is ``cdc``, or :mod:`cdc.cli.ready` for a command that waits until it is needed.

The kernel sends the signal however the parent dies, and even if the command is stopped or busy. It is set before the
program is replaced, which keeps it; a parent that died before is noticed afterwards.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Replaces this process by the command. Returns only if the parent is gone."""
    parent, command = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.stderr.write(f"cdc: the kernel refuses PR_SET_PDEATHSIG: {os.strerror(ctypes.get_errno())}.\n")
        return 1
    if os.getppid() != parent:
        return 1
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the command has a use for it
    return os.execv(sys.executable, [sys.executable, "-m", *command])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
