"""Reads a store together with the older segments that only its archive has.

Indexes and segments are fetched when they are needed, to a folder of this process below ``archived/`` in the store. It
is removed when the process ends; what killed processes left behind is removed by the next one.
"""

from __future__ import annotations

import atexit
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import CutOffError, RetryableError, StorageError
from cdc.base.log import get_logger
from cdc.base.units import human_bytes
from cdc.binlog.positions import format_seq
from cdc.copies.archive.format import SCHEMAS, SegmentRecord, after_last_gap, schema_seqs
from cdc.copies.archive.states import Archive, Known
from cdc.disk.durable import make_folder, storage_errors
from cdc.disk.work_folders import make_work_folder
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile, SegmentStats, StoreStats, stats_of
from cdc.store.formats.layout import index_path
from cdc.store.formats.missing import read_removed
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.disk import disk_usage

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.store.reader.batch_builder import Selection

log = get_logger(__name__)

FOLDER = "archived"
_PREFIX = "job-"


class ArchivedReader(StoreReader):
    """A store as if retention had removed nothing that is in the archive.

    The archive is asked only if the store has removed something. Raises RetryableError if it is away and needed, and
    DamagedError for an object that is missing or damaged.
    """

    def __init__(self, config: DestinationConfig, base_name: str | None = None, *, keep: bool = False) -> None:
        """``keep``: fetched segments stay until the process ends, whatever is released; and an archive that is away is
        an error only once something in it is asked for."""
        super().__init__(config.store.path, base_name)
        self._archive = Archive(config)
        self._keep = keep
        self._stop_ratio = config.store.disk.stop_ratio
        self._newest: Known | None = None
        self._away: RetryableError | None = None
        self._records: dict[str, SegmentRecord] = {}
        self._folder: Path | None = None
        self._lock = -1
        """The descriptor of the folder's lock, which is held until the process ends; -1: there is no folder yet."""
        self._fetched: set[str] = set()

    @property
    def place(self) -> str:
        return f"{self.path} and its archive {self._archive.uri}"

    # --- what the archive has

    def _older(self) -> list[str]:
        """Returns the names of the segments that only the archive has, oldest first."""
        removed_seq = read_removed(self.path).seq
        local = super()._names()
        if not removed_seq or not local:
            return []
        names = [name for name in self._records if name < local[0]]
        if self._newest is None or (names and self._records[names[-1]].last_seq < removed_seq):
            if self._away is not None:
                return []
            try:
                self._newest = self._archive.newest()
            except RetryableError as error:
                if not self._keep:
                    raise
                log.warning("the archive is away: older transactions cannot be read", error=str(error))
                self._away = error
                return []
            records = () if self._newest is None else after_last_gap(self._newest.segments)
            self._records = {record.name: record for record in records}
            names = [name for name in self._records if name < local[0]]
        if not names or self._records[names[-1]].last_seq < removed_seq:
            return []  # the archive lacks what lies between the two
        return names

    def _names(self) -> list[str]:
        local = super()._names()
        older = self._older()
        return [name for name in older if not local or name < local[0]] + local

    def removed_seq(self) -> int:
        older = self._older()
        if not older:
            return super().removed_seq()
        assert self._newest is not None
        first = self._newest.segments[0]
        if self._records[older[0]] is first and first.start_seq <= self._begins_seq():
            return 0
        return self._records[older[0]].start_seq

    def _begins_seq(self) -> int:
        begins = self.beginning()
        return 0 if begins is None else begins.seq

    def require_kept(self, after_seq: int) -> None:
        removed_seq = self.removed_seq()
        if after_seq < removed_seq:
            if self._away is not None:
                raise self._away
            raise CutOffError(
                f"the transactions after {after_seq} ({format_seq(after_seq)}) up to {removed_seq} "
                f"({format_seq(removed_seq)}) are neither in the store nor in its archive",
                place=self.place,
                remedy="Give a later point.",
            )

    def segment_starts(self) -> list[int]:
        starts = (layout.segment_start(Path(name)) for name in self._names())
        return [start for start in starts if start is not None]

    # --- what is fetched

    def _segment(self, name: str) -> Path:
        """Returns the path of a segment; one of the archive has its index there, and its bytes once a selection needs
        them."""
        if name not in self._records or (path := super()._segment(name)).exists():
            return super()._segment(name)
        path = self._own_folder() / name
        index = index_path(path)
        if not index.exists():
            ref = self._records[name].index
            self._archive.objects.download(ref.object, index, ref.bytes, ref.sha256)
        return path

    def _provide(self, segments: Iterable[Path]) -> None:
        paths = {path for path in segments if path.parent == self._folder and not path.exists()}
        if not paths:
            return
        self._require_room(sum(self._records[path.name].log.bytes for path in paths))
        for path in sorted(paths):
            ref = self._records[path.name].log
            log.info("segment fetched from the archive", segment=path.name, bytes=ref.bytes)
            self._archive.objects.download(ref.object, path, ref.bytes, ref.sha256)
            self._fetched.add(path.name)

    def _require_room(self, size: int) -> None:
        with storage_errors(self.path):
            usage = disk_usage(self.path)
        left = usage.free - int(usage.total * (1 - self._stop_ratio))
        if size > left:
            raise StorageError(
                f"{human_bytes(size)} of segments are to be fetched from the archive, and {human_bytes(max(0, left))} "
                "are free below store.disk.stop_ratio, where capture stops",
                place=str(self.path),
                remedy="Make room, or read a shorter range.",
            )

    def release(self, selection: Selection) -> None:
        """Removes the segments of a selection that lie before its last one, which the next selection may need, and all
        that were fetched before."""
        if self._keep or not self._fetched:
            return
        last = max((byte_range.path.name for byte_range in selection.ranges), default="")
        for name in sorted(self._fetched):
            if name < last:
                (self._own_folder() / name).unlink(missing_ok=True)
                self._fetched.discard(name)

    def _stats_of(self, stats: StoreStats, name: str) -> SegmentStats:
        path = self._segment(name)
        return super()._stats_of(stats, name) if path.parent != self._folder else stats_of(IndexFile(path))

    def schema_path(self, last_seq: int) -> Path | None:
        self._older()
        refs = {} if self._newest is None else self._newest.state.files
        folder = layout.schemas_folder(self.path)
        seqs = {seq for seq, _ in layout.schema_files(folder)}
        removed_seq = read_removed(self.path).seq
        archived = [] if self._newest is None else schema_seqs(self._newest.state)
        all_seqs = sorted(seqs | {seq for seq in archived if seq <= removed_seq})
        if not all_seqs:
            return None
        seq = all_seqs[max(0, bisect_right(all_seqs, last_seq) - 1)]
        if seq in seqs:
            return folder / f"{seq}.json"
        path = self._own_folder() / f"{seq}.json"
        if not path.exists():
            ref = refs[f"{SCHEMAS}{seq}.json"]
            self._archive.objects.download(ref.object, path, ref.bytes, ref.sha256)
        return path

    def _own_folder(self) -> Path:
        if self._folder is None:
            parent = self.path / FOLDER
            make_folder(parent)
            with storage_errors(parent):
                self._folder, self._lock = make_work_folder(parent, _PREFIX)
            atexit.register(_remove_folder, self._folder, os.getpid())
        return self._folder


def _remove_folder(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a process that was forked
        shutil.rmtree(folder, ignore_errors=True)
