"""Removes segments that no subscriber needs any more; a kill at any moment leaves a store that recovery can repair.

Only whole segments go, the oldest first, so that the rest is contiguous. The newest segment stays, and the one with the
store's last entry, where capture goes on, and any in use. An acked segment goes when it is old enough or room is
needed; one that a subscriber has not acked goes only if the user has set a limit for that (``unacked_for``).

A removal writes the low-water mark (``removed.json``) with the names of the segments, removes the segments, then their
indexes, then the names from the mark, then the schemas that no transaction needs any more. Each step is durable before
the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cdc.base.errors import CdcError, StorageError
from cdc.base.log import get_logger
from cdc.base.units import iso_time_us
from cdc.disk.durable import storage_errors
from cdc.store.formats import layout
from cdc.store.formats.archive_record import record_of
from cdc.store.formats.index import IndexFile, update_stats
from cdc.store.formats.missing import Removed, finish_removal, kept_names, read_removed, removal_lock, write_removed
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.disk import DiskWatch, FillLevel

log = get_logger(__name__)

_EVERY_S = 60.0
_EVERY_UNDER_PRESSURE_S = 5.0
_WARN_AGAIN_S = 3600.0
Reason = Literal["acked", "room", "disk", "unacked", "asked"]


@dataclass(frozen=True)
class Holder:
    """A subscriber that may hold the store back."""

    name: str
    acked_seq: int
    in_use: tuple[tuple[int, int], ...] = ()
    """First and last seq of each batch in use: its segments stay, whatever their age."""


@dataclass(frozen=True)
class RetentionRules:
    """The user's rules. Ages are in seconds, by the store time of a segment's last entry; None: never by age."""

    acked_for_s: float | None = 72 * 3600.0
    unacked_for_s: float | None = None
    """The time for which a subscriber may lag before it is cut off."""
    max_bytes: int | None = None
    """Limit for all segments and indexes. Above it acked segments go, whatever their age."""
    delete_at: tuple[int, ...] | None = None
    """Hours of the day, local time, in which segments go because of their age; None: any."""
    lost_after_s: float = 24 * 3600.0
    """A subscriber that leaves a transaction unacked for so long seems lost, and a warning names it."""
    wait_for_archive: str | None = None
    """The URI of the archive that a segment must be in before it may go, whatever the reason; None: none."""


@dataclass(frozen=True)
class Candidate:
    """A segment that may go."""

    name: str
    bytes: int
    """Bytes of the segment and its index."""
    last_seq: int
    """Seq of its last transaction; without any, that of an older segment's."""
    commit_time_us: int
    store_time_us: int
    """Store time of its last entry."""
    why: Reason = "asked"


@dataclass(frozen=True)
class SubscriberBacklog:
    """The transactions that a subscriber has not acked."""

    name: str
    acked_seq: int
    transactions: int
    bytes: int
    since_us: int | None
    """Store time of the oldest of them, µs since 1970; None if it has acked all."""
    lost: bool
    """Whether the oldest of them is older than the limit: the subscriber seems lost."""


@dataclass(frozen=True)
class Removal:
    """The segments that a run removed, or would remove."""

    removed: tuple[Candidate, ...] = ()
    cut_off: tuple[str, ...] = ()
    """Subscribers that had not acked all of them."""
    bytes_left: int = 0
    """Bytes of the segments and indexes that stay."""
    over_bytes: int = 0
    """Bytes that stay above ``max_bytes``, because no other segment may go."""
    unarchived: int = 0
    """Segments that stay only because they are not in the archive yet."""

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.removed)


def retain(
    store: Path,
    holders: Sequence[Holder],
    rules: RetentionRules,
    *,
    now_us: int,
    by_age: bool = True,
    wanted_bytes: int = 0,
    dry_run: bool = False,
) -> Removal:
    """Removes the segments that the rules let go.

    ``by_age`` says whether segments may go now because they are old; room is made at any time. ``wanted_bytes`` is how
    much to free from acked segments, whatever their age. Without any holder nothing counts as acked. Raises
    StorageError, DamagedError, LeaseHeldError (another process removes segments).
    """
    with removal_lock(store):
        if not dry_run:
            finish_removal(store)
        candidates, total = _candidates(store)
        archive = rules.wait_for_archive
        archived = None if archive is None else record_of(store, archive).archived_seq
        going: list[Candidate] = []
        room = 0 if rules.max_bytes is None else total - rules.max_bytes
        freed = unarchived = 0
        for candidate in candidates:
            why = _why(candidate, holders, rules, now_us, by_age, room > freed, wanted_bytes > freed)
            if why is None:
                break
            if unarchived or (archived is not None and candidate.last_seq > archived):
                unarchived += 1
                continue
            going.append(replace(candidate, why=why))
            freed += candidate.bytes
        if not dry_run:
            _remove(store, going)
            update_stats(store)
    left = total - freed
    over = 0 if rules.max_bytes is None else max(0, left - rules.max_bytes)
    last_seq = max((candidate.last_seq for candidate in going), default=0)
    # A holder below the low-water mark was cut off, and named, by an earlier run.
    cut = tuple(h.name for h in holders if h.acked_seq < last_seq)
    return Removal(tuple(going), cut, left, over, unarchived)


def remove_until(store: Path, seq: int, *, in_use: Sequence[tuple[int, int]] = ()) -> Removal:
    """Removes every segment whose transactions all lie up to ``seq``, acked or not, except the newest one and those in
    use. The caller is responsible for the readers. Raises what :func:`retain` raises."""
    with removal_lock(store):
        finish_removal(store)
        candidates, total = _candidates(store)
        going: list[Candidate] = []
        for candidate in candidates:
            if candidate.last_seq > seq or any(first <= candidate.last_seq for first, _ in in_use):
                break
            going.append(candidate)
        _remove(store, going)
        update_stats(store)
    return Removal(tuple(going), bytes_left=total - sum(segment.bytes for segment in going))


def backlogs(
    reader: StoreReader, holders: Sequence[Holder], *, lost_after_s: float, now_us: int
) -> list[SubscriberBacklog]:
    """Returns the transactions that each subscriber has not acked, and which subscribers seem lost."""
    backlogs = []
    for holder in holders:
        backlog = reader.backlog(max(holder.acked_seq, 0))
        since = backlog.oldest_store_time_us
        lost = since is not None and now_us - since > lost_after_s * 1e6
        backlogs.append(
            SubscriberBacklog(holder.name, holder.acked_seq, backlog.transactions, backlog.bytes, since, lost)
        )
    return backlogs


def _why(
    segment: Candidate,
    holders: Sequence[Holder],
    rules: RetentionRules,
    now_us: int,
    by_age: bool,
    room: bool,
    disk: bool,
) -> Reason | None:
    """Returns why a segment may go; None if it may not."""
    if any(first <= segment.last_seq for holder in holders for first, _ in holder.in_use):
        return None
    age_s = (now_us - segment.store_time_us) / 1e6
    if holders and all(holder.acked_seq >= segment.last_seq for holder in holders):
        if by_age and rules.acked_for_s is not None and age_s > rules.acked_for_s:
            return "acked"
        if room:
            return "room"
        if disk:
            return "disk"
    if by_age and rules.unacked_for_s is not None and age_s > rules.unacked_for_s:
        return "unacked"
    return None


def _candidates(store: Path) -> tuple[list[Candidate], int]:
    """Returns the segments before the newest one and before the last entry, oldest first; and the bytes of all
    segments."""
    names = kept_names(store)
    folder = layout.segments_folder(store)
    sizes = {name: _size(folder / name) + _size(layout.index_path(folder / name)) for name in names}
    stop = max(0, len(names) - 1)
    while stop > 0 and not any(len(IndexFile(folder / name).entries) for name in names[stop:]):
        stop -= 1
    candidates: list[Candidate] = []
    last = Removed()
    for name in names[:stop]:
        index = IndexFile(folder / name)
        if not index.is_whole():
            # Its last transactions are not known, so they do not count as acked.
            log.warning("the index of a segment lacks transactions; it and later segments stay", segment=name)
            break
        seq, commit_us = _last_transaction(index)
        last = Removed(max(last.seq, seq), commit_us or last.commit_time_us)
        candidates.append(Candidate(name, sizes[name], last.seq, last.commit_time_us, _stored_us(index)))
    return candidates, sum(sizes.values())


def _stored_us(index: IndexFile) -> int:
    """Returns when the segment got its last entry, or when it was created if it has none."""
    count = len(index.entries)
    if count:
        return int(index.verified(count - 1, count)["store_time_us"][0])
    with storage_errors(index.segment):
        return int(index.segment.stat().st_mtime * 1e6)


def _last_transaction(index: IndexFile) -> tuple[int, int]:
    """Returns the seq and commit time of the last transaction; zeros if there is none."""
    stop = len(index.entries)
    while stop:
        start = max(0, stop - 256)
        transactions = np.flatnonzero(index.entries["length"][start:stop])
        if len(transactions):
            entry = index.verified(start + int(transactions[-1]), start + int(transactions[-1]) + 1)[0]
            return int(entry["seq"]), int(entry["commit_time_us"])
        stop = start
    return 0, 0


def _remove(store: Path, going: Sequence[Candidate]) -> None:
    if not going:
        return
    before = read_removed(store)
    last = going[-1]
    mark = before
    if last.last_seq > before.seq:
        mark = Removed(last.last_seq, last.commit_time_us)
    write_removed(store, replace(mark, removing=tuple(segment.name for segment in going)))
    finish_removal(store)


def _size(path: Path) -> int:
    if not path.exists():  # a lost index
        return 0
    with storage_errors(path):
        return path.stat().st_size


# --- by schedule


@dataclass(frozen=True)
class CleanerRun:
    """The result of one run of the cleaner."""

    removal: Removal
    backlogs: list[SubscriberBacklog]
    """The backlogs of all subscribers. Subscribers that seem lost, or were cut off by this run, are logged."""
    level: FillLevel


class LogCleaner:
    """Removes segments of a store by schedule (RocketMQ's ``CleanCommitLogService``).

    ``holders`` is called at each run with the time, and returns every subscriber that holds the store back.
    """

    def __init__(
        self,
        store: Path,
        rules: RetentionRules,
        holders: Callable[[datetime], Sequence[Holder]],
        watch: DiskWatch,
        *,
        destination: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``destination`` is named in warnings. ``clock`` is for tests."""
        self._store = store
        self._rules = rules
        self._holders = holders
        self.watch = watch
        self._destination = destination
        self._clock = clock
        self._ran_at = float("-inf")
        self._newest: str | None = None
        self._warned_at: dict[str, float] = {}

    def tick(self, segment: str | None = None) -> None:
        """Runs the cleaner once a minute, when ``segment`` (the one that is written) is a new one, and every 5 s while
        the disk is too full. Call it about once a second. Errors are logged, and capture goes on."""
        pressed = self.level() >= FillLevel.CLEAN
        since_s = time.monotonic() - self._ran_at
        rolled = bool(segment) and segment != self._newest
        if since_s < (_EVERY_UNDER_PRESSURE_S if pressed else _EVERY_S) and not rolled:
            return
        self._ran_at, self._newest = time.monotonic(), segment or self._newest
        try:
            self.run()
        except CdcError as error:
            log.warning("retention failed", error=str(error))

    def wait_for_room(self, stop: threading.Event, pause_s: float = 1.0) -> bool:
        """Returns whether there is room to write; if not, waits ``pause_s`` first. Capture then reads nothing from the
        source, which keeps the transactions that are not stored."""
        if self.level() < FillLevel.STOP:
            return True
        self._warn("disk", "the disk is nearly full: nothing is read from the source", error=str(self.watch.error()))
        self.tick()
        if self.level() < FillLevel.STOP:
            return True
        stop.wait(pause_s)
        return False

    def error(self) -> StorageError:
        """Returns the error for a capture that must not wait for room."""
        return self.watch.error()

    def level(self, size_bytes: int = 0) -> FillLevel:
        """Returns the fill level of the disk. A disk that cannot be watched counts as one with room: the write itself
        fails if there is none."""
        try:
            return self.watch.look(size_bytes)
        except StorageError as error:
            self._warn("watch", "the disk cannot be watched", error=str(error))
            return FillLevel.OK

    def run(self, *, by_hand: bool = False, dry_run: bool = False) -> CleanerRun:
        """Runs the cleaner once; with ``by_hand`` segments go by age at any hour of the day. Raises what ``holders``
        raises, StorageError, DamagedError, and LeaseHeldError if another run does not end."""
        rules, now = self._rules, self._clock()
        holders = self._holders(now)
        now_us = int(now.timestamp() * 1_000_000)
        level = self.level()
        removal = retain(
            self._store,
            holders,
            rules,
            now_us=now_us,
            by_age=by_hand or rules.delete_at is None or now.astimezone().hour in rules.delete_at,
            wanted_bytes=self.watch.to_free(),
            dry_run=dry_run,
        )
        held = backlogs(StoreReader(self._store), holders, lost_after_s=rules.lost_after_s, now_us=now_us)
        if not dry_run:
            self._report(removal, held)
        return CleanerRun(removal, held, level)

    def _report(self, removal: Removal, held: list[SubscriberBacklog]) -> None:
        for segment in removal.removed:
            log.info(
                "segment removed", segment=segment.name, bytes=segment.bytes, last_seq=segment.last_seq, why=segment.why
            )
        for name in removal.cut_off:
            log.error(
                "a subscriber was cut off: retention removed what it had not acked",
                subscriber=name,
                acked_seq=next(backlog.acked_seq for backlog in held if backlog.name == name),
                removed_until=removal.removed[-1].last_seq,
            )
        for backlog in held:
            if backlog.lost:
                self._warn(
                    f"lost {backlog.name}",
                    "a subscriber seems lost and holds the store back",
                    subscriber=backlog.name,
                    acked_seq=backlog.acked_seq,
                    bytes=backlog.bytes,
                    since=None if backlog.since_us is None else iso_time_us(backlog.since_us),
                    remedy=f"Start it, or `cdc batch unsubscribe {self._destination} --subscriber {backlog.name}`.",
                )
        if removal.unarchived:
            self._warn(
                "archive",
                "segments stay in the store only because they are not in its archive yet",
                segments=removal.unarchived,
                archive=self._rules.wait_for_archive,
            )
        if removal.over_bytes:
            self._warn(
                "over",
                "the store is larger than retain.max_bytes, and what is left is not acked, or not archived",
                over_bytes=removal.over_bytes,
                held_by=[backlog.name for backlog in held if backlog.bytes],
            )

    def _warn(self, key: str, text: str, **what: Any) -> None:
        """Logs a warning, at most once an hour for each ``key``."""
        now = time.monotonic()
        if now - self._warned_at.get(key, float("-inf")) >= _WARN_AGAIN_S:
            self._warned_at[key] = now
            log.warning(text, **what)
