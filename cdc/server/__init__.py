"""``cdc server``: hands out the batches and bytes of stores on this machine to others, over HTTP or Canal's protocol.

``process`` runs it, as an ``embedded`` server, which programs may run themselves. ``instances`` are the destinations
that it runs: ``folder`` follows their configurations, ``leadership`` says whether this process has them, ``stops``
remembers what an operator has stopped, and ``captures`` keeps their captures running, as ``processes`` started by
``child``. ``memory`` has the folders of stores in memory, ``live`` the destinations that requests reach.

``app`` answers requests over HTTP, ``operators`` those about instances, ``roles`` says who may make these, ``alarms``
tells what is wrong with instances, ``operations`` has what a client may call, ``destinations`` what is served and to
whom, ``files`` the bytes of a store, ``locks`` the locks of clients. Of Canal's clients, ``canal_listener`` accepts
connections, ``canal_connection`` speaks with one of them, ``canal_clients`` knows the client ids, and ``canal_cursor``
has the batches of one; :mod:`cdc.canal` makes what is sent. The clients are in :mod:`cdc.client`, what both share is in
:mod:`cdc.wire`. Commands import it; it imports the layers below them.

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
