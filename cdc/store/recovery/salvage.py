"""Giving up what of a segment cannot be read any more, when somebody says so, so that the rest stays readable.

Only transactions whose bytes are damaged are given up, each of them found by its own checksums; what lies between and
behind them stays. What was given up is noted in ``damaged.json`` before anything else is changed. At the very end of
the store it is cut off instead (as RocketMQ's recovery does unasked), since capture can read it from the source once
more.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from cdc import files
from cdc.binlog.entry import ENTRY, Entries, EntryFlag
from cdc.binlog.file import rows_to_entries
from cdc.durable import remove_file, replace_file, storage_errors
from cdc.errors import DamagedError, UsageError
from cdc.log import get_logger
from cdc.store.formats import layout
from cdc.store.formats.checkpoint import forget_checkpoint
from cdc.store.formats.damaged import GivenUp, read_damaged, write_damaged
from cdc.store.formats.index import head_size, make_header, seal
from cdc.store.formats.state import StoreLock, TableNumbers
from cdc.store.recovery.repair import check_head, keep_tail, look, merge, truncate

log = get_logger(__name__)

_NOTED = ("seq", "offset", "commit_time_us", "store_time_us", "gtid_source", "gtid_number", "gtid_count", "gtid_tag")


@dataclass(frozen=True)
class Loss:
    """A run of transactions whose bytes are damaged or missing: ``entries`` are theirs, none where the index is
    damaged, too. ``before_seq`` is the one before them."""

    offset: int
    end: int
    entries: Entries
    before_seq: int
    why: str


@dataclass(frozen=True)
class Examined:
    """A segment, transaction by transaction."""

    segment: Path
    size: int
    good: Entries
    """With the position entries among them."""
    losses: tuple[Loss, ...]
    why: DamagedError | None
    """What a scan says of it; may be there without a loss, behind the last acknowledged transaction."""


def examine(segment: Path, *, is_last: bool, number: Callable[[str], int] | None = None) -> Examined:
    """Verify each transaction by itself. Changes nothing. ``is_last``: what no index entry names, at the end, was never
    acknowledged. ``number`` gives the number of a table that only the segment names. Raises VersionError,
    StorageError."""
    known = {name: number for number, name in enumerate(TableNumbers(segment.parent.parent).names)}
    looked = look(segment, number or (lambda name: known.setdefault(name, len(known))))
    size = segment.stat().st_size
    scanned = np.zeros(0, ENTRY) if looked.found is None else rows_to_entries(looked.found.rows)
    visible, why, end = looked.visible, looked.why, 0 if looked.found is None else looked.found.end
    buf: npt.NDArray[np.uint8] = np.memmap(segment, dtype=np.uint8, mode="r") if size else np.zeros(0, np.uint8)
    behind = visible[(visible["length"] > 0) & (visible["offset"] >= end)]
    entries = merge(visible, np.concatenate([scanned, behind]))
    readable = size > 0 and _has_head(segment)
    there = np.flatnonzero(entries["length"])
    bad = [int(n) for n in there if not (readable and (entries["offset"][n] < end or is_sound(buf, entries[n])))]
    limit = max(end, _end_of(entries)) if is_last else size
    first = _head_end(segment) if readable else int(entries["offset"][there[0]]) if len(there) else 0
    losses = _losses(entries, there, set(bad), first, limit, why)
    keep = np.ones(len(entries), dtype=bool)
    keep[bad] = False
    return Examined(segment, size, entries[keep], losses, why)


def is_sound(buf: npt.NDArray[np.uint8], entry: np.void) -> bool:
    """Are a transaction's bytes what its index entry says? By the CRC32 of each event, and the sum of them."""
    at, end = int(entry["offset"]), int(entry["offset"]) + int(entry["length"])
    if end > len(buf):
        return False
    total = count = 0
    while at < end:
        length = int.from_bytes(buf[at + 9 : at + 13].tobytes(), "little")
        if length < 23 or at + length > end:
            return False
        crc = int.from_bytes(buf[at + length - 4 : at + length].tobytes(), "little")
        if zlib.crc32(buf[at : at + length - 4].data) != crc:
            return False
        total += (2 * count + 1) * crc
        count, at = count + 1, at + length
    return count == int(entry["events"]) and total & 0xFFFFFFFF == int(entry["checksum"])


def accept_loss(store: Path, name: str) -> list[GivenUp]:
    """Give up what is damaged in the segment of this name, and nothing else. Returns what that was.

    Raises UsageError where there is no such segment, or nothing of it is damaged; LeaseHeldError while a writer is at
    work; StorageError.
    """
    segment = layout.segments_folder(store) / name
    if layout.segment_start(segment) is None or not segment.exists():
        raise UsageError(
            f"there is no segment {name!r}",
            place=str(layout.segments_folder(store)),
            remedy="Name a segment's file as it stands there, without folder.",
        )
    lock = StoreLock(store)
    try:
        is_last = all(other.name <= name for other in layout.list_segments(store))
        found = examine(segment, is_last=is_last, number=TableNumbers(store).number)
        if not found.losses:
            raise UsageError(
                "every acknowledged transaction of this segment is sound: there is nothing to give up",
                place=str(segment),
                remedy=None
                if found.why is None
                else "What is damaged lies behind them; capture cuts it off at its start.",
            )
        cut = found.losses[-1] if is_last and found.losses[-1].end >= found.size else None
        made = [_given_up(store, name, one, "cut off" if one is cut else "passed over") for one in found.losses]
        others = tuple(
            o for o in read_damaged(store) if (o.segment, o.offset) not in {(m.segment, m.offset) for m in made}
        )
        write_damaged(store, (*others, *made))
        if is_last:
            forget_checkpoint(store)  # what it vouches for will not be there any more
        _rewrite(found, cut)
        remove_file(store / "counts.json")  # made from the old index
    finally:
        lock.release()
    for one in made:
        log.warning("given up", segment=name, offset=one.offset, length=one.length, last_seq=one.last_seq, how=one.how)
    return made


def _rewrite(found: Examined, cut: Loss | None) -> None:
    """The index without the damaged transactions; the segment without its damaged end."""
    index = layout.index_path(found.segment)
    entries = found.good
    placeholders = [_placeholder(loss) for loss in found.losses if loss is not cut]
    if cut is not None:
        entries = entries[entries["seq"] <= np.uint64(cut.before_seq)]
    entries = np.concatenate([entries, *placeholders])
    entries = entries[np.argsort(entries["seq"], kind="stable")]
    with storage_errors(index):
        if index.exists():
            replace_file(index.with_name(index.name + ".cut"), files.layer.read_file(index))
    replace_file(index, make_header() + seal(entries))
    if cut is not None and found.size > cut.offset:
        keep_tail(found.segment, cut.offset)
        truncate(found.segment, cut.offset)


def _placeholder(loss: Loss) -> Entries:
    """Position entries in their place: the source was read over them."""
    if len(loss.entries):
        entries = np.zeros(len(loss.entries), dtype=ENTRY)
        for name in _NOTED:
            entries[name] = loss.entries[name]
    else:
        entries = np.zeros(1, dtype=ENTRY)
        entries["seq"], entries["offset"] = loss.before_seq + 1, loss.offset
    kind = 0 if not len(loss.entries) else loss.entries["flags"] & int(EntryFlag.GTID_MARIADB)
    entries["flags"] = int(EntryFlag.POSITION | EntryFlag.GIVEN_UP) | kind
    return entries


def _losses(
    entries: Entries, there: npt.NDArray[np.int64], bad: set[int], first: int, limit: int, why: DamagedError | None
) -> tuple[Loss, ...]:
    """Runs of damaged transactions, and gaps between those that the index knows."""
    losses: list[Loss] = []
    reason = "its bytes fail their checksum" if why is None else str(why.message)
    run: list[int] = []
    at = first
    before_seq = 0

    def close(end: int, seq: int) -> None:
        if run:
            start = int(entries["offset"][run[0]])
            losses.append(Loss(start, end, entries[run], seq, reason))
            run.clear()

    for number in [int(n) for n in there]:
        offset = int(entries["offset"][number])
        given_up_between = _passed(entries, number, at)
        if offset > at and not given_up_between:
            close(at, before_seq)
            losses.append(
                Loss(at, offset, entries[:0], _seq_before(entries, number), "its index entries are damaged, too")
            )
        if number in bad:
            if not run:
                before_seq = _seq_before(entries, number)
            run.append(number)
        else:
            close(offset, before_seq)
        at = offset + int(entries["length"][number])
    close(at, before_seq)
    if limit > at and not _passed(entries, len(entries), at):
        seq = int(entries["seq"][-1]) if len(entries) else 0
        losses.append(Loss(at, limit, entries[:0], seq, reason))
    return tuple(losses)


def _passed(entries: Entries, number: int, at: int) -> bool:
    """Was what lies before entry ``number``, from byte ``at`` on, given up already?"""
    between = entries[:number]
    gone = between[(between["flags"] & int(EntryFlag.GIVEN_UP)) != 0]
    return bool((gone["offset"] >= at).any())


def _seq_before(entries: Entries, number: int) -> int:
    return int(entries["seq"][number - 1]) if number else 0


def _end_of(entries: Entries) -> int:
    there = entries[entries["length"] > 0]
    return int((there["offset"] + there["length"]).max()) if len(there) else 0


def _head_end(segment: Path) -> int:
    with storage_errors(segment):
        return head_size(segment)


def _has_head(segment: Path) -> bool:
    try:
        check_head(segment)
    except DamagedError:
        return False
    return True


def _given_up(store: Path, name: str, loss: Loss, how: Literal["passed over", "cut off"]) -> GivenUp:
    mask = int(np.bitwise_or.reduce(loss.entries["table_mask"])) if len(loss.entries) else 0
    known = len(loss.entries) > 0
    return GivenUp(
        segment=name,
        offset=loss.offset,
        length=loss.end - loss.offset,
        first_seq=int(loss.entries["seq"][0]) if known else loss.before_seq + 1,
        last_seq=int(loss.entries["seq"][-1]) if known else loss.before_seq + 1,
        transactions=len(loss.entries) if known else None,
        tables=TableNumbers(store).in_mask(mask),
        how=how,
        why=loss.why,
        accepted=datetime.now(UTC).isoformat(timespec="seconds"),
    )
