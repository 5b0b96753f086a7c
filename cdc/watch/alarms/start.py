"""Watches a destination for alarms if its configuration names somebody to tell.

Loads nothing otherwise, so that capture starts fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.watch.alarms.watch import AlarmWatch


@contextmanager
def watched(config: DestinationConfig) -> Iterator[AlarmWatch | None]:
    """Watches while the context lasts; yields the watch, None if nobody is to be told. An error that leaves the context
    is told as the end of capture."""
    if not config.alarms.handlers:
        yield None
        return
    from cdc.watch.alarms.watch import watching  # most destinations have no alarms

    with watching(config) as watch:
        yield watch
