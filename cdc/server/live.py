"""The destinations that the server answers for now. The HTTP application and the Canal listener take theirs from here.

A destination is *open* while requests reach it. One that is *suspended* (stopped, led by another server) is known, so
its clients are told why they get nothing. Whoever has state for a destination, such as the connections of Canal's
clients, gives it up in a callback of :meth:`LiveDestinations.when_closed`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from anyio import CapacityLimiter

from cdc.server.threads import in_thread

if TYPE_CHECKING:
    from cdc.base.errors import CdcError
    from cdc.server.destinations import ServedDestination

_THREADS = 4


class LiveDestinations:
    """The destinations of a process, by name. Used in the event loop alone, or before it runs."""

    def __init__(self, served: Iterable[ServedDestination] = ()) -> None:
        """``served``: destinations that are open from the start."""
        self._open = {destination.name: destination for destination in served}
        self._suspended: dict[str, tuple[ServedDestination, CdcError]] = {}
        self._closing: list[Callable[[ServedDestination], Awaitable[None]]] = []
        self._threads: CapacityLimiter | None = None

    def __iter__(self) -> Iterator[ServedDestination]:
        """Iterates over those that are open."""
        return iter(list(self._open.values()))

    def names(self) -> list[str]:
        """Returns the names of those that are open."""
        return sorted(self._open)

    def get(self, name: str) -> ServedDestination | None:
        """Returns a destination that is open."""
        return self._open.get(name)

    def suspended(self, name: str) -> tuple[ServedDestination, CdcError] | None:
        """Returns a destination that is suspended, and what its clients are told."""
        suspended = self._suspended.get(name)
        return None if suspended is None else (suspended[0], suspended[0].refusal(suspended[1]))

    def when_closed(self, give_up: Callable[[ServedDestination], Awaitable[None]]) -> None:
        """Registers a callback for each destination that is suspended or removed. It is called when no new request
        reaches the destination any more, and before its locks are released."""
        self._closing.append(give_up)

    def open(self, served: ServedDestination) -> None:
        """Lets requests reach a destination."""
        self._suspended.pop(served.name, None)
        self._open[served.name] = served

    async def suspend(self, served: ServedDestination, error: CdcError) -> None:
        """Ends the service of a destination, if it was open. Requests for it fail with the error from now on."""
        self._suspended[served.name] = served, error
        await self._close(served.name)

    async def remove(self, name: str) -> None:
        """Ends the service of a destination, and forgets it."""
        self._suspended.pop(name, None)
        await self._close(name)
        self._suspended.pop(name, None)

    async def _close(self, name: str) -> None:
        served = self._open.pop(name, None)
        if served is None:
            return
        for give_up in self._closing:
            await give_up(served)
        if self._threads is None:
            self._threads = CapacityLimiter(_THREADS)
        await in_thread(served.close, self._threads)
