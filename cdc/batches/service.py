"""get, ack, rollback: the rules of the batch protocol over a store and a meta.

The order of writing is what makes a kill harmless: a manifest is on disk before its batch is outstanding, and the
results of a merge are in the manifest before the batch is acked. What is left over from a kill is overwritten or
removed later.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cdc.batches.lease import Lease
from cdc.batches.lease import fingerprint as fingerprint_of
from cdc.batches.manifest import ByteRange, Draft, Manifest
from cdc.batches.manifest_files import ManifestFiles, load_manifest
from cdc.batches.preconditions import cut, done_before, incomplete, require_same, require_store, require_token
from cdc.batches.results import read_results, record_tables
from cdc.batches.subscribers import add_subscriber, as_filter, pass_over, unsubscribe
from cdc.errors import DamagedError, IdentityError, LeaseHeldError, StorageError, TokenError
from cdc.log import get_logger
from cdc.meta import Meta, open_meta
from cdc.meta.state import HistoryMark, Outstanding, Subscription, check_name
from cdc.units import iso_time, time_us

if TYPE_CHECKING:
    from cdc.batches.stage import Stage
    from cdc.config import BatchConfig, DestinationConfig
    from cdc.store.formats.beginning import Beginning
    from cdc.store.formats.state import CaptureState
    from cdc.store.reader.filters import TableFilter
    from cdc.store.reader.selection import Limits, Range, Selection

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.5
_log = get_logger(__name__)


class Reader(Protocol):
    """What the service needs of a store; :class:`cdc.store.reader.reader.StoreReader` has it."""

    def select(self, after_seq: int, limits: Limits, table_filter: TableFilter | None = None) -> Selection | None: ...

    def schema_path(self, last_seq: int) -> Path | None: ...

    def removed_seq(self) -> int: ...

    def require_kept(self, after_seq: int) -> None: ...

    def exists(self) -> bool: ...

    def beginning(self) -> Beginning | None: ...

    def passed(self, after_seq: int, table_filter: TableFilter) -> int: ...

    def complete_until_us(self) -> int: ...

    def capture_state(self) -> CaptureState | None: ...


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
        self.manifests = ManifestFiles(config.meta.path, permissions=config.meta.permissions)
        self._stage: Stage | None = None
        if config.store.stage is not None:
            from cdc.batches.stage import Stage

            self._stage = Stage(config.store.stage, config.name, permissions=config.store.permissions)

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
    ) -> Lease | None:
        """Hand out a batch; None when nothing is there within ``wait_s``.

        The owner's first outstanding batch comes again, unchanged, with a new token: the old one dies. A batch of
        another owner is taken over once its lease has expired. With ``ahead``, the next batch after the outstanding
        ones comes instead (an expired one of another owner first, since nobody else would end it). Whoever is not
        subscribed is, from the store's first transaction on.

        With ``until`` (aware), get after get takes exactly what was committed before then; None says that this is all.
        While the store is not known to be complete up to then, and has nothing more from before, it is waited for; an
        outstanding batch that reaches beyond is rolled back.

        ``limits``, ``wait_s`` and ``lease_s`` are the configuration's unless given. Raises LeaseHeldError naming owner
        and expiry when another owner's lease is live, CutOffError where retention has removed what is due or the store
        begins behind the cursor, StorageError where the meta knows of a store that is not there, and
        StoreIncompleteError saying how far the store is complete.
        """
        check_name(subscriber)
        limits = limits_of(self._config.batch) if limits is None else limits
        default_wait_s = self._config.batch.max_wait_s
        if until is not None:
            limits, default_wait_s = replace(limits, until_us=time_us(until)), self._config.batch.until_wait_s
        deadline = time.monotonic() + (default_wait_s if wait_s is None else wait_s)
        lease_s = self._config.batch.lease_s if lease_s is None else lease_s
        lease = self._get(owner, subscriber, limits, until, deadline, lease_s, ahead)
        if lease is None:
            pass_over(self.meta, self._reader, subscriber)
        if self._stage is not None and self._reader.exists():
            self._sweep(self._stage, subscriber)
        return lease

    def _get(
        self,
        owner: str,
        subscriber: str,
        limits: Limits,
        until: datetime | None,
        deadline: float,
        lease_s: float,
        ahead: bool,
    ) -> Lease | None:
        pause_s = _FIRST_PAUSE_S
        while True:
            state = self.meta.read()
            seen, place = state.subscriptions.get(subscriber), self._config.store.path
            staged = self._stage is not None
            if not require_store(place, self._config.name, state, seen, self._reader, staged=staged):
                # Nothing was ever captured, and nothing is written: a meta made here would look like that of a store.
                left_s = deadline - time.monotonic()
                if left_s <= 0 and until is not None:
                    raise incomplete(self._config.name, until, 0, None)
                if left_s <= 0:
                    _log.warning(
                        "nothing was captured yet", destination=self._config.name, store=str(place), next="cdc capture"
                    )
                    return None
                time.sleep(min(pause_s, left_s))
                continue
            known = seen or self._subscribe(subscriber)
            if self._due(known, owner, subscriber, ahead) is not None:
                if self._stage is None:  # a staged batch is whole, whatever the store has lost
                    self._reader.require_kept(known.acked_seq)
                    self._roll_back_moved(known, subscriber)
                lease = self._hand_out_again(owner, subscriber, lease_s, ahead)
                if lease is not None and (until is None or self._lies_before(lease.manifest, known, limits)):
                    return lease
                if lease is not None:
                    _log.info("batch rolled back: it reaches beyond the time limit", batch=lease.batch)
                    self.rollback(lease.batch, lease.token, subscriber=subscriber)
                continue
            # Asked before the selection: what makes the store complete is then visible to it.
            complete_us = 0 if until is None else self._reader.complete_until_us()
            selection = self._select(known, known.start_seq(), limits)
            if selection is not None:
                lease = self._hand_out(selection, known, owner, subscriber, lease_s, ahead)
                if lease is not None:
                    return lease
                continue
            if until is not None and complete_us >= time_us(until):
                return None
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                if until is not None:
                    raise incomplete(self._config.name, until, complete_us, self._reader.capture_state())
                return None
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def subscribe(self, subscriber: str, table_filter: str | None = None) -> Subscription:
        """Add a subscriber that begins at the store's first transaction, or give one another filter (a regular
        expression over ``db.table``; None: all tables); its cursor and batches stay. Raises UsageError."""
        as_filter(table_filter)
        if check_name(subscriber) not in self.meta.read().subscriptions:
            self._subscribe(subscriber)
        return self.meta.subscribe(subscriber, table_filter)

    def unsubscribe(self, subscriber: str) -> None:
        """Remove a subscriber with cursor and batches: it holds nothing back any more. Raises UsageError if there is
        none, LeaseHeldError while somebody works on a batch of it."""
        gone = unsubscribe(self.meta, subscriber, self._clock())
        if self._stage is not None:  # the manifests stay: their ids must not come again
            self._stage.remove(subscriber, gone)

    def ack(self, batch: int, token: str, *, subscriber: str = "apply", results: Any = None) -> None:
        """Move the subscriber's cursor behind the batch. ``results``: one per table, see
        :class:`cdc.batches.manifest.TableResult`; they are kept in the manifest.

        The same ack repeated is answered as done. Raises BatchOrderError for another than the first outstanding batch,
        TokenError for a wrong, replaced or expired token, BatchError for a batch that is not outstanding.
        """
        tables = read_results(results)
        with self.meta.change() as state:
            known = state.subscription(subscriber)
            if done_before(known, batch, token, "acked"):
                return
            entry = known.require_first(batch, "acked")
            require_token(entry, token, self._clock())
            try:
                manifest = self.manifests.mark_acked(self.manifests.path(subscriber, batch), self._clock(), tables)
                known.mark = _mark(manifest) or known.mark
            except DamagedError as error:  # the merge is done: its batch is acked with or without a record of it
                _log.warning("results not recorded", batch=batch, subscriber=subscriber, reason=str(error))
            known.remove(batch)
            known.acked_seq = entry.last_seq
            known.remember(entry, "acked")
            record_tables(known, tables)
        self.manifests.prune(subscriber, batch)
        if self._stage is not None:
            self._stage.remove(subscriber, [batch])

    def rollback(self, batch: int, token: str, *, subscriber: str = "apply") -> list[int]:
        """Give up a batch and all later ones: their transactions are handed out again, in new batches.

        Returns the ids of what was rolled back; none when the same rollback is repeated. Raises TokenError and
        BatchError as :meth:`ack` does.
        """
        with self.meta.change() as state:
            known = state.subscription(subscriber)
            if done_before(known, batch, token, "rolled_back"):
                return []
            require_token(known.require(batch), token, self._clock())
            gone = cut(known, batch)
        self._remove(subscriber, gone)
        return gone

    def release(self, owner: str, *, subscriber: str = "apply") -> list[int]:
        """Roll back what this owner has outstanding, without a token: for who lost it, and is the owner's only process.

        Returns the ids of what was rolled back. A batch of another owner, and what comes before it, stays.
        """
        with self.meta.change() as state:
            known = state.subscriptions.get(check_name(subscriber))
            entries = [] if known is None else known.outstanding
            others = [number for number, entry in enumerate(entries) if entry.owner != owner]
            mine = entries[others[-1] + 1 if others else 0 :]
            gone = cut(known, mine[0].batch) if known is not None and mine else []
        self._remove(subscriber, gone)
        return gone

    def check(self, batch: int, token: str, *, subscriber: str = "apply") -> Outstanding:
        """May this batch be merged now? It must be the first outstanding one, and the token valid.

        Raises BatchOrderError, TokenError, BatchError.
        """
        entry = self.meta.read().subscription(subscriber).require_first(batch, "merged")
        require_token(entry, token, self._clock())
        return entry

    def resume(self, batch: int, fingerprint: str, *, subscriber: str = "apply") -> Lease:
        """The lease of a batch that another process of the same owner was handed, by its fingerprint.

        A lease that was replaced, or whose batch has ended, comes back as it was, with a token that is worth as little
        as before: so a process of an earlier try never holds a later one's. Raises TokenError where the batch never had
        such a lease, DamagedError where its manifest is gone.
        """
        known = self.meta.read().subscription(subscriber)
        entry, ended = known.find(batch), known.ended(batch)
        tokens = [ended.token] if ended is not None else []
        if entry is not None:
            tokens += [entry.token, *entry.replaced]
        token = next((each for each in tokens if fingerprint_of(each) == fingerprint), None)
        if token is None:
            raise TokenError(
                f"batch {batch} has no such lease", remedy="Get the batch again; where Airflow says so, clear the run."
            )
        path = self.manifests.path(subscriber, batch)
        return Lease(load_manifest(path), path, token, self._clock() if entry is None else entry.expires)

    def renew(self, batch: int, token: str, *, subscriber: str = "apply", lease_s: float | None = None) -> datetime:
        """Prolong a lease that is still valid: it then expires ``lease_s`` (default: the configuration's) from now.

        Returns the new expiry. Raises TokenError, BatchError.
        """
        with self.meta.change() as state:
            entry = state.subscription(subscriber).require(batch)
            require_token(entry, token, self._clock())
            entry.expires = self._expiry(self._config.batch.lease_s if lease_s is None else lease_s)
            return entry.expires

    def subscription(self, subscriber: str = "apply") -> Subscription:
        """What the meta knows of a subscriber: its cursor, its accepted gaps, the lake's tables as of the last ack.
        Raises UsageError for an unknown one."""
        return self.meta.read().subscription(check_name(subscriber))

    def beginning_seqs(self) -> tuple[int, int]:
        """Where the store begins, and up to where retention has removed it. Raises StorageError where there is none."""
        beginning = self._reader.beginning() if self._reader.exists() else None
        if beginning is None:
            raise StorageError(
                "there is no store in this folder, or nothing in it yet",
                place=str(self._config.store.path),
                remedy=f"Start `cdc capture {self._config.name}` first: where it begins is what is missing until then.",
            )
        return beginning.seq, self._reader.removed_seq()

    def outstanding(self, subscriber: str = "apply") -> list[Outstanding]:
        """The batches that are neither acked nor rolled back, in their order; none for an unknown subscriber."""
        known = self.meta.read().subscriptions.get(check_name(subscriber))
        return [] if known is None else known.outstanding

    @property
    def _reader(self) -> Reader:
        if self._known_reader is None:
            from cdc.store.reader.reader import StoreReader

            source = self.meta.source()
            if source is None:  # no batch will come of it; later there may be one
                return StoreReader(self._config.store.path)
            self._known_reader = StoreReader(self._config.store.path, source.base_name)
        return self._known_reader

    def _subscribe(self, subscriber: str) -> Subscription:
        # Ids never come twice, not even after the meta was lost: manifests and commits carry them.
        first_batch = max(self.manifests.ids(subscriber), default=0) + 1
        beginning = self._reader.beginning()
        begins_seq = 0 if beginning is None else beginning.seq
        return add_subscriber(self.meta, subscriber, first_batch, self._reader.removed_seq(), begins_seq)

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
                require_same(manifest, entry, path)
            except DamagedError as error:
                _log.warning(
                    "manifest lost, batch rolled back", batch=entry.batch, subscriber=subscriber, reason=str(error)
                )
                cut(known, entry.batch)
                return None
            entry.replaced = [*entry.replaced, entry.token][-16:]
            entry.owner, entry.token, entry.expires = owner, secrets.token_hex(16), self._expiry(lease_s)
            # A kill between recording results and acking leaves `acked` in the file; the batch is not acked.
            manifest = manifest.model_copy(update={"acked": None})
            return Lease(manifest, path, entry.token, entry.expires)

    def _hand_out(
        self, selection: Selection, seen: Subscription, owner: str, subscriber: str, lease_s: float, ahead: bool
    ) -> Lease | None:
        """None: another process was faster; look again."""
        schema_path = self._reader.schema_path(selection.last_seq)
        ranges = tuple(ByteRange(path=str(p), offset=offset, length=n) for p, offset, n in selection.ranges)
        schemas = None if schema_path is None else str(schema_path)
        if self._stage is not None:
            ranges, schemas = self._stage.copy(subscriber, seen.next_batch, selection.ranges, schema_path)
        lease = None
        try:
            with self.meta.change() as state:
                known = state.subscriptions.get(subscriber)
                if known is None or (known.start_seq(), known.next_batch) != (seen.start_seq(), seen.next_batch):
                    return None
                if self._due(known, owner, subscriber, ahead) is not None:
                    return None
                if state.source is None:
                    raise IdentityError(
                        "does not know which source the store belongs to",
                        place=self.meta.place,
                        remedy=f"Run `cdc capture {self._config.name} --until-current`, which binds it.",
                    )
                draft = Draft(
                    self._config.name,
                    subscriber,
                    seen.next_batch,
                    seen.start_seq(),
                    selection,
                    seen.filter,
                    self._reader.beginning(),
                    tuple(known.gaps),
                )
                manifest = draft.manifest(state.source.server_uuid, ranges, schemas)
                path = self.manifests.save(manifest)
                entry = Outstanding(
                    batch=manifest.batch,
                    first_seq=manifest.first_seq,
                    last_seq=manifest.last_seq,
                    after_seq=manifest.after_seq,
                    owner=owner,
                    token=secrets.token_hex(16),
                    expires=self._expiry(lease_s),
                )
                known.add(entry)
                lease = Lease(manifest, path, entry.token, entry.expires)
            return lease
        finally:
            if lease is None and self._stage is not None:
                self._stage.discard(ranges)

    def _roll_back_moved(self, known: Subscription, subscriber: str) -> None:
        """Roll back the outstanding batches from the first one on whose bytes do not lie where its manifest says: the
        store is another one, or was restored from an older copy. They come again in new batches."""
        from cdc.store.reader.selection import Limits

        for entry in known.outstanding:
            try:
                manifest = load_manifest(self.manifests.path(subscriber, entry.batch))
            except DamagedError:
                return  # rolled back, with a word, when it is handed out
            same = Limits(max_bytes=1 << 62, max_row_events=None, max_transactions=manifest.transactions)
            found = self._select(known, manifest.after_seq, same)
            if found is not None and _are_same(manifest.ranges, found.ranges):
                continue
            _log.warning("batch rolled back: the store has changed under it", batch=entry.batch, subscriber=subscriber)
            with self.meta.change() as state:
                now = state.subscriptions.get(subscriber)
                if now is None or now.find(entry.batch) is None:
                    return
                gone = cut(now, entry.batch)
            self._remove(subscriber, gone)
            return

    def _select(self, known: Subscription, after_seq: int, limits: Limits) -> Selection | None:
        return self._reader.select(after_seq, limits, as_filter(known.filter))

    def _lies_before(self, manifest: Manifest, known: Subscription, limits: Limits) -> bool:
        """Was all of an outstanding batch committed before the time limit?"""
        same = replace(limits, max_bytes=1 << 62, max_row_events=None, max_transactions=manifest.transactions)
        found = self._select(known, manifest.after_seq, same)
        return found is not None and found.transactions >= manifest.transactions

    def _remove(self, subscriber: str, batches: list[int]) -> None:
        self.manifests.remove(subscriber, batches)
        if self._stage is not None and batches:
            self._stage.remove(subscriber, batches)

    def _sweep(self, stage: Stage, subscriber: str) -> None:
        from cdc.batches.stage import folder_of

        known = self.meta.read().subscription(subscriber)
        keep: dict[int, str | None] = {}
        for entry in known.outstanding:
            try:
                keep[entry.batch] = folder_of(load_manifest(self.manifests.path(subscriber, entry.batch)).ranges)
            except DamagedError:  # rolled back when it is due, and its copy with it
                keep[entry.batch] = None
        stage.sweep(subscriber, known.next_batch, keep)

    def _expiry(self, lease_s: float) -> datetime:
        return self._clock() + timedelta(seconds=lease_s)


def _are_same(ranges: Sequence[ByteRange], there: Sequence[Range]) -> bool:
    """Whether these are the same bytes of the same files, which another path may lead to."""
    return len(ranges) == len(there) and all(
        (old.offset, old.length) == (new.offset, new.length) and _is_same_file(Path(old.path), new.path)
        for old, new in zip(ranges, there, strict=True)
    )


def _is_same_file(old: Path, new: Path) -> bool:
    try:
        return old == new or old.samefile(new)
    except OSError:  # it is not there any more
        return False


def _mark(manifest: Manifest) -> HistoryMark | None:
    """What tells later that the source still has the history up to the batch's end; None where nothing does."""
    last = manifest.positions.last
    if last.gtid is None and last.file_created_s is None:
        return None
    return HistoryMark(seq=manifest.last_seq, gtid=last.gtid, file_created_s=last.file_created_s)


def limits_of(batch: BatchConfig, until_us: int | None = None) -> Limits:
    """The configuration's limits; ``until_us``: only what was committed before (microseconds since 1970)."""
    from cdc.store.reader.selection import Limits

    return Limits(batch.max_bytes, batch.max_transactions, batch.max_row_events, until_us)
