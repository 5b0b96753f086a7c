"""The time of a statement by its event."""

from __future__ import annotations

import pytest

from cdc.binlog.sql.changes import AddColumn, Constant, OldRows, Unknown
from cdc.binlog.sql.moment import Moment
from cdc.binlog.sql.schemas import Offsets
from cdc.binlog.sql.server import ServerVersion
from cdc.binlog.sql.statements import classify

SUMMER_S = 1_784_073_600  # 2026-07-15 00:00:00 UTC
MYSQL, MARIADB = ServerVersion.parse("9.7.4"), ServerVersion.parse("11.8.9-MariaDB")


def old_rows(definition: str, moment: Moment, server: ServerVersion | None = MYSQL) -> OldRows:
    (change,) = classify(f"ALTER TABLE t ADD c {definition}", "d", 0, server, moment=moment).changes
    assert isinstance(change, AddColumn)
    return change.old_rows


@pytest.mark.parametrize(
    ("definition", "zone", "value"),
    [
        ("DATETIME(6) DEFAULT NOW(6)", "+02:00", "2026-07-15 02:00:00.012345"),
        ("DATETIME(2) DEFAULT NOW(2)", "-00:30", "2026-07-14 23:30:00.01"),
        ("DATETIME DEFAULT (now())", "Europe/Berlin", "2026-07-15 02:00:00"),
        ("DATE DEFAULT (curdate())", "-01:00", "2026-07-14"),
        ("TIMESTAMP(1) NULL DEFAULT CURRENT_TIMESTAMP(1)", "SYSTEM", "2026-07-15 00:00:00.0"),
        ("TIMESTAMP NULL DEFAULT '2026-07-01 12:00:00'", "Europe/Berlin", "2026-07-01 10:00:00"),
        ("DATETIME DEFAULT NOW()", "SYSTEM", "2026-07-15 05:00:00"),
        # The event does not tell these, or servers differ.
        ("DATETIME DEFAULT NOW()", None, None),
        ("DATETIME DEFAULT NOW()", "Nowhere/Else", None),
        ("DATETIME(3) DEFAULT NOW()", "+00:00", None),
        ("TIME DEFAULT (curtime())", "+00:00", None),
        ("VARCHAR(40) DEFAULT (now())", "+00:00", None),
        ("DATETIME DEFAULT (now() + INTERVAL 1 DAY)", "+00:00", None),
        ("TIMESTAMP NULL DEFAULT '2026-10-25 02:30:00'", "Europe/Berlin", None),  # twice
        ("TIMESTAMP NULL DEFAULT '2026-03-29 02:30:00'", "Europe/Berlin", None),  # never
    ],
)
def test_the_value_of_a_default(definition: str, zone: str | None, value: str | None) -> None:
    moment = Moment(SUMMER_S, 12345, zone, None, ((0, 3600), (SUMMER_S, 18000), (SUMMER_S + 1, 0)))
    old_value = old_rows(definition, moment)
    assert isinstance(old_value, Unknown) if value is None else old_value == Constant(value)


def test_a_fraction_that_the_event_lacks_is_not_zero() -> None:
    assert isinstance(old_rows("DATETIME(3) DEFAULT NOW(3)", Moment(SUMMER_S, None, "+00:00")), Unknown)
    assert old_rows("DATETIME DEFAULT NOW()", Moment(SUMMER_S, None, "+00:00")) == Constant("2026-07-15 00:00:00")


@pytest.mark.parametrize("explicit", [True, False, None])
def test_a_timestamp_without_default(explicit: bool | None) -> None:
    old_value = old_rows("TIMESTAMP", Moment(SUMMER_S, None, None, explicit))
    assert isinstance(old_value, Unknown) == (explicit is not True)
    old_value = old_rows("TIMESTAMP NOT NULL", Moment(SUMMER_S, None, None, explicit))
    assert old_value == Constant("0000-00-00 00:00:00") if explicit else isinstance(old_value, Unknown)


@pytest.mark.parametrize(
    ("zone", "system_zone", "offset_s"),
    [
        ("+05:30", (), 19800),
        ("-03:00", (), -10800),
        ("UTC", (), 0),
        ("SYSTEM", ((0, 3600),), 3600),
        ("SYSTEM", ((SUMMER_S, 3600),), None),  # the years before are not known
        ("SYSTEM", ((0, 3600), (SUMMER_S, 7200)), None),
        ("SYSTEM", (), None),
        ("Europe/Berlin", (), None),
        (None, ((0, 3600),), None),
    ],
)
def test_the_offset_of_all_times(zone: str | None, system_zone: Offsets, offset_s: int | None) -> None:
    assert Moment(SUMMER_S, 0, zone, None, system_zone).zone_offset_s == offset_s
