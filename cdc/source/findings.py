"""The result type of checks: one fact, good or bad, with its remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cdc.base.errors import CdcError

Level = Literal["ok", "warning", "error"]
Stage = Literal["capture", "apply"]


@dataclass(frozen=True)
class Advice:
    """A finding as an administrator needs it: the value that was found, the reason, and how to change it."""

    value: str
    """``binlog_row_image = MINIMAL``."""
    why: str
    """The consequence if the value stays; a clause."""
    statements: tuple[str, ...]
    """To be run as they stand."""
    keep: str | None = None
    """For the server's configuration file, so that a restart does not undo the statements."""
    managed: Mapping[str, str] = field(default_factory=dict)
    """The steps on a managed service, by its name. The statements are not allowed there."""
    then: str | None = None
    """A step that has to follow the statements."""


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
    advice: Advice | None = None
    """The parts of message and remedy, for findings about the server's settings and privileges."""


def ok(subject: str, message: str) -> Finding:
    return Finding("ok", subject, message)


def warning(subject: str, message: str, remedy: str, advice: Advice | None = None) -> Finding:
    return Finding("warning", subject, message, remedy, advice=advice)


def error(subject: str, message: str, remedy: str, advice: Advice | None = None) -> Finding:
    return Finding("error", subject, message, remedy, advice=advice)


def of_apply(finding: Finding) -> Finding:
    """Returns the finding as one that stops apply and leaves capture alone."""
    return replace(finding, stops="apply")


def from_error(subject: str, trouble: CdcError) -> Finding:
    """Turns an exception into a finding, so that the other checks can continue."""
    place = None if trouble.place is None else trouble.place.removeprefix(f"{subject} ")
    message = trouble.message if place is None else f"{place}: {trouble.message}"
    return Finding("error", subject, message, trouble.remedy)
