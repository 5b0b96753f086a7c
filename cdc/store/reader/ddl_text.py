"""The text of a DDL statement in a segment, and whether it leaves rows alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cdc.binlog.constants import HEADER_SIZE, MAGIC, SKIPPED, EventType
from cdc.binlog.events import parse_format_description, parse_header, parse_query
from cdc.errors import CdcError, StorageError
from cdc.sql.statements import classify

_LONGEST = 1 << 20
"""A longer transaction counts as one that changes rows, without being read."""
_STATEMENTS = (EventType.QUERY, EventType.EXECUTE_LOAD_QUERY)
_WITHOUT_ROWS = frozenset(
    {EventType.GTID, EventType.ANONYMOUS_GTID, EventType.GTID_TAGGED, EventType.MARIADB_GTID, EventType.XID, *SKIPPED}
)


def leaves_rows_alone(segment: Path, entry: np.void) -> bool:
    """Whether the transaction of an index entry is a DDL statement after which every row is what it was.

    False where that is not certain; whoever applies the batch then says why. Raises StorageError.
    """
    offset, length = int(entry["offset"]), int(entry["length"])
    if int(entry["row_events"]) or length > _LONGEST:
        return False
    try:
        with segment.open("rb") as file:
            file.seek(len(MAGIC))
            head = file.read(HEADER_SIZE)
            head += file.read(parse_header(head).length - HEADER_SIZE)
            file.seek(offset)
            data = file.read(length)
        return len(data) == length and _is_harmless(data, parse_format_description(head).has_checksum)
    except CdcError:  # damage: the batch is read again when it is applied, and refused there with its place
        return False
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(segment)) from None


def _is_harmless(data: bytes, has_checksum: bool) -> bool:
    found = False
    at = 0
    while at + HEADER_SIZE <= len(data):
        header = parse_header(data[at : at + HEADER_SIZE])
        if header.length < HEADER_SIZE:
            return False
        if header.type in _STATEMENTS:
            query = parse_query(data[at : at + header.length], has_checksum)
            statement = classify(query.sql, query.db, query.sql_mode)
            if statement.kind != "transaction" and not statement.leaves_rows_alone:
                return False
            found = found or statement.kind == "ddl"
        elif header.type not in _WITHOUT_ROWS:
            return False
        at += header.length
    return found and at == len(data)
