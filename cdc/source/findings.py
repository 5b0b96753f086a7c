"""What a check finds: one fact each, good or bad, with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc.errors import CdcError

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """``error``: capture or apply would not work, or would lose something. ``warning``: it works, for now."""

    level: Level
    subject: str
    """What was looked at: ``source: binlog_format``, ``table shop.orders``, ``target``."""
    message: str
    remedy: str | None = None


def ok(subject: str, message: str) -> Finding:
    return Finding("ok", subject, message)


def warning(subject: str, message: str, remedy: str) -> Finding:
    return Finding("warning", subject, message, remedy)


def error(subject: str, message: str, remedy: str) -> Finding:
    return Finding("error", subject, message, remedy)


def from_error(subject: str, trouble: CdcError) -> Finding:
    """An exception as a finding, so that the other checks can go on."""
    place = None if trouble.place is None else trouble.place.removeprefix(f"{subject} ")
    message = trouble.message if place is None else f"{place}: {trouble.message}"
    return Finding("error", subject, message, trouble.remedy)
