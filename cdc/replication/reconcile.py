"""The last transaction that two stores have in common, and the cut behind it.

The side that shall follow asks the master for digests of ranges of its index entries, and searches: first whole
segments, then by halves in the one that differs. Equal digests of the first *n* entries mean that the first *n* are
equal, so the search is right whatever comes behind. What the master never had goes to ``cut/``; then the store follows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from cdc import files
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE
from cdc.durable import make_folder, replace_file, storage_errors, sync_folder
from cdc.errors import CorruptStreamError, IdentityError
from cdc.log import get_logger
from cdc.positions import format_seq
from cdc.replication.protocol import Compared, Have
from cdc.replication.snapshot import Sort, View
from cdc.store.formats import layout
from cdc.store.formats.index import first_bad, make_header
from cdc.store.formats.removed import kept_names

log = get_logger(__name__)

Ask = Callable[[str, int, int, Sort], Compared]
"""Segment, start, stop, which entries → what the master has there."""

_REMEDY = (
    "If the master has lost its store, take over here instead (docs/operating/standby.md). If this is the wrong folder"
    " or the wrong master, correct the configuration; if its content may go, empty it."
)


@dataclass
class Plan:
    """What a store has to give up, and from where it goes on."""

    have: list[Have] = field(default_factory=list)
    """All segments from the last one that is whole, or the first one that is not, to the last one that stays; each is
    cut to this."""
    fetch: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Segments whose bytes are the master's, and whose entries are not: the range of the master's that take their
    place, before the segment is cut."""
    gone: list[str] = field(default_factory=list)
    """Segments that the master's retention has removed."""
    cut: list[str] = field(default_factory=list)
    """Segments that the master never had."""
    whole: bool = True
    """Is everything in ``have`` whole so far?"""

    def keep(self, have: Have, *, whole: bool) -> None:
        """The next segment stays up to there; ``whole``: it lacks nothing either."""
        if self.whole:
            self.have.clear()
        self.have.append(have)
        self.whole = self.whole and whole


def plan(store: Path, theirs: list[str], removed_seq: int, ask: Ask, compared: str) -> Plan:
    """Compare with a master whose segments are ``theirs``, and whose retention has removed everything up to
    ``removed_seq``. Segments before ``compared`` are known to be the same.

    Raises IdentityError where there are transactions and nothing in common: it may be the wrong master.
    """
    mine = kept_names(store)
    found = Plan()
    first = theirs[0] if theirs else ""
    while mine and mine[0] < first and _last_seq(store, mine[0]) <= removed_seq:
        found.gone.append(mine.pop(0))
    if not mine:
        return found
    if mine[0] not in theirs:
        _require_nothing(store, mine)
        found.cut = mine
        return found
    if mine[0] != first:
        # Its own retention, from when it was the master, had gone further than the new one's; that will come after.
        log.warning("the master's store begins earlier", store=str(store), first=mine[0], theirs=first)
    expected = theirs[theirs.index(mine[0]) :]
    for number, name in enumerate(mine):
        if expected[number : number + 1] != [name]:
            found.cut = mine[number:]
            break
        is_last = number == len(mine) - 1
        view = View(store, name)
        if name < compared and not is_last:
            found.keep(Have(segment=name, size_bytes=view.end(), entries=len(view.entries)), whole=True)
            continue
        if ask(name, 0, 0, "index").head_crc != view.head_crc():
            found.cut = mine[number:]
            break
        if not _compare(view, ask, found) and not is_last:
            found.cut = mine[number + 1 :]
            break
    return found


def _compare(view: View, ask: Ask, found: Plan) -> bool:
    """Compare one segment; False where what comes behind it cannot be common."""
    name, count, numbers = view.path.name, len(view.entries), view.with_bytes
    answer = ask(name, 0, count, "index")
    if answer.digest == view.digest("index", 0, count):
        found.keep(Have(segment=name, size_bytes=view.end(), entries=count), whole=answer.count == count)
        return answer.count == count
    # An index that was made anew tells other times of storing: the log may agree where the entries do not.
    transactions = _common(view, "log", ask)
    entries = _common(view, "index", ask)
    upto = int(numbers[transactions - 1]) + 1 if transactions else 0
    theirs = ask(name, 0, transactions, "log")
    if transactions < len(numbers):
        entries = min(entries, int(numbers[transactions]))
    if entries < upto:
        found.fetch[name] = (entries, theirs.entries)
        entries = theirs.entries
    size = view.end(transactions) if transactions else view.head_size()
    found.keep(Have(segment=name, size_bytes=size, entries=entries), whole=False)
    return transactions == len(numbers) == theirs.count


def _common(view: View, of: Sort, ask: Ask) -> int:
    """So many entries from the first on are the same."""
    name = view.path.name

    def same(start: int, stop: int) -> bool:
        return ask(name, start, stop, of).digest == view.digest(of, start, stop)

    low, high = 0, min(view.count(of), ask(name, 0, 0, of).count)
    if same(low, high):
        return high
    while high - low > 1:  # up to low they are the same; between low and high something differs
        middle = (low + high) // 2
        if same(low, middle):
            low = middle
        else:
            high = middle
    return low


def _last_seq(store: Path, name: str) -> int:
    """Of the last transaction; 0 where there is none."""
    view = View(store, name)
    return int(view.entries["seq"][int(view.with_bytes[-1])]) if len(view.with_bytes) else 0


def _require_nothing(store: Path, names: list[str]) -> None:
    last = max(_last_seq(store, name) for name in names)
    if last:
        raise IdentityError(
            f"has transactions up to {last} ({format_seq(last)}), and none in common with the master",
            place=str(store),
            remedy=_REMEDY,
        )


def index_bytes(entries: int) -> int:
    """Size of an index with so many entries."""
    return HEADER_SIZE + entries * ENTRY_SIZE


def segment_path(store: Path, name: str) -> Path:
    return layout.segments_folder(store) / name


log = get_logger(__name__)

FOLDER = "cut"
_PIECE = 1 << 20


def cut(store: Path, plan: Plan, fetched: dict[str, bytes], why: str) -> int:
    """Carry out a plan; returns how many transactions were cut. ``fetched``: the master's entries for each of
    ``plan.fetch``. Each step leaves a store that opens, with all that is common in it, and may be repeated. The
    checkpoint must not claim any more what goes. Raises StorageError."""
    evidence = store / FOLDER / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for name in plan.gone:
        remove_segment(store, name)
    lost = 0
    for name in reversed(plan.cut):
        lost += _move(store, name, evidence)
    for have in reversed(plan.have):
        entries = fetched.get(have.segment)
        if entries is not None:
            _replace_entries(store, have, entries)
        lost += _shorten(store, have, evidence)
    if lost:
        log.warning(
            "cut off what the master never had", store=str(store), transactions=lost, kept=str(evidence), why=why
        )
    return lost


def remove_segment(store: Path, name: str) -> None:
    """The segment first: an index without one is nobody's."""
    path = segment_path(store, name)
    with storage_errors(path):
        for each in (path, layout.index_path(path)):
            with suppress(FileNotFoundError):
                files.layer.unlink(each)
        sync_folder(path.parent)


def _move(store: Path, name: str, evidence: Path) -> int:
    view = View(store, name)
    count = len(view.with_bytes)
    if not count:
        remove_segment(store, name)
        return 0
    make_folder(evidence)
    with storage_errors(evidence):
        # The index last: without it the segment would be one whose index is lost, with it alone there is none.
        for path in (view.path, layout.index_path(view.path)):
            with suppress(FileNotFoundError):
                files.layer.replace(path, evidence / path.name)
        sync_folder(evidence)
        sync_folder(view.path.parent)
    return count


def _replace_entries(store: Path, have: Have, entries: bytes) -> None:
    """Put the master's entries in the place of those behind the common ones, in one step: an index that lacked them
    for a moment would make a recovery doubt the segment."""
    view = View(store, have.segment)
    common = have.entries - len(entries) // ENTRY_SIZE
    path = layout.index_path(view.path)
    whole = make_header() + view.entries[:common].tobytes() + entries
    mine, after = view.with_bytes, np.frombuffer(whole, dtype=ENTRY, offset=HEADER_SIZE)
    numbers = np.flatnonzero(after["length"])
    keys = ["seq", "offset", "length", "checksum"]
    fits = len(numbers) <= len(mine) and all(
        np.array_equal(after[key][numbers], view.entries[key][mine[: len(numbers)]]) for key in keys
    )
    if first_bad(after) >= 0 or not fits:
        raise CorruptStreamError("the master's entries are not those that it was asked for", place=have.segment)
    # Those of transactions that are to be cut stay until their bytes are kept.
    tail = view.entries[int(mine[len(numbers)]) :].tobytes() if len(numbers) < len(mine) else b""
    replace_file(path, whole + tail)


def _shorten(store: Path, have: Have, evidence: Path) -> int:
    """Cut a segment and its index to what is common."""
    path = segment_path(store, have.segment)
    view = View(store, have.segment)
    ends = view.entries["offset"][view.with_bytes] + view.entries["length"][view.with_bytes]
    lost = int((ends > have.size_bytes).sum())
    with storage_errors(path):
        if path.stat().st_size > have.size_bytes and lost:
            make_folder(evidence)
            _copy_tail(path, have.size_bytes, evidence / f"{path.name}.{have.size_bytes}.cut")
            sync_folder(evidence)
        # The index first: one that says more than its segment would be damage.
        index = layout.index_path(path)
        size = index_bytes(have.entries)
        _truncate(index, size, make_header())
        _truncate(path, have.size_bytes, b"")
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


def _copy_tail(path: Path, offset: int, target: Path) -> None:
    made = files.layer.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with path.open("rb") as source, open(made, "wb") as kept:
        source.seek(offset)
        while piece := source.read(_PIECE):
            kept.write(piece)
        kept.flush()
        os.fsync(kept.fileno())
