"""One segment after a crash: what of it is whole, and how log and index are made to agree.

The log is the truth. An index entry is written only after its transaction's bytes are durable, whatever the flush
policy, so:

- bytes behind the last entry are kept as far as they are whole transactions, and get their entries;
- an unfinished transaction at the very end is cut off (it was never acknowledged);
- bytes at the end that are damaged are kept beside the segment, in ``*.cut``, and cut off;
- damage *before* the last entry is damage to something acknowledged: it is named, and nothing is changed.

The index itself is not synced: what a power cut left of it is compared with the log, and made anew where it differs.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdc import files
from cdc.binlog import kernels as k
from cdc.binlog.constants import HEADER_SIZE as EVENT_HEADER_SIZE
from cdc.binlog.constants import MAGIC
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE, Entries
from cdc.binlog.file import Scan, rows_to_entries, scan
from cdc.durable import replace_file, storage_errors, sync_folder
from cdc.errors import DamagedError
from cdc.log import get_logger
from cdc.store.formats import layout
from cdc.store.formats.index import check_header, first_bad, make_header, seal

log = get_logger(__name__)

_PIECE = 1 << 20
_HEAD_BYTES = 8192


@dataclass(frozen=True)
class Looked:
    """What a look at a segment found. ``found`` is None where its head never became whole (``why``)."""

    segment: Path
    found: Scan | None
    visible: Entries
    """The sound entries of its index."""
    why: DamagedError | None = None

    @property
    def visible_end(self) -> int:
        """Where the last transaction ends that was made visible; 0 where none was."""
        there = self.visible[self.visible["length"] > 0]
        return int((there["offset"] + there["length"]).max()) if len(there) else 0

    @property
    def head_size(self) -> int:
        """The bytes before the first transaction."""
        assert self.found is not None
        return int(self.found.rows[0, k.R_OFFSET]) if len(self.found.rows) else self.found.end


def look(segment: Path, number: Callable[[str], int]) -> Looked:
    """Read and verify a whole segment and its index; ``number`` gives a table's, by ``db.table``. Raises VersionError,
    StorageError."""
    visible = sound_entries(segment)
    _read_through(segment)
    try:
        check_head(segment)
        found = scan(segment, epoch=layout.segment_epoch(segment), number=lambda db, t: number(f"{db}.{t}"))
    except DamagedError as error:
        return Looked(segment, None, visible, error)
    return Looked(segment, found, visible, found.damage)


def sound_entries(segment: Path) -> Entries:
    """The entries of an index whose checksums are right, whatever else is wrong with it; none where there is none.
    Raises VersionError, StorageError."""
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


def require_acknowledged(looked: Looked, flushed: int, *, is_last: bool) -> None:
    """Raises DamagedError where something that was acknowledged is not there any more: up to ``flushed`` bytes, up to
    the last entry, or in a segment that was finished."""
    found = looked.found
    end = 0 if found is None else found.end
    size = looked.segment.stat().st_size if found is None else found.size
    promised = max(flushed, looked.visible_end, 0 if is_last else size)
    if promised <= end:
        return
    where = f"byte {end}" if looked.why is None else str(looked.why)
    raise DamagedError(
        f"acknowledged transactions up to byte {promised} are damaged or missing ({where})",
        place=str(looked.segment),
        remedy="Restore this file from a copy. Or, as long as the source has its binlogs: Move this segment and all"
        " later ones (with their .index files) and the file checkpoint out of the store: capture reads them again from"
        " the source, with the same sequence numbers. Or give up what is damaged:"
        f" cdc inspect {looked.segment.parent.parent} --accept-loss {looked.segment.name}",
    )


def mend(looked: Looked, flushed: int) -> None:
    """Cut off what is not whole, and make the index say what the log says; both are on the disk afterwards."""
    segment, found = looked.segment, looked.found
    assert found is not None
    if found.end < found.size:
        _keep_evidence(segment, found)
    with _opened(segment) as fd:
        if found.end < found.size:
            files.layer.ftruncate(fd, found.end)
        _write_again(fd, max(flushed, looked.visible_end), found.end)
        files.layer.fdatasync(fd)
    path = layout.index_path(segment)
    entries = merge(looked.visible, rows_to_entries(found.rows))
    content = make_header() + seal(entries)
    with storage_errors(path):
        try:
            before = files.layer.read_file(path)
        except FileNotFoundError:
            before = b""
    if before != content:
        added, known = len(entries), len(looked.visible)
        log.info("index completed from its segment", segment=str(segment), entries=added, were=known)
        replace_file(path, content)
        return
    with _opened(path) as fd:
        _write_again(fd, 0, len(content))
        files.layer.fdatasync(fd)


def merge(visible: Entries, scanned: Entries) -> Entries:
    """The log's transactions, in the words of the index where that agrees (it knows when they were stored), and the
    index's position entries, which the log does not have."""
    there = visible[visible["length"] > 0]
    entries = scanned.copy()
    if len(there) and len(scanned):
        at = np.minimum(np.searchsorted(there["seq"], scanned["seq"]), len(there) - 1)
        same = np.ones(len(scanned), dtype=bool)
        for name in ("seq", "offset", "length", "checksum"):
            same &= there[name][at] == scanned[name]
        entries[same] = there[at[same]]
    positions = visible[visible["length"] == 0]
    positions = positions[~np.isin(positions["seq"], entries["seq"])]
    both = np.concatenate([entries, positions])
    return both[np.argsort(both["seq"], kind="stable")]


def set_aside(segment: Path, why: str, *, keep: bool) -> None:
    """Take a segment out of the store that was begun and never acknowledged: remove it, or ``keep`` it as ``*.cut``."""
    with storage_errors(segment):
        if keep:
            files.layer.replace(segment, segment.with_name(f"{segment.name}.0.cut"))
        else:
            files.layer.unlink(segment)
        if layout.index_path(segment).exists():
            files.layer.unlink(layout.index_path(segment))
        sync_folder(segment.parent)
    log.warning("segment taken out of the store", segment=str(segment), why=why, kept=keep)


def check_head(segment: Path) -> None:
    """A rotate event from a server may have no checksum, so that a scan believes what it says; ours has one. Raises
    DamagedError."""
    with storage_errors(segment), segment.open("rb") as file:
        data = file.read(_HEAD_BYTES)
    if not data.startswith(MAGIC):
        raise DamagedError("does not begin with fe 62 69 6e", place=str(segment))
    at = len(MAGIC)
    for name in ("format description", "rotate event"):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        event = data[at : at + length]
        if length < EVENT_HEADER_SIZE + 4 or len(event) < length:
            raise DamagedError(f"does not begin with a whole {name}", place=f"{segment}: byte {at}")
        if zlib.crc32(event[:-4]).to_bytes(4, "little") != event[-4:]:
            raise DamagedError(f"the checksum of its {name} is wrong", place=f"{segment}: byte {at}")
        at += length


def _read_through(segment: Path) -> None:
    """Read it once with plain reads: from a mapping, a disk that cannot read would be a signal, and no sentence."""
    with storage_errors(segment):
        fd = files.layer.open(segment, os.O_RDONLY)
        try:
            at = 0
            while piece := files.layer.pread(fd, _PIECE, at):
                at += len(piece)
        finally:
            files.layer.close(fd)


def _write_again(fd: int, start: int, end: int) -> None:
    """Write bytes that nobody knows to be on the disk once more, as they are. After a flush that failed the page cache
    may hold bytes that the disk does not, and take them for written: the next flush would then do nothing."""
    while start < end:
        piece = files.layer.pread(fd, min(_PIECE, end - start), start)
        files.pwrite_all(fd, piece, start)
        start += len(piece)


def _keep_evidence(segment: Path, found: Scan) -> None:
    """What is cut off is kept where it is damaged, since it may tell what happened."""
    if found.damage is None:
        log.info("unfinished transaction cut off", segment=str(segment), at=found.end, bytes=found.size - found.end)
        return
    keep = keep_tail(segment, found.end)
    log.warning("damaged tail cut off", segment=str(segment), at=found.end, kept=str(keep), why=str(found.damage))


def keep_tail(segment: Path, start: int) -> Path:
    """Copy what lies behind ``start`` to ``SEGMENT.START.cut``, durably. Returns its path."""
    keep = segment.with_name(f"{segment.name}.{start}.cut")
    with storage_errors(keep):
        source = files.layer.open(segment, os.O_RDONLY)
        try:
            target = files.layer.open(keep, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                at = start
                while piece := files.layer.pread(source, _PIECE, at):
                    files.write_all(target, piece)
                    at += len(piece)
                files.layer.fsync(target)
            finally:
                files.layer.close(target)
        finally:
            files.layer.close(source)
        sync_folder(segment.parent)
    return keep


def truncate(segment: Path, size: int) -> None:
    """Cut a segment off at ``size``, durably."""
    with _opened(segment) as fd:
        files.layer.ftruncate(fd, size)
        files.layer.fsync(fd)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    with storage_errors(path):
        fd = files.layer.open(path, os.O_RDWR)
        try:
            yield fd
        finally:
            files.layer.close(fd)
