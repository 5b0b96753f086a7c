"""Waits for changes at servers, for all destinations of a process together: one request at a time to each server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from cdc.base.errors import CdcError
from cdc.base.log import get_logger
from cdc.wire.connection import Connection, LongPoll
from cdc.wire.protocol import LONGEST_WAIT_S, error_of

_LEAST_ROUND_S = 0.5
"""The least time from one request to the next."""
_LONGEST_PAUSE_S = 5.0
"""The longest pause after a request without an answer."""
_log = get_logger(__name__)


@dataclass(eq=False)
class _Watched:
    connection: Connection
    after_seq: int
    tell: Callable[[int | CdcError], object]


class ServerWatcher:
    """Tells whether destinations at servers have changes that no batch has yet. Used in event loops; each has requests
    of its own."""

    def __init__(self) -> None:
        self._polls: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str | None], _Poll]] = (
            WeakKeyDictionary()
        )

    def watch(
        self, connection: Connection, after_seq: int, tell: Callable[[int | CdcError], object]
    ) -> Callable[[], None]:
        """Calls ``tell`` in this event loop with the seq up to which the store has been filled, each time that it has
        got a transaction after ``after_seq`` and after what was told; or once with the error with which the server
        refuses to watch the destination, and not again. Returns what ends that.

        Of several servers each is asked, since one leads some destinations and another one others.
        """
        polls = self._polls.setdefault(asyncio.get_running_loop(), {})
        watched = _Watched(connection, after_seq, tell)
        of_servers = [
            polls.setdefault((url, connection.ca), _Poll(LongPoll(url, connection.ca, "changes")))
            for url in connection.urls
        ]
        for poll in of_servers:
            poll.add(watched)

        def end() -> None:
            for poll in of_servers:
                poll.remove(watched)

        return end


class _Poll:
    """The requests to one server."""

    def __init__(self, requests: LongPoll) -> None:
        self._requests = requests
        self._watched: list[_Watched] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, watched: _Watched) -> None:
        self._watched.append(watched)
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def remove(self, watched: _Watched) -> None:
        if watched in self._watched:
            self._watched.remove(watched)

    async def _run(self) -> None:
        """Asks as long as something is watched."""
        loop, pause_s, complaint = asyncio.get_running_loop(), _LEAST_ROUND_S, ""
        try:
            while self._watched:
                self._changed.clear()
                began = loop.time()
                try:
                    self._take(await self._ask())
                    pause_s, complaint = _LEAST_ROUND_S, ""
                except CdcError as error:
                    if str(error) != complaint:
                        complaint = str(error)
                        _log.warning("the server cannot be asked for changes", error=complaint)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                await asyncio.sleep(max(0.0, began + pause_s - loop.time()))
        finally:
            self._task = None
            await self._requests.close()

    async def _ask(self) -> Any:
        """Returns the answer of the server; None if something else is to be asked before it comes."""
        asked: dict[str, dict[str, Any]] = {}
        for watched in self._watched:
            name, token, seq = watched.connection.destination, watched.connection.token, watched.after_seq
            if name in asked:
                seq = min(seq, asked[name]["after_seq"])
            asked[name] = {"token": token, "after_seq": seq}
        arguments = {"destinations": asked, "wait_s": LONGEST_WAIT_S}
        request = asyncio.ensure_future(self._requests.call(arguments, LONGEST_WAIT_S))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({request, changed}, return_when=asyncio.FIRST_COMPLETED)
            return request.result() if request.done() else None
        finally:
            for future in (request, changed):
                future.cancel()
            await asyncio.gather(request, changed, return_exceptions=True)

    def _take(self, answer: Any) -> None:
        """Tells what an answer says."""
        for watched in [] if answer is None else list(self._watched):
            name = watched.connection.destination
            seq, error = answer["waiting"].get(name), error_of(answer["faults"].get(name))
            if error is not None:
                self._watched.remove(watched)
                watched.tell(error)
            elif seq is not None and seq != watched.after_seq:  # a lower one is that of another store
                watched.after_seq = seq
                watched.tell(seq)


SERVERS = ServerWatcher()
"""The watcher of this process."""
