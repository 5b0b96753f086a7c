"""The whole loop under a nemesis: after whatever happens, the lake equals the source or a command has said what happened.

``TOWPATH_NEMESIS_SEEDS`` says how many seeds are played (20, unless it is set), ``TOWPATH_NEMESIS_SEED`` names a single
one to be repeated.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.testing.servers import PASSWORD
from spark_jobs.runtime import session
from tests.nemesis.faults import FAULTS
from tests.nemesis.scenario import Scenario, fault_of, kind_of, weather_of
from tests.nemesis.source import Source
from tests.nemesis.weather import RARE, WEATHER
from tests.nemesis.world import Clock

_ONE = os.environ.get("TOWPATH_NEMESIS_SEED")
_COUNT = int(os.environ.get("TOWPATH_NEMESIS_SEEDS") or 20)
SEEDS: list[int] = sorted([int(_ONE)] if _ONE else range(_COUNT), key=kind_of)


class Sources:
    """The server that the scenarios share; another kind takes the place of the one before."""

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
    found = Sources()
    yield found
    found.close()


@pytest.fixture(scope="session", autouse=True)
def _spark() -> Iterator[None]:
    yield
    session.discard()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of leases, in the two modules that ask for the time."""
    clock = Clock()
    monkeypatch.setattr("cdc.batches.service.datetime", clock.datetime)
    monkeypatch.setattr("cdc.pipeline.datetime", clock.datetime)
    return clock


def test_twenty_seeds_have_every_fault_and_all_weather() -> None:
    seeds = range(20)
    assert {fault_of(seed).name for seed in seeds} == {fault.name for fault in FAULTS}
    met = {weather.__name__ for seed in seeds for weather in weather_of(seed, random.Random(0))}
    assert met == {weather.__name__ for weather in (*WEATHER, *RARE)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_happens_is_made_good_or_told(
    seed: int, sources: Sources, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWPATH_TEST_PASSWORD", PASSWORD)
    monkeypatch.setattr("cdc.capture.reconnect._FIRST_PAUSE_S", 0.05)
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
