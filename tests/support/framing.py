"""Framing without a server and without a store: hooks that collect the output, and the loop that feeds a framer."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from cdc.base.errors import UnsupportedEventError
from cdc.binlog.framer import Decision, Framer, StopsAtPrepared
from cdc.binlog.positions import make_seq
from cdc.testing.binlog import BinlogBuilder


class CollectingHooks(StopsAtPrepared):
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


class StatementHooks(CollectingHooks):
    """Refuses INSERT into ``shop``, keeps other statements that name it, and remembers all of them. The stream begins
    at ``pos``, and what ends before ``stored`` is skipped."""

    def __init__(self, *, pos: int = 4, stored: int = 0) -> None:
        super().__init__()
        self.statements: list[str] = []
        self.pos, self.stored = pos, stored

    def statement(self, query: object, in_transaction: bool) -> Decision:
        sql = str(getattr(query, "sql", ""))
        self.statements.append(sql)
        if "shop" in sql and sql.startswith("INSERT"):
            raise UnsupportedEventError(f"a text: {sql}", remedy="Use rows.")
        return Decision("shop" in sql, ddl=True, table_mask=1)

    def format_description(self, event: bytes, description: object) -> None:
        assert self.framer is not None
        if not self.framer.in_transaction:
            self.framer.start_output(int(self.framer.st.out_base), 0)

    def rotate(self, rotate: object, artificial: bool) -> None:
        assert self.framer is not None
        self.framer.start_file("binlog.000001", self.pos, make_seq(0, 1, 0), skip_until=self.stored)

    def set_statement_end(self, offset: int, length: int) -> int:
        assert self.framer is not None
        self.flush(self.framer)
        event = bytearray(self.out[offset : offset + length])
        event[25] |= 1
        event[-4:] = zlib.crc32(event[:-4]).to_bytes(4, "little")
        self.out[offset : offset + length] = event
        return int.from_bytes(event[-4:], "little")


def frame(
    log: BinlogBuilder,
    *,
    piece: int = 1 << 20,
    src_bytes: int = 4 << 20,
    flush_always: bool = False,
    make_hooks: Callable[[], StatementHooks] = StatementHooks,
) -> StatementHooks:
    """Frames the packets of a log, and returns the hooks with the output."""
    hooks = make_hooks()
    src = np.zeros(src_bytes, dtype=np.uint8)
    framer = hooks.framer = Framer(src, hooks, packets=True, out_bytes=3 << 20)
    feed(framer, src, hooks, log.packets, piece=piece, flush_always=flush_always)
    return hooks


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
