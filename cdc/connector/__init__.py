"""Clients of a destination's changes for Python programs, with one interface for three ways to them.

:func:`connect` speaks Canal's protocol over TCP, to ``cdc server`` or to Canal's own server; :func:`connect_cluster`
does so with the server that leads by ZooKeeper, and goes on with the next one when it dies; :func:`open_embedded` reads
store and meta in this process, without a server. Each returns a :class:`Connector`::

    with connect("127.0.0.1:11111", "shop", client_id=1001) as connector:
        connector.subscribe(r"shop\\\\..*")
        for batch in connector:
            for entry in batch.entries:
                for row in entry.rows:
                    print(entry.table, entry.event, row.new)

``base.py`` has the interface, ``entries.py`` what comes, ``link.py`` a connection, ``tcp.py``, ``cluster.py`` and
``embedded.py`` the three ways.
"""

from cdc.connector.base import Batch, Connector
from cdc.connector.cluster import ClusterConnector, ZooKeeper, connect_cluster
from cdc.connector.embedded import EmbeddedConnector, open_embedded
from cdc.connector.entries import Column, Entry, Row
from cdc.connector.tcp import TcpConnector, connect

__all__ = [
    "Batch",
    "ClusterConnector",
    "Column",
    "Connector",
    "EmbeddedConnector",
    "Entry",
    "Row",
    "TcpConnector",
    "ZooKeeper",
    "connect",
    "connect_cluster",
    "open_embedded",
]
