"""The interface of all connectors: batches of one client id, to be acked or rolled back."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Self

from cdc.base.errors import BatchError
from cdc.connector.entries import Entry, parse_entry

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.2
FETCH_SIZE = 1000


@dataclass(frozen=True)
class Batch:
    """Entries that were handed out together. A batch may end inside a transaction."""

    id: int
    """-1: there are no entries."""
    messages: tuple[bytes, ...]
    """The entries as they came."""

    def __bool__(self) -> bool:
        return self.id != -1

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The entries, in order. Raises DamagedError if one cannot be read."""
        return tuple(map(parse_entry, self.messages))


EMPTY = Batch(-1, ())


class Connector(ABC):
    """A client id of a destination. Use it in one thread at a time.

    Batches come in order, and are acked in order. What is not acked comes again, in other batches: after a rollback, a
    lost connection, or when the program is started again. So an entry may come twice, and none is left out, if the
    program acks a batch after it has done its work for it.
    """

    @abstractmethod
    def connect(self) -> None:
        """Connects, and rolls back what an earlier connection has not acked. Does nothing if it is connected.

        Raises PeerUnavailableError if the server cannot be reached, ConfigError if it refuses the login.
        """

    @abstractmethod
    def subscribe(self, table_filter: str = "") -> None:
        """Subscribes. ``table_filter``: regular expressions over ``schema.table``, separated by commas; empty: the one
        that is there stays, or all tables. A new client id begins at the store's first transaction. What is not acked
        comes again.

        Raises UsageError if the server refuses it, PeerUnavailableError.
        """

    @abstractmethod
    def get_without_ack(self, size: int = FETCH_SIZE, timeout_s: float | None = None) -> Batch:
        """Returns the next batch; an empty one if there is nothing.

        ``size``: in units of 1,024 bytes of binlog events (Canal's mode MEMSIZE; other modes count events).
        ``timeout_s``: how long to wait until the batch is full; None: not at all. A lost connection is opened again
        first. Raises PeerUnavailableError if that fails, UsageError if the server refuses the request.
        """

    @abstractmethod
    def ack(self, batch: int) -> None:
        """Acks a batch, the first one that is not acked. Raises BatchError if it is another one, or if the batch was
        lost with its connection: its entries come again."""

    @abstractmethod
    def rollback(self, batch: int | None = None) -> None:
        """Makes the entries of a batch and of all later ones come again; None: of all that are not acked. Raises
        BatchError for a batch that is not there."""

    @abstractmethod
    def unsubscribe(self) -> None:
        """Ends the subscription: its cursor goes, and it holds back retention no more."""

    @abstractmethod
    def close(self) -> None:
        """Disconnects. What is not acked comes again to the next one with this client id. May be called twice."""

    def get(self, size: int = FETCH_SIZE, timeout_s: float | None = None) -> Batch:
        """Returns the next batch, which is acked already: if the program dies, its entries do not come again."""
        batch = self.get_without_ack(size, timeout_s)
        if batch:
            self.ack(batch.id)
        return batch

    def batches(self, size: int = FETCH_SIZE, idle_s: float | None = None) -> Iterator[Batch]:
        """Yields batch after batch, as soon as there is one, and acks each when the next one is asked for.

        A batch at which the loop ends, by ``break`` or an error, is not acked. Ends when there was nothing for
        ``idle_s``; None: never. If a connection is lost meanwhile, the batch comes again.
        """
        pause_s, since = _FIRST_PAUSE_S, time.monotonic()
        while True:
            batch = self.get_without_ack(size)
            if not batch:
                if idle_s is not None and time.monotonic() - since >= idle_s:
                    return
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            yield batch
            if self.holds(batch.id):  # else its connection was lost, or the loop has acked or rolled it back
                try:
                    self.ack(batch.id)
                except BatchError:
                    if self.holds(batch.id):
                        raise
            pause_s, since = _FIRST_PAUSE_S, time.monotonic()

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    @abstractmethod
    def holds(self, batch: int) -> bool:
        """Whether a batch was handed out and is neither acked, nor rolled back, nor lost with its connection."""

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
