"""get, ack, rollback: the rules of the batch protocol over a store and a meta.

The order of writing is what makes a kill harmless: a manifest is on disk before its batch is outstanding, and the
results of a merge are in the manifest before the batch is acked. What is left over from a kill is overwritten or
removed later.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cdc.batches.lease import Lease, iso_time, iso_time_us
from cdc.batches.manifest import ByteRange, Manifest, Position, Positions
from cdc.batches.manifests import Manifests, load_manifest, read_results
from cdc.errors import BatchError, DamagedError, IdentityError, LeaseHeldError, TokenError
from cdc.log import get_logger
from cdc.meta import Meta, open_meta
from cdc.meta.state import Outstanding, State, Subscription, check_name
from cdc.positions import split_seq

if TYPE_CHECKING:
    from cdc.config import BatchConfig, DestinationConfig
    from cdc.store.base import Limits, Place, Selection

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_log = get_logger(__name__)


class Reader(Protocol):
    """What the service needs of a store; :class:`cdc.store.reader.StoreReader` has it."""

    def select(self, after_seq: int, limits: Limits) -> Selection | None: ...

    def schema_path(self, last_seq: int) -> Path | None: ...


class BatchService:
    """The batches of one destination. Any number of processes may each have one at the same time."""

    def __init__(
        self,
        config: DestinationConfig,
        *,
        reader: Reader | None = None,
        meta: Meta | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._config = config
        self._known_reader = reader
        self._clock = clock
        self.meta: Meta = open_meta(config) if meta is None else meta
        self.manifests = Manifests(config.meta.path)

    def get(
        self,
        owner: str,
        *,
        subscriber: str = "apply",
        limits: Limits | None = None,
        wait_s: float | None = None,
        lease_s: float | None = None,
        ahead: bool = False,
    ) -> Lease | None:
        """Hand out a batch; None when nothing is there within ``wait_s``.

        The owner's first outstanding batch comes again, unchanged, with a new token: the old one dies. A batch of
        another owner is taken over once its lease has expired. With ``ahead``, the next batch after the outstanding
        ones comes instead (an expired one of another owner first, since nobody else would end it). Whoever is not
        subscribed is, from the store's first transaction on.

        ``limits``, ``wait_s`` and ``lease_s`` are the configuration's unless given. Raises LeaseHeldError naming owner
        and expiry when another owner's lease is live.
        """
        check_name(subscriber)
        limits = limits_of(self._config.batch) if limits is None else limits
        deadline = time.monotonic() + (self._config.batch.max_wait_s if wait_s is None else wait_s)
        lease_s = self._config.batch.lease_s if lease_s is None else lease_s
        pause_s = _FIRST_PAUSE_S
        while True:
            known = self.meta.read().subscriptions.get(subscriber) or self._subscribe(subscriber)
            if self._due(known, owner, subscriber, ahead) is not None:
                lease = self._hand_out_again(owner, subscriber, lease_s, ahead)
                if lease is not None:
                    return lease
                continue
            selection = self._reader.select(known.start_seq(), limits)
            if selection is not None:
                lease = self._hand_out(selection, known.start_seq(), owner, subscriber, lease_s, ahead)
                if lease is not None:
                    return lease
                continue
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def ack(self, batch: int, token: str, *, subscriber: str = "apply", results: Any = None) -> None:
        """Move the subscriber's cursor behind the batch. ``results``: one per table, see
        :class:`cdc.batches.manifest.TableResult`; they are kept in the manifest.

        The same ack repeated is answered as done. Raises BatchOrderError for another than the first outstanding batch,
        TokenError for a wrong, replaced or expired token, BatchError for a batch that is not outstanding.
        """
        tables = read_results(results)
        with self.meta.change() as state:
            known = state.subscription(subscriber)
            if _done_before(known, batch, token, "acked"):
                return
            entry = known.require_first(batch, "acked")
            self._require_token(entry, token)
            try:
                self.manifests.mark_acked(self.manifests.path(subscriber, batch), self._clock(), tables)
            except DamagedError as error:  # the merge is done: its batch is acked with or without a record of it
                _log.warning("results not recorded", batch=batch, subscriber=subscriber, reason=str(error))
            known.remove(batch)
            known.acked_seq = entry.last_seq
            known.remember(entry, "acked")
        self.manifests.prune(subscriber, batch)

    def rollback(self, batch: int, token: str, *, subscriber: str = "apply") -> list[int]:
        """Give up a batch and all later ones: their transactions are handed out again, in new batches.

        Returns the ids of what was rolled back; none when the same rollback is repeated. Raises TokenError and
        BatchError as :meth:`ack` does.
        """
        with self.meta.change() as state:
            known = state.subscription(subscriber)
            if _done_before(known, batch, token, "rolled_back"):
                return []
            self._require_token(known.require(batch), token)
            gone = _cut(known, batch)
        self.manifests.remove(subscriber, gone)
        return gone

    def check(self, batch: int, token: str, *, subscriber: str = "apply") -> Outstanding:
        """May this batch be merged now? It must be the first outstanding one, and the token valid.

        Raises BatchOrderError, TokenError, BatchError.
        """
        entry = self.meta.read().subscription(subscriber).require_first(batch, "merged")
        self._require_token(entry, token)
        return entry

    def renew(self, batch: int, token: str, *, subscriber: str = "apply", lease_s: float | None = None) -> datetime:
        """Prolong a lease that is still valid: it then expires ``lease_s`` (default: the configuration's) from now.

        Returns the new expiry. Raises TokenError, BatchError.
        """
        with self.meta.change() as state:
            entry = state.subscription(subscriber).require(batch)
            self._require_token(entry, token)
            entry.expires = self._expiry(self._config.batch.lease_s if lease_s is None else lease_s)
            return entry.expires

    def outstanding(self, subscriber: str = "apply") -> list[Outstanding]:
        """The batches that are neither acked nor rolled back, in their order; none for an unknown subscriber."""
        known = self.meta.read().subscriptions.get(check_name(subscriber))
        return [] if known is None else known.outstanding

    @property
    def _reader(self) -> Reader:
        if self._known_reader is None:
            from cdc.store.reader import StoreReader

            source = self.meta.source()
            if source is None:  # no batch will come of it; later there may be one
                return StoreReader(self._config.store.path)
            self._known_reader = StoreReader(self._config.store.path, source.base_name)
        return self._known_reader

    def _subscribe(self, subscriber: str) -> Subscription:
        # Ids never come twice, not even after the meta was lost: manifests and commits carry them.
        ids = self.manifests.ids(subscriber)
        with self.meta.change() as state:
            fresh = Subscription(next_batch=max(ids, default=0) + 1)
            return state.subscriptions.setdefault(subscriber, fresh).model_copy(deep=True)

    def _due(self, known: Subscription, owner: str, subscriber: str, ahead: bool) -> Outstanding | None:
        """The outstanding batch to hand out again; None when a new one is due."""
        for entry in known.outstanding if ahead else known.outstanding[:1]:
            if entry.owner != owner:
                if entry.expires > self._clock():
                    raise LeaseHeldError(
                        f"batch {entry.batch} is held by {entry.owner} until {iso_time(entry.expires)}",
                        place=f"{self._config.name}, subscriber {subscriber}",
                        remedy="Wait until it is acked or rolled back there, or until its lease has expired.",
                    )
                return entry
            if not ahead:
                return entry
        return None

    def _hand_out_again(self, owner: str, subscriber: str, lease_s: float, ahead: bool) -> Lease | None:
        """None: it ended in the meantime, or its manifest is lost; look again."""
        with self.meta.change() as state:
            known = state.subscriptions.get(subscriber)
            entry = None if known is None else self._due(known, owner, subscriber, ahead)
            if known is None or entry is None:
                return None
            path = self.manifests.path(subscriber, entry.batch)
            try:
                manifest = load_manifest(path)
                _require_same(manifest, entry, path)
            except DamagedError as error:
                _log.warning(
                    "manifest lost, batch rolled back", batch=entry.batch, subscriber=subscriber, reason=str(error)
                )
                _cut(known, entry.batch)
                return None
            entry.replaced = [*entry.replaced, entry.token][-16:]
            entry.owner, entry.token, entry.expires = owner, secrets.token_hex(16), self._expiry(lease_s)
            # A kill between recording results and acking leaves `acked` in the file; the batch is not acked.
            manifest = manifest.model_copy(update={"acked": None})
            return Lease(manifest, path, entry.token, entry.expires)

    def _hand_out(
        self, selection: Selection, after_seq: int, owner: str, subscriber: str, lease_s: float, ahead: bool
    ) -> Lease | None:
        """None: another process was faster; look again."""
        with self.meta.change() as state:
            known = state.subscriptions.get(subscriber)
            if known is None or known.start_seq() != after_seq:
                return None
            if self._due(known, owner, subscriber, ahead) is not None:
                return None
            manifest = self._manifest(state, known.next_batch, selection, after_seq, subscriber)
            path = self.manifests.save(manifest)
            entry = Outstanding(
                batch=manifest.batch,
                first_seq=manifest.first_seq,
                last_seq=manifest.last_seq,
                after_seq=after_seq,
                owner=owner,
                token=secrets.token_hex(16),
                expires=self._expiry(lease_s),
            )
            known.add(entry)
            return Lease(manifest, path, entry.token, entry.expires)

    def _manifest(self, state: State, batch: int, chosen: Selection, after_seq: int, subscriber: str) -> Manifest:
        if state.source is None:
            raise IdentityError(
                "does not know which source the store belongs to",
                place=self.meta.place,
                remedy=f"Run `cdc capture {self._config.name} --until-current`, which binds it.",
            )
        schema_path = self._reader.schema_path(chosen.last_seq)
        return Manifest(
            destination=self._config.name,
            subscriber=subscriber,
            batch=batch,
            epoch=split_seq(chosen.last_seq).epoch,
            server_uuid=state.source.server_uuid,
            after_seq=after_seq,
            first_seq=chosen.first_seq,
            last_seq=chosen.last_seq,
            transactions=chosen.transactions,
            row_events=chosen.row_events,
            bytes=chosen.bytes,
            ddl=chosen.ddl,
            tables=tuple(chosen.tables),
            schema_path=None if schema_path is None else str(schema_path),
            ranges=tuple(ByteRange(path=str(p), offset=offset, length=length) for p, offset, length in chosen.ranges),
            positions=Positions(first=_position(chosen.first), last=_position(chosen.last)),
        )

    def _expiry(self, lease_s: float) -> datetime:
        return self._clock() + timedelta(seconds=lease_s)

    def _require_token(self, entry: Outstanding, token: str) -> None:
        if entry.token != token:
            if token in entry.replaced:
                what = (
                    f"was replaced: the batch was handed out again, to {entry.owner}, until {iso_time(entry.expires)}"
                )
            else:
                what = "is wrong"
            raise TokenError(
                f"the token given for batch {entry.batch} {what}", remedy="Get the batch again for a valid token."
            )
        if entry.expires <= self._clock():
            raise TokenError(
                f"the lease of batch {entry.batch} expired at {iso_time(entry.expires)}",
                remedy="Get the batch again for a valid token.",
            )


def limits_of(batch: BatchConfig, until_us: int | None = None) -> Limits:
    """The configuration's limits; ``until_us``: only what was committed before (microseconds since 1970)."""
    from cdc.store.base import Limits

    return Limits(batch.max_bytes, batch.max_transactions, batch.max_row_events, until_us)


def _cut(known: Subscription, batch: int) -> list[int]:
    gone = known.cut(batch)
    for entry in gone:
        known.remember(entry, "rolled_back")
    return [entry.batch for entry in gone]


def _done_before(known: Subscription, batch: int, token: str, outcome: Literal["acked", "rolled_back"]) -> bool:
    """Is this a repetition of what was done? Raises TokenError and BatchError where it contradicts that."""
    ended = None if known.find(batch) else known.ended(batch)
    if ended is None:
        return False
    was = ended.outcome.replace("_", " ")
    if ended.token != token:
        raise TokenError(f"batch {batch} was {was} already, with another token")
    if ended.outcome != outcome:
        raise BatchError(
            f"batch {batch} was {was} already", remedy="Its transactions, if any are due, come in a new one."
        )
    return True


def _require_same(manifest: Manifest, entry: Outstanding, path: Path) -> None:
    said = (manifest.batch, manifest.after_seq, manifest.first_seq, manifest.last_seq)
    if said != (entry.batch, entry.after_seq, entry.first_seq, entry.last_seq):
        raise DamagedError(f"belongs to another batch than {entry.batch}, or to other transactions", place=str(path))


def _position(place: Place) -> Position:
    time = iso_time_us(place.commit_time_us) if place.commit_time_us > 0 else None
    return Position(file=place.file, pos=place.pos, gtid=place.gtid, time=time)
