"""Salvages a damaged segment once an operator has accepted the loss, so that the rest stays readable.

Only transactions whose bytes are damaged are lost, each found by its own checksums; those between and after them stay.
The loss is recorded in ``damaged.json`` before anything else is changed. At the very end of the store damaged bytes are
cut off instead (RocketMQ's recovery does so unasked), since capture can read them from the source again.
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

from cdc.base.errors import DamagedError, UsageError
from cdc.base.log import get_logger
from cdc.binlog.entry import ENTRY, Entries, EntryFlag
from cdc.binlog.file import rows_to_entries
from cdc.disk import files
from cdc.disk.durable import remove_file, replace_file, storage_errors
from cdc.disk.encryption.read import MappedContent, content_size, map_content
from cdc.store.formats import layout
from cdc.store.formats.checkpoint import remove_checkpoint
from cdc.store.formats.index import STATS_FILE, make_header, seal
from cdc.store.formats.missing import LostRange, read_damaged, write_damaged
from cdc.store.formats.segment_header import require_sound_header, segment_header_size
from cdc.store.formats.state import StoreLock, TableNumbers
from cdc.store.recovery.recover import keep_tail, merge, truncate, verify

log = get_logger(__name__)

_KEPT_FIELDS = ["seq", "offset", "commit_time_us", "store_time_us"]
_KEPT_FIELDS += ["gtid_source", "gtid_number", "gtid_count", "gtid_tag"]


@dataclass(frozen=True)
class Loss:
    """A run of transactions whose bytes are damaged or missing."""

    offset: int
    end: int
    entries: Entries
    """Their entries; none if the index is damaged, too."""
    before_seq: int
    """Seq of the transaction before them."""
    why: str


@dataclass(frozen=True)
class Examination:
    """The state of a segment, transaction by transaction."""

    segment: Path
    size: int
    good: Entries
    """Entries of the sound transactions, and the position entries."""
    losses: tuple[Loss, ...]
    why: DamagedError | None
    """The damage that a scan met; it may lie after the last acknowledged transaction, which is no loss."""


def examine(segment: Path, *, is_last: bool, number: Callable[[str], int] | None = None) -> Examination:
    """Verifies each transaction by itself; changes nothing.

    ``is_last`` says that the segment is the newest one: bytes at its end that no index entry names were never
    acknowledged. ``number`` returns the number of a table that only the segment names. Raises VersionError,
    StorageError.
    """
    numbers = {name: number for number, name in enumerate(TableNumbers(segment.parent.parent).names)}
    verified = verify(segment, number or (lambda name: numbers.setdefault(name, len(numbers))))
    size, mapped = _content(segment)
    scanned = np.zeros(0, ENTRY) if verified.scan is None else rows_to_entries(verified.scan.rows)
    visible, why, end = verified.visible, verified.why, 0 if verified.scan is None else verified.scan.end
    mapped.load(end, len(mapped.buf), lenient=True)
    buf = mapped.buf
    after = visible[(visible["length"] > 0) & (visible["offset"] >= end)]
    entries = merge(visible, np.concatenate([scanned, after]))
    readable = size > 0 and _has_header(segment)
    transactions = np.flatnonzero(entries["length"])
    bad = [int(n) for n in transactions if not (readable and (entries["offset"][n] < end or is_sound(buf, entries[n])))]
    limit = max(end, _end_of(entries)) if is_last else size
    first = _header_end(segment) if readable else int(entries["offset"][transactions[0]]) if len(transactions) else 0
    losses = _losses(entries, transactions, set(bad), first, limit, why)
    keep = np.ones(len(entries), dtype=bool)
    keep[bad] = False
    return Examination(segment, size, entries[keep], losses, why)


def _content(segment: Path) -> tuple[int, MappedContent]:
    """Returns the size of a segment, and its bytes: none if the header of an encrypted one is damaged."""
    with storage_errors(segment):
        try:
            return content_size(segment), map_content(segment)
        except DamagedError:
            return segment.stat().st_size, MappedContent(np.zeros(0, dtype=np.uint8))


def is_sound(buf: npt.NDArray[np.uint8], entry: np.void) -> bool:
    """Returns whether a transaction's bytes agree with its index entry: by the CRC32 of each event, and their sum."""
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


def salvage(store: Path, name: str) -> list[LostRange]:
    """Accepts the loss of the damaged transactions in the segment of this name. Returns the lost ranges.

    Raises UsageError if there is no such segment or nothing in it is damaged, LeaseHeldError while a writer is at
    work, StorageError.
    """
    segment = layout.segments_folder(store) / name
    if layout.segment_start(segment) is None or not segment.exists():
        raise UsageError(
            f"there is no segment {name!r}",
            place=str(layout.segments_folder(store)),
            remedy="Give the name of a segment's file in that folder, without the folder.",
        )
    lock = StoreLock(store)
    try:
        is_last = all(other.name <= name for other in layout.list_segments(store))
        examination = examine(segment, is_last=is_last, number=TableNumbers(store).number)
        if not examination.losses:
            raise UsageError(
                "every acknowledged transaction of this segment is sound: there is no loss to accept",
                place=str(segment),
                remedy=None
                if examination.why is None
                else "The damage lies after them; capture cuts it off when it starts.",
            )
        cut = examination.losses[-1] if is_last and examination.losses[-1].end >= examination.size else None
        lost_ranges = [
            _lost_range(store, name, loss, "cut off" if loss is cut else "passed over") for loss in examination.losses
        ]
        others = tuple(
            o for o in read_damaged(store) if (o.segment, o.offset) not in {(m.segment, m.offset) for m in lost_ranges}
        )
        write_damaged(store, (*others, *lost_ranges))
        if is_last:
            remove_checkpoint(store)  # it vouches for transactions that are about to be cut off
        _rewrite(examination, cut)
        remove_file(store / STATS_FILE)  # made from the old index
    finally:
        lock.release()
    for lost_range in lost_ranges:
        place = {
            "segment": name,
            "offset": lost_range.offset,
            "length": lost_range.length,
            "last_seq": lost_range.last_seq,
        }
        log.warning("data loss accepted", **place, how=lost_range.how)
    return lost_ranges


def _rewrite(examination: Examination, cut: Loss | None) -> None:
    """Writes the index without the damaged transactions, and cuts off the segment's damaged end."""
    index = layout.index_path(examination.segment)
    entries = examination.good
    placeholders = [_placeholder(loss) for loss in examination.losses if loss is not cut]
    if cut is not None:
        entries = entries[entries["seq"] <= np.uint64(cut.before_seq)]
    entries = np.concatenate([entries, *placeholders])
    entries = entries[np.argsort(entries["seq"], kind="stable")]
    with storage_errors(index):
        if index.exists():
            replace_file(index.with_name(index.name + ".cut"), files.layer.read_file(index))
    replace_file(index, make_header() + seal(entries))
    if cut is not None and examination.size > cut.offset:
        keep_tail(examination.segment, cut.offset)
        truncate(examination.segment, cut.offset)


def _placeholder(loss: Loss) -> Entries:
    """Returns position entries in the place of lost transactions: capture has read the source beyond them."""
    if len(loss.entries):
        entries = np.zeros(len(loss.entries), dtype=ENTRY)
        for name in _KEPT_FIELDS:
            entries[name] = loss.entries[name]
    else:
        entries = np.zeros(1, dtype=ENTRY)
        entries["seq"], entries["offset"] = loss.before_seq + 1, loss.offset
    kind = 0 if not len(loss.entries) else loss.entries["flags"] & int(EntryFlag.GTID_MARIADB)
    entries["flags"] = int(EntryFlag.POSITION | EntryFlag.LOST) | kind
    return entries


def _losses(
    entries: Entries,
    transactions: npt.NDArray[np.int64],
    bad: set[int],
    first: int,
    limit: int,
    why: DamagedError | None,
) -> tuple[Loss, ...]:
    """Returns the runs of damaged transactions, and the gaps between the transactions that the index knows."""
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

    for number in [int(n) for n in transactions]:
        offset = int(entries["offset"][number])
        is_recorded = _is_recorded(entries, number, at)
        if offset > at and not is_recorded:
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
    if limit > at and not _is_recorded(entries, len(entries), at):
        seq = int(entries["seq"][-1]) if len(entries) else 0
        losses.append(Loss(at, limit, entries[:0], seq, reason))
    return tuple(losses)


def _is_recorded(entries: Entries, number: int, at: int) -> bool:
    """Returns whether the bytes from ``at`` up to entry ``number`` are recorded as lost already."""
    between = entries[:number]
    gone = between[(between["flags"] & int(EntryFlag.LOST)) != 0]
    return bool((gone["offset"] >= at).any())


def _seq_before(entries: Entries, number: int) -> int:
    return int(entries["seq"][number - 1]) if number else 0


def _end_of(entries: Entries) -> int:
    transactions = entries[entries["length"] > 0]
    return int((transactions["offset"] + transactions["length"]).max()) if len(transactions) else 0


def _header_end(segment: Path) -> int:
    with storage_errors(segment):
        return segment_header_size(segment)


def _has_header(segment: Path) -> bool:
    try:
        require_sound_header(segment)
    except DamagedError:
        return False
    return True


def _lost_range(store: Path, name: str, loss: Loss, how: Literal["passed over", "cut off"]) -> LostRange:
    mask = int(np.bitwise_or.reduce(loss.entries["table_mask"])) if len(loss.entries) else 0
    has_entries = len(loss.entries) > 0
    return LostRange(
        segment=name,
        offset=loss.offset,
        length=loss.end - loss.offset,
        first_seq=int(loss.entries["seq"][0]) if has_entries else loss.before_seq + 1,
        last_seq=int(loss.entries["seq"][-1]) if has_entries else loss.before_seq + 1,
        transactions=len(loss.entries) if has_entries else None,
        tables=TableNumbers(store).in_mask(mask),
        how=how,
        why=loss.why,
        accepted=datetime.now(UTC).isoformat(timespec="seconds"),
    )
