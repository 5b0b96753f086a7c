"""A fake MySQL source with fault injection: it speaks the dump protocol over a history that the test builds.

:class:`~cdc.testing.source.history.History` is the content of a server's binlog files, and knows the transactions that
a store must hold of it. :class:`~cdc.testing.source.server.FakeSource` serves it over TCP: handshake, the statements
that the preflight and capture send, registration, dump, heartbeats. :mod:`~cdc.testing.source.faults` are the faults
of a dump, :mod:`~cdc.testing.source.harness` runs capture's session over faulty dumps without a socket, and
:mod:`~cdc.testing.source.check` compares a store with a history.

>>> history = sample_history()
>>> with FakeSource(history) as source:
...     source.next_faults = [Cut(100)]
"""

from __future__ import annotations

from cdc.testing.source.faults import (
    BitFlip,
    Cut,
    ErrorPacket,
    Fault,
    Garbage,
    Omit,
    Rearranged,
    Repeat,
    Stall,
    SwitchHistory,
)
from cdc.testing.source.history import History, prepared_history, sample_history
from cdc.testing.source.server import Answer, FakeSource

__all__ = [
    "Answer",
    "BitFlip",
    "Cut",
    "ErrorPacket",
    "FakeSource",
    "Fault",
    "Garbage",
    "History",
    "Omit",
    "Rearranged",
    "Repeat",
    "Stall",
    "SwitchHistory",
    "prepared_history",
    "sample_history",
]
