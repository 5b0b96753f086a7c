"""Copies a store and its meta to the archive: finished segments with their indexes, the small files, and the meta.

One call of :meth:`Archiver.run` brings the archive level with what is finished. It may be killed at any moment: an
object counts once a state names it, and the next call copies again what no state names.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError, DamagedError
from cdc.base.log import get_logger
from cdc.copies.archive.format import (
    SCHEMAS,
    ArchiveState,
    How,
    Ref,
    SegmentList,
    SegmentRecord,
    render_list,
    schema_seqs,
    totals_of,
)
from cdc.copies.archive.meta_copy import meta_files
from cdc.copies.archive.states import Archive, Known, Ownership, now_utc
from cdc.copies.standby.role import read_epoch
from cdc.disk.durable import locked, storage_errors
from cdc.meta import Meta, open_meta
from cdc.store.formats import layout
from cdc.store.formats.archive_record import LOCK_NAME, ArchiveRecord, read_record, write_record
from cdc.store.formats.checkpoint import read_checkpoint
from cdc.store.formats.index import IndexFile
from cdc.store.formats.missing import DAMAGED_FILE, REMOVED_FILE, kept_names, read_removed, skipped_ranges
from cdc.store.formats.state import read_beginning
from cdc.store.recovery.recover import verify

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

log = get_logger(__name__)

_STATE_EVERY_S = 30.0
"""While many segments are copied, a state is written so often."""
_LOCK_WAIT_S = 60.0
SMALL_FILES = ("store.json", "tables.json", DAMAGED_FILE, "clock.log")
"""Files of a store that are copied with each new segment; ``removed.json`` and ``schemas`` are, too."""


@dataclass(frozen=True)
class ArchiveBacklog:
    """The finished segments that are not in the archive."""

    segments: int = 0
    bytes: int = 0
    since_us: int = 0
    """When the oldest of them got its last entry, µs since 1970; 0: there is none."""


def closed_segments(store: Path) -> list[Path]:
    """Returns the segments to which nothing is appended any more, oldest first. Raises DamagedError, StorageError."""
    checkpoint = read_checkpoint(store)
    if checkpoint is None:
        return []
    names = kept_names(store)
    last = checkpoint.segment
    return [
        layout.segments_folder(store) / name
        for name in names
        if name < last or (name == last and checkpoint.finished and name != names[-1])
    ]


def backlog_of(store: Path, archived_seq: int) -> ArchiveBacklog:
    """Returns the finished segments with entries after a seq. Raises DamagedError, StorageError."""
    count = size = since_us = 0
    for segment in reversed(closed_segments(store)):
        index = IndexFile(segment)
        if not len(index.entries):
            continue
        if int(index.entries["seq"][-1]) <= archived_seq:
            break
        with storage_errors(segment):
            size += segment.stat().st_size + index.path.stat().st_size
        count += 1
        since_us = int(index.entries["store_time_us"][-1])
    return ArchiveBacklog(count, size, since_us)


class Archiver:
    """Copies one store to its archive. One thread uses it at a time; other processes wait for ``archive.lock``."""

    def __init__(
        self, config: DestinationConfig, meta: Meta | None = None, *, clock: Callable[[], datetime] = now_utc
    ) -> None:
        """``clock`` is for tests. Raises ConfigError."""
        self._config = config
        self._store = config.store.path
        self._meta = open_meta(config) if meta is None else meta
        self._clock = clock
        self.archive = Archive(config)
        self._ownership = Ownership(self.archive, self._store, leadership=self._leadership, clock=clock)
        self._claimed = False
        self._newest: Known | None = None
        self._meta_at = float("-inf")
        self._seen: tuple[object, ...] | None = None
        """The state of the store before the last run that succeeded."""
        self._schemas: dict[str, int | None] = {}
        """When the schemas that were copied had been changed, in ns; they are many, and seldom change."""
        self._pending: dict[str, SegmentRecord] = {}
        """Segments that were copied, and that no state names yet."""

    def _leadership(self) -> int:
        epoch = read_epoch(self._store)
        return epoch.number if epoch is not None and epoch.state == "master" else 0

    def run(self, *, everything: bool = False) -> ArchiveRecord:
        """Copies what is finished, and the meta if it is due (``everything``: in any case). Returns the store's record
        of the archive, which is also written to the store.

        Raises RetryableError if the archive is away, IdentityError if another store writes it, DamagedError for a
        segment that is damaged here, LeaseHeldError. The record then has the error.
        """
        if not everything and not self._is_due() and self._seen is not None and self._seen == self._look():
            return read_record(self._store)
        with locked(self._store / LOCK_NAME, "another process that copies to the archive", wait_s=_LOCK_WAIT_S):
            try:
                self._run(everything)
            except CdcError as error:
                self._newest = self._seen = None
                self._schemas = {}
                self.note(str(error))
                raise
            record = read_record(self._store)
            if record.error:
                record = replace(record, error="", failing_since_us=0)
                write_record(self._store, record)
            return record

    def require_writable(self) -> How:
        """Returns the way in which the next run becomes the archive's writer. Changes nothing. Raises RetryableError if
        the archive is away, ConfigError if it cannot be written safely, IdentityError if another store writes it."""
        how = self._ownership.require_writer(self.archive.newest())
        self.archive.objects.require_create()
        return how

    def claim(self) -> ArchiveRecord:
        """Makes this store the writer of the archive, whoever was it before: an operator has decided so."""
        with locked(self._store / LOCK_NAME, "another process that copies to the archive", wait_s=_LOCK_WAIT_S):
            layout.check(self._store)
            self.archive.objects.prepare(self._config.store.permissions)
            self.archive.objects.require_create()
            self._ownership.claim(self.archive.newest(), "claimed")
            record = replace(read_record(self._store), error="", failing_since_us=0)
            write_record(self._store, record)
            return record

    def note(self, error: str) -> None:
        """Records a failure for ``cdc status`` and the metrics."""
        record = self._ownership.record()
        since_us = record.failing_since_us or time.time_ns() // 1000
        write_record(self._store, replace(record, error=error, failing_since_us=since_us))

    # --- one run

    def _run(self, everything: bool) -> None:
        if not layout.exists(self._store):
            return  # capture has not begun yet
        layout.check(self._store)  # a store that was moved away must not take the archive from its successor
        seen = self._look()
        newest = self._writer()
        segments, held = self._agreed(newest.segments)
        closed = [segment for segment in closed_segments(self._store) if segment.name not in segments.local]
        records = segments.records
        new: list[SegmentRecord] = []
        since = time.monotonic()
        for segment in closed:
            new.append(self._copied(segment, records, new, newest.state))
            is_covered = not held or new[-1].last_seq >= held[-1].last_seq
            if is_covered and time.monotonic() - since >= _STATE_EVERY_S:
                newest = self._write_state(newest, (*records, *new))
                since = time.monotonic()
        is_covered = not held or (bool(new) and new[-1].last_seq >= held[-1].last_seq)
        covered = (*records, *new) if is_covered else newest.segments
        kept = self._without_old(covered)
        if kept != newest.segments or everything or self._is_due():
            newest = self._write_state(newest, kept)
            self._meta_at = time.monotonic()
        agreed = self._agreed(newest.segments)[0]
        self._remember(newest, agreed.archived_seq)
        self._seen = (*seen[:-1], newest.state.number)

    def _is_due(self) -> bool:
        return time.monotonic() - self._meta_at >= self._config.store.archive.meta_every

    def _look(self) -> tuple[object, ...]:
        """Returns a mark that changes when there is something to copy. Reads a few small files only."""
        return read_checkpoint(self._store), kept_names(self._store), self._ownership.record().number

    def _writer(self) -> Known:
        """Returns the newest state, of which this store is the writer."""
        if self._newest is not None and self._newest.state.number != self._ownership.record().number:
            self._newest = None  # another process of this store has written meanwhile
        if self._newest is None:
            newest = self.archive.newest()
            how = self._ownership.require_writer(newest)
            if newest is None:
                self.archive.objects.prepare(self._config.store.permissions)
                self.archive.objects.require_create()
            if newest is None or not self._claimed or how != "started":
                newest = self._ownership.claim(newest, how)
                log.info("archive is written", archive=self.archive.uri, state=newest.state.number, how=how)
            self._claimed, self._newest = True, newest
        return self._newest

    def _agreed(self, records: tuple[SegmentRecord, ...]) -> tuple[_Agreed, tuple[SegmentRecord, ...]]:
        """Returns the records that agree with the store, and those after them, of which the store has other segments
        (it was cut off, or read again from the source, or belongs to a standby that took over)."""
        names = kept_names(self._store)
        first = names[0] if names else ""
        history = tuple(record for record in records if record.name < first)
        rest = records[len(history) :]
        closed = closed_segments(self._store)
        count = 0
        for record, segment in zip(rest, closed, strict=False):
            with storage_errors(segment):
                if record.name != segment.name or record.log.bytes != segment.stat().st_size:
                    break
            count += 1
        local = frozenset(record.name for record in rest[:count])
        archived_seq = rest[count - 1].last_seq if count else 0
        if not count and history:
            archived_seq = history[-1].last_seq
        return _Agreed(history + rest[:count], local, archived_seq), rest[count:]

    def _copied(
        self, segment: Path, records: tuple[SegmentRecord, ...], new: list[SegmentRecord], state: ArchiveState
    ) -> SegmentRecord:
        """Copies a segment and its index, unless that was done before."""
        before = new[-1] if new else records[-1] if records else None
        record = self._pending.get(segment.name)
        with storage_errors(segment):
            if record is None or record.log.bytes != segment.stat().st_size:
                record = self._pending[segment.name] = self._copy(segment, state)
        gap = before is not None and not new and self._has_gap(before, record.start_seq)
        return record.model_copy(update={"gap": gap})

    def _copy(self, segment: Path, state: ArchiveState) -> SegmentRecord:
        self._require_sound(segment)
        index = IndexFile(segment)
        count = len(index.entries)
        entries = index.verified(0, count)
        start = layout.segment_start(segment)
        assert start is not None, "only names that say where they begin are listed"
        last_seq = int(entries["seq"][-1]) if count else start
        folder = f"segments/{state.writer.store}"
        log_ref = self._uploaded(segment, lambda sha256: f"{folder}/{segment.stem}-{sha256[:16]}.binlog")
        index_ref = self._uploaded(index.path, lambda sha256: f"{folder}/{segment.stem}-{sha256[:16]}.index")
        with storage_errors(segment):
            stored_us = int(entries["store_time_us"][-1]) if count else int(segment.stat().st_mtime * 1e6)
        record = SegmentRecord(
            name=segment.name,
            log=log_ref,
            index=index_ref,
            start_seq=start,
            last_seq=last_seq,
            transactions=int((entries["length"] > 0).sum()),
            stored_us=stored_us,
        )
        log.info("segment copied to the archive", segment=segment.name, bytes=record.size_bytes, last_seq=last_seq)
        return record

    def _has_gap(self, before: SegmentRecord, start_seq: int) -> bool:
        """Whether the archive lacks transactions between a record and the first segment that follows it."""
        if before.name in kept_names(self._store):
            return False  # the store has both, and all that lies between
        begins = read_beginning(self._store)
        lost_seq = max(read_removed(self._store).seq, 0 if begins is None else begins.seq)
        return lost_seq > before.last_seq or before.last_seq > start_seq

    def _require_sound(self, segment: Path) -> None:
        """Raises DamagedError if the segment, or its index, is not whole."""
        if skipped_ranges(self._store, segment.name):
            return  # an operator has accepted the loss
        verification = verify(segment, lambda _: 0)
        if verification.why is not None:
            raise verification.why
        if (
            verification.scan is None
            or verification.scan.end != verification.scan.size
            or not IndexFile(segment).is_whole()
        ):
            raise DamagedError(
                "the index of this segment lacks transactions, or the segment ends inside of one",
                place=str(segment),
                remedy="Restart `cdc capture`, which verifies the end of the store; else see `cdc inspect`.",
            )

    def _uploaded(self, path: Path, name: Callable[[str], str]) -> Ref:
        """Copies a file that does not change any more."""
        with storage_errors(path), path.open("rb") as file:
            sha256, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
        ref = Ref(object=name(sha256), bytes=size, sha256=sha256)
        self.archive.objects.upload(ref.object, path, size, sha256)
        return ref

    # --- states

    def _write_state(self, newest: Known, segments: tuple[SegmentRecord, ...]) -> Known:
        """Writes the next state, with the small files and the meta as they are now, unless nothing has changed."""
        before = newest.state
        has_new = segments != newest.segments
        files = self._small_files(before, segments, with_clock=has_new or "store/clock.log" not in before.files)
        list_ref = before.segments
        if has_new:
            list_ref = self._put("lists/{}.json", render_list(SegmentList(segments=segments)))
        if not has_new and files == dict(before.files):
            return newest
        state = before.model_copy(
            update={
                "number": before.number + 1,
                "time": self._clock(),
                "segments": list_ref,
                "totals": totals_of(segments),
                "files": files,
            }
        )
        self._ownership.write(state)
        self._newest = Known(state, segments)
        named = {record.name for record in segments}
        self._pending = {name: record for name, record in self._pending.items() if name not in named}
        self.archive.remove_unneeded(state.number)
        return self._newest

    def _small_files(
        self, before: ArchiveState, segments: tuple[SegmentRecord, ...], *, with_clock: bool
    ) -> dict[str, Ref]:
        """Copies the small files that have changed, and returns all of them.

        ``removed.json`` is read before the meta: the cursors of the copy are then never behind the mark of the copy.
        """
        files: dict[str, Ref] = {}

        def add(path: str, data: bytes) -> None:
            ref = before.files.get(path)
            sha256 = hashlib.sha256(data).hexdigest()
            files[path] = ref if ref is not None and ref.sha256 == sha256 else self._put("files/{}", data)

        for name in (REMOVED_FILE, *SMALL_FILES):
            if name == "clock.log" and not with_clock:
                files["store/clock.log"] = before.files["store/clock.log"]
                continue
            data = _read(self._store / name)
            if data is not None:
                add(f"store/{name}", data)
        folder = layout.schemas_folder(self._store)
        with storage_errors(folder):
            definitions = layout.schema_files(folder)
        for _, path in definitions:
            name = f"{SCHEMAS}{path.name}"
            changed = _changed_ns(path)
            if name in before.files and self._schemas.get(name) == changed:
                files[name] = before.files[name]
                continue
            data = _read(path)
            if data is not None:  # retention may have removed it meanwhile
                add(name, data)
                self._schemas[name] = changed
        for name in _schemas_needed(before, segments, self._removed_until()):
            files.setdefault(name, before.files[name])
        for name, data in meta_files(self._config, self._meta).items():
            add(name, data)
        return files

    def _removed_until(self) -> int:
        """Returns the seq behind which the store has, or had, its own segments."""
        names = kept_names(self._store)
        start = layout.segment_start(Path(names[0])) if names else None
        return max(read_removed(self._store).seq, start or 0)

    def _put(self, pattern: str, data: bytes) -> Ref:
        sha256 = hashlib.sha256(data).hexdigest()
        ref = Ref(object=pattern.format(sha256), bytes=len(data), sha256=sha256)
        self.archive.objects.put(ref.object, data)
        return ref

    def _without_old(self, segments: tuple[SegmentRecord, ...]) -> tuple[SegmentRecord, ...]:
        """Returns the segments without those that ``keep_for`` lets go: old ones that the store has removed, too."""
        keep_for = self._config.store.archive.keep_for
        if keep_for is None:
            return segments
        limit_us = int((self._clock().timestamp() - keep_for) * 1e6)
        removed_seq = read_removed(self._store).seq
        count = 0
        while count < len(segments) - 1:
            segment = segments[count]
            if segment.stored_us >= limit_us or segment.last_seq > removed_seq:
                break
            count += 1
        for segment in segments[:count]:
            log.info(
                "segment removed from the archive",
                segment=segment.name,
                bytes=segment.size_bytes,
                last_seq=segment.last_seq,
            )
        return segments[count:]

    def _remember(self, newest: Known, archived_seq: int) -> None:
        record, totals = self._ownership.record(), newest.state.totals
        updated = replace(
            record,
            number=newest.state.number,
            archived_seq=archived_seq,
            segments=totals.segments,
            bytes=totals.bytes,
            copied_us=int(newest.state.time.timestamp() * 1e6),
        )
        if updated != record:
            write_record(self._store, updated)


@dataclass(frozen=True)
class _Agreed:
    """The part of an archive that agrees with a store."""

    records: tuple[SegmentRecord, ...]
    local: frozenset[str]
    """The names of those that the store still has."""
    archived_seq: int


def _schemas_needed(before: ArchiveState, segments: tuple[SegmentRecord, ...], until_seq: int) -> list[str]:
    """Returns the schemas of a state up to a seq that the segments of the archive need: those after the archive's
    beginning, and the newest one before it."""
    seqs = sorted(schema_seqs(before))
    first = segments[0].start_seq if segments else 0
    old = [seq for seq in seqs if seq <= first][:-1]
    return [f"{SCHEMAS}{seq}.json" for seq in seqs if seq not in old and seq <= until_seq]


def _changed_ns(path: Path) -> int | None:
    with storage_errors(path):
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return None


def _read(path: Path) -> bytes | None:
    with storage_errors(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
