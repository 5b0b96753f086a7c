"""Fault injection for the whole loop: after any fault the lake equals the source, or a command has named the fault.

``TOWPATH_NEMESIS_SEEDS`` sets the number of seeds (default: 1), ``TOWPATH_NEMESIS_SEED`` a single seed to repeat.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.lake.runtime import session
from tests.nemesis.disturbances import DISTURBANCES, RARE_DISTURBANCES
from tests.nemesis.environment import Clock
from tests.nemesis.faults import FAULTS
from tests.nemesis.scenario import Scenario, disturbances_of, fault_of, kind_of
from tests.nemesis.source import Source

_ONE = os.environ.get("TOWPATH_NEMESIS_SEED")
_COUNT = int(os.environ.get("TOWPATH_NEMESIS_SEEDS") or 1)
SEEDS: list[int] = sorted([int(_ONE)] if _ONE else range(_COUNT), key=kind_of)


class Sources:
    """The server that the scenarios share; a server of another kind replaces it."""

    def __init__(self) -> None:
        self._source: Source | None = None

    def get(self, kind: str) -> Source:
        if self._source is None or self._source.kind != kind:
            self.close()
            self._source = Source(kind)
        return self._source

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None


@pytest.fixture(scope="module")
def sources() -> Iterator[Sources]:
    sources = Sources()
    yield sources
    sources.close()


@pytest.fixture(scope="session", autouse=True)
def _spark() -> Iterator[None]:
    yield
    session.discard()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of leases, in the two modules that read it."""
    clock = Clock()
    monkeypatch.setattr("cdc.batches.service.datetime", clock.datetime)
    monkeypatch.setattr("cdc.lake.pipeline.datetime", clock.datetime)
    return clock


def test_twenty_seeds_have_every_fault_and_disturbance() -> None:
    seeds = range(20)
    assert {fault_of(seed).name for seed in seeds} == {fault.name for fault in FAULTS}
    met = {disturbance.__name__ for seed in seeds for disturbance in disturbances_of(seed, random.Random(0))}
    assert met == {disturbance.__name__ for disturbance in (*DISTURBANCES, *RARE_DISTURBANCES)}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_fault_is_repaired_or_reported(
    seed: int, sources: Sources, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.capture.reconnect._FIRST_PAUSE_S", 0.05)
    if seed % 3 == 0:  # every batch is a large one
        monkeypatch.setattr("cdc.lake.rows.changes.SMALL_BYTES", 0)
    steps: list[str] = []
    try:
        Scenario(seed, sources.get(kind_of(seed)), tmp_path, clock, steps).play()
    except BaseException as error:
        listed = "\n".join(f"  {number:2} {step}" for number, step in enumerate(steps, 1))
        error.add_note(
            f"seed {seed} ({kind_of(seed)}, {fault_of(seed).name}) failed after these steps:\n{listed}\n"
            f"To repeat it: make test-nemesis TOWPATH_NEMESIS_SEED={seed}"
        )
        raise
