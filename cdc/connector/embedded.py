"""The connector without a server: it reads store and meta of this machine, in this process."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cdc.base.errors import BatchError, UsageError
from cdc.canal.filters import table_pattern
from cdc.canal.zones import zone_of
from cdc.config import load_destination
from cdc.connector.base import EMPTY, FETCH_SIZE, Batch, Connector
from cdc.connector.entries import parse_messages
from cdc.server.destinations import ServedDestination

if TYPE_CHECKING:
    from pathlib import Path

    from cdc.config import DestinationConfig
    from cdc.server.canal_cursor import ClientCursor

_UNIT_BYTES = 1024
_LOOK_S = 0.05


class EmbeddedConnector(Connector):
    """A client id whose batches this process makes itself, as ``cdc server`` does for others. Capture may run
    elsewhere. Do not use the client id through a server at the same time: each of the two would roll back the batches
    of the other, which then fail to be acked."""

    def __init__(self, config: DestinationConfig, client_id: int) -> None:
        self._config = config
        self._client_id = client_id
        self._cursor: ClientCursor | None = None
        self._stack = ExitStack()
        self._held: list[int] = []

    @property
    def place(self) -> str:
        """The destination, for messages."""
        return f"{self._config.file}: client id {self._client_id}"

    def connect(self) -> None:
        """Opens store and meta. Raises ConfigError, LeaseHeldError if another process embeds this client id,
        MetaUnavailableError, StorageError."""
        if self._cursor is not None:
            return
        from cdc.canal.encoder import warm_up
        from cdc.server.canal_cursor import ClientCursor

        served = ServedDestination(self._config)
        self._stack.callback(served.close)
        try:
            lock = served.meta.lock(f"canal-client-{self._client_id}", "a connector in another process", wait_s=0)
            self._stack.enter_context(lock)
            warm_up()
            cursor = ClientCursor(served, self._client_id, zone_of(self._config.server.canal.time_zone))
            cursor.forget()
        except BaseException:
            self._stack.close()
            raise
        self._stack.callback(cursor.park)
        self._cursor = cursor

    def close(self) -> None:
        self._cursor = None
        self._held.clear()
        self._stack.close()

    @property
    def _open(self) -> ClientCursor:
        self.connect()
        assert self._cursor is not None
        return self._cursor

    def subscribe(self, table_filter: str = "") -> None:
        self._open.subscribe(table_pattern(table_filter) if table_filter else None, keep=not table_filter)
        self._open.rollback(None)
        self._held.clear()

    def unsubscribe(self) -> None:
        self._open.unsubscribe()
        self._held.clear()

    def get_without_ack(self, size: int = FETCH_SIZE, timeout_s: float | None = None) -> Batch:
        """As :meth:`Connector.get_without_ack`. Raises UsageError without a subscription, and what reading store and
        meta raises."""
        if timeout_s is not None and timeout_s <= 0:
            raise UsageError(f"timeout_s is {timeout_s}", remedy="Give seconds, or None in order not to wait.")
        cursor, wanted_bytes = self._open, size * _UNIT_BYTES
        deadline = time.monotonic() + (timeout_s or 0)
        while (
            timeout_s is not None and cursor.pending_bytes(wanted_bytes) < wanted_bytes and time.monotonic() < deadline
        ):
            time.sleep(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
        taken = cursor.take(min(wanted_bytes, self._config.server.canal.max_answer_bytes))
        if taken is None:
            return EMPTY
        batch, parts = taken
        messages = [message for part in parts for message in parse_messages(bytes(part.data))[1]]
        cursor.give_back(parts)
        self._held.append(batch)
        return Batch(batch, tuple(messages))

    def holds(self, batch: int) -> bool:
        return batch in self._held

    def ack(self, batch: int) -> None:
        self._require(batch)
        self._open.ack(batch)
        self._held.remove(batch)

    def rollback(self, batch: int | None = None) -> None:
        if batch is not None:
            self._require(batch)
        if self._open.is_subscribed:
            self._open.rollback(batch)
        self._held = [] if batch is None else self._held[: self._held.index(batch)]

    def _require(self, batch: int) -> None:
        if batch not in self._held:
            raise BatchError(
                f"batch {batch} is not there: it was acked or rolled back before",
                place=self.place,
                remedy="Get again: its entries come again unless they were acked.",
            )


def open_embedded(conf_dir: Path | str, destination: str | None = None, *, client_id: int = 1001) -> EmbeddedConnector:
    """Opens a destination of a folder of configurations; see :class:`EmbeddedConnector`. Its configuration needs
    ``server.canal.enabled``.

    Raises ConfigError, LeaseHeldError, MetaUnavailableError, StorageError.
    """
    from pathlib import Path

    connector = EmbeddedConnector(load_destination(Path(conf_dir), destination), client_id)
    connector.connect()
    return connector
