"""A report of another project's users as a case of ours: the input in our own words, and the right value."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tests.field
from cdc.testing.servers import Server


@dataclass(frozen=True)
class Session:
    """A statement in a session of its own, which stays open under a name until the case ends."""

    name: str
    sql: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report, and the servers on which it is tried."""

    report: str
    """Project and number as on GitHub, such as ``zendesk/maxwell#2018``; an issue of Jira by its key."""
    problem: str
    """The reported problem, in a sentence for readers of the page."""
    servers: tuple[str, ...] = ("mysql9", "mariadb11")
    """The servers on which it can happen."""

    @property
    def url(self) -> str:
        """Returns the address of the report."""
        project, _, number = self.report.partition("#")
        if number:
            return f"https://github.com/{project}/issues/{number}"
        return f"{_TRACKERS[project.partition('-')[0]]}/{project}"


@dataclass(frozen=True, kw_only=True)
class Case(Report):
    """A case of statements, which run in a database of its own before capture reads them, and what Delta must show."""

    statements: tuple[str | Session, ...]
    """Each is committed by itself unless it begins a transaction. ``{db}`` stands for the database, in which they run."""
    rows: Mapping[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    """The right rows of each table, sorted, in the order of its columns, as SELECT and Delta both show them."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Tables that are parked, each with a regular expression for the sentence that says why."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings of tables, as YAML: ``{"log": "{mode: append}"}``."""

    @property
    def answer(self) -> str:
        """Returns what Towpath does, for the page."""
        if not self.refused:
            return "equal"
        return "refused: " + "; ".join(f"*{readable(sentence)}*" for sentence in self.refused.values())


@dataclass(frozen=True, kw_only=True)
class Scenario(Report):
    """A case that needs more than statements: a function drives servers, capture, snapshots and apply, and checks the
    right value itself."""

    run: Callable[[Path, Server, str], None]
    """Takes an empty folder, the shared server of the kind, and the name of an empty database there. A scenario that
    stops or reconfigures a server starts its own one, of the kind ``server.kind.name``."""
    answer: str = "equal"
    """Towpath's behaviour, for the page. Its sentences are those that ``run`` checks (:func:`readable`)."""


_TRACKERS = {"FLINK": "https://issues.apache.org/jira/browse", "DBZ": "https://issues.redhat.com/browse"}


def readable(pattern: str) -> str:
    """Returns a regular expression as the words that it matches."""
    return pattern.replace(r"\.", ".").replace(".*", "…").replace("\\", "")


def all_cases() -> dict[str, Case | Scenario]:
    """Returns every case by the name of its file."""
    cases: dict[str, Case | Scenario] = {}
    for module in pkgutil.iter_modules(tests.field.__path__):
        case = getattr(importlib.import_module(f"tests.field.{module.name}"), "CASE", None)
        if case is not None:
            cases[module.name] = case
    return dict(sorted(cases.items()))
