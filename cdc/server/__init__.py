"""``cdc server``: serves the batches and bytes of stores on this machine, over HTTP or Canal's protocol.

The process and its destinations::

    process       runs the server as a command
    embedded      the server, which other programs may run themselves
    folder        follows the configurations of the destinations
    instances     the destinations that the server runs, each an ``instance``
    leadership    whether this process leads a destination
    stops         the destinations that an operator has stopped
    captures      keeps captures running, as ``processes`` that ``child`` starts
    memory        the folders of stores in memory
    live          the destinations that requests reach
    alarms        watches instances for alarms

Requests over HTTP::

    http          the application in a server of uvicorn
    app           answers requests
    operations    the operations that a client may call
    operators     answers requests about instances
    roles         who may make requests about instances
    destinations  a served destination and its tokens
    files         the bytes of a store
    locks         the locks of clients

Canal's clients (:mod:`cdc.canal` makes the entries)::

    canal_listener    accepts connections
    canal_connection  speaks with one client
    canal_clients     the client ids
    canal_cursor      the batches of one client id

The clients of the HTTP operations are in :mod:`cdc.client`; :mod:`cdc.wire` has the parts that both sides share.
Commands import this package; it imports the layers below them.

It promises that a client that dies or is slow holds no lock for longer than half a minute, that a kill of the server
loses nothing that was answered, and that no capture which it has started outlives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdc.server.embedded import EmbeddedServer

__all__ = ["EmbeddedServer"]


def __getattr__(name: str) -> Any:
    """Loads the server when it is used: a module of this package is also run in the children of a server."""
    if name == "EmbeddedServer":
        from cdc.server.embedded import EmbeddedServer

        return EmbeddedServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
