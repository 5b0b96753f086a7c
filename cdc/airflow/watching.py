"""Notices that stores have grown, for all destinations of a process together: one thread looks at two files of each.

A look costs a few microseconds, so hundreds of idle destinations can be watched. A disk that hangs delays the notices
of other stores, and nothing else: the thread belongs to no event loop.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cdc.store.formats.layout import INDEX_SUFFIX, segments_folder

POLL_S = 0.5
"""How often the thread looks."""
_SETTLED_NS = 2_000_000_000
"""A folder that was changed later than this may be changed again without another time of change."""


class StoreLook:
    """The end of a store, as cheaply as it can be told: the newest index and its size."""

    def __init__(self, store: Path) -> None:
        self._folder = segments_folder(store)
        self._listed_ns = -1
        self._newest: Path | None = None

    def end(self) -> tuple[Path, int] | None:
        """Returns what changes whenever a transaction becomes visible; None while there is no store."""
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


class StoreWatcher:
    """Calls back when a watched store has grown. The thread lives while something is watched."""

    def __init__(self, poll_s: float = POLL_S) -> None:
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._watched: dict[object, tuple[StoreLook, Callable[[], object]]] = {}
        self._running = False

    def watch(self, store: Path, notify: Callable[[], object]) -> Callable[[], None]:
        """Calls ``notify``, in the thread, each time the store may have got transactions. Returns what ends that."""
        key = object()
        with self._lock:
            self._watched[key] = (StoreLook(store), notify)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="watch-stores", daemon=True).start()

        def end() -> None:
            with self._lock:
                self._watched.pop(key, None)

        return end

    def _run(self) -> None:
        seen: dict[object, tuple[Path, int] | None] = {}
        while True:
            with self._lock:
                watched = list(self._watched.items())
                if not watched:
                    self._running = False
                    return
            for key, (look, notify) in watched:
                end = look.end()
                if key not in seen or seen[key] != end:
                    seen[key] = end
                    try:
                        notify()
                    except RuntimeError:  # its event loop is closed
                        with self._lock:
                            self._watched.pop(key, None)
            seen = {key: seen[key] for key, _ in watched}
            time.sleep(self._poll_s)


STORES = StoreWatcher()
"""The watcher of this process."""
