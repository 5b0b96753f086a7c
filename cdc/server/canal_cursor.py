"""The batches of one client id: which entries it has, which it gets next, and what it has acked.

The server takes leases of whole transactions from the batch service and hands their entries out in Canal's batches,
which may end inside a transaction. Once all entries of a lease are acked, the lease is acked. Of a lease that is acked
in part, the cursor on disk moves behind the whole transactions about once a second, as Canal's does
(``FileMixedMetaManager``). After a kill of the server, what was acked since then comes again.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cdc.base.errors import BatchError, BatchOrderError, CdcError, CutOffError, StorageError, UsageError
from cdc.base.log import get_logger
from cdc.batches.manifest import schemas_of
from cdc.batches.service import limits_of
from cdc.batches.subscribers import make_filter, skip_unwanted
from cdc.canal.encoder import EncoderMark, EntryEncoder, Taken
from cdc.canal.zones import Zone

if TYPE_CHECKING:
    from cdc.batches.lease import Lease
    from cdc.config import DestinationConfig
    from cdc.server.destinations import ServedDestination
    from cdc.store.reader.batch_builder import Limits

LEASE_BYTES = 8 << 20
"""Bytes of transactions in a lease; a larger transaction is one of its own."""
MOST_UNACKED_BYTES = 64 << 20
"""A client that has not acked so many bytes of transactions gets nothing more until it acks."""
MOST_UNACKED_BATCHES = 10_000
SAVE_S = 1.0
"""The interval at which acks of parts of a lease are saved, as in Canal (``canal.file.flush.period``)."""
_LEASE_S = 3600.0
_ID_BITS = 20
_SKIP_S = 0.1
_PART_OF_BUFFER = 4
"""A lease has at most this part of the buffer of a store in memory, so that acks make room while others are held."""
_GROWTH = 4.0
"""Bytes of entries for each byte of events, as long as none was made."""
_log = get_logger(__name__)


@dataclass(eq=False)
class _Held:
    """A lease, and the entries that are made of it."""

    lease: Lease
    encoder: EntryEncoder
    start: EncoderMark
    done_seq: int = 0
    """The last transaction of which the client has acked all entries."""
    saved_seq: int = 0
    """The last one that the cursor on disk is behind."""
    taken_bytes: int = 0
    """Bytes of the events that were handed out."""


@dataclass(eq=False)
class _Batch:
    id: int
    held: _Held
    """The lease in which it begins."""
    mark: EncoderMark
    taken_bytes: int
    """Bytes of the lease before the batch."""
    ends: list[_Held] = field(default_factory=list)
    """The leases whose last entry is in it."""
    last: _Held | None = None
    """The lease in which it ends, and the last transaction that is whole by then."""
    done_seq: int = 0


@dataclass(frozen=True, eq=False)
class _Prepared:
    batch: _Batch
    parts: list[Taken]
    max_bytes: int


class ClientCursor:
    """The batches of one client id of a destination. Calls must not overlap."""

    def __init__(self, served: ServedDestination, client_id: int, zone: Zone) -> None:
        self._served = served
        self._service = served.batches
        self._zone = zone
        self.client_id = client_id
        self.subscriber = subscriber_of(client_id)
        self._owner = f"canal:{socket.gethostname()}:{served.config.file}"
        self._held: deque[_Held] = deque()
        self._at = 0
        """The lease from which the next entry comes."""
        self._batches: deque[_Batch] = deque()
        self._prepared: _Prepared | None = None
        """A batch that was made before the client has asked for it."""
        self._failed: CdcError | None = None
        """Why that failed."""
        # Ids that nothing remembers begin with the time, so that a late ack does not mean a batch after a restart.
        self._last_id = (time.time_ns() // 1_000_000) << _ID_BITS if served.config.forgets_readers else 0
        self._is_fresh = True
        self._growth = _GROWTH
        """Bytes of entries for each byte of events, in the last batch."""
        self._saved_at = 0.0
        """When the cursor on disk moved last inside a lease."""
        self._skipped_at = 0.0
        """When it was looked last whether the cursor may move over what the client does not get."""

    # --- subscription

    @property
    def is_subscribed(self) -> bool:
        return self.subscriber in self._served.meta.read().subscriptions

    def subscribe(self, pattern: str | None, *, keep: bool) -> None:
        """Subscribes, or replaces the filter; ``keep``: a filter that is there stays. Raises UsageError."""
        subscription = self._served.meta.read().subscriptions.get(self.subscriber)
        if subscription is not None and (keep or subscription.filter == pattern):
            return
        if not self._served.is_readable():  # else the meta would look like that of a lost store
            raise StorageError(
                "nothing was captured yet",
                place=self._served.name,
                remedy=f"Start `cdc capture {self._served.name}`, then connect again.",
            )
        self.forget()
        with self._served.joining():
            self._service.subscribe(self.subscriber, pattern)

    def unsubscribe(self) -> None:
        """Ends the subscription. Its cursor goes, too."""
        self.forget()
        if self.is_subscribed:
            self._service.unsubscribe(self.subscriber)

    # --- batches

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing in memory."""
        return not self._held

    def pending_bytes(self, enough: int) -> int:
        """About how many bytes of entries the client could get now, counted up to ``enough``: by the events, and by how
        much larger the entries of the last batch were."""
        self._require_subscribed()
        pending = 0.0 if self._prepared is None else float(sum(part.entry_bytes for part in self._prepared.parts))
        for held in list(self._held)[self._at :]:
            if held.lease.manifest.ddl:  # it is a batch of its own, and ends the one before it
                return enough
            if not held.encoder.is_finished:
                pending += max(1, held.lease.manifest.bytes - held.taken_bytes) * self._growth
        if pending >= enough:
            return int(pending)
        state = self._served.meta.read()
        subscription = state.subscriptions[self.subscriber]
        reader = self._served.reader()
        if not reader.exists():
            return int(pending)
        limits = replace(limits_of(self._served.config.batch), max_bytes=enough)
        selection = reader.select(subscription.start_seq(), limits, make_filter(subscription.filter))
        if selection is None:
            self._skip()
            return self._all_there_is(int(pending), enough)
        if selection.ddl:
            return enough
        return self._all_there_is(int(pending + selection.bytes * self._growth), enough)

    def _all_there_is(self, pending: int, enough: int) -> int:
        """Returns ``enough`` if there will not be more before the client acks: the buffer of a store in memory is full.
        Else ``pending``."""
        return enough if pending and self._served.is_full else pending

    def _skip(self) -> None:
        """Moves the cursor over what the client does not get, in a store in memory, where nothing else would make room
        for what follows. On a disk, the service does it for filtered clients."""
        now = time.monotonic()
        if self._held or not self._served.config.store.in_memory or now - self._skipped_at < _SKIP_S:
            return
        self._skipped_at = now
        skip_unwanted(self._served.meta, self._served.reader(), self.subscriber)

    def take(self, max_bytes: int) -> tuple[int, list[Taken]] | None:
        """Hands out a batch of as many entries as have more than ``max_bytes`` together: its id and entries; None if
        there are none, or too many are not acked. Raises what the batch service and the decoder raise; the client then
        begins again with its first entry that is not acked."""
        self._require_subscribed()
        try:
            if self._failed is not None:
                raise self._failed
            prepared = self._prepared
            if prepared is not None and prepared.max_bytes != max_bytes:
                self.drop_prepared(prepared.batch.id)
                prepared = None
            if prepared is not None:
                batch_parts: tuple[_Batch, list[Taken]] | None = (prepared.batch, prepared.parts)
                self._prepared = None
            elif self._is_held_back:
                return None
            else:
                self.renew()
                batch_parts = self._make(max_bytes)
        except CdcError:
            self.forget()
            raise
        if batch_parts is None:
            return None
        self._batches.append(batch_parts[0])
        return batch_parts[0].id, batch_parts[1]

    def prepare(self, max_bytes: int) -> int | None:
        """Makes the next batch before the client asks for it: :meth:`take` returns it if it is called with the same
        limit, and raises what this could not do. Returns its id; None if there is no full batch yet."""
        if self._prepared is not None or self._failed is not None or self._is_held_back or not self.is_subscribed:
            return None
        try:
            batch_parts = self._make(max_bytes)
        except CdcError as error:
            self._failed = error
            return None
        if batch_parts is None:
            return None
        self._prepared = _Prepared(*batch_parts, max_bytes)
        if sum(part.entry_bytes for part in batch_parts[1]) <= max_bytes:  # more may come until the client asks
            self.drop_prepared(batch_parts[0].id)
            return None
        return batch_parts[0].id

    def drop_prepared(self, batch: int) -> None:
        """Drops the batch that was made ahead, if it is this one; it is made again when the client asks."""
        if self._prepared is not None and self._prepared.batch.id == batch:
            self._batches.append(self._prepared.batch)
            self._roll_back(len(self._batches) - 1)

    @property
    def _is_held_back(self) -> bool:
        """Whether the client has to ack before it gets more."""
        return self._unacked_bytes() >= MOST_UNACKED_BYTES or len(self._batches) >= MOST_UNACKED_BATCHES

    def _make(self, max_bytes: int) -> tuple[_Batch, list[Taken]] | None:
        batch: _Batch | None = None
        parts: list[Taken] = []
        size = 0
        newest: int | None = None
        while size <= max_bytes:
            if self._at == len(self._held):
                if parts and self._unacked_bytes() >= MOST_UNACKED_BYTES:
                    break
                if newest is None:  # what comes meanwhile is for the next batch: a busy source never ends
                    newest = self._served.reader().last_seq() or 0
                if not self._lease_next(newest):
                    break
            held = self._held[self._at]
            if batch is not None and (held.lease.manifest.ddl or batch.held.lease.manifest.ddl):
                break
            mark = held.encoder.mark()
            taken = held.encoder.take(max_bytes - size)
            if taken is not None and taken.size == 0:  # statements that clients do not get
                held.encoder.spare, taken = taken.out, None
            if taken is not None:
                if batch is None:
                    self._last_id = max(self._last_id + 1, held.lease.batch << _ID_BITS)
                    batch = _Batch(self._last_id, held, mark, held.taken_bytes)
                parts.append(taken)
                size += taken.entry_bytes
                self._growth = max(1.0, taken.entry_bytes / max(1, taken.source_bytes))
                held.taken_bytes += taken.source_bytes
                batch.last, batch.done_seq = held, taken.done_seq
            if held.encoder.is_finished:
                held.encoder.rest()
                self._at += 1
                if batch is not None:
                    batch.ends.append(held)
                elif self._batches:
                    self._batches[-1].ends.append(held)
                else:
                    self._ack(held)
        return None if batch is None else (batch, parts)

    def give_back(self, parts: list[Taken]) -> None:
        """Lets the buffer of a batch that was sent be used again."""
        if self._at < len(self._held) and parts:
            self._held[self._at].encoder.spare = parts[-1].out

    def ack(self, batch: int) -> None:
        """Acks a batch. Raises BatchOrderError if it is not the first one, BatchError if it is not there."""
        first = self._batches[0] if self._batches else None
        if first is None or all(batch_held.id != batch for batch_held in self._batches):
            raise BatchError(
                f"ack error, clientId:{self.client_id} batchId:{batch} is not exist, please check",
                remedy="The batch was acked or rolled back before, or the server was started again. Get again.",
            )
        if first.id != batch:
            raise BatchOrderError(
                f"batchId:{batch} is not the firstly:{first.id}", remedy=f"Ack batch {first.id} first."
            )
        self._batches.popleft()
        for held in first.ends:
            self._ack(held)
        if first.last is not None:
            first.last.done_seq = max(first.last.done_seq, first.done_seq)
        if time.monotonic() - self._saved_at >= SAVE_S:
            self.save()

    def rollback(self, batch: int | None) -> None:
        """Rolls back a batch and all later ones; None: all. Raises BatchError."""
        if batch is None:
            if self._batches:
                self._roll_back(0)
            return
        for number, held_batch in enumerate(self._batches):
            if held_batch.id == batch:
                self._roll_back(number)
                return
        raise BatchError(f"rollback error, clientId:{self.client_id} batchId:{batch} is not exist, please check")

    def _roll_back(self, number: int) -> None:
        first = self._batches[number]
        self._prepared = None
        while len(self._batches) > number:
            self._batches.pop()
        self._at = self._held.index(first.held)
        for held in list(self._held)[self._at + 1 :]:
            held.encoder.seek(held.start)
            held.taken_bytes = 0
        first.held.taken_bytes = first.taken_bytes
        first.held.encoder.seek(first.mark)

    # --- leases

    def _require_subscribed(self) -> None:
        if not self.is_subscribed:
            raise UsageError(
                f"clientId:{self.client_id} should subscribe first", place=self._served.name, remedy="Subscribe."
            )

    def _unacked_bytes(self) -> int:
        return sum(held.lease.manifest.bytes for held in list(self._held)[: self._at])

    def _lease_next(self, until_seq: int) -> bool:
        """Leases the next transactions up to a seq. Returns False if there are none."""
        if self._is_fresh:
            # An earlier process's leases are rolled back, so that ids of its batches mean nothing any more.
            self._service.release(self._owner, subscriber=self.subscriber)
            self._is_fresh = False
        try:
            lease = self._service.get(
                self._owner,
                subscriber=self.subscriber,
                limits=replace(lease_limits(self._served.config), until_seq=until_seq),
                wait_s=0,
                lease_s=_LEASE_S,
                ahead=bool(self._held),
            )
        except CutOffError as error:
            if not self._served.config.store.in_memory:
                raise
            raise CutOffError(
                f"clientId:{self.client_id} has fallen behind what the source still has: {error.message}",
                place=self._served.name,
                remedy="Unsubscribe and subscribe again, to go on where the store in memory begins. The changes "
                "between are lost to this client.",
            ) from None
        if lease is None:
            self._skip()
            return False
        pattern = make_filter(lease.manifest.table_filter)
        encoder = EntryEncoder(
            [(byte_range.path, byte_range.offset, byte_range.length) for byte_range in lease.manifest.ranges],
            schemas=schemas_of(lease.manifest),
            is_wanted=(lambda name: True) if pattern is None else pattern.matches,
            file_of=self._served.reader().source_file,
            ignores_case=self._served.config.tables.ignores_case,
            zone=self._zone,
        )
        self._held.append(_Held(lease, encoder, encoder.mark()))
        return True

    def _ack(self, held: _Held) -> None:
        lease = held.lease
        if lease.expires - datetime.now(UTC) < timedelta(seconds=_LEASE_S / 10):
            self._renew(held)
        try:
            self._service.ack(held.lease.batch, held.lease.token, subscriber=self.subscriber)
        except CdcError:
            self.forget()
            raise
        self._held.remove(held)
        self._at -= 1

    def renew(self) -> None:
        """Renews the leases that will expire soon."""
        for held in list(self._held):
            if held.lease.expires - datetime.now(UTC) < timedelta(seconds=_LEASE_S / 2):
                self._renew(held)

    def _renew(self, held: _Held) -> None:
        expires = self._service.renew(held.lease.batch, held.lease.token, subscriber=self.subscriber, lease_s=_LEASE_S)
        held.lease = replace(held.lease, expires=expires)

    def forget(self) -> None:
        """Rolls back all leases. What is not acked comes again in new batches."""
        self._held.clear()
        self._batches.clear()
        self._prepared = self._failed = None
        self._at = 0
        self._service.release(self._owner, subscriber=self.subscriber)

    @property
    def has_unsaved(self) -> bool:
        """Whether the client has acked whole transactions of a lease that are not acked on disk."""
        return bool(self._held) and self._held[0].done_seq > self._held[0].saved_seq

    def save(self) -> None:
        """Moves the cursor on disk behind the whole transactions that the client has acked. If that fails, it is tried
        again: nothing is lost, but entries may come twice."""
        if not self.has_unsaved:
            return
        self._saved_at, first = time.monotonic(), self._held[0]
        batch = first.lease.manifest
        try:
            if batch.after_seq < first.done_seq < batch.last_seq:
                self._service.ack_until(batch.batch, first.lease.token, first.done_seq, subscriber=self.subscriber)
        except CdcError as error:
            _log.warning("client's acks are not saved", client=self.client_id, reason=str(error))
            return
        first.saved_seq = first.done_seq

    def park(self) -> None:
        """Rolls back all leases, after the whole transactions at their begin that the client has acked."""
        self.save()
        self.forget()


def lease_limits(config: DestinationConfig) -> Limits:
    """Returns the limits of a lease."""
    limits = replace(limits_of(config.batch), max_bytes=LEASE_BYTES)
    store = config.store
    if not store.in_memory:
        return limits
    part = max(1, store.buffer_size // _PART_OF_BUFFER)
    if store.batch_mode == "memsize":
        return replace(limits, max_bytes=min(LEASE_BYTES, part * store.buffer_unit_bytes))
    return replace(limits, max_row_events=part, max_transactions=part)


def subscriber_of(client_id: int) -> str:
    """Returns the name of a client id's subscription."""
    return f"canal-{client_id}"
