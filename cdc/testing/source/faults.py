"""Faults of a dump. A fault replaces the packets that a healthy server would send.

``at`` is an offset in bytes in the dump's stream, packet headers included. ``event`` is the number of an event, from 0.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cdc.testing.binlog import packets_of

if TYPE_CHECKING:
    from cdc.testing.source.history import History


@dataclass(frozen=True)
class Pause:
    """Send nothing for this time."""

    seconds: float


@dataclass(frozen=True)
class Hangup:
    """Close the connection."""


Action = bytes | Pause | Hangup


class Fault(Protocol):
    """One fault."""

    def apply(self, packets: Sequence[bytes]) -> Iterator[Action]:
        """Yields what the server does instead of sending ``packets``. The connection then stays open, with heartbeats,
        unless a :class:`Hangup` ends it."""


@dataclass(frozen=True)
class Cut:
    """The connection ends after ``at`` bytes."""

    at: int

    def apply(self, packets: Sequence[bytes]) -> Iterator[Action]:
        yield b"".join(packets)[: self.at]
        yield Hangup()


@dataclass(frozen=True)
class Stall:
    """The server pauses after ``at`` bytes, then sends the rest."""

    at: int
    seconds: float

    def apply(self, packets: Sequence[bytes]) -> Iterator[Action]:
        stream = b"".join(packets)
        yield stream[: self.at]
        yield Pause(self.seconds)
        yield stream[self.at :]


@dataclass(frozen=True)
class BitFlip:
    """One bit of the byte at ``at`` is inverted."""

    at: int
    bit: int = 0

    def apply(self, packets: Sequence[bytes]) -> Iterator[Action]:
        stream = bytearray(b"".join(packets))
        if self.at < len(stream):
            stream[self.at] ^= 1 << self.bit
        yield bytes(stream)


@dataclass(frozen=True)
class Repeat:
    """The server sends an event twice."""

    event: int

    def apply(self, packets: Sequence[bytes]) -> Iterator[Action]:
        yield b"".join(renumbered([*packets[: self.event + 1], *packets[self.event :]]))


@dataclass(frozen=True)
class Omit:
    """The server leaves an event out."""

    event: int

    def apply(self, packets: Sequence[bytes]) -> Iterator[Action]:
        yield b"".join(renumbered([*packets[: self.event], *packets[self.event + 1 :]]))


@dataclass(frozen=True)
class Rearranged:
    """The events come in another order: each number in ``order`` is that of an event, which may be missing, or there
    several times. Each packet keeps its number. Then the connection ends."""

    order: tuple[int, ...]

    def apply(self, packets: Sequence[bytes]) -> Iterator[Action]:
        yield b"".join(packets[event] for event in self.order)
        yield Hangup()


@dataclass(frozen=True)
class ErrorPacket:
    """The server ends the dump with an error before event number ``event``."""

    event: int
    code: int = 1236
    text: str = "error reading log entry"

    def apply(self, packets: Sequence[bytes]) -> Iterator[Action]:
        yield b"".join(packets[: self.event])
        yield error_packet(self.code, self.text, self.event + 1)
        yield Hangup()


@dataclass(frozen=True)
class Garbage:
    """After ``at`` bytes follow ``size`` random bytes, then the connection ends."""

    at: int
    size: int = 64
    seed: int = 0

    def apply(self, packets: Sequence[bytes]) -> Iterator[Action]:
        yield b"".join(packets)[: self.at] + random.Random(self.seed + self.at).randbytes(self.size)
        yield Hangup()


@dataclass(frozen=True)
class SwitchHistory:
    """After event number ``event`` the stream continues with the events of another history from that number on."""

    event: int
    other: History

    def apply(self, packets: Sequence[bytes]) -> Iterator[Action]:
        first = self.other.files[0].name
        others = [packets_of(event, number + 1) for number, event in enumerate(self.other.dump(first, 4))]
        yield b"".join([*packets[: self.event], *others[self.event :]])


def renumbered(packets: Sequence[bytes]) -> Iterator[bytes]:
    """Yields the packets of events with the numbers that a server gives them in this order."""
    number = 1
    for packet in packets:
        data, at = bytearray(packet), 0
        while at < len(data):
            data[at + 3] = number & 0xFF
            at += 4 + int.from_bytes(data[at : at + 3], "little")
            number += 1
        yield bytes(data)


def error_packet(code: int, text: str, number: int) -> bytes:
    """Returns an ERR packet."""
    payload = b"\xff" + code.to_bytes(2, "little") + b"#HY000" + text.encode()
    return len(payload).to_bytes(3, "little") + bytes([number & 0xFF]) + payload
