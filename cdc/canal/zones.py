"""The offsets of a time zone as arrays, by which kernels show a TIMESTAMP."""

from __future__ import annotations

from datetime import UTC as DATETIME_UTC
from datetime import datetime, timedelta
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from cdc.base.errors import ConfigError

_LAST_YEAR = 2107
"""MariaDB's TIMESTAMP ends in 2106."""


class Zone(NamedTuple):
    """``offset`` (seconds, to be added to UTC) is in force from ``at`` (seconds since 1970) on."""

    at: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]


UTC = Zone(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))


@cache
def zone_of(name: str) -> Zone:
    """Returns a time zone by its name in the IANA database. Raises ConfigError."""
    if name == "UTC":
        return UTC
    try:
        zone = ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigError(
            f"{name!r} is no time zone that this machine knows",
            remedy="Give a name such as UTC or Asia/Shanghai.",
        ) from None

    def offset(day: datetime) -> int:
        difference = day.astimezone(zone).utcoffset()
        assert difference is not None
        return int(difference.total_seconds())

    moment, last = datetime(1970, 1, 1, tzinfo=DATETIME_UTC), datetime(_LAST_YEAR, 1, 1, tzinfo=DATETIME_UTC)
    changes = [(0, offset(moment))]
    step = timedelta(days=7)
    while moment < last:
        if offset(moment + step) != changes[-1][1]:
            low, high = int(moment.timestamp()), int((moment + step).timestamp())
            while high - low > 1:
                middle = (low + high) // 2
                if offset(datetime.fromtimestamp(middle, DATETIME_UTC)) == changes[-1][1]:
                    low = middle
                else:
                    high = middle
            changes.append((high, offset(datetime.fromtimestamp(high, DATETIME_UTC))))
        moment += step
    at, offsets = zip(*changes, strict=True)
    return Zone(np.array(at, dtype=np.int64), np.array(offsets, dtype=np.int64))
