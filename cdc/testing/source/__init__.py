"""A source that can be told to misbehave: a server that speaks the dump protocol over a history made by hand.

:class:`~cdc.testing.source.history.History` is what a server's binlog files hold, with the transactions that a store
must have of it. :class:`~cdc.testing.source.server.FakeSource` serves it over TCP to capture's own code: handshake,
the statements that the preflight and capture ask, registration, dump, heartbeats.
:mod:`~cdc.testing.source.faults` has what can go wrong in a dump, and :mod:`~cdc.testing.source.check` the function
that says what is broken in a store.

>>> history = sample_history()
>>> with FakeSource(history) as source:
...     source.next_dumps = [Cut(100)]
"""

from __future__ import annotations

from cdc.testing.source.faults import (
    Cut,
    ErrorPacket,
    Fault,
    Flip,
    Garbage,
    Jump,
    Repeat,
    Stall,
)
from cdc.testing.source.history import History, sample_history
from cdc.testing.source.server import Answer, FakeSource

__all__ = [
    "Answer",
    "Cut",
    "ErrorPacket",
    "FakeSource",
    "Fault",
    "Flip",
    "Garbage",
    "History",
    "Jump",
    "Repeat",
    "Stall",
    "sample_history",
]
