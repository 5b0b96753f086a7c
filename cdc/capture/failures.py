"""Connections that end at the same place again and again: when to stop trying."""

from __future__ import annotations

from cdc.errors import CdcError, CorruptStreamError, DamagedError, SourceRefusedError
from cdc.positions import BinlogPosition


class Failures:
    """Counts connections that read something and stored nothing new. A server that cannot be reached, and a connection
    that ends when everything has been read, count for nothing."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last_seq: int | None = None
        self.count = 0

    def met(self, error: CdcError, place: str, at: BinlogPosition | None, last_seq: int | None) -> None:
        """A connection has ended with ``error`` while there was more to read, at the event that begins at ``at``;
        ``place`` names the source. Raises DamagedError or SourceRefusedError for the last one that is tolerated."""
        if self.moved(last_seq):
            return
        self.count += 1
        if self.count < self._limit:
            return
        times = f"{self.count} connections in a row ended there, and nothing new could be stored"
        where = f"{place}: {place_in(at)}"
        if isinstance(error, CorruptStreamError):
            raise DamagedError(
                f"{error.message}; {times}",
                place=where,
                remedy="The event is damaged at the source, or on the way from it; what is whole before it is in the "
                "store. Check the file on the server with mysqlbinlog --verify-binlog-checksum. If it is damaged, "
                "begin a new destination behind that place: what the transaction changed cannot be read any more.",
            ) from None
        raise SourceRefusedError(
            f"{error.message}; {times}",
            place=where,
            remedy="What is whole before it is in the store. The server's error log may say why it cannot send this "
            "event. Start capture again once that is repaired; source.max_failures is how many such connections are "
            "tolerated.",
        ) from None

    def moved(self, last_seq: int | None) -> bool:
        """Whether the newest transaction in the store is another than before; counting then begins anew."""
        if last_seq == self._last_seq:
            return False
        self._last_seq, self.count = last_seq, 0
        return True


def place_in(at: BinlogPosition | None) -> str:
    """A position for messages."""
    return "before its first event" if at is None else f"{at.file}, position {at.pos}"
