"""Schedules of DAGs: a duration, or a cron expression in a time zone."""

from __future__ import annotations

import re
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from cdc.config.values import DURATION_PATTERN, FilledText, no_boolean, seconds

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_MOST_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    ("day of the week", 0, 7, {name: number for number, name in enumerate(_DAYS)}),
)
_PART = re.compile(r"(?:(?P<all>\*)|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>\d+))?", re.ASCII)


def require_cron(text: str) -> None:
    """Raises ValueError unless the text is a cron expression of five fields that some day matches, or a preset."""
    if text in PRESETS:
        return
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(
            "is neither a duration like 30s, 15m or 1d nor a cron expression of five fields like '0 2 * * *'; presets "
            f"are {', '.join(PRESETS)}"
        )
    _, _, days, months, _ = [_values(field, *limits) for field, limits in zip(fields, _FIELDS, strict=True)]
    if fields[4] == "*" and not any(day <= _MOST_DAYS[month - 1] for month in months for day in days):
        raise ValueError("is a cron expression that no day ever matches")


def _values(field: str, name: str, least: int, most: int, words: dict[str, int]) -> set[int]:
    """Returns the numbers that a field matches. Raises ValueError."""
    values: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part.lower())
        wrong = ValueError(f"is a cron expression whose {name} cannot be {part!r}")
        if match is None:
            raise wrong
        if match["all"]:
            low, high = least, most
        else:
            low = _number(match["low"], words, wrong)
            high = low if match["high"] is None else _number(match["high"], words, wrong)
            if match["step"] and match["high"] is None:
                high = most
        step = int(match["step"] or 1)
        if not (least <= low <= high <= most) or step == 0:
            raise wrong
        values.update(range(low, high + 1, step))
    return values


def _number(text: str, words: dict[str, int], wrong: ValueError) -> int:
    if text in words:
        return words[text]
    if not text.isdecimal():
        raise wrong
    return int(text)


def _schedule(value: Any) -> float | str:
    if isinstance(value, str):
        try:
            value = seconds(value)
        except ValueError:
            text = " ".join(value.split())
            require_cron(text)
            return text
    if not isinstance(value, int | float):
        raise ValueError("must be a duration or a cron expression")
    if value <= 0:
        raise ValueError("must be more than 0")
    return float(value)


ScheduleText = Annotated[
    float | str,
    BeforeValidator(_schedule),
    BeforeValidator(no_boolean),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": DURATION_PATTERN},
                {"type": "string", "pattern": r"^\s*(\S+\s+){4}\S+\s*$"},
                {"type": "string", "pattern": f"^({'|'.join(PRESETS)})$"},
            ]
        }
    ),
]
"""Seconds, or a cron expression."""


def _time_zone(name: str) -> str:
    if name != "UTC":
        try:
            ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            raise ValueError("is not a time zone; write it like Europe/Berlin") from None
    return name


TimeZoneName = Annotated[FilledText, AfterValidator(_time_zone)]
"""A name of the IANA time zone database."""
