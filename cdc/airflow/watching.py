"""Notices that stores have grown, for all destinations of a process together: one thread looks at two files of each.

A look costs a few microseconds, so hundreds of idle destinations can be watched. A disk that hangs delays the notices
of other stores, and nothing else: the thread belongs to no event loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from cdc.store.reader.look import StoreLook

POLL_S = 0.5
"""The interval at which the thread looks."""


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
