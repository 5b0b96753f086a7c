"""Columns that are read again: loads the values that only the server knew after a statement into the table's own rows.

A parked table whose record names columns is not read as a whole. Its own changes are applied up to the statement; that
gives its rows the values of a snapshot of the key and these columns; then the later changes follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.base.errors import (
    CdcError,
    ConfigError,
    IdentityError,
    MergeFailedError,
    NeedsSnapshotError,
    PermanentError,
    SchemaChangedError,
    SourceRefusedError,
    UsageError,
    VersionError,
)
from cdc.base.log import get_logger
from cdc.base.targets import split_table
from cdc.lake.delta.tables import target_of
from cdc.lake.jobs.job import Job, table_sessions
from cdc.lake.jobs.read_columns import make_reading
from cdc.lake.jobs.retry import bring_level
from cdc.meta import UnknownColumns
from cdc.source.snapshot.files import SnapshotFiles

if TYPE_CHECKING:
    from cdc.lake.jobs.results import CatchUp
    from cdc.source.snapshot import SnapshotFiles

_log = get_logger(__name__)


class UnusableError(CdcError):
    """Chunks that cannot be loaded, although nothing is wrong: they have to be read again."""


class TooEarlyError(UnusableError):
    """Chunks of columns that may show the table before the statement."""


def merge_columns(mine: Job, files: SnapshotFiles, unknown_columns: UnknownColumns, low_seq: int) -> CatchUp:
    """Gives the table's rows the values that were read, and brings it level. The store must be complete up to the
    chunks' last position. ``low_seq``: the chunks show everything up to there.

    Raises TooEarlyError if the columns have to be read again, and what stopped the table.
    """
    if low_seq < unknown_columns.seq:
        raise TooEarlyError("the columns were read before the statement was done", place=f"table {mine.table}")
    reading = make_reading(table_sessions(mine.config), mine.config, mine.batches, files, unknown_columns)
    return bring_level(mine, mine.keep_seq(), reading=reading)


def merge_rest(mine: Job) -> CatchUp | None:
    """Brings a table level whose columns a killed process has merged already. Returns None if they are not merged."""
    unknown_columns, state = mine.columns(), target_of(mine.config, mine.table).state()
    if unknown_columns is None or state is None or state.applied_seq < unknown_columns.seq:
        return None
    try:
        done = bring_level(mine, mine.keep_seq())
    except NeedsSnapshotError as error:
        note_unknown(mine, error)
        raise
    for files in SnapshotFiles.find(mine.config, *split_table(mine.table)):
        if files.info.columns is not None:
            files.remove()
    return done


def note_unknown(mine: Job, error: CdcError) -> None:
    """Records what has to be read after an error of a table that waits for columns."""
    before = mine.columns()
    columns = UnknownColumns.of(error)
    if isinstance(error, TooEarlyError):
        columns = before
    if columns is None:
        _log.warning("the whole table is read, and not its columns alone", table=mine.table, reason=str(error))
    if columns is None or columns != before:
        record = mine.record()
        mine.mark("snapshot", str(error), None if record is None else record.keep_seq, columns=columns)


def asks_for_more(error: CdcError) -> bool:
    """Whether an error of a table that waits for columns means that other columns, or the whole table, have to be read:
    not if the same may succeed later, or if the whole table would meet the error as well."""
    if isinstance(error, SchemaChangedError | NeedsSnapshotError | UnusableError | MergeFailedError):
        return True
    same = ConfigError | UsageError | VersionError | IdentityError | SourceRefusedError
    return isinstance(error, PermanentError) and not isinstance(error, same)
