"""Real servers for tests, benchmarks and the demo: any user can run them, without containers and without root.

>>> with Server("mariadb10") as server:
...     connection = server.connect()

Kinds: ``mysql9``, ``mariadb11``, ``mariadb10``, ``mysql56``, ``zookeeper``, ``kafka`` and ``versitygw``, a server of
objects that is built with Go; further versions can stand in for the databases
(:data:`~cdc.testing.servers.kinds.STANDINS_VARIABLE`). A server ends with the process that started it, however that
process ends, and its data is deleted. Give it a ``folder`` to keep the data, and ``detach=True`` to let it outlive the
process. On the command line: ``python -m cdc.testing.servers --help``.

:mod:`~cdc.testing.servers.packages` fetches and unpacks the programs, :mod:`~cdc.testing.servers.kinds` knows how each
kind is set up and started, :mod:`~cdc.testing.servers.server` runs one, :mod:`~cdc.testing.servers.replicas` two of
which one replicates the other, :mod:`~cdc.testing.servers.group` three with group replication, and
:mod:`~cdc.testing.servers.ensemble` three ZooKeepers that elect a leader.
"""

from __future__ import annotations

from cdc.testing.servers.ensemble import ZooKeeperEnsemble
from cdc.testing.servers.group import ReplicationGroup
from cdc.testing.servers.kinds import ACCESS_KEY_ID, HOST, PASSWORD, SECRET_ACCESS_KEY, USER, find_kind
from cdc.testing.servers.replicas import ReplicaPair
from cdc.testing.servers.server import Server, client_tool, free_port, stop_detached

__all__ = [
    "ACCESS_KEY_ID",
    "HOST",
    "PASSWORD",
    "SECRET_ACCESS_KEY",
    "USER",
    "ReplicaPair",
    "ReplicationGroup",
    "Server",
    "ZooKeeperEnsemble",
    "client_tool",
    "find_kind",
    "free_port",
    "stop_detached",
]
