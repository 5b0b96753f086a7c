"""The last transaction that two stores have in common, and the cut behind it.

The side that shall follow asks the master for digests of ranges of its index entries, and searches: first whole
segments, then by halves in the one that differs. Equal digests of the first *n* entries mean that the first *n* are
equal, so the search is right whatever comes behind. What the master never had goes to ``cut/``; then the store follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cdc.binlog.entry import ENTRY_SIZE, HEADER_SIZE
from cdc.errors import IdentityError
from cdc.log import get_logger
from cdc.positions import format_seq
from cdc.replication.messages import Compared, Have
from cdc.replication.snapshot import Sort, View
from cdc.store.formats import layout
from cdc.store.formats.missing import kept_names

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
