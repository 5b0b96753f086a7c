"""Takes snapshots: begins or resumes one for each table, has the segments read, and begins anew what was altered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cdc.base.errors import (
    CdcError,
    ConfigError,
    IdentityError,
    SchemaChangedError,
    SourceRefusedError,
    StoreIncompleteError,
)
from cdc.base.log import get_logger
from cdc.client import open_store
from cdc.config import DestinationConfig
from cdc.meta.state import SourceIdentity
from cdc.source.connection import place_of, query
from cdc.source.driver import close_now
from cdc.source.privileges import read_grants
from cdc.source.server import Connection, current_position, describe
from cdc.source.snapshot import positions
from cdc.source.snapshot.files import SnapshotFiles, newest
from cdc.source.snapshot.keys import paging_key
from cdc.source.snapshot.parts import PartRecord
from cdc.source.snapshot.progress import ProgressCallback, ProgressReporter
from cdc.source.snapshot.reader import SegmentTask, read_segment
from cdc.source.snapshot.records import Segment, SnapshotInfo
from cdc.source.snapshot.segments import Borders
from cdc.source.snapshot.session import ReaderSessions, altered, definition, open_session
from cdc.source.snapshot.table import TableReading

SEGMENTS_PER_READER = 4
"""More segments than connections keep all of them busy when borders are uneven."""
MOST_SEGMENTS = 999
ATTEMPTS = 5
"""The number of times that a table is begun anew before its error is raised."""
log = get_logger(__name__)


Outcome = tuple[SegmentTask, CdcError | None]
ReadSegments = Callable[[DestinationConfig, Sequence[SegmentTask], ProgressReporter], Iterable[Outcome]]
"""Reads segments, by threads or elsewhere, and returns the outcome of each."""


def take(
    config: DestinationConfig,
    table: str,
    source: SourceIdentity,
    *,
    progress: ProgressCallback | None = None,
    read: ReadSegments | None = None,
) -> SnapshotFiles:
    """Takes a snapshot of a table, or completes one that was begun, and returns its files.

    Capture must have begun before: the changes between the snapshot's positions come from the store. Raises
    SchemaChangedError if the table was altered again and again; IdentityError if the server is not ``source``;
    SourceUnavailableError, SourceRefusedError, UnsupportedTypeError, ConfigError, StorageError.
    """
    (outcome,) = take_all(config, [table], source, progress=progress, read=read).values()
    if isinstance(outcome, CdcError):
        raise outcome
    return outcome


def take_all(
    config: DestinationConfig,
    tables: Sequence[str],
    source: SourceIdentity,
    *,
    progress: ProgressCallback | None = None,
    read: ReadSegments | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    parts: Mapping[str, PartRecord] | None = None,
) -> dict[str, SnapshotFiles | CdcError]:
    """Takes snapshots of several tables (``db.table``) at the same time. Returns the files of each, or the error that
    stopped it; the other tables go on. Raises what concerns all of them. ``columns``: by table, the source's names of
    the columns that are read beside the key; of other tables all columns are read. ``parts``: by table, the rows that
    are read; of other tables all of them."""
    read = read_in_threads if read is None else read
    snapshots: dict[str, SnapshotFiles | CdcError] = {}
    left = list(dict.fromkeys(tables))
    for attempt in range(1, ATTEMPTS + 1):
        begun = _begin_all(config, left, source, snapshots, (columns or {}, parts or {}))
        with ProgressReporter(list(begun.values()), progress) as reporter:
            errors = _read_all(config, begun, read, reporter)
        left = []
        for table, files in begun.items():
            error = errors.get(table)
            if isinstance(error, SchemaChangedError | IdentityError) and attempt < ATTEMPTS:
                log.warning("the snapshot of a table begins anew", table=table, reason=error.message)
                files.remove()
                left.append(table)
            else:
                snapshots[table] = files if error is None else error
        if not left:
            break
    return {table: snapshots[table] for table in dict.fromkeys(tables)}


def _read_all(
    config: DestinationConfig, begun: dict[str, SnapshotFiles], read: ReadSegments, reporter: ProgressReporter
) -> dict[str, CdcError]:
    tables = {files.folder.uri: table for table, files in begun.items()}
    counts = {uri: len(files.info.segments) for uri, files in zip(tables, begun.values(), strict=True)}
    readers = min(config.snapshot.parallel, sum(counts.values()))
    # The tables' segments alternate, so that small tables do not wait for a large one.
    tasks = [
        SegmentTask(uri, segment, readers)
        for segment in range(max(counts.values(), default=0))
        for uri, count in counts.items()
        if segment < count
    ]
    errors: dict[str, CdcError] = {}
    for task, error in read(config, tasks, reporter):
        if error is not None:
            # One that says that the table has to begin anew tells more than one of a broken connection.
            first_error = errors.get(tables[task.folder])
            if first_error is None or isinstance(error, SchemaChangedError):
                errors[tables[task.folder]] = error
    return errors


def read_in_threads(
    config: DestinationConfig, tasks: Sequence[SegmentTask], reporter: ProgressReporter
) -> Iterable[Outcome]:
    """Reads segments by ``snapshot.parallel`` threads of this process. After a table's first error its other segments
    are not begun."""
    failed: set[str] = set()

    def one(task: SegmentTask) -> Outcome:
        if task.folder in failed:
            return task, None
        try:
            read_segment(config, task, sessions, reporter.counter(task.folder))
        except CdcError as error:
            failed.add(task.folder)
            return task, error
        return task, None

    if not tasks:
        return []
    threads = min(config.snapshot.parallel, len(tasks))
    with ReaderSessions(config.source) as sessions, ThreadPoolExecutor(threads, "snapshot") as pool:
        return list(pool.map(one, tasks))


# ---------------------------------------------------------------- beginning


def _begin_all(
    config: DestinationConfig,
    tables: Sequence[str],
    source: SourceIdentity,
    results: dict[str, SnapshotFiles | CdcError],
    chosen: tuple[Mapping[str, Sequence[str]], Mapping[str, PartRecord]],
) -> dict[str, SnapshotFiles]:
    begins = open_store(config, source.base_name).beginning()
    if begins is None:
        raise StoreIncompleteError(
            "capture has not begun, and a snapshot needs the changes that happen while it is read",
            place=config.store.place,
            remedy="Start `cdc capture` first.",
        )
    columns, parts = chosen
    begun: dict[str, SnapshotFiles] = {}
    conn = open_session(config.source)
    try:
        _require_source(conn, config, source)
        for table in tables:
            try:
                begun[table] = begin_or_resume(conn, config, table, source, columns.get(table), parts.get(table))
            except CdcError as error:
                if error.retryable and not isinstance(error, SchemaChangedError):
                    raise
                results[table] = error
    finally:
        close_now(conn)
    if any(files.info.method == "margin" and not files.records() for files in begun.values()):
        wait_for_margin(begins.time_us, "capture began a moment ago")
    return begun


def wait_for_margin(since_us: float, reason: str) -> None:
    """Waits until a moment, µs since 1970, is older than the margin of servers without GTIDs."""
    left_s = since_us / 1e6 + positions.MARGIN_S + 1 - time.time()
    if 0 < left_s <= positions.MARGIN_S + 1:
        log.info("the snapshot waits: the source has no GTIDs", reason=reason, seconds=round(left_s))
        time.sleep(left_s)


def _require_source(conn: Connection, config: DestinationConfig, source: SourceIdentity) -> None:
    uuid = describe(conn).server_uuid
    if uuid != source.server_uuid:
        raise IdentityError(
            f"the server (uuid {uuid}) is not the one that is captured (uuid {source.server_uuid})",
            place=f"source {place_of(config.source)}",
            remedy="Connect to the server that capture reads.",
        )


def begin_or_resume(
    conn: Connection,
    config: DestinationConfig,
    table: str,
    source: SourceIdentity,
    columns: Sequence[str] | None = None,
    part: PartRecord | None = None,
) -> SnapshotFiles:
    """Returns the snapshot of a table that was begun and may be continued, else a new one. Older ones are removed.

    A snapshot is continued if table, server, epoch, key, policies, ``columns`` (those that are read beside the key;
    None: all of them) and ``part`` (the rows; None: all of them) are still the same.
    """
    db, name = find_table(conn, config, table)
    info = _describe(conn, config, db, name, source)
    if columns is not None:
        present = {column.lower() for column in info.definition.column_names}
        if not info.key or not {column.lower() for column in columns} <= present:
            raise altered(table)
        info = info.of_columns(columns)
    if part is not None:
        present = {*info.definition.column_names}
        if not info.key or not {term.column for terms in (part.comparisons, *part.keys) for term in terms} <= present:
            raise altered(table)
        info = info.of_part(part)
    # One that was loaded is kept: the table can be built again from it until the next one is loaded.
    unfinished = [snapshot for snapshot in SnapshotFiles.find(config, db, name) if snapshot.loaded() is None]
    last = newest(unfinished)
    current = None
    if last is not None and _may_continue(conn, last, info):
        current = last
    for older in unfinished:
        if older is not current:
            older.remove()
    if current is not None:
        log.info("a snapshot is continued", table=table, chunks=len(current.records()))
        return current
    paging = info.paging
    # The borders of a table tell nothing about a part of it.
    if paging is not None and info.condition is None:
        # A little smaller than a chunk, so that most of them are one.
        count = min(
            config.snapshot.parallel * SEGMENTS_PER_READER, 1 + info.estimated_rows * 5 // (info.chunk_rows * 4)
        )
        text = TableReading.of(config, db, name, info.definition).quoted_name
        segments = Borders(conn, text, paging).segments(min(count, MOST_SEGMENTS))
        info = info.model_copy(update={"segments": segments})
    return SnapshotFiles.create(config, info)


def _may_continue(conn: Connection, last: SnapshotFiles, info: SnapshotInfo) -> bool:
    """Whether a snapshot was begun under the same conditions, and the server's binlog has not been reset since."""
    old = last.info.model_dump(exclude={"segments", "estimated_rows", "row_bytes", "chunk_rows"})
    if old != info.model_dump(exclude={"segments", "estimated_rows", "row_bytes", "chunk_rows"}):
        return False
    now = current_position(conn)
    highs = [record.high.value() for record in last.records()]
    return all((high.file_number, high.pos) <= (now.file_number, now.pos) for high in highs)


def find_table(conn: Connection, config: DestinationConfig, table: str) -> tuple[str, str]:
    """Returns database and name of an included table ``db.table``; either may contain a dot. Raises ConfigError,
    SchemaChangedError if there is no such table."""
    parts = [(table[:at], table[at + 1 :]) for at, char in enumerate(table) if char == "."]
    included = [(db, name) for db, name in parts if db and name and config.tables.includes(db, name)]
    if not included:
        raise ConfigError(
            f"{table} is not among the tables that tables.include and tables.exclude choose",
            place="tables",
            remedy="Write it as db.table, and include it.",
        )
    for db, name in included:
        rows = query(
            conn,
            "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (db, name),
        )
        if rows:
            return db, name
    definition(conn, config.tables, *included[0])  # raises
    return included[0]


def _describe(conn: Connection, config: DestinationConfig, db: str, name: str, source: SourceIdentity) -> SnapshotInfo:
    server = describe(conn)
    schema = definition(conn, config.tables, db, name)
    reading = TableReading.of(config, db, name, schema)
    rows = query(
        conn,
        "SELECT ENGINE AS engine, TABLE_ROWS AS row_count, AVG_ROW_LENGTH AS row_bytes FROM information_schema.TABLES "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (db, name),
    )
    if not rows:  # renamed or dropped since its definition was read
        raise altered(f"{db}.{name}")
    facts = rows[0]
    paging = paging_key(conn, (db, name), schema, reading.key)
    if paging is not None and not reading.may_show_keys(paging.names):
        paging = None  # borders would show the values that the policy hides
    engine = str(facts["engine"] or "")
    method = positions.method_of(conn, server)
    if method == "margin" and not read_grants(conn).has("PROCESS"):
        raise SourceRefusedError(
            "the source has no GTIDs, and the user may not see whether other sessions are committing (PROCESS is "
            "missing), so that it is not certain what a snapshot would see",
            place=f"source {place_of(config.source)}",
            remedy="GRANT PROCESS ON *.* TO the user.",
        )
    settings: dict[str, Any] = reading.settings()
    return SnapshotInfo(
        destination=config.name,
        db=db,
        name=name,
        server_uuid=source.server_uuid,
        epoch=source.epoch,
        engine=engine,
        method=method,
        has_row_metadata=server.has_row_metadata,
        definition=schema,
        key=reading.key,
        index=None if paging is None else paging.index,
        index_columns=() if paging is None else paging.names,
        policies=settings["policies"],
        values=settings["values"],
        chunk_rows=config.snapshot.chunk_rows,
        estimated_rows=int(facts["row_count"] or 0),
        row_bytes=int(facts["row_bytes"] or 0),
        segments=(Segment(),),
    )
