"""Which segments of a store may go, and their removal, which a kill at any moment leaves mendable.

Only whole segments go, the oldest first, so that what is left is one piece. Never the newest one, nor the one with the
store's last entry, where capture goes on; nor one in use. An acked segment goes when it is old enough, or room is
needed; one that somebody has not acked only where the user has set a limit for that (``unacked_for``).

The order of a removal: the low-water mark (``removed.json``) with the names that go, the segments, their indexes, the
mark without names, the schemas that nobody needs any more; each step durable before the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from cdc import files
from cdc.durable import locked, storage_errors, sync_folder
from cdc.log import get_logger
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.formats.removed import Removed, kept_names, read_removed, write_removed
from cdc.store.formats.segment_stats import update_counts
from cdc.store.reader.reader import StoreReader

log = get_logger(__name__)

LOCK_NAME = "retention.lock"
_WAIT_S = 60.0
Why = Literal["acked", "room", "disk", "unacked", "asked"]


@dataclass(frozen=True)
class Holder:
    """A subscriber, as retention sees it."""

    name: str
    acked_seq: int
    in_use: tuple[tuple[int, int], ...] = ()
    """First and last seq of each batch that is being worked on: its segments stay, whatever their age."""


@dataclass(frozen=True)
class Rules:
    """What the user allows. Ages in seconds, by the store time of a segment's last entry; None: never by age."""

    acked_for_s: float | None = 72 * 3600.0
    unacked_for_s: float | None = None
    """So long a subscriber may lag behind; then it is cut off."""
    max_bytes: int | None = None
    """Of all segments and indexes. Above it acked segments go whatever their age."""


@dataclass(frozen=True)
class Candidate:
    """A segment that may go."""

    name: str
    bytes: int
    """Of the segment and its index."""
    last_seq: int
    """Of its last transaction, or of an older segment's."""
    commit_time_us: int
    store_time_us: int
    """Of its last entry."""
    why: Why = "asked"


@dataclass(frozen=True)
class HeldBack:
    """What a subscriber has not acked."""

    name: str
    acked_seq: int
    transactions: int
    bytes: int
    since_us: int | None
    """Store time of the oldest transaction that it has not acked; None where it has acked all."""
    lost: bool
    """It has left that one lying for longer than the limit."""


@dataclass(frozen=True)
class Outcome:
    """What a run removed, or would remove."""

    removed: tuple[Candidate, ...] = ()
    cut_off: tuple[str, ...] = ()
    """Subscribers that had not acked all of it."""
    bytes_left: int = 0
    """Of the segments and indexes that stay."""
    over_bytes: int = 0
    """So much more than ``max_bytes`` stays, since nobody else may go."""

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.removed)


def retain(
    store: Path,
    holders: Sequence[Holder],
    rules: Rules,
    *,
    now_us: int,
    by_age: bool = True,
    wanted_bytes: int = 0,
    dry_run: bool = False,
) -> Outcome:
    """Remove what the rules let go.

    ``by_age``: may segments go now because they are old? Room is made at any time. ``wanted_bytes``: so much is to be
    made free of acked segments, whatever their age. Where there is no holder, nothing counts as acked.
    Raises StorageError, DamagedError, LeaseHeldError (another retention is at work).
    """
    with _lock(store):
        if not dry_run:
            _finish(store)
        candidates, total = _candidates(store)
        going: list[Candidate] = []
        room = 0 if rules.max_bytes is None else total - rules.max_bytes
        freed = 0
        for one in candidates:
            why = _why(one, holders, rules, now_us, by_age, room > freed, wanted_bytes > freed)
            if why is None:
                break
            going.append(replace(one, why=why))
            freed += one.bytes
        if not dry_run:
            _remove(store, going)
            update_counts(store)
    left = total - freed
    over = 0 if rules.max_bytes is None else max(0, left - rules.max_bytes)
    last_seq = max((one.last_seq for one in going), default=0)
    # Whoever is already below the mark was cut off earlier, and was named then.
    cut = tuple(h.name for h in holders if h.acked_seq < last_seq)
    return Outcome(tuple(going), cut, left, over)


def remove_until(store: Path, seq: int, *, in_use: Sequence[tuple[int, int]] = ()) -> Outcome:
    """Remove every segment whose transactions all lie up to ``seq``, acked or not, but the newest one and those in
    use. Whoever asks sees to the readers. Raises as :func:`retain` does."""
    with _lock(store):
        _finish(store)
        candidates, total = _candidates(store)
        going: list[Candidate] = []
        for one in candidates:
            if one.last_seq > seq or any(first <= one.last_seq for first, _ in in_use):
                break
            going.append(one)
        _remove(store, going)
        update_counts(store)
    return Outcome(tuple(going), bytes_left=total - sum(one.bytes for one in going))


@contextmanager
def undisturbed(store: Path) -> Iterator[None]:
    """No retention runs inside, and one that a kill has interrupted is ended first: for a writer that looks through the
    segments. Raises as :func:`retain` does."""
    with _lock(store):
        _finish(store)
        yield


def held_back(reader: StoreReader, holders: Sequence[Holder], *, lost_after_s: float, now_us: int) -> list[HeldBack]:
    """What each subscriber holds back, and who seems lost."""
    found = []
    for holder in holders:
        behind = reader.behind(max(holder.acked_seq, 0))
        since = behind.oldest_store_time_us
        lost = since is not None and now_us - since > lost_after_s * 1e6
        found.append(HeldBack(holder.name, holder.acked_seq, behind.transactions, behind.bytes, since, lost))
    return found


def _lock(store: Path) -> AbstractContextManager[None]:
    return locked(store / LOCK_NAME, "another retention", wait_s=_WAIT_S)


def _why(
    one: Candidate, holders: Sequence[Holder], rules: Rules, now_us: int, by_age: bool, room: bool, disk: bool
) -> Why | None:
    """Why a segment may go; None: it may not."""
    if any(first <= one.last_seq for holder in holders for first, _ in holder.in_use):
        return None
    age_s = (now_us - one.store_time_us) / 1e6
    if holders and all(holder.acked_seq >= one.last_seq for holder in holders):
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
    """Those that are neither the newest segment nor hold the last entry, oldest first; and the bytes of all."""
    names = kept_names(store)
    folder = layout.segments_folder(store)
    sizes = {name: _size(folder / name) + _size(layout.index_path(folder / name)) for name in names}
    stop = max(0, len(names) - 1)
    while stop > 0 and not any(len(IndexFile(folder / name).entries) for name in names[stop:]):
        stop -= 1
    found: list[Candidate] = []
    last = Removed()
    for name in names[:stop]:
        index = IndexFile(folder / name)
        if not index.is_whole():
            # Its last transactions are not known; what they are cannot be said to be acked.
            log.warning("the index of a segment lacks transactions; it and what follows stays", segment=name)
            break
        seq, commit_us = _last_transaction(index)
        last = Removed(max(last.seq, seq), commit_us or last.commit_time_us)
        found.append(Candidate(name, sizes[name], last.seq, last.commit_time_us, _stored_us(index)))
    return found, sum(sizes.values())


def _stored_us(index: IndexFile) -> int:
    """When the segment got its last entry; one without an entry: when it was made."""
    count = len(index.entries)
    if count:
        return int(index.verified(count - 1, count)["store_time_us"][0])
    with storage_errors(index.segment):
        return int(index.segment.stat().st_mtime * 1e6)


def _last_transaction(index: IndexFile) -> tuple[int, int]:
    """Seq and commit time; zeros where there is none."""
    stop = len(index.entries)
    while stop:
        start = max(0, stop - 256)
        there = np.flatnonzero(index.entries["length"][start:stop])
        if len(there):
            entry = index.verified(start + int(there[-1]), start + int(there[-1]) + 1)[0]
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
    write_removed(store, replace(mark, removing=tuple(one.name for one in going)))
    _finish(store)


def _finish(store: Path) -> None:
    """Remove what the mark names. Every step may be repeated."""
    removed = read_removed(store)
    folder = layout.segments_folder(store)
    if removed.removing:
        with storage_errors(folder):
            # The segment first: an index without one is nobody's, a segment without its index would be damage.
            for name in removed.removing:
                _unlink(folder / name)
            sync_folder(folder)
            for path in sorted(folder.iterdir()):
                if any(path.name.startswith(f"{name}.") for name in removed.removing):
                    _unlink(path)  # the index, and what recovery has kept
            sync_folder(folder)
        write_removed(store, replace(removed, removing=()))
    _remove_schemas(store, removed.seq)


def _remove_schemas(store: Path, removed_seq: int) -> None:
    """Those that held before the first transaction that is left; the newest of them still holds there."""
    folder = layout.schemas_folder(store)
    with storage_errors(folder):
        seqs = sorted(int(p.stem) for p in folder.glob("*.json") if p.stem.isdigit()) if folder.is_dir() else []
        old = [seq for seq in seqs if seq <= removed_seq][:-1]
        for seq in old:
            _unlink(folder / f"{seq}.json")
        if old:
            sync_folder(folder)


def _unlink(path: Path) -> None:
    with suppress(FileNotFoundError):
        files.layer.unlink(path)


def _size(path: Path) -> int:
    if not path.exists():  # an index that is lost
        return 0
    with storage_errors(path):
        return path.stat().st_size
