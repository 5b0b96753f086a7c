"""Watches the instances of a server for alarms: those that it leads, and whose configuration names somebody to tell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.base.log import get_logger
from cdc.server.states import InstanceState
from cdc.server.supervisor import ProcessState
from cdc.watch.alarms.conditions import Facts
from cdc.watch.alarms.watch import AlarmWatch

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.server.instance import Instance
    from cdc.server.instances import Instances

_LOOK_S = 1.0
_log = get_logger(__name__)


@dataclass
class _Watched:
    config: DestinationConfig
    watch: AlarmWatch
    facts: Facts
    """The facts at the last look. The watch reads them in its own thread."""


class ServerAlarms:
    """The watches of a server. Used in its event loop."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._watched: dict[str, _Watched] = {}

    def watches(self) -> Mapping[str, AlarmWatch]:
        """Returns the watches by destination, for the metrics."""
        return {name: watched.watch for name, watched in self._watched.items()}

    async def follow(self) -> None:
        """Watches until it is cancelled."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(_LOOK_S)
        finally:
            await self._close(list(self._watched))

    async def _look(self) -> None:
        instances = {
            instance.name: instance
            for instance in self._instances
            if instance.config.alarms.handlers and _leads(instance)
        }
        gone = [
            name
            for name, watched in self._watched.items()
            if name not in instances or watched.config != instances[name].config
        ]
        await self._close(gone)
        for name, instance in instances.items():
            watched = self._watched.get(name)
            if watched is not None:
                watched.facts = facts_of(instance)
                continue
            facts = facts_of(instance)
            watch = AlarmWatch(instance.config, lambda name=name: self._facts(name))  # type: ignore[misc]
            self._watched[name] = _Watched(instance.config, watch, facts)
            watch.start()
            _log.info("watching for alarms", destination=name, handlers=", ".join(instance.config.alarms.handlers))

    def _facts(self, name: str) -> Facts:
        watched = self._watched.get(name)
        return Facts() if watched is None else watched.facts

    async def _close(self, names: list[str]) -> None:
        gone = [self._watched.pop(name) for name in names]
        await asyncio.gather(*(asyncio.to_thread(watched.watch.close) for watched in gone))


def _leads(instance: Instance) -> bool:
    """Whether another server has nothing to do with the destination now."""
    return instance.state is not InstanceState.STANDBY


def facts_of(instance: Instance) -> Facts:
    """Returns what the server knows of an instance's processes."""
    if instance.state in (InstanceState.STOPPED, InstanceState.WAITING):
        return Facts(is_wanted=False)
    error = instance.error
    return Facts(
        failure=None if error is None else str(error),
        is_restarted=instance.config.server.capture != "none"
        and all(process.state is not ProcessState.FAILED for process in instance.processes),
    )
