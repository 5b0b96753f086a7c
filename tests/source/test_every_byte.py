"""Capture's session over a source that misbehaves at every byte and after every event of a small history.

After each fault the session connects again, to an honest source, and the store is opened again. It must then hold every
transaction of the history once, byte for byte. ``TOWPATH_EVERY_BYTE=1`` (``make test-soak``) tries all kinds of pieces,
bits and ends with each byte; without it they take turns.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc.config import DestinationConfig
from cdc.errors import CdcError, CorruptStreamError, SourceUnavailableError
from cdc.testing.binlog import packets_of
from cdc.testing.source import (
    Cut,
    ErrorPacket,
    FakeSource,
    Fault,
    Flip,
    Garbage,
    History,
    Repeat,
    sample_history,
)
from cdc.testing.source.check import broken_in
from cdc.testing.source.harness import Bench
from tests.source.support import Configure

EVERY = os.environ.get("TOWPATH_EVERY_BYTE") == "1"
PIECES = (1 << 20, 61, 300)
HISTORY = sample_history()
EVENTS = HISTORY.dump("binlog.000001", 4)
BYTES = sum(len(packets_of(event)) for event in EVENTS)


@pytest.fixture(scope="module")
def source() -> Iterator[FakeSource]:
    with FakeSource(HISTORY) as found:
        yield found


@pytest.fixture
def config(source: FakeSource, configure: Configure) -> Iterator[DestinationConfig]:
    # Thousands of small stores: in memory, where there is such a folder.
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        yield configure(source, Path(folder))


def try_it(
    config: DestinationConfig, source: FakeSource, history: History, fault: Fault, piece: int, *, kill: bool
) -> None:
    """A connection with the fault, then honest ones, then the store is opened again."""
    store = config.store.path
    shutil.rmtree(store, ignore_errors=True)
    bench = Bench(config, source)
    told = f"{fault}, in pieces of {piece}{', killed' if kill else ''}"
    try:
        ended = bench.connect(history, fault, piece=piece)
        if ended is not None:
            assert isinstance(ended, SourceUnavailableError | CorruptStreamError), f"{told}: {ended!r}"
        if kill:
            killed = store.with_name("killed")
            shutil.rmtree(killed, ignore_errors=True)
            bench.copy_as_killed(killed)
            bench.close()
            shutil.rmtree(store)
            killed.rename(store)
            bench = Bench(config, source)
        again = bench.connect(history)
        assert again is None, f"{told}: {again!r}"
    except CdcError as error:
        raise AssertionError(f"{told}: {error}") from error
    finally:
        bench.close()
    assert broken_in(store, history) == [], told


def every_byte(make: Callable[[int], Fault], config: DestinationConfig, source: FakeSource, *, step: int = 1) -> None:
    for at in range(0, BYTES, 1 if EVERY else step):
        for turn in range(2 * len(PIECES)) if EVERY else (at % (2 * len(PIECES)),):
            try_it(config, source, HISTORY, make(at), PIECES[turn % 3], kill=turn % 2 == 1)


def test_cut_at_every_byte(config: DestinationConfig, source: FakeSource) -> None:
    every_byte(Cut, config, source)


def test_a_bit_flipped_in_every_byte(config: DestinationConfig, source: FakeSource) -> None:
    for bit in range(8) if EVERY else (None,):
        every_byte(lambda at, bit=bit: Flip(at, at * 5 % 8 if bit is None else bit), config, source)  # type: ignore[misc]


def test_garbage_behind_every_byte(config: DestinationConfig, source: FakeSource) -> None:
    every_byte(Garbage, config, source, step=5)  # a cut with more behind it


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("kill", [False, True])
def test_errors_and_repetitions_after_every_event(
    config: DestinationConfig, source: FakeSource, piece: int, kill: bool
) -> None:
    for event in range(len(EVENTS)):
        try_it(config, source, HISTORY, ErrorPacket(event, 1927, "Connection was killed"), piece, kill=kill)
        try_it(config, source, HISTORY, Repeat(event), piece, kill=kill)


def test_a_kill_after_every_piece(config: DestinationConfig, source: FakeSource) -> None:
    store = config.store.path
    killed = store.with_name("killed")
    for at in range(0, BYTES, 1 if EVERY else 13):
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(killed, ignore_errors=True)
        bench = Bench(config, source)
        bench.connect(HISTORY, Cut(at), piece=13, before_end=lambda: bench.copy_as_killed(killed))  # noqa: B023
        bench.close()
        shutil.rmtree(store)
        killed.rename(store)
        bench = Bench(config, source)
        assert bench.connect(HISTORY) is None
        bench.close()
        assert broken_in(store, HISTORY) == [], f"killed after {at} bytes"
