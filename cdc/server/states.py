"""The states of an instance."""

from __future__ import annotations

from enum import StrEnum


class InstanceState(StrEnum):
    """The states of an instance: a destination that a server runs."""

    STARTING = "starting"
    RUNNING = "running"
    """It is served; and captured, if the server captures it."""
    WAITING = "waiting"
    """It is served, and nothing is captured because nobody subscribes (``server.capture: subscribed``)."""
    STOPPED = "stopped"
    """An operator has stopped it."""
    STANDBY = "standby"
    """Another server has it, and this one waits for it."""
    FAILED = "failed"
    """It cannot be served, or its capture has ended. The error says why, and when it is tried again."""
    UNSERVED = "unserved"
    """Its configuration gives the server nothing to do."""


STATES = tuple(InstanceState)
