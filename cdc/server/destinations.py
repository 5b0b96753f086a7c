"""The destinations that a server serves, and the subscribers that may use each of them."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cdc.base.errors import CdcError, ConfigError, NotLeaderError
from cdc.batches.service import BatchService
from cdc.batches.table_batches import TableBatches
from cdc.config.memory import full_mark, readers_lock
from cdc.config.secrets import subscriber_token
from cdc.config.values import no_disk
from cdc.disk.durable import locked
from cdc.meta import Meta, open_served_meta
from cdc.server.locks import LockTable
from cdc.store.reader.reader import StoreReader

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.server.leadership import Leadership

_Value = TypeVar("_Value")


class ServedDestination:
    """One destination. Its store and meta are opened when a request needs them. Safe in any thread."""

    def __init__(self, config: DestinationConfig, leadership: Leadership | None = None) -> None:
        """``leadership``: the right by which this process serves it. Raises ConfigError if the destination cannot be
        served."""
        if not is_served(config):
            raise unserved(config)
        self.config = config
        self._leadership = leadership
        self.meta: Meta = open_served_meta(config, fence=None if leadership is None else leadership.fence)
        self.batches = BatchService(config, meta=self.meta)
        self.locks = LockTable(self.meta)
        self.begin: Callable[[], Awaitable[None]] | None = None
        """Waits until there is a store, where the server captures the destination by itself. Subscriptions wait for it,
        since a meta without a store would look like that of a lost store. Raises CdcError."""
        self._digests = _digests(config)

    def take(self, config: DestinationConfig) -> None:
        """Goes over to another configuration of the same store and meta, with new tokens and limits. Raises
        ConfigError."""
        digests = _digests(config)
        self.batches, self.config, self._digests = BatchService(config, meta=self.meta), config, digests

    def require_leader(self) -> int:
        """Returns the epoch of this process's leadership; 0 if nothing counts epochs. Raises NotLeaderError if another
        server may serve the destination. Asked before each answer."""
        return 0 if self._leadership is None else self._leadership.require()

    def refusal(self, error: CdcError) -> CdcError:
        """Returns what a client is told, if it was ``error`` when this process stopped serving the destination: another
        server may lead by now."""
        if self._leadership is not None and isinstance(error, NotLeaderError):
            return self._leadership.error()
        return error

    def close(self) -> None:
        """Releases the locks of clients, and what the meta holds."""
        self.locks.close()
        self.meta.close()

    @property
    def name(self) -> str:
        return self.config.name

    def subscriber_of(self, token: str) -> str | None:
        """Returns whose token this is; None if it is nobody's. Takes the same time for every wrong token."""
        token_digest, subscriber = sha256(token.encode()).digest(), None
        for name, digest in self._digests.items():
            if hmac.compare_digest(digest, token_digest):
                subscriber = name
        return subscriber

    def reader(self) -> StoreReader:
        """Returns the reader of the store."""
        source = self.meta.source()
        return StoreReader(self.config.store.path, None if source is None else source.base_name)

    def is_readable(self) -> bool:
        """Whether there is a store to subscribe to. One in memory has to say where it begins first: it begins elsewhere
        after a restart, and a reader that has acked nothing has to know where it was."""
        reader = self.reader()
        return reader.exists() and (not self.config.store.in_memory or reader.beginning() is not None)

    @contextmanager
    def joining(self) -> Iterator[None]:
        """Keeps the store's beginning where it is, while a reader subscribes. Raises LeaseHeldError, StorageError."""
        store = self.config.store
        if not store.in_memory:
            yield
            return
        with locked(readers_lock(store.run_folder), "capture, which removes what was acked,", wait_s=30):
            yield

    @property
    def is_full(self) -> bool:
        """Whether capture waits because the buffer of a store in memory is full."""
        store = self.config.store
        return store.in_memory and full_mark(store.run_folder).exists()

    def table_batches(self) -> TableBatches:
        """Returns the changes of single tables."""
        return TableBatches(self.config, self.meta)


def is_served(config: DestinationConfig) -> bool:
    """Returns whether a server has anything to do for a destination."""
    server = config.server
    runs = server.capture != "none" or server.push != "none"
    return config.store.kind == "file" and (bool(server.tokens) or server.canal.enabled or runs)


def unserved(config: DestinationConfig) -> ConfigError:
    """Returns the error of a destination for which a server has nothing to do."""
    if config.store.kind == "memory":
        return no_disk(config.store.kind)
    if config.store.kind != "file":
        return ConfigError(
            "the store is on another server, and is served there",
            place=str(config.file),
            remedy="Name the destinations whose store is on this machine.",
        )
    return ConfigError(
        "no subscriber has a token, so nobody could use the server",
        place=f"{config.file}: server.tokens",
        remedy="Add tokens: {apply: {env: VARIABLE}}, and set the variable; make a token with: openssl rand "
        "-hex 32. For Canal's clients, add canal: {enabled: true}.",
    )


def _digests(config: DestinationConfig) -> dict[str, bytes]:
    digests = {
        name: sha256(subscriber_token(name, token).encode()).digest() for name, token in config.server.tokens.items()
    }
    if len(set(digests.values())) < len(digests):
        raise ConfigError(
            "two subscribers have the same token",
            place=f"{config.file}: server.tokens",
            remedy="Make one for each with: openssl rand -hex 32.",
        )
    return digests


@dataclass(frozen=True)
class Listening:
    """The address at which a process listens, and its certificate."""

    host: str
    port: int
    certificate: Path | None
    key: Path | None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.certificate is None else 'https'}://{host}:{self.port}"


def listening(configs: Sequence[DestinationConfig], port: int | None = None) -> Listening:
    """Returns where the process that serves these destinations listens. Raises ConfigError if they contradict each
    other."""
    ports = {config.name: config.server.http for config in configs} if port is None else {"--http": port}
    return Listening(
        agreed("host", {config.name: config.server.host for config in configs}),
        agreed("http", ports),
        agreed("certificate", {config.name: config.server.certificate for config in configs}),
        agreed("key", {config.name: config.server.key for config in configs}),
    )


def agreed(key: str, values: Mapping[str, _Value]) -> _Value:
    """Returns the one value that all destinations have for ``server.key``. Raises ConfigError if they differ."""
    if len(set(values.values())) > 1:
        shown = ", ".join(f"{name} {value}" for name, value in values.items())
        raise ConfigError(
            f"server.{key} differs between the destinations of one server: {shown}",
            remedy="Give all of them the same value, or name the destinations of one process.",
        )
    return next(iter(values.values()))


class ServerCounters:
    """Counts what the server did, for its metrics. Safe in any thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self.requests: dict[tuple[str, str, str], int] = {}
        """Counts of requests by destination, operation and outcome."""
        self.bytes: dict[str, int] = {}
        """Bytes of segments that were sent, by destination."""

    def count(self, destination: str, operation: str, outcome: str) -> None:
        with self._mutex:
            key = (destination, operation, outcome)
            self.requests[key] = self.requests.get(key, 0) + 1

    def add_bytes(self, destination: str, size: int) -> None:
        with self._mutex:
            self.bytes[destination] = self.bytes.get(destination, 0) + size
