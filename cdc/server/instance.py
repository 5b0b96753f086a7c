"""One instance: a destination that a server runs, with its configuration, its service and its capture.

An instance is opened by the process that has its :class:`~cdc.server.leadership.Leadership`, and by no other. While it
is open, :class:`~cdc.server.live.LiveDestinations` has it, so that HTTP and Canal's clients reach it, and its capture
and its push run if ``server.capture`` and ``server.push`` say so.

Pages and commands read :meth:`Instance.document`, and act by :meth:`Instance.start`, :meth:`~Instance.stop` and
:meth:`~Instance.restart`. All of this runs in one event loop; files are read in threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CapacityLimiter

from cdc.base.errors import CdcError, NotLeaderError, RetryableError, StorageError
from cdc.base.log import get_logger
from cdc.base.units import iso_time
from cdc.config.watch import READ_AT_START
from cdc.server.destinations import ServedDestination
from cdc.server.leadership import Leadership, LocalLeadership
from cdc.server.memory import MemoryFolder, make_run_folder
from cdc.server.states import InstanceState
from cdc.server.stops import forget_stop, read_stop, record_stop
from cdc.server.supervisor import CaptureCommand, Pauses, ProcessState, PushCommand, Supervisor
from cdc.server.threads import in_thread
from cdc.wire.protocol import error_document

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.server.live import LiveDestinations
    from cdc.server.processes import Log, Spawner

_THREADS = 8
_STANDBY_S = 0.3
"""An instance that does not get its leadership within this time is a standby."""
_REOPENED = ("store", "meta")
"""Sections whose change closes the instance and opens it anew."""
_READ_BY_PUSH = ("source", "tables", "batch", "mq", "metrics")
"""Sections that a push reads once, when it starts."""
_T = TypeVar("_T")
_log = get_logger(__name__)


@dataclass(frozen=True)
class Timings:
    """Times for which an instance waits, in seconds; tests have shorter ones."""

    look_s: float = 2.0
    """The interval at which subscriptions are looked at, with ``server.capture: subscribed``."""
    linger_s: float = 60.0
    """The time that a capture goes on after the last subscription has ended."""
    begin_s: float = 30.0
    """The time that a subscription waits for the first capture."""
    first_pause_s: float = 1.0
    longest_pause_s: float = 60.0
    """The pauses before an instance that could not be opened is opened again."""
    processes: Pauses = field(default_factory=Pauses)


@dataclass(frozen=True)
class SharedParts:
    """The parts that all instances of a process share."""

    live: LiveDestinations
    spawner: Spawner
    admit: Callable[[DestinationConfig], Awaitable[None]]
    """Prepares the process for a destination, such as its port. Raises ConfigError if the process cannot have it."""
    leadership: Callable[[DestinationConfig], Leadership] = LocalLeadership
    timings: Timings = Timings()
    make_log: Callable[[str], Log] | None = None
    """Makes the log of the processes of a destination."""
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_THREADS))

    async def in_thread(self, run: Callable[[], _T]) -> _T:
        """Runs work that waits for a disk."""
        return await in_thread(run, self.threads)


class Instance:
    """One destination of a server."""

    def __init__(self, config: DestinationConfig, surroundings: SharedParts, log: Log) -> None:
        self.config = config
        self._surroundings = surroundings
        pauses = surroundings.timings.processes
        self.capture = Supervisor(CaptureCommand(), config, surroundings.spawner, pauses, log)
        self.push = Supervisor(PushCommand(), config, surroundings.spawner, pauses, log)
        self.problem: CdcError | None = None
        """Why the present configuration file is not the one that counts."""
        self.epoch: int | None = None
        """The epoch of the leadership; None while this process does not have it."""
        self.takeovers = 0
        """The number of times that this process has got the leadership."""
        self._leadership: Leadership | None = None
        self._served: ServedDestination | None = None
        self._state = InstanceState.STARTING
        self._since = datetime.now(UTC)
        self._loaded, self._digest = datetime.now(UTC), digest_of(config)
        self._error: CdcError | None = None
        self._retry_at: datetime | None = None
        self._failures = 0
        self._has_store = False
        self._asked_until = 0.0
        """Until when the capture runs without a subscription, because one is being made."""
        self._interrupt = asyncio.Event()
        """Ends the present turn: something has changed."""
        self._look = asyncio.Event()
        """Lets subscriptions be looked at now."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def processes(self) -> tuple[Supervisor, Supervisor]:
        """Its capture and its push."""
        return self.capture, self.push

    @property
    def state(self) -> InstanceState:
        """The state of the instance, which follows those of its capture and its push while they run."""
        if self._state is not InstanceState.RUNNING:
            return self._state
        if self.error is not None:
            return InstanceState.FAILED
        if self.capture.state is ProcessState.STARTING:
            return InstanceState.STARTING
        if self.capture.state is ProcessState.OFF and self.config.server.capture == "subscribed":
            return InstanceState.WAITING
        return self._state

    @property
    def error(self) -> CdcError | None:
        """Why it has failed."""
        return self._error or self.capture.error or self.push.error

    def document(self) -> dict[str, Any]:
        """Returns what people and programs see of it, as ``GET /v1/instances/DEST`` answers: see
        ``docs/formats/server.md``."""
        capture, push, modes = self.capture, self.push, self.config.server
        retry_at = self._retry_at or capture.retry_at or push.retry_at
        since = self._since
        if self._state is InstanceState.RUNNING:
            since = max(since, capture.since, push.since if modes.push != "none" else since)
        return {
            "destination": self.name,
            "state": str(self.state),
            "since": iso_time(since),
            "error": shown_error(self.error),
            "retry_at": None if retry_at is None else iso_time(retry_at),
            "config": {
                "file": str(self.config.file),
                "digest": self._digest,
                "loaded": iso_time(self._loaded),
                "problem": shown_error(self.problem),
            },
            "leader": {
                "leads": self.epoch is not None,
                "epoch": self.epoch,
                "holder": None if self._leadership is None else self._leadership.holder,
                "servers": None if self._leadership is None else self._leadership.servers,
            },
            "serves": {"http": bool(self.config.server.tokens), "canal": self.config.server.canal.enabled},
            "capture": {"mode": modes.capture, **capture.document()},
            "push": {"mode": modes.push, **push.document()},
        }

    async def subscriptions(self) -> list[str]:
        """Returns the names of the subscribers, as the meta has them. Raises CdcError."""
        served = self._served
        return (
            []
            if served is None
            else await self._surroundings.in_thread(lambda: sorted(served.meta.read().subscriptions))
        )

    # --- orders

    def run(self) -> None:
        """Begins to work. :meth:`close` ends it."""
        self._task = asyncio.create_task(self._work(), name=f"instance {self.name}")

    async def close(self) -> None:
        """Ends the processes and the service, and gives the leadership up. Clients keep what they have acked."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def settled(self, most_s: float) -> None:
        """Waits until it is open, or it is known why not."""
        await self._until(lambda: self._state is not InstanceState.STARTING, most_s)

    async def start(self) -> None:
        """Ends an operator's stop, and tries again now if it has failed. Raises StorageError, NotLeaderError."""
        self._require_no_standby()
        await self._surroundings.in_thread(lambda: forget_stop(self.config.meta))
        self._again()
        if self._state in (InstanceState.STOPPED, InstanceState.FAILED):
            await self._turn_over()
        await self.settled(60.0)

    async def stop(self) -> None:
        """Ends capture and service, until :meth:`start`, also of a server that is started later. Raises StorageError,
        NotLeaderError."""
        self._require_no_standby()
        await self._surroundings.in_thread(lambda: record_stop(self.config.meta))
        _log.info("instance stopped by an operator", destination=self.name)
        await self._turn_over()

    async def restart(self) -> None:
        """Closes it and opens it again; one that an operator has stopped stays so. Raises NotLeaderError."""
        self._require_no_standby()
        await self._turn_over()

    def _require_no_standby(self) -> None:
        """Leaves orders to the server that has the destination. Raises NotLeaderError."""
        if self._state is InstanceState.STANDBY and self._leadership is not None:
            raise self._leadership.error()

    async def change(self, config: DestinationConfig, *, with_secrets: bool = False) -> None:
        """Goes over to another configuration, with the least that it takes. ``with_secrets``: tokens are read again
        even if the configuration is the same. Raises ConfigError, and changes nothing then."""
        before = self.config
        if config == before and not with_secrets:
            self.problem = None
            self._again()
            if self._state is InstanceState.FAILED:
                self._interrupt.set()
            return
        await self._surroundings.admit(config)
        served = self._served
        changed = {name for name in type(config).model_fields if getattr(config, name) != getattr(before, name)}
        is_reopened = (
            served is None
            or self._state is InstanceState.FAILED
            or bool(changed.intersection(_REOPENED))
            or config.server.canal != before.server.canal
        )
        if is_reopened or served is None:
            await self._surroundings.in_thread(lambda: ServedDestination(config))  # raises if it cannot be served
        else:
            await self._surroundings.in_thread(lambda: served.take(config))
        self.config, self.problem = config, None
        self._loaded, self._digest = datetime.now(UTC), digest_of(config)
        for process in self.processes:
            process.take(config)
        if changed:
            _log.info("configuration changed", destination=self.name, sections=sorted(changed), reopened=is_reopened)
        if is_reopened:
            await self._turn_over()
            return
        self._decide_processes()
        self._look.set()
        if changed.intersection(_READ_BY_PUSH):
            await self.push.replace()
        if changed.intersection(READ_AT_START):
            await self.capture.replace()
        elif "tables" in changed:
            self.capture.reload()
        else:
            self._again()

    def _again(self) -> None:
        """Starts processes that have failed, or pause, at once."""
        for process in self.processes:
            process.again()

    async def _turn_over(self) -> None:
        self._become(InstanceState.STARTING)
        self._interrupt.set()
        await self.settled(60.0)

    # --- work

    async def _work(self) -> None:
        while True:
            self._interrupt.clear()
            try:
                await self._open_and_lead()
                self._failures = 0
            except CdcError as error:
                await self._pause(error)
            except Exception:  # noqa: BLE001 - the process serves others, too
                _log.exception("instance failed", destination=self.name)
                await self._pause(RetryableError("the server failed", place=self.name, remedy="Its log says why."))

    async def _pause(self, error: CdcError) -> None:
        """Waits until the instance is tried again: after a while, or when something has changed."""
        timings = self._surroundings.timings
        pause_s = min(timings.longest_pause_s, timings.first_pause_s * 2 ** min(self._failures, 30))
        pause_s *= random.uniform(0.5, 1.0)
        self._failures += 1
        self._become(InstanceState.FAILED, error)
        if error.retryable:
            self._retry_at = datetime.now(UTC) + timedelta(seconds=pause_s)
        _log.error("instance cannot be opened", destination=self.name, reason=str(error))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._interrupt.wait(), pause_s if error.retryable else None)
        if self._interrupt.is_set():
            self._failures = 0

    async def _open_and_lead(self) -> None:
        """Opens the instance and keeps it open, until the leadership is lost or something has changed. Raises
        CdcError."""
        surroundings, config = self._surroundings, self.config
        self._become(InstanceState.STARTING)
        await surroundings.admit(config)
        if config.store.in_memory:
            await surroundings.in_thread(lambda: make_run_folder(config))
        leadership = surroundings.leadership(config)
        served = await surroundings.in_thread(lambda: ServedDestination(config, leadership))
        if config.server.ha.enabled:  # clients ask another server meanwhile
            await surroundings.live.suspend(served, leadership.error())
        stop = await surroundings.in_thread(lambda: read_stop(config.meta))
        if stop is not None:
            error = _not_served(
                config,
                f"an operator has stopped this destination at {iso_time(stop.at)}",
                f"Start it with `cdc instance start {config.name}`.",
            )
            await surroundings.live.suspend(served, error)
            self._become(InstanceState.STOPPED)
            await self._until_started(config)
            return
        self._leadership = leadership
        try:
            if not await self._acquire(leadership, served) or self._interrupt.is_set():
                return
            if await surroundings.in_thread(lambda: read_stop(config.meta)) is None:  # while this server waited
                await self._lead(leadership, served)
        finally:
            self.epoch = None
            await leadership.release()
            await self.capture.drop_ready()

    async def _until_started(self, config: DestinationConfig) -> None:
        """Waits until the stop is over, or something has changed. An operator may start the destination at another
        server of the machine."""
        while not self._interrupt.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._interrupt.wait(), self._surroundings.timings.look_s)
            if await self._surroundings.in_thread(lambda: read_stop(config.meta)) is None:
                return

    async def _acquire(self, leadership: Leadership, served: ServedDestination) -> bool:
        """Waits for the leadership. Returns False if something has changed before."""
        config = self.config
        acquired = asyncio.ensure_future(leadership.acquire())
        ready: asyncio.Future[None] | None = None
        try:
            await self._first_of({acquired}, _STANDBY_S)
            if not acquired.done() and not self._interrupt.is_set():
                await self._surroundings.live.suspend(served, leadership.error())
                self._become(InstanceState.STANDBY)
                _log.info("another server has the destination", destination=self.name, holder=leadership.holder)
                if config.server.ha.enabled and config.server.capture != "none":
                    ready = asyncio.ensure_future(self.capture.keep_ready())
                await self._first_of({acquired}, None)
            if not acquired.done():
                return False
            self.epoch = acquired.result()
            self.takeovers += 1
            return True
        finally:
            if ready is not None:
                ready.cancel()
                with suppress(asyncio.CancelledError):
                    await ready
            acquired.cancel()
            with suppress(asyncio.CancelledError, CdcError):
                await acquired

    async def _lead(self, leadership: Leadership, served: ServedDestination) -> None:
        config = self.config
        if not config.store.in_memory:
            await self._serve(leadership, served)
            return
        folder = MemoryFolder(config)
        try:
            await self._surroundings.in_thread(lambda: folder.begin(served.meta))
            await self._serve(leadership, served)
        finally:
            await self._surroundings.in_thread(folder.end)

    async def _serve(self, leadership: Leadership, served: ServedDestination) -> None:
        config = self.config
        lost = asyncio.ensure_future(leadership.lost())
        captures = config.server.capture != "none"
        served.begin = (lambda: self._begin(served)) if captures else None
        self._served, self._has_store = served, False
        work: list[asyncio.Future[None]] = [
            *(asyncio.ensure_future(process.run()) for process in self.processes),
            asyncio.ensure_future(self._follow(served)),
        ]
        reason = "the server is stopping, or opens the destination anew"
        try:
            self._surroundings.live.open(served)
            self._decide_processes()
            self._become(InstanceState.RUNNING)
            _log.info("instance open", destination=self.name, epoch=self.epoch)
            await self._first_of({lost, *work}, None)
            for task in work:
                if task.done():
                    task.result()  # raises what has ended it
            if lost.done():
                reason = lost.result()
                _log.warning("leadership lost", destination=self.name, reason=reason)
        finally:
            self._served = None
            self._become(InstanceState.STARTING)
            lost.cancel()
            for task in work:
                task.cancel()
            error = _not_served(config, f"the destination is not served now: {reason}", None)
            await self._surroundings.live.suspend(served, error)
            if config.server.ha.enabled:  # the capture writes a store that no other server uses
                await leadership.release()
            await asyncio.gather(lost, *work, return_exceptions=True)

    async def _first_of(self, tasks: set[asyncio.Future[Any]], most_s: float | None) -> None:
        """Waits for one of the tasks, but not longer than until something has changed."""
        interrupted = asyncio.ensure_future(self._interrupt.wait())
        try:
            await asyncio.wait({*tasks, interrupted}, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            interrupted.cancel()

    # --- capture

    def _decide_processes(self) -> None:
        self.push.want(self.config.server.push == "always")
        mode = self.config.server.capture
        if mode != "subscribed":
            self.capture.want(mode == "always")
        served = self._served
        if served is not None:
            served.begin = None if mode == "none" else (lambda: self._begin(served))

    async def _follow(self, served: ServedDestination) -> None:
        """Lets capture run while somebody subscribes, if it is configured like that."""
        last: float | None = None
        while True:
            self._look.clear()
            if self.config.server.capture == "subscribed":
                try:
                    subscribed = await self._surroundings.in_thread(lambda: bool(served.meta.read().subscriptions))
                except CdcError as error:
                    _log.warning("subscriptions cannot be read", destination=self.name, reason=str(error))
                else:
                    now = time.monotonic()
                    if subscribed:
                        last, self._asked_until = now, 0.0
                    lingers = last is not None and now - last < self._surroundings.timings.linger_s
                    self.capture.want(subscribed or lingers or now < self._asked_until)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._look.wait(), self._surroundings.timings.look_s)

    async def _begin(self, served: ServedDestination) -> None:
        """Waits until the first capture has made the store. Raises its error, or StorageError if it takes too long."""
        if self._has_store:
            return
        most_s = self._surroundings.timings.begin_s
        deadline = time.monotonic() + most_s
        while not await self._surroundings.in_thread(served.is_readable):
            if self.capture.error is not None:
                raise self.capture.error.with_traceback(None)
            if time.monotonic() > deadline or self._served is not served:
                raise StorageError(
                    f"nothing was captured yet, and the first capture has not begun within {most_s:g} s",
                    place=self.name,
                    remedy=f"Subscribe again; `cdc instance logs {self.name}` tells what it does.",
                )
            self._asked_until = time.monotonic() + 2 * most_s
            self._look.set()
            await asyncio.sleep(0.1)
        # The subscription that waits comes after this, so capture must not end for want of one before.
        self._asked_until = time.monotonic() + 2 * most_s
        self._has_store = True

    # --- state

    def _become(self, state: InstanceState, error: CdcError | None = None) -> None:
        self._error, self._retry_at = error, None
        if state is not self._state:
            self._state, self._since = state, datetime.now(UTC)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _until(self, condition: Callable[[], bool], most_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while not condition():
                    await self._changed.wait()


def _not_served(config: DestinationConfig, message: str, remedy: str | None) -> CdcError:
    """Returns the error for clients of a destination that this server does not serve now. Where there are several
    servers, it lets clients ask another one."""
    kind = NotLeaderError if config.server.ha.enabled else RetryableError
    return kind(message, place=config.name, remedy=remedy)


def digest_of(config: DestinationConfig) -> str:
    """Returns what tells one configuration from another: a digest of all settings, those left out included."""
    text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def shown_error(error: CdcError | None) -> dict[str, Any] | None:
    """Returns an error as documents have it."""
    if error is None:
        return None
    document: dict[str, Any] = error_document(error)["error"]
    return document
