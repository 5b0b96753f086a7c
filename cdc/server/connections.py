"""Connections of HTTP clients: those that are slow, or say nothing, keep no others out."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_WAITING = 500
"""Connections without a request that is worked on, at most. For a new one the oldest is closed."""
HEAD_S = 10.0
"""The time that a client may take to send the head of a request."""


class BoundedConnection(H11Protocol):
    """A connection of uvicorn that bounds the time before a request is there; an endpoint bounds the time of its body,
    and of its answer. A connection that is kept for the next request has uvicorn's ``timeout_keep_alive``."""

    _waiting: dict[BoundedConnection, None]
    """The waiting connections of the same server, oldest first."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self in self._waiting and self._head is None:
            self._expect_head()
        super().data_received(data)

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        cycle = self.cycle
        super().on_response_complete()
        if self.cycle is cycle and not self.transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waiting[self] = None
        if len(self._waiting) > MOST_WAITING:
            oldest = next(iter(self._waiting))
            oldest._stop_waiting()
            oldest.transport.abort()

    def _expect_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        self._waiting.pop(self, None)
        if self._head is not None:
            self._head.cancel()
            self._head = None


def of_one_server() -> type[H11Protocol]:
    """Returns the class of the connections of one server, as uvicorn's setting ``http``."""
    return type("Connection", (BoundedConnection,), {"_waiting": {}})
