"""The time of a statement and the settings of its session, as its event tells them: what CURRENT_TIMESTAMP is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo

from cdc.binlog.sql.schemas import Offsets

_OFFSET = re.compile(r"([+-])(\d{1,2}):(\d{2})")
_SYSTEM = "SYSTEM"
_UTC_NAMES = frozenset({"UTC", "Etc/UTC"})


class SupportsMoment(Protocol):
    """The part of :class:`cdc.binlog.events.QueryEvent` that tells the moment."""

    @property
    def timestamp(self) -> int: ...

    @property
    def microseconds(self) -> int | None: ...

    @property
    def time_zone(self) -> str | None: ...

    @property
    def explicit_defaults(self) -> bool | None: ...


@dataclass(frozen=True)
class Moment:
    """The time at which a statement was executed, and its session."""

    timestamp_s: int
    """Seconds since 1970."""
    microseconds: int | None = None
    """The fraction; None if the event does not have it."""
    time_zone: str | None = None
    """The session's time zone, by its name or offset; None if the event does not have it."""
    explicit_defaults: bool | None = None
    """The session's ``explicit_defaults_for_timestamp``; None if the event does not have it."""
    system_zone: Offsets = ()
    """The server's own time zone."""

    @classmethod
    def of(cls, query: SupportsMoment, system_zone: Offsets = ()) -> Moment:
        """Returns the moment of a statement's event."""
        return cls(query.timestamp, query.microseconds, query.time_zone, query.explicit_defaults, system_zone)

    def utc(self, digits: int) -> datetime | None:
        """Returns the time in UTC, cut to some digits of its fraction; None if the event does not tell it."""
        if digits and self.microseconds is None:
            return None
        unit = 10 ** (6 - digits)
        fraction = (self.microseconds or 0) // unit * unit if digits else 0
        return datetime.fromtimestamp(self.timestamp_s, UTC) + timedelta(microseconds=fraction)

    def local(self, digits: int) -> datetime | None:
        """Returns the time in the session's time zone; None if the event does not tell it, or the zone is not known."""
        time, zone = self.utc(digits), self._zone()
        return None if time is None or zone is None else time.astimezone(zone)

    def instant(self, text: str) -> datetime | None:
        """Returns the time in UTC that a text names in the session's time zone, such as ``2026-01-31 12:00:00``; None
        if it is not certain: the zone is not known, or its clock passes the time twice or never."""
        zone = self._zone()
        if zone is None or self.time_zone == _SYSTEM:
            return None
        local = datetime.fromisoformat(text).replace(tzinfo=zone)
        time = local.astimezone(UTC)
        is_twice = local.replace(fold=1).astimezone(UTC) != time
        return None if is_twice or time.astimezone(zone).replace(tzinfo=None) != local.replace(tzinfo=None) else time

    @property
    def zone_offset_s(self) -> int | None:
        """Seconds by which the session's clock is ahead of UTC, if they are the same for every TIMESTAMP; None if they
        are not, or are not known."""
        if self.time_zone == _SYSTEM:
            is_constant = len(self.system_zone) == 1 and self.system_zone[0][0] == 0
            return self.system_zone[0][1] if is_constant else None
        zone = UTC if self.time_zone in _UTC_NAMES else _zone(self.time_zone)
        return int(zone.utcoffset(None).total_seconds()) if isinstance(zone, timezone) else None

    def _zone(self) -> tzinfo | None:
        if self.time_zone != _SYSTEM:
            return _zone(self.time_zone)
        offsets_s = [offset_s for since_s, offset_s in self.system_zone if since_s <= self.timestamp_s]
        return timezone(timedelta(seconds=offsets_s[-1])) if offsets_s else None


def _zone(name: str | None) -> tzinfo | None:
    """Returns a time zone by its name in MySQL; None if it is not known here."""
    if name is None:
        return None
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        sign = -1 if offset[1] == "-" else 1
        return timezone(sign * timedelta(hours=int(offset[2]), minutes=int(offset[3])))
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # no such zone, no such name, no folder of zones
        return None
