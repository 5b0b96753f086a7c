"""Turns the fault codes of kernels into errors with file, position, table and column."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from cdc.base.errors import CdcError, DamagedError, SourceRefusedError, UnsupportedError, UnsupportedEventError
from cdc.binlog.constants import type_name
from cdc.binlog.table_map import ColumnType
from cdc.decode.column_types import ValuePolicies
from cdc.decode.columns import Column, describe
from cdc.decode.kernels import constants as k

_SEGMENT_REMEDY = "Restore the file from a copy, or have capture read it from the source again into a new store."

LOST_BYTES = -1
"""The code of a conversion that met a text of the key with bytes without a meaning."""

_OLD_TIMES = (ColumnType.TIMESTAMP, ColumnType.DATETIME, ColumnType.TIME)

_WHAT = {
    k.BAD_HEADER: "the row event's header is damaged",
    k.WRONG_COLUMNS: "the row event has another number of columns than its table map",
    k.CUT: "a value reaches beyond the end of its row event",
    k.BAD_VALUE: "a server never writes the bytes of this value",
    k.BAD_MEMBER: "the number of the ENUM member is larger than the number of members",
    k.NO_ROOM: "the value is longer than its column allows, or the file changed while it was read",
}


class DescribedTable(Protocol):
    """The part of a :class:`cdc.decode.layout.TableLayout` that error messages show."""

    @property
    def table(self) -> str:
        """``db.table``."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table map."""

    @property
    def policies(self) -> ValuePolicies:
        """The user's setting for values that Delta cannot hold."""


def scan_fault(code: int, path: Path | str, pos: int, kind: int, table: str | None) -> CdcError:
    """The error for a fault of a scan; ``kind`` is the type of the event at ``pos``."""
    place = f"{path}, position {pos}"
    if code == k.BAD_CRC:
        return DamagedError("the event fails its checksum", place=place, remedy=_SEGMENT_REMEDY)
    if code == k.BAD_EVENT:
        return UnsupportedEventError(f"{type_name(kind)} cannot be decoded", place=place)
    if code == k.TOO_MANY_LAYOUTS:
        return UnsupportedError(
            f"the table {table} is described in more than {k.MAX_LAYOUTS} different ways in one range",
            place=place,
            remedy="Decode a part of the range.",
        )
    return DamagedError("the chain of events is broken", place=place, remedy=_SEGMENT_REMEDY)


def _key_remedy(table: str, column: str, policy: str) -> str:
    return (
        f"Keep the column as {policy} (tables.overrides.{table}: {{columns: {{{column}: {policy}}}}}), with the Delta "
        "table moved away to have it made anew; or write mode: append, or exclude the table."
    )


def row_fault(
    code: int,
    path: Path | str,
    pos: int | None,
    event_pos: int,
    layout: DescribedTable,
    column: int,
    why: str | None = None,
) -> CdcError:
    """The error for a fault inside a row event. ``pos`` is None if the byte is not known; ``why`` is the reason that a
    conversion gave."""
    if code == k.PART_IMAGE:
        is_described = 0 <= column < len(layout.columns)
        name = layout.columns[column].name if is_described else "NAME"
        lacking = f"the rows of table {layout.table} lack the column {name}, which is wanted or belongs to the key"
        return SourceRefusedError(
            lacking if is_described else f"the rows of table {layout.table} lack columns",
            place=f"{path}, position {event_pos}",
            remedy=f"If it is a generated column, leave it out (tables.overrides.{layout.table}: {{columns: {{{name}: "
            "drop}}), because MariaDB 11.8.9 leaves generated columns out of updates and deletes. Otherwise set "
            "binlog_row_image=FULL for every session of the source, and capture from after that.",
        )
    where = f"{path}, row event at {event_pos}"
    where += f", table {layout.table}" if pos is None else f", byte {pos}, table {layout.table}"
    if 0 <= column < len(layout.columns):
        where += f", column {layout.columns[column].name} ({describe(layout.columns[column])})"
    name = layout.columns[column].name if 0 <= column < len(layout.columns) else ""
    if code == LOST_BYTES:
        return UnsupportedError(
            "a text of the key with bytes that mean nothing in its character set: as ? in Delta, different keys would "
            "be the same",
            place=where,
            remedy=_key_remedy(layout.table, name, "bytes"),
        )
    if code == k.ZERO_DATE and name.lower() in layout.policies.exact:
        return UnsupportedError(
            "a zero or impossible date in the key: as null in Delta, different keys would be the same",
            place=where,
            remedy=_key_remedy(layout.table, name, "text"),
        )
    if code == k.ZERO_DATE:
        return UnsupportedError(
            "a zero or impossible date, which Delta cannot hold",
            place=where,
            remedy="Correct it on the source and skip the batch, or let such dates become null (zero_dates: null).",
        )
    why = why or _WHAT.get(code, "the row event is damaged")
    guessed = [c.name for c in layout.columns if c.type in _OLD_TIMES and c.declared is None]
    if guessed:
        why += f"; or {guessed[0]}, a time in MariaDB's old storage, has a fraction, which only a schema shows"
    return DamagedError(why, place=where, remedy=_SEGMENT_REMEDY)
