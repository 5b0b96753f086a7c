"""The meta: how far each subscriber has read the store. It has subscriptions, cursors and outstanding batches.

Knows neither MySQL, nor Spark, nor the store's files. :mod:`cdc.batches`, capture and the commands import it. It
promises that a change is made whole or not at all, that only one writer changes it at a time, and that a completed
change survives SIGKILL.

:class:`~cdc.meta.base.Meta` is the contract, :class:`~cdc.meta.file.FileMeta` keeps it in a file of a local disk,
:class:`~cdc.meta.zookeeper.ZooKeeperMeta` in ZooKeeper. Programs of one process may also use the meta in memory of
:mod:`cdc.event_store`. ``cdc.testing.meta_contract`` is the suite of tests for each
implementation, including your own. :class:`~cdc.meta.mixed.MixedMeta` is what ``cdc server`` makes of a meta in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cdc.config.values import no_disk
from cdc.meta.base import DurableMeta, Meta
from cdc.meta.file import FileMeta
from cdc.meta.mixed import MixedMeta
from cdc.meta.state import (
    Finished,
    Gap,
    HistoryMark,
    Outstanding,
    ParkedTable,
    SourceIdentity,
    State,
    Subscription,
    TableRecord,
    UnknownColumns,
)

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

__all__ = [
    "Finished",
    "Gap",
    "HistoryMark",
    "Meta",
    "Outstanding",
    "ParkedTable",
    "SourceIdentity",
    "State",
    "Subscription",
    "TableRecord",
    "UnknownColumns",
    "open_meta",
    "open_served_meta",
]


def open_meta(config: DestinationConfig, *, fence: Callable[[], tuple[str, int]] | None = None) -> Meta:
    """Returns the meta that the configuration selects. It opens files and connections on first use only. ``fence``:
    that of the server that leads, if there are several; see :class:`~cdc.meta.zookeeper.ZooKeeperMeta`."""
    if config.meta.kind == "mixed" and config.store.in_memory:
        return FileMeta(config.store.run_folder / "meta", config.name)
    if config.meta.kind in ("mixed", "memory"):
        raise no_disk(config.meta.kind)
    return _open_durable(config, fence)


def open_served_meta(config: DestinationConfig, *, fence: Callable[[], tuple[str, int]] | None = None) -> Meta:
    """Returns the meta for the server that serves the destination: with ``kind: mixed`` the one that stores what is
    shared in memory. ``fence`` as in :func:`open_meta`."""
    if config.meta.kind != "mixed":
        return open_meta(config, fence=fence)

    return MixedMeta(open_meta(config), _open_durable(config, fence))


def _open_durable(config: DestinationConfig, fence: Callable[[], tuple[str, int]] | None) -> DurableMeta:
    hosts = config.meta.zookeepers
    if hosts is None:
        return FileMeta(config.meta.path, config.name, permissions=config.meta.permissions)
    from cdc.meta.zookeeper import ZooKeeperMeta

    address = (config.source.host, config.source.port) if config.source.host else None
    ha = config.server.ha
    # The lock of a leader that dies must not outlast its leadership.
    timeout = {"session_timeout_s": ha.session_timeout_s} if ha.enabled else {}
    return ZooKeeperMeta(hosts, config.name, root=config.meta.base, source_address=address, fence=fence, **timeout)
