"""The progress of a snapshot: rows, bytes, rate and the time that is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from cdc.base.errors import CdcError
from cdc.base.log import get_logger
from cdc.source.snapshot.files import SnapshotFiles, newest

_INTERVAL_S = 1.0
log = get_logger(__name__)


@dataclass(frozen=True)
class SnapshotProgress:
    """The progress of reading a table."""

    table: str
    rows: int
    """Rows that have been read, those of earlier tries included."""
    bytes: int
    """Size of the finished chunks."""
    chunks: int
    estimated_rows: int
    """The table's rows by its statistics, which may be wrong by half."""
    rows_per_s: float
    """Rows per second since this try began."""
    left_s: float | None
    """Time that is left by this rate; None if it is not known."""
    complete: bool
    time_us: int
    """When this was measured, µs since 1970."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


ProgressCallback = Callable[[SnapshotProgress], object]


class ProgressReporter:
    """Measures the snapshots of some tables once a second while they are read, writes ``progress.json`` beside each,
    and calls ``callback``."""

    def __init__(self, snapshots: Sequence[SnapshotFiles], callback: ProgressCallback | None = None) -> None:
        self._snapshots = list(snapshots)
        self._callback = callback
        self._began = time.monotonic()
        self._before = {snapshot.folder.uri: sum(r.rows for r in snapshot.records()) for snapshot in snapshots}
        self._running = dict.fromkeys(self._before, 0)
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshot-progress", daemon=True)

    def counter(self, folder: str) -> Callable[[int], None]:
        """Returns a function that counts rows of a snapshot, for readers in this process."""

        def count(rows: int) -> None:
            with self._lock:
                self._running[folder] += rows

        return count

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._report()

    def _run(self) -> None:
        while not self._end.wait(_INTERVAL_S):
            self._report()

    def _report(self) -> None:
        for snapshot in self._snapshots:
            try:
                progress = self._measure(snapshot)
                snapshot.write_progress(progress.to_json())
            except CdcError as error:  # reading goes on without it, and fails by itself if the disk is broken
                log.warning("the progress of a snapshot could not be written", reason=str(error))
                continue
            if self._callback is not None:
                self._callback(progress)

    def _measure(self, snapshot: SnapshotFiles) -> SnapshotProgress:
        records = snapshot.records()
        done = sum(record.rows for record in records)
        with self._lock:
            rows = max(done, self._before[snapshot.folder.uri] + self._running[snapshot.folder.uri])
        elapsed = max(time.monotonic() - self._began, 0.001)
        rate = (rows - self._before[snapshot.folder.uri]) / elapsed
        complete = len({record.segment for record in records if record.last}) == len(snapshot.info.segments)
        left = max(snapshot.info.estimated_rows - rows, 0)
        return SnapshotProgress(
            table=snapshot.info.table,
            rows=rows,
            bytes=sum(record.bytes for record in records),
            chunks=len(records),
            estimated_rows=snapshot.info.estimated_rows,
            rows_per_s=round(rate, 1),
            left_s=0.0 if complete else round(left / rate, 1) if rate > 0 else None,
            complete=complete,
            time_us=time.time_ns() // 1000,
        )


def last_progress(snapshots: Sequence[SnapshotFiles]) -> SnapshotProgress | None:
    """Returns the progress that the process wrote that reads (or has read) the newest of a table's snapshots; None if
    there is none. Any process may ask."""
    snapshot = newest(snapshots)
    content = None if snapshot is None else snapshot.read_progress()
    try:
        return None if content is None else SnapshotProgress(**content)
    except TypeError:  # of another version
        return None
