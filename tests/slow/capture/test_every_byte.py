"""Faults at every byte and after every event of a small history, injected into capture's session.

After each fault the session connects to the healthy source, and the store is opened again. It must then hold every
transaction of the history once, byte for byte. With ``TOWPATH_EVERY_BYTE=1`` (``make test-soak``) every byte is tested
with all piece sizes, bits and ways to end; without it they alternate, at every fifth byte.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from cdc.config import DestinationConfig
from cdc.testing.binlog import packets_of
from cdc.testing.source import (
    BitFlip,
    Cut,
    ErrorPacket,
    FakeSource,
    Fault,
    Garbage,
    Repeat,
    sample_history,
)
from cdc.testing.source.check import find_problems
from cdc.testing.source.harness import SessionHarness
from tests.slow.capture.support import inject

EVERY = os.environ.get("TOWPATH_EVERY_BYTE") == "1"
STEP = 5
"""Without it every fifth byte is tested, from one of the first five on, by the seed."""
PIECES = (1 << 20, 61, 300)
HISTORY = sample_history()
EVENTS = HISTORY.dump("binlog.000001", 4)
BYTES = sum(len(packets_of(event)) for event in EVENTS)


@pytest.fixture(scope="module")
def source() -> Iterator[FakeSource]:
    with FakeSource(HISTORY) as fake_source:
        yield fake_source


def every_byte(make: Callable[[int], Fault], config: DestinationConfig, source: FakeSource, seed: int) -> None:
    for at in range(0 if EVERY else seed % STEP, BYTES, 1 if EVERY else STEP):
        for turn in range(2 * len(PIECES)) if EVERY else (at % (2 * len(PIECES)),):
            inject(config, source, HISTORY, make(at), PIECES[turn % 3], kill=turn % 2 == 1)


@pytest.mark.long
def test_cut_at_every_byte(config: DestinationConfig, source: FakeSource, seed: int) -> None:
    every_byte(Cut, config, source, seed)


@pytest.mark.long
def test_a_bit_flipped_in_every_byte(config: DestinationConfig, source: FakeSource, seed: int) -> None:
    for bit in range(8) if EVERY else (None,):
        every_byte(lambda at, bit=bit: BitFlip(at, at * 5 % 8 if bit is None else bit), config, source, seed)  # type: ignore[misc]


@pytest.mark.long
def test_garbage_after_every_byte(config: DestinationConfig, source: FakeSource, seed: int) -> None:
    every_byte(Garbage, config, source, seed)  # a cut, followed by more bytes


@pytest.mark.long
@pytest.mark.parametrize("piece", [PIECES[0], *(pytest.param(size, marks=pytest.mark.long) for size in PIECES[1:])])
@pytest.mark.parametrize("kill", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_error_packet_and_a_duplicate_after_every_event(
    config: DestinationConfig, source: FakeSource, piece: int, kill: bool
) -> None:
    for event in range(len(EVENTS)):
        inject(config, source, HISTORY, ErrorPacket(event, 1927, "Connection was killed"), piece, kill=kill)
        inject(config, source, HISTORY, Repeat(event), piece, kill=kill)


def test_a_kill_after_every_piece(config: DestinationConfig, source: FakeSource) -> None:
    store = config.store.path
    killed = store.with_name("killed")
    for at in range(0, BYTES, 1 if EVERY else 39):
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(killed, ignore_errors=True)
        harness = SessionHarness(config, source)
        harness.connect(HISTORY, Cut(at), piece=13, before_end=lambda: harness.copy_as_killed(killed))  # noqa: B023
        harness.close()
        shutil.rmtree(store)
        killed.rename(store)
        harness = SessionHarness(config, source)
        assert harness.connect(HISTORY) is None
        harness.close()
        assert find_problems(store, HISTORY) == [], f"killed after {at} bytes"
