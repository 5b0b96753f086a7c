"""A report of another project's users as a case of ours: the input in our own words, and the right value."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tests.field


@dataclass(frozen=True)
class Session:
    """A statement in a session of its own, which stays open under a name until the case ends."""

    name: str
    sql: str


@dataclass(frozen=True)
class Case:
    """A case: statements that run in a database of its own before capture reads them, and what Delta must show then."""

    report: str
    """Project and number as on GitHub, such as ``zendesk/maxwell#2018``; an issue of Jira by its key."""
    problem: str
    """The reported problem, in a sentence for readers of the page."""
    statements: tuple[str | Session, ...]
    """Each is committed by itself unless it begins a transaction. ``{db}`` stands for the database, in which they run."""
    rows: Mapping[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    """The right rows of each table, sorted, in the order of its columns, as SELECT and Delta both show them."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Tables that are parked, each with a regular expression for the sentence that says why."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings of tables, as YAML: ``{"log": "{mode: append}"}``."""
    servers: tuple[str, ...] = ("mysql9", "mariadb11")
    """The servers on which it can happen."""

    @property
    def url(self) -> str:
        """Returns the address of the report."""
        project, _, number = self.report.partition("#")
        if number:
            return f"https://github.com/{project}/issues/{number}"
        return f"{_TRACKERS[project.partition('-')[0]]}/{project}"


_TRACKERS = {"FLINK": "https://issues.apache.org/jira/browse", "DBZ": "https://issues.redhat.com/browse"}


def all_cases() -> dict[str, Case]:
    """Returns every case by the name of its file."""
    cases: dict[str, Case] = {}
    for module in pkgutil.iter_modules(tests.field.__path__):
        case = getattr(importlib.import_module(f"tests.field.{module.name}"), "CASE", None)
        if case is not None:
            cases[module.name] = case
    return dict(sorted(cases.items()))
