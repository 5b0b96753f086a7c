"""get, ack, rollback: the rules of the batch protocol over a store and a meta.

The order of writes makes a kill at any moment harmless. A manifest is on disk before its batch is outstanding, and the
results of a merge are in the manifest before the batch is acked. Files that a kill leaves behind are overwritten or
removed later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cdc.base.errors import CdcError, DamagedError, IdentityError, TokenError, UsageError, VersionError
from cdc.base.log import get_logger
from cdc.base.units import time_us
from cdc.batches.lease import Lease, new_token
from cdc.batches.lease import fingerprint as fingerprint_of
from cdc.batches.manifest import BatchFiles, ByteRange, Manifest, build_manifest
from cdc.batches.manifest_files import ManifestFiles, load_manifest
from cdc.batches.parking import excluded_tables, park_excluded, park_left_out
from cdc.batches.preconditions import (
    are_same_bytes,
    first_seq,
    held_error,
    incomplete_error,
    is_repeated,
    require_last_acked,
    require_manifest_of,
    require_store,
    require_token,
)
from cdc.batches.results import history_mark, read_results, record_tables
from cdc.batches.stage import Stage, folder_of
from cdc.batches.subscribers import (
    accept_beginning,
    accept_tables,
    add_subscriber,
    make_filter,
    remove_subscriber,
    roll_back_from,
    skip_unwanted,
)
from cdc.binlog.gtids import Flavor, GtidSet, format_state, parse_state
from cdc.meta import Gap, HistoryMark, Meta, Outstanding, SourceIdentity, State, Subscription, TableRecord, open_meta
from cdc.meta.state import check_name
from cdc.store.formats.gtids import GtidCheckpoint
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import Schemas
    from cdc.config import BatchConfig, DestinationConfig
    from cdc.store.formats.state import Beginning, CaptureState
    from cdc.store.reader.batch_builder import Limits, Selection, TableFilter

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_UNLIMITED_BYTES = 1 << 62
_REMEMBERED_TOKENS = 16
_SKIP_S = 1.0
"""The least interval at which a cursor moves over transactions that its filter leaves out: each move writes the
meta."""
_log = get_logger(__name__)


class Reader(Protocol):
    """The part of :class:`cdc.store.reader.reader.StoreReader` that the service needs."""

    def select(self, after_seq: int, limits: Limits, table_filter: TableFilter | None = None) -> Selection | None: ...

    def schema_path(self, last_seq: int) -> Path | None: ...

    def has_foreign_keys(self, after_seq: int, last_seq: int) -> bool: ...

    def removed_seq(self) -> int: ...

    def last_seq(self) -> int | None: ...

    def require_kept(self, after_seq: int) -> None: ...

    def newest_schemas(self) -> tuple[int, Schemas] | None: ...

    def gtids_until(self, last_seq: int, flavor: Flavor, earlier: GtidCheckpoint | None = None) -> GtidSet | None: ...

    def exists(self) -> bool: ...

    def beginning(self) -> Beginning | None: ...

    def skippable_until(self, after_seq: int, table_filter: TableFilter | None = None) -> int: ...

    def complete_until_us(self) -> int: ...

    def capture_state(self) -> CaptureState | None: ...


@dataclass(frozen=True)
class _Request:
    """The arguments of a get, with defaults filled in."""

    owner: str
    subscriber: str
    limits: Limits
    until: datetime | None
    deadline: float
    """The time of the monotonic clock at which the get gives up."""
    lease_s: float
    ahead: bool
    token: str = field(repr=False)
    """The token of the lease. A request that repeats one whose answer was lost has the same token, by which the batch
    that was handed out then is found."""
    after: tuple[int, str] | None = field(default=None, repr=False)
    """The batch that this process has just acked, and its token: only the one that follows it is wanted."""


class BatchService:
    """The batches of one destination. Any number of processes may each have a service at the same time."""

    def __init__(
        self,
        config: DestinationConfig,
        *,
        reader: Reader | None = None,
        meta: Meta | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        mixes: bool = False,
    ) -> None:
        """``mixes``: whether new batches may hold rows and DDL statements, as :attr:`Limits.mixes` says."""
        self._config = config
        self._mixes = mixes
        self._known_reader = reader
        self._clock = clock
        self.meta: Meta = open_meta(config) if meta is None else meta
        self.manifests = ManifestFiles(config.meta.path, permissions=config.meta.permissions)
        self._skipped: dict[str, float] = {}
        """When the cursor of a subscriber was moved over what its filter leaves out, by the monotonic clock."""
        self._stage: Stage | None = None
        if config.store.stages_batches:
            assert config.store.stage is not None

            self._stage = Stage(config.store.stage, config.name, permissions=config.store.permissions)

    def mixing(self) -> BatchService:
        """Returns this service for a reader whose new batches may be mixed."""
        mixing = copy(self)
        mixing._mixes = True
        return mixing

    # the protocol -----------------------------------------------------------------------------------------------

    def get(
        self,
        owner: str,
        *,
        subscriber: str = "apply",
        limits: Limits | None = None,
        wait_s: float | None = None,
        lease_s: float | None = None,
        ahead: bool = False,
        until: datetime | None = None,
        token: str | None = None,
    ) -> Lease | None:
        """Hands out a batch; None if there is nothing to hand out within ``wait_s``.

        Calling it again as the same owner returns the owner's first outstanding batch, unchanged, under a new token;
        the old token is dead. A batch of another owner is taken over once its lease has expired. With ``ahead`` the
        next batch after the outstanding ones is returned instead (but an expired one of another owner first, because
        nobody else would end it). An unknown subscriber is added, and begins at the store's first transaction.

        With ``until`` (aware), repeated calls return exactly the transactions committed before that time; None then
        means that there are no more. While the store may lack some of them, the call waits. An outstanding batch that
        reaches beyond ``until`` is rolled back.

        ``token``: the new lease's token, which the caller has made at random; None: a new one. Called again with the
        same token, it returns the same lease, so that a call whose answer was lost can be repeated.

        ``limits``, ``wait_s`` and ``lease_s`` default to the configuration. Raises LeaseHeldError, naming owner and
        expiry, if another owner's lease is live; CutOffError if retention has removed the next transactions, or the
        store begins behind the cursor; StorageError if the meta knows of a store that is missing; and
        StoreIncompleteError, which says how far the store is complete.
        """
        lease_s = self._config.batch.lease_s if lease_s is None else lease_s
        limits, deadline = self._limits(limits, until), self._deadline(wait_s, until)
        token = token or new_token()
        return self._get_and_clean(
            _Request(owner, check_name(subscriber), limits, until, deadline, lease_s, ahead, token)
        )

    def get_following(
        self, acked: Lease, owner: str, *, wait_s: float | None = None, until: datetime | None = None
    ) -> Lease | None:
        """Hands out the batch that follows one that the caller has just acked; see :meth:`get` for the rest.

        Raises TokenError if another process of the owner has gone on in the meantime: only one of them may, and the one
        that came later has the batch.
        """
        return self.get_after(
            acked.batch, acked.token, owner, subscriber=acked.manifest.subscriber, wait_s=wait_s, until=until
        )

    def get_after(
        self,
        acked: int,
        acked_token: str,
        owner: str,
        *,
        subscriber: str = "apply",
        wait_s: float | None = None,
        until: datetime | None = None,
        token: str | None = None,
    ) -> Lease | None:
        """Does what :meth:`get_following` does; the acked batch is given by its id and token."""
        limits, deadline = self._limits(None, until), self._deadline(wait_s, until)
        lease_s, token, after = self._config.batch.lease_s, token or new_token(), (acked, acked_token)
        return self._get_and_clean(
            _Request(owner, check_name(subscriber), limits, until, deadline, lease_s, False, token, after)
        )

    def next_seq(self, subscriber: str = "apply") -> int | None:
        """Returns the seq of the first transaction that no batch has yet; None if the store has no more for the
        subscriber. Hands out nothing."""
        subscription = self.subscription(subscriber)
        selection = self._select(
            subscription, subscription.start_seq(), replace(limits_of(self._config.batch), max_transactions=1)
        )
        return None if selection is None else selection.first_seq

    def last_seq(self) -> int:
        """Returns the seq up to which the store has the source's transactions; 0 if it is empty."""
        return self._reader.last_seq() or 0

    def _limits(self, limits: Limits | None, until: datetime | None) -> Limits:
        limits = limits_of(self._config.batch) if limits is None else limits
        limits = replace(limits, mixes=self._mixes)
        return limits if until is None else replace(limits, until_us=time_us(until))

    def _deadline(self, wait_s: float | None, until: datetime | None) -> float:
        """Returns the end of a wait, by the monotonic clock."""
        default_s = self._config.batch.max_wait_s if until is None else self._config.batch.until_wait_s
        return time.monotonic() + (default_s if wait_s is None else wait_s)

    def _get_and_clean(self, request: _Request) -> Lease | None:
        """Hands out a batch, and removes what is not needed any more."""
        subscriber = request.subscriber
        lease = self._get(request)
        if lease is None:
            self._skip_filtered(subscriber)
        if self._stage is not None and self._reader.exists():
            self._sweep(self._stage, subscriber)
        return lease

    def _skip_filtered(self, subscriber: str) -> None:
        """Moves the cursor of a filtered subscriber over what its filter leaves out, once in a while."""
        subscription, now = self.meta.read().subscriptions.get(subscriber), time.monotonic()
        if (
            subscription is None
            or subscription.filter is None
            or now - self._skipped.get(subscriber, -_SKIP_S) < _SKIP_S
        ):
            return
        self._skipped[subscriber] = now
        skip_unwanted(self.meta, self._reader, subscriber)

    def ack(self, batch: int, token: str, *, subscriber: str = "apply", results: Any = None) -> None:
        """Moves the subscriber's cursor behind the batch.

        ``results`` has one :class:`cdc.batches.manifest.TableResult` for each table; they are kept in the manifest.
        Repeating an ack does nothing. Raises BatchOrderError if the batch is not the first outstanding one, TokenError
        for a wrong, replaced or expired token, BatchError if the batch is not outstanding.
        """
        tables = read_results(results)
        with self.meta.change() as state:
            subscription = state.subscription(subscriber)
            if is_repeated(subscription, batch, token, "acked"):
                return
            entry = subscription.require_first(batch, "acked")
            require_token(entry, token, self._clock())
            try:
                manifest = self.manifests.mark_acked(self.manifests.path(subscriber, batch), self._clock(), tables)
                skipped = [table for table in manifest.tables if table not in subscription.parked]
                park_excluded(subscription, excluded_tables(subscription, self._config.tables, skipped), self._clock())
            except DamagedError as error:  # the merge is done: ack the batch although its results are not recorded
                _log.warning(
                    "batch acked, but its results are not recorded",
                    batch=batch,
                    subscriber=subscriber,
                    reason=str(error),
                )
            subscription.remove(batch)
            subscription.acked_seq = entry.last_seq
            subscription.mark = entry.mark or subscription.mark
            subscription.remember(entry, "acked")
            record_tables(subscription, tables)
            park_left_out(subscription, tables, self._clock())
        self.manifests.prune(subscriber, batch)
        if self._stage is not None:
            self._stage.remove(subscriber, [batch])

    def ack_until(self, batch: int, token: str, seq: int, *, subscriber: str = "apply") -> None:
        """Moves the subscriber's cursor behind a transaction inside the first outstanding batch, which stays
        outstanding: rolled back, it begins behind that transaction.

        For a reader that hands a batch out in parts. Raises what :meth:`ack` raises, and UsageError for a seq that is
        not inside the batch.
        """
        with self.meta.change() as state:
            subscription = state.subscription(subscriber)
            entry = subscription.require_first(batch, "acked")
            require_token(entry, token, self._clock())
            if not entry.after_seq < seq < entry.last_seq:
                raise UsageError(
                    f"seq {seq} is not inside batch {batch}, which has those after {entry.after_seq} up to "
                    f"{entry.last_seq}"
                )
            if seq > subscription.acked_seq:
                subscription.acked_seq = seq
                subscription.mark = self._mark_inside(entry, seq, state, subscriber) or subscription.mark

    def rollback(self, batch: int, token: str, *, subscriber: str = "apply") -> list[int]:
        """Rolls back a batch and all later ones: their transactions are handed out again, in new batches.

        Returns the ids of the batches rolled back; an empty list if the same rollback is repeated. Raises TokenError
        and BatchError as :meth:`ack` does.
        """
        with self.meta.change() as state:
            subscription = state.subscription(subscriber)
            if is_repeated(subscription, batch, token, "rolled_back"):
                return []
            require_token(subscription.require(batch), token, self._clock())
            rolled_back = roll_back_from(subscription, batch)
        self._remove_files(subscriber, rolled_back)
        return rolled_back

    def release(self, owner: str, *, subscriber: str = "apply") -> list[int]:
        """Rolls back the owner's outstanding batches without a token; returns their ids.

        Call this only from the owner's sole process, after a crash lost the token. A batch of another owner stays, and
        so do all batches before it.
        """
        with self.meta.change() as state:
            subscription = state.subscriptions.get(check_name(subscriber))
            entries = [] if subscription is None else subscription.outstanding
            others = [number for number, entry in enumerate(entries) if entry.owner != owner]
            released = entries[others[-1] + 1 if others else 0 :]
            rolled_back = (
                roll_back_from(subscription, released[0].batch) if subscription is not None and released else []
            )
        self._remove_files(subscriber, rolled_back)
        return rolled_back

    def check(self, batch: int, token: str, *, subscriber: str = "apply") -> Outstanding:
        """Checks that this batch may be merged now: it is the first outstanding one, and the token is valid.

        Raises BatchOrderError, TokenError, BatchError.
        """
        entry = self.meta.read().subscription(subscriber).require_first(batch, "merged")
        require_token(entry, token, self._clock())
        return entry

    def resume(self, batch: int, fingerprint: str, *, subscriber: str = "apply") -> Lease:
        """Returns a lease that another process of the same owner got, by its fingerprint.

        If the lease was replaced, or its batch has ended, the returned token is as invalid as before: a process of an
        earlier try never obtains the token of a later one. Raises TokenError if the batch never had such a lease,
        DamagedError if its manifest is missing.
        """
        subscription = self.meta.read().subscription(subscriber)
        entry, ended = subscription.find(batch), subscription.ended(batch)
        tokens = [ended.token] if ended is not None else []
        if entry is not None:
            tokens += [entry.token, *entry.replaced]
        token = next((candidate for candidate in tokens if fingerprint_of(candidate) == fingerprint), None)
        if token is None:
            raise TokenError(
                f"batch {batch} has no such lease", remedy="Get the batch again. In Airflow, clear the whole run."
            )
        path = self.manifests.path(subscriber, batch)
        return Lease(load_manifest(path), path, token, self._clock() if entry is None else entry.expires)

    def renew(self, batch: int, token: str, *, subscriber: str = "apply", lease_s: float | None = None) -> datetime:
        """Renews a valid lease: it then expires ``lease_s`` (default: the configuration's) from now.

        Returns the new expiry. Raises TokenError, BatchError.
        """
        with self.meta.change() as state:
            entry = state.subscription(subscriber).require(batch)
            require_token(entry, token, self._clock())
            entry.expires = self._expiry(self._config.batch.lease_s if lease_s is None else lease_s)
            return entry.expires

    def outstanding(self, subscriber: str = "apply") -> list[Outstanding]:
        """Returns the batches that are neither acked nor rolled back, in order; none for an unknown subscriber."""
        subscription = self.meta.read().subscriptions.get(check_name(subscriber))
        return [] if subscription is None else subscription.outstanding

    # subscribers ------------------------------------------------------------------------------------------------

    def subscribe(self, subscriber: str, table_filter: str | None = None) -> Subscription:
        """Adds a subscriber that begins at the store's first transaction, or replaces the filter of an existing one.

        The filter is a regular expression that must match the whole ``db.table``; None: all tables. It ignores case if
        names do (``tables.lower_case_table_names``). It narrows what is captured and never widens it; a filter that
        matches no captured table is logged as a warning, since such a table may come. Cursor and batches of an existing
        subscriber stay. Raises UsageError.
        """
        if table_filter is not None and self._config.tables.ignores_case:
            table_filter = f"(?i){table_filter}"
        chosen = make_filter(table_filter)
        newest = self._reader.newest_schemas() if chosen is not None and self._reader.exists() else None
        if chosen is not None and newest is not None and not any(map(chosen.matches, newest[1].tables)):
            _log.warning("the filter matches no captured table", subscriber=subscriber, filter=table_filter)
        if check_name(subscriber) not in self.meta.read().subscriptions:
            self._add_subscriber(subscriber)
        return self.meta.subscribe(subscriber, table_filter)

    def unsubscribe(self, subscriber: str) -> None:
        """Removes a subscriber with its cursor and batches, so that it no longer holds back retention.

        Raises UsageError if there is no such subscriber, LeaseHeldError while one of its leases is live.
        """
        removed = remove_subscriber(self.meta, subscriber, self._clock())
        if self._stage is not None:  # the manifests stay, because their ids must not be used again
            self._stage.remove(subscriber, removed)

    def subscription(self, subscriber: str = "apply") -> Subscription:
        """Returns a subscriber's cursor, accepted gaps, and the lake's tables as of the last ack. Raises UsageError if
        there is no such subscriber."""
        return self.meta.read().subscription(check_name(subscriber))

    def accept_beginning(self, subscriber: str = "apply", expected: Gap | None = None) -> Gap:
        """Lets a subscriber continue at the store's beginning; see
        :func:`cdc.batches.subscribers.accept_beginning`. Returns the accepted gap. Raises UsageError, StorageError,
        GapChangedError."""
        gap, rolled_back = accept_beginning(
            self.meta, subscriber, first_seq(self._config.name, self._config.store.place, self._reader), expected
        )
        self._remove_files(subscriber, rolled_back)
        return gap

    def accept_tables(
        self, subscriber: str, tables: Mapping[str, TableRecord | None], expected: Sequence[Gap] | None = None
    ) -> list[Gap]:
        """Accepts Delta tables as they are now; see :func:`cdc.batches.subscribers.accept_tables`."""
        return accept_tables(self.meta, subscriber, tables, expected)

    def acked_manifests(self, subscriber: str = "apply", *, after_batch: int = 0) -> list[Manifest]:
        """Returns the manifests of the acked batches that are kept, those after a batch, oldest first. Raises
        DamagedError, StorageError."""
        return self.manifests.acked(check_name(subscriber), after_batch)

    # inside a get -----------------------------------------------------------------------------------------------

    @property
    def _reader(self) -> Reader:
        if self._known_reader is None:
            source = self.meta.source()
            if source is None:  # nothing can be handed out yet: do not keep this reader
                return StoreReader(self._config.store.path)
            self._known_reader = StoreReader(self._config.store.path, source.base_name)
        return self._known_reader

    def _get(self, request: _Request) -> Lease | None:
        until, subscriber = request.until, request.subscriber
        pause_s = _FIRST_PAUSE_S
        while True:
            state = self.meta.read()
            seen, store = state.subscriptions.get(subscriber), self._config.store.path
            staged = self._stage is not None
            if not require_store(store, self._config.name, state, seen, self._reader, staged=staged):
                # Nothing was ever captured. Do not create a meta: it would look like that of a lost store.
                left_s = request.deadline - time.monotonic()
                if left_s <= 0 and until is not None:
                    raise incomplete_error(self._config.name, until, 0, None)
                if left_s <= 0:
                    _log.warning(
                        "nothing was captured yet", destination=self._config.name, store=str(store), next="cdc capture"
                    )
                    return None
                time.sleep(min(pause_s, left_s))
                continue
            subscription = seen or self._add_subscriber(subscriber)
            repeated = self._handed_out(subscription, request)
            if repeated is not None:
                return repeated
            if request.after is not None:
                require_last_acked(subscription, *request.after)
            if self._due(subscription, request) is not None:
                lease = self._get_outstanding(subscription, request)
                if lease is not None:
                    return lease
                continue
            # Read before the selection: all transactions that make the store complete are then visible to it.
            complete_us = 0 if until is None else self._reader.complete_until_us()
            after_seq = subscription.start_seq()
            selection = self._select(subscription, after_seq, request.limits)
            if (
                selection is not None
                and selection.mixed
                and self._reader.has_foreign_keys(after_seq, selection.last_seq)
            ):
                # The search for changes by foreign keys reads the tables as they are before a batch.
                selection = self._select(subscription, after_seq, replace(request.limits, mixes=False))
            if selection is not None:
                lease = self._hand_out(selection, subscription, state.source, request)
                if lease is not None:
                    return lease
                continue
            if until is not None and complete_us >= time_us(until):
                return None
            left_s = request.deadline - time.monotonic()
            if left_s <= 0:
                if until is not None:
                    raise incomplete_error(self._config.name, until, complete_us, self._reader.capture_state())
                return None
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _add_subscriber(self, subscriber: str) -> Subscription:
        # Manifests and commits carry batch ids, so ids are never reused, even if the meta was lost.
        first_batch = max(self.manifests.ids(subscriber), default=0) + 1
        beginning = self._reader.beginning()
        begins_seq = 0 if beginning is None else beginning.seq
        return add_subscriber(self.meta, subscriber, first_batch, self._reader.removed_seq(), begins_seq)

    def _handed_out(self, subscription: Subscription, request: _Request) -> Lease | None:
        """Returns the lease with the request's token, which an earlier try got; None if there is none."""
        entry = next((entry for entry in subscription.outstanding if entry.token == request.token), None)
        if entry is None or entry.owner != request.owner or entry.expires <= self._clock():
            return None
        path = self.manifests.path(request.subscriber, entry.batch)
        try:
            manifest = load_manifest(path)
        except DamagedError:
            return None  # the batch is rolled back, with a warning, when it is handed out again
        return Lease(manifest.model_copy(update={"acked": None}), path, entry.token, entry.expires)

    def _due(self, subscription: Subscription, request: _Request) -> Outstanding | None:
        """Returns the outstanding batch to hand out again; None if a new one is due. Raises LeaseHeldError."""
        for entry in subscription.outstanding if request.ahead else subscription.outstanding[:1]:
            if entry.owner != request.owner:
                if entry.expires > self._clock():
                    raise held_error(self._config.name, request.subscriber, entry)
                return entry
            if not request.ahead:
                return entry
        return None

    def _get_outstanding(self, subscription: Subscription, request: _Request) -> Lease | None:
        """Hands out an outstanding batch again; None if it was rolled back, or ended meanwhile: look again."""
        if self._stage is None:  # a staged batch is whole, even if the store has lost its transactions
            self._reader.require_kept(subscription.acked_seq)
            self._roll_back_changed(subscription, request.subscriber)
        lease = self._hand_out_again(request)
        if lease is None or request.until is None:
            return lease
        selection = self._select_again(lease.manifest, subscription, time_us(request.until))
        if selection is not None and selection.transactions >= lease.manifest.transactions:
            return lease
        _log.info("batch rolled back: it reaches beyond the time limit", batch=lease.batch)
        self.rollback(lease.batch, lease.token, subscriber=request.subscriber)
        return None

    def _hand_out_again(self, request: _Request) -> Lease | None:
        """Hands out the batch that is due again; None if it has ended meanwhile or its manifest is lost: look again."""
        with self.meta.change() as state:
            subscription = state.subscriptions.get(request.subscriber)
            entry = None if subscription is None else self._due(subscription, request)
            if subscription is None or entry is None:
                return None
            path = self.manifests.path(request.subscriber, entry.batch)
            try:
                manifest = load_manifest(path)
                require_manifest_of(entry, manifest, path)
            except DamagedError as error:
                _log.warning(
                    "batch rolled back: its manifest is lost",
                    batch=entry.batch,
                    subscriber=request.subscriber,
                    reason=str(error),
                )
                roll_back_from(subscription, entry.batch)
                return None
            entry.replaced = [*entry.replaced, entry.token][-_REMEMBERED_TOKENS:]
            entry.owner, entry.token, entry.expires = request.owner, request.token, self._expiry(request.lease_s)
            # If an ack was killed, the file may have `acked` already; but the batch is not acked.
            manifest = manifest.model_copy(update={"acked": None})
            return Lease(manifest, path, entry.token, entry.expires)

    def _hand_out(
        self, selection: Selection, seen: Subscription, source: SourceIdentity | None, request: _Request
    ) -> Lease | None:
        """Makes a new batch of a selection. None: another process was faster: look again."""
        gtids = self._gtids(selection, source, request.subscriber, seen.next_batch, seen.start_seq())
        files = self._files(selection, seen, request.subscriber)
        lease = None
        try:
            with self.meta.change() as state:
                subscription = state.subscriptions.get(request.subscriber)
                if subscription is None or (subscription.start_seq(), subscription.next_batch) != (
                    seen.start_seq(),
                    seen.next_batch,
                ):
                    return None
                if self._due(subscription, request) is not None:
                    return None
                bound = self._bound_source(state)
                manifest = build_manifest(
                    selection,
                    files,
                    destination=self._config.name,
                    subscriber=request.subscriber,
                    subscription=seen,
                    gaps=subscription.gaps,
                    server_uuid=bound.of_seq(selection.last_seq).server_uuid,
                    beginning=self._reader.beginning(),
                ).model_copy(update={"gtids": gtids})
                path = self.manifests.save(manifest)
                entry = Outstanding(
                    batch=manifest.batch,
                    first_seq=manifest.first_seq,
                    last_seq=manifest.last_seq,
                    after_seq=manifest.after_seq,
                    owner=request.owner,
                    token=request.token,
                    expires=self._expiry(request.lease_s),
                    mark=history_mark(selection, gtids, bound.flavor),
                )
                subscription.add(entry)
                lease = Lease(manifest, path, entry.token, entry.expires)
            return lease
        finally:
            if lease is None and self._stage is not None:
                self._stage.discard(files)

    def _files(self, selection: Selection, seen: Subscription, subscriber: str) -> BatchFiles:
        """Returns the files of a selection, staged if the configuration says so."""
        schema_path = self._reader.schema_path(selection.last_seq)
        if self._stage is not None:
            return self._stage.copy(subscriber, seen.next_batch, selection.ranges, schema_path)
        ranges = tuple(ByteRange(path=str(p), offset=offset, length=n) for p, offset, n in selection.ranges)
        return BatchFiles(ranges, None if schema_path is None else str(schema_path))

    def _gtids(
        self, selection: Selection, source: SourceIdentity | None, subscriber: str, batch: int, after_seq: int
    ) -> str | None:
        """Returns the source's GTIDs up to the end of a selection from a batch, which begins after ``after_seq``; None
        if they are not known. Only readers of the manifest and of the cursor need them, so damage to the store's file
        of GTIDs does not stop the batch."""
        if source is None or selection.last.gtid is None:
            return None
        try:
            before, earlier = self.manifests.before(subscriber, batch), None
            if before is not None and before.gtids is not None and before.last_seq == after_seq:
                earlier = GtidCheckpoint(before.last_seq, parse_state(before.gtids, source.flavor))
            gtids = self._reader.gtids_until(selection.last_seq, source.flavor, earlier)
        except (DamagedError, VersionError) as error:
            _log.warning("the batch has no GTIDs", subscriber=subscriber, reason=str(error))
            return None
        return None if gtids is None else format_state(gtids, source.flavor)

    def _mark_inside(self, entry: Outstanding, seq: int, state: State, subscriber: str) -> HistoryMark | None:
        """Returns the mark of a transaction inside a batch; None if it cannot be read, which stops no ack."""
        try:
            selection = self._reader.select(seq - 1, Limits(until_seq=seq))
            if state.source is None or selection is None or selection.last_seq != seq:
                return None
            gtids = self._gtids(selection, state.source, subscriber, entry.batch, entry.after_seq)
            return history_mark(selection, gtids, state.source.flavor)
        except CdcError as error:
            _log.debug("cursor moved without a mark", subscriber=subscriber, seq=seq, reason=str(error))
            return None

    def _bound_source(self, state: State) -> SourceIdentity:
        if state.source is None:
            raise IdentityError(
                "does not know which source the store belongs to",
                place=self.meta.place,
                remedy=f"Run `cdc capture {self._config.name} --until-current`, which binds it.",
            )
        return state.source

    def _roll_back_changed(self, subscription: Subscription, subscriber: str) -> None:
        """Rolls back outstanding batches from the first one on whose bytes are not where its manifest says.

        Then the store is another one, or was restored from an older copy. The transactions come in new batches.
        """
        for entry in subscription.outstanding:
            try:
                manifest = load_manifest(self.manifests.path(subscriber, entry.batch))
            except DamagedError:
                return  # the batch is rolled back, with a warning, when it is handed out
            selection = self._select_again(manifest, subscription)
            if selection is not None and are_same_bytes(manifest.ranges, selection.ranges):
                continue
            _log.warning("batch rolled back: the store has changed under it", batch=entry.batch, subscriber=subscriber)
            with self.meta.change() as state:
                now = state.subscriptions.get(subscriber)
                if now is None or now.find(entry.batch) is None:
                    return
                rolled_back = roll_back_from(now, entry.batch)
            self._remove_files(subscriber, rolled_back)
            return

    def _select(self, subscription: Subscription, after_seq: int, limits: Limits) -> Selection | None:
        return self._reader.select(after_seq, limits, make_filter(subscription.filter))

    def _select_again(
        self, manifest: Manifest, subscription: Subscription, until_us: int | None = None
    ) -> Selection | None:
        """Selects an outstanding batch's transactions again; ``until_us``: only those committed before."""
        same = Limits(_UNLIMITED_BYTES, manifest.transactions, None, until_us, mixes=manifest.mixed)
        return self._select(subscription, manifest.after_seq, same)

    def _remove_files(self, subscriber: str, batches: list[int]) -> None:
        self.manifests.remove(subscriber, batches)
        if self._stage is not None and batches:
            self._stage.remove(subscriber, batches)

    def _sweep(self, stage: Stage, subscriber: str) -> None:
        """Removes staged copies that killed processes have left behind."""
        subscription = self.meta.read().subscription(subscriber)
        keep: dict[int, str | None] = {}
        for entry in subscription.outstanding:
            try:
                keep[entry.batch] = folder_of(load_manifest(self.manifests.path(subscriber, entry.batch)).ranges)
            except DamagedError:  # the batch and its copy are removed when it is due
                keep[entry.batch] = None
        stage.sweep(subscriber, subscription.next_batch, keep)

    def _expiry(self, lease_s: float) -> datetime:
        return self._clock() + timedelta(seconds=lease_s)


def limits_of(batch: BatchConfig, until_us: int | None = None) -> Limits:
    """Returns the configured limits. ``until_us``: only transactions committed before (microseconds since 1970)."""
    return Limits(batch.max_bytes, batch.max_transactions, batch.max_row_events, until_us)
