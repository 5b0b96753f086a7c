"""All instances of a server, by name: follows the configuration files of its folder, and starts, changes and ends the
instances that they describe. One instance is in :mod:`cdc.server.instance`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError, ConfigError, UsageError
from cdc.base.log import get_logger
from cdc.base.units import iso_time
from cdc.server.destinations import is_served, unserved
from cdc.server.instance import Instance, SharedParts, shown_error
from cdc.server.metrics import InstanceNumbers
from cdc.server.processes import Log
from cdc.server.states import InstanceState

if TYPE_CHECKING:
    from cdc.server.folder import ConfigChange, ConfigFolder
    from cdc.server.processes import Log

_log = get_logger(__name__)


@dataclass(frozen=True)
class _NoInstance:
    """Why there is no instance of a configuration file: it cannot be used (FAILED), or gives the server nothing to do
    (UNSERVED)."""

    state: InstanceState
    error: CdcError
    since: datetime = field(default_factory=lambda: datetime.now(UTC))


class Instances:
    """All instances of a server, by name. Used in the event loop alone."""

    def __init__(self, folder: ConfigFolder, surroundings: SharedParts) -> None:
        self._folder, self._surroundings = folder, surroundings
        self._instances: dict[str, Instance] = {}
        self._closed: dict[str, _NoInstance] = {}
        """Why there is no instance of a configuration file."""
        self._logs: dict[str, Log] = {}
        self._scanning = asyncio.Lock()

    @property
    def folder(self) -> Path:
        """The folder of the configuration files."""
        return self._folder.folder

    def __iter__(self) -> Iterator[Instance]:
        return iter([self._instances[name] for name in sorted(self._instances)])

    def get(self, name: str) -> Instance:
        """Returns an instance. Raises UsageError if there is none, ConfigError if its file cannot be used."""
        if name in self._closed:
            raise self._closed[name].error.with_traceback(None)
        if name not in self._instances:
            names = ", ".join(sorted(self._instances))
            raise UsageError(
                f"the server has no instance {name!r}",
                remedy=f"It has: {names}." if names else "Add its configuration to the server's folder.",
            )
        return self._instances[name]

    def documents(self) -> list[dict[str, Any]]:
        """Returns the documents of all, those of files that cannot be used, or are not served, included."""
        documents = {instance.name: instance.document() for instance in self}
        documents |= {name: self._document_without_instance(name) for name in self._closed}
        return [documents[name] for name in sorted(documents)]

    def document(self, name: str) -> dict[str, Any]:
        """Returns the document of one. Raises UsageError if there is none."""
        return self._document_without_instance(name) if name in self._closed else self.get(name).document()

    def _document_without_instance(self, name: str) -> dict[str, Any]:
        reason = self._closed[name]
        return {
            "destination": name,
            "state": str(reason.state),
            "since": iso_time(reason.since),
            "error": shown_error(reason.error),
            "retry_at": None,
            "config": {
                "file": str(self._folder.folder / f"{name}.yaml"),
                "digest": None,
                "loaded": None,
                "problem": shown_error(reason.error) if reason.state is InstanceState.FAILED else None,
            },
            "leader": {"leads": False, "epoch": None, "holder": None, "servers": None},
            "serves": {"http": False, "canal": False},
            "capture": None,
            "push": None,
        }

    def log(self, name: str) -> Log:
        """Returns the log of an instance's processes. Raises UsageError."""
        if name not in self._closed:
            self.get(name)
        return self._log_of(name)

    def faults(self) -> dict[str, str]:
        """Returns what is wrong with instances, by name."""
        faults = {
            name: str(reason.error) for name, reason in self._closed.items() if reason.state is InstanceState.FAILED
        }
        for instance in self:
            if instance.state is InstanceState.FAILED and instance.error is not None:
                faults[instance.name] = str(instance.error)
            elif instance.problem is not None:
                faults[instance.name] = f"its configuration has changed, and cannot be used: {instance.problem}"
        return faults

    def states(self) -> Mapping[str, InstanceNumbers]:
        """Returns the states for the metrics."""
        states = {
            instance.name: InstanceNumbers(
                str(instance.state), instance.capture.restarts, instance.epoch, instance.takeovers
            )
            for instance in self
        }
        return states | {name: InstanceNumbers(str(reason.state), 0) for name, reason in self._closed.items()}

    # --- configurations

    async def start(self, changes: list[ConfigChange]) -> None:
        """Opens the instances of these configurations, and waits a while until they are open."""
        await asyncio.gather(*(self._apply(change) for change in changes))
        await asyncio.gather(*(instance.settled(10.0) for instance in self))

    async def watch(self, scan_s: float) -> None:
        """Follows the configuration files until it is cancelled."""
        while True:
            await asyncio.sleep(scan_s)
            try:
                await self.scan()
            except ConfigError as error:
                _log.warning("configurations cannot be looked at", reason=str(error))

    async def scan(self, *, at_once: bool = False) -> None:
        """Does what has changed in the folder; ``at_once``: every file and token is read again. Raises ConfigError if
        there is no folder."""
        async with self._scanning:
            changes = await self._surroundings.in_thread(lambda: self._folder.scan(at_once=at_once))
            await asyncio.gather(*(self._apply(change, with_secrets=at_once) for change in changes))

    async def _apply(self, change: ConfigChange, *, with_secrets: bool = False) -> None:
        name, config = change.name, change.config
        instance = self._instances.get(name)
        if change.error is not None:
            self._refuse(name, change.error)
        elif config is None or not is_served(config):
            self._closed.pop(name, None)
            if config is not None:
                reason = unserved(config)
                self._closed[name] = _NoInstance(InstanceState.UNSERVED, reason)
                _log.info("not served", destination=name, reason=reason.message)
            if instance is not None:
                _log.info("instance removed", destination=name)
                await instance.close()
                del self._instances[name]
                await self._surroundings.live.remove(name)
                self._logs.pop(name, None)
        else:
            try:
                if instance is None:
                    await self._surroundings.admit(config)
                    instance = self._instances[name] = Instance(config, self._surroundings, self._log_of(name))
                    instance.run()
                else:
                    await instance.change(config, with_secrets=with_secrets)
                self._closed.pop(name, None)
            except CdcError as error:
                self._refuse(name, error)

    def _refuse(self, name: str, error: CdcError) -> None:
        _log.error("configuration cannot be used", destination=name, reason=str(error))
        if name in self._instances:
            self._instances[name].problem = error
        else:
            self._closed[name] = _NoInstance(InstanceState.FAILED, error)

    def _log_of(self, name: str) -> Log:
        if name not in self._logs:
            make = self._surroundings.make_log
            self._logs[name] = Log() if make is None else make(name)
        return self._logs[name]

    async def hand_over(self) -> None:
        """Closes those that other servers have, too, so that another one leads while this one ends. Their clients are
        told to ask it."""
        await asyncio.gather(*(instance.close() for instance in self if instance.config.server.ha.enabled))

    async def close(self) -> None:
        """Closes all."""
        await asyncio.gather(*(instance.close() for instance in self))
