"""The result type of checks: one fact, good or bad, with its remedy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cdc.errors import CdcError

Level = Literal["ok", "warning", "error"]
Stage = Literal["capture", "apply"]


@dataclass(frozen=True)
class Finding:
    """One result. ``error``: capture or apply would fail or lose data. ``warning``: it works, but may fail later."""

    level: Level
    subject: str
    """The checked thing: ``source: binlog_format``, ``table shop.orders``, ``target``."""
    message: str
    remedy: str | None = None
    stops: Stage = "capture"
    """The stage that an error stops. What stops only apply, for one table, must not keep capture from the others."""


def ok(subject: str, message: str) -> Finding:
    return Finding("ok", subject, message)


def warning(subject: str, message: str, remedy: str) -> Finding:
    return Finding("warning", subject, message, remedy)


def error(subject: str, message: str, remedy: str) -> Finding:
    return Finding("error", subject, message, remedy)


def of_apply(finding: Finding) -> Finding:
    """Returns the finding as one that stops apply and leaves capture alone."""
    return replace(finding, stops="apply")


def from_error(subject: str, trouble: CdcError) -> Finding:
    """Turns an exception into a finding, so that the other checks can continue."""
    place = None if trouble.place is None else trouble.place.removeprefix(f"{subject} ")
    message = trouble.message if place is None else f"{place}: {trouble.message}"
    return Finding("error", subject, message, trouble.remedy)
