"""What a writer does before it goes on: verify what no checkpoint vouches for, and mend it (RocketMQ's ``recover``).

After a clean stop that is nothing: each segment's size is compared with its index's last entry, whatever they hold.
After a crash the segments behind the checkpoint are verified, which are the last one or few. A store without a
checkpoint (an older Towpath's, or a damaged one) has its last two segments verified.

A segment that follows one which is not known to be finished is kept only where it has an entry: entries are written in
order, so what comes before is whole. Else the end of the earlier one may be missing, and nobody would notice the gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cdc.binlog.entry import Entries
from cdc.binlog.events import parse_rotate
from cdc.durable import storage_errors, sync_folder
from cdc.errors import DamagedError
from cdc.log import get_logger
from cdc.store.formats import layout
from cdc.store.formats.checkpoint import FILE_NAME, Checkpoint, Checkpoints, read_checkpoint, was_aborted
from cdc.store.formats.damaged import passed_over
from cdc.store.formats.index import IndexFile, head_size, reaches_end
from cdc.store.formats.state import TableNumbers
from cdc.store.recovery.repair import Looked, look, mend, require_acknowledged, set_aside, sound_entries
from cdc.store.writer.segment import SegmentWriter

log = get_logger(__name__)

_UNCHECKED_TAIL = 2


@dataclass(frozen=True)
class Recovered:
    """The end of the store: the segment to go on with, if there is one, and where the writer notes how far it got."""

    segment: SegmentWriter | None
    checkpoints: Checkpoints


def recover(store: Path, tables: TableNumbers) -> Recovered:
    """Bring the store into a state to append to, and mark it as being written to. The caller holds its lock, and ends
    with :meth:`Checkpoints.closed`. Raises DamagedError, which names the segment, VersionError, StorageError; nothing
    of what was acknowledged is changed then."""
    note = _read_note(store)
    segments = layout.list_segments(store)
    _require_noted(store, note, segments)
    _require_tables(segments, tables, note)
    segments = _keep_vouched(segments, note)
    if was_aborted(store):
        log.info("the last writer of this store did not end in order", store=str(store))
    changed = False
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        covered = number < len(segments) - _UNCHECKED_TAIL if note is None else _covers(note, segment)
        if _needs_no_look(store, segment, covered):
            continue
        looked = look(segment, tables.number)
        changed = True
        if not is_last and note is None and _is_torn(looked) and not _any_entries(segments[number + 1 :]):
            # Of an older Towpath: the ones behind were begun before this one was on the disk.
            for later in segments[number + 1 :]:
                set_aside(later, "the end of the segment before it is missing", keep=True)
            segments = segments[: number + 1]
            is_last = True
        if _never_began(looked, note) and is_last:
            set_aside(segment, str(looked.why), keep=segment.stat().st_size > 0)
            segments = segments[:-1]
            break
        flushed = note.log_bytes if note is not None and note.segment == segment.name else 0
        require_acknowledged(looked, flushed, is_last=is_last)
        mend(looked, flushed)
        if is_last:
            break
    if changed and segments:
        with storage_errors(segments[-1]):
            sync_folder(segments[-1].parent)
    checkpoints = Checkpoints(store, lambda: len(tables.names))
    last = _reopen(store, segments)
    newest = segments[-1] if segments else None
    try:
        checkpoints.opened(
            newest,
            _last_seq(segments),
            empty=newest is not None and not len(IndexFile(newest).entries),
            finished=newest is not None and last is None,
        )
    except BaseException:
        if last is not None:
            last.close()
        raise
    return Recovered(last, checkpoints)


def _read_note(store: Path) -> Checkpoint | None:
    try:
        return read_checkpoint(store)
    except DamagedError as error:
        # It only saves time: without it more is verified.
        log.warning("damaged checkpoint passed over", error=str(error))
        return None


def _require_noted(store: Path, note: Checkpoint | None, segments: list[Path]) -> None:
    """The newest segment that the checkpoint knows cannot be gone: retention always leaves the last one."""
    if note is None or not note.segment or any(segment.name >= note.segment for segment in segments):
        return
    raise DamagedError(
        f"the segment {note.segment} is missing, up to which everything was acknowledged (seq {note.seq})",
        place=str(layout.segments_folder(store)),
        remedy=f"Put it back. If it was taken out on purpose, remove {store / FILE_NAME} too: capture then goes on"
        " behind the last transaction that is there.",
    )


def _require_tables(segments: list[Path], tables: TableNumbers, note: Checkpoint | None) -> None:
    """With names missing from tables.json, tables would get new numbers, and what the indexes say would be wrong."""
    if note is not None and len(tables.names) < note.tables:
        if any(layout.index_path(segment).exists() for segment in segments):
            raise tables.lacks(1 << note.tables - 1)
        return  # all indexes are made anew
    if tables.names:
        return
    for segment in segments:
        if note is None or not _covers(note, segment):
            masks = IndexFile(segment).entries["table_mask"]
            if masks.any():
                raise tables.lacks(int(np.bitwise_or.reduce(masks)))


def _keep_vouched(segments: list[Path], note: Checkpoint | None) -> list[Path]:
    """Those behind which nothing can be missing; the others, of which nothing was ever visible, are removed."""
    if note is None:
        return segments
    for number in range(len(segments) - 1, 0, -1):
        before = segments[number - 1].name
        finished = note.segment > before or (note.segment == before and note.finished)
        if finished or len(sound_entries(segments[number])):
            return segments[: number + 1]
        set_aside(segments[number], "nothing in it was acknowledged, nor is the one before it finished", keep=False)
    return segments[:1]


def _covers(note: Checkpoint, segment: Path) -> bool:
    """Was all of this segment on the disk when the checkpoint was written?"""
    if note.segment != segment.name:
        return segment.name < note.segment
    with storage_errors(segment):
        index = layout.index_path(segment)
        return segment.stat().st_size == note.log_bytes and index.exists() and index.stat().st_size == note.index_bytes


def _needs_no_look(store: Path, segment: Path, covered: bool) -> bool:
    """Compares the segment's size with its index's last entry, which costs the same whatever they hold."""
    if not covered and not passed_over(store, segment.name):
        return False
    return reaches_end(segment)


def _is_torn(looked: Looked) -> bool:
    return looked.found is None or looked.found.end < looked.found.size


def _any_entries(segments: list[Path]) -> bool:
    return any(len(sound_entries(segment)) for segment in segments)


def _never_began(looked: Looked, note: Checkpoint | None) -> bool:
    """Its head never became whole, and nobody ever said that it holds anything."""
    noted = note is not None and note.segment == looked.segment.name and note.log_bytes > 0
    return looked.found is None and not len(looked.visible) and not noted


def _reopen(store: Path, segments: list[Path]) -> SegmentWriter | None:
    """The newest segment, to go on with; None where something of it was given up: nothing is added to such a one."""
    if not segments or passed_over(store, segments[-1].name):
        return None
    segment = segments[-1]
    with storage_errors(segment):
        size = head_size(segment)
        with segment.open("rb") as file:
            head = file.read(size)
    at = 4 + int.from_bytes(head[13:17], "little")
    return SegmentWriter.reopen(segment, parse_rotate(head[at:], True).file, size)


def _last_seq(segments: list[Path]) -> int:
    for segment in reversed(segments):
        entries: Entries = IndexFile(segment).entries
        if len(entries):
            return int(entries["seq"][-1])
    return 0
