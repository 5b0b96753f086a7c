"""What a writer does before it goes on: check the end of the store, cut what never became whole, mend the indexes.

The log is the truth. An index entry is written only after its transaction's bytes are durable, so:

- bytes behind the last entry are kept as far as they are whole transactions, and get their entries;
- an unfinished transaction at the very end is cut off (the source still has it);
- bytes at the end that are damaged are kept beside the segment, in ``*.cut``, and cut off;
- damage *before* the last entry is damage to something acknowledged: it is named, and nothing is changed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdc.binlog import kernels as k
from cdc.binlog.entry import HEADER_SIZE, Entries
from cdc.binlog.file import Scan, rows_to_entries, scan
from cdc.durable import replace_file, sync_folder
from cdc.errors import DamagedError, StorageError
from cdc.log import get_logger
from cdc.store import layout
from cdc.store.index import IndexFile, make_header, seal
from cdc.store.segment import SegmentWriter
from cdc.store.state import TableNumbers

log = get_logger(__name__)


@dataclass(frozen=True)
class Recovered:
    """The end of the store: the segment to go on with, if there is one, and its last entry."""

    segment: SegmentWriter | None


def recover(store: Path, tables: TableNumbers) -> Recovered:
    """Bring the store into a state to append to. The caller holds its lock. Raises DamagedError, StorageError."""
    segments = layout.list_segments(store)
    if not tables.names:
        _require_no_masks(segments, tables)
    for segment in segments[:-2]:
        _check_sealed(segment, tables)
    last: SegmentWriter | None = None
    for segment in segments[-2:]:
        last = _recover_segment(segment, tables, is_last=segment == segments[-1])
    return Recovered(last)


def _require_no_masks(segments: list[Path], tables: TableNumbers) -> None:
    """Without tables.json the tables would get new numbers, and what the indexes say of them would be wrong."""
    for segment in segments:
        masks = IndexFile(segment).entries["table_mask"]
        if masks.any():
            raise tables.lacks(int(np.bitwise_or.reduce(masks)))


def _check_sealed(segment: Path, tables: TableNumbers) -> None:
    """A segment that was finished long ago: its size and its index's must agree; its bytes are verified when read."""
    entries = IndexFile(segment).entries
    there = np.flatnonzero(entries["length"])
    end = int(entries["offset"][there[-1]] + entries["length"][there[-1]]) if len(there) else None
    if end is not None and end == segment.stat().st_size:
        return
    writer = _recover_segment(segment, tables, is_last=False)
    if writer is not None:
        writer.close()


def _recover_segment(segment: Path, tables: TableNumbers, *, is_last: bool) -> SegmentWriter | None:
    """Mend one segment; returns it opened for appending if it is the last."""
    try:
        found = scan(segment, epoch=layout.segment_epoch(segment), number=lambda db, t: tables.number(f"{db}.{t}"))
    except DamagedError:
        if not is_last or len(IndexFile(segment).entries):
            raise
        # Its head never became whole: it holds nothing, and is begun anew.
        log.warning("segment without a head removed", segment=str(segment))
        os.unlink(segment)
        layout.index_path(segment).unlink(missing_ok=True)
        return None
    index = IndexFile(segment)
    visible = index.verified(0, len(index.entries))
    visible_end = _end(visible)
    if visible_end is not None and visible_end > found.end:
        where = f"byte {found.end}" if found.damage is None else str(found.damage)
        raise DamagedError(
            f"acknowledged transactions up to byte {visible_end} are damaged or missing ({where})",
            place=str(segment),
            remedy="Move this segment and all later ones (with their .index files) out of the folder: capture reads"
            " them again from the source, with the same sequence numbers, as long as the source has its binlogs.",
        )
    _mend_index(segment, visible, found)
    if found.end < found.size:
        _cut(segment, found)
    if not is_last:
        return None
    return SegmentWriter.reopen(segment, found.source_file, _head_size(found))


def _end(entries: Entries) -> int | None:
    there = np.flatnonzero(entries["length"])
    return int(entries["offset"][there[-1]] + entries["length"][there[-1]]) if len(there) else None


def _head_size(found: Scan) -> int:
    return int(found.rows[0, k.R_OFFSET]) if len(found.rows) else found.end


def _mend_index(segment: Path, visible: Entries, found: Scan) -> None:
    """Keep the entries that are there where they agree with the log, and add what it has beyond them."""
    scanned = rows_to_entries(found.rows)
    there = visible[visible["length"] > 0]
    same = len(there) <= len(scanned) and all(
        np.array_equal(there[name], scanned[name][: len(there)]) for name in ("seq", "offset", "length", "checksum")
    )
    path = layout.index_path(segment)
    if same and len(there) == len(scanned) and path.exists() and path.stat().st_size == HEADER_SIZE + visible.nbytes:
        return
    entries = np.concatenate([visible, scanned[len(there) :]]) if same else scanned
    if not same:
        log.warning("index made anew from its segment", segment=str(segment), entries=len(scanned))
    # The new entries' bytes may not be on the disk yet.
    fd = os.open(segment, os.O_RDONLY)
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise StorageError(f"fdatasync failed: {error.strerror}", place=str(segment)) from None
    finally:
        os.close(fd)
    replace_file(path, make_header() + seal(entries))


def _cut(segment: Path, found: Scan) -> None:
    """Cut off the tail; keep it where it is damaged, since it may tell what happened."""
    with open(segment, "r+b") as file:
        if found.damage is not None:
            file.seek(found.end)
            keep = segment.with_name(f"{segment.name}.{found.end}.cut")
            with open(keep, "wb") as evidence:
                while piece := file.read(1 << 20):
                    evidence.write(piece)
                evidence.flush()
                os.fsync(evidence.fileno())
            sync_folder(segment.parent)
            log.warning(
                "damaged tail cut off", segment=str(segment), at=found.end, kept=str(keep), why=str(found.damage)
            )
        else:
            log.info("unfinished transaction cut off", segment=str(segment), at=found.end, bytes=found.size - found.end)
        file.truncate(found.end)
        os.fsync(file.fileno())
