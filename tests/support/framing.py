"""Framing without a server and without a store: hooks that collect the output, and the loop that feeds a framer."""

from __future__ import annotations

import numpy as np

from cdc.binlog.framer import Framer


class CollectingHooks:
    """Captures the tables of ``shop`` and collects the output. A subclass answers statements, format descriptions and
    rotations."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.rows: list[np.ndarray] = []
        self.framer: Framer | None = None

    def table(self, db: str, table: str) -> int | None:
        return {"orders": 0, "items": 1}.get(table) if db == "shop" else None

    def flush(self, framer: Framer) -> None:
        self.out += framer.take_output()
        framer.drop_output()
        self.rows.append(framer.take_rows())

    def roll(self, framer: Framer) -> None:
        raise AssertionError("no segment here")


def feed(
    framer: Framer, src: np.ndarray, hooks: CollectingHooks, stream: bytes, *, piece: int, flush_always: bool
) -> None:
    """Frames ``stream`` in pieces through the buffer ``src``; without ``flush_always`` output is taken at the end."""
    at = 0
    while at < len(stream):
        n = min(piece, len(stream) - at, len(src) - framer.end)
        src[framer.end : framer.end + n] = np.frombuffer(stream[at : at + n], dtype=np.uint8)
        framer.fed(n)
        at += n
        framer.run()
        if flush_always:
            hooks.flush(framer)
        framer.compact()
    hooks.flush(framer)


def rows_of(hooks: CollectingHooks) -> np.ndarray:
    """The rows of numbers of all transactions."""
    return np.concatenate(hooks.rows)
