"""Destinations of every kind of store and meta that a server in this process serves over TCP, and the contract of event
stores through a client."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cdc.base.errors import BatchError, StoreClosedError
from cdc.binlog.positions import make_seq
from cdc.config import load
from cdc.config.memory import in_memory
from cdc.connector import TcpConnector, connect
from cdc.event_store.contract import EventStore
from cdc.event_store.transaction import Events, LogPosition, StoreMetrics, Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.server.destinations import ServedDestination
from cdc.server.memory import MemoryFolder
from cdc.store.formats.state import Beginning, record_beginning
from cdc.store.writer.durability import PutStatus
from cdc.testing.meta_contract import IDENTITY
from tests.support.canal_client import listening

BEGIN = make_seq(0, 1, 4)
_LOOK_S = 0.05


class Kind(NamedTuple):
    """A kind of store and of meta."""

    store: str
    meta: str
    zookeeper: bool = False

    @property
    def name(self) -> str:
        return f"{self.store}-{self.meta}{'-zookeeper' if self.zookeeper and self.meta == 'mixed' else ''}"

    @property
    def forgets(self) -> bool:
        """Returns whether a restart forgets cursors."""
        return self.meta == "memory"


KINDS = [
    Kind("file", "file"),
    Kind("memory", "memory"),
    Kind("memory", "file"),
    Kind("memory", "mixed"),
    Kind("file", "zookeeper", True),
    Kind("memory", "zookeeper", True),
    Kind("memory", "mixed", True),
]


class Destination:
    """A destination, its store and its server. The test is the source, and writes the store as capture would."""

    def __init__(self, folder: Path, kind: Kind, zookeeper: Callable[[], str]) -> None:
        meta: dict[str, Any] = {"kind": kind.meta}
        if kind.meta != "memory":
            meta["path"] = "meta"
        if kind.zookeeper:
            meta |= {"hosts": zookeeper(), "root": f"/otter/{secrets.token_hex(4)}"}
        document = {
            "source": {"url": "mysql://t@127.0.0.1:1", "server_id": 7, "start": "now"},
            "tables": {"include": [r"shop\..*"]},
            "store": {"path": "store"} if kind.store == "file" else {"kind": "memory"},
            "meta": meta,
            "server": {"canal": {"enabled": True}, "capture": "always"},
        }
        if kind.store == "file":
            document["apply"] = {"target": "lake"}
        (folder / "conf").mkdir()
        file = folder / "conf" / "shop.yaml"
        file.write_text(yaml.safe_dump(document))
        self.kind, self.config = kind, in_memory(load(file))
        self.made: list[Transaction] = []
        """The transactions of the source."""
        self._running = ExitStack()
        self.port = 0
        self.start()

    def start(self) -> None:
        """Starts the server. A store in memory begins where its readers are, as capture makes it."""
        config = self.config
        self.served = ServedDestination(config)
        if config.store.in_memory:
            run = MemoryFolder(config)
            run.begin(self.served.meta)
            self._running.callback(run.end)
        self._running.callback(self.served.close)
        meta = self.served.meta
        positions = [subscription.position() for subscription in meta.read().subscriptions.values()]
        is_new = not (config.store.path / "store.json").exists()
        settings = config.store
        log = TransactionLog(settings.path, destination="shop", segment_bytes=settings.segment_bytes)
        self.log = log
        self._running.callback(log.close)
        begin = min(positions, default=BEGIN)
        if is_new:
            record_beginning(config.store.path, Beginning(begin, "binlog.000001", 4, None, 0, "first start"))
        meta.bind_source(IDENTITY)
        log.put([transaction for transaction in self.made if transaction.seq > begin], timeout_s=30)
        self.port = self._running.enter_context(listening([self.served]))

    def stop(self) -> None:
        self._running.close()

    def restart(self) -> None:
        """Starts the server again; what was in its memory is lost."""
        self.stop()
        self.start()

    def put(self, transactions: Sequence[Transaction], timeout_s: float | None = 30.0) -> PutStatus:
        self.made += transactions
        return self.log.put(transactions, timeout_s=timeout_s)

    def connect(self, client_id: int = 1001, table_filter: str = "") -> TcpConnector:
        """Returns a client with a subscription."""
        client = connect(f"127.0.0.1:{self.port}", "shop", client_id=client_id, retry_for_s=5)
        client.subscribe(table_filter)
        return client


class _Part(NamedTuple):
    """A batch of the protocol that is not acked, and the last transaction that has an entry in it."""

    id: int
    last_seq: int


class TcpStore(EventStore):
    """An event store whose puts go into a destination's store, and whose transactions come from its server over TCP.

    The protocol hands out entries, and a batch may end inside a transaction. This client asks for the smallest batches,
    puts transactions together, and acks a batch of the protocol once all transactions in it are acked.
    """

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self._connector = destination.connect()
        self._by_gtid: dict[str, Transaction] = {}
        self._ready: deque[Transaction] = deque()
        self._got: list[Transaction] = []
        self._parts: list[_Part] = []
        self._passed = self._acked = 0
        self._ack_count = 0
        self._latest: Transaction | None = None
        self._closed = False
        self._lock = threading.Lock()
        self.rows = 0
        """Rows of transactions that came for the first time."""

    def put(self, transactions: Sequence[Transaction], *, timeout_s: float | None = None) -> PutStatus:
        self._check_open()
        for transaction in transactions:
            gtid = transaction.position.gtid
            assert gtid is not None
            self._by_gtid.setdefault(gtid, transaction)
            if self._latest is None or transaction.seq > self._latest.seq:
                self._latest = transaction
        return self.destination.put(transactions, timeout_s)

    def try_put(self, transactions: Sequence[Transaction]) -> PutStatus:
        return self.put(transactions, timeout_s=5.0)

    def get(
        self,
        batch_size: int,
        *,
        start: LogPosition | None = None,
        included: bool = False,
        timeout_s: float | None = None,
    ) -> Events:
        assert start is None and not included, "the protocol has no positions"
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._check_open()
                left_s = None if deadline is None else deadline - time.monotonic()
                while not self._is_whole(batch_size) and self._fetch(None):
                    pass
                if self._is_whole(batch_size) or (left_s is not None and left_s <= 0):
                    return self._take(batch_size)
                self._fetch(_LOOK_S if left_s is None else max(0.001, min(_LOOK_S, left_s)))
            time.sleep(0.005)  # lets other threads have the connection

    def wait_for_more(self, timeout_s: float | None = None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._check_open()
                if self._ready or self._fetch(None):
                    return bool(self._ready)
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.005)

    def _fetch(self, timeout_s: float | None) -> bool:
        batch = self._connector.get_without_ack(1, timeout_s)
        if not batch:
            return False
        last = 0
        for entry in batch.entries:
            transaction = self._by_gtid[entry.gtid]
            last = transaction.seq
            if entry.kind in ("end", "ddl") and last > self._passed:
                self._ready.append(transaction)
                self._passed = last
            if last > self._passed:
                self.rows += len(entry.rows)
        self._parts.append(_Part(batch.id, last))
        return True

    def _is_whole(self, size: int) -> bool:
        return sum(transaction.events for transaction in self._ready) >= size or any(
            transaction.ddl for transaction in self._ready
        )

    def _take(self, size: int) -> Events:
        taken: list[Transaction] = []
        while self._ready:
            transaction = self._ready[0]
            if taken and (transaction.ddl or taken[0].ddl or sum(t.events for t in taken) + transaction.events > size):
                break
            taken.append(self._ready.popleft())
        self._got += taken
        if not taken:
            return Events(())
        return Events(taken, taken[0].position, taken[-1].position, taken[-1].position)

    def ack(self, position: LogPosition) -> None:
        with self._lock:
            self._check_open()
            indexes = [
                n for n, transaction in enumerate(self._got) if transaction.position.identity == position.identity
            ]
            if not indexes:
                raise BatchError("no outstanding transaction ends there", place=str(position))
            self._ack_count += indexes[0] + 1
            self._acked = position.seq
            del self._got[: indexes[0] + 1]
            while self._parts and self._parts[0].last_seq <= self._acked:
                self._connector.ack(self._parts.pop(0).id, confirm=True)

    def rollback(self, batch: Events | None = None) -> None:
        with self._lock:
            self._check_open()
            if batch is None:
                self._connector.rollback(confirm=True)
                self._again(0, [])
                return
            if not batch.transactions:
                return
            seqs = {transaction.seq for transaction in batch.transactions}
            first = next((n for n, transaction in enumerate(self._got) if transaction.seq in seqs), None)
            if first is None:
                raise BatchError("the batch is not outstanding", place=str(batch.start))
            begin = self._got[first].seq
            part = next(n for n, part in enumerate(self._parts) if part.last_seq >= begin)
            self._connector.rollback(self._parts[part].id, confirm=True)
            self._again(part, self._got[:first])

    def _again(self, part: int, kept: list[Transaction]) -> None:
        del self._parts[part:]
        self._ready.clear()
        self._got = kept
        self._passed = kept[-1].seq if kept else self._acked

    def first_position(self) -> LogPosition | None:
        """The oldest transaction that the client has got and not acked."""
        return self._got[0].position if self._got else None

    def latest_position(self) -> LogPosition | None:
        """The last position that was written."""
        return None if self._latest is None else self._latest.position

    def clean_until(self, position: LogPosition) -> None:
        raise NotImplementedError

    def clean_all(self) -> None:
        raise NotImplementedError

    def metrics(self) -> StoreMetrics:
        """The counts of the client."""
        held = sum(transaction.events for transaction in self._got)
        return StoreMetrics(ack_transactions=self._ack_count, held_events=held)

    def reopen(self) -> TcpStore:
        """Starts the server again, and returns a new client."""
        self.close()
        self.destination.restart()
        reopened = TcpStore(self.destination)
        reopened._by_gtid = self._by_gtid
        reopened._latest = self._latest
        return reopened

    def close(self) -> None:
        self._closed = True
        with self._lock:
            self._connector.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the store was closed")
