"""The leadership of a destination among several servers: one of them runs it.

An instance asks its :class:`Leadership` before it opens anything of its destination, and gives everything up when the
leadership is lost. Another implementation, for servers on several machines, is given to
:class:`~cdc.server.embedded.EmbeddedServer` as ``leadership``, a function of the configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, TypeAlias

from anyio import CapacityLimiter

from cdc.base.errors import LeaseHeldError, NotLeaderError
from cdc.disk.durable import locked
from cdc.disk.permissions import CHANGE, secure_folder
from cdc.meta.file import SERVER_LOCK_NAME
from cdc.server.threads import in_thread

if TYPE_CHECKING:
    from cdc.base.errors import CdcError
    from cdc.config import DestinationConfig

Fence: TypeAlias = Callable[[], tuple[str, int]]
_AGAIN_S = 1.0


class Leadership(Protocol):
    """The right to run one destination: at most one process has it. All calls are made in one event loop, by one
    instance: ``acquire``, then ``lost`` until it returns or is cancelled, then ``release``."""

    @property
    def holder(self) -> str | None:
        """The holder of the leadership while this process waits for it, as text for people; None if it is not known."""
        ...

    @property
    def servers(self) -> Sequence[str] | None:
        """The addresses of all servers that have the destination and are up; None: not known."""
        ...

    @property
    def fence(self) -> Fence | None:
        """The check that each change of the meta makes, so that it fails once another process has the right; None if
        nothing could take it away. See :class:`~cdc.meta.zookeeper.ZooKeeperMeta`."""
        ...

    def require(self) -> int:
        """Returns the epoch, 0 if nothing counts epochs. Raises what :meth:`error` returns unless this process has the
        right now, and no other one can have it. Called before each answer, in any thread."""
        ...

    def error(self) -> CdcError:
        """Returns the error for requests that only the process with the right may answer."""
        ...

    async def acquire(self) -> int:
        """Waits until this process has the right, and returns its epoch: a number that is higher than all before it,
        or 0 if nothing counts epochs. Raises CdcError if the right cannot be asked for."""
        ...

    async def lost(self) -> str:
        """Waits until the right is lost, and returns why."""
        ...

    async def release(self) -> None:
        """Gives the right up, once nothing of this process uses it any more. Also called if ``acquire`` failed or was
        cancelled."""
        ...


class LocalLeadership:
    """The right of a process on this machine, by a lock that the operating system releases when the process dies."""

    def __init__(self, config: DestinationConfig) -> None:
        self._config = config
        self._held = ExitStack()
        self._threads = CapacityLimiter(1)
        self.holder: str | None = None
        self.servers: Sequence[str] | None = None
        self.fence: Fence | None = None

    def require(self) -> int:
        return 0  # the lock lasts as long as the process

    def error(self) -> CdcError:
        return NotLeaderError(
            "another server on this machine has this destination, and this one waits for it",
            place=self._config.name,
            remedy="Ask the other one, or end it.",
        )

    async def acquire(self) -> int:
        while not await in_thread(self._try, self._threads):  # noqa: ASYNC110 - another process releases the lock
            await asyncio.sleep(_AGAIN_S)
        self.holder = None
        return 0

    def _try(self) -> bool:
        meta = self._config.meta
        secure_folder(meta.path, meta.permissions, CHANGE)
        try:
            self._held.enter_context(locked(meta.path / SERVER_LOCK_NAME, "another cdc server"))
        except LeaseHeldError as error:
            self.holder = error.message
            return False
        return True

    async def lost(self) -> str:
        await asyncio.Event().wait()  # the lock lasts as long as the process
        raise AssertionError

    async def release(self) -> None:
        await in_thread(self._held.close, self._threads)
