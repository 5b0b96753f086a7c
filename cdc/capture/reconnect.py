"""The rules for a new connection after a failed one: whether capture tries again, after which pause, and how often."""

from __future__ import annotations

import random

from cdc.base.errors import CdcError, CorruptStreamError, DamagedError, SourceRefusedError
from cdc.binlog.positions import BinlogPosition

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_BOUNDED_ATTEMPTS = 5


class ReconnectPolicy:
    """Decides after each failed connection.

    Only progress counts: connections that receive bytes but store nothing new are counted, and the last one that
    ``max_failures`` allows ends capture. A server that cannot be reached, and a connection that ends when everything
    has been read, are not counted. With ``bounded``, capture gives up after 5 attempts in a row.
    """

    def __init__(self, max_failures: int, *, bounded: bool) -> None:
        self._bounded = bounded
        self._limit = min(max_failures, _BOUNDED_ATTEMPTS - 1) if bounded else max_failures
        self._last_seq: int | None = None
        self._stuck = 0
        self._attempts = 0
        self._next_pause_s = _FIRST_PAUSE_S

    def connecting(self, last_seq: int | None) -> None:
        """Note the newest seq in the store before a connection is made."""
        self._progressed(last_seq)

    def stuck(self, error: CdcError, source: str, at: BinlogPosition | None, last_seq: int | None) -> None:
        """Counts a connection that ended with ``error`` while more was left to read, at the event that begins at
        ``at``. ``source`` names the server in messages. Raises DamagedError or SourceRefusedError if the limit is
        reached."""
        if self._progressed(last_seq):
            return
        self._stuck += 1
        if self._stuck < self._limit:
            return
        times = f"{self._stuck} connections in a row ended there, and none of them stored anything new"
        place = f"{source}: {_shown(at)}"
        if isinstance(error, CorruptStreamError):
            raise DamagedError(
                f"{error.message}; {times}",
                place=place,
                remedy="The event is damaged on the server or on the way from it; all transactions before it are in "
                "the store. Check the file on the server with mysqlbinlog --verify-binlog-checksum. If it is damaged, "
                "start a new destination after the event: the changes of its transaction are lost.",
            ) from None
        raise SourceRefusedError(
            f"{error.message}; {times}",
            place=place,
            remedy="All transactions before the event are in the store. The server's error log may say why it cannot "
            "send this event. Repair that, then start capture again. source.max_failures sets how many such "
            "connections are allowed.",
        ) from None

    def failed(self, *, received: bool) -> bool:
        """Counts a failed connection that ``received`` bytes or did not. Returns whether to try again."""
        if received and not self._stuck:
            self._attempts, self._next_pause_s = 0, _FIRST_PAUSE_S
        self._attempts += 1
        return not self._bounded or self._attempts < _BOUNDED_ATTEMPTS

    def pause_s(self) -> float:
        """Returns the seconds to wait before the next connection. The limit doubles with each one, up to 30 s. A pause
        is at least half of it, at random, so that captures that a server has lost do not all come at once."""
        longest_s, self._next_pause_s = self._next_pause_s, min(2 * self._next_pause_s, _LONGEST_PAUSE_S)
        return random.uniform(longest_s / 2, longest_s)

    def _progressed(self, last_seq: int | None) -> bool:
        """Whether the store's newest transaction has changed, which resets the count."""
        if last_seq == self._last_seq:
            return False
        self._last_seq, self._stuck = last_seq, 0
        return True


def _shown(at: BinlogPosition | None) -> str:
    return "before its first event" if at is None else f"{at.file}, position {at.pos}"
