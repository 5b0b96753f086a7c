"""Who reads the store, and how far: subscriptions, cursors and outstanding batches.

Knows neither MySQL, nor Spark, nor the store's files. :mod:`cdc.batches`, capture and the commands import it. It
promises that a change is made whole or not at all, that only one writer changes it at a time, and that what was
changed survives SIGKILL. :class:`~cdc.meta.base.Meta` is the contract; :class:`~cdc.meta.file.FileMeta` keeps it in a
file of a local disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.meta.base import Meta
from cdc.meta.state import Finished, Outstanding, SourceIdentity, State, Subscription

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

__all__ = ["Finished", "Meta", "Outstanding", "SourceIdentity", "State", "Subscription", "open_meta"]


def open_meta(config: DestinationConfig) -> Meta:
    """The meta of a destination, as its configuration says. Touches nothing on disk."""
    from cdc.meta.file import FileMeta

    return FileMeta(config.meta.path, config.name)
