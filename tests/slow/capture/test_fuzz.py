"""Streams with bytes flipped, cut, repeated and reordered, at random and in combination: capture never crashes, never
loops, and never puts a wrong transaction into the store.

Events that come in another order, are left out or come again have right checksums, and may be whole transactions. The
numbers of their packets give them away.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from cdc.config import DestinationConfig
from cdc.testing.binlog import numbered_packets
from cdc.testing.source import BitFlip, Cut, FakeSource, Fault, Garbage, Rearranged
from cdc.testing.source.check import find_problems
from cdc.testing.source.faults import Action
from cdc.testing.source.harness import SessionHarness
from cdc.testing.source.history import random_history, sample_history
from tests.slow.capture.support import inject

HISTORY = sample_history()
EVENTS = len(HISTORY.dump("binlog.000001", 4))
ROUNDS = int(os.environ.get("TOWPATH_FUZZ_STREAMS") or 8)
"""Random histories; more of them are a longer fuzz."""


@dataclass(frozen=True)
class Both:
    """Packets are rearranged first; then the bytes have another fault."""

    first: Rearranged
    then: Fault

    def apply(self, packets: Sequence[bytes]) -> Iterator[Action]:
        yield from self.then.apply([packet for packet in self.first.apply(packets) if isinstance(packet, bytes)])


@pytest.fixture(scope="module")
def source() -> Iterator[FakeSource]:
    with FakeSource(HISTORY) as fake_source:
        yield fake_source


@pytest.mark.parametrize("kill", [True, pytest.param(False, marks=pytest.mark.long)])
def test_every_two_neighbours_change_places(config: DestinationConfig, source: FakeSource, kill: bool) -> None:
    for at in range(EVENTS - 1):
        order = [*range(EVENTS)]
        order[at], order[at + 1] = order[at + 1], order[at]
        inject(config, source, HISTORY, Rearranged(tuple(order)), 1 << 20, kill=kill)


@pytest.mark.long
def test_every_event_is_left_out_or_comes_again(config: DestinationConfig, source: FakeSource) -> None:
    for at in range(EVENTS):
        events = [*range(EVENTS)]
        for order in ((*events[:at], *events[at + 1 :]), (*events[: at + 1], *events[at:])):
            inject(config, source, HISTORY, Rearranged(order), 1 << 20, kill=False)


@pytest.mark.long
def test_every_run_of_events_is_left_out_or_comes_again(config: DestinationConfig, source: FakeSource) -> None:
    """Whole transactions among them, which are sound in themselves."""
    for begin in range(0, EVENTS, 3):
        for end in range(begin + 2, EVENTS + 1, 5):
            events = [*range(EVENTS)]
            for order in ((*events[:begin], *events[end:]), (*events[:end], *events[begin:])):
                inject(config, source, HISTORY, Rearranged(order), 1 << 20, kill=False)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_random_streams(config: DestinationConfig, source: FakeSource, seed: int, number: int) -> None:
    rng = random.Random(f"{seed} streams {number}")
    history = random_history(rng.randrange(1 << 30), transactions=30)
    harness = SessionHarness(config, source)
    for _ in range(15):
        at = harness.resume(history)
        packets = numbered_packets(history.dump(at.file, at.pos))
        fault = damage(rng, len(packets), sum(map(len, packets)))
        harness.connect(history, fault, piece=rng.choice((1 << 20, 5000, 300, 61)))
        assert find_problems(config.store.path, history, whole=False) == [], f"{fault}"
        if rng.random() < 0.3:
            harness.reopen()
    assert harness.connect(history) is None
    harness.close()
    assert find_problems(config.store.path, history) == []


def damage(rng: random.Random, events: int, size: int) -> Fault:
    """Returns one to four faults at once."""
    order = [*range(events)]
    for _ in range(rng.randrange(4)):
        begin = rng.randrange(len(order))
        piece = order[begin : begin + rng.choice((1, 1, 2, 6, 20))]
        kind = rng.randrange(3)
        if kind:  # it goes elsewhere, or away
            del order[begin : begin + len(piece)]
        if kind != 1:  # it comes somewhere, or again
            into = rng.randrange(len(order) + 1)
            order[into:into] = piece
        order = order or [0]
    at = rng.randrange(size)
    then = rng.choice((Cut(at), BitFlip(at, rng.randrange(8)), Garbage(at, rng.randrange(1, 200), rng.randrange(99))))
    return Both(Rearranged(tuple(order)), then) if rng.random() < 0.7 else Rearranged(tuple(order))
