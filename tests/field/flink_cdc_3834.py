# ruff: noqa: DTZ001  (DATETIME has no time zone)
"""Dates long before 1970, with fractions: years below 100, days that the calendar reform left out, and zero dates."""

from datetime import date, datetime

from tests.field.case import Case

CASE = Case(
    report="apache/flink-cdc#3834",
    problem="Years 1 to 99 became 1970 to 2069, and fractions before 1970 could not be written.",
    statements=(
        "SET SESSION sql_mode = ''",
        "CREATE TABLE events (id INT PRIMARY KEY, d DATE, at0 DATETIME, at6 DATETIME(6))",
        "INSERT INTO events VALUES (1, '0001-01-01', '0001-01-01 00:00:00', '0001-01-01 00:00:00.000001')",
        "INSERT INTO events VALUES (2, '0022-11-30', '0022-11-30 08:05:43', '0099-12-31 23:59:59.999999')",
        "INSERT INTO events VALUES (3, '0222-11-30', '1582-10-10 12:00:00', '1582-10-04 23:59:59.5')",
        "INSERT INTO events VALUES (4, '1582-10-15', '1900-02-28 00:00:00', '1969-12-31 23:59:59.999999')",
        "INSERT INTO events VALUES (5, '0000-00-00', '0000-00-00 00:00:00', '0000-00-00 00:00:00')",
        "INSERT INTO events (id) VALUES (6)",
        "UPDATE events SET d = '0070-01-01', at6 = '1969-12-31 23:59:59.000001' WHERE id = 6",
    ),
    rows={
        "events": [
            (1, date(1, 1, 1), datetime(1, 1, 1), datetime(1, 1, 1, 0, 0, 0, 1)),
            (2, date(22, 11, 30), datetime(22, 11, 30, 8, 5, 43), datetime(99, 12, 31, 23, 59, 59, 999999)),
            (3, date(222, 11, 30), datetime(1582, 10, 10, 12), datetime(1582, 10, 4, 23, 59, 59, 500000)),
            (4, date(1582, 10, 15), datetime(1900, 2, 28), datetime(1969, 12, 31, 23, 59, 59, 999999)),
            (5, None, None, None),
            (6, date(70, 1, 1), None, datetime(1969, 12, 31, 23, 59, 59, 1)),
        ],
    },
)
