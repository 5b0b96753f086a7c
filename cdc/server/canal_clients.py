"""The client ids of the destinations that a process serves, and when their stores grow."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from anyio import CapacityLimiter

from cdc.base.errors import CdcError, NotLeaderError, UsageError
from cdc.base.log import get_logger
from cdc.canal.zones import zone_of
from cdc.server.canal_cursor import SAVE_S, ClientCursor, subscriber_of
from cdc.server.threads import in_thread

if TYPE_CHECKING:
    from cdc.config.server import CanalConfig
    from cdc.server.destinations import ServedDestination, ServerCounters
    from cdc.server.live import LiveDestinations

_THREADS, _WATCH_THREADS = 8, 2
_WATCH_S = 0.02
_PARK_S = 600.0
"""The time for which the batches of a client id without connections are remembered."""
_KEEP_S = 30.0
"""The interval at which leases are renewed."""
_PREPARED_S = 2.0
"""The time that a batch that was made ahead waits for its client."""
_MOST_PREPARED = 4
"""The number of clients that have a batch made ahead at a time."""
_CLIENT_ID = re.compile(r"-?\d{1,5}")
_T = TypeVar("_T")
_log = get_logger(__name__)


class Client:
    """A client id: its batches, and the connections that use it."""

    def __init__(self, destination: str, cursor: ClientCursor) -> None:
        self.destination = destination
        self.cursor = cursor
        self.lock = asyncio.Lock()
        """Held while the cursor is used."""
        self.connections = 0
        self.users: set[asyncio.Task[None]] = set()
        """The connections' tasks."""
        self.left = time.monotonic()
        """When its last connection went."""
        self.preparing: asyncio.Task[None] | None = None
        """Makes the next batch before the client asks for it, and drops it if it does not ask."""

    @property
    def is_preparing(self) -> bool:
        """Whether a batch is made ahead, or waits for the client."""
        return self.preparing is not None and not self.preparing.done()

    def end_preparing(self) -> None:
        """Ends the wait for the client, which has asked. Call it with the lock."""
        if self.preparing is not None:
            self.preparing.cancel()
            self.preparing = None


class Clients:
    """All client ids. Used in the event loop alone; work on disks is done in threads."""

    def __init__(self, config: CanalConfig, live: LiveDestinations, counters: ServerCounters) -> None:
        """``config``: what all destinations of the process agree on."""
        self.config, self._live, self.counters = config, live, counters
        self._zone = zone_of(self.config.time_zone)
        self._clients: dict[tuple[str, int], Client] = {}
        self._left: dict[tuple[str, str], float] = {}
        """When the last connection of a subscriber went, by destination and subscriber; infinite while it has one."""
        self._began = time.monotonic()
        self.logged_in = 0
        """Connections that have logged in."""
        self._threads, self._watch_threads = CapacityLimiter(_THREADS), CapacityLimiter(_WATCH_THREADS)
        self._waiting: dict[str, int] = {}
        self._grown: dict[str, asyncio.Event] = {}
        self._seen: dict[str, tuple[int | None, bool] | None] = {}
        self._versions: dict[str, int] = {}

    def client(self, destination: str, client_id: str) -> Client:
        """Returns a client id of a destination. Raises UsageError."""
        served = self._served(destination)
        served.require_leader()
        if not _CLIENT_ID.fullmatch(client_id) or not -32768 <= int(client_id) <= 32767:
            raise UsageError(f"the clientId {client_id!r} is not a number from -32768 to 32767")
        key = (destination, int(client_id))
        if key not in self._clients:
            if len(self._clients) >= 4 * self.config.max_clients:
                raise UsageError("too many client ids are in use", remedy="Try again later.")
            self._clients[key] = Client(destination, ClientCursor(served, key[1], self._zone))
        return self._clients[key]

    def _served(self, destination: str) -> ServedDestination:
        served = self._live.get(destination)
        if served is None or not served.config.server.canal.enabled:
            suspended = self._live.suspended(destination)
            if suspended is not None and isinstance(suspended[1], NotLeaderError):
                raise suspended[1].with_traceback(None)
            raise UsageError(
                f"destination:{destination} should start first",
                remedy="Name one that the server serves." if suspended is None else str(suspended[1]),
            )
        return served

    def require_leader(self, destination: str) -> None:
        """Raises NotLeaderError if another server may serve the destination."""
        self._served(destination).require_leader()

    async def begin(self, destination: str) -> None:
        """Waits until the destination has a store, if the server captures it by itself. Raises CdcError."""
        served = self._served(destination)
        if served.begin is not None:
            await served.begin()

    def enter(self, client: Client) -> None:
        """Notes that the connection of this task uses a client id."""
        client.connections += 1
        self._left[client.destination, client.cursor.subscriber] = math.inf
        task = asyncio.current_task()
        assert task is not None
        client.users.add(task)

    def leave(self, client: Client) -> None:
        """Notes that the connection of this task does not use a client id any more."""
        client.connections -= 1
        client.left = time.monotonic()
        if not client.connections:
            self._left[client.destination, client.cursor.subscriber] = client.left
        task = asyncio.current_task()
        assert task is not None
        client.users.discard(task)
        key = (client.destination, client.cursor.client_id)
        is_unused = not client.connections and client.cursor.is_idle and not client.lock.locked()
        if is_unused and self._clients.get(key) is client:
            client.end_preparing()
            del self._clients[key]

    async def drop(self, served: ServedDestination) -> None:
        """Disconnects the clients of a destination that is not served any more, and keeps what they have acked."""
        gone = [(key, client) for key, client in self._clients.items() if key[0] == served.name]
        for key, client in gone:
            for task in client.users:
                task.cancel()
            del self._clients[key]
        for key, client in gone:
            await self._park(key, client)

    def require_room(self, client: Client, destination: str) -> None:
        """Refuses a new subscription if there are as many as clients may have: each holds back retention. One that was
        never used gives way, once its client is gone for a while: anybody can make many. Raises UsageError."""
        served = self._served(destination)
        subscriptions = served.meta.read().subscriptions
        if client.cursor.subscriber in subscriptions:
            return
        of_canal = [name for name in subscriptions if name.startswith(subscriber_of(0)[:-1])]
        if len(of_canal) < self.config.max_clients:
            return
        for name in of_canal:
            gone_s = time.monotonic() - self._left.get((destination, name), self._began)
            if not subscriptions[name].was_used and gone_s > _PARK_S:
                served.batches.unsubscribe(name)
                _log.warning("a subscription that was never used gives way", destination=destination, subscriber=name)
                return
        raise UsageError(
            f"destination:{destination} has {self.config.max_clients} subscriptions of Canal's clients already",
            remedy="Unsubscribe the client ids that are not used any more, or raise server.canal.max_clients.",
        )

    def count(self, destination: str, operation: str, outcome: str) -> None:
        """Counts a request; those of unknown destinations together."""
        self.counters.count("" if self._live.get(destination) is None else destination, operation, outcome)

    async def in_thread(self, run: Callable[[], _T]) -> _T:
        """Runs work that waits for a disk or a decoder."""
        return await in_thread(run, self._threads)

    @property
    def is_full(self) -> bool:
        """Whether as many clients have logged in as may."""
        return self.logged_in >= self.config.max_clients

    @property
    def full_text(self) -> str:
        return f"the server has {self.config.max_clients} clients already"

    # --- batches that are made ahead

    def prepare(self, client: Client, max_bytes: int) -> None:
        """Begins to make the client's next batch, so that it is there when the client has worked off the last one. A
        few clients have one at a time, for a short while: each is an answer in memory."""
        if client.is_preparing or sum(other.is_preparing for other in self._clients.values()) >= _MOST_PREPARED:
            return
        client.preparing = asyncio.create_task(self._prepare(client, max_bytes))

    async def _prepare(self, client: Client, max_bytes: int) -> None:
        async with client.lock:
            batch = await self.in_thread(lambda: client.cursor.prepare(max_bytes))
        if batch is not None:
            await asyncio.sleep(_PREPARED_S)
            async with client.lock:
                await self.in_thread(lambda: client.cursor.drop_prepared(batch))

    # --- growth of stores

    def version(self, destination: str) -> int:
        """A number that rises when the store grows while clients wait for it."""
        return self._versions.get(destination, 0)

    async def wait_for_growth(self, destination: str, version: int, most_s: float) -> None:
        """Waits until the store has more than at that version, at most so long."""
        if version != self.version(destination):
            return
        self._waiting[destination] = self._waiting.get(destination, 0) + 1
        event = self._grown.setdefault(destination, asyncio.Event())
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), most_s)
        finally:
            self._waiting[destination] -= 1

    async def watch(self) -> None:
        """Looks, until it is cancelled, for what stores have got that clients wait for."""
        while True:
            await asyncio.sleep(_WATCH_S)
            for name, count in list(self._waiting.items()):
                if not count:
                    self._seen.pop(name, None)
                    continue
                try:
                    end = await in_thread(partial(self._end_of, name), self._watch_threads)
                except CdcError as error:
                    _log.warning("store cannot be read", destination=name, reason=str(error))
                    end = None
                if name not in self._seen or self._seen[name] != end:
                    self._seen[name] = end
                    self._versions[name] = self.version(name) + 1
                    self._grown.pop(name, asyncio.Event()).set()

    def _end_of(self, name: str) -> tuple[int | None, bool] | None:
        """Returns the end of a store, and whether it has no room for more."""
        served = self._live.get(name)
        return None if served is None else (served.reader().last_seq(), served.is_full)

    # --- upkeep

    async def keep(self) -> None:
        """Saves what clients have acked, renews leases, and forgets the batches of clients that are gone, until it is
        cancelled."""
        kept_at = time.monotonic()
        while True:
            await asyncio.sleep(SAVE_S)
            for client in list(self._clients.values()):
                if (
                    client.cursor.has_unsaved and not client.lock.locked()
                ):  # one that is served saves when its client acks
                    async with client.lock:
                        await self.in_thread(client.cursor.save)
            if time.monotonic() - kept_at < _KEEP_S:
                continue
            kept_at = time.monotonic()
            for key, client in list(self._clients.items()):
                if client.lock.locked():  # it is being served, and renews its leases itself
                    continue
                async with client.lock:
                    if self._clients.get(key) is not client:  # its destination was closed
                        continue
                    try:
                        if client.connections or time.monotonic() - client.left < _PARK_S:
                            await self.in_thread(client.cursor.renew)
                            continue
                        client.end_preparing()
                        await self.in_thread(client.cursor.park)
                    except CdcError as error:
                        _log.warning("client's batches are rolled back", client=key[1], reason=str(error))
                        await self.in_thread(client.cursor.forget)
                    if not client.connections:
                        self._clients.pop(key, None)

    async def close(self) -> None:
        """Keeps what clients have acked, and rolls back the rest."""
        for key, client in list(self._clients.items()):
            await self._park(key, client)
        self._clients.clear()

    async def _park(self, key: tuple[str, int], client: Client) -> None:
        async with client.lock:
            client.end_preparing()
            try:
                await self.in_thread(client.cursor.park)
            except CdcError as error:
                _log.warning("client's batches are not rolled back", client=key[1], reason=str(error))
