"""A command that an instance runs, ``cdc capture DEST`` or ``cdc push DEST``: a child process that is started again
when it ends."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from anyio import CapacityLimiter

from cdc.base.errors import CdcError, PermanentError, RetryableError
from cdc.base.log import get_logger
from cdc.base.units import iso_time
from cdc.disk.durable import find_holder
from cdc.server.processes import Child, Log, Spawner
from cdc.server.threads import in_thread
from cdc.store.formats.state import is_locked, read_capture_state

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

_BEGIN_LOOK_S = 0.25
"""The interval at which the server looks whether a new process has begun its work."""
_LOOK_S = 2.0
"""The interval at which a process outside the server is looked at."""
_READY_AGAIN_S = 60.0
"""The pause after which a process that waits to become the capture, and has ended, is started again."""
_SETTLED_S = 60.0
"""A process that has run for so long begins anew with the shortest pause when it ends."""
_log = get_logger(__name__)


class ProcessState(StrEnum):
    """The state of a command that an instance runs."""

    OFF = "off"
    """It is not wanted."""
    STARTING = "starting"
    """Its process runs, and has not begun its work: a capture to read the source."""
    RUNNING = "running"
    OUTSIDE = "outside"
    """Another process, which the server has not started, does the work."""
    RETRYING = "retrying"
    """It has ended, and is started again after a pause."""
    FAILED = "failed"
    """It has ended with exit code 2, and is started again when its configuration changes or somebody says so."""


@dataclass(frozen=True)
class Pauses:
    """Times for processes, in seconds; tests have shorter ones."""

    first_s: float = 1.0
    """The pause before the second start; each further one is twice as long."""
    longest_s: float = 60.0
    stop_s: float = 30.0
    """The time that a process may take to end before it is killed."""


class Command(Protocol):
    """A command that works on one destination, one process at a time."""

    name: str

    def find_process(self, config: DestinationConfig) -> int | None:
        """Returns the process that does the work now; 0 if it has not said which; None if there is none. What is in
        the way of an answer is the business of the process that is started."""


class CaptureCommand:
    """``cdc capture``."""

    name = "capture"

    def find_process(self, config: DestinationConfig) -> int | None:
        store = config.store.path
        try:
            if not is_locked(store):
                return None
            state = read_capture_state(store)
        except CdcError:
            return None
        return state.pid if state is not None and state.running else 0


class PushCommand:
    """``cdc push``."""

    name = "push"

    def find_process(self, config: DestinationConfig) -> int | None:
        try:
            return find_holder(config.meta.path / config.mq.lock_name)
        except CdcError:
            return None


class Supervisor:
    """Keeps a command running while it is wanted. Used in the event loop alone; :meth:`run` does the work."""

    def __init__(self, command: Command, config: DestinationConfig, spawner: Spawner, pauses: Pauses, log: Log) -> None:
        self._command, self._config, self._spawner, self._pauses = command, config, spawner, pauses
        self._lines = Log(lambda line: log.add(line.encode()))
        """What its processes have written; ``log`` has it too, among that of the instance's other command."""
        self.state = ProcessState.OFF
        self.pid: int | None = None
        """The id of the running process, which somebody else may have started."""
        self.since = datetime.now(UTC)
        """When it got into this state."""
        self.restarts = 0
        self.exit_code: int | None = None
        """The exit code of the last process that ended by itself."""
        self.error: CdcError | None = None
        """Why it has ended, until it works again."""
        self.retry_at: datetime | None = None
        self._is_wanted = False
        self._failures = 0
        self._child: Child | None = None
        self._ready: Child | None = None
        """A process that waits to become the capture."""
        self._is_replaced = False
        """Whether the present process was asked to make room for the next one."""
        self._wake = asyncio.Event()
        self._threads = CapacityLimiter(1)

    def document(self) -> dict[str, Any]:
        """Returns what people and programs see of it."""
        return {
            "state": str(self.state),
            "pid": self.pid or None,
            "since": iso_time(self.since),
            "restarts": self.restarts,
            "exit_code": self.exit_code,
        }

    # --- orders

    def want(self, is_wanted: bool) -> None:
        """Says whether it should run."""
        if is_wanted != self._is_wanted:
            self._is_wanted = is_wanted
            self._wake.set()

    def again(self) -> None:
        """Starts a command that has failed, or pauses, at once."""
        self._failures = 0
        if self.state in (ProcessState.FAILED, ProcessState.RETRYING):
            self._become(ProcessState.STARTING if self._is_wanted else ProcessState.OFF)
            self._wake.set()

    def take(self, config: DestinationConfig) -> None:
        """Goes over to another configuration, for what is started next."""
        self._config = config

    async def replace(self) -> None:
        """Ends the present process; the next one reads the configuration anew."""
        child = self._child
        if child is None:
            self.again()
            return
        self._is_replaced = True
        await child.stop(self._pauses.stop_s)

    def reload(self) -> None:
        """Lets a capture read the tables of its configuration again."""
        if self._child is not None:
            self._child.send(signal.SIGHUP)
        else:
            self.again()

    # --- a capture that waits

    async def keep_ready(self) -> None:
        """Keeps a process that has loaded everything, and becomes the next capture, until it is cancelled. The process
        stays then, until :meth:`run` uses it or :meth:`drop_ready` ends it."""
        while True:
            try:
                self._ready = await self._spawner.start(self._arguments(), self._lines, waits=True)
            except CdcError as error:
                reason = str(error)
            else:
                code = await self._ready.wait()
                reason = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
            _log.warning("no capture is ready for a takeover", destination=self._config.name, reason=reason)
            await asyncio.sleep(_READY_AGAIN_S)

    async def drop_ready(self) -> None:
        """Ends the process that waits, if there is one. It holds nothing."""
        child, self._ready = self._ready, None
        if child is not None:
            child.send(signal.SIGKILL)
            await child.wait()

    def _take_ready(self) -> Child | None:
        child, self._ready = self._ready, None
        if child is None or child.has_ended:
            return None
        child.begin()
        return child

    def _arguments(self) -> list[str]:
        return ["--conf-dir", str(self._config.file.parent), self._command.name, self._config.name]

    # --- work

    async def run(self) -> None:
        """Starts processes until it is cancelled, which ends the present one cleanly."""
        try:
            while True:
                self._wake.clear()
                if not self._is_wanted:
                    self._become(ProcessState.OFF)
                    await self._wake.wait()
                elif self.state is ProcessState.FAILED:
                    await self._wake.wait()
                elif self.state is ProcessState.RETRYING:
                    assert self.retry_at is not None
                    left_s = (self.retry_at - datetime.now(UTC)).total_seconds()
                    if not await self._woken(left_s):
                        self._become(ProcessState.STARTING)
                elif (pid := await self._outside()) is not None:
                    self._become(ProcessState.OUTSIDE, pid)
                    await self._woken(_LOOK_S)
                else:
                    await self._once()
        finally:
            self._is_wanted = False
            if self._child is not None:
                await self._child.stop(self._pauses.stop_s)
            self._become(ProcessState.OFF)

    async def _woken(self, most_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(0.0, most_s))
        return self._wake.is_set()

    async def _outside(self) -> int | None:
        """Returns the process that does the work already; 0 if it has not said which; None if there is none."""
        return await in_thread(lambda: self._command.find_process(self._config), self._threads)

    async def _once(self) -> None:
        """Runs one process to its end."""
        config, name = self._config, self._command.name
        self._become(ProcessState.STARTING)
        try:
            child = self._take_ready() or await self._spawner.start(self._arguments(), self._lines)
        except CdcError as error:
            self._failed(error)
            return
        self._child, self._is_replaced = child, False
        self._become(ProcessState.STARTING, child.pid)
        _log.info(f"{name} started", destination=config.name, pid=child.pid)
        ended = asyncio.ensure_future(child.wait())
        try:
            while not ended.done() and self._is_wanted:
                woken = asyncio.ensure_future(self._wake.wait())
                look_s = _BEGIN_LOOK_S if self.state is ProcessState.STARTING else None
                await asyncio.wait({ended, woken}, timeout=look_s, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                self._wake.clear()
                if look_s is not None and await self._outside() == child.pid:
                    self._become(ProcessState.RUNNING, child.pid)
            if not ended.done():
                await child.stop(self._pauses.stop_s)
                self._child = None
                return
        finally:
            ended.cancel()
        self._child = None
        if self.state is ProcessState.RUNNING and (datetime.now(UTC) - self.since).total_seconds() > _SETTLED_S:
            self._failures = 0
        code = await child.wait()
        if self._is_replaced:
            self._failures = 0
            return
        self.exit_code = code
        message = self._last_words()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        text = f"{name} {how}" + (f": {message}" if message else "")
        place, remedy = self._config.name, f"`cdc instance logs {self._config.name}` shows its log."
        if code == 2:
            _log.error(f"{name} has failed", destination=config.name, reason=message)
            self.error = PermanentError(
                text, place=place, remedy=f"Change the configuration, or run `cdc instance start {config.name}`."
            )
            self._become(ProcessState.FAILED)
        else:
            self._failed(RetryableError(text, place=place, remedy=remedy))

    def _failed(self, error: CdcError) -> None:
        pause_s = min(self._pauses.longest_s, self._pauses.first_s * 2 ** min(self._failures, 30))
        pause_s *= random.uniform(0.5, 1.0)  # processes of one source do not all come back at the same moment
        self._failures += 1
        self.restarts += 1
        self.error = error
        self._become(ProcessState.RETRYING)
        self.retry_at = datetime.now(UTC) + timedelta(seconds=pause_s)
        _log.warning(
            f"{self._command.name} is started again",
            destination=self._config.name,
            reason=str(error),
            in_s=round(pause_s, 1),
        )

    def _last_words(self) -> str:
        """Returns the message with which ``cdc`` has ended."""
        for line in reversed(self._lines.last(20)):
            if line.text.startswith("cdc: "):
                return line.text.removeprefix("cdc: ")
        return ""

    def _become(self, state: ProcessState, pid: int | None = None) -> None:
        if state is not ProcessState.RETRYING:
            self.retry_at = None
        if state in (ProcessState.OFF, ProcessState.RUNNING, ProcessState.OUTSIDE):
            self.error = None
        self.pid = pid
        if state is not self.state:
            self.state, self.since = state, datetime.now(UTC)
