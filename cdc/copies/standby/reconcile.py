"""Reconciles a store with its new master: finds what both have in common, and truncates the rest.

The standby asks the master for digests of ranges of its index entries. It compares whole segments first, then searches
the one that differs by bisection. Equal digests of the first *n* entries mean that the first *n* are equal, so the
search is right whatever follows them. Everything that the master never had is moved to the store's folder ``cut/``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from cdc.base.errors import CorruptStreamError, IdentityError
from cdc.base.log import get_logger
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE
from cdc.binlog.positions import format_seq
from cdc.copies.standby.protocol import Compared, Have
from cdc.copies.standby.snapshot import EntryKind, SegmentSnapshot
from cdc.disk import files
from cdc.disk.durable import make_folder, replace_file, storage_errors, sync_folder
from cdc.disk.encryption.read import content_size
from cdc.store.formats import layout
from cdc.store.formats.index import first_bad, make_header
from cdc.store.formats.missing import kept_names
from cdc.store.recovery.recover import copy_tail
from cdc.store.recovery.recover import truncate as truncate_segment

log = get_logger(__name__)

FOLDER = "cut"
"""The store's folder for truncated transactions."""

Ask = Callable[[str, int, int, EntryKind], Compared]
"""Asks the master about entries (segment, start, stop, kind)."""

_REMEDY = (
    "If the master has lost its store, take over here instead (docs/how-to/standby.md). If this is the wrong folder"
    " or the wrong master, correct the configuration. If the content of this folder is not needed, empty it."
)


@dataclass
class ReconcilePlan:
    """The segments that a store has to remove or truncate, and the position from which it continues."""

    have: list[Have] = field(default_factory=list)
    """The segments from which the master continues; each is truncated to this. The list begins with the last complete
    segment, or the first incomplete one, and ends with the last segment that stays."""
    fetch: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Segments whose bytes equal the master's, but whose entries differ: the range of the master's entries that replace
    them before the segment is truncated."""
    removed: list[str] = field(default_factory=list)
    """Segments that the master's retention has removed."""
    foreign: list[str] = field(default_factory=list)
    """Segments that the master never had."""
    whole: bool = True
    """Whether all segments in ``have`` are complete so far."""

    def keep(self, have: Have, *, whole: bool) -> None:
        """Adds the next segment that stays, up to ``have``. ``whole``: it lacks nothing of the master's segment."""
        if self.whole:
            self.have.clear()
        self.have.append(have)
        self.whole = self.whole and whole


def plan_reconcile(store: Path, master_names: list[str], removed_seq: int, ask: Ask, compared: str) -> ReconcilePlan:
    """Compares the store with a master whose segments are ``master_names`` and whose retention has removed all up to
    ``removed_seq``. Segments before ``compared`` are known to be equal, and are not compared again.

    Raises IdentityError if the store has transactions but none in common: it may be the wrong master.
    """
    own_names = kept_names(store)
    plan = ReconcilePlan()
    first = master_names[0] if master_names else ""
    while own_names and own_names[0] < first and _last_seq(store, own_names[0]) <= removed_seq:
        plan.removed.append(own_names.pop(0))
    if not own_names:
        return plan
    if own_names[0] not in master_names:
        _require_no_transactions(store, own_names)
        plan.foreign = own_names
        return plan
    if own_names[0] != first:
        # This store was the master, and its retention went further than the new master's, which will catch up.
        log.warning(
            "the master's store begins earlier than this one", store=str(store), first=own_names[0], theirs=first
        )
    expected = master_names[master_names.index(own_names[0]) :]
    for number, name in enumerate(own_names):
        if expected[number : number + 1] != [name]:
            plan.foreign = own_names[number:]
            break
        is_last = number == len(own_names) - 1
        snapshot = SegmentSnapshot(store, name)
        if name < compared and not is_last:
            plan.keep(Have(segment=name, size_bytes=snapshot.end(), entries=len(snapshot.entries)), whole=True)
            continue
        if ask(name, 0, 0, "index").head_crc != snapshot.head_crc():
            plan.foreign = own_names[number:]
            break
        if not _compare(snapshot, ask, plan) and not is_last:
            plan.foreign = own_names[number + 1 :]
            break
    return plan


def _compare(snapshot: SegmentSnapshot, ask: Ask, plan: ReconcilePlan) -> bool:
    """Compares one segment, and adds it to the plan; False if later segments cannot be in common."""
    name, count, numbers = snapshot.path.name, len(snapshot.entries), snapshot.with_bytes
    answer = ask(name, 0, count, "index")
    if answer.digest == snapshot.digest("index", 0, count):
        plan.keep(Have(segment=name, size_bytes=snapshot.end(), entries=count), whole=answer.count == count)
        return answer.count == count
    # A rebuilt index has other store times: the log may be equal although the entries differ.
    transactions = _common(snapshot, "log", ask)
    entries = _common(snapshot, "index", ask)
    upto = int(numbers[transactions - 1]) + 1 if transactions else 0
    master_log = ask(name, 0, transactions, "log")
    if transactions < len(numbers):
        entries = min(entries, int(numbers[transactions]))
    if entries < upto:
        plan.fetch[name] = (entries, master_log.entries)
        entries = master_log.entries
    size = snapshot.end(transactions) if transactions else snapshot.head_size()
    plan.keep(Have(segment=name, size_bytes=size, entries=entries), whole=False)
    return transactions == len(numbers) == master_log.count


def _common(snapshot: SegmentSnapshot, kind: EntryKind, ask: Ask) -> int:
    """Returns how many entries of this kind, from the first one on, are equal."""
    name = snapshot.path.name

    def same(start: int, stop: int) -> bool:
        return ask(name, start, stop, kind).digest == snapshot.digest(kind, start, stop)

    low, high = 0, min(snapshot.count(kind), ask(name, 0, 0, kind).count)
    if same(low, high):
        return high
    while high - low > 1:  # entries before low are equal; between low and high some differ
        middle = (low + high) // 2
        if same(low, middle):
            low = middle
        else:
            high = middle
    return low


def _last_seq(store: Path, name: str) -> int:
    """Returns the seq of the segment's last transaction; 0 if there is none."""
    snapshot = SegmentSnapshot(store, name)
    return int(snapshot.entries["seq"][int(snapshot.with_bytes[-1])]) if len(snapshot.with_bytes) else 0


def _require_no_transactions(store: Path, names: list[str]) -> None:
    last = max(_last_seq(store, name) for name in names)
    if last:
        raise IdentityError(
            f"has transactions up to {last} ({format_seq(last)}), but none in common with the master",
            place=str(store),
            remedy=_REMEDY,
        )


def index_bytes(entries: int) -> int:
    """Returns the size of an index file with this many entries."""
    return HEADER_SIZE + entries * ENTRY_SIZE


def segment_path(store: Path, name: str) -> Path:
    """Returns the path of a segment."""
    return layout.segments_folder(store) / name


def truncate(store: Path, plan: ReconcilePlan, fetched: dict[str, bytes], why: str) -> int:
    """Carries out a plan; returns how many transactions were removed because the master never had them.

    ``fetched`` has the master's entries for each of ``plan.fetch``. The caller has made sure that the checkpoint does
    not cover what is removed. After each step the store opens and holds all that is in common, and the step may be
    repeated. Raises StorageError.
    """
    evidence = store / FOLDER / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for name in plan.removed:
        remove_segment(store, name)
    lost = 0
    for name in reversed(plan.foreign):
        lost += _move(store, name, evidence)
    for have in reversed(plan.have):
        entries = fetched.get(have.segment)
        if entries is not None:
            _replace_entries(store, have, entries)
        lost += _shorten(store, have, evidence)
    if lost:
        log.warning(
            "truncated transactions that the master never had",
            store=str(store),
            transactions=lost,
            kept=str(evidence),
            why=why,
        )
    return lost


def remove_segment(store: Path, name: str) -> None:
    """Removes a segment and its index; the segment first, because an index without a segment is ignored."""
    path = segment_path(store, name)
    with storage_errors(path):
        for index_or_log in (path, layout.index_path(path)):
            with suppress(FileNotFoundError):
                files.layer.unlink(index_or_log)
        sync_folder(path.parent)


def _move(store: Path, name: str, evidence: Path) -> int:
    """Moves a segment to the evidence; returns how many transactions it had."""
    snapshot = SegmentSnapshot(store, name)
    count = len(snapshot.with_bytes)
    if not count:
        remove_segment(store, name)
        return 0
    make_folder(evidence)
    with storage_errors(evidence):
        # The segment first: an index alone counts as no segment, but a segment alone would get a new index.
        for path in (snapshot.path, layout.index_path(snapshot.path)):
            with suppress(FileNotFoundError):
                files.layer.replace(path, evidence / path.name)
        sync_folder(evidence)
        sync_folder(snapshot.path.parent)
    return count


def _replace_entries(store: Path, have: Have, entries: bytes) -> None:
    """Replaces the entries behind the common ones with the master's, in one step.

    If the index lacked them for a moment, a recovery at that moment would rebuild it from the segment.
    """
    snapshot = SegmentSnapshot(store, have.segment)
    common = have.entries - len(entries) // ENTRY_SIZE
    path = layout.index_path(snapshot.path)
    whole = make_header() + snapshot.entries[:common].tobytes() + entries
    own_numbers, after = snapshot.with_bytes, np.frombuffer(whole, dtype=ENTRY, offset=HEADER_SIZE)
    numbers = np.flatnonzero(after["length"])
    keys = ["seq", "offset", "length", "checksum"]
    fits = len(numbers) <= len(own_numbers) and all(
        np.array_equal(after[key][numbers], snapshot.entries[key][own_numbers[: len(numbers)]]) for key in keys
    )
    if first_bad(after) >= 0 or not fits:
        raise CorruptStreamError("the master sent other entries than it was asked for", place=have.segment)
    # Entries of transactions that will be truncated stay until their bytes are in the evidence.
    tail = snapshot.entries[int(own_numbers[len(numbers)]) :].tobytes() if len(numbers) < len(own_numbers) else b""
    replace_file(path, whole + tail)


def _shorten(store: Path, have: Have, evidence: Path) -> int:
    """Truncates a segment and its index to what is in common; returns how many transactions were removed."""
    path = segment_path(store, have.segment)
    snapshot = SegmentSnapshot(store, have.segment)
    kept = snapshot.with_bytes
    ends = snapshot.entries["offset"][kept] + snapshot.entries["length"][kept]
    lost = int((ends > have.size_bytes).sum())
    with storage_errors(path):
        if content_size(path) > have.size_bytes and lost:
            make_folder(evidence)
            copy_tail(path, have.size_bytes, evidence / f"{path.name}.{have.size_bytes}.cut")
            sync_folder(evidence)
        # The index first: entries beyond the end of the segment would be damage.
        index = layout.index_path(path)
        size = index_bytes(have.entries)
        _truncate(index, size, make_header())
        truncate_segment(path, have.size_bytes)
        sync_folder(path.parent)
    return lost


def _truncate(path: Path, size: int, head: bytes) -> None:
    fd = files.layer.open(path, os.O_RDWR | os.O_CREAT)
    try:
        have = files.layer.seek(fd, 0, os.SEEK_END)
        if have < len(head):
            files.pwrite_all(fd, head, 0)
        if have > size:
            files.layer.ftruncate(fd, size)
        files.layer.fsync(fd)
    finally:
        files.layer.close(fd)
