"""The result type of checks: one fact, good or bad, with its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc.errors import CdcError

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One result. ``error``: capture or apply would fail or lose data. ``warning``: it works, but may fail later."""

    level: Level
    subject: str
    """The checked thing: ``source: binlog_format``, ``table shop.orders``, ``target``."""
    message: str
    remedy: str | None = None


def ok(subject: str, message: str) -> Finding:
    return Finding("ok", subject, message)


def warning(subject: str, message: str, remedy: str) -> Finding:
    return Finding("warning", subject, message, remedy)


def error(subject: str, message: str, remedy: str) -> Finding:
    return Finding("error", subject, message, remedy)


def from_error(subject: str, trouble: CdcError) -> Finding:
    """Turns an exception into a finding, so that the other checks can continue."""
    place = None if trouble.place is None else trouble.place.removeprefix(f"{subject} ")
    message = trouble.message if place is None else f"{place}: {trouble.message}"
    return Finding("error", subject, message, trouble.remedy)
