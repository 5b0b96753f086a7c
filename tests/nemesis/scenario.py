"""A scenario by its seed: a destination at work, some harmless disturbances, then one fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from cdc.base.errors import CdcError
from tests.nemesis.disturbances import DISTURBANCES, RARE_DISTURBANCES
from tests.nemesis.environment import Clock, Environment
from tests.nemesis.faults import FAULTS, Fault
from tests.nemesis.source import Source

KINDS = ("mysql9", "mariadb11", "mysql9", "mariadb11", "mariadb10")
_FIRST_SEEDS = 20
"""Seeds that CI plays; they have each fault and each disturbance at least once."""

Disturbance = Callable[[Environment], None]


def kind_of(seed: int) -> str:
    """Returns the server of a seed."""
    return KINDS[seed % len(KINDS)]


def fault_of(seed: int) -> Fault:
    """Returns the fault of a seed. As many consecutive seeds as there are faults have them all."""
    return FAULTS[seed % len(FAULTS)]


def disturbances_of(seed: int, rng: random.Random) -> list[Disturbance]:
    """Returns the disturbances before a seed's fault: some by its number, so that twenty consecutive seeds have all of
    them, and some drawn at random."""
    chosen = [DISTURBANCES[seed % len(DISTURBANCES)]]
    if seed % 2 == 0:
        chosen.append(DISTURBANCES[(seed // 2 + _FIRST_SEEDS) % len(DISTURBANCES)])
    elif rng.random() < 0.3:
        chosen.append(rng.choice(DISTURBANCES))
    if seed % _FIRST_SEEDS == _FIRST_SEEDS - 1:
        chosen.append(rng.choice(RARE_DISTURBANCES))
    rng.shuffle(chosen)
    return chosen


class Scenario:
    """The scenario of one seed, on a source that other seeds use before and after it."""

    def __init__(self, seed: int, source: Source, folder: Path, clock: Clock, steps: list[str]) -> None:
        self._seed = seed
        self._rng = random.Random(f"nemesis {seed}")
        self._env = Environment(source, folder, self._rng, clock, steps)

    def play(self) -> None:
        """Plays the scenario. Raises AssertionError for a difference without a refusal, and for a refusal without a
        reason."""
        env, fault = self._env, fault_of(self._seed)
        env.source.begin(f"nemesis_{self._seed}", f"nemesis {self._seed}")
        env.begin()
        env.work()
        env.capture()
        if self._rng.random() < 0.3:
            env.apply_one(self._rng.randrange(1, 4))
        for disturbance in disturbances_of(self._seed, self._rng):
            env.log(f"disturbance: {disturbance.__name__}")
            disturbance(env)
            self._do_routine_work()
        self._inject(fault)

    def _do_routine_work(self) -> None:
        """Does some routine work."""
        for _ in range(self._rng.randrange(2)):
            self._rng.choice((self._env.work, self._env.capture, lambda: self._env.apply_one(2)))()

    def _require_caught_up(self, when: str) -> None:
        self._env.source.workload.touch()
        self._env.catch_up()
        self._env.require_equal(when)

    def _inject(self, fault: Fault) -> None:
        env = self._env
        env.log(f"fault: {fault.name}")
        probe = (env.catch_up,) if fault.probe == "catch_up" else (env.apply,)
        # The fault itself may run a command, which may be refused.
        error = env.first_error(lambda: fault.inject(env), *probe)
        if error is None:
            if fault.must_refuse:
                env.require_equal(f"after {fault.name}")
                raise AssertionError(f"{fault.name}: nothing was refused, although the data are lost")
            env.require_equal(f"after {fault.name}")
            return
        self._require_reason(fault, error)
        if fault.of_source:
            # The next scheduled apply runs although capture was refused.
            if (second_error := env.first_error(env.apply)) is not None:
                self._require_reason(fault, second_error)
            changed = env.changed_tables()
            assert not changed, (
                f"{fault.name}: capture was refused, but the lake has changes of the other history: {changed}"
            )
        second_error = env.first_error(*probe)
        if second_error is None:
            env.require_equal(f"after {fault.name}, at the second try")
        else:
            self._require_reason(fault, second_error)
        env.log("recovery")
        fault.recover(env)
        self._require_caught_up(f"after {fault.name} and recovery")

    def _require_reason(self, fault: Fault, error: CdcError) -> None:
        if not any(refusal.allows(error) for refusal in fault.refusals):
            allowed = "; ".join(f"{r.error.__name__} with /{r.words}/" for r in fault.refusals)
            raise AssertionError(
                f"{fault.name}: the refusal does not name the fault (allowed: {allowed}): {type(error).__name__}: {error}"
            ) from error
