"""Makes a store and a meta anew from the archive, on a machine that has none.

``restoring.json`` in the store's folder is written first and removed last. While it is there, every command refuses the
store, and the restore can be repeated: files that are whole already are not copied again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.base.errors import ConfigError, StorageError, UsageError
from cdc.base.log import get_logger
from cdc.base.units import human_bytes, iso_time
from cdc.batches.manifest_files import ManifestFiles, parse_manifest
from cdc.binlog.entry import EntryFlag
from cdc.copies.archive.format import Ref, SegmentRecord, after_last_gap
from cdc.copies.archive.meta_copy import MANIFESTS, META, restored_state
from cdc.copies.archive.states import Archive, Known, Ownership, now_utc
from cdc.disk.durable import make_folder, remove_file, replace_file, storage_errors
from cdc.disk.permissions import READ, secure_folder
from cdc.meta import open_meta
from cdc.store.formats import layout
from cdc.store.formats.archive_record import FILE_NAME as RECORD_FILE
from cdc.store.formats.archive_record import read_record, write_record
from cdc.store.formats.index import IndexFile
from cdc.store.formats.missing import (
    DAMAGED_FILE,
    REMOVED_FILE,
    Removed,
    read_damaged,
    read_removed,
    write_damaged,
    write_removed,
)
from cdc.store.formats.state import StoreLock

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.meta import State

log = get_logger(__name__)

Progress = Callable[[int, int], None]
"""Is called with the bytes that are restored, and the bytes of all segments."""
_LEFT = {"lock", "lost+found", RECORD_FILE, layout.RESTORING_FILE}
"""Names that may be in the folder of a store that does not exist yet."""


@dataclass(frozen=True)
class Restored:
    """The result of a restore; the keys of ``cdc archive restore --json``."""

    state: int
    """The number of the state of the archive."""
    time: str
    """When that state was written."""
    segments: int
    bytes: int
    first_seq: int
    """Exclusive: where the restored store begins."""
    last_seq: int
    """The position at which it ends; capture reads the following transactions from the source."""
    meta: str
    """``restored``, or ``kept``: there was a meta, which stays as it is."""
    writer: bool
    """Whether the restored store is the writer of the archive from now on."""


def restore(
    config: DestinationConfig,
    *,
    everything: bool = False,
    claim: bool = True,
    progress: Progress = lambda done, total: None,
) -> Restored:
    """Makes the store, and the meta unless there is one, from the newest state of the archive.

    The store gets the segments that it had when the state was written; with ``everything`` all that follow one another
    without a gap up to the end. With ``claim`` it becomes the archive's writer, so that a store that was thought lost
    cannot go on with it; without, the archive is left alone, and the restored store does not copy to it.

    Raises UsageError if there is a store already, ConfigError if there is no archive, DamagedError that names an object
    that is missing or damaged, RetryableError if the archive is away, StorageError, LeaseHeldError.
    """
    archive = Archive(config)
    newest = archive.newest()
    if newest is None or f"store/{layout.STORE_FILE}" not in newest.state.files:  # before the first copy
        raise ConfigError(
            "there is no archive of this destination",
            place=archive.uri,
            remedy="Correct store.archive, or the name of the destination: its archive lies in a folder of that name.",
        )
    store = config.store.path
    secure_folder(store, config.store.permissions, READ)
    lock = StoreLock(store)
    try:
        _require_empty(store)
        if not newest.segments:
            raise _no_segment(archive, newest)
        claimed = _begin(config, archive, newest, claim=claim)
        return _restore(config, archive, claimed, everything=everything, claim=claim, progress=progress)
    finally:
        lock.release()


def _require_empty(store: Path) -> None:
    with storage_errors(store):
        if (store / layout.RESTORING_FILE).exists():
            return
        left = sorted(name for name in os.listdir(store) if name not in _LEFT)
    if left:
        raise UsageError(
            f"this folder is not empty ({', '.join(left[:5])}{' …' if len(left) > 5 else ''})",
            place=str(store),
            remedy="A restore makes a store anew. Name another folder as store.path, or move this one away.",
        )


def _begin(config: DestinationConfig, archive: Archive, newest: Known, *, claim: bool) -> Known:
    """Marks the store as one that is being restored, and makes it the archive's writer."""
    store = config.store.path
    document = {"version": 1, "archive": archive.uri, "state": newest.state.number}
    replace_file(store / layout.RESTORING_FILE, json.dumps(document, indent=1).encode() + b"\n")
    if not claim:
        remove_file(store / RECORD_FILE)
        return newest
    ownership = Ownership(archive, store, leadership=lambda: 0, clock=now_utc)
    if newest.state.writer.session == read_record(store).session:
        return newest  # an earlier try was killed after this
    return ownership.claim(newest, "restored")


def _restore(
    config: DestinationConfig, archive: Archive, archived: Known, *, everything: bool, claim: bool, progress: Progress
) -> Restored:
    store, state = config.store.path, archived.state
    meta_data = read_small(archive, state.files[META])
    restored = restored_state(meta_data, archive.objects.place(state.files[META].object))
    removed = _removed(archive, archived)
    segments = _wanted(archived.segments, removed, everything=everything)
    require_room(store, segments)
    end_seq = segments[-1].last_seq
    restore_small_files(archive, archived, store, end_seq)
    restore_segments(archive, store, segments, progress)
    store_file = read_small(archive, state.files[f"store/{layout.STORE_FILE}"])
    _lower_mark(store, archived.segments, segments, json.loads(store_file).get("begins"))
    drop_sound_losses(store)
    is_new = _meta(config, archive, archived, restored)
    # Without this file it is no store: it comes last.
    replace_file(store / layout.STORE_FILE, store_file)
    if claim:
        copied_us = int(state.time.timestamp() * 1e6)
        write_record(store, replace(read_record(store), archived_seq=end_seq, copied_us=copied_us))
    remove_file(store / layout.RESTORING_FILE)
    log.info("store restored from its archive", store=str(store), state=state.number, last_seq=end_seq)
    return Restored(
        state=state.number,
        time=iso_time(state.time),
        segments=len(segments),
        bytes=sum(segment.size_bytes for segment in segments),
        first_seq=segments[0].start_seq,
        last_seq=end_seq,
        meta="restored" if is_new else "kept",
        writer=claim,
    )


def _no_segment(archive: Archive, archived: Known) -> UsageError:
    """Returns the error for an archive of a store that has not finished a segment yet."""
    begins = json.loads(read_small(archive, archived.state.files[f"store/{layout.STORE_FILE}"])).get("begins")
    where = "" if begins is None else f" Set source.start to {{file: {begins['file']}, pos: {begins['pos']}}} before."
    return UsageError(
        "the archive has no finished segment yet, so there is nothing to restore",
        place=archive.uri,
        remedy="Start `cdc capture`: it reads everything again from the source, and the tables skip what they "
        f"have.{where}",
    )


def _removed(archive: Archive, archived: Known) -> int:
    """Returns the seq up to which retention had removed transactions of the store."""
    ref = archived.state.files.get(f"store/{REMOVED_FILE}")
    return 0 if ref is None else int(json.loads(read_small(archive, ref))["seq"])


def _wanted(segments: tuple[SegmentRecord, ...], removed_seq: int, *, everything: bool) -> tuple[SegmentRecord, ...]:
    """Returns the segments to restore: those behind the removed transactions, and at least the newest one, since
    capture goes on behind its last entry. Retention has removed what every subscriber had acked, or was cut off from,
    and the copy of the meta is not older than that of the mark."""
    whole = after_last_gap(segments)
    if everything:
        return whole
    first = next((number for number, segment in enumerate(whole) if segment.last_seq > removed_seq), len(whole) - 1)
    # The newest transaction tells the source by its bytes, so a segment with one has to be there.
    with_rows = [number for number, segment in enumerate(whole) if segment.transactions]
    return whole[max(0, min([first, *with_rows[-1:]])) :]


def require_room(store: Path, segments: Sequence[SegmentRecord]) -> None:
    size = sum(segment.size_bytes for segment in segments)
    present = sum(
        path.stat().st_size for segment in segments if (path := layout.segments_folder(store) / segment.name).exists()
    )
    with storage_errors(store):
        free = shutil.disk_usage(store).free
    if size - present > free:
        raise StorageError(
            f"{human_bytes(size - present)} are to be restored, and {human_bytes(free)} are free",
            place=str(store),
            remedy="Make room, or set store.path to another disk.",
        )


def restore_small_files(archive: Archive, archived: Known, store: Path, end_seq: int) -> None:
    """Restores the files beside the segments, but for ``store.json``."""
    make_folder(layout.segments_folder(store))
    schemas = layout.schemas_folder(store)
    make_folder(schemas)
    kept_names = set()
    for path, ref in sorted(archived.state.files.items()):
        kind, _, name = path.partition("/")
        if kind != "store" or name == layout.STORE_FILE:
            continue
        if name.startswith("schemas/"):
            seq = int(Path(name).stem)
            if seq > end_seq:
                continue  # capture describes the tables again when it reads the statement again
            kept_names.add(Path(name).name)
        data = read_small(archive, ref)
        if name == REMOVED_FILE:
            data = json.dumps({**json.loads(data), "removing": []}).encode() + b"\n"
        replace_file(store / name, data)
    for left in schemas.iterdir():
        if left.name not in kept_names:
            remove_file(left)  # of an earlier try from another state


def restore_segments(archive: Archive, store: Path, segments: Sequence[SegmentRecord], progress: Progress) -> None:
    folder = layout.segments_folder(store)
    names = {name for segment in segments for name in (segment.name, segment.name + layout.INDEX_SUFFIX)}
    with storage_errors(folder):
        for left in sorted(folder.iterdir()):
            if left.name not in names:
                remove_file(left)
    total, done = sum(segment.size_bytes for segment in segments), 0
    for segment in segments:
        for ref, path in (
            (segment.index, layout.index_path(folder / segment.name)),
            (segment.log, folder / segment.name),
        ):
            if not _has(path, ref):
                archive.objects.download(ref.object, path, ref.bytes, ref.sha256)
            done += ref.bytes
            progress(done, total)


def _has(path: Path, ref: Ref) -> bool:
    """Whether a file is this object already, from an earlier try."""
    with storage_errors(path):
        if not path.exists() or path.stat().st_size != ref.bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == ref.sha256


def _lower_mark(
    store: Path, archived: Sequence[SegmentRecord], segments: Sequence[SegmentRecord], begins: Mapping[str, Any] | None
) -> None:
    """Lowers the mark of removed transactions if some of them are restored. ``begins``: where the store begins."""
    mark, first = read_removed(store), segments[0]
    if mark.seq <= first.start_seq:
        return
    if archived[0] is first and (begins is None or first.start_seq <= begins["seq"]):
        remove_file(store / REMOVED_FILE)
    else:
        write_removed(store, Removed(first.start_seq, 0))


def drop_sound_losses(store: Path) -> None:
    """Removes ranges from ``damaged.json`` that the archive has whole: the segment was copied before the damage."""
    if not (store / DAMAGED_FILE).exists():
        return
    ranges = read_damaged(store)
    lost = []
    for byte_range in ranges:
        index = IndexFile(layout.segments_folder(store) / byte_range.segment)
        within = (index.entries["seq"] >= byte_range.first_seq) & (index.entries["seq"] <= byte_range.last_seq)
        is_there = (
            byte_range.how == "passed over"
            and within.any()
            and not (index.entries["flags"][within] & EntryFlag.LOST).any()
        )
        if is_there:
            log.info(
                "the archive has transactions that the store had lost", segment=byte_range.segment, why=byte_range.why
            )
        else:
            lost.append(byte_range)
    if len(lost) != len(ranges):
        write_damaged(store, tuple(lost))


def _meta(config: DestinationConfig, archive: Archive, archived: Known, restored: State) -> bool:
    """Fills an empty meta. Returns False if there is one already, which is at least as new as any copy."""
    with open_meta(config) as meta:
        present = meta.read()
        if present.source is not None or present.subscriptions:
            return False
        manifests = ManifestFiles(config.meta.path, permissions=config.meta.permissions)
        for path, ref in sorted(archived.state.files.items()):
            if path.startswith(MANIFESTS):
                manifests.save(parse_manifest(read_small(archive, ref), archive.objects.place(ref.object)))
        with meta.change() as state:
            state.source = restored.source
            state.subscriptions = restored.subscriptions
    return True


def read_small(archive: Archive, ref: Ref) -> bytes:
    return archive.objects.get(ref.object, ref.bytes, ref.sha256)
