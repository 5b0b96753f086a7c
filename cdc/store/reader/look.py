"""Tells cheaply whether a store has grown, for those who wait for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cdc.store.formats.layout import INDEX_SUFFIX, segments_folder

_SETTLED_NS = 2_000_000_000
"""A folder that was changed later than this may be changed again without another time of change."""


class StoreLook:
    """The end of a store, as cheaply as it can be told: the newest index and its size."""

    def __init__(self, store: Path) -> None:
        self._folder = segments_folder(store)
        self._listed_ns = -1
        self._newest: Path | None = None

    def end(self) -> tuple[Path, int] | None:
        """Returns a mark that changes whenever a transaction becomes visible; None while there is no store."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
            if changed_ns != self._listed_ns:
                names = [name for name in os.listdir(self._folder) if name.endswith(INDEX_SUFFIX)]
                self._newest = self._folder / max(names) if names else None
                self._listed_ns = changed_ns if time.time_ns() - changed_ns > _SETTLED_NS else -1
            return None if self._newest is None else (self._newest, self._newest.stat().st_size)
        except OSError:
            self._listed_ns = -1
            return None
