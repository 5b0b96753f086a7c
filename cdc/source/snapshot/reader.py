"""Reads the chunks of one segment, one after another, each in a transaction of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from cdc.base.errors import CdcError
from cdc.base.log import get_logger
from cdc.config import DestinationConfig
from cdc.decode.parquet_files import RowGroupWriter
from cdc.source.connection import query
from cdc.source.server import Connection, current_position
from cdc.source.snapshot import positions
from cdc.source.snapshot.columns import ColumnStats
from cdc.source.snapshot.files import SnapshotFiles, digest_of
from cdc.source.snapshot.keys import Key
from cdc.source.snapshot.records import ChunkRange, ChunkRecord, LowRecord, PositionRecord, chunk_file, chunk_name
from cdc.source.snapshot.result_set import ResultSet
from cdc.source.snapshot.session import (
    ReaderSessions,
    Throttle,
    altered,
    is_altered,
    require_definition,
    require_server,
)
from cdc.source.snapshot.table import TableReading

CHUNK_BYTES = 256 << 20
"""Chunks have fewer rows than ``chunk_rows`` if these would take more."""
log = get_logger(__name__)

OnRows = Callable[[int], object]
"""Is called with the number of rows after each block of rows."""


@dataclass(frozen=True)
class SegmentTask:
    """A segment that is to be read; it can be sent to another process."""

    folder: str
    """Path or URI of the snapshot."""
    segment: int
    readers: int
    """The number of segments that are read at the same time; they share the limits of the configuration."""


@dataclass
class _Read:
    """The rows of a chunk, in its file."""

    rows: int
    key: Key | None
    """The key of the last row, if the chunk ends after a number of rows."""


class SegmentReader:
    """Reads a segment over one connection."""

    def __init__(
        self,
        config: DestinationConfig,
        files: SnapshotFiles,
        task: SegmentTask,
        sessions: ReaderSessions,
        on_rows: OnRows | None = None,
    ) -> None:
        self._config = config
        self._files = files
        self._info = files.info
        self._segment = task.segment
        self._sessions = sessions
        reading = TableReading.of(
            config,
            self._info.db,
            self._info.name,
            self._info.definition,
            has_row_metadata=self._info.has_row_metadata,
        ).only(self._info.columns)
        self._table = replace(reading, condition=self._info.condition)
        self._paging = self._info.paging
        self._throttle = Throttle(config.source, config.snapshot, task.readers)
        self._on_rows = on_rows
        self._row_bytes = float(self._info.row_bytes)

    def run(self) -> list[ChunkRecord]:
        """Reads what is missing of the segment, and returns the records of all its chunks.

        Raises SchemaChangedError if the table was altered, IdentityError if the server is not the one of the snapshot
        or was reset, SourceUnavailableError, SourceRefusedError, StorageError.
        """
        done = self._files.records(self._segment)
        unsound = [record for record in done if not self._files.is_sound(record)]
        if done and done[-1].last and not unsound:
            return done
        with self._sessions.one() as conn, closing(self._throttle):
            highest = max((r.high.value() for r in done), key=lambda p: (p.file_number, p.pos), default=None)
            require_server(conn, self._config, self._info, (highest.file, highest.pos) if highest else ("", 0))
            for record in unsound:
                log.warning(
                    "a chunk is missing or damaged, and is read again", chunk=self._files.folder.name(record.name)
                )
                self.read_chunk(
                    conn, ChunkRange(self._segment, record.number, record.after, record.upto, None, record.last)
                )
            self._remaining(conn, done)
        return self._files.records(self._segment)

    def _remaining(self, conn: Connection, done: list[ChunkRecord]) -> None:
        segment = self._info.segments[self._segment]
        after, number = segment.after, 1
        if done:
            if done[-1].last:
                return
            after, number = done[-1].upto, done[-1].number + 1
        while True:
            limit = self._limit() if self._paging is not None else None
            record = self.read_chunk(conn, ChunkRange(self._segment, number, after, segment.upto, limit))
            if record.last:
                return
            after, number = record.upto, number + 1

    def _limit(self) -> int:
        if self._row_bytes <= 0:
            return self._info.chunk_rows
        return max(1, min(self._info.chunk_rows, int(CHUNK_BYTES / self._row_bytes)))

    def read_chunk(self, conn: Connection, chunk: ChunkRange) -> ChunkRecord:
        """Reads one chunk and writes its files. Raises as :meth:`run`."""
        began = time.monotonic()
        name = chunk_name(chunk.segment, chunk.number)
        stats = ColumnStats()
        try:
            require_definition(conn, self._config, self._info)
            with self._files.folder.new_file() as new:
                marks = positions.begin(conn, self._info.method)
                writer = RowGroupWriter(new.path, self._table.arrow_schema)
                try:
                    read = self._rows(conn, chunk, writer, stats)
                finally:
                    writer.close()
                high = marks.high if self._info.is_transactional else current_position(conn)
                query(conn, "COMMIT")
                require_definition(conn, self._config, self._info)
                size, sha256 = digest_of(new.path)
                new.name = chunk_file(name, sha256)
        except CdcError as error:
            if is_altered(error):
                raise altered(self._info.table) from error
            raise
        if read.rows and chunk.limit is not None:
            self._row_bytes = max(self._row_bytes, size / read.rows)
        full = chunk.limit is not None and read.rows >= chunk.limit
        record = ChunkRecord(
            segment=chunk.segment,
            number=chunk.number,
            after=chunk.after,
            upto=read.key if full else chunk.upto,
            last=chunk.last and not full,
            low=LowRecord(**marks.low.to_json()),
            high=PositionRecord(file=high.file, pos=high.pos),
            rows=read.rows,
            bytes=size,
            sha256=sha256,
            null_dates=stats.null_dates,
            seconds=round(time.monotonic() - began, 3),
        )
        self._files.folder.write(f"{name}.json", record.model_dump_json(indent=1).encode() + b"\n")
        return record

    def _rows(self, conn: Connection, chunk: ChunkRange, writer: RowGroupWriter, stats: ColumnStats) -> _Read:
        key: Key | None = None
        skip = len(self._paging.names) if self._paging is not None and chunk.limit is not None else 0
        can_read = partial(self._table.can_read, skip=skip)
        for block in ResultSet(conn, self._table.select(chunk, self._paging), can_read):
            writer.add(self._table.batch(block, skip, stats))
            if skip:
                key = tuple((block.value(column, block.rows - 1) or b"").hex() for column in range(skip))
            if self._on_rows is not None:
                self._on_rows(block.rows)
            self._throttle.after(block.rows)
        return _Read(writer.rows, key)


def read_segment(
    config: DestinationConfig, task: SegmentTask, sessions: ReaderSessions, on_rows: OnRows | None = None
) -> list[ChunkRecord]:
    """Reads a segment, in any process that sees the snapshot's folder and the source. Raises as
    :meth:`SegmentReader.run`."""
    return SegmentReader(config, SnapshotFiles.open(task.folder), task, sessions, on_rows).run()
