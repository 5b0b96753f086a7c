"""Verifies and repairs a store before a writer goes on (RocketMQ's ``recover``).

After a clean stop each segment's size is compared with its index's last entry, and nothing else is read. After a crash
the segments after the checkpoint are verified: the last one or few. A store without a checkpoint (written by an older
Towpath, or damaged) has its last two segments verified.

The log is the truth. An index entry is written only after its transaction's bytes are durable, whatever the flush
policy, so:

- bytes after the last entry are kept as far as they are whole transactions, and get their entries;
- an unfinished transaction at the very end is cut off (it was never acknowledged);
- damaged bytes at the end are copied to ``*.cut`` beside the segment, and cut off;
- damage *before* the last entry is damage to acknowledged transactions: an error names it, and nothing is changed.

The index itself is not synced: whatever a power cut left of it is compared with the log, and made anew if it differs.

A segment after one that is not known to be finished is kept only if it has an entry. Entries are written in order, so
everything before it is whole then. Otherwise the end of the earlier segment may be missing, and nobody would notice.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdc.base.errors import DamagedError
from cdc.base.log import get_logger
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE, Entries
from cdc.binlog.file import Scan, rows_to_entries, scan
from cdc.disk import files
from cdc.disk.durable import replace_file, storage_errors, sync_folder
from cdc.disk.encryption.append import truncate_content
from cdc.disk.encryption.container import HEADER_SIZE as ENCRYPTED_HEADER_SIZE
from cdc.disk.encryption.read import content_size, file_is_encrypted, file_range
from cdc.store.formats import layout
from cdc.store.formats.checkpoint import FILE_NAME, Checkpoint, CheckpointWriter, read_checkpoint, was_aborted
from cdc.store.formats.gtids import record_missing
from cdc.store.formats.index import IndexFile, check_header, first_bad, make_header, reaches_end, seal
from cdc.store.formats.missing import skipped_ranges
from cdc.store.formats.segment_header import read_segment_header, require_sound_header
from cdc.store.formats.state import TableNumbers

log = get_logger(__name__)

_UNCHECKED_TAIL = 2
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Recovered:
    """A store that is ready for a writer."""

    segment: Path | None
    """The segment to append to; None if a new one has to be begun."""
    file: str
    """The source's file that ``segment`` comes from."""
    header_size: int
    """Size of the header of ``segment``, in bytes."""
    last_seq: int | None
    """Seq of the newest entry; None in an empty store."""
    checkpoints: CheckpointWriter


def recover(store: Path, tables: TableNumbers) -> Recovered:
    """Brings the store into a state to append to, and marks it as being written to.

    The caller holds its lock, and ends with :meth:`CheckpointWriter.closed`. Raises DamagedError, which names the
    segment, VersionError, StorageError; acknowledged transactions are unchanged then.
    """
    checkpoint = _read_checkpoint(store)
    segments = layout.list_segments(store)
    _require_segment_of(checkpoint, store, segments)
    _require_tables(segments, tables, checkpoint)
    segments = _drop_unvouched(segments, checkpoint)
    if was_aborted(store):
        log.info("the last writer of this store did not end in order", store=str(store))
    changed = False
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        covered = number < len(segments) - _UNCHECKED_TAIL if checkpoint is None else _covers(checkpoint, segment)
        if _is_sound_by_size(store, segment, covered):
            continue
        verification = verify(segment, tables.number)
        changed = True
        if not is_last and checkpoint is None and _is_torn(verification) and not _any_entries(segments[number + 1 :]):
            # An older Towpath wrote it: the later segments were begun before this one was durable.
            for later in segments[number + 1 :]:
                set_aside(later, "the end of the segment before it is missing", keep=True)
            segments = segments[: number + 1]
            is_last = True
        if _never_began(verification, checkpoint) and is_last:
            set_aside(segment, str(verification.why), keep=segment.stat().st_size > 0)
            segments = segments[:-1]
            break
        flushed = checkpoint.log_bytes if checkpoint is not None and checkpoint.segment == segment.name else 0
        require_acknowledged(verification, flushed, is_last=is_last)
        repair(verification, flushed)
        if is_last:
            break
    if changed and segments:
        with storage_errors(segments[-1]):
            sync_folder(segments[-1].parent)
    segments, unused = _split_unused(segments)
    newest = segments[-1] if segments else None
    # Nothing is appended to a segment that is finished, or of which transactions were lost.
    current = None if newest is None or unused or skipped_ranges(store, newest.name) else newest
    header = None if current is None else read_segment_header(current)
    last_seq = _last_seq(segments)
    checkpoints = CheckpointWriter(store, lambda: len(tables.names))
    checkpoints.opened(
        newest,
        last_seq or 0,
        empty=newest is not None and not len(IndexFile(newest).entries),
        finished=newest is not None and current is None,
    )
    for segment in unused:  # behind the checkpoint, which no longer names them
        _remove(segment)
    if header is None:
        return Recovered(None, "", 0, last_seq, checkpoints)
    return Recovered(current, header.file, header.size, last_seq, checkpoints)


def _read_checkpoint(store: Path) -> Checkpoint | None:
    try:
        return read_checkpoint(store)
    except DamagedError as error:
        # A checkpoint only saves time: without it more is verified.
        log.warning("damaged checkpoint ignored", error=str(error))
        return None


def _require_segment_of(checkpoint: Checkpoint | None, store: Path, segments: list[Path]) -> None:
    """Raises DamagedError if the checkpoint's segment is missing: retention never removes the last one."""
    if checkpoint is None or not checkpoint.segment:
        return
    if any(segment.name >= checkpoint.segment for segment in segments):
        return
    raise DamagedError(
        f"the segment {checkpoint.segment} is missing, and transactions up to seq {checkpoint.seq} in it were"
        " acknowledged",
        place=str(layout.segments_folder(store)),
        remedy=f"Put it back. If it was taken out on purpose, remove {store / FILE_NAME} too: capture then goes on"
        " after the last transaction that is left.",
    )


def _require_tables(segments: list[Path], tables: TableNumbers, checkpoint: Checkpoint | None) -> None:
    """Raises DamagedError if tables.json lacks names: tables would get new numbers, which contradict the indexes."""
    if checkpoint is not None and len(tables.names) < checkpoint.tables:
        if any(layout.index_path(segment).exists() for segment in segments):
            raise tables.lacks(1 << checkpoint.tables - 1)
        return  # all indexes are made anew
    if tables.names:
        return
    for segment in segments:
        if checkpoint is None or not _covers(checkpoint, segment):
            masks = IndexFile(segment).entries["table_mask"]
            if masks.any():
                raise tables.lacks(int(np.bitwise_or.reduce(masks)))


def _drop_unvouched(segments: list[Path], checkpoint: Checkpoint | None) -> list[Path]:
    """Removes the last segments if transactions before them may be missing; nothing in them was ever visible. Returns
    the others."""
    if checkpoint is None:
        return segments
    for number in range(len(segments) - 1, 0, -1):
        before = segments[number - 1].name
        finished = checkpoint.segment > before or (checkpoint.segment == before and checkpoint.finished)
        if finished or len(sound_entries(segments[number])):
            return segments[: number + 1]
        set_aside(segments[number], "nothing in it was acknowledged, nor is the one before it finished", keep=False)
    return segments[:1]


def _covers(checkpoint: Checkpoint, segment: Path) -> bool:
    """Returns whether the whole segment was durable when the checkpoint was written."""
    if checkpoint.segment != segment.name:
        return segment.name < checkpoint.segment
    with storage_errors(segment):
        index = layout.index_path(segment)
        if content_size(segment) != checkpoint.log_bytes or not index.exists():
            return False
        return index.stat().st_size == checkpoint.index_bytes


def _is_sound_by_size(store: Path, segment: Path, covered: bool) -> bool:
    """Compares the segment's size with its index's last entry, which takes the same time whatever they hold."""
    if not covered and not skipped_ranges(store, segment.name):
        return False
    return reaches_end(segment)


def _is_torn(verification: Verification) -> bool:
    return verification.scan is None or verification.scan.end < verification.scan.size


def _any_entries(segments: list[Path]) -> bool:
    return any(len(sound_entries(segment)) for segment in segments)


def _never_began(verification: Verification, checkpoint: Checkpoint | None) -> bool:
    """Returns whether the segment's header never became whole, and neither index nor checkpoint names a transaction
    in it."""
    noted = checkpoint is not None and checkpoint.segment == verification.segment.name and checkpoint.log_bytes > 0
    return verification.scan is None and not len(verification.visible) and not noted


def _split_unused(segments: list[Path]) -> tuple[list[Path], list[Path]]:
    """Returns the segments up to the newest one with entries, and those after it, which were begun and got none.

    Capture goes on behind the newest entry, in a new segment whose name is below theirs: they must not stay behind it,
    or it would not be the last one when it is recovered. The segment before them is finished, or recovery would have
    removed them already."""
    used = len(segments)
    while used > 1 and not len(IndexFile(segments[used - 1]).entries):
        used -= 1
    return segments[:used], segments[used:]


def _last_seq(segments: list[Path]) -> int | None:
    for segment in reversed(segments):
        entries: Entries = IndexFile(segment).entries
        if len(entries):
            return int(entries["seq"][-1])
    return None


# --- one segment


@dataclass(frozen=True)
class Verification:
    """The result of verifying a segment. ``scan`` is None if its header never became whole; ``why`` says more."""

    segment: Path
    scan: Scan | None
    visible: Entries
    """The entries of its index whose checksums are right."""
    why: DamagedError | None = None

    @property
    def visible_end(self) -> int:
        """The end offset of the last visible transaction; 0 if there is none."""
        transactions = self.visible[self.visible["length"] > 0]
        return int((transactions["offset"] + transactions["length"]).max()) if len(transactions) else 0


def verify(segment: Path, number: Callable[[str], int]) -> Verification:
    """Reads and verifies a whole segment and its index. ``number`` returns the number of a table, by ``db.table``.
    Raises VersionError, StorageError."""
    visible = sound_entries(segment)
    _read_through(segment)
    try:
        require_sound_header(segment)
        whole_scan = scan(segment, epoch=layout.segment_epoch(segment), number=lambda db, t: number(f"{db}.{t}"))
    except DamagedError as error:
        return Verification(segment, None, visible, error)
    return Verification(segment, whole_scan, visible, whole_scan.damage)


def sound_entries(segment: Path) -> Entries:
    """Returns the entries of an index whose checksums are right, whatever else is wrong with it; none if there is no
    index. Raises VersionError, StorageError."""
    path = layout.index_path(segment)
    with storage_errors(path):
        try:
            data = files.layer.read_file(path)
        except FileNotFoundError:
            return np.zeros(0, dtype=ENTRY)
    head = data[:HEADER_SIZE]
    if len(head) == HEADER_SIZE and zlib.crc32(head[:-4]).to_bytes(4, "little") == head[-4:]:
        check_header(head, path)
    count = max(0, len(data) - HEADER_SIZE) // ENTRY_SIZE
    entries: Entries = (
        np.frombuffer(data, dtype=ENTRY, count=count, offset=HEADER_SIZE) if count else np.zeros(0, ENTRY)
    )
    good = []
    start = 0
    while start < count:
        bad = first_bad(entries[start:])
        stop = count if bad < 0 else start + bad
        good.append(entries[start:stop])
        start = stop + 1
    return np.concatenate(good) if good else np.zeros(0, dtype=ENTRY)


def require_acknowledged(verified: Verification, flushed: int, *, is_last: bool) -> None:
    """Raises DamagedError if acknowledged transactions are damaged or missing: those up to ``flushed`` bytes, those up
    to the last entry, and all of a segment that was finished."""
    segment_scan = verified.scan
    end = 0 if segment_scan is None else segment_scan.end
    size = verified.segment.stat().st_size if segment_scan is None else segment_scan.size
    promised = max(flushed, verified.visible_end, 0 if is_last else size)
    if promised <= end:
        return
    where = f"byte {end}" if verified.why is None else str(verified.why)
    raise DamagedError(
        f"acknowledged transactions up to byte {promised} are damaged or missing ({where})",
        place=str(verified.segment),
        remedy="Restore this file from a copy. Or, as long as the source has its binlogs: Move this segment and all"
        " later ones (with their .index files) and the file checkpoint out of the store: capture reads them again from"
        " the source, with the same sequence numbers. Or accept the loss of the damaged transactions:"
        f" cdc inspect {verified.segment.parent.parent} --accept-loss {verified.segment.name}",
    )


def repair(verified: Verification, flushed: int) -> None:
    """Cuts off what is not whole, and makes the index agree with the log. Both are durable afterwards."""
    segment, segment_scan = verified.segment, verified.scan
    assert segment_scan is not None
    if segment_scan.end < segment_scan.size:
        _keep_evidence(segment, segment_scan)
    with _opened(segment) as fd:
        if segment_scan.end < segment_scan.size:
            truncate_content(segment, fd, segment_scan.end)
        _write_again(fd, *file_range(segment, max(flushed, verified.visible_end), segment_scan.end))
        files.layer.fdatasync(fd)
    path = layout.index_path(segment)
    entries = merge(verified.visible, rows_to_entries(segment_scan.rows))
    content = make_header() + seal(entries)
    with storage_errors(path):
        try:
            before = files.layer.read_file(path)
        except FileNotFoundError:
            before = b""
    if before != content:
        added, were = len(entries), len(verified.visible)
        if added > were:  # the positions between them are lost
            record_missing(segment.parent.parent)
        log.info("index completed from its segment", segment=str(segment), entries=added, were=were)
        replace_file(path, content)
        return
    with _opened(path) as fd:
        _write_again(fd, 0, len(content))
        files.layer.fdatasync(fd)


def merge(visible: Entries, scanned: Entries) -> Entries:
    """Returns the entries of all transactions in the log. An entry of the index is kept if it agrees with the log,
    because it has the store time; so are the index's position entries, which the log does not have."""
    transactions = visible[visible["length"] > 0]
    entries = scanned.copy()
    if len(transactions) and len(scanned):
        at = np.minimum(np.searchsorted(transactions["seq"], scanned["seq"]), len(transactions) - 1)
        same = np.ones(len(scanned), dtype=bool)
        for name in ("seq", "offset", "length", "checksum"):
            same &= transactions[name][at] == scanned[name]
        entries[same] = transactions[at[same]]
    positions = visible[visible["length"] == 0]
    positions = positions[~np.isin(positions["seq"], entries["seq"])]
    both = np.concatenate([entries, positions])
    return both[np.argsort(both["seq"], kind="stable")]


def set_aside(segment: Path, why: str, *, keep: bool) -> None:
    """Takes a segment that was begun and never acknowledged out of the store: removes it, or with ``keep`` renames it
    to ``*.cut``."""
    if keep:
        with storage_errors(segment):
            files.layer.replace(segment, segment.with_name(f"{segment.name}.0.cut"))
    _remove(segment)
    log.warning("segment taken out of the store", segment=str(segment), why=why, kept=keep)


def _remove(segment: Path) -> None:
    """Removes what there is of a segment and its index."""
    with storage_errors(segment):
        for path in (segment, layout.index_path(segment)):
            if path.exists():
                files.layer.unlink(path)
        sync_folder(segment.parent)


def _read_through(segment: Path) -> None:
    """Reads the segment once with plain reads: an unreadable disk then raises StorageError, where a mapping would end
    the process by a signal."""
    with storage_errors(segment):
        fd = files.layer.open(segment, os.O_RDONLY)
        try:
            at = 0
            while chunk := files.layer.pread(fd, _CHUNK_BYTES, at):
                at += len(chunk)
        finally:
            files.layer.close(fd)


def _write_again(fd: int, start: int, end: int) -> None:
    """Writes bytes again that are not known to be on the disk. After a failed flush the page cache may take bytes for
    written that the disk does not hold, and the next flush would do nothing."""
    while start < end:
        chunk = files.layer.pread(fd, min(_CHUNK_BYTES, end - start), start)
        files.pwrite_all(fd, chunk, start)
        start += len(chunk)


def _keep_evidence(segment: Path, segment_scan: Scan) -> None:
    """Keeps a copy of a damaged tail before it is cut off: it may tell what happened."""
    if segment_scan.damage is None:
        log.info(
            "unfinished transaction cut off",
            segment=str(segment),
            at=segment_scan.end,
            bytes=segment_scan.size - segment_scan.end,
        )
        return
    keep = keep_tail(segment, segment_scan.end)
    log.warning(
        "damaged tail cut off", segment=str(segment), at=segment_scan.end, kept=str(keep), why=str(segment_scan.damage)
    )


def keep_tail(segment: Path, start: int) -> Path:
    """Copies the bytes from ``start`` on to ``SEGMENT.START.cut``, durably. Returns its path."""
    keep = segment.with_name(f"{segment.name}.{start}.cut")
    with storage_errors(keep):
        copy_tail(segment, start, keep)
        sync_folder(segment.parent)
    return keep


def copy_tail(segment: Path, start: int, target: Path) -> None:
    """Copies the bytes from ``start`` on to another file, and syncs it. The copy of an encrypted segment is encrypted:
    it has the header and the last frames at their places, and zeros between them. Raises OSError, DamagedError."""
    source = files.layer.open(segment, os.O_RDONLY)
    try:
        copy = files.layer.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            at = start
            if file_is_encrypted(segment):
                at, _ = file_range(segment, start, start + 1)
                files.pwrite_all(copy, files.layer.pread(source, ENCRYPTED_HEADER_SIZE, 0), 0)
                files.layer.seek(copy, at)
            while chunk := files.layer.pread(source, _CHUNK_BYTES, at):
                files.write_all(copy, chunk)
                at += len(chunk)
            files.layer.fsync(copy)
        finally:
            files.layer.close(copy)
    finally:
        files.layer.close(source)


def truncate(segment: Path, size: int) -> None:
    """Truncates a segment to ``size``, durably."""
    with _opened(segment) as fd:
        truncate_content(segment, fd, size)
        files.layer.fsync(fd)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    with storage_errors(path):
        fd = files.layer.open(path, os.O_RDWR)
        try:
            yield fd
        finally:
            files.layer.close(fd)
