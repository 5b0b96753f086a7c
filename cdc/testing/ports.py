"""Ports of 127.0.0.1."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress

from cdc.errors import SourceUnavailableError
from cdc.testing.kind import HOST

_PORTS = range(15000, 30000)  # below the ports that the kernel gives to outgoing connections


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens now."""
    dice = random.Random(os.urandom(8))
    for _ in range(200):
        port = dice.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((HOST, port))
                return port
    raise SourceUnavailableError(f"no free port between {_PORTS.start} and {_PORTS.stop} on {HOST}")


def is_listening(port: int) -> bool:
    """Does something listen at this port of 127.0.0.1?"""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
