"""A scenario by its seed: a destination at work, things that must do it no harm, then one that must not go unnoticed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from cdc.errors import CdcError
from tests.nemesis.faults import FAULTS, Fault
from tests.nemesis.source import Source
from tests.nemesis.weather import RARE, WEATHER
from tests.nemesis.world import Clock, World

KINDS = ("mysql9", "mariadb11", "mysql9", "mariadb11", "mariadb10")
_FIRST_SEEDS = 20
"""So many seeds are played in CI; they have each fault and each kind of weather at least once."""

Weather = Callable[[World], None]


def kind_of(seed: int) -> str:
    """The server of a seed."""
    return KINDS[seed % len(KINDS)]


def fault_of(seed: int) -> Fault:
    """The fault of a seed: so many seeds in a row as there are faults have them all."""
    return FAULTS[seed % len(FAULTS)]


def weather_of(seed: int, dice: random.Random) -> list[Weather]:
    """What a seed meets before its fault: by its number, so that twenty seeds in a row have everything, or drawn."""
    chosen = [WEATHER[seed % len(WEATHER)]]
    if seed % 2 == 0:
        chosen.append(WEATHER[(seed // 2 + _FIRST_SEEDS) % len(WEATHER)])
    elif dice.random() < 0.3:
        chosen.append(dice.choice(WEATHER))
    if seed % _FIRST_SEEDS == _FIRST_SEEDS - 1:
        chosen.append(dice.choice(RARE))
    dice.shuffle(chosen)
    return chosen


class Scenario:
    """One seed, played on a source that other seeds use before and after it."""

    def __init__(self, seed: int, source: Source, folder: Path, clock: Clock, steps: list[str]) -> None:
        self._seed = seed
        self._dice = random.Random(f"nemesis {seed}")
        self._world = World(source, folder, self._dice, clock, steps)

    def play(self) -> None:
        """Raises AssertionError for a difference that nobody was told of, and for a refusal without a reason."""
        world, fault = self._world, fault_of(self._seed)
        world.source.begin(f"nemesis_{self._seed}", f"nemesis {self._seed}")
        world.begin()
        world.work()
        world.capture()
        if self._dice.random() < 0.3:
            world.apply_one(self._dice.randrange(1, 4))
        for weather in weather_of(self._seed, self._dice):
            world.say(f"weather: {weather.__name__}")
            weather(world)
            self._pass_time()
        self._meet(fault)

    def _pass_time(self) -> None:
        """Some more of what happens all the time."""
        for _ in range(self._dice.randrange(2)):
            self._dice.choice((self._world.work, self._world.capture, lambda: self._world.apply_one(2)))()

    def _require_level(self, when: str) -> None:
        self._world.source.workload.touch()
        self._world.level()
        self._world.require_equal(when)

    def _meet(self, fault: Fault) -> None:
        world = self._world
        world.say(f"fault: {fault.name}")
        probe = (world.level,) if fault.probe == "level" else (world.apply,)
        # The fault itself may need a command, which may be the one that is refused.
        error = world.outcome(lambda: fault.strike(world), *probe)
        if error is None:
            if fault.must_refuse:
                world.require_equal(f"after {fault.name}")
                raise AssertionError(f"{fault.name}: nothing was refused, although it cannot be made good")
            world.require_equal(f"after {fault.name}")
            return
        self._require_reason(fault, error)
        if fault.of_source:
            # A refused capture does not hold back the next scheduled apply.
            if (again := world.outcome(world.apply)) is not None:
                self._require_reason(fault, again)
            changed = world.changed_tables()
            assert not changed, (
                f"{fault.name}: capture was refused, and the lake has something of the other history: {changed}"
            )
        again = world.outcome(*probe)
        if again is None:
            world.require_equal(f"after {fault.name}, at the second try")
        else:
            self._require_reason(fault, again)
        world.say("the way out")
        fault.way_out(world)
        self._require_level(f"after {fault.name} and the way out")

    def _require_reason(self, fault: Fault, error: CdcError) -> None:
        if not any(refusal.allows(error) for refusal in fault.refusals):
            allowed = "; ".join(f"{r.error.__name__} with /{r.words}/" for r in fault.refusals)
            raise AssertionError(
                f"{fault.name}: the refusal does not say what happened (allowed: {allowed}): {type(error).__name__}: {error}"
            ) from error
