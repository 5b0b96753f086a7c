"""The loop of a push: lease a batch, send its messages, wait for the brokers, ack.

Nothing is acked before the brokers have acknowledged every message of the batch. After a kill or a failure the batch
comes again from its begin, so its messages may arrive twice, in their order; no message of a later batch was sent
before that.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cdc.base.errors import BatchError, CdcError, ConfigError, StorageError, TokenError
from cdc.base.log import get_logger
from cdc.base.units import iso_time
from cdc.batches.lease import Lease, renewed
from cdc.batches.manifest import schemas_of
from cdc.batches.service import limits_of
from cdc.batches.subscribers import make_filter
from cdc.binlog.positions import make_file_name, split_file_name, split_seq
from cdc.canal.encoder import EntryEncoder
from cdc.canal.mq.definitions import MessageOptions
from cdc.canal.mq.producer import KafkaSender, require_client
from cdc.canal.mq.rules import Rules
from cdc.canal.mq.writer import MessageWriter
from cdc.canal.zones import UTC as UTC_ZONE
from cdc.canal.zones import zone_of
from cdc.client import open_batches, open_store
from cdc.disk.durable import locked, locked_as_it_is
from cdc.disk.permissions import CHANGE, secure_folder
from cdc.store.reader.reader import StoreReader

if TYPE_CHECKING:
    from cdc.batches.protocol import Batches
    from cdc.canal.mq.producer import Sender
    from cdc.config import DestinationConfig
    from cdc.store.reader.batch_builder import Limits

_LEASE_BYTES = 8 << 20
"""Bytes of transactions in a batch; a larger transaction is one of its own."""
_TAKE_BYTES = 4 << 20
_PART_BYTES = 64 << 20
"""A larger batch is sent in parts of about this size, each of which the brokers acknowledge."""
_LEASE_S = 60.0
_WAIT_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_BOUNDED_ATTEMPTS = 5
_LOCK_WAIT_S = 0.5
_log = get_logger(__name__)


@dataclass
class PushStats:
    """The work of a push since its start."""

    batches: int = 0
    """Batches that were acked."""
    messages: int = 0
    """Messages that the brokers have acknowledged."""
    bytes: int = 0
    """Bytes of their values and keys."""
    rows: int = 0
    errors: int = 0
    """Failures, after each of which the batch was rolled back."""
    acked_seq: int = 0
    """The last transaction that was acked; 0: none."""
    last_error: str | None = None
    """The last failure; None once a batch has been acked after it, or there is none left."""
    failing_since: float = 0.0
    """When the first of the last failures in a row happened, by the monotonic clock."""


def _is_lost(error: CdcError) -> bool:
    """Whether another process has taken the batch, or its lease has expired. The pusher then calls ``get`` again."""
    return isinstance(error, TokenError) or type(error) is BatchError


class _Stopped(Exception):
    """The push is to end in the middle of a batch."""


class Pusher:
    """Pushes the changes of one destination. :meth:`run` may be called in any thread, one at a time."""

    def __init__(
        self,
        config: DestinationConfig,
        *,
        batches: Batches | None = None,
        sender: Callable[[DestinationConfig], Sender] | None = None,
    ) -> None:
        """``batches``: those of a program that has the store open; None: they are opened. ``sender`` makes the
        producer.

        Raises ConfigError if the destination has no brokers, an expression cannot be read, or Kafka's client is not
        installed.
        """
        if not config.mq.servers:
            raise ConfigError(
                "no brokers are configured, so there is nothing to push to",
                place=f"{config.file}: mq.servers",
                remedy="Add mq: {servers: [HOST:9092], topic: NAME}.",
            )
        self.config = config
        self.stats = PushStats()
        self._batches = batches
        self._subscriber = config.mq.subscriber
        self._owner = f"push:{socket.gethostname()}:{config.file}"
        self._zone = zone_of(config.mq.time_zone)
        if sender is None:
            require_client()
            sender = KafkaSender
        self._make_sender = sender
        self._sender: Sender | None = None
        self._writer = self._new_writer()
        self._stop = threading.Event()
        self._is_subscribed = False
        self._lost = False
        """Whether another owner has the batch that is sent."""

    def _new_writer(self) -> MessageWriter:
        mq = self.config.mq
        assert mq.topic is not None  # the configuration was checked
        rules = Rules(mq.topic, mq.dynamic_topics, mq.partition, mq.partitions, mq.partition_hash, mq.database_hash)
        rules.check()
        options = MessageOptions(
            format=mq.format,
            rules=rules,
            name=self.config.name,
            connector="mariadb" if self.config.source.url.startswith("mariadb") else "mysql",
            decimals=mq.decimals,
            tombstones=mq.tombstones,
        )
        return MessageWriter(options, max_bytes=mq.max_message_bytes, with_ddl=mq.ddl)

    # --- the loop

    def run(self, stop: threading.Event | None = None, *, until_empty: bool = False) -> PushStats:
        """Pushes until ``stop`` is set; with ``until_empty`` until everything that the store has is acked, or five
        tries in a row have failed. Returns the stats.

        Raises permanent errors at once; retryable ones after the last try of ``until_empty``, LeaseHeldError if
        another process pushes this destination here.
        """
        self._stop = threading.Event() if stop is None else stop
        with self._alone():
            try:
                self._run(until_empty)
            finally:
                self._drop_sender()
        return self.stats

    def _run(self, until_empty: bool) -> None:
        failures = 0
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                done = self._push_next(0.0 if until_empty else _WAIT_S)
            except _Stopped:
                return
            except CdcError as error:
                self.stats.errors += 1
                if self.stats.last_error is None:
                    self.stats.failing_since = time.monotonic()
                self.stats.last_error = str(error)
                failures += 1
                self._drop_sender()
                if not (error.retryable or _is_lost(error)) or (until_empty and failures >= _BOUNDED_ATTEMPTS):
                    raise
                pause = random.uniform(pause_s / 2, pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                _log.warning("push failed; trying again", reason=str(error), pause_s=round(pause, 1))
                self._stop.wait(pause)
                continue
            failures, pause_s = 0, _FIRST_PAUSE_S
            self.stats.last_error = None
            if until_empty and not done:
                return

    def _push_next(self, wait_s: float) -> bool:
        """Pushes a batch. Returns False if there is none."""
        batches = self._opened()
        lease = batches.get(
            self._owner, subscriber=self._subscriber, limits=self._limits(), wait_s=wait_s, lease_s=_LEASE_S
        )
        if lease is None:
            return False
        try:
            with renewed(batches, lease, _LEASE_S, self._lease_lost, lambda: datetime.now(UTC)):
                counted = self._push(lease)
        except BaseException:
            self._abort()
            self._roll_back(lease)
            raise
        batches.ack(lease.batch, lease.token, subscriber=self._subscriber)
        stats = self.stats
        stats.batches += 1
        stats.messages, stats.bytes, stats.rows = (
            old + new for old, new in zip((stats.messages, stats.bytes, stats.rows), counted, strict=True)
        )
        stats.acked_seq = lease.manifest.last_seq
        return True

    def _push(self, lease: Lease) -> tuple[int, int, int]:
        """Sends the messages of a batch and waits for the brokers. Returns messages, bytes and rows."""
        self._lost = False
        encoder = self._encoder(lease)
        sender: Sender | None = None
        messages = size = rows = part = 0
        self._writer.begin()
        while (taken := encoder.take(_TAKE_BYTES)) is not None:
            for some in self._writer.messages(taken, lease.batch):
                if self._stop.is_set() or self._lost:
                    raise _Stopped
                if sender is None:
                    sender = self._begin()
                sender.send(some)
                sent = sum(len(message.value or b"") + len(message.key or b"") for message in some)
                messages, rows = messages + len(some), rows + sum(message.rows for message in some)
                size, part = size + sent, part + sent
            encoder.spare = taken.out
            if part >= _PART_BYTES and sender is not None:
                sender.commit()
                sender, part = None, 0
        if sender is not None:
            sender.commit()
        return messages, size, rows

    def _encoder(self, lease: Lease) -> EntryEncoder:
        manifest = lease.manifest
        pattern = make_filter(manifest.table_filter)
        return EntryEncoder(
            [(byte_range.path, byte_range.offset, byte_range.length) for byte_range in manifest.ranges],
            schemas=schemas_of(manifest),
            is_wanted=(lambda name: True) if pattern is None else pattern.matches,
            file_of=self._file_of(lease),
            ignores_case=self.config.tables.ignores_case,
            zone=UTC_ZONE if self.config.mq.format == "debezium-json" else self._zone,
        )

    def _file_of(self, lease: Lease) -> Callable[[int], str]:
        """The name of the source's file that a seq lies in."""
        if self.config.store.kind == "file":
            source = self._opened().meta.source()
            return StoreReader(self.config.store.path, None if source is None else source.base_name).source_file

        base = split_file_name(lease.manifest.positions.last.file)[0]
        return lambda seq: make_file_name(base, split_seq(seq).file_number)

    # --- batches and the producer

    def _opened(self) -> Batches:
        """The batches, once the subscription has the configured filter."""
        if self._batches is None:
            self._batches = open_batches(self.config)
        if not self._is_subscribed:
            if not open_store(self.config).exists():  # else the meta would look like that of a lost store
                raise StorageError(
                    "nothing was captured yet",
                    place=self.config.name,
                    remedy=f"Start `cdc capture {self.config.name}`.",
                )
            subscription = self._batches.meta.read().subscriptions.get(self._subscriber)
            if subscription is None or subscription.filter != self.config.mq.filter:
                self._batches.release(self._owner, subscriber=self._subscriber)
                self._batches.subscribe(self._subscriber, self.config.mq.filter)
            self._is_subscribed = True
        return self._batches

    def _limits(self) -> Limits | None:
        """The batches of a server have its limits."""
        from dataclasses import replace

        if self.config.store.kind != "file":
            return None
        configured = limits_of(self.config.batch)
        return replace(configured, max_bytes=min(configured.max_bytes, _LEASE_BYTES))

    def _begin(self) -> Sender:
        if self._sender is None:
            self._sender = self._make_sender(self.config)
        self._sender.begin()
        return self._sender

    def _lease_lost(self) -> None:
        self._lost = True

    def _abort(self) -> None:
        if self._sender is not None:
            self._sender.abort()
            self._drop_sender()

    def _drop_sender(self) -> None:
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _roll_back(self, lease: Lease) -> None:
        try:
            assert self._batches is not None
            self._batches.rollback(lease.batch, lease.token, subscriber=self._subscriber)
        except BatchError as error:  # another owner has it
            _log.warning("batch not rolled back", batch=lease.batch, reason=str(error))
        except CdcError as error:  # the next get of this owner hands it out again
            _log.warning("batch not rolled back; it is sent again", batch=lease.batch, reason=str(error))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Makes this the only push of the destination on this machine. Raises LeaseHeldError."""
        what = f"another `cdc push` for {self.config.name}"
        if self.config.store.kind == "server":
            with locked_as_it_is(self.config.file, what):
                yield
            return
        meta = self.config.meta
        secure_folder(meta.path, meta.permissions, CHANGE)
        # A process that looks whether a push runs takes the lock for a moment.
        with locked(meta.path / self.config.mq.lock_name, what, wait_s=_LOCK_WAIT_S):
            yield

    # --- status

    def status(self) -> dict[str, Any]:
        """Returns the stats and the subscription as one document. May be called in any thread: it opens store and meta
        for itself. Raises MetaUnavailableError, StorageError."""
        batches = open_batches(self.config)
        subscription = batches.meta.read().subscriptions.get(self._subscriber)
        acked = 0 if subscription is None else subscription.acked_seq
        behind = None
        store = open_store(self.config)
        if subscription is not None and store.exists():
            backlog = store.backlog(acked, make_filter(subscription.filter))
            oldest_us = backlog.oldest_commit_time_us
            behind = {
                "transactions": backlog.transactions,
                "bytes": backlog.bytes,
                "lag_s": 0.0 if oldest_us is None else round(max(0.0, time.time() - oldest_us / 1e6), 3),
            }
        return {
            "destination": self.config.name,
            "subscriber": self._subscriber,
            "time": iso_time(datetime.now(UTC)),
            **{key: value for key, value in asdict(self.stats).items() if key != "failing_since"},
            "acked_seq": acked,
            "behind": behind,
        }
