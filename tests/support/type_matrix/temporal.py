"""Edge values of dates and times, in the servers' new and old storage formats."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from tests.support.type_matrix.column import DATETIME, PRINTED, TIMESTAMP, Column

NO_PLACE = "zero, half-zero and impossible dates, and those before the year 1, are null (`zero_dates`)"
OLD = "old storage"
_DAYS = ("0000-00-00", "0000-01-01", "0001-01-01", "1000-01-01", "1582-10-10", "1900-02-28", "1900-02-29", "1969-12-31",
         "1970-01-01", "2000-02-29", "2023-02-31", "2024-00-10", "2024-05-00", "2024-02-29", "2026-11-21",
         "9999-12-31")  # fmt: skip


def dates() -> list[Column]:
    values = tuple(f"'{day}'" for day in _DAYS)
    return [Column("DATE", "DATE", values, pa.date32(), "date", select=PRINTED, note=NO_PLACE)]


def datetimes(group: str = "") -> list[Column]:
    columns = []
    for digits in range(7):
        moments = [f"{day} 00:00:00" for day in _DAYS]
        moments += [f"{day} 10:11:12{_part('987654', digits)}" for day in _DAYS]
        moments += [f"9999-12-31 23:59:59{_part('999999', digits)}", f"1969-12-31 23:59:59{_part('999999', digits)}"]
        moments += [f"2024-02-29 00:00:00{_part('000001', digits)}", f"2024-02-29 23:59:59{_part('000010', digits)}"]
        sql = f"DATETIME({digits})" if digits else "DATETIME"
        values = tuple(dict.fromkeys(f"'{moment}'" for moment in moments))
        columns.append(
            Column("DATETIME(0) to DATETIME(6)", sql, values, DATETIME, "datetime", select=PRINTED, note=NO_PLACE)
        )
    return _grouped(columns, group)


def timestamps(last: str, group: str = "") -> list[Column]:
    """``last`` is the largest second of the server's TIMESTAMP."""
    columns = []
    for digits in range(7):
        moments = ["0000-00-00 00:00:00", "1970-01-01 00:00:01", f"1970-01-01 00:00:01{_part('999999', digits)}"]
        moments += [f"2001-09-09 01:46:40{_part('000001', digits)}", f"2024-02-29 12:34:56{_part('987654', digits)}"]
        moments += ["2038-01-19 03:14:07", f"{last}{_part('999999', digits)}", f"{last}{_part('000010', digits)}"]
        sql = f"TIMESTAMP({digits}) NULL" if digits else "TIMESTAMP NULL"
        values = tuple(dict.fromkeys(f"'{moment}'" for moment in moments))
        note = "the zero timestamp is null (`zero_dates`)"
        columns.append(
            Column("TIMESTAMP(0) to TIMESTAMP(6)", sql, values, TIMESTAMP, "timestamp", select=PRINTED, note=note)
        )
    return _grouped(columns, group)


def times(group: str = "") -> list[Column]:
    columns = []
    for digits in range(7):
        whole = ("00:00:00", "-00:00:01", "00:00:01", "12:34:56", "-12:34:56", "838:59:59", "-838:59:59", "99:59:59",
                 "-100:00:00", "-00:59:59")  # fmt: skip
        parts = [
            f"{time}{_part('789123', digits)}"
            for time in ("12:34:56", "-12:34:56", "00:00:00", "-00:00:00", "-838:59:58")
        ]
        parts += [
            f"-00:00:00{_part('000001', digits)}",
            f"-23:59:59{_part('999999', digits)}",
            f"838:59:58{_part('999999', digits)}",
        ]
        values = tuple(dict.fromkeys(f"'{time}'" for time in (*whole, *parts)))
        sql = f"TIME({digits})" if digits else "TIME"
        columns.append(Column("TIME(0) to TIME(6)", sql, values, pa.string(), "text", select=PRINTED))
    return _grouped(columns, group)


def old_storage() -> list[Column]:
    """Columns of tables that MariaDB creates while ``mysql56_temporal_format`` is OFF."""
    return [*times(OLD), *datetimes(OLD), *timestamps("2038-01-19 03:14:07", OLD)]


def _part(digits: str, count: int) -> str:
    return f".{digits[:count]}" if count else ""


def _grouped(columns: list[Column], group: str) -> list[Column]:
    if not group:
        return columns
    return [replace(column, row=f"{column.row}, {group}", group=group) for column in columns]
